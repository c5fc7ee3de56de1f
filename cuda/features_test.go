package cuda

import (
	"errors"
	"slices"
	"testing"
)

// Small vectors that can be checked by hand, one feature at a time.

func wantInts[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s = %v, want %v", what, got, want)
	}
}

func TestMaximum(t *testing.T) {
	// Rows 0 to 4; columns: ordinary, of equals the first, a NaN that stays, zeros of both signs, infinities.
	rows := []float32{
		1, 5, 1, negativeZero, -inf,
		3, 5, nan, 0, 1,
		2, 5, 9, negativeZero, inf,
		-4, -4, -4, -4, -4,
		-3, -5, nan, -3, -inf,
	}
	onEach(t, func(t *testing.T, b Backend) {
		out, argmax := make([]float32, 20), make([]int32, 20)
		a := bagForward(5, Max, 3, rows, []int64{0, 1, 2, 1, 3, 4, 3}, []int64{0, 4, 4, 7, 7}, out)
		a.ArgMax = Int32s(argmax)
		must(t, b.BagForward(a))
		wantFloats(t, "out", out[:15], []float32{3, 5, nan, negativeZero, inf, 0, 0, 0, 0, 0, -3, -5, nan, -3, -inf})
		wantInts(t, "argmax", argmax, []int32{1, 0, 1, 0, 2, -1, -1, -1, -1, -1, 5, 5, 5, 5, 5, -1, -1, -1, -1, -1})

		keys, grad := make([]int64, 5), make([]float32, 25)
		back := bagBackward(5, Max, 3, 5, []int64{0, 1, 2, 1, 3, 4, 3}, []int64{0, 4, 4, 7, 7}, []float32{
			1, 2, 3, 4, 5, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 8, 8, 8, 8, 8}, keys, grad)
		back.ArgMax = Int32s(argmax)
		mustCount(t, 4)(b.BagBackward(back))
		wantInts(t, "keys", keys[:4], []int64{0, 1, 2, 4})
		wantFloats(t, "gradient", grad[:20], []float32{0, 2, 0, 4, 0, 1, 0, 3, 0, 0, 0, 0, 0, 0, 5, 7, 7, 7, 7, 7})
	})
}

func TestWeights(t *testing.T) {
	rows := []float32{1, 2, 10, 20, 100, 200}
	onEach(t, func(t *testing.T, b Backend) {
		out := make([]float32, 4)
		a := bagForward(2, Sum, 1, rows, []int64{0, 2, 1, 0}, []int64{0, 2, 4}, out)
		a.Weights = floatsOf(2, 0.5, nan, -1) // a weight beside padding is not looked at
		must(t, b.BagForward(a))
		wantFloats(t, "out", out, []float32{52, 104, -1, -2})
		keys, grad := make([]int64, 3), make([]float32, 6)
		back := bagBackward(2, Sum, 1, 3, []int64{0, 2, 1, 0}, []int64{0, 2, 4}, []float32{1, 3, 10, 20}, keys, grad)
		back.Weights = a.Weights
		mustCount(t, 2)(b.BagBackward(back))
		wantInts(t, "keys", keys[:2], []int64{0, 2})
		wantFloats(t, "gradient", grad[:4], []float32{2 - 10, 6 - 20, 0.5, 1.5})
		// (1+2^-12)^2 = 1 + 2^-11 + 2^-24 is rounded before it is added.
		one := bagForward(1, Sum, NoPadding, []float32{-(1 + 0x1p-11), 1 + 0x1p-12}, []int64{0, 1}, []int64{0, 2}, out[:1])
		one.Weights = floatsOf(1, 1+0x1p-12)
		must(t, b.BagForward(one))
		wantFloats(t, "not fused", out[:1], []float32{0})
	})
}

func TestOpenOffsets(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		out := make([]float32, 3)
		a := BagForward{Dim: 1, Padding: NoPadding, OpenOffsets: true, Rows: floatsOf(1, 10, 100), IDs: int32sOf(0, 1, 2),
			Offsets: int32sOf(0, 2, 2), Out: Float32s(out)}
		must(t, b.BagForward(a))
		wantFloats(t, "out", out, []float32{11, 0, 100})
		a.Offsets, a.Out = int32sOf(0), Float32s(out[:1])
		must(t, b.BagForward(a))
		wantFloats(t, "one bag with everything", out[:1], []float32{111})
		a.IDs, a.Offsets, a.Out = Vector{}, Vector{}, Vector{}
		must(t, b.BagForward(a))
		keys, grad := make([]int64, 3), make([]float32, 3)
		mustCount(t, 3)(b.BagBackward(BagBackward{Dim: 1, Padding: NoPadding, OpenOffsets: true, R: 3, IDs: int32sOf(0, 1, 2),
			Offsets: int64sOf(0, 2, 2),
			GradOut: floatsOf(1, 2, 4), Keys: Int64s(keys), Out: Float32s(grad)}))
		wantFloats(t, "gradient", grad, []float32{1, 1, 4})
	})
}

func TestSkippedIDs(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		out, keys := make([]float32, 2), make([]int64, 2)
		var report Report
		a := bagForward(1, Mean, 7, []float32{1, 3}, []int64{0, 2, 1, 7, -5}, []int64{0, 3, 5}, out)
		a.SkipBadIDs, a.Report = true, &report
		must(t, b.BagForward(a))
		wantFloats(t, "out", out, []float32{2, 0})
		if report != (Report{skipped: 2}) {
			t.Errorf("report %+v", report)
		}
		back := bagBackward(1, Mean, 7, 2, []int64{0, 2, 1, 7, -5}, []int64{0, 3, 5}, []float32{8, 9}, keys, out)
		back.SkipBadIDs, back.Report = true, &report
		report = Report{}
		mustCount(t, 2)(b.BagBackward(back))
		wantFloats(t, "gradient", out, []float32{4, 4})
		if report.skipped != 2 {
			t.Errorf("report %+v", report)
		}
		table, g := []float32{10, 20}, []float32{1, 2, nan, 4}
		rows := applyRows(1, SGD{LR: 1}, 1, table, []int64{0, 2, -1, 1}, nil, g, table)
		rows.SkipBadIDs, rows.NonFinite, rows.Report = true, Refuse, &report
		must(t, b.ApplyRows(rows))
		wantFloats(t, "table", table, []float32{9, 16})
		if report != (Report{skipped: 2}) {
			t.Errorf("report %+v", report)
		}
		fused := CoalesceApply{Dim: 1, Optimizer: SGD{LR: 1}, Weight: 1, SkipBadIDs: true, Table: Float32s(table),
			Keys: int64sOf(1, 2, 1, -1), Rows: floatsOf(1, 9, 2, 9),
			Out: Float32s(table), Report: &report}
		mustCount(t, 1)(b.CoalesceApply(fused))
		wantFloats(t, "table", table, []float32{9, 13})
		if report.skipped != 2 {
			t.Errorf("report %+v", report)
		}
	})
}

func TestDivision(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		keys, out := make([]int32, 2), make([]float32, 2)
		a := Coalesce{Dim: 1, Weight: 4, Keys: int32sOf(9, 5, 9), Rows: floatsOf(1, 2, 5), OutKeys: Int32s(keys),
			OutRows: Float32s(out)}
		mustCount(t, 2)(b.Coalesce(a))
		wantInts(t, "keys", keys, []int32{5, 9})
		wantFloats(t, "coalesced", out, []float32{0.5, 1.5})
		keys64 := make([]uint64, 2)
		m := merge(1, 2,
			[]RowsTerm{rowsTerm(0, 1, []uint64{5, 9}, []float32{1, 2}), rowsTerm(1, 1, []uint64{9}, []float32{4})}, keys64, out)
		m.Weight = 4
		mustCount(t, 2)(b.Merge(m))
		wantFloats(t, "merged", out, []float32{0.25, 1.5})
	})
}

// TestRoundedOnce: 2048 + 1 + 1 is 2050, a float16; with a rounding in between it would stay 2048.
func TestRoundedOnce(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		table, out := packed(Float16, []float32{2048, 1}), cleared(Float16, 1)
		must(t,
			b.BagForward(BagForward{Dim: 1, Padding: NoPadding, Rows: table, IDs: int64sOf(0, 1, 1),
				Offsets: int64sOf(0, 3), Out: out}))
		wantVector(t, "bag", out, []float32{2050})
		keys := make([]int64, 1)
		mustCount(t, 1)(b.Coalesce(Coalesce{Dim: 1, Keys: int64sOf(4, 4, 4), Rows: packed(Float16, []float32{2048, 1, 1}),
			OutKeys: Int64s(keys), OutRows: out}))
		wantVector(t, "coalesced", out, []float32{2050})
		terms := []Term{{0, 1, packed(BFloat16, []float32{256})}, {1, 1, packed(BFloat16, []float32{1})},
			{2, 1, packed(BFloat16, []float32{1})}}
		average := cleared(BFloat16, 1)
		must(t, b.Average(Average{3, 1, terms, average}))
		wantVector(t, "average", average, []float32{258})
	})
}

func TestAdagrad(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		// d = 1, 3; s = 4 + (1 + 9)/2 = 9; p -= 2 * d/(3 + 1).
		p, s := []float32{10, 10}, []float32{4}
		must(t, b.ApplyDense(applyDense(RowwiseAdagrad{LR: 2, Eps: 1}, 2, false, p, []float32{2, 6}, p, slot("sum", s, s))))
		wantFloats(t, "dense", append(p, s...), []float32{9.5, 8.5, 9})
		table, sums, out, outSums := []float32{0, 0, 10, 10}, []float32{0, 4}, make([]float32, 2), make([]float32, 1)
		must(t, b.ApplyRows(applyRows(2, &RowwiseAdagrad{LR: 2, Eps: 1}, 2, table, []int64{1}, nil, []float32{2, 6}, out,
			slot("sum", sums, outSums))))
		wantFloats(t, "rows", append(out, outSums...), []float32{9.5, 8.5, 9})
		// With decay d = 0 + 0.5*p = 2; s = 0 + 4; p = 4 - 1*(2/2).
		p, s = []float32{4}, []float32{0}
		must(t,
			b.ApplyDense(applyDense(RowwiseAdagrad{LR: 1, WeightDecay: 0.5}, 1, false, p, []float32{0}, p, slot("sum", s, s))))
		wantFloats(t, "decay", append(p, s...), []float32{3, 4})
		// The squares 2^24 and 16 ones, in 16 columns: 2^24 meets x[16], then column 8, and both are lost; then 2, 4, 8.
		row := slices.Repeat([]float32{1}, 17)
		row[0] = 1 << 12
		zero, sum := make([]float32, 17), []float32{0}
		must(t, b.ApplyDense(applyDense(RowwiseAdagrad{LR: 0, Eps: 1}, 1, false, zero, row, zero, slot("sum", sum, sum))))
		wantFloats(t, "partial sums", sum, []float32{(1<<24 + 14) / 17.0})
	})
}

func TestAdam(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		// b1 = 1 - 0.5 = 0.5, b2 = sqrt(1 - 0.75) = 0.5; mean = 0.5*4, square = (0.25*4)*4; p -= (1/0.5) * (2/(2/0.5)).
		p, m, q := []float32{10}, []float32{0}, []float32{0}
		h := Adam{LR: 1, Beta1: 0.5, Beta2: 0.75, Step: 1}
		must(t, b.ApplyDense(applyDense(h, 2, true, p, []float32{8}, p, slot("square", q, q), slot("mean", m, m))))
		wantFloats(t, "dense", []float32{p[0], m[0], q[0]}, []float32{9, 2, 4})
		// Step 2: b1 = 0.75, b2 = 1; d = 1 + 0.5*2 = 2; mean = 0.5*2 + 0.5*2, square = 4; p = 2 - (0.75/0.75)*(2/(2 + 2)).
		table, mean, square := []float32{7, 2}, []float32{7, 2}, []float32{7, 9}
		rows := applyRows(1, &Adam{LR: 0.75, Beta1: 0.5, Eps: 2, WeightDecay: 0.5, Step: 2}, 1, table, []int64{1}, nil,
			[]float32{1}, table,
			slot("mean", mean, mean), slot("square", square, square))
		must(t, b.ApplyRows(rows))
		wantFloats(t, "rows in place", slices.Concat(table, mean, square), []float32{7, 1.5, 7, 2, 7, 4})
	})
}

func TestSteps(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		// Row 0 has had no step: m = d. Row 1 had step 1 and sat out 2 and 3, which exact makes up for: m 8, 4, 2 and p 16,
		// 12, 10.
		h := SGD{LR: 1, Momentum: 0.5, Dampening: 0.5}
		table, m, last, out, outM, after := []float32{16, 16, 9}, []float32{5, 8, 9}, []int64{0, 1, 9}, make([]float32, 2),
			make([]float32, 2), make([]int64, 2)
		a := applyRows(1, h, 1, table, []int64{0, 1}, nil, []float32{2, 2}, out, slot("momentum", m, outM))
		a.Steps = Steps{Last: Int64s(last), LastAfter: Int64s(after), Step: 4}
		must(t, b.ApplyRows(a))
		wantFloats(t, "lazy", slices.Concat(out, outM), []float32{14, 11, 2, 5})
		wantInts(t, "last", after, []int64{4, 4})
		// Exact: row 0's first step was step 1, with d = 0, so m = 0 and then m = 0.5*2.
		a.Steps.Exact = true
		must(t, b.ApplyRows(a))
		wantFloats(t, "exact", slices.Concat(out, outM), []float32{15, 8, 1, 2})
		// A first step that happens to change nothing is no end of the steps to be made up for: m = 2, 0.5*2 + 2, 0.5*3 + 2.
		still, stillM := []float32{4}, []float32{2}
		rest := applyRows(1, SGD{Momentum: 0.5, WeightDecay: 0.5}, 1, still, []int64{0}, nil, []float32{0}, still,
			slot("momentum", stillM, stillM))
		rest.Steps = Steps{int64sOf(0), Vector{}, 3, true}
		rest.Steps.LastAfter = rest.Steps.Last
		must(t, b.ApplyRows(rest))
		wantFloats(t, "still at first", stillM, []float32{3.5})
		// In place, coalesced.
		fused := CoalesceApply{Dim: 1, Optimizer: h, Weight: 1, Slots: []Slot{slot("momentum", m, m)}, Table: Float32s(table),
			Keys: int64sOf(1, 0, 1),
			Rows: floatsOf(1, 2, 1), Out: Float32s(table), Steps: Steps{Int64s(last), Int64s(last), 4, true}}
		mustCount(t, 2)(b.CoalesceApply(fused))
		wantFloats(t, "table", slices.Concat(table, m), []float32{15, 8, 9, 1, 2, 9})
		wantInts(t, "last in place", last, []int64{4, 4, 9})
	})
}

// TestLongSleep: a row that sat out 2^40 steps is caught up in the time of the few that change it.
func TestLongSleep(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		table, m, last := []float32{4}, []float32{1}, []int64{1}
		a := applyRows(1, SGD{LR: 1, Momentum: 0.5}, 1, table, []int64{0}, nil, []float32{0}, table, slot("momentum", m, m))
		a.Steps = Steps{Int64s(last), Int64s(last), 1 << 40, true}
		must(t, b.ApplyRows(a))
		wantFloats(t, "p, m", []float32{table[0], m[0]}, []float32{3, 0}) // 4 - 0.5 - 0.25 - ...; m ends at +0
	})
}

func TestNonFinite(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		report, out, keys := Report{}, []float32{7, 7, 7, 7}, []int64{7, 7}
		refused := func(what string, n int, err error, position, count int64) {
			t.Helper()
			var e *NonFiniteError
			if !errors.As(err, &e) || !errors.Is(err, ErrNonFinite) || n != 0 {
				t.Fatalf("%s: %d, %v, want a NonFiniteError", what, n, err)
			}
			if e.position != position || e.count != count || report.nonFinite != count {
				t.Errorf("%s: %v, report %+v, want position %d and %d of them", what, err, report, position, count)
			}
			wantFloats(t, what+": out", out, []float32{7, 7, 7, 7})
			wantInts(t, what+": keys", keys, []int64{7, 7})
		}
		rows := applyRows(2, SGD{LR: 1}, 1, make([]float32, 6), []int64{2, 0}, nil, []float32{1, 2, -inf, nan}, out)
		rows.NonFinite, rows.Report = Refuse, &report
		refused("apply rows", 0, b.ApplyRows(rows), 2, 2)
		// 3e38 + 3e38 is infinite; the sum's division comes after.
		fused := CoalesceApply{Dim: 2, Optimizer: SGD{LR: 1}, Weight: 2, NonFinite: Refuse,
			Table: Float32s(make([]float32, 6)), Keys: int64sOf(2, 0, 2),
			Rows: floatsOf(1, 3e38, nan, 1, 1, 3e38), OutKeys: Int64s(keys), Out: Float32s(out), Report: &report}
		n, err := b.CoalesceApply(fused)
		refused("coalesce apply", n, err, 0, 2)
		// infinite once divided
		dense := applyDense(SGD{LR: 1}, 0.5, false, make([]float32, 4), []float32{0, 0, 0, 3e38}, out)
		dense.NonFinite, dense.Report = Refuse, &report
		refused("apply dense", 0, b.ApplyDense(dense), 3, 1)
		average := AverageApply{Lanes: 2, Optimizer: SGD{LR: 1}, Weight: 1, NonFinite: Refuse,
			Terms: []Term{term(0, 1, []float32{0, inf, 0, 0}), term(1, 1, []float32{0, -inf, 0, nan})},
			Param: floatsOf(0, 0, 0, 0), Out: Float32s(out), Report: &report}
		refused("average apply", 0, b.AverageApply(average), 1, 2)
		dense.NonFinite = Count
		must(t, b.ApplyDense(dense))
		wantFloats(t, "counted and applied", out, []float32{0, 0, 0, -inf})
		if report.nonFinite != 1 {
			t.Errorf("report %+v", report)
		}
		// What decay adds is not looked at.
		decay := applyDense(SGD{LR: 1, WeightDecay: 1}, 1, false, []float32{inf}, []float32{1}, out[:1])
		decay.NonFinite, decay.Report = Refuse, &report
		must(t, b.ApplyDense(decay))
	})
}

func TestCopy(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for _, c := range [][2]Vector{
			{Float32s(make([]float32, 3)), floatsOf(1, nan, 3)}, {Uint8s(make([]uint8, 3)), uint8sOf(1, 2, 3)},
			{Int64s(make([]int64, 3)), int64sOf(1, 2, -3)},
			{packed(Float16, make([]float32, 3)), packed(Float16, []float32{1, 2, 3})}, {},
		} {
			must(t, b.Copy(c[0], c[1]))
			if string(c[0].bytes()) != string(c[1].bytes()) {
				t.Errorf("copy of %v: %v, want %v", c[0].dtype, c[0].bytes(), c[1].bytes())
			}
		}
		big := make([]float32, 300_000)
		from := noise(newRand(3), len(big))
		must(t, b.Copy(Float32s(big), Float32s(from)))
		wantInts(t, "copy", big, from)
	})
}
