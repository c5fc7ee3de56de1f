package nn

import (
	"errors"
	"fmt"

	"gradbus/cuda"
	"gradbus/philox"
)

// LinearLayer computes y = x W' + b as a module: x [n, In], W [Out, In] named "weight", b [Out] named "bias", y [n,
// Out]. Initial values of both are uniform in [-1/sqrt(In), 1/sqrt(In)), as in PyTorch.
//
//	gradW = gradY' x      gradB = the sum of gradY over the samples      gradX = gradY W
type LinearLayer struct {
	In     int  `json:"in"`
	Out    int  `json:"out"`
	NoBias bool `json:"no_bias,omitempty"`
}

// Parameters implements Module.
func (l LinearLayer) Parameters() []Parameter { return parametersOf(l) }

func (l LinearLayer) parameters() []Parameter {
	all := []Parameter{uniform("weight", l.In, l.Out, l.In), uniform("bias", l.In, l.Out)}
	if l.NoBias {
		return all[:1]
	}
	return all
}

// OutShape accepts samples of shape [In].
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

// BagLayer pools embedding rows to one row of Dim values per sample, as the first layer of a module; its input is a
// Bags. Its rows are a parameter, [Rows, Dim] named "weight", with normal initial values of standard deviation 1 as in
// PyTorch. The parameter's gradient has all rows, zero for ids that no sample has.
//
// A Served layer has no parameter: its rows are Bags.Rows, which the session looked up in a table. With Net.GradX,
// Backward then returns gradX [n, Dim], the gradient of the pooled rows, which trainer.LaneStep.BagGrad accepts with
// the same offsets.
//
// A bag without ids is a zero row. The mean divides the sum once. Sums are canonical.
type BagLayer struct {
	Rows   int     `json:"rows,omitempty"` // 0 if served
	Dim    int     `json:"dim"`
	Mode   BagMode `json:"mode,omitempty"` // "sum", also "", or "mean"
	Served bool    `json:"served,omitempty"`
}

// BagMode is the way in which rows are pooled.
type BagMode string

// Modes of a BagLayer.
const (
	BagSum  BagMode = "sum"
	BagMean BagMode = "mean"
)

// Parameters implements Module.
func (l BagLayer) Parameters() []Parameter { return parametersOf(l) }

func (l BagLayer) parameters() []Parameter {
	if l.Served {
		return nil
	}
	return []Parameter{{Name: "weight", Shape: []int{l.Rows, l.Dim}, Kind: philox.Normal, Scale: 1}}
}

// OutShape accepts samples without a shape: they are Bags.
func (l BagLayer) OutShape(in []int) ([]int, error) {
	if len(in) != 0 {
		return nil, badInput("embedding_bag", in, "none, since samples are bags")
	}
	return []int{l.Dim}, nil
}

func (l BagLayer) append(to []placed, prefix string) []placed {
	return append(to, placed{l, prefix})
}

func (l BagLayer) config() (string, any) { return "embedding_bag", l }

func (l BagLayer) check() error {
	const name = "embedding_bag"
	if l.Mode != "" && l.Mode != BagSum && l.Mode != BagMean {
		return fmt.Errorf("%w: %s mode %q: want %q or %q", ErrConfig, name, l.Mode, BagSum, BagMean)
	}
	least, most := 1, sizeMax
	if l.Served {
		least, most = 0, 0
	}
	return firstError(between(name, "dim", l.Dim, 1, sizeMax), between(name, "rows", l.Rows, least, most))
}

func (l BagLayer) layout(cuda.Layout) (cuda.Layout, bool) { return cuda.NCHW, true }

func (l BagLayer) work(e Env, _ site) work {
	mode := cuda.Sum
	if l.Mode == BagMean {
		mode = cuda.Mean
	}
	return &bagWork{spec: l, bag: NewEmbeddingBag(e.Backend, l.Dim, mode)}
}

type bagWork struct {
	spec BagLayer
	bag  *EmbeddingBag
	y    []float32
}

func (w *bagWork) keepsY() bool { return false }
func (w *bagWork) values() int  { return w.spec.Dim }

func (w *bagWork) forward(p *pass, _ []float32) ([]float32, error) {
	rows := p.bags.Rows
	if !w.spec.Served {
		if rows != nil {
			return nil, fmt.Errorf("%w: rows given to a bag that has its own: want a served one", ErrShape)
		}
		rows = p.params[0]
	}
	w.y = grown(w.y, p.n*w.spec.Dim)
	return w.y, w.bag.Forward(rows, p.bags.IDs, p.bags.Offsets, w.y)
}

func (w *bagWork) backward(p *pass, gradY []float32) ([]float32, error) {
	if !w.spec.Served {
		grad, err := p.gradOf(0)
		if err != nil {
			return nil, err
		}
		if grad != nil {
			keys, rows, err := w.bag.backward(w.spec.Rows, p.bags.IDs, p.bags.Offsets, gradY)
			if err != nil {
				return nil, err
			}
			clear(grad)
			for i, key := range keys {
				copy(grad[int(key)*w.spec.Dim:][:w.spec.Dim], rows[i*w.spec.Dim:])
			}
		}
		p.finish(0)
		if p.wantX {
			return nil, errors.New("a bag of a table of its own has no gradient but that of its rows")
		}
	}
	return gradY, nil
}

// Conv2d computes a convolution of images (cross-correlation, as in PyTorch): x [n, In, H, W], W [Out, In, Kernel,
// Kernel] named "weight", b [Out] named "bias", y [n, Out, H', W'] with H' = (H + 2 Padding - Kernel) / Stride + 1, W'
// likewise. Initial values of both are uniform in [-bound, bound), bound = 1/sqrt(In * Kernel * Kernel), as in PyTorch.
// A Stride of 0 is 1.
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

// Parameters implements Module.
func (l Conv2d) Parameters() []Parameter { return parametersOf(l) }

func (l Conv2d) parameters() []Parameter {
	fan := l.In * l.Kernel * l.Kernel
	all := []Parameter{uniform("weight", fan, l.Out, l.In, l.Kernel, l.Kernel), uniform("bias", fan, l.Out)}
	if l.NoBias {
		return all[:1]
	}
	return all
}

// OutShape accepts samples of shape [In, H, W] if the kernel fits into the padded image.
func (l Conv2d) OutShape(in []int) ([]int, error) {
	if len(in) != 3 || in[0] != l.In || windows(in[1], l.Kernel, l.Stride, l.Padding) < 1 ||
		windows(in[2], l.Kernel, l.Stride, l.Padding) < 1 {
		least := max(1, l.Kernel-2*l.Padding)
		return nil, badInput("conv2d", in, "[%d, H, W] with H and W at least %d", l.In, least)
	}
	return []int{l.Out, windows(in[1], l.Kernel, l.Stride, l.Padding), windows(in[2], l.Kernel, l.Stride, l.Padding)}, nil
}

// windows returns the number of positions of a kernel along a side; below 1 if it does not fit.
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

// layout returns the library's layout.
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
	unwanted        []float32 // scratch for a weight's gradient that the caller does not need
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

// MaxPool2d computes the largest value of each window of an image: x [n, C, H, W], y [n, C, H', W'] with H' = (H + 2
// Padding - Kernel) / Stride + 1, W' likewise. A Stride of 0 is Kernel. Values beyond the edges are -Inf. The first of
// equal values by row and column wins, and a NaN counts as the largest; the gradient goes to that value alone.
type MaxPool2d struct {
	Kernel  int `json:"kernel"`
	Stride  int `json:"stride,omitempty"`
	Padding int `json:"padding,omitempty"`
}

// Parameters implements Module.
func (l MaxPool2d) Parameters() []Parameter { return nil }

func (l MaxPool2d) parameters() []Parameter { return nil }

func (l MaxPool2d) stride() int {
	if l.Stride == 0 {
		return l.Kernel
	}
	return l.Stride
}

// OutShape accepts samples of shape [C, H, W] if the kernel fits into the padded image.
func (l MaxPool2d) OutShape(in []int) ([]int, error) {
	if len(in) != 3 || windows(in[1], l.Kernel, l.stride(), l.Padding) < 1 ||
		windows(in[2], l.Kernel, l.stride(), l.Padding) < 1 {
		return nil, badInput("max_pool2d", in, "[C, H, W] with H and W at least %d", max(1, l.Kernel-2*l.Padding))
	}
	return []int{in[0], windows(in[1], l.Kernel, l.stride(), l.Padding), windows(in[2], l.Kernel, l.stride(), l.Padding)},
		nil
}

func (l MaxPool2d) append(to []placed, prefix string) []placed { return append(to, placed{l, prefix}) }

func (l MaxPool2d) config() (string, any) { return "max_pool2d", l }

func (l MaxPool2d) check() error {
	const name = "max_pool2d"
	return firstError(between(name, "kernel", l.Kernel, 1, kernelMax), between(name, "stride", l.Stride, 0, kernelMax),
		between(name, "padding", l.Padding, 0, max(l.Kernel/2, 0)))
}

// layout allows any: the layer reads one and may write the other.
func (l MaxPool2d) layout(cuda.Layout) (cuda.Layout, bool) { return 0, false }

func (l MaxPool2d) work(e Env, s site) work {
	return &poolWork{dense: e.Dense, inSize: product(s.in), outSize: product(s.out),
		shape: cuda.MaxPool2d{C: s.in[0], H: s.in[1], W: s.in[2], KernelH: l.Kernel, KernelW: l.Kernel,
			StrideH: l.stride(), StrideW: l.stride(), PadH: l.Padding, PadW: l.Padding, XLayout: s.inLayout,
			YLayout: s.outLayout}}
}

type poolWork struct {
	dense           *cuda.Dense
	shape           cuda.MaxPool2d
	inSize, outSize int
	y, gradX        []float32
	places          []int32 // [n, out] of the largest values
}

func (w *poolWork) keepsY() bool { return false }
func (w *poolWork) values() int  { return w.inSize + 2*w.outSize }

func (w *poolWork) forward(p *pass, x []float32) ([]float32, error) {
	w.shape.N = p.n
	w.y, w.places = grown(w.y, p.n*w.outSize), grown(w.places, p.n*w.outSize)
	return w.y, w.dense.MaxPool2dForward(cuda.MaxPool2dForward{MaxPool2d: w.shape, X: x, Y: w.y, ArgMax: w.places})
}

func (w *poolWork) backward(p *pass, gradY []float32) ([]float32, error) {
	if !p.wantX {
		return nil, nil
	}
	w.gradX = grown(w.gradX, p.n*w.inSize)
	return w.gradX,
		w.dense.MaxPool2dBackward(cuda.MaxPool2dBackward{MaxPool2d: w.shape, GradY: gradY, ArgMax: w.places, GradX: w.gradX})
}

// ReLU computes y = max(x, 0), element by element; x and y have any shape. A NaN stays NaN, as in PyTorch. After a
// convolution or a linear layer it is computed together with that.
//
//	gradX = gradY where y > 0, else 0
type ReLU struct{}

// Parameters implements Module.
func (ReLU) Parameters() []Parameter { return nil }

func (ReLU) parameters() []Parameter { return nil }

// OutShape implements Module: it accepts samples of any shape.
func (ReLU) OutShape(in []int) ([]int, error) { return in, nil }

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

// keepsY returns true: the gradient is 0 where y is.
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

// Flatten reshapes a sample to one dimension: [C, H, W] becomes [C*H*W]. No value moves.
type Flatten struct{}

// Parameters implements Module.
func (Flatten) Parameters() []Parameter { return nil }

func (Flatten) parameters() []Parameter { return nil }

// OutShape implements Module: it accepts samples of any shape.
func (Flatten) OutShape(in []int) ([]int, error) { return []int{product(in)}, nil }

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

// Dropout sets each value to 0 with probability P in training and multiplies the others by 1/(1-P); in evaluation it
// passes them on. x and y have any shape, and the gradient passes the same mask. The mask depends only on the pass's
// Random and the layer's index; values are drawn sample after sample in the order [C, H, W].
type Dropout struct {
	P float32 `json:"p"`
}

// dropout2d is Dropout of whole channels of images, x [n, C, H, W].
type dropout2d struct {
	P float32 `json:"p"`
}

// Parameters implements Module.
func (l Dropout) Parameters() []Parameter { return nil }

func (l Dropout) parameters() []Parameter { return nil }

// OutShape implements Module: it accepts samples of any shape.
func (l Dropout) OutShape(in []int) ([]int, error) { return in, nil }

func (l Dropout) append(to []placed, p string) []placed   { return append(to, placed{l, p}) }
func (l Dropout) config() (string, any)                   { return "dropout", l }
func (l Dropout) check() error                            { return probability("dropout", l.P) }
func (l Dropout) layout(cuda.Layout) (cuda.Layout, bool)  { return cuda.NCHW, true }
func (l dropout2d) Parameters() []Parameter               { return nil }
func (l dropout2d) parameters() []Parameter               { return nil }
func (l dropout2d) append(to []placed, p string) []placed { return append(to, placed{l, p}) }
func (l dropout2d) config() (string, any)                 { return "dropout2d", l }
func (l dropout2d) check() error                          { return probability("dropout2d", l.P) }

// layout allows any: channels are dropped as a whole.
func (l dropout2d) layout(cuda.Layout) (cuda.Layout, bool) { return 0, false }

// OutShape accepts samples of shape [C, H, W].
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
	at              int // index of the layer
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

// through multiplies by the mask, in place if that is allowed.
func (w *dropoutWork) through(p *pass, x []float32, own *[]float32) ([]float32, error) {
	out := x
	if !p.mayWrite {
		*own = grown(*own, len(x))
		out = *own
	}
	return out,
		w.dense.Scale(cuda.Scale{N: p.n, C: w.channels, Plane: w.plane, Layout: w.layout, X: x, By: w.mask, Out: out})
}

// Softmax computes y = exp(x) / sum(exp(x)) over the classes of a sample: x and y [n, classes]. The largest x is
// subtracted first, so that nothing overflows.
//
//	gradX = y * (gradY - sum(gradY * y))
type Softmax struct{}

// logSoftmax computes y = x - log(sum(exp(x))) over the classes of a sample: x and y [n, classes].
//
//	gradX = gradY - exp(y) * sum(gradY)
type logSoftmax struct{}

// Parameters implements Module.
func (Softmax) Parameters() []Parameter { return nil }

func (Softmax) parameters() []Parameter { return nil }

// OutShape accepts samples of shape [classes].
func (Softmax) OutShape(in []int) ([]int, error) { return classes("softmax", in) }

func (s Softmax) append(to []placed, p string) []placed { return append(to, placed{s, p}) }
func (s Softmax) config() (string, any)                 { return "softmax", s }
func (Softmax) check() error                            { return nil }
func (Softmax) layout(cuda.Layout) (cuda.Layout, bool)  { return cuda.NCHW, true }
func (Softmax) work(e Env, s site) work                 { return &softmaxWork{dense: e.Dense, classes: s.in[0]} }

// Parameters implements Module.
func (logSoftmax) Parameters() []Parameter { return nil }

func (logSoftmax) parameters() []Parameter { return nil }

// OutShape accepts samples of shape [classes].
func (logSoftmax) OutShape(in []int) ([]int, error) { return classes("log_softmax", in) }

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

// keepsY returns true: the gradient is computed from y.
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
