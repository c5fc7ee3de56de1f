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
	t.copying = &arrayCopy{table: t, version: t.version, steps: t.steps, all: true, each: t.dim}
	for _, s := range t.rule.slots {
		t.copying.each += s.width(t.dim)
	}
	t.undo.release()
	t.undo.index = map[int64]heldRecord{}
	t.hideOpen()
	t.hold(t.undo.open.places)
	t.hideOpen()
	return t.copying
}

// arrayCopy copies places in their order. The table's undo log holds old values of rows that change before it reaches
// them.
type arrayCopy struct {
	table   *Array
	version schema.Version
	steps   uint64

	all          bool // rows; else those that have changed in intervals from since to until
	since, until uint8
	touched      int64 // rows that have, at the start

	partition schema.Partition // where the next place is, or before it
	next      int              // places before it are copied

	each int // values of a row with its slots
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
			return c.nextTouched(first, end, max(1, valuesMax/c.each)), true
		}
		c.next = min(end, first+max(1, valuesMax/c.each))
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
	for at := first; at < end && len(c.table.undo.index) > 0; at++ {
		c.table.putHeld(&r, at-first, int64(at))
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
		t.putHeld(&r, i, at)
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
		_, held := c.table.undo.index[at]
		return held
	}
	return notes[at] >= c.since
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

// Bytes implements RowsCopy.
func (c *arrayCopy) Bytes() int64 {
	if c.table.copying != c {
		return 0
	}
	return c.table.undo.heldBytes()
}

// Close implements RowsCopy.
func (c *arrayCopy) Close() {
	if c.table.copying == c {
		c.table.copying = nil
		c.table.undo.release()
	}
}

// marked says that rows have marks of their steps.
func (t *Array) marked() bool { return t.last != nil || t.stepped != nil }

// setMark sets the mark of the row at a place, of a table that has marks.
func (t *Array) setMark(at int, mark int64) {
	if t.last != nil {
		t.last[at] = mark
	} else {
		t.stepped[at] = uint8(mark)
	}
}

// mark is that of the row at a place, of a table that has marks.
func (t *Array) mark(at int) int64 {
	if t.last != nil {
		return t.last[at]
	}
	return int64(t.stepped[at])
}
