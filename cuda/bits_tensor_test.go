package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/lane"
)

// denseCase is a dense tensor as one row or several, and how the optimizer is to run on it.
type denseCase struct {
	o         Optimizer
	clip      Clip
	weight    float32
	first     bool
	n, dim    int
	state     *naiveState
	out       Vector
	param     Vector
	slots     []Slot
	nonFinite NonFinite
}

func (c *denseCase) String() string {
	return fmt.Sprintf("%s, %+v, weight %v, first %v, %d values in rows of %d, param %v, slots %v", describe(c.o), c.clip,
		c.weight, c.first, c.n, c.dim,
		c.state.dtype, c.state.slotTypes)
}

func drawDense(r *rand.Rand, special bool) *denseCase {
	c := &denseCase{first: r.IntN(2) == 0, nonFinite: NonFinite(r.IntN(2))}
	c.o, c.weight = randomOptimizer(r)
	c.clip = randomClip(r, false)
	rows, width := 1, 1+r.IntN(1500)
	if r.IntN(2) == 0 {
		width = dims[r.IntN(len(dims)-1)]
		rows, c.dim = 1+r.IntN(7), width
	}
	c.n = rows * width
	c.state = drawState(r, c.o, rows, width, special)
	c.param = c.state.table()
	c.out, c.slots = cleared(c.state.dtype, c.n), c.state.compact(rows)
	if r.IntN(2) == 0 {
		c.out = c.param
	}
	if r.IntN(2) == 0 {
		c.slots = c.state.inPlace()
	}
	return c
}

// check compares with the naive optimizer on the gradient.
func (c *denseCase) check(t *testing.T, grad []float32, report Report) {
	t.Helper()
	want := c.state.clone()
	width := c.n / len(want.p)
	for row := range want.p {
		want.step(c.o, c.clip, c.first, c.weight, row, grad[row*width:][:width])
	}
	wantVector(t, c, c.out, slices.Concat(want.p...))
	for i, s := range c.slots {
		wantVector(t, fmt.Sprintf("%v: %s", c, s.Name), s.After, slices.Concat(want.slots[i]...))
	}
	bad := int64(0)
	if c.nonFinite == Count {
		bad = badValues(grad, c.weight)
	}
	if report.nonFinite != bad {
		t.Fatalf("%v: %d values not finite, want %d", c, report.nonFinite, bad)
	}
}

func TestApplyDenseBits(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(300) {
			r := rand.New(rand.NewPCG(seed, 53))
			c := drawDense(r, seed%2 == 1)
			grad := awkwardOf(r, floatTypes[r.IntN(3)], c.n, seed%2 == 1)
			var report Report
			must(t, b.ApplyDense(ApplyDense{Dim: c.dim, Optimizer: c.o, Clip: c.clip, Weight: c.weight, First: c.first,
				NonFinite: c.nonFinite, Slots: c.slots,
				Param: c.param, Grad: grad, Out: c.out, Report: &report}))
			c.check(t, unpacked(grad), report)
		}
	})
}

func TestAverageApplyBits(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(300) {
			r := rand.New(rand.NewPCG(seed, 59))
			c := drawDense(r, seed%2 == 1)
			lanes, dtype := 1+r.IntN(20), floatTypes[r.IntN(3)]
			var terms []Term
			byNode := map[lane.Node][]float32{}
			for _, node := range randomNodes(r, lane.Root(lanes)) {
				v := awkwardOf(r, dtype, c.n, seed%2 == 1)
				terms, byNode[node] = append(terms, Term{uint16(node.First), node.Count, v}), unpacked(v)
			}
			if len(terms) == 0 {
				continue
			}
			var report Report
			must(t, b.AverageApply(AverageApply{Dim: c.dim, Lanes: lanes, Optimizer: c.o, Clip: c.clip, Weight: c.weight,
				First: c.first, NonFinite: c.nonFinite,
				Terms: terms, Slots: c.slots, Param: c.param, Out: c.out, Report: &report}))
			c.check(t, naiveTree(lane.Root(lanes), byNode), report)
		}
	})
}

// TestFusedIsTheTwoInTurn: coalesce then apply_rows, average then apply_dense.
func TestFusedIsTheTwoInTurn(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(40) {
			r := rand.New(rand.NewPCG(seed, 61))
			const rows = 60
			dim := dims[r.IntN(len(dims)-1)]
			c := drawRows(r, rows, dim, seed%2 == 1)
			c.inPlace = false
			n := r.IntN(200)
			keys, grad := make([]int64, n), awkwardOf(r, c.gradType, n*dim, seed%2 == 1)
			for i := range keys {
				keys[i] = r.Int64N(rows)
			}
			room := min(n, rows)
			table := c.state.table()
			out, slots, lastAfter := c.outputs(table, room)
			c.steps.LastAfter = lastAfter
			fusedKeys := make([]int64, room)
			count, err := b.CoalesceApply(CoalesceApply{Dim: dim, Optimizer: c.o, Clip: c.clip, Weight: c.weight, Slots: slots,
				Steps: c.steps, Table: table,
				Keys: Int64s(keys), Rows: grad, OutKeys: Int64s(fusedKeys), Out: out})
			must(t, err)

			sumKeys, sums := make([]int64, room), make([]float32, room*dim)
			mustCount(t, count)(b.Coalesce(Coalesce{Dim: dim, Keys: Int64s(keys), Rows: grad, OutKeys: Int64s(sumKeys),
				OutRows: Float32s(sums)}))
			turnOut, turnSlots, turnLast := c.outputs(table, count)
			c.steps.LastAfter = turnLast
			must(t, b.ApplyRows(ApplyRows{Dim: dim, Optimizer: c.o, Clip: c.clip, Weight: c.weight, Slots: turnSlots,
				Steps: c.steps, Table: table,
				Index: Int64s(sumKeys[:count]), Grad: Float32s(sums[:count*dim]), Out: turnOut}))
			if !slices.Equal(fusedKeys[:count], sumKeys[:count]) {
				t.Fatalf("%v: keys %v, in turn %v", c, fusedKeys[:count], sumKeys[:count])
			}
			wantVector(t, c, out.Slice(0, count*dim), unpacked(turnOut))
			for i := range slots {
				wantVector(t, slots[i].Name, slots[i].After.Slice(0, turnSlots[i].After.n), unpacked(turnSlots[i].After))
			}
			fusedDense(t, b, r, seed%2 == 1)
		}
	})
}

func fusedDense(t *testing.T, b Backend, r *rand.Rand, special bool) {
	t.Helper()
	c := drawDense(r, special)
	fused, turn := c.state.compact(len(c.state.p)), c.state.compact(len(c.state.p))
	lanes, terms := 4, []Term(nil)
	for l := range lanes {
		terms = append(terms, Term{uint16(l), 1, awkwardOf(r, BFloat16, c.n, special)})
	}
	out, sum, turnOut := cleared(c.state.dtype, c.n), make([]float32, c.n), cleared(c.state.dtype, c.n)
	must(t, b.AverageApply(AverageApply{Dim: c.dim, Lanes: lanes, Optimizer: c.o, Clip: c.clip, Weight: c.weight,
		First: c.first, Terms: terms, Slots: fused,
		Param: c.param, Out: out}))
	must(t, b.Average(Average{lanes, 1, terms, Float32s(sum)}))
	must(t, b.ApplyDense(ApplyDense{Dim: c.dim, Optimizer: c.o, Clip: c.clip, Weight: c.weight, First: c.first,
		Slots: turn, Param: c.param, Grad: Float32s(sum),
		Out: turnOut}))
	wantVector(t, c, out, unpacked(turnOut))
	for i := range fused {
		wantVector(t, fused[i].Name, fused[i].After, unpacked(turn[i].After))
	}
}

// TestExactRowsAreDenseSteps: rows that some steps name and others do not, caught up at the end, against dense steps of
// the whole table with gradients of zero for the rows not named.
func TestExactRowsAreDenseSteps(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(80) {
			r := rand.New(rand.NewPCG(seed, 67))
			const rows, steps = 9, 12
			dim := []int{1, 5, 16, 63}[r.IntN(4)]
			var o Optimizer
			pick := func(x ...float32) float32 { return x[r.IntN(len(x))] }
			if o, _ = randomSGD(r); seed%2 == 1 {
				o = RowwiseAdagrad{0.1, 1e-3, pick(0, 0.01)}
			} else if seed%4 == 2 {
				o = Adagrad{0.1, 1e-3, pick(0, 0.01)}
			} else {
				o = SGD{0.1, pick(0, 0.9), pick(0, 0.1), pick(0, 0.3), r.IntN(2) == 1}
			}
			lazy := drawState(r, o, rows, dim, false)
			for _, slot := range lazy.slots {
				for _, row := range slot {
					clear(row) // as before the first step
				}
			}
			table, slots, last := lazy.table(), lazy.inPlace(), Int64s(make([]int64, rows))
			param, paramSlots := lazy.table(), lazy.inPlace()
			for step := int64(1); step <= steps; step++ {
				var index []int64
				grad := make([]float32, rows*dim)
				for row := range int64(rows) {
					if r.IntN(3) == 0 || step == steps {
						index = append(index, row)
						if step < steps || r.IntN(2) == 0 {
							copy(grad[int(row)*dim:], awkward(r, dim, false))
						}
					}
				}
				var chosen []float32
				for _, row := range index {
					chosen = append(chosen, grad[int(row)*dim:][:dim]...)
				}
				must(t, b.ApplyRows(ApplyRows{Dim: dim, Optimizer: o, Weight: 3, Slots: slots, Steps: Steps{last, last, step, true},
					Table: table,
					Index: Int64s(index), Grad: Float32s(chosen), Out: table}))
				must(t,
					b.ApplyDense(ApplyDense{Dim: dim, Optimizer: o, Weight: 3, First: step == 1, Slots: paramSlots, Param: param,
						Grad: Float32s(grad), Out: param}))
			}
			wantVector(t, fmt.Sprintf("seed %d, dim %d, %s", seed, dim, describe(o)), table, unpacked(param))
			for i := range slots {
				wantVector(t, slots[i].Name, slots[i].After, unpacked(paramSlots[i].After))
			}
		}
	})
}
