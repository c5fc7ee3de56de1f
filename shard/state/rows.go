package state

import (
	"slices"

	"gradbus/cuda"
)

// staged is the outcome of steps beside the table. Its memory is reused from batch to batch.
type staged struct {
	step   bool    // the next version has one more
	places []int64 // distinct
	rows   []float32
	slots  [][]float32 // [rule.slots]
	last   []int64     // where the table has it
	first  []uint8     // scratch
	pass   []cuda.Slot // likewise
}

// Step says that the next Commit is of a step.
func (t *Array) Step() { t.staged.step = true }

// Stage runs the optimizer on rows, from the table into what is staged.
func (t *Array) Stage(g RowGradient) error {
	t.Step()
	st, n, before := &t.staged, len(g.Keys), len(t.staged.places)
	if n == 0 {
		return nil
	}
	st.places, st.rows = extended(st.places, n), extended(st.rows, n*t.dim)
	places := st.places[before:]
	t.places.find(g.Keys, places)
	t.want(places)
	if t.version < t.config.Start {
		return t.assign(before, g)
	}
	a := t.apply(places, g)
	a.Out = cuda.Float32s(st.rows[before*t.dim:])
	for i, s := range t.rule.slots {
		width := s.width(t.dim)
		st.slots[i] = extended(st.slots[i], n*width)
		st.pass[i].After = cuda.Float32s(st.slots[i][before*width:])
	}
	switch {
	case t.last != nil:
		st.last = extended(st.last, n)
		a.Steps = cuda.Steps{Last: cuda.Int64s(t.last), LastAfter: cuda.Int64s(st.last[before:]), Step: int64(t.steps + 1),
			Exact: true}
	case t.stepped != nil:
		st.first = grown(st.first, n)
		for i, at := range places {
			st.first[i] = 1 - t.stepped[at]
		}
		a.First = cuda.Uint8s(st.first)
	}
	err := t.config.Backend.ApplyRows(a)
	if err == nil {
		err = t.checkStaged(before, g.Keys, true)
	}
	if err == nil {
		return nil
	}
	t.cut(before)
	return cuda.NameMismatch(err, func(e *cuda.MismatchError) string {
		return e.InTable(t.config.Spec.Name, g.Keys[min(e.Row(), n-1)])
	})
}

// assign stages sums by their weight as rows, from the first of them on: no step, so nothing that the optimizer keeps
// is staged.
func (t *Array) assign(first int, g RowGradient) error {
	st := &t.staged
	st.step = false
	err := t.config.Backend.Average(cuda.Average{Lanes: 1, Weight: g.Weight,
		Terms: []cuda.Term{{Count: 1, Values: g.Sums}},
		Out:   cuda.Float32s(st.rows[first*t.dim:])})
	if err == nil {
		err = t.checkStaged(first, g.Keys, false)
	}
	if err != nil {
		st.places, st.rows = st.places[:first], st.rows[:first*t.dim]
	}
	return err
}

// apply is a step of rows; where its outcome goes is for the caller to say, of each slot in staged.pass.
func (t *Array) apply(places []int64, g RowGradient) cuda.ApplyRows {
	t.staged.pass = t.staged.pass[:0]
	for i, s := range t.rule.slots {
		t.staged.pass = append(t.staged.pass, cuda.Slot{Name: s.name, Before: cuda.Float32s(t.slots[i])})
	}
	return cuda.ApplyRows{
		Dim: t.dim, Optimizer: t.rule.at(t.version+t.beyond, t.steps), Clip: t.rule.clipped(g.Scale), Weight: g.Weight,
		Slots: t.staged.pass,
		Table: cuda.Float32s(t.rows), Index: cuda.Int64s(places), Grad: g.Sums,
	}
}

// cut forgets what is staged but for the first n rows.
func (t *Array) cut(n int) {
	st := &t.staged
	st.places, st.rows = st.places[:n], st.rows[:n*t.dim]
	for i, s := range t.rule.slots {
		st.slots[i] = st.slots[i][:n*s.width(t.dim)]
	}
	st.last = st.last[:min(n, len(st.last))]
}

// Commit moves staged rows into the table. A step counts also where none of its rows are here, so that the number does
// not depend on how a table is cut.
func (t *Array) Commit() {
	st := &t.staged
	t.change(st.places)
	if t.config.GoesBack {
		t.keepBack()
	}
	if t.config.KeepsPast {
		t.keepPast()
	} else {
		for i, at := range st.places {
			copy(t.row(int(at)), st.rows[i*t.dim:(i+1)*t.dim])
		}
	}
	if t.version >= t.config.Start {
		t.commitStep()
	}
	st.step = false
	st.places, st.rows = st.places[:0], st.rows[:0]
	t.version++
}

// change is told of rows that are about to change.
func (t *Array) change(places []int64) {
	t.copying.keep(places)
	t.touched.note(places)
}

// commitStep moves what the optimizer keeps of staged rows.
func (t *Array) commitStep() {
	st := &t.staged
	for k, s := range t.rule.slots {
		width := s.width(t.dim)
		for i, at := range st.places {
			copy(t.slots[k][int(at)*width:(int(at)+1)*width], st.slots[k][i*width:])
		}
	}
	for i, at := range st.places {
		switch {
		case t.last != nil:
			t.last[at] = st.last[i]
		case t.stepped != nil:
			t.stepped[at] = 1
		}
	}
	if st.step {
		t.steps++
	}
	t.cut(0)
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
	a := t.apply(late, RowGradient{Sums: cuda.Float32s(t.zeros[:len(late)*t.dim]), Weight: 1, Scale: 1})
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
