package cuda

import "sync"

// ownProducts are products and convolutions by the backend's MatMul, in canonical order: the same bits on every
// backend. A convolution becomes products of matrices whose rows are the windows of an image: for each image, in turn,
// Y [Out, places] = Weight [Out, C*KernelH*KernelW] times the windows. What several images add up to is added image by
// image.
type ownProducts struct {
	lowered
	backend Backend
	sums    *sync.Pool // of *[]float32, where a product is before it is accumulated
}

func newOwnProducts(b Backend) *ownProducts {
	o := &ownProducts{backend: b, sums: newFloatsPool()}
	o.lowered = newLowered(o.gemm)
	return o
}

func newFloatsPool() *sync.Pool { return &sync.Pool{New: func() any { return new([]float32) }} }

func (o *ownProducts) name() string { return "own" }
func (o *ownProducts) close()       {}

func (o *ownProducts) gemm(a *Gemm) error {
	call := MatMul{M: a.M, N: a.N, K: a.K, TransA: a.TransA, TransB: a.TransB, A: Float32s(a.A), B: Float32s(a.B),
		Bias: Float32s(a.Bias), C: Float32s(a.C)}
	if !a.Accumulate {
		err := o.backend.MatMul(call)
		if err == nil && a.ReLU {
			goMaps{}.reluForward(a.C, a.C)
		}
		return err
	}
	sum := o.sums.Get().(*[]float32)
	defer o.sums.Put(sum)
	*sum = grow(*sum, len(a.C))
	call.C = Float32s(*sum)
	err := o.backend.MatMul(call)
	if err == nil {
		add(a.C, *sum)
	}
	return err
}
