package nn

import "gradbus/cuda"

// Conv2d is a convolution of images (cross-correlation, as in PyTorch): x [n, In, H, W], W [Out, In, Kernel, Kernel]
// called "weight", b [Out] called "bias", y [n, Out, H', W'] with H' = (H + 2 Padding - Kernel) / Stride + 1, W'
// likewise. Both begin uniform in [-bound, bound), bound = 1/sqrt(In * Kernel * Kernel), as in PyTorch. A Stride of 0
// is 1.
//
//	y[o, i, j] = b[o] + the sum over c, k, l of W[o, c, k, l] * x[c, i*Stride + k - Padding, j*Stride + l - Padding]
type Conv2d struct {
	In      int  `json:"in"`
	Out     int  `json:"out"`
	Kernel  int  `json:"kernel"`
	Stride  int  `json:"stride,omitempty"`
	Padding int  `json:"padding,omitempty"`
	NoBias  bool `json:"no_bias,omitempty"`
}

func (l Conv2d) Parameters() []Parameter { return parametersOf(l) }

func (l Conv2d) parameters() []Parameter {
	fan := l.In * l.Kernel * l.Kernel
	all := []Parameter{uniform("weight", fan, l.Out, l.In, l.Kernel, l.Kernel), uniform("bias", fan, l.Out)}
	if l.NoBias {
		return all[:1]
	}
	return all
}

// OutShape takes samples of shape [In, H, W], where the kernel fits into the padded image.
func (l Conv2d) OutShape(in []int) ([]int, error) {
	if len(in) != 3 || in[0] != l.In || windows(in[1], l.Kernel, l.Stride, l.Padding) < 1 ||
		windows(in[2], l.Kernel, l.Stride, l.Padding) < 1 {
		least := max(1, l.Kernel-2*l.Padding)
		return nil, badInput("conv2d", in, "[%d, H, W] with H and W at least %d", l.In, least)
	}
	return []int{l.Out, windows(in[1], l.Kernel, l.Stride, l.Padding), windows(in[2], l.Kernel, l.Stride, l.Padding)}, nil
}

// windows counts the positions of a kernel along a side; below 1 where it does not fit.
func windows(side, kernel, stride, padding int) int {
	if side < 1 || side+2*padding < kernel {
		return 0
	}
	return (side+2*padding-kernel)/max(stride, 1) + 1
}

func (l Conv2d) append(to []placed, prefix string) []placed { return append(to, placed{l, prefix}) }

func (l Conv2d) config() (string, any) { return "conv2d", l }

func (l Conv2d) check() error {
	const name = "conv2d"
	return firstError(between(name, "in", l.In, 1, channelsMax), between(name, "out", l.Out, 1, channelsMax),
		between(name, "kernel", l.Kernel, 1, kernelMax), between(name, "stride", l.Stride, 0, kernelMax),
		between(name, "padding", l.Padding, 0, max(l.Kernel-1, 0)))
}

// layout is the library's.
func (l Conv2d) layout(fast cuda.Layout) (cuda.Layout, bool) { return fast, true }

func (l Conv2d) work(e Env, s site) work {
	return &convWork{spec: l, dense: e.Dense, relu: s.relu, inSize: product(s.in), outSize: product(s.out),
		shape: cuda.Conv2d{C: l.In, H: s.in[1], W: s.in[2], Out: l.Out, KernelH: l.Kernel, KernelW: l.Kernel,
			StrideH: l.Stride, StrideW: l.Stride, PadH: l.Padding, PadW: l.Padding, Layout: s.inLayout}}
}

type convWork struct {
	spec            Conv2d
	dense           *cuda.Dense
	relu            bool // of the layer that follows
	shape           cuda.Conv2d
	inSize, outSize int
	x               []float32
	y, gradX        []float32
	unwanted        []float32 // a weight's gradient that is not wanted
}

func (w *convWork) keepsY() bool { return false }
func (w *convWork) values() int  { return w.inSize + w.outSize }

func (w *convWork) forward(p *pass, x []float32) ([]float32, error) {
	w.x, w.y, w.shape.N = x, grown(w.y, p.n*w.outSize), p.n
	c := cuda.Conv2dForward{Conv2d: w.shape, ReLU: w.relu, X: x, Weight: p.params[0], Y: w.y}
	if !w.spec.NoBias {
		c.Bias = p.params[1]
	}
	return w.y, w.dense.Conv2dForward(c)
}

func (w *convWork) backward(p *pass, gradY []float32) ([]float32, error) {
	if err := w.backwardParams(p, gradY); err != nil || !p.wantX {
		return nil, err
	}
	w.gradX = grown(w.gradX, p.n*w.inSize)
	return w.gradX,
		w.dense.Conv2dBackwardInput(cuda.Conv2dBackwardInput{Conv2d: w.shape, GradY: gradY, Weight: p.params[0],
			GradX: w.gradX})
}

func (w *convWork) backwardParams(p *pass, gradY []float32) (err error) {
	c := cuda.Conv2dBackwardParams{Conv2d: w.shape, X: w.x, GradY: gradY}
	if !w.spec.NoBias {
		if c.GradBias, err = p.gradOf(1); err != nil {
			return err
		}
	}
	if c.GradWeight, err = p.gradOf(0); err != nil {
		return err
	}
	if c.GradWeight != nil || c.GradBias != nil {
		if c.GradWeight == nil {
			w.unwanted = grown(w.unwanted, len(p.params[0]))
			c.GradWeight = w.unwanted
		}
		if err := w.dense.Conv2dBackwardParams(c); err != nil {
			return err
		}
	}
	if !w.spec.NoBias {
		p.finish(1)
	}
	p.finish(0)
	return nil
}
