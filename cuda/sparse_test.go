//go:build linux

package cuda

import (
	"syscall"
	"testing"
	"unsafe"
)

// sparseBytes maps memory of which only the pages that are touched cost anything.
func sparseBytes(t *testing.T, bytes int) unsafe.Pointer {
	t.Helper()
	pages, err := syscall.Mmap(-1, 0, bytes, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		leftOut(t, "big", err)
		t.SkipNow()
	}
	t.Cleanup(func() { must(t, syscall.Munmap(pages)) })
	return unsafe.Pointer(unsafe.SliceData(pages))
}

// TestTableOf20GB reads and writes rows whose elements lie beyond 2^31 and 2^32, in float32 and float16.
func TestTableOf20GB(t *testing.T) {
	const dim, rows = 256, 20_000_000
	const low, high = 3, rows - 2
	onEach(t, func(t *testing.T, b Backend) {
		if b.Name() == "cuda" {
			t.Log("in the synchronous form the device holds a copy of the whole table, so it is not asked")
			return
		}
		for _, dtype := range []DType{Float32, Float16} {
			table := Vector{sparseBytes(t, rows*dim*dtype.Bytes()), rows * dim, dtype}
			m := Vector{sparseBytes(t, rows*dim*4), rows * dim, Float32}
			last := Vector{sparseBytes(t, rows*8), rows, Int64}
			row := func(v Vector, at int) Vector { return v.Slice(at*dim, at*dim+3) }
			narrow(row(table, low), []float32{1, 2, 3})
			narrow(row(table, high), []float32{10, 20, 30})
			out := make([]float32, dim)
			for _, ids := range []Vector{int64sOf(high, low, high), int32sOf(high, low, high)} {
				must(t, b.BagForward(BagForward{Dim: dim, Padding: NoPadding, Rows: table, IDs: ids, Offsets: int64sOf(0, 3),
					Out: Float32s(out)}))
				wantFloats(t, "bag", out[:3], []float32{21, 42, 63})
			}
			// The sum of high's two rows is 8 a value: m = 8/2, p -= 0.5*4.
			grad := make([]float32, 3*dim)
			for i := range grad {
				grad[i] = 4
			}
			slots, steps := []Slot{{"momentum", m, m}}, Steps{last, last, 1, false}
			mustCount(t, 2)(b.CoalesceApply(CoalesceApply{Dim: dim, Optimizer: SGD{LR: 0.5, Momentum: 0.5}, Weight: 2,
				Slots: slots, Steps: steps, Table: table,
				Keys: int64sOf(high, low, high), Rows: Float32s(grad), Out: table}))
			wantVector(t, "high", row(table, high), []float32{8, 18, 28})
			wantVector(t, "low", row(table, low), []float32{0, 1, 2})
			wantVector(t, "momentum", row(m, high), []float32{4, 4, 4})
			compact, after, lastAfter := make([]float32, dim), make([]float32, dim), make([]int64, 1)
			a := ApplyRows{Dim: dim, Optimizer: SGD{LR: 0.5, Momentum: 0.5}, Weight: 2,
				Slots: []Slot{{"momentum", m, Float32s(after)}},
				Steps: Steps{last, Int64s(lastAfter), 2, false}, Table: table, Index: int32sOf(high), Grad: Float32s(grad[:dim]),
				Out: packed(dtype, compact)}
			must(t, b.ApplyRows(a))
			wantVector(t, "applied", a.Out.Slice(0, 3), []float32{6, 16, 26})
			wantFloats(t, "momentum after", after[:3], []float32{4, 4, 4})
			wantInts(t, "last", append(lastAfter, view[int64](last)[high], view[int64](last)[5]), []int64{2, 1, 0})
			sum := Vector{sparseBytes(t, rows*4), rows, Float32}
			must(t,
				b.ApplyRows(ApplyRows{Dim: dim, Optimizer: RowwiseAdagrad{LR: 2}, Weight: 1, Slots: []Slot{{"sum", sum, sum}},
					Table: table, Index: int64sOf(low, high),
					Grad: Float32s(grad[:2*dim]), Out: table}))
			wantVector(t, "adagrad", row(table, high), []float32{6, 16, 26})
			wantInts(t, "sum", []float32{view[float32](sum)[high], view[float32](sum)[low-1]}, []float32{16, 0})
		}
	})
}
