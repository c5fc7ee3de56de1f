package trainer

import (
	"iter"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// Step is some samples of a batch, those of one lane, in the hands of the function that Train was given. The function
// goes through Samples, reads rows and parameters, adds to their gradients, and returns the sum of the losses of the
// samples. Gradients begin at zero and are sums over samples, never divided: the library adds up those of all lanes and
// divides once.
//
// Everything that it gives is valid until the function returns. Rows and parameters are read only. A name that the job
// lacks, or a sample that the step lacks, gives memory that leads nowhere, and Train fails with the reason.
type Step[T any] struct {
	lane   *LaneStep
	items  []T
	chosen []int32
	tables []stepTable
	params []stepParam
	failed error
}

// stepTable is one table within a step.
type stepTable struct {
	name    string
	dim     int
	pooled  bool
	ready   bool      // rows are those of this lane
	rows    []float32 // pooled: one for each sample
	ids     []int64   // not pooled: of each key
	offsets []int64   // of each sample's keys
	given   bool      // grads are zero, or what was added
	grads   []float32 // [samples, dim] where pooled, else [keys, dim]
}

type stepParam struct {
	name  string
	value []float32
	grad  []float32 // nil before it is asked for
}

func (s *Step[T]) begin(step *LaneStep, chosen []int32, offsets [][]int64) {
	s.lane, s.chosen, s.failed = step, chosen, nil
	for i := range s.tables {
		t := &s.tables[i]
		t.ready, t.given, t.offsets = false, false, offsets[i]
	}
	for i := range s.params {
		s.params[i].value, s.params[i].grad = nil, nil
	}
}

// end gives the gradients.
func (s *Step[T]) end() error {
	for i := range s.tables {
		switch t := &s.tables[i]; {
		case !t.given:
		case t.pooled:
			s.lane.PooledGrad(schema.Table(i), t.grads)
		default:
			s.lane.BagGrad(schema.Table(i), cuda.Sum, nil, t.grads)
		}
	}
	return s.failed
}

// Batch and Lane say which samples these are: random numbers that are keyed by them are the same whoever computes the
// lane.
func (s *Step[T]) Batch() schema.Batch { return s.lane.Batch }
func (s *Step[T]) Lane() lane.Lane     { return s.lane.Lane }

// Len is the number of samples.
func (s *Step[T]) Len() int { return len(s.chosen) }

// Samples goes through the samples, with their numbers from 0 on.
func (s *Step[T]) Samples() iter.Seq2[int, T] {
	return func(yield func(int, T) bool) {
		for n, i := range s.chosen {
			if !yield(n, s.items[i]) {
				return
			}
		}
	}
}

// Fail makes Train end with an error.
func (s *Step[T]) Fail(err error) {
	if s.failed == nil {
		s.failed = err
	}
}

// Row is the row of a table that sample n uses, of as many values as the table is wide: that of its one key, or, where
// the table has a pooling, the sum or the mean of those of its keys.
func (s *Step[T]) Row(table string, n int) []float32 {
	t := s.table(table)
	if t == nil {
		return s.nowhere(t)
	}
	at, ok := s.only(t, n)
	if !ok {
		return s.nowhere(t)
	}
	return t.row(at)
}

// RowGrad is where the gradient of Row is to be added.
func (s *Step[T]) RowGrad(table string, n int) []float32 {
	t := s.table(table)
	if t == nil {
		return s.nowhere(t)
	}
	at, ok := s.only(t, n)
	if !ok {
		return s.nowhere(t)
	}
	return t.grad(at)
}

// RowOf is the row of sample n's key number k of a table without a pooling, and RowGradOf where its gradient is to be
// added.
func (s *Step[T]) RowOf(table string, n, k int) []float32 {
	t, at := s.place(table, n, k)
	if at < 0 {
		return s.nowhere(t)
	}
	return t.row(at)
}

// RowGradOf is where the gradient of RowOf is to be added.
func (s *Step[T]) RowGradOf(table string, n, k int) []float32 {
	t, at := s.place(table, n, k)
	if at < 0 {
		return s.nowhere(t)
	}
	return t.grad(at)
}

// Param is a dense parameter, row-major.
func (s *Step[T]) Param(name string) []float32 {
	p := s.param(name)
	if p == nil {
		return s.lane.Param(name) // which says what is wrong
	}
	if p.value == nil {
		p.value = s.lane.Param(name)
	}
	return p.value
}

// Grad is where the gradient of Param is to be added.
func (s *Step[T]) Grad(name string) []float32 {
	p := s.param(name)
	if p == nil {
		return s.lane.Grad(name)
	}
	if p.grad == nil {
		p.grad = s.lane.Grad(name)
		clear(p.grad)
	}
	return p.grad
}

// Done says that the gradient of a parameter will not change any more, so that it may travel while others are computed.
func (s *Step[T]) Done(name string) {
	if p := s.param(name); p != nil {
		p.grad = nil // whoever asks for it again is told
	}
	s.lane.Done(name)
}

// table is a table by its name, with the rows of this lane; few names are found faster one by one than by hash.
func (s *Step[T]) table(name string) *stepTable {
	for i := range s.tables {
		t := &s.tables[i]
		if t.name != name {
			continue
		}
		if !t.ready {
			t.ready = true
			if t.pooled {
				t.rows = s.lane.Pooled(schema.Table(i))
			} else {
				t.rows, t.ids = s.lane.Rows(schema.Table(i)), s.lane.IDs(schema.Table(i))
			}
		}
		return t
	}
	names := make([]string, len(s.tables))
	for i := range names {
		names[i] = s.tables[i].name
	}
	s.lane.broken("table %q: the job has %q", name, names)
	return nil
}

func (s *Step[T]) param(name string) *stepParam {
	for i := range s.params {
		if s.params[i].name == name {
			return &s.params[i]
		}
	}
	return nil
}

// only is the place of the one row of a sample.
func (s *Step[T]) only(t *stepTable, n int) (at int, ok bool) {
	if uint(n) >= uint(len(s.chosen)) {
		s.lane.broken("table %q: sample %d: the step has %d samples", t.name, n, len(s.chosen))
		return 0, false
	}
	if t.pooled {
		return n, true
	}
	first := t.offsets[n]
	if keys := t.offsets[n+1] - first; keys != 1 {
		s.lane.broken("table %q: sample %d has %d keys, and the table no pooling: want one key, RowOf, or Sum or Mean "+
			"of the table", t.name, n, keys)
		return 0, false
	}
	return int(first), true
}

// place is the place of one of a sample's rows, or -1.
func (s *Step[T]) place(table string, n, k int) (*stepTable, int) {
	t := s.table(table)
	switch {
	case t == nil:
		return t, -1
	case t.pooled:
		s.lane.broken("table %q: its rows are pooled: want Row", t.name)
		return t, -1
	case uint(n) >= uint(len(s.chosen)):
		s.lane.broken("table %q: sample %d: the step has %d samples", t.name, n, len(s.chosen))
		return t, -1
	}
	if keys := t.offsets[n+1] - t.offsets[n]; k < 0 || int64(k) >= keys {
		s.lane.broken("table %q: key number %d of sample %d, which has %d", t.name, k, n, keys)
		return t, -1
	}
	return t, int(t.offsets[n]) + k
}

// nowhere is memory in place of a row of a table, or of one that the job lacks.
func (s *Step[T]) nowhere(t *stepTable) []float32 {
	if t == nil {
		return s.lane.scratch()
	}
	return make([]float32, t.dim)
}

// row is that of a place; the key of the place has it among the distinct rows, where they are not pooled.
func (t *stepTable) row(at int) []float32 {
	if !t.pooled {
		at = int(t.ids[at])
	}
	return t.rows[at*t.dim : (at+1)*t.dim : (at+1)*t.dim]
}

func (t *stepTable) grad(at int) []float32 {
	if !t.given {
		places := int(t.offsets[len(t.offsets)-1])
		if t.pooled {
			places = len(t.offsets) - 1
		}
		t.given, t.grads = true, grown(t.grads, places*t.dim)
		clear(t.grads)
	}
	return t.grads[at*t.dim : (at+1)*t.dim : (at+1)*t.dim]
}
