package cuda

import "math"

// exp and log in float32, from additions, products and bit patterns alone, so that Go, C++ and CUDA give the same bits.
// The same sequences stand in csrc/cpu/math.h and csrc/cuda/math.cuh.
//
// Source: Cephes, expf.c and logf.c (Moshier); the errors are below 2 units in the last place over the whole range.
const (
	expHighest float32 = 88.72283
	expLowest  float32 = -103.97208
	log2e      float32 = 1.44269504088896341
	ln2High    float32 = 0.693359375 // 355/512: its product with an exponent is exact
	ln2Low     float32 = -2.12194440e-4
	rounder    float32 = 12582912 // 1.5 * 2^23: adding and subtracting it rounds to a whole number
	sqrtHalf   float32 = 0.707106781186547524
)

// exp is e^x: +Inf above expHighest, +0 below expLowest, NaN for NaN.
func exp(x float32) float32 {
	switch {
	case x != x:
		return x
	case x > expHighest:
		return float32(math.Inf(1))
	case x < expLowest:
		return 0
	}
	n := float32(x*log2e) + rounder
	n -= rounder
	r := x - float32(n*ln2High)
	r -= float32(n * ln2Low)
	y := float32(1.9875691500e-4)
	y = float32(y*r) + 1.3981999507e-3
	y = float32(y*r) + 8.3334519073e-3
	y = float32(y*r) + 4.1665795894e-2
	y = float32(y*r) + 1.6666665459e-1
	y = float32(y*r) + 5.0000001201e-1
	y = float32(y*float32(r*r)) + r
	y += 1
	// Two factors, since 2^n itself may be no float32 where the result still is one. Only the second product rounds.
	half := int32(n) >> 1
	return float32(y*power2(half)) * power2(int32(n)-half)
}

// power2 is 2^n for n in [-126, 127].
func power2(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }

// log is the natural logarithm: NaN below 0, -Inf at 0.
func log(x float32) float32 {
	switch {
	case x != x || x < 0:
		return float32(math.NaN())
	case x == 0:
		return float32(math.Inf(-1))
	case x > math.MaxFloat32:
		return x
	}
	e := float32(0)
	if x < 0x1p-126 {
		x *= 0x1p23
		e = -23
	}
	bits := math.Float32bits(x)
	e += float32(int32(bits>>23) - 126)
	m := math.Float32frombits(bits&0x007fffff | 0x3f000000) // in [0.5, 1)
	if m < sqrtHalf {
		e -= 1
		m = m + m
	}
	m -= 1
	z := float32(m * m)
	y := float32(7.0376836292e-2)
	y = float32(y*m) - 1.1514610310e-1
	y = float32(y*m) + 1.1676998740e-1
	y = float32(y*m) - 1.2420140846e-1
	y = float32(y*m) + 1.4249322787e-1
	y = float32(y*m) - 1.6668057665e-1
	y = float32(y*m) + 2.0000714765e-1
	y = float32(y*m) - 2.4999993993e-1
	y = float32(y*m) + 3.3333331174e-1
	y = float32(float32(y*m) * z)
	y += float32(ln2Low * e)
	y -= float32(0.5 * z)
	return (m + y) + float32(ln2High*e)
}
