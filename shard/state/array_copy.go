package state

import (
	"slices"

	"gradbus/internal/planted"
	"gradbus/schema"
)

// Copy begins to copy rows of the version that the table is at. One copy at a time.
func (t *Array) Copy(since schema.Version, all bool) RowsCopy {
	c := t.copyAll()
	c.all = all
	if planted.Is(planted.CopyLaterRows) {
		t.copying = nil
	}
	c.touched = int64(t.places.count())
	if n := &t.touched; n.at != nil {
		n.room()
		c.since, c.until = n.since(since), n.now
		c.touched = n.rowsSince(c.since)
		n.mark(t.version)
	}
	return c
}

// copyAll begins to copy all rows.
func (t *Array) copyAll() *arrayCopy {
	t.copying = &arrayCopy{table: t, version: t.version, steps: t.steps, all: true, old: map[int64]int{}}
	each := t.dim
	for _, s := range t.rule.slots {
		each += s.width(t.dim)
	}
	t.copying.undo = newUndoLog(each, t.places.count())
	return t.copying
}

// arrayCopy copies places in their order. Before rows at places that it has yet to reach change, their old values go
// into an undo log, from which it takes them.
type arrayCopy struct {
	table   *Array
	version schema.Version
	steps   uint64

	all          bool // rows; else those that have changed in intervals from since to until
	since, until uint8
	touched      int64 // rows that have, at the start

	partition schema.Partition // where the next place is, or before it
	next      int              // places before it are copied

	old  map[int64]int // place to number of its record
	undo undoLog
}

// keep saves what is at places that are about to change.
func (c *arrayCopy) keep(places []int64) {
	if c == nil {
		return
	}
	t := c.table
	for _, at := range places {
		if _, kept := c.old[at]; kept || int(at) < c.next || !c.all && !c.wants(at) {
			continue
		}
		mark := int64(0)
		if t.marked() {
			mark = t.mark(int(at))
		}
		c.old[at] = len(c.old)
		record := c.undo.add(mark)
		done := copy(record, t.row(int(at)))
		for k, s := range t.rule.slots {
			width := s.width(t.dim)
			done += copy(record[done:], t.slots[k][int(at)*width:(int(at)+1)*width])
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
		if !c.all {
			return c.nextTouched(first, end, max(1, valuesMax/c.undo.each)), true
		}
		c.next = min(end, first+max(1, valuesMax/c.undo.each))
		return c.rowsAt(c.partition, first, c.next), true
	}
	return Rows{}, false
}

// Stretch implements RowsCopy.
func (c *arrayCopy) Stretch(p schema.Partition, cursor uint64, valuesMax int) Rows {
	first, end := c.table.places.from(p, cursor)
	return c.rowsAt(p, first, min(end, first+c.table.stretchRows(valuesMax)))
}

// rowsAt is the rows at places [first, end) as they were.
func (c *arrayCopy) rowsAt(p schema.Partition, first, end int) Rows {
	r := c.table.rowsAt(p, first, end)
	r.Version, r.Steps = c.version, c.steps
	r.Values, r.Slots = slices.Clone(r.Values), cloned(r.Slots)
	for at := first; at < end && len(c.old) > 0; at++ {
		c.restore(&r, at-first, int64(at))
	}
	return r
}

// scanMax is how many rows are looked at for a piece, at most: some 50 us.
const scanMax = 1 << 16

// nextTouched gives the first rows, up to so many, of those at places [first, end) that were touched.
func (c *arrayCopy) nextTouched(first, end, rows int) Rows {
	t := c.table
	end = min(end, first+scanMax)
	places := make([]int64, 0, min(rows, end-first, 256))
	at := first
	for ; at < end && len(places) < rows; at++ {
		if c.wants(int64(at)) {
			places = append(places, int64(at))
		}
	}
	c.next = at
	t.want(places)
	r := t.piece(c.partition, len(places))
	r.Version, r.Steps = c.version, c.steps
	r.Values = make([]float32, 0, len(places)*t.dim)
	for _, s := range t.rule.slots {
		r.Slots = append(r.Slots, Slot{s.name, make([]float32, 0, len(places)*s.width(t.dim))})
	}
	for i, at := range places {
		t.places.list(c.partition, int(at), r.Keys[i:i+1])
		r.Values = append(r.Values, t.row(int(at))...)
		for k, s := range t.rule.slots {
			width := s.width(t.dim)
			r.Slots[k].Values = append(r.Slots[k].Values, t.slots[k][int(at)*width:(int(at)+1)*width]...)
		}
		if t.marked() {
			r.Last = append(r.Last, t.mark(int(at)))
		}
		c.restore(&r, i, at)
	}
	return r
}

// wants says whether a row was touched in time. One that has changed since the copy began is in the undo log if it was.
func (c *arrayCopy) wants(at int64) bool {
	notes := c.table.touched.at
	if notes == nil {
		return true
	}
	if notes[at] > c.until {
		_, kept := c.old[at]
		return kept
	}
	return notes[at] >= c.since
}

// restore puts old values in the place of row i of a piece, which is at a place, where it has changed.
func (c *arrayCopy) restore(r *Rows, i int, at int64) {
	kept, changed := c.old[at]
	if !changed {
		return
	}
	t := c.table
	record, mark := c.undo.at(kept)
	done := copy(r.Values[i*t.dim:(i+1)*t.dim], record)
	for k, s := range t.rule.slots {
		width := s.width(t.dim)
		done += copy(r.Slots[k].Values[i*width:(i+1)*width], record[done:])
	}
	if t.marked() {
		r.Last[i] = mark
	}
}

// keyBytes is what the key of a row takes where rows are not consecutive.
const keyBytes = 8

// Touched implements RowsCopy.
func (c *arrayCopy) Touched() (rows, bytes int64) {
	t := c.table
	each := int64(t.dim*valueBytes) + keyBytes
	for _, s := range t.rule.slots {
		each += int64(s.width(t.dim)) * valueBytes
	}
	if t.marked() {
		each += stepBytes
	}
	return c.touched, c.touched * each
}

// oldEntryBytes is what the index of the undo log takes for a row, with growth.
const oldEntryBytes = 64

// Bytes implements RowsCopy.
func (c *arrayCopy) Bytes() int64 { return c.undo.bytes() + int64(len(c.old))*oldEntryBytes }

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
