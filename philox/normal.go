package philox

import "math"

// uniform32 converts 32 random bits to a number in [0, 1): the upper 24 of them times 2^-24, which is exact.
func uniform32(bits uint32) float32 { return float32(bits>>8) * (1.0 / (1 << 24)) }

// symmetric converts 32 random bits to a number in [-1, 1): the upper 24 of them, less 2^23, times 2^-23, which is
// exact.
func symmetric(bits uint32) float32 { return float32(int32(bits>>8)-1<<23) * (1.0 / (1 << 23)) }

// normal64 converts 32 random bits to a standard normal number: the inverse of the normal distribution at p = (bits +
// 0.5) / 2^32, by algorithm AS 241, PPND16 (Wichura: The Percentage Points of the Normal Distribution, Applied
// Statistics 37, 1988), relative error about 1e-16. Its values lie within 6.34 standard deviations. All steps are
// float64, rounded one by one, so every processor gives the same bits.
//
//	normal64(0xc0000000) // 0.67448975..., the upper quartile
func normal64(bits uint32) float64 {
	// bits - 2^31 + 0.5 and its product with 2^-32 are exact; this is p - 1/2.
	q := (float64(int64(bits)-1<<31) + 0.5) * (1.0 / (1 << 32))
	if q >= -0.425 && q <= 0.425 {
		return normalCentre(q)
	}
	return normalTail(q, bits)
}

// normalCentre covers |q| <= 0.425, 85 in 100 of all draws, without a logarithm.
func normalCentre(q float64) float64 {
	r := 0.180625 - float64(q*q)
	n := float64(2509.0809287301226727*r) + 33430.575583588128105
	d := float64(5226.495278852854561*r) + 28729.085735721942674
	n = float64(n*r) + 67265.770927008700853
	d = float64(d*r) + 39307.89580009271061
	n = float64(n*r) + 45921.953931549871457
	d = float64(d*r) + 21213.794301586595867
	n = float64(n*r) + 13731.693765509461125
	d = float64(d*r) + 5394.1960214247511077
	n = float64(n*r) + 1971.5909503065514427
	d = float64(d*r) + 687.1870074920579083
	n = float64(n*r) + 133.14166789178437745
	d = float64(d*r) + 42.313330701600911252
	n = float64(n*r) + 3.387132872796366608
	d = float64(d*r) + 1
	return float64(q*n) / d
}

// normalTail covers the rest: the smaller of p and 1-p is (tail + 0.5) / 2^32, exactly.
func normalTail(q float64, bits uint32) float64 {
	tail := bits
	if q > 0 {
		tail = ^bits
	}
	// Sqrt is correctly rounded everywhere. Its result is at most sqrt(33 ln 2) < 5, where AS 241's last branch begins.
	r := math.Sqrt(-logarithm((float64(tail)+0.5)*(1.0/(1<<32)))) - 1.6
	n := float64(7.7454501427834140764e-4*r) + 0.0227238449892691845833
	d := float64(1.05075007164441684324e-9*r) + 5.475938084995344946e-4
	n = float64(n*r) + 0.24178072517745061177
	d = float64(d*r) + 0.0151986665636164571966
	n = float64(n*r) + 1.27045825245236838258
	d = float64(d*r) + 0.14810397642748007459
	n = float64(n*r) + 3.64784832476320460504
	d = float64(d*r) + 0.68976733498510000455
	n = float64(n*r) + 5.7694972214606914055
	d = float64(d*r) + 1.6763848301838038494
	n = float64(n*r) + 4.6303378461565452959
	d = float64(d*r) + 2.05319162663775882187
	n = float64(n*r) + 1.42343711074968357734
	d = float64(d*r) + 1
	if q < 0 {
		return -(n / d)
	}
	return n / d
}

// logarithm returns the natural logarithm of a normal, positive number, with the same bits on every processor; math.Log
// is assembly on some. With x = 2^e * m, sqrt(1/2) <= m < sqrt(2), f = m - 1 and s = f / (2+f), log m = 2 atanh s, for
// which W. J. Cody and W. Waite (fdlibm's e_log.c) give the polynomial below; its error is under one unit in the last
// place.
func logarithm(x float64) float64 {
	const ( // ln 2 in two parts, so that e times the first is exact
		ln2High = 6.93147180369123816490e-01
		ln2Low  = 1.90821492927058770002e-10
	)
	bits := math.Float64bits(x)
	e := int64(bits>>52) - 1022
	m := math.Float64frombits(bits&(1<<52-1) | 1022<<52) // in [0.5, 1)
	if m < 0.70710678118654752440 {
		m *= 2
		e--
	}
	f := m - 1
	s := f / (2 + f)
	z := float64(s * s)
	w := float64(z * z)
	even := float64(w*1.531383769920937332e-01) + 2.222219843214978396e-01
	even = float64(w*even) + 3.999999999940941908e-01
	odd := float64(w*1.479819860511658591e-01) + 1.818357216161805012e-01
	odd = float64(w*odd) + 2.857142874366239149e-01
	odd = float64(w*odd) + 6.666666666666735130e-01
	r := float64(w*even) + float64(z*odd)
	half := float64(0.5 * float64(f*f))
	k := float64(e)
	rest := float64(s*(half+r)) + float64(k*ln2Low)
	return float64(k*ln2High) - ((half - rest) - f)
}
