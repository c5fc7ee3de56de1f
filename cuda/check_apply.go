package cuda

// update is the common part of the four operations with an optimizer.
type update struct {
	op        string
	hyper     hyper
	known     bool // hyper is of an optimizer of this package
	weight    float32
	nonFinite NonFinite
	given     []Slot
	slots     [slotsMax]Slot // in canonical order, after checkSlots
	table     Vector         // or the dense parameters
	out       Vector
}

// shape checks what concerns neither rows nor steps, and sorts the slots.
func (u *update) shape() error {
	if err := checkDivisor(u.op, u.weight, false); err != nil {
		return err
	}
	if !u.known {
		return argumentError(u.op, "no optimizer: want one of this package")
	}
	if !u.hyper.finite() {
		return argumentError(u.op, "hyperparameters %+v, want finite numbers", u.hyper)
	}
	if err := checkClip(u.op, u.hyper.clip); err != nil {
		return err
	}
	if u.hyper.kind == kindAdam || u.hyper.kind == kindAdamW {
		for _, beta := range [...]float32{u.hyper.beta1, u.hyper.beta2} {
			if !(beta >= 0 && beta < 1) {
				return argumentError(u.op, "beta %v is not in [0,1)", beta)
			}
		}
		if u.hyper.step < 1 {
			return argumentError(u.op, "step 0 of adam, which counts from 1")
		}
	}
	if u.nonFinite > Refuse {
		return argumentError(u.op, "non-finite policy %d", u.nonFinite)
	}
	if err := firstOf(typed(u.op, "table", u.table, floats), typed(u.op, "out", u.out, only(u.table.dtype))); err != nil {
		return err
	}
	return u.sortSlots()
}

func checkClip(op string, c Clip) error {
	switch {
	case c.Kind > ClipRow:
		return argumentError(op, "clip of kind %d", c.Kind)
	case !finite(c.By) || c.By < 0 || (c.By == 0) != (c.Kind == ClipNone) && c.Kind != ClipScale:
		return argumentError(op, "clip of kind %d by %v, want a finite number above 0", c.Kind, c.By)
	}
	return nil
}

// sortSlots matches the slots given with those that the optimizer names.
func (u *update) sortSlots() error {
	for i := range u.hyper.slots {
		name, found := u.hyper.slot[i], false
		for _, s := range u.given {
			if s.Name == name {
				u.slots[i], found = s, true
			}
		}
		if !found {
			return shapeError(u.op, "no slot %s", name)
		}
		types := floats
		if u.hyper.rowwise() {
			types = only(Float32)
		}
		if err := firstOf(typed(u.op, name, u.slots[i].Before, types),
			typed(u.op, name, u.slots[i].After, only(u.slots[i].Before.dtype))); err != nil {
			return err
		}
	}
	if len(u.given) != u.hyper.slots {
		return shapeError(u.op, "%d slots, want %d: those that the optimizer names", len(u.given), u.hyper.slots)
	}
	return nil
}

// slotWidth returns the number of values of a slot for a row of dim values.
func (u *update) slotWidth(dim int) int {
	if u.hyper.rowwise() {
		return 1
	}
	return dim
}

// rowsUpdate is an update of rows of a table.
type rowsUpdate struct {
	update
	dim     int
	rows    int // of the table
	steps   Steps
	inPlace bool // out is the table
}

func (a *ApplyRows) update() rowsUpdate {
	h, known := hyperOf(a.Optimizer, a.Clip)
	return rowsUpdate{update{op: "apply rows", hyper: h, known: known, weight: a.Weight, nonFinite: a.NonFinite,
		given: a.Slots,
		table: a.Table, out: a.Out}, a.Dim, a.Table.n / max(a.Dim, 1), a.Steps, a.Out.is(a.Table)}
}

func (a *CoalesceApply) update() rowsUpdate {
	h, known := hyperOf(a.Optimizer, a.Clip)
	return rowsUpdate{update{op: "coalesce apply", hyper: h, known: known, weight: a.Weight, nonFinite: a.NonFinite,
		given: a.Slots,
		table: a.Table, out: a.Out}, a.Dim, a.Table.n / max(a.Dim, 1), a.Steps, a.Out.is(a.Table)}
}

// shape checks table, slots and steps. Outputs that are not in place have n rows, or, with atLeast, no fewer.
func (u *rowsUpdate) shape(n int, atLeast bool) error {
	if err := checkDim(u.op, u.dim); err != nil {
		return err
	}
	if err := u.update.shape(); err != nil {
		return err
	}
	if _, err := rowsOf(u.op, "table", u.table.n, u.dim); err != nil {
		return err
	}
	if err := u.checkSteps(); err != nil {
		return err
	}
	if have, err := rowsOf(u.op, "out", u.out.n, u.dim); err != nil {
		return err
	} else if !u.inPlace && (have < n || have > n && !atLeast) {
		return shapeError(u.op, "out has %d rows of %d, want %d", have, u.dim, n)
	}
	n = u.out.n / u.dim // slots and last steps are laid out as out
	for i := range u.hyper.slots {
		s, width := &u.slots[i], u.slotWidth(u.dim)
		if err := exactRows(u.op, s.Name, s.Before.n, u.rows, width); err != nil {
			return err
		}
		if err := u.output(s.Name, s.Before, s.After, width, n); err != nil {
			return err
		}
	}
	if u.steps.Last.n > 0 {
		return u.output("last", u.steps.Last, u.steps.LastAfter, 1, n)
	}
	return nil
}

// output checks one output beside out against the input that it replaces.
func (u *rowsUpdate) output(name string, before, after Vector, width, n int) error {
	switch {
	case u.inPlace && after != before:
		return shapeError(u.op, "out is the table, so %s after must be %s before", name, name)
	case !u.inPlace && after.is(before):
		return shapeError(u.op, "out is not the table, so %s after must not be %s before", name, name)
	case !u.inPlace && after.n != n*width: // the name is put together for an error alone, since that allocates
		return exactRows(u.op, name+" after", after.n, n, width)
	}
	return nil
}

func (u *rowsUpdate) checkSteps() error {
	s := &u.steps
	if err := firstOf(typed(u.op, "last", s.Last, only(Int64)),
		typed(u.op, "last after", s.LastAfter, only(Int64))); err != nil {
		return err
	}
	if s.Exact {
		switch u.hyper.kind {
		case kindAdam, kindAdamW:
			return argumentError(u.op, "adam has no exact mode: its steps of zero move the row")
		case kindFTRL:
			return argumentError(u.op, "ftrl has no exact mode: its steps of zero move nothing")
		}
	}
	if s.Last.n == 0 {
		if s.LastAfter.n > 0 {
			return shapeError(u.op, "last after without last")
		}
		if s.Exact && u.rows > 0 {
			return argumentError(u.op, "exact without last: the steps of each row are not known")
		}
		return nil
	}
	if s.Step < 1 {
		return argumentError(u.op, "step %d, want 1 or more where last is given", s.Step)
	}
	return exactRows(u.op, "last", s.Last.n, u.rows, 1)
}

// apart checks that outputs share memory with nothing but, in place, with what they replace.
func (u *rowsUpdate) apart(inputs ...Vector) error {
	outs, ins := [slotsMax + 2]Vector{u.out, u.steps.LastAfter}, [slotsMax + 2]Vector{u.table, u.steps.Last}
	for i := range u.hyper.slots {
		outs[2+i], ins[2+i] = u.slots[i].After, u.slots[i].Before
	}
	for i, out := range outs {
		if err := apart(u.op, "an output", out, inputs...); err != nil {
			return err
		}
		if err := apart(u.op, "an output", out, outs[i+1:]...); err != nil {
			return err
		}
		for k, in := range ins {
			if (k != i || !u.inPlace) && overlaps(out, in) {
				return apart(u.op, "out", out, in)
			}
		}
	}
	return nil
}

func (a *ApplyRows) shape() error {
	u := a.update()
	n := a.Index.n
	if err := u.shape(n, false); err != nil {
		return err
	}
	if err := firstOf(typed(u.op, "index", a.Index, indexes), typed(u.op, "grad", a.Grad, floats),
		typed(u.op, "first", a.First, only(Uint8)),
		checkFew(u.op, "rows", n), exactRows(u.op, "grad", a.Grad.n, n, a.Dim)); err != nil {
		return err
	}
	if a.First.n > 0 {
		if a.Steps.Last.n > 0 {
			return argumentError(u.op, "both first and last are given: last says which rows are new")
		}
		if err := exactRows(u.op, "first", a.First.n, n, 1); err != nil {
			return err
		}
	}
	return u.apart(a.Index, a.First, a.Grad)
}

// data: in place, rows must be strictly ascending, but for those that are skipped.
func (a *ApplyRows) data() error {
	u := a.update()
	if !a.SkipBadIDs {
		if err := checkIDs(u.op, a.Index, int64(u.rows), NoPadding); err != nil {
			return err
		}
	}
	switch {
	case !u.inPlace || a.Index.n == 0:
		return nil
	case a.Index.dtype == Int32:
		return checkAscending(u.op, view[int32](a.Index), u.rows)
	}
	return checkAscending(u.op, view[int64](a.Index), u.rows)
}

// checkAscending names the first row of the table that is not above the one before it.
func checkAscending[T int32 | int64](op string, index []T, rows int) error {
	before := T(-1)
	for i, row := range index {
		if uint64(int64(row)) >= uint64(rows) {
			continue
		}
		if row <= before {
			return orderError(op, 0, i)
		}
		before = row
	}
	return nil
}

func (a *ApplyRows) check() error {
	if err := a.shape(); err != nil {
		return err
	}
	return a.data()
}

func (a *CoalesceApply) shape() error {
	u := a.update()
	if err := u.shape(a.OutKeys.n, true); err != nil {
		return err
	}
	if err := firstOf(typed(u.op, "keys", a.Keys, keyTypes), typed(u.op, "rows", a.Rows, floats),
		typed(u.op, "out keys", a.OutKeys, only(Int64)),
		checkFew(u.op, "keys", a.Keys.n), exactRows(u.op, "rows", a.Rows.n, a.Keys.n, a.Dim)); err != nil {
		return err
	}
	if err := apart(u.op, "out keys", a.OutKeys, a.Keys, a.Rows, a.Table, a.Steps.Last); err != nil {
		return err
	}
	for i := range u.hyper.slots {
		if err := apart(u.op, "out keys", a.OutKeys, u.slots[i].Before); err != nil {
			return err
		}
	}
	return u.apart(a.Keys, a.Rows, a.OutKeys)
}

func (a *CoalesceApply) data() error {
	if a.SkipBadIDs {
		return nil
	}
	return checkIDs("coalesce apply", a.Keys, int64(a.Table.n/a.Dim), NoPadding)
}

func (a *CoalesceApply) check() error {
	if err := a.shape(); err != nil {
		return err
	}
	return a.data()
}

func (a *ApplyDense) update() update {
	h, known := hyperOf(a.Optimizer, a.Clip)
	return update{op: "apply dense", hyper: h, known: known, weight: a.Weight, nonFinite: a.NonFinite, given: a.Slots,
		table: a.Param, out: a.Out}
}

func (a *AverageApply) update() update {
	h, known := hyperOf(a.Optimizer, a.Clip)
	return update{op: "average apply", hyper: h, known: known, weight: a.Weight, nonFinite: a.NonFinite, given: a.Slots,
		table: a.Param, out: a.Out}
}

// width returns the number of values of a dense tensor that make one row: dim, which matters to row-wise optimizers
// only, or all.
func (u *update) width(dim int) int {
	if dim == 0 || !u.hyper.rowwise() {
		return max(u.table.n, 1)
	}
	return dim
}

// dense checks the lengths of an update of a dense tensor, and that outputs share memory with what they replace alone.
func (u *update) dense(dim int) error {
	if err := u.shape(); err != nil {
		return err
	}
	n := u.table.n
	if u.hyper.clip.Kind == ClipRow {
		return argumentError(u.op, "a dense tensor has no rows to be clipped by their norm")
	}
	if dim < 0 {
		return shapeError(u.op, "dim %d, want 0 for one row, or more", dim)
	}
	rows, err := rowsOf(u.op, "param", n, u.width(dim))
	if err != nil {
		return err
	}
	if u.out.n != n {
		return shapeError(u.op, "param has %d values, out %d: want them equal", n, u.out.n)
	}
	if !u.out.is(u.table) {
		if err := apart(u.op, "out", u.out, u.table); err != nil {
			return err
		}
	}
	for i := range u.hyper.slots {
		s, want := &u.slots[i], n
		if u.hyper.rowwise() {
			want = rows
		}
		if s.Before.n != want || s.After.n != want {
			return shapeError(u.op, "%s has %d values before, %d after: want %d", s.Name, s.Before.n, s.After.n, want)
		}
		if !s.After.is(s.Before) {
			if err := apart(u.op, s.Name, s.After, s.Before); err != nil {
				return err
			}
		}
		other := &u.slots[1-i]
		if err := firstOf(apart(u.op, "out", u.out, s.Before, s.After),
			apart(u.op, s.Name, s.After, u.table, other.Before, other.After)); err != nil {
			return err
		}
	}
	return nil
}

// apart checks the outputs against an input.
func (u *update) apart(in Vector) error {
	if err := apart(u.op, "out", u.out, in); err != nil {
		return err
	}
	for i := range u.hyper.slots {
		if err := apart(u.op, u.slots[i].Name, u.slots[i].After, in); err != nil {
			return err
		}
	}
	return nil
}

func (a *ApplyDense) shape() error {
	u := a.update()
	if err := u.dense(a.Dim); err != nil {
		return err
	}
	if err := typed(u.op, "grad", a.Grad, floats); err != nil {
		return err
	}
	if a.Grad.n != a.Param.n {
		return shapeError(u.op, "param has %d values, grad %d: want them equal", a.Param.n, a.Grad.n)
	}
	return u.apart(a.Grad)
}

func (a *ApplyDense) check() error { return a.shape() }
