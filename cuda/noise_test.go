package cuda

import "math/rand/v2"

// noise returns n values of a normal distribution.
func noise(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}
