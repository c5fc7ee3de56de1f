package nn

import (
	"errors"
	"fmt"
	"math"

	"gradbus/cuda"
)

// ErrShape reports that the lengths of the arguments do not fit the layer. Nothing was written.
var ErrShape = errors.New("bad shape")

// Linear computes y = x W' + b, with W of shape [Out, In] as in PyTorch.
type Linear struct {
	in, out int

	backend cuda.Backend
	ones    []float32
}

// NewLinear returns a layer with these sizes; it panics if one is below 1.
func NewLinear(backend cuda.Backend, in, out int) *Linear {
	if in < 1 || out < 1 {
		panic(fmt.Sprintf("nn: linear layer of %d to %d", in, out))
	}
	return &Linear{in: in, out: out, backend: backend}
}

// InitBound returns PyTorch's default bound for weight and bias: both are uniform in [-bound, bound), bound =
// 1/sqrt(in).
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

// want refuses a tensor whose size is not rows x columns.
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

// grown returns s with length n, keeping its memory if that is large enough. Values are undefined.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}

// EmbeddingBag pools embedding rows into bags: the sum or the mean of the rows that a sample's ids name.
type EmbeddingBag struct {
	dim  int
	Mode cuda.Mode

	backend cuda.Backend
	keys    []int64
	rows    []float32
}

// NewEmbeddingBag returns a layer for rows of dim values; it panics if dim is below 1.
func NewEmbeddingBag(backend cuda.Backend, dim int, mode cuda.Mode) *EmbeddingBag {
	if dim < 1 {
		panic(fmt.Sprintf("nn: embedding bag of rows of %d values", dim))
	}
	return &EmbeddingBag{dim: dim, Mode: mode, backend: backend}
}

// Forward writes out [B, Dim]: row b pools rows[ids[i]] for i in [offsets[b], offsets[b+1]). rows is [R, Dim], ids [N]
// in [0, R), offsets [B+1] from 0 to N and never falling. A bag without ids is a zero row. out may not overlap rows.
// Sums run in the order of positions, canonically, and the mean divides once. It fails with errors of the backend.
//
//	rows = {{1, 2}, {3, 4}}, ids = {0, 1, 1}, offsets = {0, 2, 3}, mean   ->   out = {{2, 3}, {3, 4}}
func (e *EmbeddingBag) Forward(rows []float32, ids, offsets []int64, out []float32) error {
	return e.backend.BagForward(cuda.BagForward{Dim: e.dim, Mode: e.Mode, Padding: cuda.NoPadding,
		Rows: cuda.Float32s(rows), IDs: cuda.Int64s(ids), Offsets: cuda.Int64s(offsets), Out: cuda.Float32s(out)})
}

// backward returns the gradient of the rows from gradOut [B, Dim]: the distinct ids, ascending, and for each the sum
// over its positions, in canonical order, of gradOut of the position's bag, divided by the bag's length first if the
// mode is the mean. rowCount is R. The returned slices belong to the layer, and are valid until the next call. It fails
// with errors of the backend.
//
//	ids = {0, 1, 1}, offsets = {0, 2, 3}, gradOut = {{2, 4}, {1, 1}}, mean   ->   {0, 1}, {{1, 2}, {2, 3}}
func (e *EmbeddingBag) backward(rowCount int, ids, offsets []int64, gradOut []float32) (distinct []int64,
	rows []float32, err error) {
	room := min(len(ids), rowCount) // there are at most that many distinct ids
	e.keys, e.rows = grown(e.keys, room), grown(e.rows, room*e.dim)
	n, err := e.backend.BagBackward(cuda.BagBackward{Dim: e.dim, Mode: e.Mode, Padding: cuda.NoPadding, R: int64(rowCount),
		IDs: cuda.Int64s(ids), Offsets: cuda.Int64s(offsets),
		GradOut: cuda.Float32s(gradOut), Keys: cuda.Int64s(e.keys), Out: cuda.Float32s(e.rows)})
	if err != nil {
		return nil, nil, err
	}
	return e.keys[:n], e.rows[:n*e.dim], nil
}

// Dot returns the sum of x[i]*y[i], in float32, over the first len(x) values of y, which may be longer. It adds four
// partial sums, of i modulo 4, each in sequence, and then (0+1) + (2+3). Products are rounded before they are added, so
// the bits are the same on every processor.
//
//	Dot([]float32{1, 2, 3}, []float32{4, 5, 6}) == 32
func Dot(x, y []float32) float32 {
	y = y[:len(x)]
	var a, b, c, d float32
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a += float32(x[i] * y[i])
		b += float32(x[i+1] * y[i+1])
		c += float32(x[i+2] * y[i+2])
		d += float32(x[i+3] * y[i+3])
	}
	for k := 0; i < len(x); i, k = i+1, k+1 {
		p := float32(x[i] * y[i])
		switch k {
		case 0:
			a += p
		case 1:
			b += p
		default:
			c += p
		}
	}
	return (a + b) + (c + d)
}

// Axpy adds a*x to y, float32, in place: y[i] += a*x[i], the product rounded first. y has at least len(x) values, and x
// may be y.
//
//	y := []float32{1, 1}; Axpy(2, []float32{3, 4}, y) // y is {7, 9}
func Axpy(a float32, x, y []float32) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] += float32(a * v)
	}
}
