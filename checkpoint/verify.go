package checkpoint

import (
	"fmt"

	"gradbus/schema"
)

// Verify reads every byte of every part, and compares sizes, checksums, tensors and steps with what they must be. It is
// ErrDamaged where one differs.
func (m *Manifest) Verify(dir string) error {
	if err := m.verify(dir); err != nil {
		return fmt.Errorf("verify checkpoint %s of job %s: %w", m.ID, m.Job.Name, err)
	}
	return nil
}

func (m *Manifest) verify(dir string) error {
	if err := m.check(); err != nil {
		return err
	}
	for i, want := range m.Parts {
		path := partPath(dir, m.Job.Name, m.ID, i)
		length, sum, err := checksum(path)
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

// eachPart opens one part after the other. All of a tensor's parts must have had as many steps.
func (m *Manifest) eachPart(dir string, use func(shard int, p *partFile) error) error {
	place := schema.NewPlacement(m.Job, m.Shards)
	steps, first := map[string]uint64{}, map[string]int{}
	for shard := range m.Parts {
		p, err := m.openPart(dir, place, shard)
		if err != nil {
			return err
		}
		for name, n := range p.steps {
			if other, ok := first[name]; !ok {
				first[name], steps[name] = shard, n
			} else if n != steps[name] {
				err = fmt.Errorf("%w: part %d has %s after %d steps, and part %d after %d", ErrDamaged, shard, name, n, other,
					steps[name])
			}
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
