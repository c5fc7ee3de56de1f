package cuda

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// layerCalls are calls of several shapes, and the tensors they write.
func layerCalls(d *Dense, layout Layout, offset int) (calls []func() error, outputs [][]float32) {
	at := func(n int) []float32 { return slices.Concat(make([]float32, offset), ramp(n))[offset:] }
	out := func(n int) []float32 {
		o := garbage(n + offset)[offset:]
		outputs = append(outputs, o)
		return o
	}
	for _, c := range []Conv2d{{N: 2, C: 3, H: 9, W: 11, Out: 17, KernelH: 3, KernelW: 3, PadH: 1, PadW: 1,
		Layout: layout},
		{N: 3, C: 32, H: 10, W: 10, Out: 64, KernelH: 3, KernelW: 3, Layout: layout}} {
		places := c.N * c.outHeight() * c.outWidth()
		x, w, bias, gradY := at(c.N*c.C*c.H*c.W), at(c.Out*c.C*9), at(c.Out), at(c.Out*places)
		y, gx, gw, gb := out(len(gradY)), out(len(x)), out(len(w)), out(c.Out)
		calls = append(calls,
			func() error { return d.Conv2dForward(Conv2dForward{Conv2d: c, X: x, Weight: w, Bias: bias, Y: y}) },
			func() error {
				return d.Conv2dBackwardInput(Conv2dBackwardInput{Conv2d: c, GradY: gradY, Weight: w, GradX: gx})
			},
			func() error {
				return d.Conv2dBackwardParams(Conv2dBackwardParams{Conv2d: c, X: x, GradY: gradY, GradWeight: gw, GradBias: gb})
			})
	}
	for _, s := range [][3]int{{20, 100, 30}, {7, 130, 65}, {33, 300, 257}} {
		n, in, o := s[0], s[1], s[2]
		x, w, gradY, bias := at(n*in), at(in*o), at(n*o), at(o)
		y, gx, gw := out(n*o), out(n*in), out(in*o)
		calls = append(calls,
			func() error { return d.Gemm(Gemm{M: n, N: o, K: in, TransB: true, A: x, B: w, Bias: bias, C: y}) },
			func() error { return d.Gemm(Gemm{M: n, N: in, K: o, A: gradY, B: w, C: gx}) },
			func() error { return d.Gemm(Gemm{M: o, N: in, K: n, TransA: true, A: gradY, B: x, C: gw}) })
	}
	return calls, outputs
}

// TestDenseRepeats: the same call gives the same bits again, in another instance of the library, at another alignment,
// and while other threads call, among them the first ever of its shape.
func TestDenseRepeats(t *testing.T) {
	onLibraries(t, func(t *testing.T, d *Dense) {
		for _, layout := range []Layout{NCHW, NHWC} {
			calls, want := layerCalls(d, layout, 0)
			must(t, all(calls...))
			name := "own"
			if d.Name() != "own" {
				name = libraryOf(d)
			}
			again, err := OpenDense(d.backend, DenseOptions{Library: name})
			must(t, err)
			defer again.Close()
			var wait sync.WaitGroup
			errs := make([]error, 6)
			for g := range errs {
				wait.Go(func() {
					if g%2 == 1 { // a thread of its own, which ends with the goroutine
						runtime.LockOSThread()
					}
					calls, got := layerCalls(again, layout, g%4)
					for round := range 4 {
						for i := range calls {
							if err := calls[(i+g*3)%len(calls)](); err != nil {
								errs[g] = err
								return
							}
						}
						for i := range got {
							if !sameBits(got[i], want[i]) {
								errs[g] = fmt.Errorf("caller %d, round %d, layout %d: result %d has other bits than alone", g, round, layout, i)
								return
							}
							for j := range got[i] {
								got[i][j] = nan
							}
						}
					}
				})
			}
			wait.Wait()
			must(t, all(func() error { return firstOf(errs...) }))
		}
	})
}

// libraryOf is the first word of a library's name.
func libraryOf(d *Dense) string {
	var word string
	fmt.Sscan(d.Name(), &word)
	return word
}
