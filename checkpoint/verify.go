package checkpoint

import (
	"context"
	"fmt"

	"gradbus/schema"
)

// Verify reads every byte of every part, also of its bases, and compares sizes, checksums, tensors and steps with what
// they must be. It is ErrDamaged where one differs.
func (m *Manifest) Verify(dir string) error { return NewVerifier(context.Background(), dir).Verify(m) }

// Verifier verifies checkpoints of a folder, each file once, also if it is the base of many. It is to be used for a
// short time: what it has read is not read again.
type Verifier struct {
	ctx  context.Context
	dir  string
	seen map[verified]error
}

type verified struct {
	job schema.JobName
	id  ID
}

// NewVerifier makes one that has read nothing. It reads no further when ctx ends: Verify fails with its error then.
func NewVerifier(ctx context.Context, dir string) *Verifier {
	return &Verifier{ctx, dir, map[verified]error{}}
}

// Verify is Manifest.Verify.
func (v *Verifier) Verify(m *Manifest) error {
	for _, link := range m.Chain() {
		key := verified{m.Job.Name, link.ID}
		err, known := v.seen[key]
		if !known {
			err = link.verify(v.ctx, v.dir)
			v.seen[key] = err
		}
		switch {
		case err != nil && link != m:
			return fmt.Errorf("verify checkpoint %s of job %s: its base %s: %w", m.ID, m.Job.Name, link.ID, err)
		case err != nil:
			return fmt.Errorf("verify checkpoint %s of job %s: %w", m.ID, m.Job.Name, err)
		}
	}
	return nil
}

func (m *Manifest) verify(ctx context.Context, dir string) error {
	if err := m.check(); err != nil {
		return err
	}
	for i, want := range m.Parts {
		path := partPath(dir, m.Job.Name, m.ID, i)
		length, sum, err := checksum(ctx, dir, path)
		switch {
		case err != nil:
			return judged(err)
		case length != want.Bytes:
			return fmt.Errorf("%s: %w: %d bytes, want %d", path, ErrDamaged, length, want.Bytes)
		case sum != want.Checksum:
			return fmt.Errorf("%s: %w: checksum %08x, want %08x", path, ErrDamaged, sum, want.Checksum)
		}
	}
	return m.eachPart(dir, func(int, *partFile) error { return nil })
}

// eachPart opens the part of one shard after the other, without its bases. All parts of a tensor must have had equally
// many steps, unless the checkpoint is fuzzy.
func (m *Manifest) eachPart(dir string, use func(shard int, p *partFile) error) error {
	place, steps := placementOf(m.Job, m.Shards), agreement{}
	for shard := range m.Parts {
		p, err := m.openPart(dir, newLayout(m.Job, place, shard), shard)
		if err != nil {
			return err
		}
		if !m.Job.Moments() {
			err = steps.agree(shard, p.steps)
		}
		if err == nil {
			err = use(shard, p)
		}
		p.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// agreement is how many steps tensors have had, and the part that has said so first.
type agreement map[string]struct {
	shard int
	steps uint64
}

func (a agreement) agree(shard int, steps map[string]uint64) error {
	for name, n := range steps {
		first, ok := a[name]
		if !ok {
			first.shard, first.steps = shard, n
			a[name] = first
		}
		if n != first.steps {
			return fmt.Errorf("%w: part %d has %s after %d steps, and part %d after %d", ErrDamaged, shard, name, n,
				first.shard, first.steps)
		}
	}
	return nil
}
