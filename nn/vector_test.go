package nn

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestDotAndAxpy(t *testing.T) {
	if got := Dot([]float32{1, 2, 3}, []float32{4, 5, 6, 7}); got != 32 {
		t.Errorf("dot %v, want 32", got)
	}
	if got := Dot(nil, nil); got != 0 {
		t.Errorf("dot of nothing %v", got)
	}
	y := []float32{1, 1, 5}
	if Axpy(2, []float32{3, 4}, y); !slices.Equal(y, []float32{7, 9, 5}) {
		t.Errorf("axpy %v", y)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for n := range 70 {
		x, y := make([]float32, n), make([]float32, n)
		sum, bound := 0.0, 0.0
		for i := range x {
			x[i], y[i] = random.Float32()-0.5, random.Float32()-0.5
			sum, bound = sum+float64(x[i])*float64(y[i]), bound+math.Abs(float64(x[i])*float64(y[i]))
		}
		if got := float64(Dot(x, y)); math.Abs(got-sum) > float64(n/4+4)*0x1p-24*bound { // a product, n/4+3 sums
			t.Errorf("%d values: dot %v, want %v", n, got, sum)
		}
	}
}
