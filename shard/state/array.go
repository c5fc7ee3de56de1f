package state

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"unsafe"

	"gradbus/cuda"
	"gradbus/internal/planted"
	"gradbus/schema"
)

// ArrayConfig configures an Array. All fields are required except LR, Start and Late.
type ArrayConfig struct {
	Backend   cuda.Backend
	Spec      *schema.TableSpec
	Optimizer schema.Optimizer
	LR        *LRChanges
	Seed      uint64 // of the job
	Here      func(schema.Partition) bool
	Column    int // first column stored here
	Columns   int // number of columns stored here

	// Start is the first version that steps apply to; earlier ones assign values (schema.StartModel).
	Start schema.Version

	// Undo records the old rows of a round until the next one is committed, for Rollback and ReadPrevious, and so that
	// readers do not see an open round. Without it an Array has none of these.
	Undo bool

	// Touches records when rows change, one byte for each row, for copies of touched rows.
	Touches bool

	// Late draws rows when they are first used, however few they are. Use it for a table that will be restored.
	Late bool

	// For tests: allocates zeroed memory and returns a function that frees it; nil: Backend.Alloc.
	alloc func(values int) ([]float32, func(), error)
}

// Array is a Table over keys [0, Rows), with one row for each key in an array in host memory, outside the Go heap.
type Array struct {
	places  places
	config  ArrayConfig
	rule    *rule
	dim     int // columns stored here
	version schema.Version
	steps   uint64         // number of steps done
	beyond  schema.Version // as of a denseChunk
	free    []func()       // frees the memory
	initial initial

	rows    []float32   // [places, dim], of version
	slots   [][]float32 // [rule.slots][places, width]
	stepped []uint8     // [places] 1 if the row has had a step; nil if the optimizer does not need it
	last    []int64     // [places] the newest step of the row, from 1; in place of stepped where steps are made up for

	copying *arrayCopy // nil if no copy is in progress
	touched touched

	undo     undoLog
	stepping bool     // the open round is a step
	outcome  rowState // new values of the rows that are stepped together
	first    []uint8
	pass     []cuda.Slot
	ids      []int64 // scratch of locate
	late     []int64 // scratch of catchUp
	bags     []int64
	zeros    []float32
}

// NewArray draws version 0 of the rows of this owner, which takes about 15 ns per value on all processors; ctx cancels
// it. Rows of more than 1 GiB in all are drawn when they are first used. Close frees the memory; call it even if later
// setup fails.
func NewArray(ctx context.Context, c ArrayConfig) (_ *Array, err error) {
	t := &Array{places: newPlaces(c.Spec, c.Here), config: c, dim: c.Columns}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if t.rule, err = newRule(c.Optimizer, c.LR, c.Start); err != nil {
		return nil, err
	}
	n := t.places.count()
	if t.rows, err = alloc[float32](t, n*t.dim); err != nil {
		return nil, err
	}
	for _, s := range t.rule.slots {
		values, err := alloc[float32](t, n*s.width(t.dim))
		if err != nil {
			return nil, err
		}
		t.slots = append(t.slots, values)
	}
	switch {
	case t.rule.exact:
		t.last, err = alloc[int64](t, n)
	case t.rule.marks:
		t.stepped, err = alloc[uint8](t, n)
	}
	if err != nil {
		return nil, err
	}
	if c.Touches {
		if t.touched.at, err = alloc[uint8](t, n); err != nil {
			return nil, err
		}
		t.touched.forget()
	}
	t.outcome.slots = make([][]float32, len(t.slots))
	return t, t.draw(ctx)
}

// alloc allocates n zeros until Close.
func alloc[T any](t *Array, n int) ([]T, error) {
	var zero T
	values, free, err := t.config.memory((n*int(unsafe.Sizeof(zero)) + valueBytes - 1) / valueBytes)
	if err != nil {
		return nil, fmt.Errorf("allocate %d numbers of %d bytes: %w", n, unsafe.Sizeof(zero), err)
	}
	t.free = append(t.free, free)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(values))), n), nil
}

func (c *ArrayConfig) memory(values int) ([]float32, func(), error) {
	if c.alloc != nil {
		return c.alloc(values)
	}
	b, err := c.Backend.Alloc(values)
	if err != nil {
		return nil, nil, err
	}
	return b.Float32s(), b.Free, nil
}

// Close frees all memory.
func (t *Array) Close() {
	for _, free := range t.free {
		free()
	}
	t.free, t.rows, t.slots, t.stepped, t.last, t.initial.drawn, t.touched.at = nil, nil, nil, nil, nil, nil, nil
}

// String lists the table's state with checksums, for tests and logs.
func (t *Array) String() string {
	text := fmt.Sprintf("%s: version %d steps %d rows %08x marks %d open %d", t.config.Spec.Name, t.version, t.steps,
		checksum(t.rows), len(t.stepped)+len(t.last), len(t.undo.open.places))
	for i, s := range t.rule.slots {
		text += fmt.Sprintf(" %s %08x", s.name, checksum(t.slots[i]))
	}
	return text
}

// row returns the row at a place.
func (t *Array) row(at int) []float32 { return t.rows[at*t.dim : (at+1)*t.dim] }

// Version returns the number of commits.
func (t *Array) Version() schema.Version { return t.version }

// Gather copies the rows of keys to rows.
func (t *Array) Gather(keys []uint64, rows []float32) error {
	t.hideOpen()
	defer t.hideOpen()
	if err := t.locate(keys); err != nil {
		return err
	}
	return t.config.Backend.Gather(cuda.Gather{Dim: t.dim, Rows: cuda.Float32s(t.rows), IDs: cuda.Int64s(t.ids),
		Out: cuda.Float32s(rows[:len(keys)*t.dim])})
}

// locate writes the places of keys to ids, and makes their rows ready to read.
func (t *Array) locate(keys []uint64) error {
	t.ids = grown(t.ids, len(keys))
	t.places.find(keys, t.ids)
	t.want(t.ids)
	if t.last != nil {
		return t.catchUp(t.ids)
	}
	return nil
}

// Pool implements Table.
func (t *Array) Pool(b Bags, out []float32) error {
	t.hideOpen()
	defer t.hideOpen()
	if err := t.locate(b.Keys); err != nil {
		return err
	}
	t.bags = grown(t.bags, len(b.Offsets))
	for i, at := range b.Offsets {
		t.bags[i] = int64(at)
	}
	return t.config.Backend.BagForward(cuda.BagForward{
		Dim: t.dim, Mode: b.Mode, Padding: cuda.NoPadding, OpenOffsets: true,
		Rows: cuda.Float32s(t.rows), IDs: cuda.Int64s(t.ids), Offsets: cuda.Int64s(t.bags), Out: cuda.Float32s(out)})
}

// Left returns the number of rows of a partition from a key on.
func (t *Array) Left(p schema.Partition, cursor uint64) int {
	first, end := t.places.from(p, cursor)
	return end - first
}

// Scan implements Table.
func (t *Array) Scan(p schema.Partition, cursor uint64, keys []uint64, rows []float32) error {
	t.hideOpen()
	defer t.hideOpen()
	first, _ := t.places.from(p, cursor)
	t.places.list(p, first, keys)
	if err := t.locate(keys); err != nil {
		return err
	}
	copy(rows, t.rows[first*t.dim:(first+len(keys))*t.dim])
	return nil
}

// grown returns n elements, with undefined values, that reuse s if it is large enough.
func grown[T any](s []T, n int) []T {
	if cap(s) >= n {
		return s[:n]
	}
	return slices.Grow(s[:0], n)[:n]
}

// extended returns s with n more elements, with undefined values.
func extended[T any](s []T, n int) []T { return slices.Grow(s, n)[:len(s)+n] }

// Copy begins to copy rows of the table's version. Only one copy may be open.
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

// arrayCopy copies places in order. The table's undo log keeps the old values of rows that change before the copy
// reaches them.
type arrayCopy struct {
	table   *Array
	version schema.Version
	steps   uint64

	all          bool // copy all rows; else those that changed in intervals since to until
	since, until uint8
	touched      int64 // number of changed rows at the start

	partition schema.Partition // partition of the next place, or one before it
	next      int              // earlier places are copied

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

// rowsAt returns the rows at places [first, end) with their old values.
func (c *arrayCopy) rowsAt(p schema.Partition, first, end int) Rows {
	r := c.table.rowsAt(p, first, end)
	r.Version, r.Steps = c.version, c.steps
	r.Values, r.Slots = slices.Clone(r.Values), cloned(r.Slots)
	for at := first; at < end && len(c.table.undo.index) > 0; at++ {
		c.table.putHeld(&r, at-first, int64(at))
	}
	return r
}

// scanMax bounds the rows that are examined for a piece, which takes about 50 us.
const scanMax = 1 << 16

// nextTouched returns the first touched rows, at most rows of them, at places [first, end).
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

// wants reports whether a row was touched in the intervals of the copy. For a row that has changed since the copy
// began, the undo log decides.
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

// keyBytes is the size of a row's key if rows are not consecutive.
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

// marked reports whether rows have marks of their steps.
func (t *Array) marked() bool { return t.last != nil || t.stepped != nil }

// setMark sets the mark of the row at a place, in a table that has marks.
func (t *Array) setMark(at int, mark int64) {
	if t.last != nil {
		t.last[at] = mark
	} else {
		t.stepped[at] = uint8(mark)
	}
}

// mark returns the mark of the row at a place, in a table that has marks.
func (t *Array) mark(at int) int64 {
	if t.last != nil {
		return t.last[at]
	}
	return int64(t.stepped[at])
}

// Snapshot passes all rows of the table's version, without an open round, to yield: partitions and keys ascending,
// about valuesMax values at a time. An error of yield ends it and is returned.
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

// Stretch returns rows of a partition from a key on, at the table's version: about valuesMax values including slots, in
// new memory. It returns at least one row unless none remain.
func (t *Array) Stretch(p schema.Partition, cursor uint64, valuesMax int) Rows {
	t.hideOpen()
	defer t.hideOpen()
	first, end := t.places.from(p, cursor)
	r := t.rowsAt(p, first, min(end, first+t.stretchRows(valuesMax)))
	r.Values, r.Slots = slices.Clone(r.Values), cloned(r.Slots)
	return r
}

// stretchRows returns the number of rows, at least one, in a stretch of valuesMax values including slots and marks.
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

// rowsAt returns the rows at places [first, end). Keys and marks are in new memory.
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

// piece returns a Rows of a partition with room for n keys, and without values.
func (t *Array) piece(p schema.Partition, n int) Rows {
	return Rows{Table: t.config.Spec.Name, Partition: p, Column: t.config.Column, Columns: t.dim, Version: t.version,
		Steps: t.steps, Keys: make([]uint64, n)}
}

// Restore begins a restore.
func (t *Array) Restore() RowsRestore {
	t.undo.reset()
	t.stepping = false
	t.initial.drawn = nil // replaces all rows
	t.touched.reset()
	return &arrayRestore{table: t, there: make([]int32, t.places.count())}
}

// Update begins a restore of the rows that have changed.
func (t *Array) Update() RowsRestore {
	t.undo.reset()
	t.stepping = false
	return &arrayRestore{table: t}
}

// arrayRestore replaces the contents of an Array by a snapshot.
type arrayRestore struct {
	table *Array
	any   bool
	there []int32 // [places] restored columns; nil: an update, in which other rows stay
}

// Rows restores the rows of this owner and skips others.
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

// check checks that rows fit the table and agree with earlier rows.
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

// Done returns nil if every row was restored once, or, for an update, if anything was.
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

// places maps keys of a table to the places of their rows: the partitions of this owner one after the other, in each by
// position, so keys ascend. It takes 8 bytes per partition and nothing per key. It is read-only once made.
type places struct {
	keys schema.Partitioning
	// First place of each partition, and at the end the number of rows. A partition without rows here has the place of
	// the next one.
	first []int
}

// newPlaces lays out the partitions of a table that this owner has.
func newPlaces(spec *schema.TableSpec, here func(schema.Partition) bool) places {
	l := places{keys: spec.Partitioning(), first: make([]int, spec.Partitions+1)}
	for p := range spec.Partitions {
		l.first[p+1] = l.first[p]
		if here(schema.Partition(p)) {
			l.first[p+1] += int(l.keys.Rows(schema.Partition(p)))
		}
	}
	return l
}

// count returns the number of rows here.
func (l *places) count() int { return l.first[len(l.first)-1] }

// has reports whether the row of a key is here.
func (l *places) has(key uint64) bool {
	p, _ := l.keys.At(key)
	return l.first[p] < l.first[p+1]
}

// find writes the places of keys, whose rows are here, to to, which has the same length.
func (l *places) find(keys []uint64, to []int64) {
	for i, key := range keys {
		p, at := l.keys.At(key)
		to[i] = int64(l.first[p]) + int64(at)
	}
}

// partition returns the partition of a place.
func (l *places) partition(at int) schema.Partition {
	return schema.Partition(sort.Search(len(l.first)-1, func(p int) bool { return l.first[p+1] > at }))
}

// key returns the key of the row at a place.
func (l *places) key(at int) uint64 {
	p := l.partition(at)
	return l.keys.Key(p, uint64(at-l.first[p]))
}

// list writes the keys of rows of a partition, from a place on, to keys.
func (l *places) list(p schema.Partition, at int, keys []uint64) {
	for i := range keys {
		keys[i] = l.keys.Key(p, uint64(at+i-l.first[p]))
	}
}

// from returns the places of a partition from a key on; none if the partition is not here.
func (l *places) from(p schema.Partition, cursor uint64) (first, end int) {
	return min(l.first[p]+int(l.keys.From(p, cursor)), l.first[p+1]), l.first[p+1]
}

// PlacedChunk returns a chunk of a job's dense bucket as placement cuts it. With steps, it is stepped here by the
// optimizer that its parameters share; else its values are only set.
func PlacedChunk(job *schema.Job, place *schema.Placement, bucket schema.Bucket, chunk schema.Chunk, steps bool) Chunk {
	offset, elements := place.ChunkRange(bucket, chunk)
	c := Chunk{Elements: elements}
	for _, s := range place.Buckets[bucket].Spans {
		from, to := max(s.Offset, offset), min(s.Offset+s.Elements, offset+elements)
		if from >= to {
			continue
		}
		p := &job.Parameters[s.Parameter]
		c.Pieces = append(c.Pieces, Piece{Name: p.Name, Init: p.Init, Seed: job.Seed, From: s.From + from - s.Offset,
			Offset: from - offset, Elements: to - from})
	}
	if steps {
		o := place.OptimizerOf(bucket)
		c.Optimizer = &o
	}
	return c
}

// Step implements Table.
func (t *Array) Step() { t.stepping = true }

// applyValues is the number of values, including slots, that are stepped together: 256 KiB, so that rows are still in
// the processor's cache when their new values are copied back.
const applyValues = 1 << 16

// Apply implements Table. Kernels need outputs that do not overlap their inputs, unless the index ascends, and values
// that are not finite must not get into the table. So new values are checked before they replace the rows.
func (t *Array) Apply(g RowGradient) error {
	t.stepping = true
	n := len(g.Keys)
	t.ids = grown(t.ids, n)
	t.places.find(g.Keys, t.ids)
	t.want(t.ids)
	t.change(t.ids)
	steps := t.version >= t.config.Start
	most := max(1, applyValues/t.valuesPerRow())
	for lo := 0; lo < n; lo += most {
		hi := min(lo+most, n)
		places := t.ids[lo:hi]
		part := RowGradient{Keys: g.Keys[lo:hi], Sums: g.Sums.Slice(lo*t.dim, hi*t.dim), Weight: g.Weight, Scale: g.Scale}
		var err error
		if steps {
			err = t.stepRows(places, part)
		} else {
			err = t.assignRows(part)
		}
		if err == nil {
			err = t.checkOutcome(g.Keys[lo:hi], steps)
		}
		if err != nil {
			return err
		}
		if t.config.Undo {
			t.record(&t.undo.open, places)
		}
		t.put(places, &t.outcome, steps)
	}
	return nil
}

// valuesPerRow returns the number of values of a row with its slots.
func (t *Array) valuesPerRow() int {
	n := t.dim
	for _, s := range t.rule.slots {
		n += s.width(t.dim)
	}
	return n
}

// stepRows writes a step of rows to outcome.
func (t *Array) stepRows(places []int64, g RowGradient) error {
	out, n := &t.outcome, len(places)
	a := t.stepOf(places, g)
	out.rows = grown(out.rows, n*t.dim)
	a.Out = cuda.Float32s(out.rows)
	for i, s := range t.rule.slots {
		out.slots[i] = grown(out.slots[i], n*s.width(t.dim))
		t.pass[i].After = cuda.Float32s(out.slots[i])
	}
	if t.marked() {
		out.marks = grown(out.marks, n)
	}
	switch {
	case t.last != nil:
		a.Steps = cuda.Steps{Last: cuda.Int64s(t.last), LastAfter: cuda.Int64s(out.marks), Step: int64(t.steps + 1),
			Exact: true}
	case t.stepped != nil:
		t.first = grown(t.first, n)
		for i, at := range places {
			t.first[i], out.marks[i] = 1-t.stepped[at], 1
		}
		a.First = cuda.Uint8s(t.first)
	}
	return cuda.NameMismatch(t.config.Backend.ApplyRows(a), func(e *cuda.MismatchError) string {
		return e.InTable(t.config.Spec.Name, g.Keys[min(e.Row(), n-1)])
	})
}

// assignRows writes sums divided by their weight to outcome. This is no step, so the optimizer's state stays.
func (t *Array) assignRows(g RowGradient) error {
	t.stepping = false
	t.outcome.rows = grown(t.outcome.rows, len(g.Keys)*t.dim)
	return t.config.Backend.Average(cuda.Average{Lanes: 1, Weight: g.Weight,
		Terms: []cuda.Term{{Count: 1, Values: g.Sums}}, Out: cuda.Float32s(t.outcome.rows)})
}

// stepOf returns the kernel call that steps rows. The caller sets the outputs, and those of each slot in pass.
func (t *Array) stepOf(places []int64, g RowGradient) cuda.ApplyRows {
	t.pass = t.pass[:0]
	for i, s := range t.rule.slots {
		t.pass = append(t.pass, cuda.Slot{Name: s.name, Before: cuda.Float32s(t.slots[i])})
	}
	return cuda.ApplyRows{
		Dim: t.dim, Optimizer: t.rule.at(t.version+t.beyond, t.steps), Clip: t.rule.clipped(g.Scale), Weight: g.Weight,
		Slots: t.pass,
		Table: cuda.Float32s(t.rows), Index: cuda.Int64s(places), Grad: g.Sums,
	}
}

// Commit implements Table. A step counts even if none of its rows are here, so that the number does not depend on how a
// table is cut.
func (t *Array) Commit() {
	if t.stepping && t.version >= t.config.Start {
		t.steps++
	}
	t.undo.retain()
	t.stepping = false
	t.version++
}

// catchUp applies, in the table, the steps that rows have missed, each as a step with a gradient of zero. The last one
// is a step with that gradient; the kernel repeats those before it.
func (t *Array) catchUp(places []int64) error {
	late := t.late[:0]
	for _, at := range places {
		if t.last[at] < int64(t.steps) {
			late = append(late, at)
		}
	}
	t.late = late
	if len(late) == 0 {
		return nil
	}
	slices.Sort(late)
	late = slices.Compact(late)
	t.change(late)
	if n := len(late) * t.dim; len(t.zeros) < n {
		t.zeros = make([]float32, n)
	}
	a := t.stepOf(late, RowGradient{Sums: cuda.Float32s(t.zeros[:len(late)*t.dim]), Weight: 1, Scale: 1})
	for i := range a.Slots {
		a.Slots[i].After = a.Slots[i].Before
	}
	last := cuda.Int64s(t.last)
	a.Out, a.Steps = a.Table, cuda.Steps{Last: last, LastAfter: last, Step: int64(t.steps), Exact: true}
	if err := t.config.Backend.ApplyRows(a); err != nil {
		return err
	}
	return t.checkRows(late)
}
