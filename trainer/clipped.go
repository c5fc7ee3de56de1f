package trainer

import (
	"cmp"
	"slices"
	"sync"

	"gradbus/schema"
	"gradbus/shard/state"
)

// clipped holds the mean gradients that are clipped by their joint norm until all of their batch are here: dense ones
// of the ahead+1 batches that may be open, and rows of replicated tables. The goroutine that claimed a result stores it
// here (results.claim); one goroutine at a time calls step.
type clipped struct {
	params   *parameters
	replicas *replicas
	most     float32
	chunks   []int         // chunks clipped globally, ascending
	clips    []bool        // [dense chunk] it is clipped globally
	order    []int         // flat indices of their parameters, in the order of the manifest
	tables   []clippedRows // [table]
	means    [][]float32   // flat space of batch b at b % len
	sorted   []int         // scratch of norm
}

// clippedRows are mean gradients of one table's rows, in order of arrival.
type clippedRows struct {
	on   bool       // the table is clipped globally
	mu   sync.Mutex // results of several owners arrive concurrently; a leaf
	keys []uint64
	rows []float32
}

// newClipped returns nil if nothing is clipped globally.
func newClipped(job *schema.Job, params *parameters) *clipped {
	c := &clipped{params: params, clips: make([]bool, len(params.flat.chunks)), tables: make([]clippedRows, len(job.Tables)),
		means: make([][]float32, job.Ahead+1)}
	global := func(o schema.Optimizer) bool {
		if o.Clip == nil || o.Clip.Kind != schema.ClipGlobal {
			return false
		}
		c.most = o.Clip.Max // Validate ensures one value for all
		return true
	}
	for i := range job.Parameters {
		if global(job.OptimizerOfParameter(i)) {
			c.order = append(c.order, params.index[job.Parameters[i].Name])
		}
	}
	for i, r := range params.flat.rounds {
		if c.clips[i] = global(params.flat.place.OptimizerOf(r.bucket)); c.clips[i] {
			c.chunks = append(c.chunks, i)
		}
	}
	for i := range job.Tables {
		c.tables[i].on = global(job.OptimizerOf(schema.Table(i)))
	}
	if c.most == 0 {
		return nil
	}
	for i := range c.means {
		c.means[i] = make([]float32, len(params.values[0]))
	}
	return c
}

func (c *clipped) meansOf(b schema.Batch) []float32 { return c.means[b%schema.Batch(len(c.means))] }

// takes reports whether a chunk is clipped globally.
func (c *clipped) takes(chunk int) bool { return c != nil && c.clips[chunk] }

// hold stores a chunk's mean gradient of a batch.
func (c *clipped) hold(b schema.Batch, chunk int, mean []float32) {
	copy(c.meansOf(b)[c.params.flat.chunks[chunk].lo:], mean)
}

// holdRows stores mean gradients of rows if the table is clipped globally, and reports whether it is.
func (c *clipped) holdRows(table schema.Table, keys []uint64, rows []float32) bool {
	if c == nil || !c.tables[table].on {
		return false
	}
	t := &c.tables[table]
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keys, t.rows = append(t.keys, keys...), append(t.rows, rows...)
	return true
}

// step makes the next version of the clipped parameters and rows, when all of batch b are here and the previous batch was
// stepped. weight is the number of samples of all trainers.
func (c *clipped) step(b schema.Batch, weight float64) error {
	if c == nil {
		return nil
	}
	if weight == 0 {
		for _, i := range c.chunks {
			c.params.keep(i)
		}
		return nil
	}
	scale := c.scale(b)
	for _, i := range c.chunks {
		at := c.params.flat.chunks[i]
		if err := c.params.step(i, c.meansOf(b)[at.lo:at.hi], scale); err != nil {
			return err
		}
	}
	for i := range c.tables {
		t := &c.tables[i]
		if !t.on {
			continue
		}
		if err := c.replicas.applyRows(schema.Table(i), t.keys, t.rows, scale); err != nil {
			return err
		}
		t.keys, t.rows = t.keys[:0], t.rows[:0]
	}
	return nil
}

// scale returns the factor of the gradients of a batch.
func (c *clipped) scale(b schema.Batch) float32 {
	var n state.Norm
	for _, p := range c.order {
		at := c.params.flat.params[p]
		n.Add(c.meansOf(b)[at.lo:at.hi])
	}
	for i := range c.tables {
		t := &c.tables[i]
		c.sorted = grown(c.sorted, len(t.keys))
		for k := range c.sorted {
			c.sorted[k] = k
		}
		slices.SortFunc(c.sorted, func(a, b int) int { return cmp.Compare(t.keys[a], t.keys[b]) })
		for _, k := range c.sorted {
			dim := len(t.rows) / len(t.keys)
			n.Add(t.rows[k*dim : (k+1)*dim])
		}
	}
	return n.Scale(c.most)
}
