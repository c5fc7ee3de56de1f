package nn

import "gradbus/cuda"

// ReLU is y = max(x, 0), element by element; x and y have any shape. A NaN stays one, as in PyTorch. Behind a
// convolution or a linear layer it is computed with that.
//
//	gradX = gradY where y > 0, else 0
type ReLU struct{}

func (ReLU) Parameters() []Parameter                 { return nil }
func (ReLU) parameters() []Parameter                 { return nil }
func (ReLU) OutShape(in []int) ([]int, error)        { return in, nil }
func (r ReLU) append(to []placed, p string) []placed { return append(to, placed{r, p}) }
func (r ReLU) config() (string, any)                 { return "relu", r }
func (ReLU) check() error                            { return nil }
func (ReLU) layout(cuda.Layout) (cuda.Layout, bool)  { return 0, false }

func (ReLU) work(e Env, s site) work {
	return &reluWork{dense: e.Dense, done: s.relu, size: product(s.in)}
}

type reluWork struct {
	dense         *cuda.Dense
	done          bool // by the layer before
	size          int
	y, own, gradX []float32
}

// keepsY is true: where y is 0 the gradient is.
func (w *reluWork) keepsY() bool { return true }
func (w *reluWork) values() int  { return 2 * w.size }

func (w *reluWork) forward(p *pass, x []float32) ([]float32, error) {
	w.y = x
	if w.done {
		return x, nil
	}
	if !p.mayWrite {
		w.own = grown(w.own, len(x))
		w.y = w.own
	}
	return w.y, w.dense.ReLUForward(x, w.y)
}

func (w *reluWork) backward(p *pass, gradY []float32) ([]float32, error) {
	if !p.wantX {
		return nil, nil
	}
	gradX := gradY
	if !p.mayWrite {
		w.gradX = grown(w.gradX, len(gradY))
		gradX = w.gradX
	}
	return gradX, w.dense.ReLUBackward(w.y, gradY, gradX)
}

// Flatten makes one dimension of all that a sample has: [C, H, W] becomes [C*H*W]. No value moves.
type Flatten struct{}

func (Flatten) Parameters() []Parameter                 { return nil }
func (Flatten) parameters() []Parameter                 { return nil }
func (Flatten) OutShape(in []int) ([]int, error)        { return []int{product(in)}, nil }
func (f Flatten) append(to []placed, p string) []placed { return append(to, placed{f, p}) }
func (f Flatten) config() (string, any)                 { return "flatten", f }
func (Flatten) check() error                            { return nil }
func (Flatten) layout(cuda.Layout) (cuda.Layout, bool)  { return cuda.NCHW, true }
func (Flatten) work(Env, site) work                     { return flattenWork{} }

type flattenWork struct{}

func (flattenWork) keepsY() bool { return false }
func (flattenWork) values() int  { return 0 }

func (flattenWork) forward(_ *pass, x []float32) ([]float32, error) { return x, nil }

func (flattenWork) backward(_ *pass, gradY []float32) ([]float32, error) { return gradY, nil }
