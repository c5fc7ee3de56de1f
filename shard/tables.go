package shard

import (
	"context"
	"fmt"

	"gradbus/schema"
	"gradbus/shard/state"
)

// makeTables lays out every table's partitions that are here and draws their initial rows.
func (s *Shard) makeTables(ctx context.Context) error {
	if r := s.config.Resumed; r != nil && r.tables != nil {
		s.tables, s.lr = r.tables, r.lr
		return nil
	}
	s.tables = make([]state.Table, len(s.config.Job.Tables))
	for i := range s.config.Job.Tables {
		if err := s.makeTable(ctx, schema.Table(i), &s.config.Job.Tables[i]); err != nil {
			return fmt.Errorf("table %q: %w", s.config.Job.Tables[i].Name, err)
		}
	}
	return nil
}

// makeTable leaves out tables that have no column here, those whose rows are the trainers', and, where a trainer adds
// up, those whose rows are on shards.
func (s *Shard) makeTable(ctx context.Context, id schema.Table, spec *schema.TableSpec) error {
	column, columns := s.config.Placement.Columns(id, s.config.Index)
	if columns == 0 || spec.Replicated || s.config.Placement.PartyOf(s.config.Index) == schema.ByTrainers {
		return nil
	}
	t, err := state.NewArray(ctx, state.ArrayConfig{
		Backend: s.config.Backend, Spec: spec, Optimizer: s.config.Job.OptimizerOf(id), LR: s.lr, Seed: s.config.Job.Seed,
		Here:   func(p schema.Partition) bool { return s.config.Placement.Holds(id, p, s.config.Index) },
		Column: column, Columns: columns, Start: s.config.Job.StartVersion(),
		Undo: s.config.Undo, Touches: s.config.Touches, Late: s.config.Resumed != nil})
	if err == nil {
		s.tables[id] = t
	}
	return err
}

// endRound makes what a round has done to all tables the version of the next batch, or undoes it.
func (s *Shard) endRound(commit bool) {
	for _, t := range s.tables {
		switch {
		case t == nil:
		case commit:
			t.Commit()
		default:
			t.Rollback()
		}
	}
}
