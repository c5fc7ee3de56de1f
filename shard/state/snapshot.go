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

// A snapshot is the state of an owner at one version, piece by piece, each with the name of its tensor. Nothing in it
// depends on how tensors were cut. Dense.Copy and Table.Copy return pieces in a fixed order while later versions are
// made: chunks by number, partitions and keys ascending. A restore accepts pieces in any order and skips those of other
// owners, so all pieces of a job can be passed to every owner, however many there are now; Done reports whether
// anything was missing.

// Tensor is a stretch of a dense parameter.
type Tensor struct {
	Name    string
	From    int // first element
	Values  []float32
	Slots   []Slot // in the optimizer's order, each as long as Values
	Version schema.Version
	Steps   uint64 // number of steps done; 0 before the first
}

// Rows are rows of a partition of a table, or some columns of them.
type Rows struct {
	Table     string
	Partition schema.Partition
	Column    int      // first column
	Columns   int      // number of columns
	Keys      []uint64 // ascending
	Values    []float32
	Slots     []Slot // [len(Keys), Columns], or [len(Keys)] for a slot with one value per row
	// Mark of each row, if the optimizer has marks: 0 if the row has had no step, else the number of its last step if
	// rows catch up on steps (Optimizer.Exact), else 1.
	Last    []int64
	Version schema.Version
	Steps   uint64 // number of steps of the table
}

// Slot is a named state of an optimizer.
type Slot struct {
	Name   string
	Values []float32
}

// Newest stands for the newest version of each chunk or table, if they have none in common.
const Newest = schema.Version(math.MaxUint64)

// Errors of snapshots and restores.
var (
	// ErrVersion reports that a version is not stored: it does not exist yet, or a later one has replaced it. Nothing was
	// changed.
	ErrVersion = errors.New("version is not kept")
	// ErrSnapshot reports that a piece does not fit, or that pieces are missing. What was restored before stays, and
	// the owner must not be used.
	ErrSnapshot = errors.New("snapshot does not fit")
)

// beyond returns by how many the steps exceed the batches of a version. They may in a fuzzy checkpoint, where each
// trainer has made steps by itself (CopyRequest.Fuzzy).
func beyond(v schema.Version, steps uint64) schema.Version {
	return max(v, schema.Version(steps)) - v
}

// Snapshot holds pieces in separate memory. Pass its methods to Dense.Snapshot and Array.Snapshot.
type Snapshot struct {
	Tensors []Tensor
	Rows    []Rows
}

// AddTensor adds a copy of a stretch.
func (s *Snapshot) AddTensor(t Tensor) error {
	s.Tensors = append(s.Tensors, Cloned([]Tensor{t})...)
	return nil
}

// Cloned returns copies of tensors in new memory.
func Cloned(tensors []Tensor) []Tensor {
	all := slices.Clone(tensors)
	for i, t := range all {
		all[i].Values, all[i].Slots = slices.Clone(t.Values), cloned(t.Slots)
	}
	return all
}

// AddRows adds a copy of rows.
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

// checkSlots compares the slots of a piece with those of a rule. size returns the number of values of a slot.
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

// ErrCopyBehind reports that a copy was ended because batches change rows faster than they are copied.
var ErrCopyBehind = errors.New("copy fell behind")

// Limits of a copy that is taken while a job trains.
const (
	// CopyBytesMax bounds the old values of rows that change while a version is copied (CopyRequest.BytesMax).
	CopyBytesMax = 64 << 20
	// CopyValues is the number of values, including slots, that are copied at once: 64 KiB, which delay a batch by
	// about 0.1 ms.
	CopyValues = 1 << 14
)

// CopyRequest is a request for a copy.
type CopyRequest struct {
	At       schema.Version // version to copy; 0: none
	Since    schema.Version // earlier copied version: copy the changes since then; 0: none
	All      bool           // copy everything; else what may have changed since Since
	BytesMax int64          // limit of old values; the copy ends beyond it
	Fuzzy    bool           // fuzzy checkpoint: copy the current state, under the number At
}

// VersionCopy copies state at one version, piece by piece, while later versions are made. Its user must hold the lock
// for stepping that state.
type VersionCopy struct {
	request CopyRequest
	touched Extent
	dense   *DenseCopy // nil if there are no parameters
	tables  []RowsCopy
	next    int // next table
	err     error
}

// CopyPiece is a piece of a copy, in separate memory: stretches of parameters, or rows.
type CopyPiece struct {
	Tensors []Tensor
	Rows    *Rows
}

// NewVersionCopy begins to copy the requested version, at which the parameters and tables are. dense may be nil; names
// are those of tables. Only one copy of each may be open.
func NewVersionCopy(w CopyRequest, dense *Dense, names []schema.TableSpec, tables []Table) *VersionCopy {
	c := &VersionCopy{request: w, touched: Extent{Rows: map[string]int64{}}}
	if dense != nil {
		if w.Fuzzy {
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

// Of returns the request.
func (c *VersionCopy) Of() CopyRequest { return c.request }

// Touched returns what may have changed since the earlier version of the request.
func (c *VersionCopy) Touched() Extent { return c.touched }

// Next returns the next piece, of about valuesMax values; more is false if none remain. Call Close after that, and
// after an error. It fails with ErrCopyBehind if old values exceed the limit.
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
			if c.request.Fuzzy {
				rows.Version = c.request.At
			}
			return CopyPiece{Rows: &rows}, true, nil
		}
	}
	return CopyPiece{}, false, nil
}

// Limit ends a copy that exceeds its limit, so that no later step adds to it. Call it after each step.
func (c *VersionCopy) Limit() {
	if c.err != nil || c.bytes() <= c.request.BytesMax {
		return
	}
	c.err = fmt.Errorf("%w: rows that have changed since take %d bytes, want at most %d", ErrCopyBehind, c.bytes(),
		c.request.BytesMax)
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

// Close frees what the copy holds, whether or not it is complete. A second call does nothing.
func (c *VersionCopy) Close() {
	if c.dense != nil {
		c.dense.Close()
	}
	for _, t := range c.tables {
		t.Close()
	}
	c.dense, c.tables = nil, nil
}

// checksum returns a checksum of values, for tests and logs.
func checksum(values []float32) uint32 {
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), 4*len(values))
	return crc32.Checksum(bytes, crc32.MakeTable(crc32.Castagnoli))
}

// undoLog has the old values of a table's rows, which are stored nowhere else. A round is applied in place, and each part
// of the log has one reader:
//
//	open  changes of the open round, for Rollback
//	last  old rows, without slots, of the round that was committed last, for ReadPrevious
//	held  rows that have changed since the copy in progress began, and that it has not reached
//
// Bytes for rows of a number of values, including slots, with ArrayConfig.Undo:
//
//	open  rows of the largest round * (4 values + 16)
//	last  rows of the largest round * (4 columns + 8)
//
// With or without Undo, while a copy is in progress, whose owner limits it (CopyRequest.BytesMax):
//
//	held  rows * (4 values + 8 + heldIndexBytes)
type undoLog struct {
	open undoRecords
	last undoRecords

	held   []undoRecords // one entry for each change
	index  map[int64]heldRecord
	wanted []int64 // scratch of hold
}

// undoRecords are the old rows, slots and marks at places.
type undoRecords struct {
	places []int64 // distinct
	rowState
}

// rowState is consecutive rows with their optimizer state. Its memory is reused.
type rowState struct {
	rows  []float32   // [n, dim]
	slots [][]float32 // [rule.slots][n, width]
	marks []int64     // [n] if the table has marks
}

// heldRecord is record i of undoLog.held[change].
type heldRecord struct{ change, i int32 }

// heldIndexBytes is the memory of a record in the index of held, including growth.
const heldIndexBytes = 64

// record appends the current rows at places.
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

// appendValues appends the values of width at each place.
func appendValues(to, table []float32, places []int64, width int) []float32 {
	n := len(to)
	to = extended(to, len(places)*width)
	for i, at := range places {
		copy(to[n+i*width:n+(i+1)*width], table[int(at)*width:])
	}
	return to
}

// put overwrites the rows at places, and with slots their slots and marks.
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

// cut drops all records and keeps their memory.
func (u *undoRecords) cut() {
	u.places, u.rows, u.marks = u.places[:0], u.rows[:0], u.marks[:0]
	for k := range u.slots {
		u.slots[k] = u.slots[k][:0]
	}
}

// bytes returns the size of the records.
func (u *undoRecords) bytes() int64 {
	n := int64(cap(u.places)+cap(u.marks))*stepBytes + int64(cap(u.rows))*valueBytes
	for _, values := range u.slots {
		n += int64(cap(values)) * valueBytes
	}
	return n
}

// Rollback implements Table. The rows stay marked as touched.
func (t *Array) Rollback() {
	t.put(t.undo.open.places, &t.undo.open.rowState, true)
	t.undo.open.cut()
	t.stepping = false
}

// hideOpen hides an open round from a reader; a second call shows the round again.
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

// exchangeValues swaps the values of width at each place with consecutive values.
func exchangeValues(table, values []float32, places []int64, width int) {
	for i, at := range places {
		here, there := table[int(at)*width:int(at)*width+width], values[i*width:(i+1)*width]
		for k := range here {
			here[k], there[k] = there[k], here[k]
		}
	}
}

// retain keeps the old rows of the open round, which Commit ends.
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

// change records rows that are about to change.
func (t *Array) change(places []int64) {
	t.hold(places)
	t.touched.note(places)
}

// hold records the current rows at places that the copy in progress has yet to reach.
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

// putHeld replaces row i of a piece by the held values of a place, if any.
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

// heldBytes returns the size of held.
func (u *undoLog) heldBytes() (n int64) {
	for i := range u.held {
		n += u.held[i].bytes()
	}
	return n + int64(len(u.index))*heldIndexBytes
}

// release frees what was held for a copy.
func (u *undoLog) release() { u.held, u.index = nil, nil }

// reset drops the records of rounds, because other rows replace theirs.
func (u *undoLog) reset() { u.open, u.last = undoRecords{}, undoRecords{} }
