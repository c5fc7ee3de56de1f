package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"gradbus/lane"
)

// Every backend against a naive second implementation of the canonical order, bit for bit, on random and awkward input.

var dims = []int{1, 3, 5, 16, 58, 63, 64, 127, 257, 4097}

// awkward draws n floats with every kind of number: ordinary, tiny, huge, zeros of both signs, subnormal, and, where
// special, now and then an infinity or a NaN. The slice starts one float past an aligned address.
func awkward(r *rand.Rand, n int, special bool) []float32 {
	x := make([]float32, n+1)[1:]
	for i := range x {
		switch k := r.IntN(400); {
		case k < 10:
			x[i] = 0
		case k < 20:
			x[i] = float32(math.Copysign(0, -1))
		case k < 40:
			x[i] = math.Float32frombits(r.Uint32N(1<<23) | r.Uint32()&(1<<31)) // subnormal
		case k < 50:
			x[i] = float32(r.NormFloat64() * 1e30)
		case k < 60:
			x[i] = float32(r.NormFloat64() * 1e-30)
		case k == 60 && special:
			x[i] = []float32{inf, -inf, nan}[r.IntN(3)]
		default:
			x[i] = float32(r.NormFloat64())
		}
	}
	return x
}

// naiveSum is the canonical sum as the text has it: three levels, each from +0.
func naiveSum(terms []float32) float32 {
	var total, super, block float32
	for i, v := range terms {
		block += v
		if i%64 == 63 {
			super += block
			block = 0
		}
		if i%4096 == 4095 {
			total += super
			super = 0
		}
	}
	super += block
	return total + super
}

// naiveRows sums the rows at index, column by column.
func naiveRows(rows []float32, dim int, index []int) []float32 {
	out, terms := make([]float32, dim), make([]float32, len(index))
	for d := range out {
		for i, at := range index {
			terms[i] = rows[at*dim+d]
		}
		out[d] = naiveSum(terms)
	}
	return out
}

func randomBags(r *rand.Rand, bags, longest int, rows int64, padding int64) (ids, offsets []int64) {
	ids, offsets = []int64{}, []int64{0}
	for range bags {
		for range r.IntN(longest + 1) {
			id := r.Int64N(rows)
			if padding != NoPadding && r.IntN(3) == 0 {
				id = padding
			}
			ids = append(ids, id)
		}
		offsets = append(offsets, int64(len(ids)))
	}
	return ids, offsets
}

func eachCase(t *testing.T, body func(t *testing.T, r *rand.Rand, b Backend, dim int, special bool)) {
	onEach(t, func(t *testing.T, b Backend) {
		for i, dim := range dims {
			rounds := 4
			if dim > 1000 {
				rounds = 2 // the naive sums of wide rows are slow
			}
			for round := range rounds {
				seed := uint64(i*16 + round)
				t.Run(fmt.Sprintf("dim%d/seed%d", dim, seed), func(t *testing.T) {
					body(t, rand.New(rand.NewPCG(seed, 7)), b, dim, round%2 == 1)
				})
			}
		}
	})
}

// longestOf keeps wide rows few, and makes some segments of narrow ones longer than a block and a superblock.
func longestOf(r *rand.Rand, dim int) int {
	if dim < 8 {
		return []int{12, 200, 4500}[r.IntN(3)]
	}
	if dim > 1000 {
		return 12
	}
	return []int{12, 200}[r.IntN(2)]
}

// naiveTree sums along the tree by its definition: a node is its term, or the sum of its children that are there.
func naiveTree(at lane.Node, terms map[lane.Node][]float32) []float32 {
	if term, ok := terms[at]; ok {
		return term
	}
	if at.Count == 1 {
		return nil
	}
	leftNode, rightNode := at.Split()
	left, right := naiveTree(leftNode, terms), naiveTree(rightNode, terms)
	if left == nil || right == nil {
		return append(left, right...)
	}
	sum := make([]float32, len(left))
	for i := range sum {
		sum[i] = left[i] + right[i]
	}
	return sum
}

// randomNodes draws disjoint nodes in lane order, some lanes being absent.
func randomNodes(r *rand.Rand, at lane.Node) []lane.Node {
	switch k := r.IntN(8); {
	case k == 0:
		return nil
	case k == 1 || at.Count == 1:
		return []lane.Node{at}
	}
	left, right := at.Split()
	return append(randomNodes(r, left), randomNodes(r, right)...)
}

// TestOneSegmentOfAMillion holds the order of a sum with many superblocks.
func TestOneSegmentOfAMillion(t *testing.T) {
	const n = 1_000_000
	rows := awkward(rand.New(rand.NewPCG(9, 9)), n, false)
	keys, out := make([]uint64, 1), make([]float32, 1)
	want := naiveSum(rows)
	onEach(t, func(t *testing.T, b Backend) {
		mustCount(t, 1)(b.Coalesce(coalesce(1, make([]uint64, n), rows, keys, out)))
		wantFloats(t, "sum", out, []float32{want})
	})
}
