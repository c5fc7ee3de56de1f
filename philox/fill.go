package philox

import (
	"context"
	"errors"
	"fmt"
)

// ErrKind reports an unknown name of a distribution. Nothing was written.
var ErrKind = errors.New("unknown kind of initial values")

// Kinds of initial values.
const (
	Zeros   = "zeros"   // +0
	Uniform = "uniform" // in [-scale, scale): float32(t * scale), t a multiple of 2^-23 in [-1, 1)
	Normal  = "normal"  // float32(normal64(bits) * float64(scale))
)

// Filler draws the initial values of one tensor or table. It has no position, so it is safe for concurrent use.
type Filler struct {
	kind  string
	scale float32
	key   [2]uint32
}

// NewFiller prepares the initial values of a tensor or table of the job with the given seed. It fails with ErrKind.
//
// Element i of row k is word i%4 of Block(counter = (i/4, k), key), with key the first two words of Block(counter =
// (FNV("initial"), FNV(name)), seed). A dense tensor is row 0.
func NewFiller(kind string, scale float32, seed uint64, name string) (Filler, error) {
	switch kind {
	case Zeros, Uniform, Normal:
	default:
		return Filler{}, fmt.Errorf("initial values of %q: %w %q: want %q, %q or %q", name, ErrKind, kind, Zeros,
			Uniform, Normal)
	}
	s0, s1 := pair(seed)
	k := block(FNV("initial"), FNV(name), [2]uint32{s0, s1})
	return Filler{kind: kind, scale: scale, key: [2]uint32{k[0], k[1]}}, nil
}

// row writes the first len(dst) initial values of the row with the given key. A normal value costs about 15 ns.
func (f Filler) row(dst []float32, key uint64) { f.fill(dst, key, 0) }

// Part writes len(dst) values of the row with the given key, beginning with element from: the values that FillRow would
// write there.
func (f Filler) Part(dst []float32, key, from uint64) {
	if skip := from % 4; skip > 0 {
		var one [4]float32
		f.fill(one[:], key, from/4)
		n := copy(dst, one[skip:])
		dst, from = dst[n:], from+uint64(n)
	}
	f.fill(dst, key, from/4)
}

// DrawPiece is the number of values, about a millisecond's work, after which Draw checks its context.
const DrawPiece = 1 << 16

// Draw writes len(dst) values of a dense tensor, beginning with element from. If ctx ends first, it returns the cause.
func (f Filler) Draw(ctx context.Context, dst []float32, from int) error {
	for len(dst) > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(len(dst), DrawPiece)
		f.Part(dst[:n], 0, uint64(from))
		dst, from = dst[n:], from+n
	}
	return nil
}

// fill writes values from the first one of a block on.
func (f Filler) fill(dst []float32, key, block uint64) {
	switch f.kind {
	case Uniform:
		f.fillUniform(dst, key, block)
	case Normal:
		f.fillNormal(dst, key, block)
	default:
		clear(dst)
	}
}

func (f Filler) fillUniform(dst []float32, high, at uint64) {
	for ; len(dst) >= 4; dst = dst[4:] {
		w := block(at, high, f.key)
		dst[0] = symmetric(w[0]) * f.scale
		dst[1] = symmetric(w[1]) * f.scale
		dst[2] = symmetric(w[2]) * f.scale
		dst[3] = symmetric(w[3]) * f.scale
		at++
	}
	if len(dst) > 0 {
		w := block(at, high, f.key)
		for i := range dst {
			dst[i] = symmetric(w[i]) * f.scale
		}
	}
}

func (f Filler) fillNormal(dst []float32, high, at uint64) {
	scale := float64(f.scale)
	for ; len(dst) >= 4; dst = dst[4:] {
		w := block(at, high, f.key)
		dst[0] = float32(normal64(w[0]) * scale)
		dst[1] = float32(normal64(w[1]) * scale)
		dst[2] = float32(normal64(w[2]) * scale)
		dst[3] = float32(normal64(w[3]) * scale)
		at++
	}
	if len(dst) > 0 {
		w := block(at, high, f.key)
		for i := range dst {
			dst[i] = float32(normal64(w[i]) * scale)
		}
	}
}

// FillTensor writes the initial values of the dense tensor name, all of it, row-major. It fails with ErrKind.
//
//	philox.FillTensor(weight, philox.Uniform, 0.125, seed, "linear.weight")
func FillTensor(dst []float32, kind string, scale float32, seed uint64, name string) error {
	return FillRow(dst, kind, scale, seed, name, 0)
}

// FillRow writes the initial values of one row of the table name. A caller that fills many rows keeps a Filler instead.
// It fails with ErrKind.
func FillRow(dst []float32, kind string, scale float32, seed uint64, name string, key uint64) error {
	f, err := NewFiller(kind, scale, seed, name)
	if err != nil {
		return err
	}
	f.row(dst, key)
	return nil
}
