package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// bounded is a sum in float64 with the sum of its terms' magnitudes and their number, from which the error that any
// order of float32 additions may have follows: each term goes through at most n additions, one rounding of its product,
// and one addition of a bias; (1 + 2^-24)^(n+2) - 1 < (n+3) 2^-24 for the n of these tests.
type bounded struct {
	sum, size float64
	n         int
}

func (b *bounded) add(x, y float32) {
	b.sum += float64(x) * float64(y)
	b.size += math.Abs(float64(x) * float64(y))
	b.n++
}

func (b *bounded) holds(got float32) bool {
	return math.Abs(float64(got)-b.sum) <= float64(b.n+3)*0x1p-24*b.size+0x1p-149
}

// libraries opens every library of dense operations that this build and this machine have, beside each backend.
func libraries(t *testing.T) []*Dense {
	t.Helper()
	var all []*Dense
	for _, b := range backends(t) {
		if b.Name() == "emu" || b.Name() == "cuda" {
			continue // their products are Backend.MatMul's, which has its own tests
		}
		for _, name := range []string{"own", "onednn", "openblas"} {
			d, err := OpenDense(b, DenseOptions{Library: name})
			if err != nil {
				if b.ISA() != "portable" {
					leftOut(t, name, err)
				}
				continue
			}
			if name != "own" && b.ISA() != "avx2" && b.ISA() != "portable" {
				continue // the library does not know the backend: once is enough, with two kinds of the other operations
			}
			all = append(all, d)
		}
	}
	t.Cleanup(func() {
		for _, d := range all {
			must(t, d.Close())
		}
	})
	return all
}

// onLibraries runs body with every library.
func onLibraries(t *testing.T, body func(t *testing.T, d *Dense)) {
	t.Helper()
	for _, d := range libraries(t) {
		t.Run(fmt.Sprintf("%s/%s-%s", d.Name(), d.backend.Name(), d.backend.ISA()), func(t *testing.T) { body(t, d) })
	}
}

// garbage is memory that nobody cleared.
func garbage(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = nan
	}
	return x
}

// randomConv draws a geometry, some of it awkward.
func randomConv(r *rand.Rand) Conv2d {
	pick := func(from ...int) int { return from[r.IntN(len(from))] }
	c := Conv2d{N: pick(1, 2, 5), C: pick(1, 2, 3, 16, 17), H: pick(1, 5, 7, 12), W: pick(3, 5, 8, 13),
		Out:     pick(1, 3, 8, 33),
		KernelH: pick(1, 2, 3, 5), KernelW: pick(1, 2, 3), StrideH: pick(0, 1, 2, 3), StrideW: pick(1, 2),
		Layout: Layout(r.IntN(2))}
	c.PadH, c.PadW = min(pick(0, 1, 2), c.KernelH-1), min(pick(0, 1), c.KernelW-1)
	if c.H+2*c.PadH < c.KernelH {
		c.KernelH, c.PadH = 1, 0
	}
	return c
}

// each calls f for every product of the convolution: an element of x, of the weight and of y.
func (c *Conv2d) each(f func(x, w, y int)) {
	oh, ow := c.outHeight(), c.outWidth()
	in, out := placesOf(c.Layout, c.C, c.H*c.W), placesOf(c.Layout, c.Out, oh*ow)
	for n := range c.N {
		for o := range c.Out {
			for window := range oh * ow {
				for k := range c.C * c.KernelH * c.KernelW {
					channel, kh, kw := k/(c.KernelH*c.KernelW), k/c.KernelW%c.KernelH, k%c.KernelW
					h := window/ow*max(c.StrideH, 1) + kh - c.PadH
					w := window%ow*max(c.StrideW, 1) + kw - c.PadW
					if h < 0 || h >= c.H || w < 0 || w >= c.W {
						continue
					}
					f(n*in.image+channel*in.channel+(h*c.W+w)*in.place, o*c.C*c.KernelH*c.KernelW+k,
						n*out.image+o*out.channel+window*out.place)
				}
			}
		}
	}
}

func TestConvolutionsWithinTheBound(t *testing.T) {
	onLibraries(t, func(t *testing.T, d *Dense) {
		for seed := range uint64(40) {
			r := rand.New(rand.NewPCG(seed, 101))
			c := randomConv(r)
			places := c.outHeight() * c.outWidth()
			x, w, bias, gradY := noise(r, c.N*c.C*c.H*c.W), noise(r, c.Out*c.C*c.KernelH*c.KernelW), noise(r, c.Out),
				noise(r, c.N*c.Out*places)
			wantY, wantX, wantW, wantB := make([]bounded, len(gradY)), make([]bounded, len(x)), make([]bounded, len(w)),
				make([]bounded, c.Out)
			c.each(func(xi, wi, yi int) {
				wantY[yi].add(x[xi], w[wi])
				wantX[xi].add(gradY[yi], w[wi])
				wantW[wi].add(gradY[yi], x[xi])
			})
			for i, g := range gradY {
				o := i / places % c.Out
				if c.Layout == NHWC {
					o = i % c.Out
				}
				wantB[o].add(g, 1)
				if seed%3 > 0 {
					wantY[i].add(bias[o], 1)
				}
			}
			y, gradX, gradW, gradB := garbage(len(gradY)), garbage(len(x)), garbage(len(w)), garbage(c.Out)
			if seed%3 == 0 {
				bias, gradB = nil, nil
			}
			relu := seed%2 == 1
			must(t, d.Conv2dForward(Conv2dForward{Conv2d: c, ReLU: relu, X: x, Weight: w, Bias: bias, Y: y}))
			must(t, d.Conv2dBackwardInput(Conv2dBackwardInput{Conv2d: c, GradY: gradY, Weight: w, GradX: gradX}))
			must(t,
				d.Conv2dBackwardParams(Conv2dBackwardParams{Conv2d: c, X: x, GradY: gradY, GradWeight: gradW, GradBias: gradB}))
			if relu {
				for i := range wantY {
					wantY[i].sum = max(wantY[i].sum, 0) // which moves no two numbers further apart
				}
			}
			for what, v := range map[string]struct {
				got  []float32
				want []bounded
			}{"y": {y, wantY}, "gradX": {gradX, wantX}, "gradWeight": {gradW, wantW}, "gradBias": {gradB, wantB}} {
				for i, g := range v.got {
					if !v.want[i].holds(g) {
						t.Fatalf("seed %d, %+v: %s[%d] = %v, want %v of %d terms", seed, c, what, i, g, v.want[i].sum, v.want[i].n)
					}
				}
			}
		}
	})
}

func TestGemmWithinTheBound(t *testing.T) {
	onLibraries(t, func(t *testing.T, d *Dense) {
		for seed := range uint64(64) {
			r := rand.New(rand.NewPCG(seed, 103))
			m, n, k := 1+r.IntN(40), 1+r.IntN(70), r.IntN(150)
			if seed%16 == 15 {
				m, n, k = 3, 5, 6000
			}
			x, w, bias, before := noise(r, m*k), noise(r, k*n), noise(r, n), noise(r, m*n)
			want := make([]bounded, m*n)
			a := Gemm{M: m, N: n, K: k, TransA: seed&1 > 0, TransB: seed&2 > 0, Accumulate: seed&12 == 4,
				ReLU: seed&12 == 8, A: x, B: w}
			if seed%3 > 0 {
				a.Bias = bias
			}
			for i := range want {
				if a.Accumulate {
					want[i].add(before[i], 1)
				}
				if a.Bias != nil {
					want[i].add(bias[i%n], 1)
				}
				for l := range k {
					want[i].add(x[i/n*k+l], w[l*n+i%n])
				}
				if a.ReLU {
					want[i].sum = max(want[i].sum, 0)
				}
			}
			if a.TransA {
				a.A = transposed(x, m, k)
			}
			if a.TransB {
				a.B = transposed(w, k, n)
			}
			a.C = garbage(m * n)
			if a.Accumulate {
				copy(a.C, before)
			}
			must(t, d.Gemm(a))
			for i, c := range a.C {
				if !want[i].holds(c) {
					t.Fatalf("seed %d, %d x %d x %d, trans %v %v, accumulate %v: c[%d] = %v, want %v", seed, m, n, k,
						a.TransA, a.TransB,
						a.Accumulate, i, c, want[i].sum)
				}
			}
		}
	})
}
