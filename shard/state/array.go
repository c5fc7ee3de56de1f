package state

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"gradbus/cuda"
	"gradbus/philox"
	"gradbus/schema"
)

// ArrayConfig is what an array table is made from. Every field but LR and Start is needed.
type ArrayConfig struct {
	Backend   cuda.Backend
	Spec      *schema.TableSpec
	Optimizer schema.Optimizer
	LR        *LRChanges
	Seed      uint64 // of the job
	Places    *Places
	Column    int // the first column that is here
	Columns   int // that are here

	// Start is the first version that steps move: before it they assign (schema.StartModel).
	Start schema.Version
}

// Array is a Table over keys [0, Rows): a row for each in an array in host memory, outside the Go heap.
type Array struct {
	*Places
	config  ArrayConfig
	rule    *rule
	dim     int // columns that are here
	version schema.Version
	steps   uint64 // that were done
	memory  []*cuda.Buffer

	rows    []float32   // [places, dim], of version
	slots   [][]float32 // [rule.slots][places, width]
	stepped []uint8     // [places] the row has had a step; nil where the optimizer does not ask
	last    []int64     // [places] the newest step that the row has had, from 1; in place of stepped where steps are made up for

	staged staged
	ids    []int64 // scratch of Pool and catchUp
	bags   []int64
	zeros  []float32
}

// NewArray draws version 0 of the rows that are here, which takes about 15 ns a value and uses all processors, unless ctx ends
// before. Close frees it, also after an error of a later part of what it belongs to.
func NewArray(ctx context.Context, c ArrayConfig) (_ *Array, err error) {
	t := &Array{Places: c.Places, config: c, dim: c.Columns}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if t.rule, err = newRule(c.Optimizer, c.LR, c.Start); err != nil {
		return nil, err
	}
	n := t.Places.Rows()
	if t.rows, err = t.alloc(n * t.dim); err != nil {
		return nil, err
	}
	for _, s := range t.rule.slots {
		values, err := t.alloc(n * s.width(t.dim))
		if err != nil {
			return nil, err
		}
		fill(values, t.rule.initial)
		t.slots = append(t.slots, values)
	}
	switch {
	case t.rule.exact:
		t.last = make([]int64, n)
	case t.rule.marks:
		t.stepped = make([]uint8, n)
	}
	t.staged.slots = make([][]float32, len(t.slots))
	return t, t.draw(ctx)
}

func (t *Array) alloc(values int) ([]float32, error) {
	b, err := t.config.Backend.Alloc(values)
	if err != nil {
		return nil, fmt.Errorf("allocate %d values: %w", values, err)
	}
	t.memory = append(t.memory, b)
	return b.Float32s(), nil
}

// Close frees rows and slots.
func (t *Array) Close() {
	for _, b := range t.memory {
		b.Free()
	}
	t.memory, t.rows, t.slots = nil, nil, nil
}

// draw draws the rows, in parallel: a row is a pure function of (seed, table, key).
func (t *Array) draw(ctx context.Context) error {
	spec := t.config.Spec
	filler, err := philox.NewFiller(spec.Init.Kind, spec.Init.Scale, t.config.Seed, spec.Name)
	if err != nil {
		return err
	}
	every := max(1, lookEvery/spec.Dim) // rows
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(t.keys)/every+1) {
		workers.Go(func() {
			row := make([]float32, spec.Dim)
			for ctx.Err() == nil {
				first := int(next.Add(1)-1) * every
				if first >= len(t.keys) {
					return
				}
				for at := first; at < min(first+every, len(t.keys)); at++ {
					filler.Row(row, uint64(t.keys[at]))
					copy(t.row(at), row[t.config.Column:])
				}
			}
		})
	}
	workers.Wait()
	return ctx.Err()
}

// String is what is known of the table, and checksums of what is there, for tests and logs.
func (t *Array) String() string {
	text := fmt.Sprintf("%s: version %d steps %d rows %08x marks %d staged %d", t.config.Spec.Name, t.version, t.steps, checksum(t.rows),
		len(t.stepped)+len(t.last), t.staged.places)
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
	if t.last != nil {
		if err := t.catchUp(keys); err != nil {
			return err
		}
	}
	for _, key := range keys {
		rows = rows[copy(rows, t.row(int(t.places[key]))):]
	}
	return nil
}

// Pool makes each bag one row.
func (t *Array) Pool(b Bags, out []float32) error {
	if t.last != nil {
		if err := t.catchUp(b.Keys); err != nil {
			return err
		}
	}
	t.ids, t.bags = grown(t.ids, len(b.Keys)), grown(t.bags, len(b.Offsets))
	for i, key := range b.Keys {
		t.ids[i] = int64(t.places[key])
	}
	for i, at := range b.Offsets {
		t.bags[i] = int64(at)
	}
	return t.config.Backend.BagForward(cuda.BagForward{Dim: t.dim, Mode: b.Mode, Padding: cuda.NoPadding, OpenOffsets: true,
		Rows: cuda.Float32s(t.rows), IDs: cuda.Int64s(t.ids), Offsets: cuda.Int64s(t.bags), Out: cuda.Float32s(out)})
}

// Left is how many rows a partition has from a key on.
func (t *Array) Left(p schema.Partition, cursor uint64) (rows int, here bool) {
	first, end, here := t.from(p, cursor)
	return end - first, here
}

// Scan reads rows of a partition.
func (t *Array) Scan(p schema.Partition, cursor uint64, keys []uint64, rows []float32) error {
	first, _, _ := t.from(p, cursor)
	for i := range keys {
		keys[i] = uint64(t.keys[first+i])
	}
	if t.last != nil {
		if err := t.catchUp(keys); err != nil {
			return err
		}
	}
	copy(rows, t.rows[first*t.dim:(first+len(keys))*t.dim])
	return nil
}

// fill sets memory that is zeroed.
func fill(values []float32, to float32) {
	if to == 0 {
		return // pages that nobody touches cost nothing
	}
	for i := range values {
		values[i] = to
	}
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
