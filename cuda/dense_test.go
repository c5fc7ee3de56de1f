package cuda

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// The vectors that the types' comments show, and others that one checks by hand.
func TestDenseByHand(t *testing.T) {
	onLibraries(t, func(t *testing.T, d *Dense) {
		c := []float32{nan, nan}
		must(t, d.Gemm(Gemm{M: 1, N: 2, K: 2, A: []float32{1, 2}, B: []float32{3, 4, 5, 6}, Bias: []float32{10, 20}, C: c}))
		wantFloats(t, "gemm", c, []float32{23, 36})
		must(t, d.Gemm(Gemm{M: 1, N: 2, K: 2, Accumulate: true, A: []float32{1, 2}, B: []float32{3, 4, 5, 6}, C: c}))
		wantFloats(t, "gemm accumulated", c, []float32{36, 52})
		must(t, d.Gemm(Gemm{M: 1, N: 2, Accumulate: true, Bias: []float32{1, 1}, C: c}))
		wantFloats(t, "gemm over nothing", c, []float32{37, 53})
		must(t, d.Gemm(Gemm{N: 2, K: 2, B: []float32{3, 4, 5, 6}}))

		// 3 x 3 with a kernel of 2 x 2: the windows' sums of x on the diagonal, then backwards.
		x, w := []float32{1, 2, 3, 4, 5, 6, 7, 8, 9}, []float32{1, 0, 0, 10}
		g := Conv2d{N: 1, C: 1, H: 3, W: 3, Out: 1, KernelH: 2, KernelW: 2}
		y, gx, gw, gb := make([]float32, 4), make([]float32, 9), make([]float32, 4), make([]float32, 1)
		must(t, d.Conv2dForward(Conv2dForward{Conv2d: g, X: x, Weight: w, Bias: []float32{-60}, Y: y, ReLU: true}))
		wantFloats(t, "convolution", y, []float32{0, 2, 24, 35})
		must(t, d.Conv2dBackwardInput(Conv2dBackwardInput{Conv2d: g, GradY: []float32{1, 2, 3, 4}, Weight: w, GradX: gx}))
		wantFloats(t, "gradient of x", gx, []float32{1, 2, 0, 3, 14, 20, 0, 30, 40})
		must(t, d.Conv2dBackwardParams(Conv2dBackwardParams{Conv2d: g, X: x, GradY: []float32{1, 0, 0, 1}, GradWeight: gw,
			GradBias: gb}))
		wantFloats(t, "gradient of the weight", gw, []float32{6, 8, 12, 14})
		wantFloats(t, "gradient of the bias", gb, []float32{2})
		g.N = 0
		must(t, d.Conv2dForward(Conv2dForward{Conv2d: g, Weight: w}))
		must(t, d.Conv2dBackwardInput(Conv2dBackwardInput{Conv2d: g, Weight: w}))
		must(t, d.Conv2dBackwardParams(Conv2dBackwardParams{Conv2d: g, GradWeight: gw, GradBias: gb}))
		wantFloats(t, "gradient over no images", append(gw, gb...), make([]float32, 5))
	})
}

func TestMapsByHand(t *testing.T) {
	onLibraries(t, func(t *testing.T, d *Dense) {
		y := make([]float32, 4)
		must(t, d.ReLUForward([]float32{-1, 2, negativeZero, nan}, y))
		wantFloats(t, "relu", y, []float32{0, 2, 0, nan})
		must(t, d.ReLUBackward([]float32{0, 2, nan, 1}, []float32{5, 7, 9, nan}, y))
		wantFloats(t, "gradient of relu", y, []float32{0, 7, 0, nan})
		must(t, d.addBias(addBias{rows: 2, columns: 2, x: []float32{1, 2, 3, 4}, bias: []float32{10, 20}, y: y}))
		wantFloats(t, "bias", y, []float32{11, 22, 13, 24})
		must(t, d.ColumnSums(ColumnSums{Rows: 2, Columns: 2, X: []float32{1, 2, 3, 4}, Out: y[:2]}))
		wantFloats(t, "column sums", y[:2], []float32{4, 6})
		must(t, d.ColumnSums(ColumnSums{Rows: 0, Columns: 2, Out: y[:2]}))
		wantFloats(t, "column sums of nothing", y[:2], []float32{0, 0})
		must(t, d.Scale(Scale{N: 1, C: 2, Plane: 2, X: []float32{1, 2, 3, 4}, By: []float32{0, 2}, Out: y}))
		wantFloats(t, "scale", y, []float32{0, 0, 6, 8})
		must(t, d.Scale(Scale{N: 1, C: 2, Plane: 2, Layout: NHWC, X: []float32{1, 2, 3, 4}, By: []float32{0, 2}, Out: y}))
		wantFloats(t, "scale, channels last", y, []float32{0, 4, 0, 8})
		y = make([]float32, 6)
		must(t, d.Relayout(Relayout{N: 1, C: 2, Plane: 3, To: NHWC, X: []float32{1, 2, 3, 10, 20, 30}, Y: y}))
		wantFloats(t, "relayout", y, []float32{1, 10, 2, 20, 3, 30})
		y = y[:2]
		must(t, d.Softmax(RowSoftmax{Rows: 1, Columns: 2, X: []float32{0, 0}, Y: y}))
		wantFloats(t, "softmax", y, []float32{0.5, 0.5})
		must(t,
			d.SoftmaxBackward(RowSoftmaxBackward{Rows: 1, Columns: 2, Y: []float32{0.5, 0.5}, GradY: []float32{1, 3}, GradX: y}))
		wantFloats(t, "gradient of softmax", y, []float32{-0.5, 0.5})
		must(t, d.Softmax(RowSoftmax{Rows: 1, Columns: 2, Log: true, X: []float32{5, 5}, Y: y}))
		wantFloats(t, "log softmax", y, []float32{-0.6931472, -0.6931472})
		must(t, d.SoftmaxBackward(RowSoftmaxBackward{Rows: 1, Columns: 2, Log: true, Y: []float32{0, -inf},
			GradY: []float32{1, 3}, GradX: y}))
		wantFloats(t, "gradient of log softmax", y, []float32{-3, 3})
	})
}

func TestPoolByHand(t *testing.T) {
	onLibraries(t, func(t *testing.T, d *Dense) {
		p := MaxPool2d{N: 1, C: 1, H: 3, W: 4, KernelH: 2, KernelW: 2}
		y, at, gx := make([]float32, 2), make([]int32, 2), make([]float32, 12)
		must(t, d.MaxPool2dForward(MaxPool2dForward{MaxPool2d: p, X: []float32{1, 2, 9, 9, 2, 0, nan, nan, 7, 7, 7, 7}, Y: y,
			ArgMax: at}))
		wantFloats(t, "pool", y, []float32{2, nan}) // of equals the first; a row that no window reaches is left out
		if !slices.Equal(at, []int32{1, 6}) {
			t.Errorf("argmax %v, want 1 6", at)
		}
		must(t, d.MaxPool2dBackward(MaxPool2dBackward{MaxPool2d: p, GradY: []float32{3, 5}, ArgMax: at, GradX: gx}))
		wantFloats(t, "gradient of pool", gx, []float32{0, 3, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0})
		p = MaxPool2d{N: 1, C: 1, H: 2, W: 2, KernelH: 3, KernelW: 3, StrideH: 1, StrideW: 1, PadH: 1, PadW: 1}
		y, at, gx = make([]float32, 4), make([]int32, 4), gx[:4]
		must(t, d.MaxPool2dForward(MaxPool2dForward{MaxPool2d: p, X: []float32{-4, -3, -2, -inf}, Y: y, ArgMax: at}))
		wantFloats(t, "pool with padding", y, []float32{-2, -2, -2, -2})
		must(t, d.MaxPool2dBackward(MaxPool2dBackward{MaxPool2d: p, GradY: []float32{1, 2, 3, 4}, ArgMax: at, GradX: gx}))
		wantFloats(t, "gradient of overlapping windows", gx, []float32{0, 0, 10, 0})
	})
}

// TestMapsBits holds every backend's pooling and elementwise operations to the bits of the portable ones.
func TestMapsBits(t *testing.T) {
	own := &Dense{maps: goMaps{}}
	onLibraries(t, func(t *testing.T, d *Dense) {
		for seed := range uint64(60) {
			r := rand.New(rand.NewPCG(seed, 107))
			g := randomConv(r)
			n, c, plane := g.N, g.C, g.H*g.W
			x, y, by := awkward(r, n*c*plane, seed%4 == 3), awkward(r, n*c*plane, false), awkward(r, n*c, false)
			p := MaxPool2d{N: n, C: c, H: g.H, W: g.W, KernelH: g.KernelH, KernelW: g.KernelW, StrideH: g.StrideH,
				StrideW: g.StrideW,
				PadH:    min(g.PadH, g.KernelH/2), PadW: min(g.PadW, g.KernelW/2), XLayout: Layout(seed & 1),
				YLayout: Layout(seed >> 1 & 1)}
			if g.H+2*p.PadH < g.KernelH {
				p.KernelH = 1
				p.PadH = 0
			}
			pooled := n * c * p.outHeight() * p.outWidth()
			gradY := awkward(r, pooled, false)
			run := func(d *Dense) (all [][]float32, at []int32) {
				out := func(n int) []float32 {
					all = append(all, garbage(n))
					return all[len(all)-1]
				}
				m, at := len(x), make([]int32, pooled)
				must(t, d.ReLUForward(x, out(m)))
				must(t, d.ReLUBackward(x, y, out(m)))
				must(t, d.addBias(addBias{rows: n * plane, columns: c, x: x, bias: by[:c], y: out(m)}))
				must(t, d.ColumnSums(ColumnSums{Rows: n * plane, Columns: c, X: x, Out: out(c)}))
				must(t, d.ColumnSums(ColumnSums{Rows: c, Columns: n * plane, X: x, Out: out(n * plane)}))
				must(t, d.Scale(Scale{N: n, C: c, Plane: plane, Layout: p.XLayout, X: x, By: by, Out: out(m)}))
				must(t, d.Scale(Scale{N: n, C: c * plane, Plane: 1, X: x, By: y, Out: out(m)}))
				must(t, d.Relayout(Relayout{N: n, C: c, Plane: plane, From: p.XLayout, To: 1 - p.XLayout, X: x, Y: out(m)}))
				for _, log := range []bool{false, true} {
					must(t, d.Softmax(RowSoftmax{Rows: n * c, Columns: plane, Log: log, X: x, Y: out(m)}))
					must(t,
						d.SoftmaxBackward(RowSoftmaxBackward{Rows: n * c, Columns: plane, Log: log, Y: x, GradY: y, GradX: out(m)}))
				}
				must(t, d.MaxPool2dForward(MaxPool2dForward{MaxPool2d: p, X: x, Y: out(pooled), ArgMax: at}))
				must(t, d.MaxPool2dForward(MaxPool2dForward{MaxPool2d: p, X: x, Y: out(pooled)}))
				must(t, d.MaxPool2dBackward(MaxPool2dBackward{MaxPool2d: p, GradY: gradY, ArgMax: at, GradX: out(m)}))
				return all, at
			}
			want, wantAt := run(own)
			got, gotAt := run(d)
			for i := range want {
				if !sameBits(got[i], want[i]) {
					t.Fatalf("seed %d, %+v: result %d differs from the portable one", seed, p, i)
				}
			}
			if !slices.Equal(gotAt, wantAt) {
				t.Fatalf("seed %d, %+v: argmax differs from the portable one", seed, p)
			}
		}
	})
}

// Pooling and softmax in place, and the derivative of softmax, are what they are apart.
func TestMapsInPlace(t *testing.T) {
	onLibraries(t, func(t *testing.T, d *Dense) {
		r := rand.New(rand.NewPCG(1, 109))
		x, y, by := noise(r, 3*37), make([]float32, 3*37), noise(r, 37)
		same := func(what string, in []float32) {
			t.Helper()
			if !sameBits(in, y) {
				t.Errorf("%s in place differs", what)
			}
		}
		must(t, d.ReLUForward(x, y))
		in := slices.Clone(x)
		must(t, d.ReLUForward(in, in))
		same("relu", in)
		must(t, d.ReLUBackward(x, in, y))
		must(t, d.ReLUBackward(x, in, in))
		same("gradient of relu", in)
		for _, log := range []bool{false, true} {
			in = slices.Clone(x)
			must(t, d.Softmax(RowSoftmax{Rows: 3, Columns: 37, Log: log, X: x, Y: y}))
			must(t, d.Softmax(RowSoftmax{Rows: 3, Columns: 37, Log: log, X: in, Y: in}))
			same("softmax", in)
			in = slices.Clone(x)
			out := slices.Clone(y)
			must(t, d.SoftmaxBackward(RowSoftmaxBackward{Rows: 3, Columns: 37, Log: log, Y: out, GradY: x, GradX: y}))
			must(t, d.SoftmaxBackward(RowSoftmaxBackward{Rows: 3, Columns: 37, Log: log, Y: out, GradY: in, GradX: in}))
			same("gradient of softmax", in)
		}
		in = slices.Clone(x)
		must(t, d.Scale(Scale{N: 1, C: 3 * 37, Plane: 1, X: x, By: y, Out: in}))
		must(t, d.Scale(Scale{N: 1, C: 3 * 37, Plane: 1, X: x, By: y, Out: y}))
		same("scale", in)
		in = slices.Clone(x)
		must(t, d.addBias(addBias{rows: 3, columns: 37, x: x, bias: by, y: y}))
		must(t, d.addBias(addBias{rows: 3, columns: 37, x: in, bias: by, y: in}))
		same("bias", in)
	})
}

func TestDenseRefuses(t *testing.T) {
	d, err := OpenDense(newReference(), DenseOptions{})
	must(t, err)
	four := func() []float32 { return make([]float32, 4) }
	conv := Conv2d{N: 1, C: 1, H: 2, W: 2, Out: 1, KernelH: 1, KernelW: 1}
	with := func(change func(*Conv2d)) Conv2dForward {
		c := Conv2dForward{Conv2d: conv, X: four(), Weight: make([]float32, 1), Y: four()}
		change(&c.Conv2d)
		return c
	}
	forward := func(change func(*Conv2d)) error { return d.Conv2dForward(with(change)) }
	shared := make([]float32, 8)
	pool := MaxPool2d{N: 1, C: 1, H: 2, W: 2, KernelH: 1, KernelW: 1}
	for _, c := range []struct {
		err  error
		is   error
		text string
	}{
		{d.Gemm(Gemm{M: 2, N: 2, K: 2, A: four(), B: four(), C: four()[:3]}), ErrShape,
			"gemm: bad shape: c has 3 values, want 2 x 2"},
		{d.Gemm(Gemm{M: -1, N: 2, K: 2, B: four()}), ErrShape, "a is -1 x 2"},
		{d.Gemm(Gemm{M: 2, N: 2, K: 2, A: four(), B: four(), Bias: four(), C: four()}), ErrShape,
			"bias has 4 values, want 2"},
		{d.Gemm(Gemm{M: 2, N: 2, K: 2, A: shared[:4], B: four(), C: shared[3:7]}), ErrOverlap, "c shares memory"},
		{d.Gemm(Gemm{M: 2, N: 2, K: 2, A: four(), B: four(), C: four(), ReLU: true, Accumulate: true}), ErrArgument,
			"together"},
		{d.Gemm(Gemm{M: 1 << 30, N: 0, K: 1 << 30, A: four()}), ErrShape, "more than 2^40"},
		{forward(func(c *Conv2d) { c.KernelH = 3 }), ErrShape, "height of the kernel is 3, more than the padded image's 2"},
		{forward(func(c *Conv2d) { c.KernelW = 0 }), ErrShape, "width of the kernel is 0"},
		{forward(func(c *Conv2d) { c.H = 0 }), ErrShape, "height of the image is 0"},
		{forward(func(c *Conv2d) { c.StrideH = -1 }), ErrShape, "stride along the height is -1"},
		{forward(func(c *Conv2d) { c.PadW = 1 }), ErrShape, "padding along the width is 1"},
		{forward(func(c *Conv2d) { c.C = 0 }), ErrShape, "0 channels to 1"},
		{forward(func(c *Conv2d) { c.C = 2 }), ErrShape, "x has 4 values, want 1 x 2 x 2 x 2"},
		{forward(func(c *Conv2d) { c.Out = 2 }), ErrShape, "weight has 1 values, want 2 x 1 x 1 x 1"},
		{forward(func(c *Conv2d) { c.Layout = 2 }), ErrArgument, "layout 2"},
		{d.Conv2dBackwardInput(Conv2dBackwardInput{Conv2d: conv, GradY: shared[:4], Weight: make([]float32, 1),
			GradX: shared[:4]}), ErrOverlap, "the gradient shares"},
		{d.Conv2dBackwardParams(Conv2dBackwardParams{Conv2d: conv, X: four(), GradY: four(), GradWeight: make([]float32, 1),
			GradBias: four()}), ErrShape, "bias has 4"},
		{d.MaxPool2dForward(MaxPool2dForward{MaxPool2d: pool, X: four(), Y: four(), ArgMax: make([]int32, 3)}), ErrShape,
			"argmax has 3 values"},
		{d.MaxPool2dBackward(MaxPool2dBackward{MaxPool2d: pool, GradX: four(), GradY: four()}), ErrShape, "no argmax"},
		{d.MaxPool2dBackward(MaxPool2dBackward{MaxPool2d: pool, GradX: four(), GradY: four(), ArgMax: []int32{0, 1, 4, 2}}),
			ErrID, "id 4 at position 2 is not in [0,4)"},
		{d.ReLUForward(four(), four()[:3]), ErrShape, "y has 3 values"},
		{d.ReLUForward(shared[:4], shared[1:5]), ErrOverlap, "shifted"},
		{d.Scale(Scale{N: 2, C: 2, Plane: 1, X: four(), By: four()[:2], Out: four()}), ErrShape,
			"by has 2 values, want 2 x 2"},
		{d.Scale(Scale{N: 1, C: 2, Plane: 2, X: shared[:4], By: shared[4:6], Out: shared[2:6]}), ErrOverlap, "shifted"},
		{d.addBias(addBias{rows: 2, columns: 2, x: four(), bias: four(), y: four()}), ErrShape, "bias has 4"},
		{d.ColumnSums(ColumnSums{Rows: 2, Columns: 2, X: four(), Out: four()}), ErrShape, "out has 4"},
		{d.Softmax(RowSoftmax{Rows: 1, Columns: 3, X: four(), Y: four()}), ErrShape, "x has 4"},
		{d.SoftmaxBackward(RowSoftmaxBackward{Rows: 1, Columns: 4, Y: shared[:4], GradY: four(), GradX: shared[:4]}),
			ErrOverlap, "gradX shares"},
		{d.Relayout(Relayout{N: 1, C: 2, Plane: 2, To: NHWC, X: shared[:4], Y: shared[:4]}), ErrOverlap, "y shares"},
	} {
		if !errors.Is(c.err, c.is) || !strings.Contains(c.err.Error(), c.text) {
			t.Errorf("got %v, want %v with %q", c.err, c.is, c.text)
		}
	}
}

func TestOpenDense(t *testing.T) {
	b := newReference()
	if _, err := OpenDense(b, DenseOptions{Library: "mkl"}); !errors.Is(err, ErrArgument) ||
		!strings.Contains(err.Error(), `want one of ["auto" "onednn"`) {
		t.Errorf("unknown library: %v", err)
	}
	d, err := OpenDense(b, DenseOptions{})
	must(t, err)
	if d.Name() != "own" || !strings.Contains(d.Reason(), "portable bits") {
		t.Errorf("auto on the backend go is %s, %s", d.Name(), d.Reason())
	}
	must(t, d.Close())
}

// TestOwnBits: the library own has the same bits on every backend.
func TestOwnBits(t *testing.T) {
	portable, err := OpenDense(newReference(), DenseOptions{Library: "own"})
	must(t, err)
	onEach(t, func(t *testing.T, b Backend) {
		if b.Name() == "emu" {
			t.Log("emu takes long, and own asks nothing of it but MatMul, which has its own tests")
			return
		}
		d, err := OpenDense(b, DenseOptions{Library: "own"})
		must(t, err)
		defer d.Close()
		for seed := range uint64(12) {
			r := rand.New(rand.NewPCG(seed, 113))
			c := randomConv(r)
			x, w, gradY := noise(r, c.N*c.C*c.H*c.W), noise(r, c.Out*c.C*c.KernelH*c.KernelW),
				noise(r, c.N*c.Out*c.outHeight()*c.outWidth())
			run := func(d *Dense) []float32 {
				y, gx, gw, gb := make([]float32, len(gradY)), make([]float32, len(x)), make([]float32, len(w)),
					make([]float32, c.Out)
				must(t, d.Conv2dForward(Conv2dForward{Conv2d: c, X: x, Weight: w, Y: y}))
				must(t, d.Conv2dBackwardInput(Conv2dBackwardInput{Conv2d: c, GradY: gradY, Weight: w, GradX: gx}))
				must(t, d.Conv2dBackwardParams(Conv2dBackwardParams{Conv2d: c, X: x, GradY: gradY, GradWeight: gw, GradBias: gb}))
				return slices.Concat(y, gx, gw, gb)
			}
			if !sameBits(run(d), run(portable)) {
				t.Fatalf("seed %d, %+v: other bits than the portable backend's", seed, c)
			}
		}
	})
}
