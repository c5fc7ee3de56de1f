package state

import (
	"fmt"
	"slices"

	"gradbus/schema"
)

// Snapshot gives yield all rows of the table's version, without an open round: partitions and keys ascending, about
// valuesMax values at a time. Its error ends the snapshot and is returned.
func (t *Array) Snapshot(valuesMax int, yield func(Rows) error) error {
	c := t.copyAll()
	defer c.Close()
	for r, more := c.Next(valuesMax); more; r, more = c.Next(valuesMax) {
		if err := yield(r); err != nil {
			return err
		}
	}
	return nil
}

// Stretch is rows of a partition from a key on, of the table's version: about so many values with slots, in memory of
// their own. There is one at least, unless none are left.
func (t *Array) Stretch(p schema.Partition, cursor uint64, valuesMax int) Rows {
	t.hideOpen()
	defer t.hideOpen()
	first, end := t.places.from(p, cursor)
	r := t.rowsAt(p, first, min(end, first+t.stretchRows(valuesMax)))
	r.Values, r.Slots = slices.Clone(r.Values), cloned(r.Slots)
	return r
}

// stretchRows is how many rows a stretch of so many values has, with slots and marks: at least one.
func (t *Array) stretchRows(valuesMax int) int {
	each := t.dim
	for _, s := range t.rule.slots {
		each += s.width(t.dim)
	}
	if t.marked() {
		each += 2
	}
	return max(1, valuesMax/each)
}

// rowsAt is the rows at places [first, end). Keys and marks are in new memory.
func (t *Array) rowsAt(p schema.Partition, first, end int) Rows {
	r := t.piece(p, end-first)
	r.Values = t.rows[first*t.dim : end*t.dim]
	t.places.list(p, first, r.Keys)
	t.wantAll(first, end)
	for at := first; at < end && t.marked(); at++ {
		r.Last = append(r.Last, t.mark(at))
	}
	for i, s := range t.rule.slots {
		width := s.width(t.dim)
		r.Slots = append(r.Slots, Slot{s.name, t.slots[i][first*width : end*width]})
	}
	return r
}

// piece is rows of a partition, with room for n keys, and without values.
func (t *Array) piece(p schema.Partition, n int) Rows {
	return Rows{Table: t.config.Spec.Name, Partition: p, Column: t.config.Column, Columns: t.dim, Version: t.version,
		Steps: t.steps, Keys: make([]uint64, n)}
}

// Restore begins a restore.
func (t *Array) Restore() RowsRestore {
	t.undo.reset()
	t.stepping = false
	t.initial.drawn = nil // no row stays
	t.touched.reset()
	return &arrayRestore{table: t, there: make([]int32, t.places.count())}
}

// Update begins a restore of rows that have changed.
func (t *Array) Update() RowsRestore {
	t.undo.reset()
	t.stepping = false
	return &arrayRestore{table: t}
}

// arrayRestore puts a snapshot in the place of what an Array has.
type arrayRestore struct {
	table *Array
	any   bool
	there []int32 // [places] columns that have been restored; nil: the others stay
}

// Rows restores those that are here.
func (r *arrayRestore) Rows(rows Rows) error {
	t := r.table
	if rows.Table != t.config.Spec.Name {
		return nil
	}
	lo, hi := max(rows.Column, t.config.Column), min(rows.Column+rows.Columns, t.config.Column+t.dim)
	if r.there != nil && (lo >= hi || len(rows.Keys) == 0) {
		return nil
	}
	if err := r.check(&rows); err != nil {
		return fmt.Errorf("restore %d rows of table %q: %w", len(rows.Keys), rows.Table, err)
	}
	if lo >= hi {
		return nil
	}
	var place [1]int64
	for i, key := range rows.Keys {
		if key >= t.config.Spec.Rows || !t.places.has(key) {
			continue
		}
		t.places.find(rows.Keys[i:i+1], place[:])
		at := int(place[0])
		from, to, n := i*rows.Columns+lo-rows.Column, at*t.dim+lo-t.config.Column, hi-lo
		copy(t.rows[to:to+n], rows.Values[from:])
		for k, s := range t.rule.slots {
			if s.perRow {
				t.slots[k][at] = rows.Slots[k].Values[i]
				continue
			}
			copy(t.slots[k][to:to+n], rows.Slots[k].Values[from:])
		}
		switch {
		case t.last != nil:
			t.last[at] = rows.Last[i]
		case t.stepped != nil:
			t.stepped[at] = uint8(min(rows.Last[i], 1))
		}
		if r.there != nil {
			r.there[at] += int32(n)
		}
	}
	return nil
}

// check compares rows with the table and with those before them.
func (r *arrayRestore) check(rows *Rows) error {
	t, n := r.table, len(rows.Keys)
	if !r.any {
		r.any, t.version, t.steps, t.beyond = true, rows.Version, rows.Steps, beyond(rows.Version, rows.Steps)
	}
	if t.version != rows.Version || t.steps != rows.Steps {
		return fmt.Errorf("%w: version %d after %d steps, and others are of %d after %d", ErrSnapshot,
			rows.Version, rows.Steps, t.version, t.steps)
	}
	if len(rows.Values) != n*rows.Columns || (t.last != nil || t.stepped != nil) && len(rows.Last) != n {
		return fmt.Errorf("%w: %d values and %d marks for rows of %d", ErrSnapshot,
			len(rows.Values), len(rows.Last), rows.Columns)
	}
	if i := slices.IndexFunc(rows.Last, func(last int64) bool { return last < 0 }); i >= 0 {
		return fmt.Errorf("%w: the last step of row %d is %d: want 0 or more", ErrSnapshot, i, rows.Last[i])
	}
	return t.rule.checkSlots(rows.Slots, func(s slotShape) int { return n * s.width(rows.Columns) })
}

// Done says whether every row was restored, once, or, of an update, whether anything was.
func (r *arrayRestore) Done() error {
	if r.there == nil && !r.any {
		return fmt.Errorf("update table %q: %w: nothing came of it", r.table.config.Spec.Name, ErrSnapshot)
	}
	for at, n := range r.there {
		if int(n) != r.table.dim {
			return fmt.Errorf("restore table %q: %w: %d values came of row %d, which has %d here",
				r.table.config.Spec.Name, ErrSnapshot, n, r.table.places.key(at), r.table.dim)
		}
	}
	return nil
}
