package checkpoint

import (
	"errors"
	"fmt"
	"slices"

	"gradbus/schema"
)

// Base is the checkpoint that an increment has its changes since. It is of the same run, of an earlier version.
type Base struct {
	ID       ID     `json:"id"`
	Checksum uint32 `json:"crc32c"` // of all of its complete.json
}

// check says whether an increment of a run can have such a base.
func (b *Base) check(of ID) error {
	if b.ID.Epoch != of.Epoch || b.ID.Run != of.Run || b.ID.Version >= of.Version || b.ID.Version == 0 {
		return fmt.Errorf("base %s of checkpoint %s: want an earlier version of the same run", b.ID, of)
	}
	return nil
}

// Chain is what is read of the checkpoint: a full one, and the increments over it up to this one, oldest first.
func (m *Manifest) Chain() (all []*Manifest) {
	for at := m; at != nil; at = at.base {
		all = append(all, at)
	}
	slices.Reverse(all)
	return all
}

// Full is whether it is read without another.
func (m *Manifest) Full() bool { return m.Base == nil }

// onBase opens the base of an increment that is to be complete.
func (m *Manifest) onBase(dir string) error {
	if m.Base == nil {
		return nil
	}
	base, err := Open(dir, m.Job.Name, m.Base.ID)
	if err != nil {
		return fmt.Errorf("its base: %w", err)
	}
	m.Base.Checksum = base.sum
	if err := m.checkBase(base); err != nil {
		return err
	}
	m.base = base
	return nil
}

// checkBase compares an increment with the base that was opened for it.
func (m *Manifest) checkBase(base *Manifest) error {
	digest, err := digestOf(m.Job)
	if err != nil {
		return err
	}
	of, err := digestOf(base.Job)
	switch {
	case err != nil:
		return err
	case base.sum != m.Base.Checksum:
		return fmt.Errorf("%w: its base %s has a manifest with checksum %08x, want %08x", ErrDamaged, base.ID, base.sum,
			m.Base.Checksum)
	case base.Shards != m.Shards || digest != of:
		return fmt.Errorf("%w: its base %s is of another job, or of %d shards: want %d", ErrDamaged, base.ID, base.Shards,
			m.Shards)
	}
	return nil
}

// opener opens checkpoints of a job, each once.
type opener struct {
	dir  string
	job  schema.JobName
	seen map[ID]opened
}

type opened struct {
	manifest *Manifest
	err      error
}

func newOpener(dir string, job schema.JobName) *opener { return &opener{dir, job, map[ID]opened{}} }

// open is Open.
func (o *opener) open(id ID) (*Manifest, error) {
	if was, ok := o.seen[id]; ok {
		return was.manifest, was.err
	}
	m, err := openAlone(o.dir, o.job, id)
	if err == nil && m.Base != nil {
		err = o.openBase(m)
	}
	if err != nil {
		m, err = nil, fmt.Errorf("checkpoint %s of job %s: %w", id, o.job, err)
	}
	o.seen[id] = opened{m, err}
	return m, err
}

// openBase opens the base of an increment. An increment whose base is gone is damaged.
func (o *opener) openBase(m *Manifest) error {
	base, err := o.open(m.Base.ID) // of an earlier version, so this ends
	if errors.Is(err, ErrIncomplete) {
		return fmt.Errorf("%w: its base: %v", ErrDamaged, err)
	}
	if err != nil {
		return fmt.Errorf("its base: %w", err)
	}
	if err := m.checkBase(base); err != nil {
		return err
	}
	m.base = base
	return nil
}
