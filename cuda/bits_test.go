package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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
	var total float32
	for super := range slices.Chunk(terms, superTerms) {
		var s float32
		for block := range slices.Chunk(super, blockTerms) {
			var b float32
			for _, v := range block {
				b += v
			}
			s += b
		}
		total += s
	}
	return total
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

func TestBagForwardBits(t *testing.T) {
	eachCase(t, func(t *testing.T, r *rand.Rand, b Backend, dim int, special bool) {
		const rows = 50
		table := awkward(r, rows*dim, special)
		for _, mode := range []Mode{Sum, Mean} {
			for _, padding := range []int64{NoPadding, 0, 17} {
				ids, offsets := randomBags(r, 9, longestOf(r, dim), rows, padding)
				out := awkward(r, (len(offsets)-1)*dim, true)
				must(t, b.BagForward(bagForward(dim, mode, padding, table, ids, offsets, out)))
				for bag := range len(offsets) - 1 {
					want := naiveBag(table, dim, mode, padding, ids[offsets[bag]:offsets[bag+1]])
					if got := out[bag*dim:][:dim]; !sameBits(got, want) {
						t.Fatalf("mode %d padding %d bag %d of %v:\n got %v\nwant %v", mode, padding, bag, offsets, got, want)
					}
				}
			}
		}
	})
}

func naiveBag(table []float32, dim int, mode Mode, padding int64, ids []int64) []float32 {
	var index []int
	for _, id := range ids {
		if padding == NoPadding || id != padding {
			index = append(index, int(id))
		}
	}
	out := naiveRows(table, dim, index)
	for d := range out {
		if mode == Mean && len(index) > 0 {
			out[d] /= float32(len(index))
		}
	}
	return out
}

func TestBagBackwardBits(t *testing.T) {
	eachCase(t, func(t *testing.T, r *rand.Rand, b Backend, dim int, special bool) {
		for _, mode := range []Mode{Sum, Mean} {
			for _, padding := range []int64{NoPadding, 3} {
				rows := []int64{5, 300, 1 << 40}[r.IntN(3)]
				ids, offsets := randomBags(r, 9, longestOf(r, dim), rows, padding)
				grad := awkward(r, (len(offsets)-1)*dim, special)
				wantKeys, wantRows := naiveBackward(grad, dim, mode, padding, ids, offsets)
				keys, out := make([]int64, len(ids)), awkward(r, len(ids)*dim, true)
				n, err := b.BagBackward(bagBackward(dim, mode, padding, rows, ids, offsets, grad, keys, out))
				must(t, err)
				if !slices.Equal(keys[:n], wantKeys) || !sameBits(out[:n*dim], wantRows) {
					t.Fatalf("mode %d padding %d: wrong keys or rows", mode, padding)
				}
			}
		}
	})
}

func naiveBackward(grad []float32, dim int, mode Mode, padding int64, ids, offsets []int64) (keys []int64, rows []float32) {
	index := map[int64][]int{}
	scaled := slices.Clone(grad)
	for bag := range len(offsets) - 1 {
		count := 0
		for _, id := range ids[offsets[bag]:offsets[bag+1]] {
			if padding == NoPadding || id != padding {
				index[id] = append(index[id], bag)
				count++
			}
		}
		for d := range dim {
			if mode == Mean {
				scaled[bag*dim+d] /= float32(max(count, 1))
			}
		}
	}
	for id := range index {
		keys = append(keys, id)
	}
	slices.Sort(keys)
	for _, id := range keys {
		rows = append(rows, naiveRows(scaled, dim, index[id])...)
	}
	return keys, rows
}

func TestCoalesceBits(t *testing.T) {
	eachCase(t, func(t *testing.T, r *rand.Rand, b Backend, dim int, special bool) {
		for _, spread := range []uint64{1, 7, 1000, math.MaxUint64} {
			n := r.IntN(longestOf(r, dim) + 1)
			keys, rows := make([]uint64, n), awkward(r, n*dim, special)
			index := map[uint64][]int{}
			for i := range keys {
				keys[i] = r.Uint64N(spread)
				index[keys[i]] = append(index[keys[i]], i)
			}
			outKeys, outRows := make([]uint64, n), awkward(r, n*dim, true)
			got, err := b.Coalesce(coalesce(dim, keys, rows, outKeys, outRows))
			must(t, err)
			if got != len(index) || !slices.IsSorted(outKeys[:got]) {
				t.Fatalf("%d keys, want %d; sorted %v", got, len(index), slices.IsSorted(outKeys[:got]))
			}
			for i, key := range outKeys[:got] {
				if want := naiveRows(rows, dim, index[key]); !sameBits(outRows[i*dim:][:dim], want) {
					t.Fatalf("key %d at %v: got %v, want %v", key, index[key], outRows[i*dim:][:dim], want)
				}
			}
		}
	})
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

func TestAverageBits(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(300) {
			r := rand.New(rand.NewPCG(seed, 3))
			lanes, n := 1+r.IntN(40), 1+r.IntN(700)
			if seed%50 == 0 {
				lanes = lane.LanesMax
			}
			var terms []Term
			byNode := map[lane.Node][]float32{}
			for _, node := range randomNodes(r, lane.Root(lanes)) {
				v := awkward(r, n, seed%2 == 1)
				terms = append(terms, term(uint16(node.First), node.Count, v))
				byNode[node] = v
			}
			if len(terms) == 0 {
				continue
			}
			weight := []float32{1, 512, 3, 1e-3, 0x1p127, 0x1p-126, 0x1p-140, 0x1.00001ep0}[r.IntN(8)]
			want := slices.Clone(naiveTree(lane.Root(lanes), byNode))
			for i := range want {
				want[i] /= weight
			}
			out := make([]float32, n)
			if seed%3 == 0 {
				out = view[float32](terms[r.IntN(len(terms))].Values) // in place
			}
			must(t, b.Average(average(lanes, weight, terms, out)))
			if !sameBits(out, want) {
				t.Fatalf("seed %d, %d lanes, %d terms, weight %v: wrong bits", seed, lanes, len(terms), weight)
			}
		}
	})
}

func TestMergeBits(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(200) {
			r := rand.New(rand.NewPCG(seed, 5))
			lanes, dim := 1+r.IntN(24), dims[r.IntN(len(dims)-1)]
			m := Merge{Dim: dim, Lanes: lanes}
			byKey := map[uint64]map[lane.Node][]float32{}
			total := 0
			for _, node := range randomNodes(r, lane.Root(lanes)) {
				var keys []uint64
				for key := range uint64(30) {
					if r.IntN(3) > 0 {
						keys = append(keys, key*key<<20)
					}
				}
				rows := awkward(r, len(keys)*dim, seed%2 == 1)
				for i, key := range keys {
					if byKey[key] == nil {
						byKey[key] = map[lane.Node][]float32{}
					}
					byKey[key][node] = rows[i*dim:][:dim]
				}
				total += len(keys)
				m.Terms = append(m.Terms, rowsTerm(uint16(node.First), node.Count, keys, rows))
			}
			room := []int{total, len(byKey)}[r.IntN(2)] // more than enough, or just enough
			keys, rows := make([]uint64, room), awkward(r, room*dim, true)
			m.OutKeys, m.OutRows = Uint64s(keys), Float32s(rows)
			n, err := b.Merge(m)
			must(t, err)
			if n != len(byKey) || !slices.IsSorted(keys[:n]) {
				t.Fatalf("seed %d: %d keys, want %d", seed, n, len(byKey))
			}
			for i, key := range keys[:n] {
				if want := naiveTree(lane.Root(lanes), byKey[key]); !sameBits(rows[i*dim:][:dim], want) {
					t.Fatalf("seed %d, %d lanes, key %d: got %v, want %v", seed, lanes, key, rows[i*dim:][:dim], want)
				}
			}
		}
	})
}

// TestMergeInTwoSteps: terms that were merged at the nodes below give what merging them all at once gives.
func TestMergeInTwoSteps(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(50) {
			r := rand.New(rand.NewPCG(seed, 37))
			lanes, dim := 2+r.IntN(12), 1+r.IntN(70)
			left, right := lane.Root(lanes).Split()
			merge := func(terms []RowsTerm, node lane.Node) RowsTerm {
				keys, rows := make([]uint64, 40), make([]float32, 40*dim)
				n, err := b.Merge(merge(dim, lanes, terms, keys, rows))
				must(t, err)
				return rowsTerm(uint16(node.First), node.Count, keys[:n], rows[:n*dim])
			}
			var halves [2][]RowsTerm
			for l := range lanes {
				var keys []uint64
				for key := range uint64(40) {
					if r.IntN(2) == 0 {
						keys = append(keys, key)
					}
				}
				half := min(1, l/int(left.Count))
				halves[half] = append(halves[half], rowsTerm(uint16(l), 1, keys, awkward(r, len(keys)*dim, false)))
			}
			once := merge(slices.Concat(halves[0], halves[1]), lane.Root(lanes))
			twice := merge([]RowsTerm{merge(halves[0], left), merge(halves[1], right)}, lane.Root(lanes))
			if !slices.Equal(view[uint64](once.Keys), view[uint64](twice.Keys)) || !sameBits(view[float32](once.Rows), view[float32](twice.Rows)) {
				t.Fatalf("seed %d, %d lanes: merging in two steps differs", seed, lanes)
			}
		}
	})
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
