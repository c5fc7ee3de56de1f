package nn

import "gradbus/cuda"

// MaxPool2d is the largest value of each window of an image: x [n, C, H, W], y [n, C, H', W'] with H' = (H + 2 Padding
// - Kernel) / Stride + 1, W' likewise. A Stride of 0 is Kernel. Beyond the edges stands -Inf. Of equal values the first
// by row and column counts, and a NaN counts as the largest; the gradient goes to that one alone.
type MaxPool2d struct {
	Kernel  int `json:"kernel"`
	Stride  int `json:"stride,omitempty"`
	Padding int `json:"padding,omitempty"`
}

func (l MaxPool2d) Parameters() []Parameter { return nil }
func (l MaxPool2d) parameters() []Parameter { return nil }

func (l MaxPool2d) stride() int {
	if l.Stride == 0 {
		return l.Kernel
	}
	return l.Stride
}

// OutShape takes samples of shape [C, H, W], where the kernel fits into the padded image.
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

// layout is any: it reads one and may write the other.
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
