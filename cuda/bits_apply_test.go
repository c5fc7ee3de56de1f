package cuda

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Operations with an optimizer against the naive one, bit for bit: every optimizer, type, way of counting steps,
// compact and in place, with bad ids skipped, each gradient counted for values that are not finite.

// rowsCase is one draw: a state, gradients for some rows, and how they are to be applied.
type rowsCase struct {
	o        Optimizer
	clip     Clip
	weight   float32
	state    *naiveState
	steps    Steps
	skip     bool
	inPlace  bool
	gradType DType
}

func (c *rowsCase) String() string {
	return fmt.Sprintf("%s, %+v, weight %v, dim %d, rows %v, slots %v, gradient %v, step %d exact %v (last %v), skip %v, "+
		"in place %v", describe(c.o), c.clip, c.weight,
		c.state.dim, c.state.dtype, c.state.slotTypes, c.gradType, c.steps.Step, c.steps.Exact, c.steps.Last.n > 0,
		c.skip, c.inPlace)
}

func drawRows(r *rand.Rand, rows, dim int, special bool) *rowsCase {
	c := &rowsCase{skip: r.IntN(3) == 0, inPlace: r.IntN(2) == 0, gradType: floatTypes[r.IntN(3)]}
	c.o, c.weight = randomOptimizer(r)
	c.clip = randomClip(r, true)
	c.state = drawState(r, c.o, rows, dim, special)
	if r.IntN(3) > 0 {
		c.steps.Step = 1 + r.Int64N(9)
		for i := range c.state.last {
			c.state.last[i] = r.Int64N(c.steps.Step + 2)
			if r.IntN(20) == 0 {
				c.state.last[i] = -3
			}
		}
		c.steps.Exact = hasExact(c.o) && r.IntN(2) == 0
		c.steps.Last = Int64s(slices.Clone(c.state.last))
	}
	return c
}

// rowsFor keeps tables of wide rows small, since the naive steps are slow.
func rowsFor(dim int) int {
	if dim > 200 {
		return 8
	}
	return 24
}

// outputs are where the new rows go, with room for n of them.
func (c *rowsCase) outputs(table Vector, n int) (out Vector, slots []Slot, lastAfter Vector) {
	if c.inPlace {
		return table, c.state.inPlace(), c.steps.Last
	}
	if c.steps.Last.n > 0 {
		lastAfter = Int64s(make([]int64, n))
	}
	return cleared(c.state.dtype, n*c.state.dim), c.state.compact(n), lastAfter
}

// check compares output row at with row of the naive state.
func (c *rowsCase) check(t *testing.T, want *naiveState, out Vector, slots []Slot, lastAfter Vector, row, at int) {
	t.Helper()
	if c.inPlace {
		at = row
	}
	wantVector(t, c, out.Slice(at*want.dim, (at+1)*want.dim), want.p[row])
	for i, s := range slots {
		width := want.width(i)
		wantVector(t, c, s.After.Slice(at*width, (at+1)*width), want.slots[i][row])
	}
	if lastAfter.n > 0 && view[int64](lastAfter)[at] != want.last[row] {
		t.Fatalf("%v: last of row %d is %d, want %d", c, row, view[int64](lastAfter)[at], want.last[row])
	}
}

// untouched checks that the rows of the table that no id names are as they were.
func (c *rowsCase) untouched(t *testing.T, before *naiveState, table Vector, named map[int64]bool) {
	t.Helper()
	values := unpacked(table)
	for row, want := range before.p {
		if (!c.inPlace || !named[int64(row)]) && !sameBits(values[row*before.dim:][:before.dim], want) {
			t.Fatalf("%v: row %d was not to be touched", c, row)
		}
	}
}

// badValues counts the values of gradients that are not finite once divided.
func badValues(g []float32, weight float32) (n int64) {
	for _, v := range g {
		if d := v / weight; d-d != 0 {
			n++
		}
	}
	return n
}

func TestApplyRowsBits(t *testing.T) {
	eachCase(t, func(t *testing.T, r *rand.Rand, b Backend, dim int, special bool) {
		rows := rowsFor(dim)
		for range 4 {
			c := drawRows(r, rows, dim, special)
			var index []int64
			for _, row := range r.Perm(rows)[:r.IntN(rows)] {
				index = append(index, int64(row))
			}
			if c.inPlace {
				slices.Sort(index)
			} else if len(index) > 0 {
				index = append(index, index[0]) // twice the same row gives the same result twice
			}
			if c.skip {
				for i := range index {
					if r.IntN(4) == 0 {
						index[i] = []int64{-1, int64(rows), 1 << 30}[r.IntN(3)]
					}
				}
			}
			n := len(index)
			before, table, grad := c.state.clone(), c.state.table(), awkwardOf(r, c.gradType, n*dim, special)
			out, slots, lastAfter := c.outputs(table, n)
			c.steps.LastAfter = lastAfter
			var report Report
			a := ApplyRows{Dim: dim, Optimizer: c.o, Clip: c.clip, Weight: c.weight, SkipBadIDs: c.skip, NonFinite: Count,
				Slots: slots, Steps: c.steps,
				Table: table, Index: idsOf([]DType{Int64, Int32}[r.IntN(2)], index), Grad: grad, Out: out, Report: &report}
			first := make([]uint8, n)
			if c.steps.Last.n == 0 && r.IntN(3) > 0 {
				for i := range first {
					first[i] = uint8(r.IntN(3))
				}
				a.First = Uint8s(first)
			}
			must(t, b.ApplyRows(a))
			var want Report
			named := map[int64]bool{}
			for i, row := range index {
				if row < 0 || row >= int64(rows) {
					want.skipped++
					if !c.inPlace {
						wantVector(t, "output of a row that was skipped", out.Slice(i*dim, (i+1)*dim),
							unpacked(cleared(c.state.dtype, dim)))
					}
					continue
				}
				state, g := before.only(int(row)), unpacked(grad.Slice(i*dim, (i+1)*dim))
				want.nonFinite += badValues(g, c.weight)
				named[row] = true
				state.stepped(c.o, c.clip, &c.steps, first[i] != 0, c.weight, int(row), g)
				c.check(t, state, out, slots, lastAfter, int(row), i)
			}
			c.untouched(t, before, table, named)
			if report != want {
				t.Fatalf("%v: report %+v, want %+v", c, report, want)
			}
		}
	})
}

func TestCoalesceApplyBits(t *testing.T) {
	eachCase(t, func(t *testing.T, r *rand.Rand, b Backend, dim int, special bool) {
		rows := rowsFor(dim)
		for range 4 {
			c := drawRows(r, rows, dim, special)
			keys := make([]int64, r.IntN(longestOf(r, dim)+1))
			index, want := map[int64][]int{}, Report{}
			for i := range keys {
				keys[i] = r.Int64N([]int64{int64(rows), 3, 1}[r.IntN(3)])
				if c.skip && r.IntN(4) == 0 {
					keys[i] = []int64{-1, int64(rows), 1 << 30}[r.IntN(3)]
					want.skipped++
					continue
				}
				index[keys[i]] = append(index[keys[i]], i)
			}
			room := len(index) + r.IntN(3)
			before, table, grad := c.state.clone(), c.state.table(), awkwardOf(r, c.gradType, len(keys)*dim, special)
			out, slots, lastAfter := c.outputs(table, room)
			c.steps.LastAfter = lastAfter
			outKeys := make([]int64, room)
			var report Report
			a := CoalesceApply{Dim: dim, Optimizer: c.o, Clip: c.clip, Weight: c.weight, SkipBadIDs: c.skip, NonFinite: Count,
				Slots: slots, Steps: c.steps,
				Table: table, Keys: idsOf([]DType{Int64, Int32, Uint64}[r.IntN(3)], keys), Rows: grad, OutKeys: Int64s(outKeys),
				Out: out, Report: &report}
			if c.inPlace && r.IntN(2) == 0 {
				a.OutKeys = Vector{}
			}
			n, err := b.CoalesceApply(a)
			must(t, err)
			var distinct []int64
			named := map[int64]bool{}
			for key := range index {
				distinct, named[key] = append(distinct, key), true
			}
			slices.Sort(distinct)
			if n != len(distinct) || a.OutKeys.n > 0 && !slices.Equal(outKeys[:n], distinct) {
				t.Fatalf("%v: %d keys %v, want %v", c, n, outKeys, distinct)
			}
			state, values := before.clone(), unpacked(grad)
			for rank, key := range distinct {
				sum := naiveRows(values, dim, index[key])
				want.nonFinite += badValues(sum, c.weight)
				state.stepped(c.o, c.clip, &c.steps, false, c.weight, int(key), sum)
				c.check(t, state, out, slots, lastAfter, int(key), rank)
			}
			c.untouched(t, before, table, named)
			if report != want {
				t.Fatalf("%v: report %+v, want %+v", c, report, want)
			}
		}
	})
}
