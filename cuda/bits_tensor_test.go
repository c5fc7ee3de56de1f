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
