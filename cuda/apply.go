package cuda

// The operations with an optimizer. A row is worked on in float32: in place where it is stored so, else widened into
// scratch memory and narrowed at the end.

// span is a run of values: elements [lo, lo+n) of a tensor, and of a slot with one value a row the element row.
type span struct{ lo, n, row int }

// slot is the part of a slot that belongs to a span.
func (u *update) slot(v Vector, at span) Vector {
	if u.hyper.rowwise() {
		return v.Slice(at.row, at.row+1)
	}
	return v.Slice(at.lo, at.lo+at.n)
}

// move runs the optimizer on one span of the table, or of a dense tensor, and writes the result to a span of out.
// replay is how many steps with a gradient of zero come first; where it is not 0, first belongs to the first of them.
func (u *update) move(s *scratch, first bool, replay int64, g []float32, from, to span) {
	p := u.table.Slice(from.lo, from.lo+from.n)
	out := u.out.Slice(to.lo, to.lo+to.n)
	oldP, newP := floats32(p, &s.state[0]), room32(out, &s.state[1])
	var old, fresh [slotsMax][]float32
	var after [slotsMax]Vector
	for i := range u.hyper.slots {
		after[i] = u.slot(u.slots[i].After, to)
		old[i] = floats32(u.slot(u.slots[i].Before, from), &s.state[2+2*i])
		fresh[i] = room32(after[i], &s.state[3+2*i])
	}
	if replay > 0 {
		oldP = u.replay(s, first, replay, oldP, &old)
		first = false
	}
	u.hyper.move(first, u.weight, oldP, g, newP, &old, &fresh)
	store32(out, newP)
	for i := range u.hyper.slots {
		store32(after[i], fresh[i])
	}
}

// replay makes up for steps that a row sat out, in scratch memory: each as if with a gradient of zero, and stored and
// read again. It ends early where a step changed nothing, since all further ones would change nothing either.
func (u *update) replay(s *scratch, first bool, steps int64, p []float32, slots *[slotsMax][]float32) []float32 {
	copyOf := func(buf *[]float32, x []float32) []float32 {
		*buf = append((*buf)[:0], x...)
		return *buf
	}
	p = copyOf(&s.replayed[0], p)
	for i := range u.hyper.slots {
		slots[i] = copyOf(&s.replayed[1+i], slots[i])
	}
	s.zeros = grow(s.zeros, len(p))
	clear(s.zeros)
	for ; steps > 0; steps-- {
		before := append(s.before[:0], p...)
		for i := range u.hyper.slots {
			before = append(before, slots[i]...)
		}
		s.before = before
		u.hyper.move(first, u.weight, p, s.zeros, p, slots, slots)
		round(p, u.table.dtype)
		same := equalBits(before[:len(p)], p)
		before = before[len(p):]
		for i := range u.hyper.slots {
			round(slots[i], u.slots[i].Before.dtype)
			same = same && equalBits(before[:len(slots[i])], slots[i])
			before = before[len(slots[i]):]
		}
		if same && !first {
			break
		}
		first = false
	}
	return p
}

// nonFinite counts the values of a gradient that are NaN or Inf once divided, and the position of the first.
type nonFinite struct {
	count, at int64
}

// look takes values whose first has the position given.
func (c *nonFinite) look(g []float32, weight float32, position int64) {
	for i, v := range g {
		if !finite(v / weight) {
			if c.count == 0 {
				c.at = position + int64(i)
			}
			c.count++
		}
	}
}

// verdict fills the report and is the error of a call that was to refuse such values. A refused call has skipped
// nothing.
func (u *update) verdict(c *nonFinite, skipped int64, to *Report) error {
	if c.count > 0 && u.nonFinite == Refuse {
		tell(to, Report{nonFinite: c.count})
		return &NonFiniteError{u.op, c.at, c.count}
	}
	tell(to, Report{skipped: skipped, nonFinite: c.count})
	return nil
}

// plain is the vectors of an update as slices, where all are float32: most calls are of that kind, and finding the
// parts of six vectors by their type would cost a row of 64 values a fifth of its time.
type plain struct {
	ok            bool
	table, out    []float32
	before, after [slotsMax][]float32
}

func (u *rowsUpdate) plain() (v plain) {
	if u.table.dtype != Float32 {
		return v
	}
	v.table, v.out = view[float32](u.table), view[float32](u.out)
	for i := range u.hyper.slots {
		s := &u.slots[i]
		if s.Before.dtype != Float32 {
			return v
		}
		v.before[i], v.after[i] = view[float32](s.Before), view[float32](s.After)
	}
	v.ok = true
	return v
}

// moveRow is move for a row of a table: of the gradient g, into row to of the outputs.
func (u *rowsUpdate) moveRow(s *scratch, v *plain, first bool, g []float32, row, to int) {
	replay := int64(0)
	if u.steps.Last.n > 0 {
		last := view[int64](u.steps.Last)[row]
		first = last == 0
		if u.steps.Exact && last >= 0 {
			replay = max(0, u.steps.Step-1-last)
		}
		view[int64](u.steps.LastAfter)[to] = u.steps.Step
	}
	d := u.dim
	if !v.ok || replay > 0 {
		u.move(s, first, replay, g, span{row * d, d, row}, span{to * d, d, to})
		return
	}
	var before, after [slotsMax][]float32
	width := u.slotWidth(d)
	for i := range u.hyper.slots {
		before[i], after[i] = v.before[i][row*width:][:width], v.after[i][to*width:][:width]
	}
	u.hyper.move(first, u.weight, v.table[row*d:][:d], g, v.out[to*d:][:d], &before, &after)
}

// ApplyRows: see the interface.
func (r *reference) ApplyRows(a ApplyRows) error {
	r.calls.n.Add(1)
	tell(a.Report, Report{})
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	u := a.update()
	if err := u.sortSlots(); err != nil {
		return err
	}
	index, news := ints64(a.Index, &s.ids), optional[uint8](a.First)
	gradient := func(i int) []float32 { return floats32(a.Grad.Slice(i*a.Dim, (i+1)*a.Dim), &s.row) }
	v := u.plain()
	var bad nonFinite
	var skipped int64
	for i, row := range index {
		if uint64(row) >= uint64(u.rows) {
			skipped++
		} else if u.nonFinite != Ignore {
			bad.look(gradient(i), a.Weight, int64(i)*int64(a.Dim))
		}
	}
	if err := u.verdict(&bad, skipped, a.Report); err != nil {
		return err
	}
	for i, row := range index {
		if uint64(row) >= uint64(u.rows) {
			continue
		}
		to := i
		if u.inPlace {
			to = int(row)
		}
		u.moveRow(s, &v, news != nil && news[i] != 0, gradient(i), int(row), to)
	}
	return nil
}

// CoalesceApply: see the interface. Where values are to be counted, the sums are made twice.
func (r *reference) CoalesceApply(a CoalesceApply) (int, error) {
	r.calls.n.Add(1)
	tell(a.Report, Report{})
	if err := a.check(); err != nil {
		return 0, err
	}
	s := r.borrow()
	defer r.giveBack(s)
	u := a.update()
	if err := u.sortSlots(); err != nil {
		return 0, err
	}
	sorted, skipped := s.sortKeys(a.Keys, int64(u.rows))
	n := distinct(sorted)
	if n > a.OutKeys.n && (!u.inPlace || a.OutKeys.n > 0) {
		return 0, tooFew(u.op, a.OutKeys.n, n)
	}
	from, v := addends{rows: a.Rows}, u.plain()
	s.row = grow(s.row, a.Dim)
	each := func(use func(rank int, key uint64)) {
		rest := sorted
		for rank := 0; len(rest) > 0; rank++ {
			key := rest[0].key
			var index []int64
			index, rest = s.segment(rest)
			s.sumRows(s.row, &from, index, nil)
			use(rank, key)
		}
	}
	var bad nonFinite
	if u.nonFinite != Ignore {
		each(func(rank int, _ uint64) { bad.look(s.row, a.Weight, int64(rank)*int64(a.Dim)) })
	}
	if err := u.verdict(&bad, skipped, a.Report); err != nil {
		return 0, err
	}
	each(func(rank int, key uint64) {
		if a.OutKeys.n > 0 {
			storeKey(a.OutKeys, rank, key)
		}
		if u.inPlace {
			rank = int(key)
		}
		u.moveRow(s, &v, false, s.row, int(key), rank)
	})
	return n, nil
}

// spans cuts n values into rows, where the optimizer is row-wise, else into tiles that stay in the first-level cache.
func (u *update) spans(n, dim int, visit func(at span)) {
	width := tileValues
	if u.hyper.rowwise() {
		width = u.width(dim)
	}
	for row := 0; row*width < n; row++ {
		lo := row * width
		visit(span{lo, min(width, n-lo), row})
	}
}

// ApplyDense: see the interface.
func (r *reference) ApplyDense(a ApplyDense) error {
	r.calls.n.Add(1)
	tell(a.Report, Report{})
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	u := a.update()
	if err := u.sortSlots(); err != nil {
		return err
	}
	gradient := func(at span) []float32 { return floats32(a.Grad.Slice(at.lo, at.lo+at.n), &s.row) }
	var bad nonFinite
	if u.nonFinite != Ignore {
		u.spans(a.Param.n, a.Dim, func(at span) { bad.look(gradient(at), a.Weight, int64(at.lo)) })
	}
	if err := u.verdict(&bad, 0, a.Report); err != nil {
		return err
	}
	u.spans(a.Param.n, a.Dim, func(at span) { u.move(s, a.First, 0, gradient(at), at, at) })
	return nil
}

// AverageApply: see the interface. Where values are to be counted, the sums are made twice.
func (r *reference) AverageApply(a AverageApply) error {
	r.calls.n.Add(1)
	tell(a.Report, Report{})
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	u := a.update()
	if err := u.sortSlots(); err != nil {
		return err
	}
	s.merge.planOf(a.Lanes, a.Terms)
	sum := func(at span) []float32 { return s.merge.sum(a.Terms, at.lo, at.lo+at.n) }
	var bad nonFinite
	if u.nonFinite != Ignore {
		u.spans(a.Param.n, a.Dim, func(at span) { bad.look(sum(at), a.Weight, int64(at.lo)) })
	}
	if err := u.verdict(&bad, 0, a.Report); err != nil {
		return err
	}
	u.spans(a.Param.n, a.Dim, func(at span) { u.move(s, a.First, 0, sum(at), at, at) })
	return nil
}
