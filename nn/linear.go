package nn

import (
	"errors"
	"fmt"
	"math"

	"gradbus/cuda"
)

// ErrShape says that the lengths of the arguments do not fit the layer. Nothing was written.
var ErrShape = errors.New("bad shape")

// Linear is y = x W' + b, with W of shape [Out, In] as in PyTorch.
type Linear struct {
	in, out int

	backend cuda.Backend
	ones    []float32
}

// NewLinear gives a layer for the sizes; it panics where one is below 1.
func NewLinear(backend cuda.Backend, in, out int) *Linear {
	if in < 1 || out < 1 {
		panic(fmt.Sprintf("nn: linear layer of %d to %d", in, out))
	}
	return &Linear{in: in, out: out, backend: backend}
}

// InitBound is PyTorch's default for weight and bias: both are uniform in [-bound, bound), bound = 1/sqrt(in).
//
// Source: torch.nn.Linear.reset_parameters; Kaiming's bound with a = sqrt(5).
func (l *Linear) InitBound() float32 { return float32(1 / math.Sqrt(float64(l.in))) }

// Forward writes y [n, Out] = x [n, In] times the transpose of weight [Out, In], plus bias [Out] (nil for none). All
// are float32 and row-major; y may not overlap the others. Each sum over In runs in canonical order, the bias comes
// last. It fails with ErrShape, or with an error of the backend.
//
//	weight = {{1, 2}, {3, 4}}, bias = {10, 20}, x = {{1, 1}}   ->   y = {{13, 27}}
func (l *Linear) Forward(weight, bias, x, y []float32) error {
	n := len(x) / l.in
	if err := errors.Join(l.checkWeight(weight), want("x", x, n, l.in), want("y", y, n, l.out),
		optional("bias", bias, 1, l.out)); err != nil {
		return fmt.Errorf("linear forward: %w", err)
	}
	return l.backend.MatMul(cuda.MatMul{M: n, N: l.out, K: l.in, TransB: true,
		A: cuda.Float32s(x), B: cuda.Float32s(weight), Bias: cuda.Float32s(bias), C: cuda.Float32s(y)})
}

// BackwardParams writes gradWeight [Out, In] = gradY' x and gradBias [Out] = the sum of gradY over its samples, from x
// [n, In] and gradY [n, Out]; gradBias may be nil. Both are overwritten, and zero where n is 0. The sums over n run in
// canonical order. It fails with ErrShape, or with an error of the backend.
//
//	x = {{1, 2}}, gradY = {{3, 4}}   ->   gradWeight = {{3, 6}, {4, 8}}, gradBias = {3, 4}
func (l *Linear) BackwardParams(x, gradY, gradWeight, gradBias []float32) error {
	n := len(x) / l.in
	if err := errors.Join(want("x", x, n, l.in), want("gradY", gradY, n, l.out),
		want("gradWeight", gradWeight, l.out, l.in),
		optional("gradBias", gradBias, 1, l.out)); err != nil {
		return fmt.Errorf("linear backward: %w", err)
	}
	if n == 0 {
		clear(gradWeight)
		clear(gradBias)
		return nil
	}
	err := l.backend.MatMul(cuda.MatMul{M: l.out, N: l.in, K: n, TransA: true,
		A: cuda.Float32s(gradY), B: cuda.Float32s(x), C: cuda.Float32s(gradWeight)})
	if err != nil || gradBias == nil {
		return err
	}
	for len(l.ones) < n {
		l.ones = append(l.ones, 1)
	}
	return l.backend.MatMul(cuda.MatMul{M: 1, N: l.out, K: n,
		A: cuda.Float32s(l.ones[:n]), B: cuda.Float32s(gradY), C: cuda.Float32s(gradBias)})
}

// BackwardInput writes gradX [n, In] = gradY [n, Out] times weight [Out, In]. The sums over Out run in canonical order.
// It fails with ErrShape, or with an error of the backend.
//
//	weight = {{1, 2}, {3, 4}}, gradY = {{1, 10}}   ->   gradX = {{31, 42}}
func (l *Linear) BackwardInput(weight, gradY, gradX []float32) error {
	n := len(gradY) / l.out
	if err := errors.Join(l.checkWeight(weight), want("gradY", gradY, n, l.out),
		want("gradX", gradX, n, l.in)); err != nil {
		return fmt.Errorf("linear backward: %w", err)
	}
	return l.backend.MatMul(cuda.MatMul{M: n, N: l.in, K: l.out,
		A: cuda.Float32s(gradY), B: cuda.Float32s(weight), C: cuda.Float32s(gradX)})
}

func (l *Linear) checkWeight(weight []float32) error { return want("weight", weight, l.out, l.in) }

// want refuses a tensor that is not rows x columns.
func want(name string, values []float32, rows, columns int) error {
	if len(values) != rows*columns {
		return fmt.Errorf("%w: %s has %d values, want %d x %d", ErrShape, name, len(values), rows, columns)
	}
	return nil
}

// optional is want for a tensor that may be nil.
func optional(name string, values []float32, rows, columns int) error {
	if values == nil {
		return nil
	}
	return want(name, values, rows, columns)
}

// grown gives s the length n, keeping its memory where that suffices. Values are what they happen to be.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}
