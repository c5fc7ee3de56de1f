package state

import (
	"slices"

	"gradbus/schema"
)

// Copy begins to copy the rows of the version that the table is at. One copy at a time.
func (t *Array) Copy() RowsCopy {
	t.copying = &arrayCopy{table: t, version: t.version, steps: t.steps, old: map[int64]int{},
		slots: make([][]float32, len(t.rule.slots))}
	return t.copying
}

// arrayCopy copies places in their order. Before rows at places that it has yet to reach change, their old values go
// into an undo log, from which it takes them.
type arrayCopy struct {
	table   *Array
	version schema.Version
	steps   uint64

	partition schema.Partition // where the next place is, or before it
	next      int              // places before it are copied

	old   map[int64]int // place to index in what follows
	rows  []float32
	slots [][]float32 // [rule.slots]
	last  []int64     // marks, where the table has any
}

// keep saves what is at places that are about to change.
func (c *arrayCopy) keep(places []int64) {
	if c == nil {
		return
	}
	t := c.table
	for _, at := range places {
		if _, kept := c.old[at]; kept || int(at) < c.next {
			continue
		}
		c.old[at] = len(c.old)
		c.rows = append(c.rows, t.row(int(at))...)
		for k, s := range t.rule.slots {
			width := s.width(t.dim)
			c.slots[k] = append(c.slots[k], t.slots[k][int(at)*width:(int(at)+1)*width]...)
		}
		if t.marked() {
			c.last = append(c.last, t.mark(int(at)))
		}
	}
}

// Next implements RowsCopy.
func (c *arrayCopy) Next(valuesMax int) (r Rows, more bool) {
	t := c.table
	for ; int(c.partition) < t.config.Spec.Partitions; c.partition++ {
		first, end := c.next, t.places.first[c.partition+1]
		if first >= end {
			continue
		}
		end = min(end, first+max(1, valuesMax/t.dim))
		r = t.rowsAt(c.partition, first, end)
		r.Version, r.Steps = c.version, c.steps
		r.Values, r.Slots = slices.Clone(r.Values), cloned(r.Slots)
		c.undo(&r, first, end)
		c.next = end
		return r, true
	}
	return Rows{}, false
}

// undo puts old values in the place of what has changed of the rows at [first, end).
func (c *arrayCopy) undo(r *Rows, first, end int) {
	if len(c.old) == 0 {
		return
	}
	t := c.table
	for at := first; at < end; at++ {
		kept, changed := c.old[int64(at)]
		if !changed {
			continue
		}
		copy(r.Values[(at-first)*t.dim:(at-first+1)*t.dim], c.rows[kept*t.dim:])
		for k, s := range t.rule.slots {
			width := s.width(t.dim)
			copy(r.Slots[k].Values[(at-first)*width:(at-first+1)*width], c.slots[k][kept*width:])
		}
		if t.marked() {
			r.Last[at-first] = c.last[kept]
		}
	}
}

// oldEntryBytes is what the undo log takes for a row besides its values: an entry of its index, and growth.
const oldEntryBytes = 64

// Bytes implements RowsCopy.
func (c *arrayCopy) Bytes() int64 {
	values := cap(c.rows)
	for _, s := range c.slots {
		values += cap(s)
	}
	return int64(values)*valueBytes + int64(cap(c.last))*8 + int64(len(c.old))*oldEntryBytes
}

// Close implements RowsCopy.
func (c *arrayCopy) Close() {
	if c.table.copying == c {
		c.table.copying = nil
	}
}

// marked says that rows have marks of their steps.
func (t *Array) marked() bool { return t.last != nil || t.stepped != nil }

// mark is that of the row at a place, of a table that has marks.
func (t *Array) mark(at int) int64 {
	if t.last != nil {
		return t.last[at]
	}
	return int64(t.stepped[at])
}
