package cuda

import (
	"fmt"
	"unsafe"
)

// Buffer is memory outside the Go heap, aligned to 64 bytes and zeroed. Its owner frees it; slices of it die with it.
type Buffer struct {
	values []float32
	free   func()
}

// Float32s is the buffer's memory, valid until Free.
func (b *Buffer) Float32s() []float32 { return b.values }

// vector is n elements of any type from the byte offset on, valid until Free. It panics where they are out of range, as
// slicing does.
func (b *Buffer) vector(dtype DType, offset, n int) Vector {
	whole := Vector{unsafe.Pointer(unsafe.SliceData(b.values)), len(b.values) * 4, Uint8}
	return whole.at(dtype, offset, n)
}

// at is n elements of a type from an offset on in a vector of bytes.
func (v Vector) at(dtype DType, offset, n int) Vector {
	size := dtype.Bytes()
	if size == 0 || offset < 0 || n < 0 || offset%size != 0 || offset > v.n || n > (v.n-offset)/size {
		panic(fmt.Sprintf("%d elements of %v at byte %d of %d", n, dtype, offset, v.n))
	}
	if n == 0 {
		return Vector{dtype: dtype}
	}
	return Vector{unsafe.Add(v.data, offset), n, dtype}
}

// Free gives the memory back. A second call does nothing.
func (b *Buffer) Free() {
	if b != nil && b.free != nil {
		b.free()
		b.free, b.values = nil, nil
	}
}
