package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// The edges of the operations, on every backend.

// TestOrdersOfIDs: all ids equal, all distinct, descending, one bag with everything; forward, backward and coalesced.
func TestOrdersOfIDs(t *testing.T) {
	const n = 5000
	r := newRand(11)
	orders := map[string][]int64{"equal": make([]int64, n), "distinct": nil, "descending": nil}
	for _, i := range r.Perm(n) {
		orders["distinct"] = append(orders["distinct"], int64(i))
	}
	for i := range n {
		orders["equal"][i] = 17
		orders["descending"] = append(orders["descending"], int64(n-1-i))
	}
	const dim = 3
	table := awkward(r, n*dim, false)
	onEach(t, func(t *testing.T, b Backend) {
		for name, ids := range orders {
			index := map[int64][]int{}
			all := make([]int, n)
			for i, id := range ids {
				index[id], all[i] = append(index[id], i), int(id)
			}
			out := make([]float32, dim)
			must(t, b.BagForward(bagForward(dim, Sum, NoPadding, table, ids, []int64{0, n}, out)))
			wantVector(t, name+": one bag with everything", Float32s(out), naiveRows(table, dim, all))
			keys, rows := make([]int64, n), make([]float32, n*dim)
			for _, backward := range []bool{true, false} {
				var got int
				var err error
				if backward { // bags of one id each
					offsets := make([]int64, n+1)
					for i := range offsets {
						offsets[i] = int64(i)
					}
					got, err = b.BagBackward(bagBackward(dim, Sum, NoPadding, n, ids, offsets, table, keys, rows))
				} else {
					got, err = b.Coalesce(Coalesce{Dim: dim, Keys: Int64s(ids), Rows: Float32s(table), OutKeys: Int64s(keys),
						OutRows: Float32s(rows)})
				}
				must(t, err)
				if got != len(index) || !slices.IsSorted(keys[:got]) {
					t.Fatalf("%s: %d keys, want %d", name, got, len(index))
				}
				for i, key := range keys[:got] {
					wantVector(t, fmt.Sprintf("%s: key %d", name, key), Float32s(rows[i*dim:][:dim]),
						naiveRows(table, dim, index[key]))
				}
			}
		}
	})
}

func TestAMillionEmptyBags(t *testing.T) {
	const bags = 1_000_000
	last := make([]float32, bags) // only the last is not empty
	last[bags-1] = 5
	onEach(t, func(t *testing.T, b Backend) {
		for mode := Sum; mode <= Max; mode++ {
			out := slices.Repeat([]float32{7}, bags)
			a := BagForward{Dim: 1, Mode: mode, Padding: NoPadding, Rows: floatsOf(5), IDs: int64sOf(0),
				Offsets: Int32s(make([]int32, bags)), OpenOffsets: true, Out: Float32s(out)}
			must(t, b.BagForward(a)) // the last bag has the only id
			if string(a.Out.bytes()) != string(Float32s(last).bytes()) {
				t.Fatalf("mode %d: wrong bags", mode)
			}
			a.OpenOffsets, a.Offsets, a.IDs = false, Int64s(make([]int64, bags+1)), Vector{}
			must(t, b.BagForward(a))
			if string(a.Out.bytes()) != string(Float32s(make([]float32, bags)).bytes()) {
				t.Fatalf("mode %d: an empty bag is no zero", mode)
			}
			argmax := Vector{}
			if mode == Max {
				argmax = Int32s(make([]int32, bags))
			}
			mustCount(t, 0)(b.BagBackward(BagBackward{Dim: 1, Mode: mode, Padding: NoPadding, R: 9, Offsets: a.Offsets,
				ArgMax: argmax, GradOut: Float32s(out)}))
		}
	})
}

// TestNothingToDo: zero bags, zero ids, zero rows, with and without memory behind the arguments.
func TestNothingToDo(t *testing.T) {
	empty := Float32s([]float32{})
	sgd := SGD{LR: 1, Momentum: 0.5}
	onEach(t, func(t *testing.T, b Backend) {
		for _, none := range []Vector{{}, empty, Float32s(make([]float32, 4)[4:])} {
			slots := []Slot{{"momentum", none, none}}
			must(t, b.BagForward(BagForward{Dim: 3, Padding: NoPadding, OpenOffsets: true, Rows: none, Out: none}))
			must(t, b.BagForward(BagForward{Dim: 3, Mode: Max, Padding: NoPadding, Offsets: int64sOf(0), Rows: none, Out: none}))
			out := []float32{7, 7, 7}
			must(t, b.BagForward(BagForward{Dim: 3, Mode: Mean, Padding: NoPadding, Offsets: int32sOf(0, 0), Rows: none,
				Out: Float32s(out)}))
			wantFloats(t, "an empty bag of an empty table", out, []float32{0, 0, 0})
			mustCount(t, 0)(b.BagBackward(BagBackward{Dim: 3, Padding: NoPadding, OpenOffsets: true, GradOut: none, Out: none}))
			mustCount(t, 0)(b.BagBackward(BagBackward{Dim: 3, Padding: 2, R: 2, IDs: int64sOf(2, 2), Offsets: int64sOf(0, 2),
				GradOut: floatsOf(1, 2, 3)}))
			mustCount(t, 0)(b.Coalesce(Coalesce{Dim: 3, Rows: none, OutRows: none}))
			mustCount(t, 0)(b.Coalesce(Coalesce{Dim: 1, Rows: none, OutKeys: Int64s(make([]int64, 2)), OutRows: floatsOf(1, 2)}))
			mustCount(t, 0)(b.Merge(Merge{Dim: 3, Lanes: 1, Terms: []RowsTerm{{0, 1, Vector{}, none}}, OutRows: none}))
			must(t, b.ApplyRows(ApplyRows{Dim: 3, Optimizer: sgd, Weight: 1, Slots: slots, Table: none, Grad: none, Out: none}))
			must(t, b.ApplyRows(ApplyRows{Dim: 3, Optimizer: SGD{}, Weight: 1, Table: floatsOf(1, 2, 3), Grad: none, Out: none}))
			mustCount(t, 0)(b.CoalesceApply(CoalesceApply{Dim: 3, Optimizer: sgd, Weight: 1, Slots: slots, Table: none,
				Rows: none, Out: none}))
			mustCount(t, 0)(b.CoalesceApply(CoalesceApply{Dim: 3, Optimizer: sgd, Weight: 1, SkipBadIDs: true, Slots: slots,
				Keys: int64sOf(0), Rows: floatsOf(1, 2, 3)}))
			must(t, b.ApplyDense(ApplyDense{Optimizer: sgd, Weight: 1, Slots: slots, Param: none, Grad: none, Out: none}))
			must(t, b.ApplyDense(ApplyDense{Dim: 4, Optimizer: RowwiseAdagrad{}, Weight: 1, Slots: []Slot{{"sum", none, none}},
				Param: none, Grad: none, Out: none}))
			must(t, b.AverageApply(AverageApply{Lanes: 1, Optimizer: sgd, Weight: 1, Slots: slots, Terms: []Term{{0, 1, none}},
				Param: none, Out: none}))
			must(t, b.Copy(none, none))
			if b.FirstNonFinite(none) != -1 {
				t.Error("a value that is not finite in no values")
			}
		}
	})
}

// TestTwoToThe31 hands lengths over that no memory is behind: they are refused by their number alone.
func TestTwoToThe31(t *testing.T) {
	const many = 1 << 31
	one := floatsOf(1)
	ids, rows := Vector{int32sOf(1).data, many, Int32}, Vector{one.data, many, Float32}
	keys := Vector{uint64sOf(1).data, many, Uint64}
	onEach(t, func(t *testing.T, b Backend) {
		check := func(name string, err error) {
			t.Helper()
			if !errors.Is(err, ErrShape) {
				t.Errorf("%s of 2^31: %v", name, err)
			}
		}
		check("bag forward",
			b.BagForward(BagForward{Dim: 1, Padding: NoPadding, Rows: one, IDs: ids, Offsets: int64sOf(0, many),
				Out: Float32s(make([]float32, 1))}))
		_, err := b.BagBackward(BagBackward{Dim: 1, Padding: NoPadding, R: 1, IDs: ids, Offsets: int64sOf(0, many),
			GradOut: one})
		check("bag backward", err)
		_, err = b.Coalesce(Coalesce{Dim: 1, Keys: ids, Rows: rows})
		check("coalesce", err)
		_, err = b.Merge(Merge{Dim: 1, Lanes: 1, Terms: []RowsTerm{{0, 1, keys, rows}}})
		check("merge", err)
		half := keys
		half.n /= 2
		_, err = b.Merge(Merge{Dim: 1, Lanes: 2,
			Terms: []RowsTerm{{0, 1, half, rows.Slice(0, many/2)}, {1, 1, half, rows.Slice(0, many/2)}}})
		check("merge of two halves", err)
		check("apply rows", b.ApplyRows(ApplyRows{Dim: 1, Optimizer: SGD{}, Weight: 1, Table: one, Index: ids, Grad: rows,
			Out: Vector{floatsOf(1).data, many, Float32}}))
		_, err = b.CoalesceApply(CoalesceApply{Dim: 1, Optimizer: SGD{}, Weight: 1, Table: one, Keys: ids,
			Rows: rows, Out: one})
		check("coalesce apply", err)
	})
}

// TestDenormalsAndZeros: nothing is flushed, and zeros keep the sign that the rules give them.
func TestDenormalsAndZeros(t *testing.T) {
	const tiny = 0x1p-149
	onEach(t, func(t *testing.T, b Backend) {
		for _, dim := range []int{1, 8, 17, 64} {
			x := func(v float32) []float32 { return slices.Repeat([]float32{v}, dim) }
			out, keys := make([]float32, dim), make([]int64, 1)
			same := func(what string, want float32) {
				t.Helper()
				wantVector(t, fmt.Sprintf("dim %d: %s", dim, what), Float32s(out), x(want))
			}
			must(t, b.BagForward(bagForward(dim, Sum, NoPadding, slices.Concat(x(tiny), x(2*tiny)), []int64{0, 1, 1},
				[]int64{0, 3}, out)))
			same("sum of subnormals", 5*tiny)
			must(t, b.BagForward(bagForward(dim, Mean, NoPadding, x(3*tiny), []int64{0, 0}, []int64{0, 2}, out)))
			same("mean of subnormals", 3*tiny)
			weighted := bagForward(dim, Sum, NoPadding, x(0x1p-100), []int64{0}, []int64{0, 1}, out)
			weighted.Weights = floatsOf(0x1p-49)
			must(t, b.BagForward(weighted))
			same("product of two", tiny)
			must(t, b.BagForward(bagForward(dim, Sum, NoPadding, x(negativeZero), []int64{0, 0}, []int64{0, 2}, out)))
			same("a sum is never -0", 0)
			must(t, b.BagForward(bagForward(dim, Max, NoPadding, slices.Concat(x(negativeZero), x(0)), []int64{0, 1},
				[]int64{0, 2}, out)))
			same("of equal zeros the first", negativeZero)
			mustCount(t, 1)(b.Coalesce(Coalesce{Dim: dim, Weight: 2, Keys: int64sOf(4), Rows: Float32s(x(-tiny)),
				OutKeys: Int64s(keys), OutRows: Float32s(out)}))
			same("half the least, to even", negativeZero)
			must(t, b.ApplyDense(applyDense(SGD{LR: 1}, 1, false, x(0), x(-tiny), out)))
			same("step", tiny)
			must(t, b.ApplyDense(applyDense(SGD{LR: 1}, 1, false, x(negativeZero), x(0), out)))
			same("-0 - 0", negativeZero)
			must(t,
				b.ApplyDense(applyDense(RowwiseAdagrad{LR: 1}, 1, false, x(0), x(0x1p-75), out,
					slot("sum", []float32{0}, make([]float32, 1)))))
			same("root of a subnormal square", naiveSubnormalRoot(dim))
			half, halfOut := packed(Float16, x(0x1p-24)), cleared(Float16, dim)
			must(t, b.BagForward(BagForward{Dim: dim, Padding: NoPadding, Rows: half, IDs: int64sOf(0, 0, 0),
				Offsets: int64sOf(0, 3), Out: halfOut}))
			wantVector(t, "subnormal float16", halfOut, x(0x3p-24))
		}
	})
}

// naiveSubnormalRoot is the step of a zero row by a gradient whose squares are subnormal or vanish.
func naiveSubnormalRoot(dim int) float32 {
	p, sum := make([]float32, dim), float32(0)
	naiveAdagrad(RowwiseAdagrad{LR: 1}, 1, p, slices.Repeat([]float32{0x1p-75}, dim), &sum)
	return p[0]
}

// TestMisaligned runs each operation with every argument at an address that is aligned to its elements and no more, and
// compares with the same at aligned ones.
func TestMisaligned(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for shift := range 8 {
			r := rand.New(rand.NewPCG(9, 9))
			for _, dtype := range floatTypes {
				for _, dim := range []int{4, 16, 33} {
					at := func(v Vector) Vector { return shifted(v, shift) }
					table, grad := awkwardOf(r, dtype, 20*dim, false), awkwardOf(r, dtype, 9*dim, false)
					ids, offsets := idsOf(Int32, []int64{1, 19, 3, 3, 0, 7, 1, 1, 2}), idsOf(Int64, []int64{0, 4, 4, 9})
					run := func(at func(Vector) Vector) (all []Vector) {
						out := at(cleared(dtype, 3*dim))
						must(t,
							b.BagForward(BagForward{Dim: dim, Padding: NoPadding, Rows: at(table), IDs: at(ids),
								Offsets: at(offsets), Out: out}))
						keys, sums := at(Int32s(make([]int32, 9))), at(cleared(dtype, 9*dim))
						_, err := b.Coalesce(Coalesce{Dim: dim, Keys: at(ids), Rows: at(grad), OutKeys: keys, OutRows: sums})
						must(t, err)
						p, m := at(table), at(packed(Float16, make([]float32, 20*dim)))
						_, err = b.CoalesceApply(CoalesceApply{Dim: dim, Optimizer: SGD{LR: 0.5, Momentum: 0.5}, Weight: 3,
							Slots: []Slot{{"momentum", m, m}}, Table: p, Keys: at(ids),
							Rows: at(grad), Out: p})
						must(t, err)
						mean := at(cleared(dtype, 9*dim))
						must(t, b.Average(Average{2, 3, []Term{{0, 1, at(grad)}, {1, 1, at(grad)}}, mean}))
						return []Vector{out, keys, sums, p, m, mean}
					}
					want, got := run(func(v Vector) Vector { return shifted(v, 0) }), run(at)
					for i := range want {
						if string(want[i].bytes()) != string(got[i].bytes()) {
							t.Fatalf("%v dim %d, %d elements past alignment: output %d differs", dtype, dim, shift, i)
						}
					}
				}
			}
		}
	})
}

// shifted is a copy of a vector that begins so many elements past an address aligned to 64 bytes.
func shifted(v Vector, elements int) Vector {
	size := v.dtype.Bytes()
	memory := make([]byte, v.n*size+64+elements*size)
	from := Uint8s(memory)
	skip := int(-uintptr(from.data)&63) + elements*size
	to := Vector{from.Slice(skip, skip+max(v.n*size, 1)).data, v.n, v.dtype}
	copy(to.bytes(), v.bytes())
	return to
}
