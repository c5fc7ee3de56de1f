package trainer

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// Bagged is a Workload that uses tables by bags: those whose manifest sets a pooling. Such a workload is independent of
// the placement. If rows are placed on the shards by partitions, the trainer fetches and pools them; if a shard has
// whole bags, it pools them, with equal bits.
type Bagged interface {
	Workload

	// Bags appends to offsets[table], which is empty, the offsets of the lane's bags among the keys that Keys has just
	// returned. There is one more offset than bags: the first is 0, the last the number of the lane's keys. Tables
	// without a pooling are left unchanged. The session calls it after Keys, for every lane with samples.
	//
	//	keys 4 4 9 7, bags {4, 4}, {}, {9, 7}  ->  0 2 2 4
	Bags(b schema.Batch, l lane.Lane, offsets [][]int64) (out [][]int64)
}

// Pooled returns the pooled rows of a table, [bags, dim] row-major and read-only: the sum or mean of each bag's rows,
// as the manifest sets it, and zeros for an empty bag.
func (s *LaneStep) Pooled(table schema.Table) []float32 {
	b, ok := s.bags(table)
	if !ok || !s.fetched(table) {
		return s.scratch()
	}
	if !b.there {
		if err := s.compute.pool(int(table), s.index, b); err != nil {
			s.broken("pool table %d: %v", table, err)
			return s.scratch()
		}
	}
	return b.pooled
}

// PooledGrad sets the lane's gradient of the result of Pooled, [bags, dim], at most once. It is copied.
//
//	step.PooledGrad(0, []float32{0.5, 0.5, -1, -1}) // two bags, dim 2
func (s *LaneStep) PooledGrad(table schema.Table, grad []float32) {
	b, ok := s.bags(table)
	if !ok || s.err != nil {
		return
	}
	t := s.compute.tables
	mode := poolingMode(&t.specs[table])
	if !t.specs[table].Cut().PooledByShards() {
		s.BagGrad(table, mode, b.offsets, grad)
		return
	}
	keys := t.laneKeys(int(table), s.index)
	err := checkBags(mode, t.specs[table].Dim, len(keys), b.offsets, grad)
	if err == nil {
		err = s.compute.rows.addWhole(int(table), mode, keys, b.offsets, grad)
	}
	if err != nil {
		s.err = fmt.Errorf("gradient of the bags of table %d: %w", table, err)
	}
}

// bags returns the lane's bags of a table.
func (s *LaneStep) bags(table schema.Table) (*laneBags, bool) {
	if !s.knows(table) {
		return nil, false
	}
	all := s.compute.tables.bags[table]
	if all == nil || len(all[s.index].offsets) == 0 {
		s.broken("table %d has no bags: the manifest names its pooling, and the workload gives them by Bags", table)
		return nil, false
	}
	return &all[s.index], true
}

// hasRows reports whether the trainer receives rows of a table one by one.
func (s *LaneStep) hasRows(table schema.Table) bool {
	if !s.knows(table) {
		return false
	}
	if spec := &s.compute.tables.specs[table]; spec.Cut().PooledByShards() {
		s.broken("table %d is pooled on its shards (placement %s): use Pooled and PooledGrad", table, spec.Placement)
		return false
	}
	return true
}

func pooledByShards(t schema.TableSpec) bool { return t.Cut().PooledByShards() }

func poolingMode(t *schema.TableSpec) cuda.Mode {
	if t.Mean() {
		return cuda.Mean
	}
	return cuda.Sum
}

// laneBags are the bags of one lane in one table.
type laneBags struct {
	offsets []int64   // [bags+1]; empty if the lane has no samples
	full    []int32   // indices of bags with keys
	pooled  []float32 // [bags, dim]
	there   bool      // pooled is computed here; false if shards fill it
}

// collectBags calls the workload's Bags for one lane.
func (t *tables) collectBags(w Workload, b schema.Batch, l lane.Lane, at, samples int) error {
	t.offsets = grown(t.offsets, len(t.specs))
	some := false
	for i := range t.specs {
		t.offsets[i] = nil
		if t.bags[i] != nil {
			t.offsets[i], some = t.bags[i][at].offsets[:0], true
			t.bags[i][at].offsets = t.offsets[i]
		}
	}
	if !some || samples == 0 {
		return nil
	}
	bagged, ok := w.(Bagged)
	if !ok {
		for i := range t.specs {
			if t.specs[i].Cut().PooledByShards() {
				return fmt.Errorf("table %q is pooled on its shards, and the workload does not say what its bags are: "+
					"it lacks Bags", t.specs[i].Name)
			}
		}
		return nil
	}
	out := bagged.Bags(b, l, t.offsets)
	if len(out) != len(t.specs) {
		return fmt.Errorf("bags of %d tables: the job has %d", len(out), len(t.specs))
	}
	for i := range t.specs {
		if t.bags[i] == nil {
			continue
		}
		if err := t.bags[i][at].set(out[i], len(t.laneKeys(i, at))); err != nil {
			return fmt.Errorf("bags of table %q: %w", t.specs[i].Name, err)
		}
	}
	return nil
}

// set checks and stores the offsets of a lane's bags. keys is the number of the lane's keys.
func (b *laneBags) set(offsets []int64, keys int) error {
	bags := len(offsets) - 1
	if bags < 0 || offsets[0] != 0 || offsets[bags] != int64(keys) {
		return fmt.Errorf("%d offsets: want one more than bags, from 0 to %d, the number of the lane's keys",
			len(offsets), keys)
	}
	b.offsets, b.full = offsets, b.full[:0]
	for i := range bags {
		switch n := offsets[i+1] - offsets[i]; {
		case n < 0:
			return fmt.Errorf("offset %d after %d: want offsets that do not fall", offsets[i+1], offsets[i])
		case n > 0:
			b.full = append(b.full, int32(i))
		}
	}
	return nil
}

// laneKeys returns the keys of hosted lane at, in the workload's order.
func (t *tables) laneKeys(table, at int) []uint64 {
	before := 0
	if at > 0 {
		before = t.ends[table][at-1]
	}
	return t.used[table][before:t.ends[table][at]]
}

// checkKeys checks the keys of a table for which no distinct keys are computed.
func (t *tables) checkKeys(table int) error {
	for _, key := range t.used[table] {
		if spec := &t.specs[table]; key >= spec.Rows {
			return outside(spec, key)
		}
	}
	return nil
}

// sizeBags sizes the pooled rows. Rows of empty bags are zeroed; the others are undefined until they arrive.
func (t *tables) sizeBags() {
	for i, lanes := range t.bags {
		for at := range lanes {
			b := &lanes[at]
			b.there = t.specs[i].Cut().PooledByShards()
			b.pooled = grown(b.pooled, max(0, len(b.offsets)-1)*t.specs[i].Dim)
			b.clearEmpty(t.specs[i].Dim)
		}
	}
}

// clearEmpty zeroes the pooled rows of bags without keys, which nothing else writes.
func (b *laneBags) clearEmpty(dim int) {
	for bag := range len(b.offsets) - 1 {
		if b.offsets[bag] == b.offsets[bag+1] {
			clear(b.pooled[bag*dim : (bag+1)*dim])
		}
	}
}

// pool computes the pooled rows of one lane from the fetched rows.
func (c *compute) pool(table, at int, b *laneBags) error {
	t := c.tables
	b.there = true
	if len(b.full) == 0 {
		return nil
	}
	return c.rows.backend.BagForward(cuda.BagForward{Dim: t.specs[table].Dim, Mode: poolingMode(&t.specs[table]),
		Padding: cuda.NoPadding,
		Rows:    cuda.Float32s(t.rows[table]), IDs: cuda.Int64s(t.laneIDs(table, at)), Offsets: cuda.Int64s(b.offsets),
		Out: cuda.Float32s(b.pooled)})
}

// addWhole stores the lane's gradient of a table that shards pool. The caller must not change keys until the batch has
// been sent.
func (s *rowSums) addWhole(table int, mode cuda.Mode, keys []uint64, offsets []int64, grad []float32) error {
	if err := s.give(table); err != nil {
		return err
	}
	b := &s.bags.lanes[s.at][table]
	b.set(mode, s.dims[table], nil, offsets, grad)
	b.keys = keys
	return nil
}

// scatterWhole adds one lane's bags to the message of every shard that has columns of the table.
func (s *scatter) scatterWhole(b *bagGrad, table, lane int) {
	for shard := range s.rows.shards {
		if s.dim(shard, table) == 0 {
			continue
		}
		d := s.at(shard, table, lane)
		for bag := range len(b.offsets) - 1 {
			if b.offsets[bag+1] > b.offsets[bag] {
				d.bags, d.starts = append(d.bags, int32(bag)), append(d.starts, int(b.offsets[bag]))
			}
		}
		d.keys = append(d.keys, b.keys...)
	}
}

// dim returns the number of columns of a table on a shard.
func (s *scatter) dim(shard, table int) int {
	if !s.sums.bags.whole[table] {
		return s.rows.dims[table]
	}
	_, n := s.place.Columns(schema.Table(table), shard)
	return n
}

// takeColumns copies columns [column, column+dim) of row at[i] of from, whose rows are whole wide, to row i of to.
func takeColumns[T any](to []T, column, dim, whole int, at []int32, from []T) {
	if dim == whole {
		takeRows(to, dim, at, from)
		return
	}
	for i, row := range at {
		copy(to[i*dim:(i+1)*dim], from[int(row)*whole+column:])
	}
}
