package state

import (
	"fmt"
	"slices"

	"gradbus/schema"
)

// Snapshot gives yield every piece of every chunk at version v, which may be a chunk's newest, or the one before unless
// slots are kept in place; with Newest each chunk is at its own. What a Tensor holds is valid until yield returns,
// whose error ends the snapshot and is returned. It is ErrVersion where a chunk does not keep v.
func (d *Dense) Snapshot(v schema.Version, yield func(Tensor) error) error {
	for i := range d.chunks {
		if err := d.has(i, v); v != Newest && err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
	}
	for i := range d.chunks {
		at := v
		if v == Newest {
			at = d.chunks[i].version
		}
		for p := range d.config.Chunks[i].Pieces {
			if err := yield(d.piece(i, p, at)); err != nil {
				return err
			}
		}
	}
	return nil
}

// piece is a piece of a chunk at a version that is there.
func (d *Dense) piece(i, piece int, v schema.Version) Tensor {
	c, p := &d.chunks[i], &d.config.Chunks[i].Pieces[piece]
	t := Tensor{Name: p.Name, From: p.From, Values: d.config.Values(i, v)[p.Offset : p.Offset+p.Elements], Version: v,
		Steps: c.steps[v%2]}
	if c.rule != nil {
		for s, kept := range c.keptAt(v) {
			t.Slots = append(t.Slots, Slot{c.rule.slots[s].name, kept[p.Offset : p.Offset+p.Elements]})
		}
	}
	return t
}

// Pieces are those of a chunk at a version that is there, in the memory of the owner.
func (d *Dense) Pieces(i int, v schema.Version) (all []Tensor) {
	for p := range d.config.Chunks[i].Pieces {
		all = append(all, d.piece(i, p, v))
	}
	return all
}

// keptAt is the slots of a version.
func (c *denseChunk) keptAt(v schema.Version) [][]float32 {
	return c.kept[v%schema.Version(len(c.kept))]
}

// DenseRestore puts a snapshot in the place of what a Dense has.
type DenseRestore struct {
	dense *Dense
	there [][]span // [chunk] what has been restored
}

type span struct{ lo, hi int }

// Restore begins a restore. Until its Done has returned nil the Dense must not be used otherwise.
func (d *Dense) Restore() *DenseRestore {
	d.intervals = intervals{}
	for i := range d.chunks {
		d.chunks[i].touched = 0
	}
	return &DenseRestore{dense: d, there: make([][]span, len(d.chunks))}
}

// Tensor restores what of a tensor is here.
func (r *DenseRestore) Tensor(t Tensor) error {
	for i := range r.dense.chunks {
		for k := range r.dense.config.Chunks[i].Pieces {
			p := &r.dense.config.Chunks[i].Pieces[k]
			lo, hi := max(p.From, t.From), min(p.From+p.Elements, t.From+len(t.Values))
			if p.Name != t.Name || lo >= hi {
				continue
			}
			if err := r.put(i, &t, span{lo - t.From, hi - t.From}, lo-p.From+p.Offset); err != nil {
				return fmt.Errorf("restore elements %d to %d of parameter %q: %w", lo, hi-1, t.Name, err)
			}
		}
	}
	return nil
}

// put restores elements of a tensor to a place of a chunk.
func (r *DenseRestore) put(i int, t *Tensor, from span, to int) error {
	c := &r.dense.chunks[i]
	if len(r.there[i]) == 0 {
		c.version, c.first = t.Version, t.Version
		c.steps[t.Version%2], c.beyond = t.Steps, beyond(t.Version, t.Steps)
	}
	if c.version != t.Version || c.steps[t.Version%2] != t.Steps {
		return fmt.Errorf("%w: version %d after %d steps, and others of its chunk are of %d after %d: a chunk is of one",
			ErrSnapshot, t.Version, t.Steps, c.version, c.steps[c.version%2])
	}
	if c.rule != nil {
		if err := c.rule.checkSlots(t.Slots, func(slotShape) int { return len(t.Values) }); err != nil {
			return err
		}
		for s, kept := range c.keptAt(c.version) {
			copy(kept[to:], t.Slots[s].Values[from.lo:from.hi])
		}
	}
	copy(r.dense.config.Values(i, c.version)[to:], t.Values[from.lo:from.hi])
	r.there[i] = append(r.there[i], span{to, to + from.hi - from.lo})
	return nil
}

// Done says whether every value was restored, once.
func (r *DenseRestore) Done() error {
	for i, there := range r.there {
		slices.SortFunc(there, func(a, b span) int { return a.lo - b.lo })
		n := 0
		for k, s := range there {
			if k > 0 && s.lo < there[k-1].hi {
				return fmt.Errorf("restore chunk %d: %w: values from %d on came twice", i, ErrSnapshot, s.lo)
			}
			n += s.hi - s.lo
		}
		for _, p := range r.dense.config.Chunks[i].Pieces {
			n -= p.Elements
		}
		if n != 0 {
			return fmt.Errorf("restore chunk %d: %w: %d values are missing", i, ErrSnapshot, -n)
		}
	}
	return nil
}
