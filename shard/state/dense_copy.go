package state

import (
	"fmt"

	"gradbus/schema"
)

// DenseCopy copies a version of every chunk while later ones are made. A chunk keeps the version before its newest, so
// only the step after the next one has to wait, for the copy of its own chunk. Its user must be allowed to step.
type DenseCopy struct {
	dense   *Dense
	version schema.Version
	at      []schema.Version  // [chunks] which of its own is copied
	steps   map[string]uint64 // by parameter, where chunks may have had different ones; else nil
	next    int               // chunks before it are copied
	wanted  []bool            // [chunks]
	touched []bool            // [chunks] may have changed since the earlier version
	early   map[int][]Tensor
	bytes   int64 // of early
}

// Copy begins to copy version v of chunks: of all of them, or of those that may have changed since an earlier version
// that was copied. Each must have it; one copy at a time. It is ErrVersion where one does not.
func (d *Dense) Copy(v, since schema.Version, all bool) (*DenseCopy, error) {
	for i := range d.chunks {
		if err := d.has(i, v); err != nil {
			return nil, fmt.Errorf("copy dense parameters: %w", err)
		}
	}
	c := &DenseCopy{dense: d, version: v, early: map[int][]Tensor{}}
	less := d.intervals.room()
	for i := range d.chunks {
		d.chunks[i].touched -= min(d.chunks[i].touched, less)
	}
	from := d.intervals.since(since)
	for i := range d.chunks {
		touched := d.chunks[i].touched >= from || d.chunks[i].version != v
		c.touched, c.wanted, c.at = append(c.touched, touched), append(c.wanted, all || touched), append(c.at, v)
	}
	d.begun(v)
	d.copying = c
	return c, nil
}

// copyNow begins to copy each chunk as it is, where they are at no common version. Pieces have the number v as theirs,
// and as many steps as any of their parameter's here.
func (d *Dense) copyNow(v schema.Version) *DenseCopy {
	c := &DenseCopy{dense: d, version: v, early: map[int][]Tensor{}, steps: map[string]uint64{}}
	for i := range d.chunks {
		at := d.chunks[i].version
		c.touched, c.wanted, c.at = append(c.touched, true), append(c.wanted, true), append(c.at, at)
		for _, p := range d.config.Chunks[i].Pieces {
			c.steps[p.Name] = max(c.steps[p.Name], d.chunks[i].steps[at%2])
		}
	}
	d.copying = c
	return c
}

// begun begins the next interval, with version v. Chunks that are at a later one have changed in it.
func (d *Dense) begun(v schema.Version) {
	d.intervals.mark(v)
	for i := range d.chunks {
		if d.chunks[i].version != v {
			d.chunks[i].touched = d.intervals.now
		}
	}
}

// Touched is what may have changed since the earlier version, piece by piece, and what that takes in bytes.
func (c *DenseCopy) Touched() (all []Stretch, bytes int64) {
	for i, touched := range c.touched {
		for _, p := range c.dense.config.Chunks[i].Pieces {
			if touched {
				all = append(all, Stretch{Name: p.Name, From: p.From, Elements: p.Elements})
				bytes += int64(p.Elements*(1+c.dense.chunks[i].slotCount())) * valueBytes
			}
		}
	}
	return all, bytes
}

// slotCount is how many values the optimizer keeps for each of the chunk's.
func (c *denseChunk) slotCount() int {
	if c.rule == nil {
		return 0
	}
	return len(c.rule.slots)
}

// keeps reports whether every chunk keeps a version.
func (d *Dense) keeps(v schema.Version) bool {
	for i := range d.chunks {
		if d.has(i, v) != nil {
			return false
		}
	}
	return true
}

// has says whether a chunk keeps a version.
func (d *Dense) has(i int, v schema.Version) error {
	if c := &d.chunks[i]; v != c.version && (d.config.InPlace || v+1 != c.version || v < c.first) {
		return fmt.Errorf("version %d of chunk %d, which is at %d: %w", v, i, c.version, ErrVersion)
	}
	return nil
}

// keep copies a chunk whose next step takes the memory of the version that is copied.
func (c *DenseCopy) keep(i int) {
	if c == nil || i < c.next || !c.wanted[i] || c.early[i] != nil ||
		c.dense.chunks[i].version == c.at[i] && !c.dense.config.InPlace {
		return
	}
	tensors := c.chunk(i)
	c.early[i] = tensors
	for _, t := range tensors {
		c.bytes += int64(len(t.Values)*(1+len(t.Slots))) * valueBytes
	}
}

func (c *DenseCopy) chunk(i int) []Tensor {
	all := Cloned(c.dense.Pieces(i, c.at[i]))
	for k := range all {
		if t := &all[k]; c.steps != nil {
			t.Version, t.Steps = c.version, c.steps[t.Name]
		}
	}
	return all
}

// Next gives the pieces of the next chunk, in memory of their own. It is false where none is left.
func (c *DenseCopy) Next() (pieces []Tensor, more bool) {
	for c.next < len(c.dense.chunks) && !c.wanted[c.next] {
		c.next++
	}
	if c.next == len(c.dense.chunks) {
		return nil, false
	}
	pieces, ok := c.early[c.next]
	if !ok {
		pieces = c.chunk(c.next)
	}
	delete(c.early, c.next)
	c.next++
	return pieces, true
}

// Bytes is what chunks took that were copied before their turn.
func (c *DenseCopy) Bytes() int64 { return c.bytes }

// Close ends the copy, whether or not it is whole.
func (c *DenseCopy) Close() {
	if c.dense.copying == c {
		c.dense.copying = nil
	}
}
