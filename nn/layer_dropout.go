package nn

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/philox"
)

// Dropout sets each value to 0 with probability P in training and multiplies the others by 1/(1-P); in evaluation it
// passes them on. x and y have any shape, and the gradient goes through the same mask. What is dropped is drawn from
// the pass's Random and the layer's place alone, sample after sample, value after value in the order [C, H, W].
type Dropout struct {
	P float32 `json:"p"`
}

// dropout2d is Dropout of whole channels of images, x [n, C, H, W].
type dropout2d struct {
	P float32 `json:"p"`
}

func (l Dropout) Parameters() []Parameter                 { return nil }
func (l Dropout) parameters() []Parameter                 { return nil }
func (l Dropout) OutShape(in []int) ([]int, error)        { return in, nil }
func (l Dropout) append(to []placed, p string) []placed   { return append(to, placed{l, p}) }
func (l Dropout) config() (string, any)                   { return "dropout", l }
func (l Dropout) check() error                            { return probability("dropout", l.P) }
func (l Dropout) layout(cuda.Layout) (cuda.Layout, bool)  { return cuda.NCHW, true }
func (l dropout2d) Parameters() []Parameter               { return nil }
func (l dropout2d) parameters() []Parameter               { return nil }
func (l dropout2d) append(to []placed, p string) []placed { return append(to, placed{l, p}) }
func (l dropout2d) config() (string, any)                 { return "dropout2d", l }
func (l dropout2d) check() error                          { return probability("dropout2d", l.P) }

// layout is any: channels are dropped whole.
func (l dropout2d) layout(cuda.Layout) (cuda.Layout, bool) { return 0, false }

// OutShape takes samples of shape [C, H, W].
func (l dropout2d) OutShape(in []int) ([]int, error) {
	if len(in) != 3 {
		return nil, badInput("dropout2d", in, "[C, H, W]")
	}
	return in, nil
}

func probability(layer string, p float32) error {
	if !(p >= 0 && p <= 1) {
		return fmt.Errorf("%w: %s p %v: want 0 to 1", ErrConfig, layer, p)
	}
	return nil
}

func (l Dropout) work(e Env, s site) work {
	return &dropoutWork{dense: e.Dense, p: l.P, at: s.at, channels: product(s.in), plane: 1}
}

func (l dropout2d) work(e Env, s site) work {
	return &dropoutWork{dense: e.Dense, p: l.P, at: s.at, channels: s.in[0], plane: s.in[1] * s.in[2], layout: s.inLayout}
}

type dropoutWork struct {
	dense           *cuda.Dense
	p               float32
	at              int // place of the layer
	channels, plane int
	layout          cuda.Layout
	mask            []float32 // [n, channels]: 0, or 1/(1-p)
	y, gradX        []float32
}

func (w *dropoutWork) keepsY() bool { return false }
func (w *dropoutWork) values() int  { return w.channels * (1 + 2*w.plane) }

func (w *dropoutWork) idle(p *pass) bool { return !p.mode.Train || w.p == 0 }

func (w *dropoutWork) forward(p *pass, x []float32) ([]float32, error) {
	if w.idle(p) {
		return x, nil
	}
	w.mask = grown(w.mask, p.n*w.channels)
	r := p.mode.Random
	source := philox.New(r.Seed, "dropout", r.Batch, r.Lane, uint64(w.at))
	source.Mask(w.mask, w.p)
	return w.through(p, x, &w.y)
}

func (w *dropoutWork) backward(p *pass, gradY []float32) ([]float32, error) {
	if !p.wantX || w.idle(p) {
		return gradY, nil
	}
	return w.through(p, gradY, &w.gradX)
}

// through multiplies by the mask, in place where that is allowed.
func (w *dropoutWork) through(p *pass, x []float32, own *[]float32) ([]float32, error) {
	out := x
	if !p.mayWrite {
		*own = grown(*own, len(x))
		out = *own
	}
	return out,
		w.dense.Scale(cuda.Scale{N: p.n, C: w.channels, Plane: w.plane, Layout: w.layout, X: x, By: w.mask, Out: out})
}
