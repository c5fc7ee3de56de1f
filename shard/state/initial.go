package state

import (
	"context"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"gradbus/philox"
	"gradbus/schema"
)

// initial is version 0 of the rows of an Array, and of what the optimizer keeps of them. It is drawn block by block:
// all of them, in parallel, when the table is made; or, where that would take long, each when the first of its rows is
// wanted. Memory of rows that are never wanted is not touched then.
type initial struct {
	filler philox.Filler
	drawn  []uint64 // a bit for each block; nil where all are drawn
}

const (
	drawnAtOnceMax = 1 << 28 // values: 1 GiB, 4 s of one processor
	blockValues    = 64      // of a block at most, unless it is one row: 1 us of a lookup, and a bit for 256 bytes
)

// blockShift is the power of two that is the number of rows in a block.
func blockShift(dim int) int { return bits.Len(uint(max(1, blockValues/dim))) - 1 }

// drawnBytes is what tells which blocks of a table are drawn.
func drawnBytes(rows, dim int64) int64 {
	if rows*dim <= drawnAtOnceMax {
		return 0
	}
	return rows>>blockShift(int(dim))/8 + 8
}

// draw draws all rows, unless ctx ends before, or sees to it that they are when they are wanted.
func (t *Array) draw(ctx context.Context) (err error) {
	init, n := t.config.Spec.Init, t.places.count()
	if t.initial.filler, err = philox.NewFiller(init.Kind, init.Scale, t.config.Seed, t.config.Spec.Name); err != nil {
		return err
	}
	if init.Kind == schema.InitZeros && t.rule.initial == 0 {
		return nil // as the memory is
	}
	blocks := (n-1)>>blockShift(t.dim) + 1
	if n*t.dim > drawnAtOnceMax || t.config.Late {
		t.initial.drawn, err = alloc[uint64](t, (blocks+63)/64)
		return err
	}
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), blocks) {
		workers.Go(func() {
			for ctx.Err() == nil {
				block := int(next.Add(1) - 1)
				if block >= blocks {
					return
				}
				t.drawBlock(block)
			}
		})
	}
	workers.Wait()
	return ctx.Err()
}

// want draws the rows at places that are not drawn yet.
func (t *Array) want(places []int64) {
	if t.initial.drawn == nil {
		return
	}
	shift := blockShift(t.dim)
	for _, at := range places {
		t.wantBlock(int(at) >> shift)
	}
}

// wantAll draws those of the places [first, end).
func (t *Array) wantAll(first, end int) {
	if t.initial.drawn == nil || first == end {
		return
	}
	shift := blockShift(t.dim)
	for block := first >> shift; block <= (end-1)>>shift; block++ {
		t.wantBlock(block)
	}
}

func (t *Array) wantBlock(block int) {
	word, bit := &t.initial.drawn[block/64], uint64(1)<<(block%64)
	if *word&bit == 0 {
		t.drawBlock(block)
		*word |= bit
	}
}

// drawBlock draws the rows of a block. Each is a pure function of (seed, table, key).
func (t *Array) drawBlock(block int) {
	shift := blockShift(t.dim)
	first, end := block<<shift, min((block+1)<<shift, t.places.count())
	p := t.places.partition(first)
	for at := first; at < end; at++ {
		for at == t.places.first[p+1] {
			p++
		}
		if key := t.places.keys.Key(p, uint64(at-t.places.first[p])); t.config.Spec.Pads(key) {
			clear(t.row(at))
		} else {
			t.initial.filler.Part(t.row(at), key, uint64(t.config.Column))
		}
	}
	for i, s := range t.rule.slots {
		width := s.width(t.dim)
		fill(t.slots[i][first*width:end*width], t.rule.initial)
	}
}
