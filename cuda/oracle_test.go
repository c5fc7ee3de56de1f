package cuda

import (
	"math"
	"math/rand/v2"
	"testing"
)

// sumBound is the error bound of a canonical sum of n terms whose magnitudes add up to total: each term goes through at
// most that many roundings, plus two for the product and a division.
func sumBound(n int, total float64) float64 {
	ceil := func(a, b int) int { return (a + b - 1) / b }
	deep := min(n, blockTerms) + min(ceil(n, blockTerms), blockTerms) + ceil(n, superTerms)
	return float64(deep+2)*0x1p-24*total + 0x1p-149
}

// TestSumsWithinTheBound compares with sums in float64, which know nothing of any order.
func TestSumsWithinTheBound(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(40) {
			r := rand.New(rand.NewPCG(seed, 29))
			n := []int{1, 10, 64, 65, 1000, 5000, 100_000}[seed%7]
			x, w := noise(r, n), noise(r, n)
			var sum, size float64
			for i := range x {
				sum += float64(x[i]) * float64(w[i])
				size += math.Abs(float64(x[i]) * float64(w[i]))
			}
			c := make([]float32, 1)
			must(t, b.MatMul(matMul(1, 1, n, false, false, x, w, nil, c)))
			if off := math.Abs(float64(c[0]) - sum); off > sumBound(n, size) {
				t.Errorf("product of %d: off by %v, bound %v", n, off, sumBound(n, size))
			}
			sum, size = 0, 0
			ids := make([]int64, n)
			for i := range x {
				ids[i] = int64(r.IntN(n))
				sum += float64(x[ids[i]])
				size += math.Abs(float64(x[ids[i]]))
			}
			must(t, b.BagForward(bagForward(1, Mean, NoPadding, x, ids, []int64{0, int64(n)}, c)))
			if off := math.Abs(float64(c[0]) - sum/float64(n)); off > sumBound(n, size)/float64(n) {
				t.Errorf("mean of %d: off by %v, bound %v", n, off, sumBound(n, size)/float64(n))
			}
		}
	})
}

// TestSoftmaxAgainstFloat64 checks values, and that the gradient is the derivative of the loss.
func TestSoftmaxAgainstFloat64(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		r := rand.New(rand.NewPCG(1, 31))
		const samples, classes = 33, 58
		x := noise(r, samples*classes)
		targets, loss, grad := make([]int32, samples), make([]float32, samples), make([]float32, len(x))
		a := softmax(classes, x, targets, loss, grad, nil)
		for i := range targets {
			targets[i] = r.Int32N(classes)
		}
		must(t, b.SoftmaxCrossEntropy(a))
		for i := range samples {
			var sum float64
			for _, v := range x[i*classes:][:classes] {
				sum += math.Exp(float64(v))
			}
			target := int(targets[i])
			if want := math.Log(sum) - float64(x[i*classes+target]); math.Abs(float64(loss[i])-want) > 1e-5*(1+want) {
				t.Errorf("loss %v, want %v", loss[i], want)
			}
			for c := range classes {
				want := math.Exp(float64(x[i*classes+c])) / sum
				if c == target {
					want--
				}
				if math.Abs(float64(grad[i*classes+c])-want) > 1e-5 {
					t.Errorf("gradient %v, want %v", grad[i*classes+c], want)
				}
			}
		}
	})
}
