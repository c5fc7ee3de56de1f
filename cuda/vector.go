package cuda

import (
	"fmt"
	"unsafe"
)

// DType is the type of a vector's elements.
type DType uint32

// The numbers are those of gb_dtype in gradbus.h.
const (
	Float32  DType = 0
	Float16  DType = 1 // IEEE 754 binary16
	BFloat16 DType = 2 // the upper half of a float32
	Int32    DType = 16
	Int64    DType = 17
	Uint64   DType = 18
	Uint8    DType = 19
)

func (d DType) String() string {
	switch d {
	case Float32:
		return "float32"
	case Float16:
		return "float16"
	case BFloat16:
		return "bfloat16"
	case Int32:
		return "int32"
	case Int64:
		return "int64"
	case Uint64:
		return "uint64"
	case Uint8:
		return "uint8"
	}
	return fmt.Sprintf("dtype %d", uint32(d))
}

// Bytes is the size of one element, 0 for an unknown type.
func (d DType) Bytes() int {
	switch d {
	case Float32, Int32:
		return 4
	case Float16, BFloat16:
		return 2
	case Int64, Uint64:
		return 8
	case Uint8:
		return 1
	}
	return 0
}

// Vector is n numbers of one type in memory: a slice whose element type is known at run time. The zero value is no
// vector, which optional arguments may be. It keeps the slice's memory alive. Vectors of device memory (see Stream)
// have a pointer that the host cannot follow.
type Vector struct {
	data  unsafe.Pointer
	n     int
	dtype DType
}

// Float32s is a vector over s.
func Float32s(s []float32) Vector { return vectorOf(s, Float32) }

// Float16s is a vector of float16, given by their bits.
func Float16s(bits []uint16) Vector { return vectorOf(bits, Float16) }

// BFloat16s is a vector of bfloat16, given by their bits.
func BFloat16s(bits []uint16) Vector { return vectorOf(bits, BFloat16) }

// Int32s is a vector over s.
func Int32s(s []int32) Vector { return vectorOf(s, Int32) }

// Int64s is a vector over s.
func Int64s(s []int64) Vector { return vectorOf(s, Int64) }

// Uint64s is a vector over s.
func Uint64s(s []uint64) Vector { return vectorOf(s, Uint64) }

// Uint8s is a vector over s.
func Uint8s(s []uint8) Vector { return vectorOf(s, Uint8) }

func vectorOf[T any](s []T, dtype DType) Vector {
	return Vector{unsafe.Pointer(unsafe.SliceData(s)), len(s), dtype}
}

// Len is the number of elements.
func (v Vector) Len() int { return v.n }

// DType is the type of the elements.
func (v Vector) DType() DType { return v.dtype }

// Slice is elements [lo, hi), sharing memory. It panics where they are out of range, as slicing does.
func (v Vector) Slice(lo, hi int) Vector {
	if lo < 0 || hi < lo || hi > v.n {
		panic(fmt.Sprintf("slice [%d:%d] of a vector of %d", lo, hi, v.n))
	}
	if hi == lo {
		return Vector{dtype: v.dtype}
	}
	return Vector{unsafe.Add(v.data, lo*v.dtype.Bytes()), hi - lo, v.dtype}
}

// view is the vector as a slice; T must be the Go type of its elements.
func view[T any](v Vector) []T { return unsafe.Slice((*T)(v.data), v.n) }
