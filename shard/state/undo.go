package state

import "gradbus/internal/planted"

// undoLog holds old values of a table's rows; nothing else stores them. A round is applied in place, and each part of
// the log has one reader:
//
//	open  what the open round has changed, for Rollback
//	last  rows alone, of the round that Commit has ended, for ReadPrevious
//	held  what has changed since the copy in progress began and before the copy has reached it
//
// Bytes, for rows of so many values, slots included, with ArrayConfig.Undo:
//
//	open  rows of the largest round * (4 values + 16)
//	last  rows of the largest round * (4 columns + 8)
//
// and, whether or not there is Undo, as long as a copy is in progress, whose owner limits it (CopyWish.BytesMax):
//
//	held  rows * (4 values + 8 + heldIndexBytes)
type undoLog struct {
	open undoRecords
	last undoRecords

	held   []undoRecords // each of one change
	index  map[int64]heldRecord
	wanted []int64 // scratch of hold
}

// undoRecords are what rows, slots and marks were, by place.
type undoRecords struct {
	places []int64 // distinct
	rowState
}

// rowState is rows one after the other, with what the optimizer keeps of them. Its memory is reused.
type rowState struct {
	rows  []float32   // [n, dim]
	slots [][]float32 // [rule.slots][n, width]
	marks []int64     // [n] of a table that has marks
}

// heldRecord is record i of undoLog.held[change].
type heldRecord struct{ change, i int32 }

// heldIndexBytes is what the index of held takes for a record, with growth.
const heldIndexBytes = 64

// record appends what the rows at places are.
func (t *Array) record(u *undoRecords, places []int64) {
	u.places = append(u.places, places...)
	u.rows = appendValues(u.rows, t.rows, places, t.dim)
	if u.slots == nil {
		u.slots = make([][]float32, len(t.slots))
	}
	for k, s := range t.rule.slots {
		u.slots[k] = appendValues(u.slots[k], t.slots[k], places, s.width(t.dim))
	}
	for i := 0; i < len(places) && t.marked(); i++ {
		u.marks = append(u.marks, t.mark(int(places[i])))
	}
}

// appendValues appends the values of places, width each.
func appendValues(to, table []float32, places []int64, width int) []float32 {
	n := len(to)
	to = extended(to, len(places)*width)
	for i, at := range places {
		copy(to[n+i*width:n+(i+1)*width], table[int(at)*width:])
	}
	return to
}

// put makes rows, and with slots also slots and marks, those at places.
func (t *Array) put(places []int64, s *rowState, slots bool) {
	putValues(t.rows, s.rows, places, t.dim)
	for k := 0; k < len(s.slots) && slots; k++ {
		putValues(t.slots[k], s.slots[k], places, t.rule.slots[k].width(t.dim))
	}
	for i := 0; i < len(places) && slots && t.marked(); i++ {
		t.setMark(int(places[i]), s.marks[i])
	}
}

func putValues(table, values []float32, places []int64, width int) {
	for i, at := range places {
		copy(table[int(at)*width:int(at)*width+width], values[i*width:])
	}
}

// cut forgets all records. Their memory stays.
func (u *undoRecords) cut() {
	u.places, u.rows, u.marks = u.places[:0], u.rows[:0], u.marks[:0]
	for k := range u.slots {
		u.slots[k] = u.slots[k][:0]
	}
}

// bytes is what the records take.
func (u *undoRecords) bytes() int64 {
	n := int64(cap(u.places)+cap(u.marks))*stepBytes + int64(cap(u.rows))*valueBytes
	for _, values := range u.slots {
		n += int64(cap(values)) * valueBytes
	}
	return n
}

// Rollback implements Table. That its rows were touched stays noted.
func (t *Array) Rollback() {
	t.put(t.undo.open.places, &t.undo.open.rowState, true)
	t.undo.open.cut()
	t.stepping = false
}

// hideOpen hides an open round from a reader; called once more it shows the round again.
func (t *Array) hideOpen() {
	u := &t.undo.open
	if len(u.places) == 0 {
		return
	}
	exchangeValues(t.rows, u.rows, u.places, t.dim)
	for k, s := range t.rule.slots {
		exchangeValues(t.slots[k], u.slots[k], u.places, s.width(t.dim))
	}
	for i := range u.marks {
		at := int(u.places[i])
		mark := t.mark(at)
		t.setMark(at, u.marks[i])
		u.marks[i] = mark
	}
}

// exchangeValues exchanges the values of places, width each, with others that lie one after the other.
func exchangeValues(table, values []float32, places []int64, width int) {
	for i, at := range places {
		here, there := table[int(at)*width:int(at)*width+width], values[i*width:(i+1)*width]
		for k := range here {
			here[k], there[k] = there[k], here[k]
		}
	}
}

// retain keeps the rows of the open round, which Commit ends.
func (u *undoLog) retain() {
	u.open.places, u.last.places = u.last.places, u.open.places
	u.open.rows, u.last.rows = u.last.rows, u.open.rows
	u.open.cut()
}

// ReadPrevious implements Table.
func (t *Array) ReadPrevious(read func() error) error {
	if planted.Is(planted.ReadChangedRows) {
		return read()
	}
	u := &t.undo.last
	exchangeValues(t.rows, u.rows, u.places, t.dim)
	defer exchangeValues(t.rows, u.rows, u.places, t.dim)
	return read()
}

// change is told of rows that are about to change.
func (t *Array) change(places []int64) {
	t.hold(places)
	t.touched.note(places)
}

// hold records what the rows at places are, where the copy in progress has yet to reach them.
func (t *Array) hold(places []int64) {
	c, u := t.copying, &t.undo
	if c == nil {
		return
	}
	u.wanted = u.wanted[:0]
	for _, at := range places {
		if _, held := u.index[at]; !held && int(at) >= c.next && (c.all || c.wants(at)) {
			u.index[at] = heldRecord{int32(len(u.held)), int32(len(u.wanted))}
			u.wanted = append(u.wanted, at)
		}
	}
	if len(u.wanted) > 0 {
		var records undoRecords
		t.record(&records, u.wanted)
		u.held = append(u.held, records)
	}
}

// putHeld puts the held values of a place in the place of row i of a piece, if there are any.
func (t *Array) putHeld(r *Rows, i int, at int64) {
	record, held := t.undo.index[at]
	if !held {
		return
	}
	u, from := &t.undo.held[record.change], int(record.i)
	copy(r.Values[i*t.dim:(i+1)*t.dim], u.rows[from*t.dim:])
	for k, s := range t.rule.slots {
		width := s.width(t.dim)
		copy(r.Slots[k].Values[i*width:(i+1)*width], u.slots[k][from*width:])
	}
	if t.marked() {
		r.Last[i] = u.marks[from]
	}
}

// heldBytes is what held takes.
func (u *undoLog) heldBytes() (n int64) {
	for i := range u.held {
		n += u.held[i].bytes()
	}
	return n + int64(len(u.index))*heldIndexBytes
}

// release frees what was held for a copy.
func (u *undoLog) release() { u.held, u.index = nil, nil }

// reset forgets the rounds: other rows take the place of those that they were of.
func (u *undoLog) reset() { u.open, u.last = undoRecords{}, undoRecords{} }
