package trainer

import (
	"fmt"
	"slices"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// Workload is the training of a job: the source of samples, and forward, loss and backward of one lane. Both methods
// must be pure functions of batch, lane and parameters, with random numbers keyed by (seed, batch, lane), so that any
// trainer can compute a lane. They are called from the goroutine that calls Run, lane after lane.
type Workload interface {
	// Keys appends to keys[table] the keys of every example of the lane, in the order in which the lane will use them,
	// and returns the number of samples and the slices. It is called for batch b+1 while the results of b are under way,
	// so it may not look at parameters. A lane without samples is absent from the batch: Lane is not called for it, and
	// it may not have keys.
	Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64)

	// Lane computes one lane and returns the sum of the losses of its samples. Gradients are sums over the samples too,
	// never divided: those of all lanes are added up and then divided by the samples of all lanes of the batch, rows of
	// tables like parameters. So the learning rate is one for the mean over the batch, and does not depend on its cut into
	// lanes; schema.Optimizer.LR has the formula.
	//
	//	grad[i] += x[i]*d // for each sample; neither d nor the sum is divided by step.Samples
	Lane(step *LaneStep) (lossSum float64, err error)
}

// LaneStep is a workload's view of one lane of one batch. It and all slices it returns are valid until Lane returns.
//
// A request that breaks the rules (a name that the job does not have, a gradient that is final) returns unused memory,
// and Run fails with ErrWorkload and the reason when Lane returns.
type LaneStep struct {
	Batch   schema.Batch
	Lane    lane.Lane
	Samples int // as Keys said

	index   int // of the lane among the hosted ones
	compute *compute
	batch   *Batch
	ended   bool
	err     error // first broken rule, kept until the lane ends
}

// End ends a lane of a Batch: all of its gradients are there, and loss is the sum of the losses of its samples. What a
// workload computes ends by itself when Lane returns. The error is the first rule that was broken since Batch.Lane; it
// ends the session, unless it is ErrOrder.
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

// Rows are the embedding rows of a table that the trainer's lanes use in this batch, [U, dim] row-major, in ascending
// order of their keys. They are read only: version Batch of the table.
func (s *LaneStep) Rows(table schema.Table) []float32 {
	if !s.hasRows(table) || !s.fetched(table) {
		return s.scratch()
	}
	return s.compute.tables.rows[table]
}

// IDs are the rows of the lane's keys, in the order in which Keys gave them: the key at position i is row IDs[i] of
// Rows.
func (s *LaneStep) IDs(table schema.Table) []int64 {
	if !s.hasRows(table) {
		return s.scratchIDs()
	}
	return s.compute.tables.laneIDs(int(table), s.index)
}

// Param is a dense parameter's values, row-major and read only: version Batch.
func (s *LaneStep) Param(name string) []float32 {
	i, ok := s.param(name)
	if !ok {
		return s.scratch()
	}
	return s.compute.params.value(i)
}

// Grad is where the lane's gradient of a parameter is to be written, as long as the parameter. It holds anything
// before: overwrite it. A parameter whose Grad is never asked for has gradient zero.
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

// Done says that a parameter's gradient is final. Calling it as soon as that is so lets the gradient travel while the
// rest of the backward pass runs; what was not declared by the time Lane returns is final then. Parameters travel in
// the reverse order of the manifest, so that is the order in which calling it is worth most.
func (s *LaneStep) Done(name string) {
	i, ok := s.param(name)
	if !ok || s.err != nil {
		return
	}
	if err := s.compute.dense.done(i); err != nil {
		s.err = err
	}
}

// RowGrad gives the lane's gradient of a table, at most once: ids are rows of Rows, ascending and distinct, and
// rows [len(ids), dim] the sum over the lane's samples for each. Both are copied. This is what
// cuda.Backend.BagBackward gives for the IDs of the lane. It travels as rows in any job; see BagGrad.
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

// BagGrad gives the lane's gradient of a table by its bags, in place of RowGrad: bag i pools the rows of
// IDs[offsets[i]] up to IDs[offsets[i+1]-1], by their sum or their mean, and row i of grad [bags, dim] is the gradient
// of what it pooled. offsets go from 0 to the number of IDs; nil is a bag for each of the IDs. Both are copied. The
// session sums the bags up by row, or sends them as they are and lets the shards do that, whichever are fewer bytes.
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

// scratch is given in place of values that are not to be had: as many as the largest that are, so that a lane that goes
// on with them comes to its end, and to the error that says what was wrong.
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

// scratchIDs is scratch for row ids.
func (s *LaneStep) scratchIDs() []int64 {
	most := max(1, s.Samples)
	for i := range s.compute.tables.specs {
		most = max(most, len(s.compute.tables.laneKeys(i, s.index)))
	}
	return make([]int64, most)
}

func (s *LaneStep) broken(format string, args ...any) {
	if s.ended { // for Commit to say
		s.batch.broken("lane %d of batch %d, after its End: %w", s.Lane, s.Batch, fmt.Errorf(format, args...))
		return
	}
	if s.err == nil {
		s.err = fmt.Errorf(format, args...)
	}
}

// compute is the arithmetic of a trainer's batch: it knows lanes, keys and sums, and neither frames nor shards.
type compute struct {
	plan   *lanePlan
	tables *tables
	params *parameters
	dense  *denseSums
	rows   *rowSums

	samples []int // of each hosted lane
	ids     []uint64
	added   [][]added // [hosted lane][table] of gradients that came in parts; nil where none ever did
}

// collect asks the workload for the keys of a batch.
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

// named ends the naming of keys, and finds the distinct ones. at is the lane of each table whose keys were named last;
// nil where all were.
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

// beginLane starts hosted lane number i.
func (c *compute) beginLane(i int) {
	l := c.plan.lanes[i]
	c.dense.begin(l)
	c.rows.begin(i, l)
	c.beginAdded(i)
}

// endLane ends the lane of a step with an error of the program, or nil.
func (c *compute) endLane(step *LaneStep, err error) error {
	step.endAdded()
	switch {
	case err == nil:
		err = step.err
	case step.err != nil: // of which the other one may be a consequence
		err = fmt.Errorf("%w; then %w", step.err, err)
	}
	if err != nil {
		return fmt.Errorf("%w: batch %d lane %d: %w", ErrWorkload, step.Batch, step.Lane, err)
	}
	if c.dense.held && !(c.dense.finite() && c.rows.finite()) {
		err = c.drop(step.index)
	} else if err = c.rows.end(); err == nil {
		err = c.dense.end()
	}
	if err != nil {
		return fmt.Errorf("batch %d lane %d: %w", step.Batch, step.Lane, err)
	}
	return nil
}

// drop takes the lane that has just been computed out of the batch: its samples are none.
func (c *compute) drop(at int) error {
	late := c.plan.drop(at)
	err := c.rows.drop(late)
	switch last := c.plan.last; {
	case err != nil || last < 0: // and no lane is present
	case late.closes >= 0 || len(late.adds) > 0:
		err = c.dense.finish(late)
	case last < at: // which would have been the last, behind nodes that are complete
		for chunk := 0; chunk < len(c.dense.chunks) && err == nil; chunk++ {
			err = c.dense.closed(c.plan.lanes[last].closes, chunk)
		}
	}
	return err
}

// rowGrad checks a row gradient and adds it up.
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

// added is the gradient of one table and lane that comes in parts (AddRowGrad). The parts are added up in the order of
// the calls, so bits follow from how a program cuts a lane.
type added struct {
	ids    []int64
	values []float32
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
	a.ids, a.values = append(a.ids, ids...), append(a.values, rows...)
}

// addedTo returns the sum for a table of hosted lane at.
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
		a.ids, a.values = a.ids[:0], a.values[:0]
	}
}

// endAdded gives what was added up for a lane. Its memory stays until the lane's next batch.
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
