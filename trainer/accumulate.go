package trainer

import (
	"gradbus/cuda"
	"gradbus/schema"
)

// Gradients that come in parts: of a lane that is computed in pieces, or by a program that goes from sample to sample.
// The parts are added up in the order of the calls, so bits follow from how a program cuts a lane, as from all that it
// computes.

// added is what was added up for one table of one lane.
type added struct {
	form   givenAs
	ids    []int64
	values []float32
}

// AddGrad adds to the lane's gradient of a parameter, which begins at zero, or at what Grad was given.
func (s *LaneStep) AddGrad(name string, values []float32) {
	i, ok := s.param(name)
	if !ok || s.err != nil {
		return
	}
	fresh := !s.compute.dense.touched[i]
	grad := s.Grad(name)
	switch {
	case s.err != nil:
	case len(values) != len(grad):
		s.broken("gradient of %q: %d values are added to its %d", name, len(values), len(grad))
	case fresh:
		copy(grad, values)
	default:
		for k, v := range values {
			grad[k] += v
		}
	}
}

// AddRowGrad adds to the lane's gradient of a table, in place of one RowGrad or BagGrad: ids are rows of Rows in any
// order, each as often as one likes, and rows [len(ids), dim] is added to them. Both are copied.
//
//	step.AddRowGrad(0, step.IDs(0)[:2], gradients) // of the lane's first two keys
func (s *LaneStep) AddRowGrad(table schema.Table, ids []int64, rows []float32) {
	if !s.hasRows(table) || s.err != nil {
		return
	}
	dim, distinct := s.compute.tables.specs[table].Dim, int64(len(s.compute.tables.keys[table]))
	if len(rows) != len(ids)*dim {
		s.broken("row gradient of table %d: %d values for %d rows of %d", table, len(rows), len(ids), dim)
		return
	}
	for i, id := range ids {
		if id < 0 || id >= distinct {
			s.broken("row gradient of table %d: id %d at position %d: want ids below %d", table, id, i, distinct)
			return
		}
	}
	a := s.compute.addedTo(s.index, table)
	a.form, a.ids, a.values = givenRows, append(a.ids, ids...), append(a.values, rows...)
}

// AddPooledGrad adds to the lane's gradient of what Pooled gave, in place of one PooledGrad: grad is that of the bags
// from number first on.
func (s *LaneStep) AddPooledGrad(table schema.Table, first int, grad []float32) {
	b, ok := s.bags(table)
	if !ok || s.err != nil {
		return
	}
	dim, bags := s.compute.tables.specs[table].Dim, len(b.offsets)-1
	if n := len(grad) / dim; first < 0 || len(grad)%dim != 0 || first+n > bags {
		s.broken("gradient of the bags of table %d: %d values of %d from bag %d on: the lane has %d bags", table, len(grad),
			dim, first, bags)
		return
	}
	a := s.compute.addedTo(s.index, table)
	if a.form != givenBags {
		a.form, a.values = givenBags, grown(a.values, bags*dim)
		clear(a.values)
	}
	for k, v := range grad {
		a.values[first*dim+k] += v
	}
}

// addedTo is what was added up for a table of hosted lane at.
func (c *compute) addedTo(at int, table schema.Table) *added {
	if c.added == nil {
		c.added = make([][]added, len(c.samples))
	}
	if c.added[at] == nil {
		c.added[at] = make([]added, len(c.tables.specs))
	}
	return &c.added[at][table]
}

// beginAdded forgets what was added up for a lane in the batch before.
func (c *compute) beginAdded(at int) {
	if c.added == nil {
		return
	}
	for i := range c.added[at] {
		a := &c.added[at][i]
		a.form, a.ids, a.values = givenNothing, a.ids[:0], a.values[:0]
	}
}

// endAdded gives what was added up for a lane. Its memory stays until the lane's next batch.
func (s *LaneStep) endAdded() {
	c := s.compute
	if c.added == nil {
		return
	}
	for i := range c.added[s.index] {
		a, table := &c.added[s.index][i], schema.Table(i)
		switch {
		case s.err != nil:
			return
		case a.form == givenBags:
			s.PooledGrad(table, a.values)
		case a.form == givenRows:
			if err := c.rows.addBags(i, cuda.Sum, a.ids, c.rows.singles(len(a.ids)), a.values); err != nil {
				s.err = err
			}
		}
	}
}
