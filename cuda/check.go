package cuda

import (
	"fmt"
	"math"
	"unsafe"

	"gradbus/lane"
)

// This file holds the rules that arguments must obey, for every backend. Checks of shape cost nothing that grows with
// the data; the others (offsets, ids, key order) read it once. All of them run before the first output is written.

// dimMax bounds the length of a row, so that products of two shapes below 2^40 elements never overflow 64 bits.
const dimMax = 1 << 20

func checkAlloc(float32s int) error {
	if float32s < 0 || float32s > math.MaxInt/8 {
		return fmt.Errorf("alloc: %w: %d float32s", ErrArgument, float32s)
	}
	return nil
}

// overlaps reports whether two slices share a byte.
func overlaps[A, B any](a []A, b []B) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	a0, b0 := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	a1, b1 := a0+uintptr(len(a))*unsafe.Sizeof(a[0]), b0+uintptr(len(b))*unsafe.Sizeof(b[0])
	return a0 < b1 && b0 < a1
}

// same reports whether two slices are the same memory from their first element on.
func same(a, b []float32) bool {
	return len(a) > 0 && len(b) > 0 && unsafe.SliceData(a) == unsafe.SliceData(b)
}

// apart refuses an output that shares memory with one of the others.
func apart(op, name string, out []float32, others ...[]float32) error {
	for _, o := range others {
		if overlaps(out, o) {
			return fmt.Errorf("%s: %w: %s shares memory with another argument", op, ErrOverlap, name)
		}
	}
	return nil
}

func checkDim(op string, dim int) error {
	if dim < 1 || dim > dimMax {
		return shapeError(op, "dim %d is not in [1,%d]", dim, dimMax)
	}
	return nil
}

func checkMode(op string, mode Mode, padding int64) error {
	if mode != Sum && mode != Mean {
		return fmt.Errorf("%s: %w: mode %d is neither sum (0) nor mean (1)", op, ErrUnsupported, mode)
	}
	if padding < NoPadding {
		return fmt.Errorf("%s: %w: padding id %d (-1 for none)", op, ErrArgument, padding)
	}
	return nil
}

// rowsOf is the number of rows of dim values in a slice of n.
func rowsOf(op, name string, n, dim int) (int, error) {
	if n%dim != 0 {
		return 0, shapeError(op, "%s has %d values, no multiple of dim %d", name, n, dim)
	}
	return n / dim, nil
}

// exactRows refuses a slice of n values which is not rows x dim.
func exactRows(op, name string, n, rows, dim int) error {
	if n%dim != 0 || n/dim != rows {
		return shapeError(op, "%s has %d values, want %d rows of %d", name, n, rows, dim)
	}
	return nil
}

// roomFor refuses outputs that cannot hold what their own lengths promise.
func roomFor(op string, keys, rows, dim int) error {
	if rows/dim < keys {
		return shapeError(op, "out has %d values, want at least %d rows of %d", rows, keys, dim)
	}
	return nil
}

// checkOffsets: at least one, the first 0, never falling, the last n.
func checkOffsets(op string, offsets []int64, n int) error {
	if offsets[0] != 0 {
		return shapeError(op, "offsets start at %d, want 0", offsets[0])
	}
	for i := 1; i < len(offsets); i++ {
		if offsets[i] < offsets[i-1] {
			return shapeError(op, "offsets fall from %d to %d at %d", offsets[i-1], offsets[i], i)
		}
	}
	if last := offsets[len(offsets)-1]; last != int64(n) {
		return shapeError(op, "offsets end at %d, want %d, the number of ids", last, n)
	}
	return nil
}

// checkIDs names the first id outside [0, limit) that is not padding.
func checkIDs(op string, ids []int64, limit, padding int64) error {
	for i, id := range ids {
		if uint64(id) >= uint64(limit) && (id != padding || id == NoPadding) {
			return &IDError{op, i, id, limit}
		}
	}
	return nil
}

func (a *BagForward) shape() (rows, bags int, err error) {
	const op = "bag forward"
	if err = checkDim(op, a.Dim); err != nil {
		return
	}
	if err = checkMode(op, a.Mode, a.Padding); err != nil {
		return
	}
	if len(a.Offsets) == 0 {
		return 0, 0, shapeError(op, "no offsets, want one more than bags")
	}
	bags = len(a.Offsets) - 1
	if rows, err = rowsOf(op, "rows", len(a.Rows), a.Dim); err != nil {
		return
	}
	if err = exactRows(op, "out", len(a.Out), bags, a.Dim); err != nil {
		return
	}
	return rows, bags, apart(op, "out", a.Out, a.Rows)
}

func (a *BagForward) check() (bags int, err error) {
	rows, bags, err := a.shape()
	if err == nil {
		err = checkOffsets("bag forward", a.Offsets, len(a.IDs))
	}
	if err == nil {
		err = checkIDs("bag forward", a.IDs, int64(rows), a.Padding)
	}
	return bags, err
}

func (a *BagBackward) shape() (bags int, err error) {
	const op = "bag backward"
	if err = checkDim(op, a.Dim); err != nil {
		return
	}
	if err = checkMode(op, a.Mode, a.Padding); err != nil {
		return
	}
	if a.R < 0 {
		return 0, shapeError(op, "%d rows", a.R)
	}
	if len(a.Offsets) == 0 {
		return 0, shapeError(op, "no offsets, want one more than bags")
	}
	bags = len(a.Offsets) - 1
	if err = exactRows(op, "grad out", len(a.GradOut), bags, a.Dim); err != nil {
		return
	}
	if err = roomFor(op, len(a.Keys), len(a.Out), a.Dim); err != nil {
		return
	}
	return bags, apart(op, "out", a.Out, a.GradOut)
}

func (a *BagBackward) check() (bags int, err error) {
	if bags, err = a.shape(); err != nil {
		return
	}
	if err = checkOffsets("bag backward", a.Offsets, len(a.IDs)); err != nil {
		return
	}
	return bags, checkIDs("bag backward", a.IDs, a.R, a.Padding)
}

func (a *Coalesce) check() error {
	const op = "coalesce"
	if err := checkDim(op, a.Dim); err != nil {
		return err
	}
	if err := exactRows(op, "rows", len(a.Rows), len(a.Keys), a.Dim); err != nil {
		return err
	}
	if err := roomFor(op, len(a.OutKeys), len(a.OutRows), a.Dim); err != nil {
		return err
	}
	if overlaps(a.OutKeys, a.Keys) {
		return fmt.Errorf("%s: %w: out keys share memory with keys", op, ErrOverlap)
	}
	return apart(op, "out rows", a.OutRows, a.Rows)
}

// tooFew is the error of an output that has no room for the distinct keys found.
func tooFew(op string, have, want int) error {
	return shapeError(op, "room for %d keys, want %d distinct ones", have, want)
}

// checkNodes: every node is one of the tree, and they come in lane order without touching twice the same lane.
func checkNodes(op string, lanes int, node func(i int) lane.Node, n int) error {
	end := 0
	for i := range n {
		at := node(i)
		if !lane.IsNode(at, lanes) {
			return fmt.Errorf("%s: %w: term %d, lanes %v, is no node of the tree over %d lanes", op, ErrNode, i, at, lanes)
		}
		if int(at.First) < end {
			return fmt.Errorf("%s: %w: term %d, lanes %v, begins before lane %d, where the term before it ends", op, ErrNode, i, at, end)
		}
		end = at.End()
	}
	return nil
}

func (t *RowsTerm) node() lane.Node { return lane.Node{First: lane.Lane(t.First), Count: t.Count} }
func (t *Term) node() lane.Node     { return lane.Node{First: lane.Lane(t.First), Count: t.Count} }

func (a *Merge) shape() error {
	const op = "merge"
	if err := checkDim(op, a.Dim); err != nil {
		return err
	}
	if err := roomFor(op, len(a.OutKeys), len(a.OutRows), a.Dim); err != nil {
		return err
	}
	if err := checkNodes(op, a.Lanes, func(i int) lane.Node { return a.Terms[i].node() }, len(a.Terms)); err != nil {
		return err
	}
	for i := range a.Terms {
		t := &a.Terms[i]
		if err := exactRows(op, "a term", len(t.Rows), len(t.Keys), a.Dim); err != nil {
			return fmt.Errorf("term %d: %w", i, err)
		}
		if overlaps(a.OutKeys, t.Keys) || overlaps(a.OutRows, t.Rows) {
			return fmt.Errorf("%s: %w: the output shares memory with term %d", op, ErrOverlap, i)
		}
	}
	return nil
}

func (a *Merge) check() error {
	if err := a.shape(); err != nil {
		return err
	}
	for i := range a.Terms {
		keys := a.Terms[i].Keys
		for k := 1; k < len(keys); k++ {
			if keys[k] <= keys[k-1] {
				return orderError(i, k)
			}
		}
	}
	return nil
}

func orderError(term, position int) error {
	return fmt.Errorf("merge: %w: term %d, position %d: not above the key before it", ErrOrder, term, position)
}

func finite(v float32) bool { return v-v == 0 }

func checkSGD(op string, s SGD, weight float32) error {
	if !finite(weight) || weight <= 0 {
		return fmt.Errorf("%s: %w: weight %v, want a finite number above 0", op, ErrArgument, weight)
	}
	if !finite(s.LR) || !finite(s.Momentum) || !finite(s.Dampening) || !finite(s.WeightDecay) {
		return fmt.Errorf("%s: %w: hyperparameters %+v, want finite numbers", op, ErrArgument, s)
	}
	return nil
}

func (a *ApplyRows) shape() (rows int, err error) {
	const op = "apply rows"
	if err = checkDim(op, a.Dim); err != nil {
		return
	}
	if err = checkSGD(op, a.SGD, a.Weight); err != nil {
		return
	}
	if rows, err = rowsOf(op, "table", len(a.Table), a.Dim); err != nil {
		return
	}
	n := len(a.Index)
	if err = exactRows(op, "grad", len(a.Grad), n, a.Dim); err != nil {
		return
	}
	if err = exactRows(op, "out", len(a.Out), n, a.Dim); err != nil {
		return
	}
	if err = a.slots(rows, n); err != nil {
		return
	}
	if err = apart(op, "out", a.Out, a.Table, a.Momentum, a.Grad, a.OutMomentum); err != nil {
		return
	}
	return rows, apart(op, "out momentum", a.OutMomentum, a.Table, a.Momentum, a.Grad)
}

func (a *ApplyRows) slots(rows, n int) error {
	const op = "apply rows"
	if a.SGD.Momentum == 0 {
		if a.Momentum != nil || a.OutMomentum != nil || a.First != nil {
			return shapeError(op, "momentum is 0, so momentum, out momentum and first must be nil")
		}
		return nil
	}
	if err := exactRows(op, "momentum", len(a.Momentum), rows, a.Dim); err != nil {
		return err
	}
	if err := exactRows(op, "out momentum", len(a.OutMomentum), n, a.Dim); err != nil {
		return err
	}
	if len(a.First) != n {
		return shapeError(op, "first has %d values, want %d", len(a.First), n)
	}
	return nil
}

func (a *ApplyRows) check() error {
	rows, err := a.shape()
	if err != nil {
		return err
	}
	return checkIDs("apply rows", a.Index, int64(rows), NoPadding)
}
