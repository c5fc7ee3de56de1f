package trainer

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"gradbus/cuda"
	"gradbus/philox"
	"gradbus/schema"
)

// replicas are the tables that every trainer keeps whole (tables[i].replicated).
type replicas struct {
	backend cuda.Backend
	tables  []*replica // by index; nil where shards keep the table
	freed   []func()
}

// replica is one such table: its rows of the current version by key, with their momentum, and beside them the rows that
// the results of the batch under way have made. It is what a shard does to the rows that it owns, by the same kernels.
// Memory is outside the Go heap, but for what is staged.
type replica struct {
	spec      *schema.TableSpec
	optimizer cuda.Optimizer
	rows      []float32 // [Rows, dim]
	momentum  []float32 // [Rows, dim]; nil where the optimizer keeps none
	stepped   []uint8   // by key: momentum holds the outcome of at least one step; nil like momentum

	// The outcome of results so far, beside the table until the batch is complete.
	index          []int64 // keys, distinct
	newRows        []float32
	newMomentum    []float32
	firstStep      []uint8
	slots          []cuda.Slot
	order          []uint32 // keys by partition, ascending within each; made by the first scan
	partitionsEnds []int
	scratch        []float32
	scratchKeys    []uint64
}

// newReplicas draws version 0 of all replicated tables, which every trainer does alike.
func newReplicas(ctx context.Context, job *schema.Job, backend cuda.Backend) (r *replicas, err error) {
	r = &replicas{backend: backend, tables: make([]*replica, len(job.Tables))}
	for i := range job.Tables {
		if spec := &job.Tables[i]; spec.Replicated {
			if r.tables[i], err = r.make(ctx, job, spec); err != nil {
				r.free()
				return nil, fmt.Errorf("table %q: %w", spec.Name, err)
			}
		}
	}
	return r, nil
}

func (r *replicas) make(ctx context.Context, job *schema.Job, spec *schema.TableSpec) (*replica, error) {
	if spec.Rows > replicaRowsMax {
		return nil, fmt.Errorf("%d rows: want at most %d", spec.Rows, uint64(replicaRowsMax))
	}
	sgd := sgdOf(job.Optimizer)
	t := &replica{spec: spec, optimizer: sgd}
	values := int(spec.Rows) * spec.Dim
	var err error
	if t.rows, err = r.alloc(values); err != nil {
		return nil, err
	}
	if sgd.Momentum != 0 {
		if t.momentum, err = r.alloc(values); err != nil {
			return nil, err
		}
		t.stepped = make([]uint8, spec.Rows)
	}
	return t, t.draw(ctx, job.Seed)
}

// replicaRowsMax bounds a replica by the 32 bits of its order.
const replicaRowsMax = 1<<32 - 1

func (r *replicas) alloc(values int) ([]float32, error) {
	b, err := r.backend.Alloc(values)
	if err != nil {
		return nil, fmt.Errorf("allocate %d values: %w", values, err)
	}
	r.freed = append(r.freed, b.Free)
	return b.Float32s(), nil
}

func (r *replicas) free() {
	for _, free := range r.freed {
		free()
	}
	r.freed, r.tables = nil, nil
}

// of is the table's replica; nil where shards keep it.
func (r *replicas) of(t schema.Table) *replica { return r.tables[t] }

// stage applies mean gradients of a replicated table's rows, beside the table.
func (r *replicas) stage(t schema.Table, keys []uint64, means []float32) error {
	if err := r.tables[t].stage(r.backend, keys, means); err != nil {
		return fmt.Errorf("apply %d rows of table %d: %w", len(keys), t, err)
	}
	return nil
}

// replicated says of each table whether it is kept here.
func (r *replicas) replicated() []bool {
	is := make([]bool, len(r.tables))
	for i, t := range r.tables {
		is[i] = t != nil
	}
	return is
}

// rowsAtOnce is how many rows one goroutine draws before it looks whether they are still wanted.
const rowsAtOnce = 1 << 12

// draw fills the rows, in parallel: a row is a pure function of (seed, table, key).
func (t *replica) draw(ctx context.Context, seed uint64) error {
	filler, err := philox.NewFiller(t.spec.Init.Kind, t.spec.Init.Scale, seed, t.spec.Name)
	if err != nil {
		return err
	}
	var next atomic.Uint64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), int(t.spec.Rows/rowsAtOnce)+1) {
		workers.Go(func() {
			for ctx.Err() == nil {
				first := (next.Add(1) - 1) * rowsAtOnce
				if first >= t.spec.Rows {
					return
				}
				for key := first; key < min(first+rowsAtOnce, t.spec.Rows); key++ {
					filler.Row(t.row(key), key)
				}
			}
		})
	}
	workers.Wait()
	return ctx.Err()
}

func (t *replica) row(key uint64) []float32 {
	dim := uint64(t.spec.Dim)
	return t.rows[key*dim : (key+1)*dim]
}

// stage runs the optimizer on rows of mean gradients, beside the table. Keys are below Rows, ascending, and in no other
// call for the batch.
func (t *replica) stage(backend cuda.Backend, keys []uint64, means []float32) error {
	n, before, dim := len(keys), len(t.index), t.spec.Dim
	if n == 0 {
		return nil
	}
	t.index, t.newRows = extended(t.index, n), extended(t.newRows, n*dim)
	for i, key := range keys {
		t.index[before+i] = int64(key)
	}
	index := t.index[before:]
	a := cuda.ApplyRows{Dim: dim, Optimizer: t.optimizer, Weight: 1, Table: cuda.Float32s(t.rows), Index: cuda.Int64s(index),
		Grad: cuda.Float32s(means), Out: cuda.Float32s(t.newRows[before*dim:])}
	if t.momentum != nil {
		t.newMomentum, t.firstStep = extended(t.newMomentum, n*dim), grown(t.firstStep, n)
		for i, key := range index {
			t.firstStep[i] = 1 - t.stepped[key]
		}
		t.slots = append(t.slots[:0], cuda.Slot{Name: "momentum", Before: cuda.Float32s(t.momentum), After: cuda.Float32s(t.newMomentum[before*dim:])})
		a.Slots, a.First = t.slots, cuda.Uint8s(t.firstStep)
	}
	return cuda.NameMismatch(backend.ApplyRows(a), func(e *cuda.MismatchError) string {
		return e.InTable(t.spec.Name, keys[min(e.Row(), n-1)])
	})
}

// extended gives s n elements more, whatever they are.
func extended[T any](s []T, n int) []T {
	have := len(s)
	if cap(s) < have+n {
		s = append(make([]T, 0, 2*(have+n)), s...)
	}
	return s[:have+n]
}

// commit makes the staged rows those of the current version, once the batch is complete.
func (r *replicas) commit() {
	for _, t := range r.tables {
		if t == nil {
			continue
		}
		dim := t.spec.Dim
		for i, key := range t.index {
			copy(t.row(uint64(key)), t.newRows[i*dim:(i+1)*dim])
			if t.momentum != nil {
				copy(t.momentum[int(key)*dim:(int(key)+1)*dim], t.newMomentum[i*dim:])
				t.stepped[key] = 1
			}
		}
		t.index, t.newRows, t.newMomentum = t.index[:0], t.newRows[:0], t.newMomentum[:0]
	}
}

// fill copies the rows of the distinct keys of replicated tables to where lookups put those of the others.
func (r *replicas) fill(to *tables) {
	for i, t := range r.tables {
		if t == nil {
			continue
		}
		out, dim := to.rows[i], t.spec.Dim
		for j, key := range to.keys[i] {
			copy(out[j*dim:(j+1)*dim], t.row(key))
		}
	}
}

// scan gives all rows, partitions ascending and keys ascending within each, valuesMax values at a time.
func (t *replica) scan(valuesMax int, yield func(p schema.Partition, keys []uint64, rows []float32) error) error {
	t.sortKeys()
	most, first, dim := max(1, valuesMax/t.spec.Dim), 0, t.spec.Dim
	for p, end := range t.partitionsEnds {
		for ; first < end; first += min(most, end-first) {
			n := min(most, end-first)
			t.scratchKeys, t.scratch = grown(t.scratchKeys, n), grown(t.scratch, n*dim)
			for i, key := range t.order[first : first+n] {
				t.scratchKeys[i] = uint64(key)
				copy(t.scratch[i*dim:(i+1)*dim], t.row(uint64(key)))
			}
			if err := yield(schema.Partition(p), t.scratchKeys, t.scratch); err != nil {
				return err
			}
		}
	}
	return nil
}

// sortKeys lists the keys by partition, once.
func (t *replica) sortKeys() {
	if t.order != nil {
		return
	}
	next := make([]int, t.spec.Partitions)
	for key := range t.spec.Rows {
		next[schema.PartitionOf(key, t.spec.Partitions)]++
	}
	total := 0
	for p, n := range next {
		next[p] = total
		total += n
	}
	t.order = make([]uint32, t.spec.Rows)
	for key := range t.spec.Rows {
		p := schema.PartitionOf(key, t.spec.Partitions)
		t.order[next[p]] = uint32(key)
		next[p]++
	}
	t.partitionsEnds = next // where each ends, now
}
