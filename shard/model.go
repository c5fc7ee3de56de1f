package shard

import (
	"context"
	"fmt"

	"gradbus/cuda"
	"gradbus/schema"
	"gradbus/shard/state"
)

// model is the part of a job's model that a shard owns.
type model struct {
	dense  *state.Dense // nil if trainers own the parameters
	tables []state.Table
	specs  []schema.TableSpec // by table; nil for tables without a column on this shard
	lr     *state.LRChanges
}

// SetLR sets all changes of the learning rates. Call it before a frame of the first batch of a new change is stepped.
func (m *model) SetLR(changes []schema.LRChange) { m.lr.Set(changes) }

// close frees the memory of the tables.
func (m *model) close() {
	for _, t := range m.tables {
		if t != nil {
			t.Close()
		}
	}
	m.dense.Close()
	m.tables, m.dense = nil, nil
}

// makeTables lays out the partitions of every table that lie on this shard, and draws their initial rows.
func (m *model) makeTables(ctx context.Context, c *Config) error {
	m.specs = c.Job.Tables
	if r := c.Resumed; r != nil && r.tables != nil {
		m.tables, m.lr = r.tables, r.lr
		return nil
	}
	m.tables = make([]state.Table, len(m.specs))
	for i := range m.specs {
		if err := m.makeTable(ctx, c, schema.Table(i)); err != nil {
			return fmt.Errorf("table %q: %w", m.specs[i].Name, err)
		}
	}
	return nil
}

// makeTable makes one table. It skips tables without a column on this shard, tables whose rows trainers own, and, in a
// trainer that reduces, tables whose rows shards own.
func (m *model) makeTable(ctx context.Context, c *Config, id schema.Table) error {
	spec := &m.specs[id]
	column, columns := c.Placement.Columns(id, c.Index)
	if columns == 0 || spec.Replicated || c.Placement.PartyOf(c.Index) == schema.ByTrainers {
		return nil
	}
	t, err := state.NewArray(ctx, state.ArrayConfig{
		Backend: c.Backend, Spec: spec, Optimizer: c.Job.OptimizerOf(id), LR: m.lr, Seed: c.Job.Seed,
		Here:   func(p schema.Partition) bool { return c.Placement.Holds(id, p, c.Index) },
		Column: column, Columns: columns, Start: c.Job.StartVersion(),
		Undo: c.Undo, Touches: c.Touches, Late: c.Resumed != nil})
	if err == nil {
		m.tables[id] = t
	}
	return err
}

// endRound commits the changes of a round in all tables, or rolls them back.
func (m *model) endRound(commit bool) {
	for _, t := range m.tables {
		switch {
		case t == nil:
		case commit:
			t.Commit()
		default:
			t.Rollback()
		}
	}
}

// readPrevious calls read while all rows are at the previous version.
func (m *model) readPrevious(read func() error) error {
	for _, t := range m.tables {
		if t == nil {
			continue
		}
		inner := read
		read = func() error { return t.ReadPrevious(inner) }
	}
	return read()
}

// readRows copies rows, and pooled rows of bags, into a frame that answers a lookup.
func (m *model) readRows(v *schema.View, f *schema.Frame) error {
	sections, keys, out := f.Sections(), f.Keys(), f.Float32s()
	copy(sections, v.Sections())
	copy(f.Bags(), v.Bags())
	for i, part := range v.Parts() {
		t := m.tables[part.Table] // nil only if the part has no keys
		if part.Bags > 0 {
			sections[i].Count = 0
			if err := m.pool(t, &part, out[:part.Bags*part.Dim]); err != nil {
				return err
			}
			out = out[part.Bags*part.Dim:]
			continue
		}
		keys = keys[copy(keys, part.Keys):]
		if n := len(part.Keys) * part.Dim; n > 0 {
			if err := t.Gather(part.Keys, out[:n]); err != nil {
				return fmt.Errorf("read %d rows of table %q: %w", len(part.Keys), m.specs[part.Table].Name, err)
			}
			out = out[n:]
		}
	}
	return nil
}

// pool writes one pooled row for each bag of a part: the sum over its keys in order of position, or their mean.
func (m *model) pool(t state.Table, part *schema.Part, out []float32) error {
	spec, mode := &m.specs[part.Table], cuda.Sum
	if spec.Mean() {
		mode = cuda.Mean
	}
	if err := t.Pool(state.Bags{Mode: mode, Keys: part.Keys, Offsets: part.Offsets}, out); err != nil {
		return fmt.Errorf("pool %d bags of table %q: %w", part.Bags, spec.Name, err)
	}
	return nil
}
