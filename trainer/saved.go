package trainer

import (
	"context"
	"errors"
	"fmt"

	"gradbus/checkpoint"
	"gradbus/schema"
	"gradbus/shard/state"
)

// Where every trainer has all of the job (schema.Job.Carried), its versions are in folders of trainers
// (Config.Checkpoints). Who joins says which one it has there, if the job is to be resumed, or was lost. The
// coordinator decides from which one the job goes on. Who has it reads it then, and the others get it from these.

// saved is what the joins of one trainer know of its folder.
type saved struct {
	manifest *checkpoint.Manifest // what was offered last; nil: nothing
	verified bool                 // its values were read before it was offered
	doubt    bool                 // it could not be read, so the next one is verified before it is offered
}

// offer is the version in the folder that a job may begin with; nil where there is none, or the job is to begin anew.
func (c *Config) offer(ctx context.Context, job *schema.Job) (*schema.Saved, error) {
	dir, byHand := c.Checkpoints.Dir, c.byHand()
	c.saved.manifest = nil
	if dir == "" || c.carried != nil && c.carried.held != nil {
		return nil, nil
	}
	lost, err := checkpoint.Running(dir, job.Name)
	if err == nil && len(lost.Runs) == 0 && !byHand {
		return nil, nil
	}
	since := lost.Since
	if byHand {
		since = 0
	}
	c.saved.verified = byHand || c.saved.doubt
	var m *checkpoint.Manifest
	switch {
	case err != nil:
	case c.saved.verified:
		m, err = c.newest(ctx, job, since)
	default:
		m, err = checkpoint.Latest(dir, job, since)
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, checkpoint.ErrNone):
		return nil, nil // another one may have it
	case err != nil && (c.rejoin != 0 || errors.Is(err, checkpoint.ErrOther) && !byHand):
		c.Log.Warn("what is in the folder is of no use to the job", "job", job.Name, "err", err)
		return nil, nil
	case err != nil: // a job that begins anew would take the place of what is there
		return nil, fmt.Errorf("%w: checkpoint_dir %s: %w", ErrConfig, dir, err)
	}
	c.saved.manifest = m
	return &schema.Saved{Run: m.ID.Run, Version: m.ID.Version, CreatedMS: m.Created.UnixMilli(),
		Lost: len(lost.Runs) > 0}, nil
}

// byHand reports that somebody has asked for the newest version.
func (c *Config) byHand() bool { return c.Resume && c.rejoin == 0 }

// newest reads and verifies.
func (c *Config) newest(ctx context.Context, job *schema.Job, since uint64) (*checkpoint.Manifest, error) {
	m, skipped, err := checkpoint.Newest(ctx, c.Checkpoints.Dir, job, since)
	for _, damaged := range skipped {
		c.Log.Error("checkpoint is damaged, the one before it is taken", "job", job.Name, "err", damaged)
	}
	return m, err
}

// has reports whether the folder has a version that was offered.
func (f *saved) has(v schema.Version) bool { return f.manifest != nil && f.manifest.ID.Version == v }

// putSaved puts the version that was offered in the place of what was drawn. Where it is damaged, another join offers
// the one before.
func (s *membership) putSaved(f *saved) error {
	dir := s.config.Checkpoints.Dir
	var err error
	if !f.verified {
		err = f.manifest.Verify(dir)
	}
	if err == nil {
		err = s.restore(true, func(tensor func(state.Tensor) error, rows func(state.Rows) error) error {
			return f.manifest.Read(dir, tensor, rows)
		})
	}
	if err != nil {
		f.doubt = true
		return fmt.Errorf("%w: %w", ErrNoParameters, err)
	}
	s.config.Log.Info("read the job from a checkpoint", "job", s.job.Name, "member", s.joined.Member, "checkpoint",
		f.manifest.ID.String())
	return nil
}

// restore puts a version, of which read gives all pieces, in the place of what was drawn. withTables says that tables
// are part of it.
func (s *membership) restore(withTables bool, read func(tensor func(state.Tensor) error,
	rows func(state.Rows) error) error) error {
	dense, tables := s.compute.params.state.Restore(), map[string]state.RowsRestore{}
	for i, t := range s.replicas.tables {
		if t != nil && withTables {
			tables[s.replicas.specs[i].Name] = t.Restore()
		}
	}
	err := read(dense.Tensor, func(r state.Rows) error {
		t := tables[r.Table]
		if t == nil {
			return fmt.Errorf("%w: rows of table %q, which no trainer has", state.ErrSnapshot, r.Table)
		}
		return t.Rows(r)
	})
	if err == nil {
		err = dense.Done()
	}
	for _, spec := range s.replicas.specs {
		if t := tables[spec.Name]; t != nil && err == nil {
			err = t.Done()
		}
	}
	return err
}
