package cuda

import "slices"

// Blocks of verification: as many whole rows of a tensor or of a call as have some values, or one row; not too many,
// since a row costs more than its values. They bound what one check costs: some 10 us.
const (
	verifyValues = 4096
	verifyRows   = 64
)

// rowsInBlock is how many rows of some values a block has.
func rowsInBlock(dim int) int {
	return min(max(verifyValues/max(dim, 1), 1), verifyRows)
}

// blocksOf is how many blocks of some size n things are.
func blocksOf(n, size int) int { return (n + size - 1) / size }

// cut is a dense tensor of n values in blocks.
type cut struct {
	n     int
	block int // values in a block
}

// cutOf cuts a tensor into blocks that an optimizer sees as it sees the whole: a row-wise one looks at whole rows.
func (u *update) cut(dim int) cut {
	n := u.table.n
	if !u.known || !u.hyper.rowwise() || dim < 0 {
		return cut{n, verifyValues}
	}
	width := u.width(dim)
	return cut{n, max(verifyValues/width, 1) * width}
}

func (c cut) blocks() int { return blocksOf(c.n, c.block) }

func (c cut) of(block int) (lo, hi int) { return block * c.block, min((block+1)*c.block, c.n) }

// replaces reports whether a dense step writes over anything that it reads.
func replaces(slots []Slot, param, out Vector) bool {
	return out.is(param) || slices.ContainsFunc(slots, func(s Slot) bool { return s.After.is(s.Before) })
}

// ApplyDense implements Backend.
func (v *Verified) ApplyDense(a ApplyDense) error {
	u := a.update()
	c := u.cut(a.Dim)
	first, due := v.number(c.blocks())
	if !due || a.shape() != nil { // which the backend refuses
		return v.Backend.ApplyDense(a)
	}
	return v.check(u.op, first, c.blocks(), replaces(a.Slots, a.Param, a.Out),
		func() error { return v.Backend.ApplyDense(a) },
		func(t *trial, block int) error {
			lo, hi := c.of(block)
			b := a
			b.Param, b.Grad, b.Report = a.Param.Slice(lo, hi), a.Grad.Slice(lo, hi), nil
			b.Out, b.Slots = t.dense(c, lo, hi, a.Slots, a.Out)
			return v.oracle.ApplyDense(b)
		})
}

// AverageApply implements Backend.
func (v *Verified) AverageApply(a AverageApply) error {
	u := a.update()
	c := u.cut(a.Dim)
	first, due := v.number(c.blocks())
	if !due || a.shape() != nil {
		return v.Backend.AverageApply(a)
	}
	return v.check(u.op, first, c.blocks(), replaces(a.Slots, a.Param, a.Out),
		func() error { return v.Backend.AverageApply(a) },
		func(t *trial, block int) error {
			lo, hi := c.of(block)
			b := a
			b.Param, b.Terms, b.Report = a.Param.Slice(lo, hi), t.slices(a.Terms, lo, hi), nil
			b.Out, b.Slots = t.dense(c, lo, hi, a.Slots, a.Out)
			return v.oracle.AverageApply(b)
		})
}

// slices are values [lo, hi) of all terms.
func (t *trial) slices(terms []Term, lo, hi int) []Term {
	t.terms = t.terms[:0]
	for i := range terms {
		t.terms = append(t.terms, Term{terms[i].First, terms[i].Count, terms[i].Values.Slice(lo, hi)})
	}
	return t.terms
}

// dense makes the oracle's outputs for values [lo, hi) of a tensor, and notes what to compare.
func (t *trial) dense(c cut, lo, hi int, slots []Slot, out Vector) (Vector, []Slot) {
	t.slots = t.slots[:0]
	made := t.take(out.dtype, hi-lo)
	t.note(part{what: "parameters", got: out, want: made, from: lo, n: 1})
	for i := range slots {
		s := &slots[i]
		per := c.n / max(s.Before.n, 1) // values of the tensor to one of the slot
		from, to := lo/per, hi/per
		after := t.take(s.Before.dtype, to-from)
		t.slots = append(t.slots, Slot{s.Name, s.Before.Slice(from, to), after})
		t.note(part{what: s.Name, got: s.After, want: after, from: from, n: 1})
	}
	return made, t.slots
}

// ApplyRows implements Backend.
func (v *Verified) ApplyRows(a ApplyRows) error {
	size := rowsInBlock(a.Dim)
	blocks := blocksOf(a.Index.n, size)
	first, due := v.number(blocks)
	if !due || a.shape() != nil {
		return v.Backend.ApplyRows(a)
	}
	inPlace := a.Out.is(a.Table)
	return v.check("apply rows", first, blocks, inPlace, func() error { return v.Backend.ApplyRows(a) },
		func(t *trial, block int) error {
			lo, hi := block*size, min((block+1)*size, a.Index.n)
			b := a
			b.Index, b.Grad, b.Report = a.Index.Slice(lo, hi), a.Grad.Slice(lo*a.Dim, hi*a.Dim), nil
			if a.First.n > 0 {
				b.First = a.First.Slice(lo, hi)
			}
			t.update(&b, &a, part{from: lo, keys: b.Index, limit: a.Table.n / a.Dim, inPlace: inPlace})
			return v.oracle.ApplyRows(b)
		})
}

// update makes the oracle's outputs for the rows that b names, always compact, and notes what to compare: at is where
// the rows are in what a writes.
func (t *trial) update(b, a *ApplyRows, at part) {
	t.slots = t.slots[:0]
	count := b.Index.n
	note := func(what string, got, want Vector, n int) {
		at.what, at.got, at.want, at.n = what, got, want, n
		t.note(at)
	}
	b.Out = t.take(a.Out.dtype, count*a.Dim)
	note("parameters", a.Out, b.Out, a.Dim)
	for i := range a.Slots {
		s := &a.Slots[i]
		n := s.Before.n / max(at.limit, 1)
		after := t.take(s.Before.dtype, count*n)
		t.slots = append(t.slots, Slot{s.Name, s.Before, after})
		note(s.Name, s.After, after, n)
	}
	b.Slots = t.slots
	if a.Steps.LastAfter.n > 0 {
		b.Steps.LastAfter = t.take(Int64, count)
		note("last step", a.Steps.LastAfter, b.Steps.LastAfter, 1)
	}
}
