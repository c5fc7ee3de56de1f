package state

import (
	"slices"

	"gradbus/cuda"
)

// Step says that the next Commit is of a step.
func (t *Array) Step() { t.stepping = true }

// applyValues is how many values, with those of slots, are stepped at once: 256 KiB, so that rows are still in the
// processor's cache when their outcome takes their place.
const applyValues = 1 << 16

// Apply implements Table. Kernels want their outputs beside their inputs, unless the index ascends, and what is not
// finite must not get into the table: so an outcome is checked before it takes the place of its rows.
func (t *Array) Apply(g RowGradient) error {
	t.stepping = true
	n := len(g.Keys)
	t.ids = grown(t.ids, n)
	t.places.find(g.Keys, t.ids)
	t.want(t.ids)
	t.change(t.ids)
	steps := t.version >= t.config.Start
	most := max(1, applyValues/t.valuesPerRow())
	for lo := 0; lo < n; lo += most {
		hi := min(lo+most, n)
		places := t.ids[lo:hi]
		part := RowGradient{Keys: g.Keys[lo:hi], Sums: g.Sums.Slice(lo*t.dim, hi*t.dim), Weight: g.Weight, Scale: g.Scale}
		var err error
		if steps {
			err = t.stepRows(places, part)
		} else {
			err = t.assignRows(part)
		}
		if err == nil {
			err = t.checkOutcome(g.Keys[lo:hi], steps)
		}
		if err != nil {
			return err
		}
		if t.config.Undo {
			t.record(&t.undo.open, places)
		}
		t.put(places, &t.outcome, steps)
	}
	return nil
}

// valuesPerRow is how many values a row has with its slots.
func (t *Array) valuesPerRow() int {
	n := t.dim
	for _, s := range t.rule.slots {
		n += s.width(t.dim)
	}
	return n
}

// stepRows makes a step of rows the outcome.
func (t *Array) stepRows(places []int64, g RowGradient) error {
	out, n := &t.outcome, len(places)
	a := t.stepOf(places, g)
	out.rows = grown(out.rows, n*t.dim)
	a.Out = cuda.Float32s(out.rows)
	for i, s := range t.rule.slots {
		out.slots[i] = grown(out.slots[i], n*s.width(t.dim))
		t.pass[i].After = cuda.Float32s(out.slots[i])
	}
	if t.marked() {
		out.marks = grown(out.marks, n)
	}
	switch {
	case t.last != nil:
		a.Steps = cuda.Steps{Last: cuda.Int64s(t.last), LastAfter: cuda.Int64s(out.marks), Step: int64(t.steps + 1),
			Exact: true}
	case t.stepped != nil:
		t.first = grown(t.first, n)
		for i, at := range places {
			t.first[i], out.marks[i] = 1-t.stepped[at], 1
		}
		a.First = cuda.Uint8s(t.first)
	}
	return cuda.NameMismatch(t.config.Backend.ApplyRows(a), func(e *cuda.MismatchError) string {
		return e.InTable(t.config.Spec.Name, g.Keys[min(e.Row(), n-1)])
	})
}

// assignRows makes sums by their weight the outcome: no step, so nothing that the optimizer keeps changes.
func (t *Array) assignRows(g RowGradient) error {
	t.stepping = false
	t.outcome.rows = grown(t.outcome.rows, len(g.Keys)*t.dim)
	return t.config.Backend.Average(cuda.Average{Lanes: 1, Weight: g.Weight,
		Terms: []cuda.Term{{Count: 1, Values: g.Sums}}, Out: cuda.Float32s(t.outcome.rows)})
}

// stepOf is a step of rows; where its outcome goes is for the caller to say, of each slot in pass.
func (t *Array) stepOf(places []int64, g RowGradient) cuda.ApplyRows {
	t.pass = t.pass[:0]
	for i, s := range t.rule.slots {
		t.pass = append(t.pass, cuda.Slot{Name: s.name, Before: cuda.Float32s(t.slots[i])})
	}
	return cuda.ApplyRows{
		Dim: t.dim, Optimizer: t.rule.at(t.version+t.beyond, t.steps), Clip: t.rule.clipped(g.Scale), Weight: g.Weight,
		Slots: t.pass,
		Table: cuda.Float32s(t.rows), Index: cuda.Int64s(places), Grad: g.Sums,
	}
}

// Commit implements Table. A step counts also where none of its rows are here, so that the number does not depend on
// how a table is cut.
func (t *Array) Commit() {
	if t.stepping && t.version >= t.config.Start {
		t.steps++
	}
	t.undo.retain()
	t.stepping = false
	t.version++
}

// catchUp makes up, in the table, for the steps that rows have sat out: each as one with a gradient of zero. The last
// of them is a step with that gradient, and those before it are the kernel's to repeat.
func (t *Array) catchUp(places []int64) error {
	late := t.late[:0]
	for _, at := range places {
		if t.last[at] < int64(t.steps) {
			late = append(late, at)
		}
	}
	t.late = late
	if len(late) == 0 {
		return nil
	}
	slices.Sort(late)
	late = slices.Compact(late)
	t.change(late)
	if n := len(late) * t.dim; len(t.zeros) < n {
		t.zeros = make([]float32, n)
	}
	a := t.stepOf(late, RowGradient{Sums: cuda.Float32s(t.zeros[:len(late)*t.dim]), Weight: 1, Scale: 1})
	for i := range a.Slots {
		a.Slots[i].After = a.Slots[i].Before
	}
	last := cuda.Int64s(t.last)
	a.Out, a.Steps = a.Table, cuda.Steps{Last: last, LastAfter: last, Step: int64(t.steps), Exact: true}
	if err := t.config.Backend.ApplyRows(a); err != nil {
		return err
	}
	return t.checkRows(late)
}
