package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestMatMulBits(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(160) {
			r := rand.New(rand.NewPCG(seed, 11))
			m, n, k := r.IntN(12), r.IntN(140), r.IntN(200)
			if seed%40 == 0 {
				m, n, k = 2, 3, 9000 // several superblocks
			}
			x, w, bias := awkward(r, m*k, seed%2 == 1), awkward(r, k*n, seed%2 == 1), awkward(r, n, false)
			want := make([]float32, m*n)
			terms := make([]float32, k)
			for i := range m {
				for j := range n {
					for l := range k {
						terms[l] = float32(x[i*k+l] * w[l*n+j])
					}
					want[i*n+j] = naiveSum(terms)
					if seed%3 > 0 {
						want[i*n+j] += bias[j]
					}
				}
			}
			for trans := range 4 {
				c := make([]float32, m*n+1)[1:]
				a := matMul(m, n, k, trans&1 > 0, trans&2 > 0, x, w, nil, c)
				if seed%3 > 0 {
					a.Bias = Float32s(bias)
				}
				if a.TransA {
					a.A = Float32s(transposed(x, m, k))
				}
				if a.TransB {
					a.B = Float32s(transposed(w, k, n))
				}
				must(t, b.MatMul(a))
				if !sameBits(c, want) {
					t.Fatalf("seed %d, %d x %d x %d, trans %v %v: wrong bits", seed, m, n, k, a.TransA, a.TransB)
				}
			}
		}
	})
}

func transposed(x []float32, rows, cols int) []float32 {
	to := make([]float32, len(x))
	for i := range rows {
		for j := range cols {
			to[j*rows+i] = x[i*cols+j]
		}
	}
	return to
}

// naiveSGD is torch.optim.SGD for one value, with a rounding after every operation.
func naiveSGD(h SGD, first bool, weight, p, g, m float32) (newP, newM float32) {
	d := g / weight
	if h.WeightDecay != 0 {
		d = d + float32(h.WeightDecay*p)
	}
	update := d
	if h.Momentum != 0 {
		if first {
			m = d
		} else {
			m = float32(h.Momentum*m) + float32((1-h.Dampening)*d)
		}
		update = m
		if h.Nesterov {
			update = d + float32(h.Momentum*m)
		}
	}
	return p - float32(h.LR*update), m
}

func randomSGD(r *rand.Rand) (SGD, float32) {
	pick := func(x ...float32) float32 { return x[r.IntN(len(x))] }
	return SGD{pick(0.1, 0.0317, 0, -1), pick(0, 0.9, 0.77), pick(0, 0.1), pick(0, 1e-4, 0.3), r.IntN(2) == 1},
		pick(1, 64, 3, 511, 0.1)
}

func TestSoftmaxCrossEntropyBits(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(120) {
			r := rand.New(rand.NewPCG(seed, 17))
			samples, classes := r.IntN(20), []int{1, 2, 5, 16, 58, 64, 65, 5000}[r.IntN(8)]
			logits, targets := awkward(r, samples*classes, seed%4 == 3), make([]int32, samples)
			scale := []float32{1, 40, 1000}[r.IntN(3)]
			for i := range logits {
				logits[i] *= scale
				if r.IntN(10) > 0 {
					logits[i] = float32(math.Mod(float64(logits[i]), 120))
				}
			}
			for i := range targets {
				targets[i] = r.Int32N(int32(classes))
			}
			losses, grads, probs := make([]float32, samples), make([]float32, len(logits)), make([]float32, len(logits))
			must(t, b.SoftmaxCrossEntropy(softmax(classes, logits, targets, losses, grads, probs)))
			for i := range samples {
				loss, grad, prob := naiveSoftmax(logits[i*classes:][:classes], int(targets[i]))
				if !sameBits(losses[i:i+1], []float32{loss}) || !sameBits(grads[i*classes:][:classes], grad) ||
					!sameBits(probs[i*classes:][:classes], prob) {
					t.Fatalf("seed %d, sample %d of %d, %d classes: wrong bits", seed, i, samples, classes)
				}
			}
		}
	})
}

func naiveSoftmax(x []float32, target int) (loss float32, grad, prob []float32) {
	top := x[0]
	for _, v := range x {
		if !(v <= top) {
			top = v
		}
		if top != top {
			break
		}
	}
	e := make([]float32, len(x))
	for i, v := range x {
		e[i] = exp(v - top)
	}
	total := naiveSum(e)
	for _, v := range e {
		prob = append(prob, v/total)
	}
	grad = slices.Clone(prob)
	grad[target] -= 1
	return log(total) - (x[target] - top), grad, prob
}

// TestExpOnEveryBackend runs exp of every backend over many bit patterns: a sample of two classes, the first the
// larger.
func TestExpOnEveryBackend(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		const n = 400_000 // a wrong last bit of a coefficient shows in one value of some ten thousand
		logits, prob := make([]float32, 2*n), make([]float32, 2*n)
		r := rand.New(rand.NewPCG(1, 19))
		for i := range n {
			logits[2*i+1] = -math.Float32frombits(r.Uint32() >> 1)
			if i%2 == 0 {
				logits[2*i+1] = float32(-110 * r.Float64())
			}
		}
		must(t,
			b.SoftmaxCrossEntropy(SoftmaxCrossEntropy{Classes: 2, Logits: Float32s(logits), Probabilities: Float32s(prob)}))
		for i := range n {
			_, _, want := naiveSoftmax(logits[2*i:][:2], 0)
			if !sameBits(prob[2*i:][:2], want) {
				t.Fatalf("logits %v: %v, want %v", logits[2*i:][:2], prob[2*i:][:2], want)
			}
		}
	})
}

func TestMath(t *testing.T) {
	zero := float32(math.Copysign(0, -1))
	for _, c := range []struct {
		name   string
		f      func(float32) float32
		x, out float32
	}{
		{"exp", exp, 0, 1}, {"exp", exp, zero, 1}, {"exp", exp, 1, 2.7182817}, {"exp", exp, -1, 0.36787945},
		{"exp", exp, inf, inf}, {"exp", exp, -inf, 0}, {"exp", exp, nan, nan}, {"exp", exp, 89, inf}, {"exp", exp, -104, 0},
		{"exp", exp, -103, 1e-45}, {"log", log, 1, 0}, {"log", log, 2, 0.6931472}, {"log", log, 0, -inf},
		{"log", log, zero, -inf}, {"log", log, -1, nan}, {"log", log, inf, inf}, {"log", log, nan, nan},
		{"log", log, 1e-45, -103.27893}, {"log", log, 10, 2.3025851},
	} {
		wantFloats(t, fmt.Sprintf("%s(%v)", c.name, c.x), []float32{c.f(c.x)}, []float32{c.out})
	}
}

// TestMathAccuracy holds exp and log to two units in the last place of the true value, over all of their range.
func TestMathAccuracy(t *testing.T) {
	check := func(name string, x, got float32, want float64) {
		t.Helper()
		ulp := math.Max(math.Abs(want)*0x1p-23, 0x1p-149)
		if math.Abs(float64(got)-want) > 2*ulp {
			t.Fatalf("%s(%v) = %v, want %v within %v", name, x, got, want, 2*ulp)
		}
	}
	r := rand.New(rand.NewPCG(1, 23))
	for range 200000 {
		x := float32(-103.9 + 192.6*r.Float64())
		check("exp", x, exp(x), math.Exp(float64(x)))
		x = math.Float32frombits(r.Uint32N(0x7f800000))
		check("log", x, log(x), math.Log(float64(x)))
	}
}
