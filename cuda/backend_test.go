package cuda

import (
	"math"
	"slices"
	"testing"
)

// backends opens every backend that this build and this machine have; each test body runs on all of them.
func backends(t testing.TB) []Backend {
	t.Helper()
	var all []Backend
	for _, o := range backendOptions() {
		b, err := Open(o)
		if err != nil {
			t.Fatalf("open %+v: %v", o, err)
		}
		t.Cleanup(func() {
			if err := b.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		all = append(all, b)
	}
	return all
}

// onEach runs body on every backend.
func onEach(t *testing.T, body func(t *testing.T, b Backend)) {
	t.Helper()
	for _, b := range backends(t) {
		t.Run(b.Name()+"/"+b.ISA(), func(t *testing.T) { body(t, b) })
	}
}

// sameBits compares floats bit for bit, except that a NaN equals any NaN.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
	})
}

func wantFloats(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if !sameBits(got, want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustCount(t *testing.T, want int) func(int, error) {
	return func(n int, err error) {
		t.Helper()
		if err != nil || n != want {
			t.Fatalf("got %d distinct keys and error %v, want %d and none", n, err, want)
		}
	}
}

var inf, nan, negativeZero = float32(math.Inf(1)), float32(math.NaN()), float32(math.Copysign(0, -1))

func TestBagForward(t *testing.T) {
	rows := []float32{1, 2, 10, 20, 100, 200} // three rows of two
	onEach(t, func(t *testing.T, b Backend) {
		for _, c := range []struct {
			name         string
			mode         Mode
			padding      int64
			ids, offsets []int64
			want         []float32
		}{
			{"sum", Sum, NoPadding, []int64{0, 2, 1}, []int64{0, 2, 3}, []float32{101, 202, 10, 20}},
			{"mean", Mean, NoPadding, []int64{0, 1, 1}, []int64{0, 2, 3}, []float32{5.5, 11, 10, 20}},
			{"repeated id", Sum, NoPadding, []int64{2, 2}, []int64{0, 2}, []float32{200, 400}},
			{"empty bags", Mean, NoPadding, []int64{1}, []int64{0, 0, 1, 1}, []float32{0, 0, 10, 20, 0, 0}},
			{"padding is not counted", Mean, 1, []int64{0, 1, 2, 1}, []int64{0, 3, 4}, []float32{50.5, 101, 0, 0}},
			{"no bags", Sum, NoPadding, nil, []int64{0}, nil},
		} {
			out := slices.Repeat([]float32{7}, len(c.want))
			must(t, b.BagForward(bagForward(2, c.mode, c.padding, rows, c.ids, c.offsets, out)))
			wantFloats(t, c.name, out, c.want)
		}
	})
}

func TestBagBackward(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		keys, out := make([]int64, 4), make([]float32, 8)
		a := bagBackward(2, Sum, NoPadding, 9, []int64{8, 3, 3, 8}, []int64{0, 3, 4}, []float32{1, 2, 10, 20}, keys, out)
		mustCount(t, 2)(b.BagBackward(a))
		wantFloats(t, "sum", out[:4], []float32{2, 4, 11, 22})
		if !slices.Equal(keys[:2], []int64{3, 8}) {
			t.Errorf("keys %v", keys)
		}
		a.Mode, a.GradOut = Mean, Float32s([]float32{3, 6, 10, 20})
		mustCount(t, 2)(b.BagBackward(a))
		wantFloats(t, "mean", out[:4], []float32{2, 4, 11, 22})
		a.Padding, a.GradOut = 8, Float32s([]float32{2, 4, 10, 20})
		mustCount(t, 1)(b.BagBackward(a))
		wantFloats(t, "padding 8", out[:2], []float32{2, 4})
	})
}

func TestCoalesce(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		keys, out := make([]uint64, 3), make([]float32, 3)
		mustCount(t, 2)(b.Coalesce(coalesce(1, []uint64{1 << 63, 5, 1 << 63}, []float32{1, 2, 4}, keys, out)))
		if !slices.Equal(keys[:2], []uint64{5, 1 << 63}) {
			t.Errorf("keys %v", keys)
		}
		wantFloats(t, "rows", out[:2], []float32{2, 5})
		// 2^24 + 1 is 2^24 in float32, so the order of additions shows: (2^24 + 1) + 1 = 2^24, but 2^24 + (1 + 1) is not.
		mustCount(t, 1)(b.Coalesce(coalesce(1, []uint64{4, 4, 4}, []float32{1 << 24, 1, 1}, keys, out)))
		wantFloats(t, "in order of position", out[:1], []float32{1 << 24})
		// Blocks of 64: the last term of the first block is 2^24; 64 ones in the second block add up before they meet it.
		many := slices.Repeat([]float32{1}, 128)
		many[63] = 1 << 24
		clear(many[:63])
		mustCount(t, 1)(b.Coalesce(coalesce(1, make([]uint64, 128), many, keys, out)))
		wantFloats(t, "in blocks", out[:1], []float32{1<<24 + 64})
		mustCount(t, 1)(b.Coalesce(coalesce(1, []uint64{3}, []float32{negativeZero}, keys, out)))
		wantFloats(t, "a sum is never -0", out[:1], []float32{0})
	})
}

func TestMerge(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		keys, out := make([]uint64, 4), make([]float32, 4)
		const big = 1 << 24
		terms := []RowsTerm{
			rowsTerm(0, 1, []uint64{1, 5, 9}, []float32{1, big, 1}),
			rowsTerm(1, 1, []uint64{5}, []float32{1}),
			rowsTerm(2, 2, []uint64{5, 7}, []float32{1, negativeZero}),
		}
		mustCount(t, 4)(b.Merge(merge(1, 4, terms, keys, out)))
		if !slices.Equal(keys, []uint64{1, 5, 7, 9}) {
			t.Errorf("keys %v", keys)
		}
		wantFloats(t, "(a+b)+cd", out, []float32{1, big, negativeZero, 1})
		terms = []RowsTerm{rowsTerm(0, 1, []uint64{5}, []float32{big}), rowsTerm(2, 1, []uint64{5}, []float32{1}),
			rowsTerm(3, 1, []uint64{5}, []float32{1})}
		mustCount(t, 1)(b.Merge(merge(1, 4, terms, keys, out)))
		wantFloats(t, "a+(c+d)", out[:1], []float32{big + 2})
	})
}

func TestAverage(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		const big = 1 << 24
		out := make([]float32, 2)
		lane := func(first uint16, a, b float32) Term { return term(first, 1, []float32{a, b}) }
		must(t, b.Average(average(4, 1, []Term{lane(0, big, 1), lane(1, 1, 2), lane(2, 1, 3)}, out)))
		wantFloats(t, "(a+b)+c", out, []float32{big, 6})
		must(t, b.Average(average(4, 2, []Term{lane(0, big, 1), lane(2, 1, 2), lane(3, 1, 3)}, out)))
		wantFloats(t, "(a+(c+d))/2", out, []float32{(big + 2) / 2, 3})
		only := []float32{negativeZero, 9}
		must(t, b.Average(average(4, 3, []Term{term(3, 1, only)}, only)))
		wantFloats(t, "one term, in place", only, []float32{negativeZero, 3})
	})
}

func TestApply(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		h := SGD{LR: 0.5, Momentum: 0.5, Dampening: 0.25, WeightDecay: 0.25}
		// d = 8/4 + 0.25*4 = 3. First: m = 3, p = 4 - 1.5. Later: m = 0.5*10 + 0.75*3 = 7.25, p = 4 - 3.625.
		rows, rowsM := make([]float32, 2), make([]float32, 2)
		must(t, b.ApplyRows(applyRows(1, h, 4, []float32{0, 4, 4}, []int64{2, 1}, []uint8{0, 1}, []float32{8, 8}, rows,
			slot("momentum", []float32{0, 10, 10}, rowsM))))
		wantFloats(t, "rows", rows, []float32{4 - 3.625, 2.5})
		wantFloats(t, "momentum of rows", rowsM, []float32{7.25, 3})
		p, m := []float32{4}, []float32{10}
		h.Nesterov = true // p = 4 - 0.5*(3 + 0.5*7.25)
		must(t, b.ApplyDense(applyDense(h, 4, false, p, []float32{8}, p, slot("momentum", m, m))))
		wantFloats(t, "nesterov in place", []float32{p[0], m[0]}, []float32{4 - 0.5*6.625, 7.25})
		out := make([]float32, 2)
		must(t, b.ApplyDense(applyDense(SGD{LR: 2}, 1, false, []float32{1, inf}, []float32{3, 1}, out)))
		wantFloats(t, "plain", out, []float32{-5, inf})
	})
}

func TestMatMul(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		a, at := []float32{1, 2, 3, 4, 5, 6}, []float32{1, 4, 2, 5, 3, 6} // 2 x 3 and its transpose
		w, wt := []float32{1, 0, 0, 1, 2, 2}, []float32{1, 0, 2, 0, 1, 2} // 3 x 2 and its transpose
		want := []float32{7, 8, 16, 17}
		c := make([]float32, 4)
		for _, m := range []MatMul{matMul(2, 2, 3, false, false, a, w, nil, c), matMul(2, 2, 3, true, false, at, w, nil, c),
			matMul(2, 2, 3, false, true, a, wt, nil, c), matMul(2, 2, 3, true, true, at, wt, nil, c)} {
			clear(c)
			must(t, b.MatMul(m))
			wantFloats(t, "c", c, want)
		}
		must(t, b.MatMul(matMul(2, 2, 3, false, false, a, w, []float32{100, 200}, c)))
		wantFloats(t, "with bias", c, []float32{107, 208, 116, 217})
		must(t, b.MatMul(MatMul{M: 1, N: 2, K: 0, Bias: Float32s([]float32{3, 4}), C: Float32s(c[:2])}))
		wantFloats(t, "k is 0", c[:2], []float32{3, 4})
		// (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24 rounds to 1 + 2^-11: a fused multiply-add would leave 2^-24 in the difference.
		e := float32(1 + 0x1p-12)
		must(t, b.MatMul(matMul(1, 1, 2, false, false, []float32{1, e}, []float32{-(1 + 0x1p-11), e}, nil, c[:1])))
		wantFloats(t, "not fused", c[:1], []float32{0})
	})
}

func TestSoftmaxCrossEntropy(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		loss, grad, prob := make([]float32, 2), make([]float32, 4), make([]float32, 4)
		must(t, b.SoftmaxCrossEntropy(softmax(2, []float32{3, 3, 200, -200}, []int32{1, 0}, loss, grad, prob)))
		wantFloats(t, "loss", loss, []float32{0.6931472, 0})
		wantFloats(t, "gradient", grad, []float32{0.5, -0.5, 0, 0})
		wantFloats(t, "probabilities", prob, []float32{0.5, 0.5, 1, 0})
		must(t, b.SoftmaxCrossEntropy(SoftmaxCrossEntropy{Classes: 2, Logits: Float32s([]float32{nan, 1}),
			Probabilities: Float32s(prob[:2])}))
		wantFloats(t, "NaN", prob[:2], []float32{nan, nan})
	})
}

func TestFirstNonFinite(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		v := make([]float32, 131)
		v[0], v[1] = math.MaxFloat32, math.SmallestNonzeroFloat32
		if got := b.FirstNonFinite(Float32s(v)); got != -1 {
			t.Errorf("all finite: %d", got)
		}
		if got := b.FirstNonFinite(Vector{}); got != -1 {
			t.Errorf("empty: %d", got)
		}
		for _, at := range []int{130, 64, 17, 15, 7, 1} {
			v[at] = []float32{inf, -inf, nan}[at%3]
			if got := b.FirstNonFinite(Float32s(v)); got != at {
				t.Errorf("got %d, want %d", got, at)
			}
		}
		for dtype, c := range map[DType]struct{ largest, inf, nan uint16 }{Float16: {0x7bff, 0x7c00, 0xfe01},
			BFloat16: {0x7f7f, 0x7f80, 0xffff}} {
			bits := make([]uint16, 131)
			for i := range bits {
				bits[i] = c.largest | uint16(i)<<15
			}
			if got := b.FirstNonFinite(packed(dtype, nil)); got != -1 {
				t.Errorf("no %v: %d", dtype, got)
			}
			for shift := range 4 { // of the words that are looked at
				if got := b.FirstNonFinite(vectorOf(bits[shift:], dtype)); got != -1 {
					t.Errorf("all finite %v from %d: %d", dtype, shift, got)
				}
			}
			for _, at := range []int{130, 129, 64, 33, 17, 15, 7, 3, 0} {
				bits[at] = []uint16{c.inf, c.inf | 0x8000, c.nan}[at%3]
				if got := b.FirstNonFinite(vectorOf(bits, dtype)); got != at {
					t.Errorf("%v: got %d, want %d", dtype, got, at)
				}
			}
		}
	})
}
