package ps

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"gradbus/philox"
	"gradbus/schema"
)

// absent marks a key whose partition is on another shard. Slots are 32 bits, so a table has fewer than 2^32-1 rows.
const absent = math.MaxUint32

// tableRowsMax bounds an array table by what slots and keys of 32 bits can name.
const tableRowsMax = math.MaxUint32 - 1

// table is the part of an embedding table that lies on one shard: its partitions one after the other, keys ascending
// within each. Rows and momentum lie outside the Go heap.
//
// Invariant: keys[slots[k]] == k for every key k of this shard, and slots[k] == absent for every other.
type table struct {
	id         schema.Table
	spec       schema.TableSpec
	dim        int         // columns that are here
	column     int         // the first of them
	partitions []partition // of this shard, ascending
	slots      []uint32    // by key: where its row lies
	keys       []uint32    // by slot

	rows     []float32 // [slots, dim], the current version
	momentum []float32 // [slots, dim]; nil where the optimizer keeps none
	stepped  []uint8   // by slot: momentum holds the outcome of at least one step; nil like momentum

	staged stagedRows
}

// partition is the slots [first, end) of one partition.
type partition struct {
	id         schema.Partition
	first, end int
}

// stagedRows is the outcome of a closed sparse round, which waits beside the table until the batch is complete on every
// shard. Its memory is reused from batch to batch.
type stagedRows struct {
	index    []int64 // slots, distinct
	rows     []float32
	momentum []float32
}

// makeTables lays out every table's partitions and draws their initial rows.
func (s *Shard) makeTables(ctx context.Context) error {
	s.tables = make([]*table, len(s.job.Tables))
	for id, spec := range s.job.Tables {
		if spec.Rows > tableRowsMax {
			return fmt.Errorf("table %q: %d rows: want at most %d", spec.Name, spec.Rows, uint64(tableRowsMax))
		}
		t := &table{id: schema.Table(id), spec: spec}
		if t.column, t.dim = s.place.Columns(t.id, s.index); t.dim == 0 {
			continue
		}
		if err := t.lay(ctx, func(p schema.Partition) bool { return s.place.Holds(t.id, p, s.index) }); err != nil {
			return err
		}
		if len(t.partitions) == 0 {
			continue
		}
		s.tables[id] = t
		if spec.Replicated {
			continue // its rows are the trainers'; here it is only known whose they add up to
		}
		if err := s.makeRows(ctx, t); err != nil {
			return fmt.Errorf("table %q: %w", spec.Name, err)
		}
	}
	return nil
}

// lookEvery is after how many keys, or values of rows, work on a table looks whether it is still wanted.
const lookEvery = 1 << 12

// lay gives every key of the owned partitions its slot.
func (t *table) lay(ctx context.Context, owned func(schema.Partition) bool) error {
	counts := make([]int, t.spec.Partitions)
	for key := range t.spec.Rows {
		if key%lookEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		counts[schema.PartitionOf(key, t.spec.Partitions)]++
	}
	next, total := make([]int, t.spec.Partitions), 0
	for p, n := range counts {
		next[p] = -1
		if owned(schema.Partition(p)) {
			t.partitions = append(t.partitions, partition{schema.Partition(p), total, total + n})
			next[p] = total
			total += n
		}
	}
	t.slots, t.keys = make([]uint32, t.spec.Rows), make([]uint32, total)
	for key := range t.spec.Rows {
		if key%lookEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		p := schema.PartitionOf(key, t.spec.Partitions)
		if next[p] < 0 {
			t.slots[key] = absent
			continue
		}
		t.slots[key], t.keys[next[p]] = uint32(next[p]), uint32(key)
		next[p]++
	}
	return nil
}

// makeRows allocates rows and draws them, partitions in parallel: a row is a pure function of (seed, table, key).
func (s *Shard) makeRows(ctx context.Context, t *table) (err error) {
	if t.rows, err = s.alloc(len(t.keys) * t.dim); err != nil {
		return err
	}
	if s.sgd.Momentum != 0 {
		if t.momentum, err = s.alloc(len(t.keys) * t.dim); err != nil {
			return err
		}
		t.stepped = make([]uint8, len(t.keys))
	}
	filler, err := philox.NewFiller(t.spec.Init.Kind, t.spec.Init.Scale, s.job.Seed, t.spec.Name)
	if err != nil {
		return err
	}
	every := max(1, lookEvery/t.spec.Dim)
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(t.partitions)) {
		workers.Go(func() {
			row := make([]float32, t.spec.Dim)
			for {
				i := int(next.Add(1)) - 1
				if i >= len(t.partitions) || ctx.Err() != nil {
					return
				}
				for slot := t.partitions[i].first; slot < t.partitions[i].end; slot++ {
					if slot%every == 0 && ctx.Err() != nil {
						return
					}
					filler.Row(row, uint64(t.keys[slot]))
					copy(t.row(slot), row[t.column:])
				}
			}
		})
	}
	workers.Wait()
	return ctx.Err()
}

// row is the row in a slot.
func (t *table) row(slot int) []float32 { return t.rows[slot*t.dim : (slot+1)*t.dim] }

// find is the partition with an id, if it is on this shard.
func (t *table) find(id schema.Partition) (partition, bool) {
	for _, p := range t.partitions {
		if p.id == id {
			return p, true
		}
	}
	return partition{}, false
}

// commit moves staged rows into the table.
func (t *table) commit() {
	d := t.dim
	for i, slot := range t.staged.index {
		at := int(slot) * d
		copy(t.rows[at:at+d], t.staged.rows[i*d:])
		if t.momentum != nil {
			copy(t.momentum[at:at+d], t.staged.momentum[i*d:])
			t.stepped[slot] = 1
		}
	}
	t.staged.index = t.staged.index[:0]
}

// commitRows moves every table to the version of the next batch.
func (s *Shard) commitRows() {
	for _, t := range s.tables {
		if t != nil {
			t.commit()
		}
	}
}

// checkSections checks that the tables of a frame exist, that their rows are as wide as the frame says and that every key
// is on this shard. It does for sparse frames and lookups what Placement.CheckFrame does, by the index of slots instead
// of a hash of every key: 1300 keys take 1 us instead of 20. Order and lengths are schema.Verify's. It returns how many
// values the rows have, or those of the bags.
func (s *Shard) checkSections(v *schema.View) (values int, refused *refusal) {
	for _, part := range v.Parts() {
		if int(part.Table) >= len(s.job.Tables) {
			return 0, schema.Refuse(schema.ReasonUnknownTable, "table %d: job %s has %d tables", part.Table, s.job.Name, len(s.job.Tables))
		}
		if _, dim := s.place.Columns(part.Table, s.index); part.Dim != dim {
			return 0, schema.Refuse(schema.ReasonWrongShape, "rows of %d values for table %q: want %d", part.Dim, s.job.Tables[part.Table].Name, dim)
		}
		if r := s.checkKeys(part.Table, part.Keys); r != nil {
			return 0, r
		}
		rows := len(part.Keys)
		if part.Bags > 0 {
			rows = part.Bags
		}
		values += rows * part.Dim
	}
	return values, nil
}

func (s *Shard) checkKeys(id schema.Table, keys []uint64) *refusal {
	t, spec := s.tables[id], &s.job.Tables[id]
	for _, key := range keys {
		switch {
		case key >= spec.Rows:
			return schema.Refuse(schema.ReasonUnknownKey, "key %d of table %q: it has keys 0 to %d", key, spec.Name, spec.Rows-1)
		case t == nil || t.slots[key] == absent:
			return schema.Refuse(schema.ReasonUnknownKey, "key %d of table %q: its partition %d is not on %s",
				key, spec.Name, schema.PartitionOf(key, spec.Partitions), s.member)
		}
	}
	return nil
}

// grown gives n elements that reuse s where it is large enough. They are what they happen to be.
func grown[T any](s []T, n int) []T {
	if cap(s) >= n {
		return s[:n]
	}
	return slices.Grow(s[:0], n)[:n]
}
