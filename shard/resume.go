package shard

import (
	"context"
	"errors"
	"fmt"

	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// ErrResume says that a version could not be read, or is not one. The number follows, and why.
var ErrResume = errors.New("resume at version")

// Resumed is a version of a job, with what its optimizers kept, that shards begin with. Read gives all pieces of it, of
// all shards that there were, to each; its error ends it and is returned.
type Resumed struct {
	Version schema.Version // 1 or later
	Read    func(tensor func(state.Tensor) error, rows func(state.Rows) error) error

	tables []state.Table // that are at the version: Read gives no rows; nil: it does
	lr     *state.LRChanges
}

// resume puts a version in the place of what was drawn, as the outcome of the batch before it.
func (s *Shard) resume(ctx context.Context, from *Resumed) error {
	var dense *state.DenseRestore
	var tables []state.RowsRestore
	owned, replicated, err := s.resumable(ctx, from.Version)
	if err != nil {
		return fmt.Errorf("resume at version %d: %w", from.Version, err)
	}
	if owned != nil {
		dense = owned.Restore()
	}
	for _, t := range replicated {
		if t != nil {
			tables = append(tables, t.Restore())
		}
	}
	for _, t := range s.tables {
		if t != nil && from.tables == nil {
			tables = append(tables, t.Restore())
		}
	}
	err = from.Read(func(t state.Tensor) error {
		if dense == nil {
			return nil
		}
		return dense.Tensor(t)
	}, func(r state.Rows) error {
		for _, t := range tables {
			if err := t.Rows(r); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil && dense != nil {
		err = dense.Done()
	}
	for _, t := range tables {
		if err == nil {
			err = t.Done()
		}
	}
	if err == nil {
		err = s.checkResumed(from.Version)
	}
	if err != nil {
		return fmt.Errorf("%w %d: %w", ErrResume, from.Version, err)
	}
	s.sealResumed(from.Version)
	return nil
}

// checkResumed checks that all that is here is of one version.
func (s *Shard) checkResumed(v schema.Version) error {
	wrong := func(id int, at schema.Version) error {
		return fmt.Errorf("table %q: %w: it is of version %d", s.config.Job.Tables[id].Name, state.ErrSnapshot, at)
	}
	for id, t := range s.tables {
		if t != nil && t.Version() != v {
			return wrong(id, t.Version())
		}
	}
	for id, t := range s.replica.tables {
		if t != nil && t.Version() != v {
			return wrong(id, t.Version())
		}
	}
	if s.dense == nil {
		return nil
	}
	for i := range s.clock.Line(0).Dense.Chunks() {
		if at := s.dense.Version(i); at != v {
			return fmt.Errorf("chunk %d: %w: it is of version %d", i, state.ErrSnapshot, at)
		}
	}
	return nil
}

// sealResumed gives every chunk of the version the head of a result, so that trainers can ask for it.
func (s *Shard) sealResumed(v schema.Version) {
	l := s.clock.Line(0)
	s.newest = l.Done()
	if s.dense == nil {
		return
	}
	for i := range l.Dense.Chunks() {
		s.clock.Results(v).Seal(i, v, schema.Head{Batch: schema.Batch(v) - 1, Weight: round.ResumedWeight, Node: l.Node})
	}
}
