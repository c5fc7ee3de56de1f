package cuda

import (
	"math"
	"slices"
	"testing"
)

// Vectors that one checks by hand, of the kinds that features_test.go has not, and of clipping.

func TestElementwiseAdagrad(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		// s = 7 + 9, 0 + 16; p = 1 - 2*(3/4), 1 - 2*(4/4).
		p, s := []float32{1, 1}, []float32{7, 0}
		must(t, b.ApplyDense(applyDense(Adagrad{LR: 2}, 2, false, p, []float32{6, 8}, p, slot("sum", s, s))))
		wantFloats(t, "dense", slices.Concat(p, s), []float32{-0.5, -1, 16, 16})
		// With decay d = 1 + 0.5*4 = 3; s = 0 + 9; p = 4 - 1*(3/(3 + 3)).
		table, sum := []float32{9, 4}, []float32{9, 0}
		must(t, b.ApplyRows(applyRows(1, &Adagrad{LR: 1, Eps: 3, WeightDecay: 0.5}, 1, table, []int64{1}, nil, []float32{1},
			table, slot("sum", sum, sum))))
		wantFloats(t, "rows", slices.Concat(table, sum), []float32{9, 3.5, 9, 9})
	})
}

func TestAdamW(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		// As in TestAdam, from p*(1 - 1*0.25) = 7.5; the decay does not pass through the means.
		p, m, q := []float32{10}, []float32{0}, []float32{0}
		h := AdamW{LR: 1, Beta1: 0.5, Beta2: 0.75, Step: 1, WeightDecay: 0.25}
		must(t, b.ApplyDense(applyDense(h, 2, true, p, []float32{8}, p, slot("square", q, q), slot("mean", m, m))))
		wantFloats(t, "dense", []float32{p[0], m[0], q[0]}, []float32{6.5, 2, 4})
	})
}

func TestFTRL(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		// l = 0.5*1, base = 1 + 0.5*2. Of 4: n = 16, z = 0.5*4, p = (0.5 - 2)/(4 + 2). Of 1: |z| = 0.5 is no more than l. Of
		// 0: as it was.
		h := FTRL{LR: 0.5, Beta: 1, L1: 1, L2: 2}
		p, z, n := []float32{0, 0, 3}, make([]float32, 3), make([]float32, 3)
		step := func(g ...float32) {
			must(t, b.ApplyDense(applyDense(h, 1, false, p, g, p, slot("n", n, n), slot("z", z, z))))
		}
		step(4, 1, 0)
		wantFloats(t, "first", slices.Concat(p, z[:2], n), []float32{-0.25, 0, 3, 2, 0.5, 16, 1, 0})
		// Of 3: n = 25, z = 2 + 1.5 - (5 - 4)*-0.25, p = (0.5 - 3.75)/(5 + 2).
		step(3, 0, 0)
		wantFloats(t, "second", []float32{p[0], z[0], n[0]}, []float32{-3.25 / 7, 3.75, 25})
		// A value that is not zero at first goes on from there: n = 9, z = -3 + 1.5 - 3*3, p = 10.5/(3 + 1), which is 3 -
		// 0.5*3/(3 + 1).
		h = FTRL{LR: 0.5, Beta: 1}
		p, z, n = []float32{3}, []float32{99}, []float32{0}
		step(3)
		wantFloats(t, "from 3", []float32{p[0], z[0], n[0]}, []float32{2.625, -10.5, 9})
	})
}

func TestClip(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	onEach(t, func(t *testing.T, b Backend) {
		for _, c := range []struct {
			name    string
			clip    Clip
			g, want []float32 // want is d of g/2
		}{
			{"none", Clip{}, []float32{4, -6, nan, inf}, []float32{2, -3, nan, inf}},
			{"value", Clip{ClipValue, 2.5}, []float32{4, -6, nan, inf}, []float32{2, -2.5, nan, 2.5}},
			{"scale", Clip{ClipScale, 0.5}, []float32{4, -6, nan, inf}, []float32{1, -1.5, nan, inf}},
			{"scale by 0", Clip{ClipScale, 0}, []float32{4, -6, nan, inf},
				[]float32{0, float32(math.Copysign(0, -1)), nan, nan}},
			{"row above", Clip{ClipRow, 2.5}, []float32{6, 0, 8, 0}, []float32{1.5, 0, 2, 0}},
			{"row below", Clip{ClipRow, 5}, []float32{6, 0, 8, 0}, []float32{3, 0, 4, 0}},
			{"row with NaN", Clip{ClipRow, 1}, []float32{6, nan, 8, 0}, []float32{3, nan, 4, 0}},
			{"row with Inf", Clip{ClipRow, 1}, []float32{6, inf, 8, 0}, []float32{0, nan, 0, 0}},
		} {
			var report Report
			want, bad := make([]float32, 4), badValues(c.g, 2)
			for i, d := range c.want {
				want[i] = 8 - (d + float32(0.5*8)) // weight decay comes after it
			}
			if p := []float32{8, 8, 8, 8}; c.clip.Kind != ClipRow {
				a := applyDense(SGD{LR: 1, WeightDecay: 0.5}, 2, false, p, c.g, p)
				a.Clip, a.NonFinite, a.Report = c.clip, Count, &report
				must(t, b.ApplyDense(a))
				wantFloats(t, "dense, "+c.name, p, want)
			}
			table := []float32{9, 9, 9, 9, 8, 8, 8, 8}
			a := applyRows(4, SGD{LR: 1, WeightDecay: 0.5}, 2, table, []int64{1}, nil, c.g, table)
			a.Clip, a.NonFinite, a.Report = c.clip, Count, &report
			must(t, b.ApplyRows(a))
			wantFloats(t, "rows, "+c.name, table[4:], want)
			if report.nonFinite != bad {
				t.Errorf("%s: %d values not finite, want %d: those before clipping", c.name, report.nonFinite, bad)
			}
		}
	})
}
