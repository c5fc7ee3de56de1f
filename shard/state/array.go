package state

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"gradbus/cuda"
	"gradbus/schema"
)

// ArrayConfig is what an array table is made from. Every field but LR, Start and Late is needed.
type ArrayConfig struct {
	Backend   cuda.Backend
	Spec      *schema.TableSpec
	Optimizer schema.Optimizer
	LR        *LRChanges
	Seed      uint64 // of the job
	Here      func(schema.Partition) bool
	Column    int // the first column that is here
	Columns   int // that are here

	// Start is the first version that steps move: before it they assign (schema.StartModel).
	Start schema.Version

	// Undo records what rows were before a round, until the next one is committed: for Rollback and ReadPrevious, and so
	// that an open round does not show. A table without it has none of these.
	Undo bool

	// Touches is that rows note when they change, for copies of what was touched: a byte a row.
	Touches bool

	// Late is that rows are drawn when they are first wanted, however few they are: of a table that will be restored.
	Late bool

	// For tests: what gives zeroed memory and how to free it, nil for Backend.Alloc.
	alloc func(values int) ([]float32, func(), error)
}

// Array is a Table over keys [0, Rows): a row for each in an array in host memory, outside the Go heap.
type Array struct {
	places  places
	config  ArrayConfig
	rule    *rule
	dim     int // columns that are here
	version schema.Version
	steps   uint64         // that were done
	beyond  schema.Version // as of a denseChunk
	free    []func()       // of memory
	initial initial

	rows    []float32   // [places, dim], of version
	slots   [][]float32 // [rule.slots][places, width]
	stepped []uint8     // [places] the row has had a step; nil where the optimizer does not ask
	last    []int64     // [places] the newest step of the row, from 1; in place of stepped where steps are made up for

	copying *arrayCopy // nil where nothing is copied
	touched touched

	undo     undoLog
	stepping bool     // the open round is a step
	outcome  rowState // of the rows that are stepped at once
	first    []uint8
	pass     []cuda.Slot
	ids      []int64 // scratch of locate
	late     []int64 // of catchUp
	bags     []int64
	zeros    []float32
}

// NewArray draws version 0 of the rows that are here, which takes about 15 ns a value and uses all processors, unless
// ctx ends before. Rows of more than 1 GiB are drawn when they are first wanted. Close frees it, also after an error of
// a later part of what it belongs to.
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

// alloc gives n zeros, until Close.
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

// Close frees rows, slots and what is known of rows.
func (t *Array) Close() {
	for _, free := range t.free {
		free()
	}
	t.free, t.rows, t.slots, t.stepped, t.last, t.initial.drawn, t.touched.at = nil, nil, nil, nil, nil, nil, nil
}

// String is what is known of the table, and checksums of what is there, for tests and logs.
func (t *Array) String() string {
	text := fmt.Sprintf("%s: version %d steps %d rows %08x marks %d open %d", t.config.Spec.Name, t.version, t.steps,
		checksum(t.rows), len(t.stepped)+len(t.last), len(t.undo.open.places))
	for i, s := range t.rule.slots {
		text += fmt.Sprintf(" %s %08x", s.name, checksum(t.slots[i]))
	}
	return text
}

// row is the row at a place.
func (t *Array) row(at int) []float32 { return t.rows[at*t.dim : (at+1)*t.dim] }

// Version counts commits.
func (t *Array) Version() schema.Version { return t.version }

// Gather copies the rows of keys.
func (t *Array) Gather(keys []uint64, rows []float32) error {
	t.hideOpen()
	defer t.hideOpen()
	if err := t.locate(keys); err != nil {
		return err
	}
	return t.config.Backend.Gather(cuda.Gather{Dim: t.dim, Rows: cuda.Float32s(t.rows), IDs: cuda.Int64s(t.ids),
		Out: cuda.Float32s(rows[:len(keys)*t.dim])})
}

// locate puts the places of keys into ids, whose rows may then be read.
func (t *Array) locate(keys []uint64) error {
	t.ids = grown(t.ids, len(keys))
	t.places.find(keys, t.ids)
	t.want(t.ids)
	if t.last != nil {
		return t.catchUp(t.ids)
	}
	return nil
}

// Pool makes each bag one row.
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

// Left is how many rows a partition has from a key on.
func (t *Array) Left(p schema.Partition, cursor uint64) int {
	first, end := t.places.from(p, cursor)
	return end - first
}

// Scan reads rows of a partition.
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

// grown gives n elements that reuse s where it is large enough. They are what they happen to be.
func grown[T any](s []T, n int) []T {
	if cap(s) >= n {
		return s[:n]
	}
	return slices.Grow(s[:0], n)[:n]
}

// extended gives s n elements more, whatever they are.
func extended[T any](s []T, n int) []T { return slices.Grow(s, n)[:len(s)+n] }
