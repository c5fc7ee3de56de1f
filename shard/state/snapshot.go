package state

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"unsafe"

	"gradbus/internal/planted"
	"gradbus/schema"
)

// A snapshot is what an owner has at one version, piece by piece, each by the name of its tensor: a writer streams it,
// and nothing of it says how tensors were cut. Dense.Copy and Table.Copy give pieces in a fixed order while later
// versions are made: chunks as they are numbered, partitions and keys ascending. A restore takes pieces in any order
// and leaves out those of elsewhere, so all pieces of a job can be given to every owner, however many there are now;
// Done says whether anything was missing.

// Tensor is a stretch of a dense parameter.
type Tensor struct {
	Name    string
	From    int // its first element
	Values  []float32
	Slots   []Slot // in the optimizer's order, each as long as Values
	Version schema.Version
	Steps   uint64 // that were done by then; the first is yet to come where there are none
}

// Rows are rows of a partition of a table, or columns of them.
type Rows struct {
	Table     string
	Partition schema.Partition
	Column    int      // the first
	Columns   int      // how many
	Keys      []uint64 // ascending
	Values    []float32
	Slots     []Slot // [len(Keys), Columns], or [len(Keys)] of a slot that has one value a row
	// Last says of each row which steps it has had, where the optimizer asks: 0 for none, else its last one where steps
	// are made up for (Optimizer.Exact), else 1.
	Last    []int64
	Version schema.Version
	Steps   uint64 // of the table that were done by then
}

// Slot is a named state of an optimizer.
type Slot struct {
	Name   string
	Values []float32
}

// Newest stands for the newest version of each chunk or table, where they need not have one in common.
const Newest = schema.Version(math.MaxUint64)

// Errors of snapshots and restores.
var (
	// ErrVersion says that a version is not kept: it is to come, or a later one has taken its memory. Nothing changed.
	ErrVersion = errors.New("version is not kept")
	// ErrSnapshot says that a piece does not fit what it is restored to, or that some are missing. What was restored by
	// then stays, and the owner must not be used.
	ErrSnapshot = errors.New("snapshot does not fit")
)

// beyond is how many more steps there were than a version has batches: of a moment, where each trainer has made steps
// by itself (CopyWish.Moment). Else there are none.
func beyond(v schema.Version, steps uint64) schema.Version {
	return max(v, schema.Version(steps)) - v
}

// Snapshot holds pieces in memory of their own. Its methods are what Dense.Snapshot and Array.Snapshot call.
type Snapshot struct {
	Tensors []Tensor
	Rows    []Rows
}

// AddTensor keeps a copy.
func (s *Snapshot) AddTensor(t Tensor) error {
	s.Tensors = append(s.Tensors, Cloned([]Tensor{t})...)
	return nil
}

// Cloned are tensors in memory of their own.
func Cloned(tensors []Tensor) []Tensor {
	all := slices.Clone(tensors)
	for i, t := range all {
		all[i].Values, all[i].Slots = slices.Clone(t.Values), cloned(t.Slots)
	}
	return all
}

// AddRows keeps a copy.
func (s *Snapshot) AddRows(r Rows) error {
	r.Keys, r.Values, r.Slots, r.Last = slices.Clone(r.Keys), slices.Clone(r.Values), cloned(r.Slots), slices.Clone(r.Last)
	s.Rows = append(s.Rows, r)
	return nil
}

func cloned(slots []Slot) []Slot {
	all := make([]Slot, len(slots))
	for i, s := range slots {
		all[i] = Slot{s.Name, slices.Clone(s.Values)}
	}
	return all
}

// checkSlots compares the slots of a piece with those of a rule. size is how many values a slot has.
func (r *rule) checkSlots(slots []Slot, size func(slotShape) int) error {
	if len(slots) != len(r.slots) {
		return fmt.Errorf("%w: %d slots, %s has %d", ErrSnapshot, len(slots), r.named.Kind, len(r.slots))
	}
	for i, s := range r.slots {
		if slots[i].Name != s.name || len(slots[i].Values) != size(s) {
			return fmt.Errorf("%w: slot %q of %d values, want %q of %d", ErrSnapshot, slots[i].Name, len(slots[i].Values),
				s.name, size(s))
		}
	}
	return nil
}

// ErrCopyBehind: a copy was ended because batches change rows faster than they are copied.
var ErrCopyBehind = errors.New("copy fell behind")

// Bounds of a copy beside a training job.
const (
	// CopyBytesMax bounds what is kept of rows that change while a version is copied (CopyWish.BytesMax).
	CopyBytesMax = 64 << 20
	// CopyValues is how many values are copied at once, with slots: 64 KiB, which hold up a batch for some 0.1 ms.
	CopyValues = 1 << 14
)

// CopyWish says of which version a copy is wanted.
type CopyWish struct {
	At       schema.Version // of this one; 0: none
	Since    schema.Version // an earlier one, from whose copy on it is told what was touched; 0: none
	All      bool           // everything is copied; else what may have changed since that version
	BytesMax int64          // of old values, beyond which a copy ends
	Moment   bool           // all is copied as it is, under that version's number
}

// VersionCopy copies state at one version, piece by piece, while later ones are made. Its user must be allowed to step
// that state.
type VersionCopy struct {
	wish    CopyWish
	touched Extent
	dense   *DenseCopy // nil where there are no parameters
	tables  []RowsCopy
	next    int // of tables
	err     error
}

// CopyPiece is a piece of a copy, in memory of its own: stretches of parameters, or rows.
type CopyPiece struct {
	Tensors []Tensor
	Rows    *Rows
}

// NewVersionCopy begins to copy the version that the wish names, which parameters and tables are at: dense, which may
// be nil, and tables by their names. One copy of each at a time.
func NewVersionCopy(w CopyWish, dense *Dense, names []schema.TableSpec, tables []Table) *VersionCopy {
	c := &VersionCopy{wish: w, touched: Extent{Rows: map[string]int64{}}}
	if dense != nil {
		if w.Moment {
			c.dense = dense.copyNow(w.At)
		} else {
			c.dense, c.err = dense.Copy(w.At, w.Since, w.All)
		}
		if c.err == nil {
			c.touched.Tensors, c.touched.Bytes = c.dense.Touched()
		}
	}
	for i, t := range tables {
		if t != nil {
			rows := t.Copy(w.Since, w.All)
			n, bytes := rows.Touched()
			c.touched.Rows[names[i].Name] = n
			c.touched.Bytes += bytes
			c.tables = append(c.tables, rows)
		}
	}
	return c
}

// Of is what the copy was to be.
func (c *VersionCopy) Of() CopyWish { return c.wish }

// Touched is what may have changed since the earlier version that the wish names.
func (c *VersionCopy) Touched() Extent { return c.touched }

// Next gives the next piece, of about so many values; more is false where none is left. After that, and after an error,
// Close is to be called. It is ErrCopyBehind where old values took more room than there is.
func (c *VersionCopy) Next(valuesMax int) (p CopyPiece, more bool, err error) {
	if c.err != nil {
		return CopyPiece{}, false, c.err
	}
	if c.dense != nil {
		if p.Tensors, more = c.dense.Next(); more {
			return p, true, nil
		}
	}
	for ; c.next < len(c.tables); c.next++ {
		if rows, more := c.tables[c.next].Next(valuesMax); more {
			if c.wish.Moment {
				rows.Version = c.wish.At
			}
			return CopyPiece{Rows: &rows}, true, nil
		}
	}
	return CopyPiece{}, false, nil
}

// Limit ends a copy that holds more than it may, so that no step adds to that. It is called after each step.
func (c *VersionCopy) Limit() {
	if c.err != nil || c.bytes() <= c.wish.BytesMax {
		return
	}
	c.err = fmt.Errorf("%w: rows that have changed since take %d bytes, want at most %d", ErrCopyBehind, c.bytes(),
		c.wish.BytesMax)
	c.Close()
}

func (c *VersionCopy) bytes() (n int64) {
	if c.dense != nil {
		n = c.dense.Bytes()
	}
	for _, t := range c.tables {
		n += t.Bytes()
	}
	return n
}

// Close gives back what is held of the version, whether or not the copy is whole. A second call does nothing.
func (c *VersionCopy) Close() {
	if c.dense != nil {
		c.dense.Close()
	}
	for _, t := range c.tables {
		t.Close()
	}
	c.dense, c.tables = nil, nil
}

// checksum tells values from others, for tests and logs.
func checksum(values []float32) uint32 {
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), 4*len(values))
	return crc32.Checksum(bytes, crc32.MakeTable(crc32.Castagnoli))
}

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
