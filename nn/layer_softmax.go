package nn

import "gradbus/cuda"

// Softmax is y = exp(x) / sum(exp(x)) over the classes of a sample: x and y [n, classes]. The largest x is taken off
// first, so that nothing overflows.
//
//	gradX = y * (gradY - sum(gradY * y))
type Softmax struct{}

// logSoftmax is y = x - log(sum(exp(x))) over the classes of a sample: x and y [n, classes].
//
//	gradX = gradY - exp(y) * sum(gradY)
type logSoftmax struct{}

func (Softmax) Parameters() []Parameter                 { return nil }
func (Softmax) parameters() []Parameter                 { return nil }
func (Softmax) OutShape(in []int) ([]int, error)        { return classes("softmax", in) }
func (s Softmax) append(to []placed, p string) []placed { return append(to, placed{s, p}) }
func (s Softmax) config() (string, any)                 { return "softmax", s }
func (Softmax) check() error                            { return nil }
func (Softmax) layout(cuda.Layout) (cuda.Layout, bool)  { return cuda.NCHW, true }
func (Softmax) work(e Env, s site) work                 { return &softmaxWork{dense: e.Dense, classes: s.in[0]} }

func (logSoftmax) Parameters() []Parameter                 { return nil }
func (logSoftmax) parameters() []Parameter                 { return nil }
func (logSoftmax) OutShape(in []int) ([]int, error)        { return classes("log_softmax", in) }
func (s logSoftmax) append(to []placed, p string) []placed { return append(to, placed{s, p}) }
func (s logSoftmax) config() (string, any)                 { return "log_softmax", s }
func (logSoftmax) check() error                            { return nil }
func (logSoftmax) layout(cuda.Layout) (cuda.Layout, bool)  { return cuda.NCHW, true }
func (logSoftmax) work(e Env, s site) work {
	return &softmaxWork{dense: e.Dense, classes: s.in[0], log: true}
}

func classes(layer string, in []int) ([]int, error) {
	if len(in) != 1 || in[0] < 1 {
		return nil, badInput(layer, in, "[classes]")
	}
	return in, nil
}

type softmaxWork struct {
	dense         *cuda.Dense
	classes       int
	log           bool
	y, own, gradX []float32
}

// keepsY is true: the gradient is made from y.
func (w *softmaxWork) keepsY() bool { return true }
func (w *softmaxWork) values() int  { return 2 * w.classes }

func (w *softmaxWork) forward(p *pass, x []float32) ([]float32, error) {
	w.y = x
	if !p.mayWrite {
		w.own = grown(w.own, len(x))
		w.y = w.own
	}
	return w.y, w.dense.Softmax(cuda.RowSoftmax{Rows: p.n, Columns: w.classes, Log: w.log, X: x, Y: w.y})
}

func (w *softmaxWork) backward(p *pass, gradY []float32) ([]float32, error) {
	if !p.wantX {
		return nil, nil
	}
	gradX := gradY
	if !p.mayWrite {
		w.gradX = grown(w.gradX, len(gradY))
		gradX = w.gradX
	}
	return gradX, w.dense.SoftmaxBackward(cuda.RowSoftmaxBackward{Rows: p.n, Columns: w.classes, Log: w.log,
		Y: w.y, GradY: gradY, GradX: gradX})
}
