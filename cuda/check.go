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
