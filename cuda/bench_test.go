package cuda

import (
	"math/rand/v2"
	"testing"
)

// Benchmarks of every backend at the sizes of a small text model: 256 samples of ten ids, rows of 64, 58 classes.
//
//	go test -tags native -run xxx -bench . ./cuda/

func fail(b *testing.B, err error) {
	if err != nil {
		b.Fatal(err)
	}
}

func noise(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}
