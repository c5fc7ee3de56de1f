package nn

// LinearLayer is y = x W' + b as a module: x [n, In], W [Out, In] called "weight", b [Out] called "bias", y [n, Out]. Both
// begin uniform in [-1/sqrt(In), 1/sqrt(In)), as in PyTorch.
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

func (l LinearLayer) work(e Env, _, _ []int, _ int) work {
	return &linearWork{spec: l, layer: NewLinear(e.Backend, l.In, l.Out)}
}

type linearWork struct {
	spec     LinearLayer
	layer    *Linear
	x        []float32
	y, gradX []float32
	unwanted []float32 // a weight's gradient that nobody wants
}

func (w *linearWork) keepsY() bool { return false }

func (w *linearWork) forward(p *pass, x []float32) ([]float32, error) {
	w.x, w.y = x, grown(w.y, p.n*w.spec.Out)
	var bias []float32
	if !w.spec.NoBias {
		bias = p.params[1]
	}
	return w.y, w.layer.Forward(p.params[0], bias, x, w.y)
}

func (w *linearWork) backward(p *pass, gradY []float32) ([]float32, error) {
	if err := w.backwardParams(p, gradY); err != nil || !p.wantX {
		return nil, err
	}
	w.gradX = grown(w.gradX, p.n*w.spec.In)
	return w.gradX, w.layer.BackwardInput(p.params[0], gradY, w.gradX)
}

func (w *linearWork) backwardParams(p *pass, gradY []float32) error {
	var bias []float32
	if !w.spec.NoBias {
		var err error
		if bias, err = p.gradOf(1); err != nil {
			return err
		}
	}
	weight, err := p.gradOf(0)
	if err != nil {
		return err
	}
	if weight == nil {
		w.unwanted = grown(w.unwanted, w.spec.Out*w.spec.In)
		weight = w.unwanted
	}
	if err := w.layer.BackwardParams(w.x, gradY, weight, bias); err != nil {
		return err
	}
	if !w.spec.NoBias {
		p.finish(1)
	}
	p.finish(0)
	return nil
}
