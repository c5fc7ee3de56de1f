package trainer

import (
	"fmt"
	"slices"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// Workload computes the lanes of a job's batches: their samples, forward, loss and backward. Both methods must be pure
// functions of batch, lane and parameters, with random numbers keyed by (seed, batch, lane), so that any trainer can
// compute a lane. The session calls them from the goroutine that calls Run, lane after lane.
type Workload interface {
	// Keys appends to keys[table] the keys of all samples of the lane, in the order in which Lane uses them, and returns
	// the number of samples and the slices. The session calls it for batch b+1 while the results of b are under way, so
	// Keys must not read parameters. A lane without samples is left out of the batch: it must have no keys, and the
	// session does not call Lane for it.
	Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64)

	// Lane computes one lane and returns the sum of the losses of its samples. Gradients are sums over the samples too,
	// of parameters and of rows, and never divided by the workload. The library divides the sum over all lanes once, by
	// the number of samples in the batch, or, for a table with PerRow, by the number of times that the lanes name the
	// row's key. So the learning rate applies to the mean gradient and does not depend on the number of lanes; see
	// schema.Optimizer.
	//
	//	grad[i] += x[i]*d // for each sample; neither d nor the sum is divided by step.Samples
	Lane(step *LaneStep) (lossSum float64, err error)
}

// LaneStep is the computation of one lane of one batch. It and all slices that it returns are valid until the lane
// ends.
//
// An invalid call (a name that the job does not have, a gradient that is final) returns scratch memory. End, or Run,
// then fails with ErrWorkload and the reason.
type LaneStep struct {
	Batch   schema.Batch // number of the batch
	Lane    lane.Lane    // lane to compute
	Samples int          // number of samples, as Keys returned it

	index   int // index of the lane among the hosted ones
	compute *compute
	batch   *Batch
	ended   bool
	err     error // first invalid call, returned when the lane ends
}

// End ends a lane of a Batch: all of its gradients are final, and loss is the sum of the losses of its samples. Lanes
// of a Workload end when Lane returns. End returns the first invalid call since Batch.Lane; that error ends the
// session, unless it is ErrOrder.
func (s *LaneStep) End(loss float64) error { return s.batch.outcome(s.end(loss, nil)) }

func (s *LaneStep) end(loss float64, err error) error {
	switch {
	case s.ended || s.batch != s.batch.run.now || s.batch.stage != fetched:
		return fmt.Errorf("%w: End: lane %d of batch %d has ended", ErrOrder, s.Lane, s.Batch)
	case s.Samples == 0 && s.err == nil:
		return nil
	case s.Samples == 0:
		return s.batch.failed(s.batch.ctx, fmt.Errorf("%w: batch %d lane %d, which has no samples: %w", ErrWorkload, s.Batch,
			s.Lane, s.err))
	}
	return s.batch.end(s, loss, err)
}

// Rows returns the rows of a table that this trainer's lanes use in this batch, [U, dim] row-major, in ascending order
// of their U distinct keys. They are read-only, and in sync of version Batch.
func (s *LaneStep) Rows(table schema.Table) []float32 {
	if !s.hasRows(table) || !s.fetched(table) {
		return s.scratch()
	}
	return s.compute.tables.rows[table]
}

// IDs returns the index into Rows of each key of the lane: the key at position i, as Keys named it, has row IDs[i].
func (s *LaneStep) IDs(table schema.Table) []int64 {
	if !s.hasRows(table) {
		return s.scratchIDs()
	}
	return s.compute.tables.laneIDs(int(table), s.index)
}

// Param returns the values of a dense parameter, row-major and read-only; in sync of version Batch.
func (s *LaneStep) Param(name string) []float32 {
	i, ok := s.param(name)
	if !ok {
		return s.scratch()
	}
	return s.compute.params.value(i)
}

// Grad returns the memory for the lane's gradient of a parameter, as long as the parameter. Its initial content is
// undefined: overwrite it. A parameter whose Grad is never called has gradient zero.
func (s *LaneStep) Grad(name string) []float32 {
	i, ok := s.param(name)
	if !ok {
		return s.scratch()
	}
	if s.compute.dense.final[i] {
		s.broken("gradient of %q is asked for after Done", name)
		return s.scratch()
	}
	return s.compute.dense.grad(i)
}

// Done marks a parameter's gradient as final, so it can be sent while the backward pass continues. Gradients that are
// not marked become final when the lane ends. Parameters are sent in the reverse order of the manifest; calls in that
// order save most time.
func (s *LaneStep) Done(name string) {
	i, ok := s.param(name)
	if !ok || s.err != nil {
		return
	}
	if err := s.compute.dense.done(i); err != nil {
		s.err = err
	}
}

// RowGrad sets the lane's gradient of a table, at most once. ids are indices into Rows, ascending and distinct. rows
// [len(ids), dim] is the sum over the lane's samples for each. Both are copied. cuda.Backend.BagBackward computes them
// from IDs. The gradient is sent as rows; see BagGrad.
//
//	step.RowGrad(0, []int64{0, 2}, []float32{0.5, 0.5, -1, -1}) // dim 2: rows 0 and 2 of the trainer's rows
func (s *LaneStep) RowGrad(table schema.Table, ids []int64, rows []float32) {
	if !s.hasRows(table) || s.err != nil {
		return
	}
	if err := s.compute.rowGrad(int(table), ids, rows); err != nil {
		s.err = err
	}
}

// BagGrad sets the lane's gradient of a table by bags, instead of RowGrad. Bag i pools the rows
// IDs[offsets[i]:offsets[i+1]] by their sum or mean, and row i of grad [bags, dim] is the gradient of the pooled row.
// offsets begins with 0 and ends with the number of IDs; nil makes each ID a bag of its own. Both are copied. The
// session sends sums by row, or the bags for the shards to sum, whichever has fewer bytes.
//
//	step.BagGrad(0, cuda.Mean, []int64{0, 2, 3}, []float32{2, 4, 1, 1}) // IDs 0 1 1, dim 2: rows {1, 2} and {2, 3}
//	step.BagGrad(0, cuda.Sum, nil, []float32{1, 2, 3})                  // IDs 0 1 1, dim 1: rows {1} and {5}
func (s *LaneStep) BagGrad(table schema.Table, mode cuda.Mode, offsets []int64, grad []float32) {
	if !s.hasRows(table) || s.err != nil {
		return
	}
	ids := s.compute.tables.laneIDs(int(table), s.index)
	if offsets == nil {
		offsets = s.compute.rows.singles(len(ids))
	}
	err := checkBags(mode, s.compute.tables.specs[table].Dim, len(ids), offsets, grad)
	if err == nil {
		err = s.compute.rows.addBags(int(table), mode, ids, offsets, grad)
	}
	if err != nil {
		s.err = fmt.Errorf("bag gradient of table %d: %w", table, err)
	}
}

func (s *LaneStep) fetched(table schema.Table) bool {
	if s.batch == nil || !s.batch.rowless {
		return true
	}
	s.broken("rows of table %d: the batch has none (SkipFetch): want Fetch in its place", table)
	return false
}

func (s *LaneStep) knows(table schema.Table) bool {
	if n := len(s.compute.tables.specs); int(table) >= n {
		s.broken("table %d: the job has %d tables", table, n)
		return false
	}
	return true
}

func (s *LaneStep) param(name string) (int, bool) {
	i, ok := s.compute.params.index[name]
	if !ok {
		s.broken("parameter %q: the job has %q", name, s.compute.params.names())
	}
	return i, ok
}

// scratch returns memory for a call that is invalid, as long as the largest valid slice. So the lane can continue to
// its end, which returns the error.
func (s *LaneStep) scratch() []float32 {
	most := 1
	for i := range s.compute.params.flat.specs {
		most = max(most, len(s.compute.params.value(i)))
	}
	for i, spec := range s.compute.tables.specs {
		most = max(most, len(s.compute.tables.rows[i]), spec.Dim*len(s.scratchIDs()))
	}
	return make([]float32, most)
}

// scratchIDs returns scratch memory for row ids.
func (s *LaneStep) scratchIDs() []int64 {
	most := max(1, s.Samples)
	for i := range s.compute.tables.specs {
		most = max(most, len(s.compute.tables.laneKeys(i, s.index)))
	}
	return make([]int64, most)
}

func (s *LaneStep) broken(format string, args ...any) {
	if s.ended { // Commit returns it
		s.batch.broken("lane %d of batch %d, after its End: %w", s.Lane, s.Batch, fmt.Errorf(format, args...))
		return
	}
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// compute does the arithmetic of a trainer's batch. It knows lanes, keys and sums, but no frames and no shards.
type compute struct {
	plan   *lanePlan
	tables *tables
	params *parameters
	dense  *denseSums
	rows   *rowSums

	samples []int // of each hosted lane
	ids     []uint64
	added   [][]added // [hosted lane][table] gradients given by AddRowGrad; nil if none ever was
}

// collect calls the workload's Keys for each hosted lane.
func (c *compute) collect(w Workload, b schema.Batch) error {
	for i := range c.samples {
		l := c.plan.first + lane.Lane(i)
		n, err := c.tables.collect(w, b, l, i)
		if err != nil {
			return fmt.Errorf("%w: keys of batch %d lane %d: %w", ErrWorkload, b, l, err)
		}
		c.samples[i] = n
	}
	return nil
}

// named ends the naming of keys and finds the distinct ones. at has for each table the lane whose keys were named last;
// nil if all lanes' were.
func (c *compute) named(b schema.Batch, at []int) error {
	if at != nil {
		if l, err := c.tables.closeNames(at, c.samples); err != nil {
			return fmt.Errorf("%w: keys of batch %d lane %d: %w", ErrWorkload, b, int(c.plan.first)+l, err)
		}
	}
	if err := c.tables.find(); err != nil {
		return fmt.Errorf("%w: keys of batch %d: %w", ErrWorkload, b, err)
	}
	return nil
}

// begin starts the batch whose keys were named last.
func (c *compute) begin() {
	c.plan.present(c.samples)
	c.rows.reset()
}

// beginLane starts hosted lane i.
func (c *compute) beginLane(i int) {
	l := c.plan.lanes[i]
	c.dense.begin(l)
	c.rows.begin(i, l)
	c.beginAdded(i)
}

// endLane ends the lane of a step. err is the program's error, or nil.
func (c *compute) endLane(step *LaneStep, err error) error {
	step.endAdded()
	switch {
	case err == nil:
		err = step.err
	case step.err != nil: // err may be a consequence of it
		err = fmt.Errorf("%w; then %w", step.err, err)
	}
	if err != nil {
		return fmt.Errorf("%w: batch %d lane %d: %w", ErrWorkload, step.Batch, step.Lane, err)
	}
	if c.dense.afterLane && !(c.dense.finite() && c.rows.finite()) {
		err = c.drop(step.index)
	} else if err = c.rows.end(); err == nil {
		err = c.dense.end()
	}
	if err != nil {
		return fmt.Errorf("batch %d lane %d: %w", step.Batch, step.Lane, err)
	}
	return nil
}

// drop takes the lane that was computed last out of the batch, as a lane without samples.
func (c *compute) drop(at int) error {
	late := c.plan.drop(at)
	err := c.rows.drop(late)
	switch last := c.plan.last; {
	case err != nil || last < 0: // no lane is left
	case late.closes >= 0 || len(late.adds) > 0:
		err = c.dense.finish(late)
	case last < at: // the dropped lane was the last one, after nodes that are complete
		for chunk := 0; chunk < len(c.dense.chunks) && err == nil; chunk++ {
			err = c.dense.closed(c.plan.lanes[last].closes, chunk)
		}
	}
	return err
}

// rowGrad checks a row gradient and adds it to the sums.
func (c *compute) rowGrad(table int, ids []int64, values []float32) error {
	dim := c.tables.specs[table].Dim
	if len(values) != len(ids)*dim {
		return fmt.Errorf("row gradient of table %d: %d values for %d rows of %d", table, len(values), len(ids), dim)
	}
	c.ids = slices.Grow(c.ids[:0], len(ids))
	before := int64(-1)
	for i, id := range ids {
		if id <= before || id >= int64(len(c.tables.sets[table].keys)) {
			return fmt.Errorf("row gradient of table %d: id %d at position %d follows %d: want ascending ids below %d",
				table, id, i, before, len(c.tables.sets[table].keys))
		}
		c.ids, before = append(c.ids, uint64(id)), id
	}
	return c.rows.add(table, c.ids, values)
}

// added is the gradient of one table and lane that AddRowGrad collects. Its parts are summed in the order of the calls,
// so the bits depend on how a program cuts a lane.
type added struct {
	ids    []int64
	values []float32
}

// AddRowGrad adds to the lane's gradient of a table, instead of one RowGrad or BagGrad. ids are indices into Rows, in
// any order, with repetitions; rows [len(ids), dim] is added to them. Both are copied.
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
	a.ids, a.values = append(a.ids, ids...), append(a.values, rows...)
}

// addedTo returns the added gradient of a table in hosted lane at.
func (c *compute) addedTo(at int, table schema.Table) *added {
	if c.added == nil {
		c.added = make([][]added, len(c.samples))
	}
	if c.added[at] == nil {
		c.added[at] = make([]added, len(c.tables.specs))
	}
	return &c.added[at][table]
}

// beginAdded clears the added gradients of a lane.
func (c *compute) beginAdded(at int) {
	if c.added == nil {
		return
	}
	for i := range c.added[at] {
		a := &c.added[at][i]
		a.ids, a.values = a.ids[:0], a.values[:0]
	}
}

// endAdded moves the added gradients of a lane into the sums. Their memory is used until the lane's next batch.
func (s *LaneStep) endAdded() {
	c := s.compute
	if c.added == nil {
		return
	}
	for i := range c.added[s.index] {
		a := &c.added[s.index][i]
		switch {
		case s.err != nil:
			return
		case len(a.ids) > 0:
			s.err = c.rows.addBags(i, cuda.Sum, a.ids, c.rows.singles(len(a.ids)), a.values)
		}
	}
}
