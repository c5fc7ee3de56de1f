package cuda

import (
	"fmt"
	"math"
	"strings"

	"gradbus/lane"
)

// The rules that arguments must obey, for every backend. Every operation has two methods for them: shape looks at
// lengths, types and pointers and costs nothing that grows with the data; data reads offsets, ids, key order and
// targets once, and needs a shape without fault. check is both. All of them run before the first output is written.
//
// Faults of the data are told in this order: offsets, ids, order of keys, room for distinct keys, values that are not
// finite.

const (
	// dimMax bounds the length of a row, so that products of two shapes below 2^40 elements never overflow 64 bits.
	dimMax = 1 << 20
	// positionsMax: positions travel as 32 bits, so an operation takes fewer ids or keys.
	positionsMax = 1 << 31
)

// typeSet is a set of DTypes, one bit each.
type typeSet uint32

const (
	floats   = typeSet(1<<Float32 | 1<<Float16 | 1<<BFloat16)
	indexes  = typeSet(1<<Int64 | 1<<Int32)
	keyTypes = typeSet(1<<Int64 | 1<<Int32 | 1<<Uint64)
)

func only(d DType) typeSet          { return 1 << d }
func (s typeSet) has(d DType) bool  { return d < 32 && s>>d&1 > 0 }
func float32Or(of Vector) typeSet   { return only(Float32) | only(of.dtype) }
func finite(v float32) bool         { return v-v == 0 }
func (a Vector) is(b Vector) bool   { return a.n > 0 && a == b }
func (t *RowsTerm) node() lane.Node { return lane.Node{First: lane.Lane(t.First), Count: t.Count} }
func (t *Term) node() lane.Node     { return lane.Node{First: lane.Lane(t.First), Count: t.Count} }

func (s typeSet) String() string {
	var names []string
	for d := DType(0); d < 32; d++ {
		if s.has(d) {
			names = append(names, d.String())
		}
	}
	return strings.Join(names, " or ")
}

// typed refuses a vector of a type that is not in the set. A vector of no elements may be of any type.
func typed(op, name string, v Vector, types typeSet) error {
	if v.n == 0 || types.has(v.dtype) {
		return nil
	}
	return fmt.Errorf("%s: %w: %s of %v, want %v", op, ErrUnsupported, name, v.dtype, types)
}

func checkAlloc(float32s int) error {
	if float32s < 0 || float32s > math.MaxInt/8 {
		return fmt.Errorf("alloc: %w: %d float32s", ErrArgument, float32s)
	}
	return nil
}

// overlaps reports whether two vectors share a byte.
func overlaps(a, b Vector) bool {
	if a.n == 0 || b.n == 0 {
		return false
	}
	a0, b0 := uintptr(a.data), uintptr(b.data)
	return a0 < b0+uintptr(b.n*b.dtype.Bytes()) && b0 < a0+uintptr(a.n*a.dtype.Bytes())
}

// apart refuses an output that shares memory with one of the others.
func apart(op, name string, out Vector, others ...Vector) error {
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

// checkFew refuses more ids or keys than positions can name.
func checkFew(op, name string, n int) error {
	if n >= positionsMax {
		return shapeError(op, "%d %s, want fewer than 2^31", n, name)
	}
	return nil
}

// rowsOf is the number of rows of dim values in a vector of n.
func rowsOf(op, name string, n, dim int) (int, error) {
	if n%dim != 0 {
		return 0, shapeError(op, "%s has %d values, no multiple of dim %d", name, n, dim)
	}
	return n / dim, nil
}

// exactRows refuses a vector of n values which is not rows x dim.
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

// tooFew is the error of an output that has no room for the distinct keys found.
func tooFew(op string, have, want int) error {
	return shapeError(op, "room for %d keys, want %d distinct ones", have, want)
}

// checkIDs names the first id outside [0, limit) that is not padding.
func checkIDs(op string, ids Vector, limit, padding int64) error {
	switch {
	case ids.n == 0:
		return nil
	case ids.dtype == Int32:
		return checkRange(op, view[int32](ids), limit, padding)
	}
	return checkRange(op, view[int64](ids), limit, padding)
}

func checkRange[T int32 | int64](op string, ids []T, limit, padding int64) error {
	for i, id := range ids {
		if uint64(int64(id)) >= uint64(limit) && (int64(id) != padding || padding == NoPadding) {
			return &idError{op, i, int64(id), limit}
		}
	}
	return nil
}

func orderError(op string, term, position int) error {
	return fmt.Errorf("%s: %w: term %d, position %d: not above the key before it", op, ErrOrder, term, position)
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
			return fmt.Errorf("%s: %w: term %d, lanes %v, begins before lane %d, where the term before it ends", op,
				ErrNode, i, at, end)
		}
		end = at.End()
	}
	return nil
}

// checkDivisor: sums are divided by a finite number above 0, or not at all where it is 0 and may be.
func checkDivisor(op string, weight float32, orNone bool) error {
	if finite(weight) && (weight > 0 || orNone && weight == 0) {
		return nil
	}
	if orNone {
		return argumentError(op, "weight %v, want a finite number above 0, or 0 for none", weight)
	}
	return argumentError(op, "weight %v, want a finite number above 0", weight)
}

// keysLike are the types of keys that go with others; no keys go with any.
func keysLike(keys Vector) typeSet {
	if keys.n == 0 {
		return keyTypes
	}
	return only(keys.dtype)
}

func (a *Coalesce) shape() error {
	const op = "coalesce"
	if err := checkDim(op, a.Dim); err != nil {
		return err
	}
	if err := checkDivisor(op, a.Weight, true); err != nil {
		return err
	}
	if err := firstOf(typed(op, "keys", a.Keys, keyTypes), typed(op, "rows", a.Rows, floats),
		typed(op, "out keys", a.OutKeys, keysLike(a.Keys)), typed(op, "out rows", a.OutRows, float32Or(a.Rows))); err != nil {
		return err
	}
	if err := firstOf(checkFew(op, "keys", a.Keys.n), exactRows(op, "rows", a.Rows.n, a.Keys.n, a.Dim),
		roomFor(op, a.OutKeys.n, a.OutRows.n, a.Dim)); err != nil {
		return err
	}
	if err := apart(op, "out keys", a.OutKeys, a.Keys, a.Rows, a.OutRows); err != nil {
		return err
	}
	return apart(op, "out rows", a.OutRows, a.Keys, a.Rows)
}

// data: keys of the signed types are not negative.
func (a *Coalesce) data() error {
	if a.Keys.dtype == Uint64 {
		return nil
	}
	return checkIDs("coalesce", a.Keys, math.MaxInt64, NoPadding)
}

func (a *Coalesce) check() error {
	if err := a.shape(); err != nil {
		return err
	}
	return a.data()
}

func (a *Merge) shape() error {
	const op = "merge"
	if err := checkDim(op, a.Dim); err != nil {
		return err
	}
	if err := checkDivisor(op, a.Weight, true); err != nil {
		return err
	}
	if err := checkNodes(op, a.Lanes, func(i int) lane.Node { return a.Terms[i].node() }, len(a.Terms)); err != nil {
		return err
	}
	var like Vector // the first term with rows
	total := 0
	for i := range a.Terms {
		t := &a.Terms[i]
		if like.n == 0 {
			like = t.Rows
		}
		if err := a.term(t, like); err != nil {
			return fmt.Errorf("term %d: %w", i, err)
		}
		total += t.Keys.n
	}
	if err := firstOf(checkFew(op, "keys", total), typed(op, "out keys", a.OutKeys, only(Uint64)),
		typed(op, "out rows", a.OutRows, float32Or(like)), roomFor(op, a.OutKeys.n, a.OutRows.n, a.Dim)); err != nil {
		return err
	}
	return apart(op, "out rows", a.OutRows, a.OutKeys)
}

// term checks one term against the first.
func (a *Merge) term(t *RowsTerm, like Vector) error {
	const op = "merge"
	if err := firstOf(typed(op, "keys", t.Keys, only(Uint64)), typed(op, "rows", t.Rows, floats&only(like.dtype)),
		exactRows(op, "a term", t.Rows.n, t.Keys.n, a.Dim), checkFew(op, "keys", t.Keys.n)); err != nil {
		return err
	}
	if err := apart(op, "out keys", a.OutKeys, t.Keys, t.Rows); err != nil {
		return err
	}
	return apart(op, "out rows", a.OutRows, t.Keys, t.Rows)
}

func (a *Merge) data() error {
	for i := range a.Terms {
		keys := view[uint64](a.Terms[i].Keys)
		for k := 1; k < len(keys); k++ {
			if keys[k] <= keys[k-1] {
				return orderError("merge", i, k)
			}
		}
	}
	return nil
}

func (a *Merge) check() error {
	if err := a.shape(); err != nil {
		return err
	}
	return a.data()
}

// copyShape are the rules of Copy.
func copyShape(to, from Vector) error {
	const op = "copy"
	if to.n != from.n || to.n > 0 && to.dtype != from.dtype {
		return shapeError(op, "from %d of %v to %d of %v: want the same", from.n, from.dtype, to.n, to.dtype)
	}
	if to.n > 0 && to.dtype.Bytes() == 0 {
		return fmt.Errorf("%s: %w: %v", op, ErrUnsupported, to.dtype)
	}
	return apart(op, "to", to, from)
}

// firstOf is the first error of some that were all looked for.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// pooling is the common part of BagForward and BagBackward.
type pooling struct {
	op                            string
	dim                           int
	mode                          Mode
	padding, limit                int64 // ids are in [0, limit)
	skip, open                    bool
	ids, offsets, weights, argmax Vector
}

// bags is their number.
func (p *pooling) bags() int {
	if p.open {
		return p.offsets.n
	}
	return p.offsets.n - 1
}

// shape checks everything but the rows.
func (p *pooling) shape() error {
	if err := checkDim(p.op, p.dim); err != nil {
		return err
	}
	if p.mode > Max {
		return fmt.Errorf("%s: %w: mode %d is neither sum (0) nor mean (1) nor max (2)", p.op, ErrUnsupported, p.mode)
	}
	if p.padding < NoPadding {
		return argumentError(p.op, "padding id %d (-1 for none)", p.padding)
	}
	if p.weights.n > 0 && p.mode != Sum {
		return argumentError(p.op, "weights with mode %d: only a sum (0) has weights", p.mode)
	}
	if p.argmax.n > 0 && p.mode != Max {
		return argumentError(p.op, "argmax with mode %d: only the maximum (2) has one", p.mode)
	}
	if err := firstOf(typed(p.op, "ids", p.ids, indexes), typed(p.op, "offsets", p.offsets, indexes),
		typed(p.op, "weights", p.weights, only(Float32)), typed(p.op, "argmax", p.argmax, only(Int32)),
		checkFew(p.op, "ids", p.ids.n)); err != nil {
		return err
	}
	if p.offsets.n == 0 && (!p.open || p.ids.n > 0) {
		return shapeError(p.op, "no offsets, want one more than bags, or one a bag where they are open")
	}
	if p.weights.n > 0 && p.weights.n != p.ids.n {
		return shapeError(p.op, "%d weights, want %d, the number of ids", p.weights.n, p.ids.n)
	}
	if p.argmax.n > 0 {
		return exactRows(p.op, "argmax", p.argmax.n, p.bags(), p.dim)
	}
	return nil
}

// data: offsets, then ids.
func (p *pooling) data() error {
	var err error
	switch {
	case p.offsets.n == 0:
	case p.offsets.dtype == Int32:
		err = checkOffsets(p, view[int32](p.offsets))
	default:
		err = checkOffsets(p, view[int64](p.offsets))
	}
	if err != nil || p.skip {
		return err
	}
	return checkIDs(p.op, p.ids, p.limit, p.padding)
}

// checkOffsets: the first 0, never falling, the last the number of ids, or, where they are open, not beyond it.
func checkOffsets[T int32 | int64](p *pooling, offsets []T) error {
	if offsets[0] != 0 {
		return shapeError(p.op, "offsets start at %d, want 0", offsets[0])
	}
	for i := 1; i < len(offsets); i++ {
		if offsets[i] < offsets[i-1] {
			return shapeError(p.op, "offsets fall from %d to %d at %d", offsets[i-1], offsets[i], i)
		}
	}
	if last := int64(offsets[len(offsets)-1]); last != int64(p.ids.n) && (!p.open || last > int64(p.ids.n)) {
		return shapeError(p.op, "offsets end at %d, want %d, the number of ids", last, p.ids.n)
	}
	return nil
}

func (a *BagForward) pooling() pooling {
	return pooling{"bag forward", a.Dim, a.Mode, a.Padding, int64(a.Rows.n / max(a.Dim, 1)), a.SkipBadIDs, a.OpenOffsets,
		a.IDs, a.Offsets, a.Weights, a.ArgMax}
}

func (a *BagForward) shape() error {
	p := a.pooling()
	if err := p.shape(); err != nil {
		return err
	}
	if _, err := rowsOf(p.op, "rows", a.Rows.n, a.Dim); err != nil {
		return err
	}
	if err := firstOf(typed(p.op, "rows", a.Rows, floats), typed(p.op, "out", a.Out, float32Or(a.Rows)),
		exactRows(p.op, "out", a.Out.n, p.bags(), a.Dim)); err != nil {
		return err
	}
	if err := apart(p.op, "out", a.Out, a.Rows, a.IDs, a.Offsets, a.Weights, a.ArgMax); err != nil {
		return err
	}
	return apart(p.op, "argmax", a.ArgMax, a.Rows, a.IDs, a.Offsets, a.Weights)
}

func (a *BagForward) data() error {
	p := a.pooling()
	return p.data()
}

func (a *BagForward) check() error {
	if err := a.shape(); err != nil {
		return err
	}
	return a.data()
}

func (a *BagBackward) pooling() pooling {
	return pooling{"bag backward", a.Dim, a.Mode, a.Padding, a.R, a.SkipBadIDs, a.OpenOffsets, a.IDs, a.Offsets,
		a.Weights, a.ArgMax}
}

func (a *BagBackward) shape() error {
	p := a.pooling()
	if err := p.shape(); err != nil {
		return err
	}
	if a.R < 0 {
		return shapeError(p.op, "%d rows", a.R)
	}
	if err := firstOf(typed(p.op, "grad out", a.GradOut, floats), typed(p.op, "keys", a.Keys, only(Int64)),
		typed(p.op, "out", a.Out, float32Or(a.GradOut)), exactRows(p.op, "grad out", a.GradOut.n, p.bags(), a.Dim),
		roomFor(p.op, a.Keys.n, a.Out.n, a.Dim)); err != nil {
		return err
	}
	if a.Mode == Max {
		if err := exactRows(p.op, "argmax", a.ArgMax.n, p.bags(), a.Dim); err != nil {
			return err
		}
	}
	if err := apart(p.op, "out", a.Out, a.GradOut, a.IDs, a.Offsets, a.Weights, a.ArgMax, a.Keys); err != nil {
		return err
	}
	return apart(p.op, "keys", a.Keys, a.GradOut, a.IDs, a.Offsets, a.Weights, a.ArgMax)
}

func (a *BagBackward) data() error {
	p := a.pooling()
	return p.data()
}

func (a *BagBackward) check() error {
	if err := a.shape(); err != nil {
		return err
	}
	return a.data()
}

// checkTerms checks the terms of a sum along the lane tree; each has n values. It returns one of them, for its type.
func checkTerms(op string, lanes int, terms []Term, n int) (Vector, error) {
	if len(terms) == 0 {
		return Vector{}, shapeError(op, "no terms: a round without a term has no average")
	}
	if err := checkNodes(op, lanes, func(i int) lane.Node { return terms[i].node() }, len(terms)); err != nil {
		return Vector{}, err
	}
	like := terms[0].Values
	for i := range terms {
		v := terms[i].Values
		if v.n != n {
			return like, shapeError(op, "term %d has %d values, out %d", i, v.n, n)
		}
		if err := typed(op, "a term", v, floats&only(like.dtype)); err != nil {
			return like, err
		}
	}
	return like, nil
}

func (a *Average) shape() error {
	const op = "average"
	if err := checkDivisor(op, a.Weight, false); err != nil {
		return err
	}
	like, err := checkTerms(op, a.Lanes, a.Terms, a.Out.n)
	if err != nil {
		return err
	}
	types := float32Or(like)
	if like.dtype == Float32 {
		types = floats // one term of weight 1 rounds a tensor for storage
	}
	if err := typed(op, "out", a.Out, types); err != nil {
		return err
	}
	for i := range a.Terms {
		if v := a.Terms[i].Values; !v.is(a.Out) && overlaps(v, a.Out) {
			return fmt.Errorf("%s: %w: out is shifted against term %d", op, ErrOverlap, i)
		}
	}
	return nil
}

func (a *Average) check() error { return a.shape() }

func (a *AverageApply) shape() error {
	u := a.update()
	if err := u.dense(a.Dim); err != nil {
		return err
	}
	if _, err := checkTerms(u.op, a.Lanes, a.Terms, a.Param.n); err != nil {
		return err
	}
	for i := range a.Terms {
		if err := u.apart(a.Terms[i].Values); err != nil {
			return fmt.Errorf("term %d: %w", i, err)
		}
	}
	return nil
}

func (a *AverageApply) check() error { return a.shape() }

// extent refuses a matrix that does not have rows x cols values of float32.
func extent(op, name string, v Vector, rows, cols int) error {
	if rows < 0 || cols < 0 || rows > 1<<31 || cols > 1<<31 {
		return shapeError(op, "%s is %d x %d", name, rows, cols)
	}
	if v.n != rows*cols {
		return shapeError(op, "%s has %d values, want %d x %d", name, v.n, rows, cols)
	}
	return typed(op, name, v, only(Float32))
}

func (a *MatMul) shape() error {
	const op = "matmul"
	if err := firstOf(extent(op, "a", a.A, a.M, a.K), extent(op, "b", a.B, a.K, a.N), extent(op, "c", a.C, a.M, a.N),
		typed(op, "bias", a.Bias, only(Float32))); err != nil {
		return err
	}
	if a.Bias.n != 0 && a.Bias.n != a.N {
		return shapeError(op, "bias has %d values, want %d", a.Bias.n, a.N)
	}
	return apart(op, "c", a.C, a.A, a.B, a.Bias)
}

func (a *MatMul) check() error { return a.shape() }

func (a *SoftmaxCrossEntropy) shape() error {
	const op = "softmax cross entropy"
	if a.Classes < 1 || a.Classes > dimMax {
		return shapeError(op, "%d classes, want 1 to %d", a.Classes, dimMax)
	}
	samples, err := rowsOf(op, "logits", a.Logits.n, a.Classes)
	if err != nil {
		return err
	}
	for _, v := range [...]struct {
		name   string
		v      Vector
		n      int
		needed bool
		types  typeSet
	}{
		{"logits", a.Logits, a.Logits.n, true, only(Float32)},
		{"loss", a.Loss, samples, false, only(Float32)},
		{"grad", a.Grad, a.Logits.n, false, only(Float32)},
		{"probabilities", a.Probabilities, a.Logits.n, false, only(Float32)},
		{"targets", a.Targets, samples, a.Loss.n > 0 || a.Grad.n > 0, only(Int32)},
	} {
		if v.v.n != v.n && (v.v.n > 0 || v.needed) {
			return shapeError(op, "%s has %d values, want %d", v.name, v.v.n, v.n)
		}
		if err := typed(op, v.name, v.v, v.types); err != nil {
			return err
		}
	}
	if err := apart(op, "loss", a.Loss, a.Logits, a.Targets, a.Grad, a.Probabilities); err != nil {
		return err
	}
	if err := apart(op, "grad", a.Grad, a.Logits, a.Targets, a.Probabilities); err != nil {
		return err
	}
	return apart(op, "probabilities", a.Probabilities, a.Logits, a.Targets)
}

func (a *SoftmaxCrossEntropy) data() error {
	return checkIDs("softmax cross entropy", a.Targets, int64(a.Classes), NoPadding)
}

func (a *SoftmaxCrossEntropy) check() error {
	if err := a.shape(); err != nil {
		return err
	}
	return a.data()
}
