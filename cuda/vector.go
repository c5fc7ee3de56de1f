package cuda

import (
	"encoding/binary"
	"fmt"
	"math"
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

// Conversions between float32 and the 16-bit formats, in integers and one addition, so that they are the same on every
// machine. Widening is exact. Narrowing rounds to nearest even, keeps subnormals, and turns what is too large into an
// infinity; a NaN stays some NaN.

// widenFloat16 is the value of a binary16.
func widenFloat16(h uint16) float32 {
	sign, exponent, fraction := uint32(h&0x8000)<<16, uint32(h>>10&31), uint32(h&0x3ff)
	switch exponent {
	case 0: // zero or subnormal: the product is exact
		return math.Float32frombits(math.Float32bits(float32(fraction)*0x1p-24) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

// narrowFloat16 is the binary16 nearest to f.
func narrowFloat16(f float32) uint16 {
	bits := math.Float32bits(f)
	sign, size := uint16(bits>>16&0x8000), bits&0x7fffffff
	switch {
	case size > 0x7f800000:
		return sign | 0x7e00
	case size >= 0x477ff000: // from 65520 on, halfway between the largest finite value and the next
		return sign | 0x7c00
	case size < 0x38800000: // below 2^-14: the sum's last place is 2^-24, that of the subnormals
		return sign | uint16(math.Float32bits(math.Float32frombits(size)+0.5)-0x3f000000)
	}
	size -= 112 << 23
	size += 0xfff + size>>13&1
	return sign | uint16(size>>13)
}

// widenBFloat16 is the value of a bfloat16.
func widenBFloat16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// narrowBFloat16 is the bfloat16 nearest to f.
func narrowBFloat16(f float32) uint16 {
	bits := math.Float32bits(f)
	if bits&0x7fffffff > 0x7f800000 {
		return uint16(bits>>16) | 0x40
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Widen writes the values of a vector of floats in host memory to out as float32, which is exact. out has the vector's
// length and is other memory.
//
//	cuda.Widen(out, cuda.BFloat16s(bits))
func Widen(out []float32, v Vector) {
	switch v.dtype {
	case Float16:
		for i, h := range view[uint16](v) {
			out[i] = widenFloat16(h)
		}
	case BFloat16:
		for i, h := range view[uint16](v) {
			out[i] = widenBFloat16(h)
		}
	default:
		copy(out, view[float32](v))
	}
}

// narrow writes x to a vector of floats, which is as long, rounding once.
func narrow(out Vector, x []float32) {
	switch out.dtype {
	case Float16:
		to := view[uint16](out)
		for i := range to {
			to[i] = narrowFloat16(x[i])
		}
	case BFloat16:
		to := view[uint16](out)
		for i := range to {
			to[i] = narrowBFloat16(x[i])
		}
	default:
		copy(view[float32](out), x)
	}
}

// floats32 is the vector's values, in its own memory where it holds float32, else widened into buf.
func floats32(v Vector, buf *[]float32) []float32 {
	if v.n == 0 {
		return nil
	}
	if v.dtype == Float32 {
		return view[float32](v)
	}
	*buf = grow(*buf, v.n)
	Widen(*buf, v)
	return *buf
}

// room32 is where float32 results for the vector go before store32 puts them in place: its own memory where it holds
// float32, else buf.
func room32(v Vector, buf *[]float32) []float32 {
	if v.n == 0 {
		return nil
	}
	if v.dtype == Float32 {
		return view[float32](v)
	}
	*buf = grow(*buf, v.n)
	return *buf
}

// store32 ends what room32 began.
func store32(v Vector, values []float32) {
	if v.dtype != Float32 && v.n > 0 {
		narrow(v, values)
	}
}

// ints64 is the vector of integers as int64, in its own memory where it has that size, else widened into buf. A uint64
// from 2^63 on is negative here, and so out of every range.
func ints64(v Vector, buf *[]int64) []int64 {
	if v.n == 0 {
		return nil
	}
	if v.dtype != Int32 {
		return view[int64](v)
	}
	*buf = grow(*buf, v.n)
	for i, x := range view[int32](v) {
		(*buf)[i] = int64(x)
	}
	return *buf
}

// round makes float32 values what they are once stored as dtype.
func round(x []float32, dtype DType) {
	switch dtype {
	case Float16:
		for i, v := range x {
			x[i] = widenFloat16(narrowFloat16(v))
		}
	case BFloat16:
		for i, v := range x {
			x[i] = widenBFloat16(narrowBFloat16(v))
		}
	}
}

// equalBits tells -0 from +0, and knows a NaN again.
func equalBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return true
}

// firstNonFinite16 is FirstNonFinite of 16-bit values: of those whose exponent has all bits set.
func firstNonFinite16(v Vector) int {
	exponent := uint64(0x7c00)
	if v.dtype == BFloat16 {
		exponent = 0x7f80
	}
	const each, high = 0x0001_0001_0001_0001, 0x8000_8000_8000_8000
	bytes, at, mask := v.bytes(), 0, exponent*each
	// A value's exponent, its bits turned over, is zero where it is not finite; anything else reaches the top bit when
	// 0x7fff is added. No carry leaves the 16 bits.
	lacks := func(i int) uint64 {
		return (binary.LittleEndian.Uint64(bytes[i:])&mask ^ mask) + (high - each)
	}
	for ; len(bytes)-2*at >= 32; at += 16 {
		i := 2 * at
		if lacks(i)&lacks(i+8)&lacks(i+16)&lacks(i+24)&high != high {
			break
		}
	}
	for ; at < v.n; at++ {
		if uint64(binary.LittleEndian.Uint16(bytes[2*at:]))&exponent == exponent {
			return at
		}
	}
	return -1
}
