package nn

import "gradbus/cuda"

// LinearLayer is y = x W' + b as a module: x [n, In], W [Out, In] called "weight", b [Out] called "bias", y [n, Out].
// Both begin uniform in [-1/sqrt(In), 1/sqrt(In)), as in PyTorch.
//
//	gradW = gradY' x      gradB = the sum of gradY over the samples      gradX = gradY W
type LinearLayer struct {
	In     int  `json:"in"`
	Out    int  `json:"out"`
	NoBias bool `json:"no_bias,omitempty"`
}

func (l LinearLayer) Parameters() []Parameter { return parametersOf(l) }

func (l LinearLayer) parameters() []Parameter {
	all := []Parameter{uniform("weight", l.In, l.Out, l.In), uniform("bias", l.In, l.Out)}
	if l.NoBias {
		return all[:1]
	}
	return all
}

// OutShape takes samples of shape [In].
func (l LinearLayer) OutShape(in []int) ([]int, error) {
	if len(in) != 1 || in[0] != l.In {
		return nil, badInput("linear", in, "[%d]", l.In)
	}
	return []int{l.Out}, nil
}

func (l LinearLayer) append(to []placed, prefix string) []placed {
	return append(to, placed{l, prefix})
}

func (l LinearLayer) config() (string, any) { return "linear", l }

func (l LinearLayer) check() error {
	return firstError(between("linear", "in", l.In, 1, sizeMax), between("linear", "out", l.Out, 1, sizeMax))
}

func (l LinearLayer) layout(cuda.Layout) (cuda.Layout, bool) { return cuda.NCHW, true }

func (l LinearLayer) work(e Env, s site) work {
	return &linearWork{spec: l, dense: e.Dense, relu: s.relu}
}

type linearWork struct {
	spec     LinearLayer
	dense    *cuda.Dense
	relu     bool // of the layer that follows
	x        []float32
	y, gradX []float32
}

func (w *linearWork) keepsY() bool { return false }
func (w *linearWork) values() int  { return w.spec.In + w.spec.Out }

func (w *linearWork) forward(p *pass, x []float32) ([]float32, error) {
	w.x, w.y = x, grown(w.y, p.n*w.spec.Out)
	g := cuda.Gemm{M: p.n, N: w.spec.Out, K: w.spec.In, TransB: true, ReLU: w.relu, A: x, B: p.params[0], C: w.y}
	if !w.spec.NoBias {
		g.Bias = p.params[1]
	}
	return w.y, w.dense.Gemm(g)
}

func (w *linearWork) backward(p *pass, gradY []float32) ([]float32, error) {
	if err := w.backwardParams(p, gradY); err != nil || !p.wantX {
		return nil, err
	}
	w.gradX = grown(w.gradX, p.n*w.spec.In)
	return w.gradX, w.dense.Gemm(cuda.Gemm{M: p.n, N: w.spec.In, K: w.spec.Out, A: gradY, B: p.params[0], C: w.gradX})
}

func (w *linearWork) backwardParams(p *pass, gradY []float32) error {
	if !w.spec.NoBias {
		bias, err := p.gradOf(1)
		if err != nil {
			return err
		}
		if bias != nil {
			if err := w.dense.ColumnSums(cuda.ColumnSums{Rows: p.n, Columns: w.spec.Out, X: gradY, Out: bias}); err != nil {
				return err
			}
		}
		p.finish(1)
	}
	weight, err := p.gradOf(0)
	if err != nil {
		return err
	}
	if weight != nil {
		err = w.dense.Gemm(cuda.Gemm{M: w.spec.Out, N: w.spec.In, K: p.n, TransA: true, A: gradY, B: w.x, C: weight})
		if err != nil {
			return err
		}
	}
	p.finish(0)
	return nil
}
