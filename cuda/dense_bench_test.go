package cuda

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// benchLibraries are the libraries that this build and machine have, beside the best backend.
func benchLibraries(b *testing.B) []*Dense {
	b.Helper()
	backend, err := Open(Options{})
	if err != nil {
		b.Fatal(err)
	}
	var all []*Dense
	for _, name := range []string{"onednn", "openblas", "own"} {
		d, err := OpenDense(backend, DenseOptions{Library: name})
		if err != nil {
			b.Logf("%s is left out: %v", name, err)
			continue
		}
		all = append(all, d)
	}
	b.Cleanup(func() {
		for _, d := range all {
			d.Close()
		}
		backend.Close()
	})
	return all
}

// ramp is values that are neither equal nor special.
func ramp(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i*37%101-50) / 64
	}
	return x
}

// best times every call by itself and reports the best: on a machine that does other things too it says the most.
func best(b *testing.B, products int, call func() error) {
	b.Helper()
	least := time.Duration(math.MaxInt64)
	for b.Loop() {
		start := time.Now()
		if err := call(); err != nil {
			b.Fatal(err)
		}
		least = min(least, time.Since(start))
	}
	b.ReportMetric(float64(least.Nanoseconds())/1e3, "best-us")
	b.ReportMetric(2*float64(products)/float64(max(least.Nanoseconds(), 1)), "best-Gflop/s")
}

// BenchmarkLinear is the three products of linear layers as they occur: batch x in -> out.
func BenchmarkLinear(b *testing.B) {
	for _, d := range benchLibraries(b) {
		for _, s := range [][3]int{{20, 100, 30}, {7, 512, 256}, {32, 1024, 1024}, {20, 4096, 1600}, {32, 9216, 128},
			{32, 128, 10}} {
			n, in, out := s[0], s[1], s[2]
			x, w, y, bias := ramp(n*in), ramp(in*out), ramp(n*out), ramp(out)
			for name, g := range map[string]Gemm{
				"forward":     {M: n, N: out, K: in, TransB: true, A: x, B: w, Bias: bias, C: make([]float32, n*out)},
				"grad-input":  {M: n, N: in, K: out, A: y, B: w, C: make([]float32, n*in)},
				"grad-weight": {M: out, N: in, K: n, TransA: true, A: y, B: x, C: make([]float32, in*out)},
			} {
				b.Run(fmt.Sprintf("%dx%dx%d/%s/%s", n, in, out, name, d.Name()), func(b *testing.B) {
					best(b, n*in*out, func() error { return d.Gemm(g) })
				})
			}
		}
	}
}

// BenchmarkConv2d is the convolutions of the model of digits at a batch of 32.
func BenchmarkConv2d(b *testing.B) {
	for _, d := range benchLibraries(b) {
		for _, layout := range []Layout{NCHW, NHWC} {
			for _, c := range []Conv2d{{N: 32, C: 1, H: 28, W: 28, Out: 32, KernelH: 3, KernelW: 3, Layout: layout},
				{N: 32, C: 32, H: 26, W: 26, Out: 64, KernelH: 3, KernelW: 3, Layout: layout}} {
				places := c.N * c.outHeight() * c.outWidth()
				x, w, y, bias := ramp(c.N*c.C*c.H*c.W), ramp(c.Out*c.C*9), ramp(c.Out*places), ramp(c.Out)
				for name, run := range map[string]func() error{
					"forward": func() error { return d.Conv2dForward(Conv2dForward{Conv2d: c, X: x, Weight: w, Bias: bias, Y: y}) },
					"grad-input": func() error {
						return d.Conv2dBackwardInput(Conv2dBackwardInput{Conv2d: c, GradY: y, Weight: w, GradX: x})
					},
					"grad-params": func() error {
						return d.Conv2dBackwardParams(Conv2dBackwardParams{Conv2d: c, X: x, GradY: y, GradWeight: w, GradBias: bias})
					},
				} {
					b.Run(fmt.Sprintf("%d-%d/%s/%s/%s", c.C, c.Out, [2]string{"NCHW", "NHWC"}[layout], name, d.Name()),
						func(b *testing.B) {
							best(b, places*c.Out*c.C*9, run)
						})
				}
			}
		}
	}
}

// BenchmarkTrainingStep is one step of the model of digits at a batch of 32, on one thread: forward, loss, backward,
// SGD; what package nn does, without it. What a step of PyTorch takes is in docs/benchmarks.md.
func BenchmarkTrainingStep(b *testing.B) {
	for _, d := range benchLibraries(b) {
		b.Run(d.Name(), func(b *testing.B) {
			// Multiplications: of the convolutions and linear layers, the first convolution's without its input's gradient.
			const products = 32 * (2*676*32*9 + 3*576*64*32*9 + 3*9216*128 + 3*128*10)
			best(b, products, newDigits(d, 32).step)
		})
	}
}

// digits is the model of digits: two convolutions, pooling, two linear layers, dropout, log-softmax.
type digits struct {
	d                                                  *Dense
	n                                                  int
	conv1, conv2                                       Conv2d
	pool                                               MaxPool2d
	params, grads                                      [][]float32 // weight and bias of conv1, conv2, the linear layers
	x, y1, y2, pooled, h1, h2, g2, g1, gPool, gH1, gH2 []float32
	places                                             []int32
	keep2, keep1                                       []float32
}

func newDigits(d *Dense, n int) *digits {
	l := d.Layout()
	s := &digits{d: d, n: n,
		conv1: Conv2d{N: n, C: 1, H: 28, W: 28, Out: 32, KernelH: 3, KernelW: 3, Layout: l},
		conv2: Conv2d{N: n, C: 32, H: 26, W: 26, Out: 64, KernelH: 3, KernelW: 3, Layout: l},
		pool:  MaxPool2d{N: n, C: 64, H: 24, W: 24, KernelH: 2, KernelW: 2, XLayout: l, YLayout: NCHW},
		x:     ramp(n * 784), keep2: ramp(n * 64), keep1: ramp(n * 128), places: make([]int32, n*9216)}
	for _, size := range []int{32 * 9, 32, 64 * 32 * 9, 64, 9216 * 128, 128, 128 * 10, 10} {
		p := ramp(size)
		for i := range p {
			p[i] /= 64
		}
		s.params, s.grads = append(s.params, p), append(s.grads, make([]float32, size))
	}
	for p, size := range map[*[]float32]int{&s.y1: 32 * 676, &s.y2: 64 * 576, &s.pooled: 9216, &s.h1: 128, &s.h2: 10,
		&s.g1: 32 * 676, &s.g2: 64 * 576, &s.gPool: 9216, &s.gH1: 128, &s.gH2: 10} {
		*p = make([]float32, n*size)
	}
	return s
}

// all runs the calls until one fails.
func all(calls ...func() error) error {
	for _, call := range calls {
		if err := call(); err != nil {
			return err
		}
	}
	return nil
}

func (s *digits) step() error {
	if err := s.forward(); err != nil {
		return err
	}
	for i := range s.n { // the gradient of the negative log-likelihood
		clear(s.gH2[i*10:][:10])
		s.gH2[i*10+i%10] = -1
	}
	if err := s.backward(); err != nil {
		return err
	}
	for i, p := range s.params {
		if err := s.d.backend.ApplyDense(ApplyDense{Optimizer: SGD{LR: 1e-5}, Weight: float32(s.n), Param: Float32s(p),
			Grad: Float32s(s.grads[i]),
			Out:  Float32s(p)}); err != nil {
			return err
		}
	}
	return nil
}

func (s *digits) forward() error {
	d, n, p := s.d, s.n, s.params
	return all(
		func() error {
			return d.Conv2dForward(Conv2dForward{Conv2d: s.conv1, ReLU: true, X: s.x, Weight: p[0], Bias: p[1], Y: s.y1})
		},
		func() error {
			return d.Conv2dForward(Conv2dForward{Conv2d: s.conv2, X: s.y1, Weight: p[2], Bias: p[3], Y: s.y2})
		},
		func() error {
			return d.MaxPool2dForward(MaxPool2dForward{MaxPool2d: s.pool, X: s.y2, Y: s.pooled, ArgMax: s.places})
		},
		func() error { return d.Scale(Scale{N: n, C: 64, Plane: 144, X: s.pooled, By: s.keep2, Out: s.pooled}) },
		func() error {
			return d.Gemm(Gemm{M: n, N: 128, K: 9216, TransB: true, ReLU: true, A: s.pooled, B: p[4], Bias: p[5], C: s.h1})
		},
		func() error { return d.Scale(Scale{N: n, C: 128, Plane: 1, X: s.h1, By: s.keep1, Out: s.h1}) },
		func() error {
			return d.Gemm(Gemm{M: n, N: 10, K: 128, TransB: true, A: s.h1, B: p[6], Bias: p[7], C: s.h2})
		},
		func() error { return d.Softmax(RowSoftmax{Rows: n, Columns: 10, Log: true, X: s.h2, Y: s.h2}) },
	)
}

func (s *digits) backward() error {
	d, n, p, g := s.d, s.n, s.params, s.grads
	return all(
		func() error {
			return d.SoftmaxBackward(RowSoftmaxBackward{Rows: n, Columns: 10, Log: true, Y: s.h2, GradY: s.gH2, GradX: s.gH2})
		},
		func() error { return d.Gemm(Gemm{M: 10, N: 128, K: n, TransA: true, A: s.gH2, B: s.h1, C: g[6]}) },
		func() error { return d.ColumnSums(ColumnSums{Rows: n, Columns: 10, X: s.gH2, Out: g[7]}) },
		func() error { return d.Gemm(Gemm{M: n, N: 128, K: 10, A: s.gH2, B: p[6], C: s.gH1}) },
		func() error { return d.Scale(Scale{N: n, C: 128, Plane: 1, X: s.gH1, By: s.keep1, Out: s.gH1}) },
		func() error { return d.ReLUBackward(s.h1, s.gH1, s.gH1) },
		func() error { return d.Gemm(Gemm{M: 128, N: 9216, K: n, TransA: true, A: s.gH1, B: s.pooled, C: g[4]}) },
		func() error { return d.ColumnSums(ColumnSums{Rows: n, Columns: 128, X: s.gH1, Out: g[5]}) },
		func() error { return d.Gemm(Gemm{M: n, N: 9216, K: 128, A: s.gH1, B: p[4], C: s.gPool}) },
		func() error { return d.Scale(Scale{N: n, C: 64, Plane: 144, X: s.gPool, By: s.keep2, Out: s.gPool}) },
		func() error {
			return d.MaxPool2dBackward(MaxPool2dBackward{MaxPool2d: s.pool, GradY: s.gPool, ArgMax: s.places, GradX: s.g2})
		},
		func() error {
			return d.Conv2dBackwardParams(Conv2dBackwardParams{Conv2d: s.conv2, X: s.y1, GradY: s.g2, GradWeight: g[2],
				GradBias: g[3]})
		},
		func() error {
			return d.Conv2dBackwardInput(Conv2dBackwardInput{Conv2d: s.conv2, GradY: s.g2, Weight: p[2], GradX: s.g1})
		},
		func() error { return d.ReLUBackward(s.y1, s.g1, s.g1) },
		func() error {
			return d.Conv2dBackwardParams(Conv2dBackwardParams{Conv2d: s.conv1, X: s.x, GradY: s.g1, GradWeight: g[0],
				GradBias: g[1]})
		},
	)
}
