package trainer

import (
	"context"
	"fmt"
	"sync"

	"gradbus/cuda"
	"gradbus/schema"
	"gradbus/shard/state"
)

// replicas has the tables that every trainer stores whole. It updates their rows as a shard updates the rows that it
// owns.
type replicas struct {
	specs   []schema.TableSpec
	tables  []*state.Array // by index; nil if shards store the table
	locks   []sync.Mutex   // of tables: results of several owners arrive concurrently, with requests for rows. Leaves
	scanner state.Scanner
}

// newReplicas draws version 0 of all replicated tables, which is the same for every trainer. With late, rows are drawn
// when they are needed, since another version will replace them.
func newReplicas(ctx context.Context, job *schema.Job, backend cuda.Backend, lr *state.LRChanges,
	late bool) (*replicas, error) {
	r := &replicas{specs: job.Tables, tables: make([]*state.Array, len(job.Tables)),
		locks: make([]sync.Mutex, len(job.Tables))}
	for i := range job.Tables {
		spec := &job.Tables[i]
		if !spec.Replicated {
			continue
		}
		t, err := state.NewArray(ctx, state.ArrayConfig{
			Backend: backend, Spec: spec, Optimizer: job.OptimizerOf(schema.Table(i)), LR: lr, Seed: job.Seed,
			Here: func(schema.Partition) bool { return true }, Columns: spec.Dim, Start: job.StartVersion(), Late: late})
		if err != nil {
			r.close()
			return nil, fmt.Errorf("table %q: %w", spec.Name, err)
		}
		r.tables[i] = t
	}
	return r, nil
}

// stored returns the tables that are stored here, in their order.
func (r *replicas) stored() (all []*state.Array) {
	for _, t := range r.tables {
		if t != nil {
			all = append(all, t)
		}
	}
	return all
}

func (r *replicas) close() {
	for _, t := range r.stored() {
		t.Close()
	}
	r.tables = nil
}

// applyRows applies mean gradients of a replicated table's rows, times scale, in a round that commit ends.
func (r *replicas) applyRows(t schema.Table, keys []uint64, means []float32, scale float32) error {
	r.locks[t].Lock()
	defer r.locks[t].Unlock()
	if err := r.tables[t].Apply(state.RowGradient{Keys: keys, Sums: cuda.Float32s(means), Weight: 1, Scale: scale}); err !=
		nil {
		return fmt.Errorf("apply %d rows of table %d: %w", len(keys), t, err)
	}
	return nil
}

// replicated returns for each table whether it is stored here.
func (r *replicas) replicated() []bool {
	is := make([]bool, len(r.tables))
	for i, t := range r.tables {
		is[i] = t != nil
	}
	return is
}

// commit makes the applied rows part of the current version, when the batch is complete. weight is the number of
// samples of all trainers.
func (r *replicas) commit(weight float64) {
	for i, t := range r.tables {
		if t == nil {
			continue
		}
		r.locks[i].Lock()
		if weight > 0 {
			t.Step()
		}
		t.Commit()
		r.locks[i].Unlock()
	}
}

// fill copies the rows of the distinct keys of replicated tables to the place of looked-up rows.
func (r *replicas) fill(to *tables) error {
	for i, t := range r.tables {
		if t == nil {
			continue
		}
		r.locks[i].Lock()
		err := t.Gather(to.keys[i], to.rows[i])
		r.locks[i].Unlock()
		if err != nil {
			return fmt.Errorf("read %d rows of table %q: %w", len(to.keys[i]), r.specs[i].Name, err)
		}
	}
	return nil
}

// lockedTable is a table that is locked for each step of a scan, since other goroutines use it.
type lockedTable struct {
	*state.Array
	lock *sync.Mutex
}

// Scan implements state.Table.
func (t lockedTable) Scan(p schema.Partition, cursor uint64, keys []uint64, rows []float32) error {
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.Array.Scan(p, cursor, keys, rows)
}

// scan calls yield with all rows of a table, as Session.Table does, valuesMax values at a time.
func (r *replicas) scan(t schema.Table, valuesMax int, yield func(p schema.Partition, keys []uint64,
	rows []float32) error) error {
	return r.scanner.Scan(lockedTable{r.tables[t], &r.locks[t]}, &r.specs[t], valuesMax, yield)
}
