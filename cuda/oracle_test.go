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

// TestRowSumsWithinTheBound holds the weighted, coalesced and scattered sums to the bound; float16 results may be off
// by half of their own last place on top of it.
func TestRowSumsWithinTheBound(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(24) {
			r := rand.New(rand.NewPCG(seed, 71))
			n, dtype := []int{1, 10, 64, 65, 1000, 5000, 60_000}[seed%7], []DType{Float32, Float16}[seed%2]
			table, weights, ids := packed(dtype, noise(r, n)), noise(r, n), make([]int64, n)
			x := unpacked(table)
			var weighted, sum [2]float64 // value, and the sum of magnitudes
			for i := range ids {
				ids[i] = int64(r.IntN(n))
				v := float64(x[ids[i]])
				weighted[0] += v * float64(weights[i])
				weighted[1] += math.Abs(v * float64(weights[i]))
				sum[0] += float64(x[i])
				sum[1] += math.Abs(float64(x[i]))
			}
			out, keys := cleared(dtype, 1), make([]int64, 1)
			check := func(what string, want [2]float64, scale float64) {
				t.Helper()
				got := float64(unpacked(out)[0])
				bound := sumBound(n, want[1]) * scale
				if dtype == Float16 {
					bound += 0x1p-11*math.Abs(want[0]*scale) + 0x1p-25
				}
				if off := math.Abs(got - want[0]*scale); off > bound {
					t.Errorf("%s of %d in %v: off by %v, bound %v", what, n, dtype, off, bound)
				}
			}
			must(t,
				b.BagForward(BagForward{Dim: 1, Padding: NoPadding, Rows: table, IDs: Int64s(ids), Offsets: int64sOf(0, int64(n)),
					Weights: Float32s(weights), Out: out}))
			check("weighted bag", weighted, 1)
			mustCount(t,
				1)(b.Coalesce(Coalesce{Dim: 1, Weight: 3, Keys: Int64s(make([]int64, n)), Rows: table, OutKeys: Int64s(keys),
				OutRows: out}))
			check("coalesced mean", sum, 1.0/3)
			offsets := make([]int64, n+1)
			for i := range offsets {
				offsets[i] = int64(i)
			}
			mustCount(t,
				1)(b.BagBackward(BagBackward{Dim: 1, Mode: Mean, Padding: NoPadding, R: 1, IDs: Int64s(make([]int64, n)),
				Offsets: Int64s(offsets), GradOut: table,
				Keys: Int64s(keys), Out: out}))
			check("scattered", sum, 1)
			param := cleared(dtype, 1)
			narrow(param, []float32{0})
			mustCount(t, 1)(b.CoalesceApply(CoalesceApply{Dim: 1, Optimizer: SGD{LR: -1}, Weight: 3, Table: param,
				Keys: Int64s(make([]int64, n)), Rows: table, Out: param}))
			out = param
			check("applied", sum, 1.0/3)
		}
	})
}
