package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/lane"
)

// Sums across rows and lanes in every type, with division by the weight, against the naive ones.

func TestCoalesceBits(t *testing.T) {
	eachCase(t, func(t *testing.T, r *rand.Rand, b Backend, dim int, special bool) {
		for range 5 {
			n := r.IntN(longestOf(r, dim) + 1)
			keyType, rowType := []DType{Uint64, Int64, Int32}[r.IntN(3)], floatTypes[r.IntN(3)]
			outType := []DType{Float32, rowType}[r.IntN(2)]
			spread := []int64{1, 7, 1000, math.MaxInt32}[r.IntN(4)]
			keys, rows := make([]int64, n), awkwardOf(r, rowType, n*dim, special)
			index := map[int64][]int{}
			for i := range keys {
				keys[i] = r.Int64N(spread)
				index[keys[i]] = append(index[keys[i]], i)
			}
			a := Coalesce{Dim: dim, Weight: []float32{0, 1, 3, 0.7}[r.IntN(4)], Keys: idsOf(keyType, keys), Rows: rows,
				OutKeys: idsOf(keyType, make([]int64, n)), OutRows: cleared(outType, n*dim)}
			got, err := b.Coalesce(a)
			must(t, err)
			var distinct, outKeys []int64
			for key := range index {
				distinct = append(distinct, key)
			}
			slices.Sort(distinct)
			values := unpacked(rows)
			outKeys = append(outKeys, ints64(a.OutKeys, &outKeys)...)[:got]
			if !slices.Equal(outKeys, distinct) {
				t.Fatalf("%v: keys %v, want %v", keyType, outKeys, distinct)
			}
			for i, key := range distinct {
				want := naiveRows(values, dim, index[key])
				for d := range want {
					if a.Weight != 0 {
						want[d] /= a.Weight
					}
				}
				wantVector(t, fmt.Sprintf("key %d of %d rows, weight %v", key, len(index[key]), a.Weight),
					a.OutRows.Slice(i*dim, (i+1)*dim),
					naiveRounds(outType, want))
			}
		}
	})
}

func TestAverageBits(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(200) {
			r := rand.New(rand.NewPCG(seed, 43))
			lanes, n, dtype := 1+r.IntN(40), 1+r.IntN(1300), floatTypes[r.IntN(3)]
			if seed%50 == 0 {
				lanes = lane.LanesMax
			}
			outType := []DType{Float32, dtype}[r.IntN(2)]
			if dtype == Float32 {
				outType = floatTypes[r.IntN(3)]
			}
			var terms []Term
			byNode := map[lane.Node][]float32{}
			for _, node := range randomNodes(r, lane.Root(lanes)) {
				v := awkwardOf(r, dtype, n, seed%2 == 1)
				terms, byNode[node] = append(terms, Term{uint16(node.First), node.Count, v}), unpacked(v)
			}
			if len(terms) == 0 {
				continue
			}
			weight := []float32{1, 512, 3, 1e-3, 0x1p127, 0x1p-126, 0x1p-140, 0x1.00001ep0}[r.IntN(8)]
			want := slices.Clone(naiveTree(lane.Root(lanes), byNode))
			for i := range want {
				want[i] = naiveRound(outType, want[i]/weight)
			}
			out := cleared(outType, n)
			if outType == dtype && r.IntN(2) == 0 {
				out = terms[r.IntN(len(terms))].Values
			}
			must(t, b.Average(Average{lanes, weight, terms, out}))
			wantVector(t, fmt.Sprintf("seed %d", seed), out, want)
		}
	})
}

func TestMergeBits(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		for seed := range uint64(120) {
			r := rand.New(rand.NewPCG(seed, 47))
			lanes, dim, dtype := 1+r.IntN(24), dims[r.IntN(len(dims)-1)], floatTypes[r.IntN(3)]
			outType := []DType{Float32, dtype}[r.IntN(2)]
			m := Merge{Dim: dim, Lanes: lanes, Weight: []float32{0, 1, 3}[r.IntN(3)]}
			byKey := map[uint64]map[lane.Node][]float32{}
			for _, node := range randomNodes(r, lane.Root(lanes)) {
				var keys []uint64
				for key := range uint64(30) {
					if r.IntN(3) > 0 {
						keys = append(keys, key<<33)
					}
				}
				rows := awkwardOf(r, dtype, len(keys)*dim, seed%2 == 1)
				for i, key := range keys {
					if byKey[key] == nil {
						byKey[key] = map[lane.Node][]float32{}
					}
					byKey[key][node] = unpacked(rows.Slice(i*dim, (i+1)*dim))
				}
				m.Terms = append(m.Terms, RowsTerm{uint16(node.First), node.Count, Uint64s(keys), rows})
			}
			if len(m.Terms) == 0 {
				outType = Float32 // there is no type to be like
			}
			room := len(byKey) + r.IntN(3)
			keys := make([]uint64, room)
			m.OutKeys, m.OutRows = Uint64s(keys), cleared(outType, room*dim)
			n, err := b.Merge(m)
			must(t, err)
			if n != len(byKey) || !slices.IsSorted(keys[:n]) {
				t.Fatalf("seed %d: %d keys, want %d", seed, n, len(byKey))
			}
			for i, key := range keys[:n] {
				want := slices.Clone(naiveTree(lane.Root(lanes), byKey[key]))
				for d := range want {
					if m.Weight != 0 {
						want[d] /= m.Weight
					}
				}
				wantVector(t, fmt.Sprintf("seed %d key %d weight %v", seed, key, m.Weight), m.OutRows.Slice(i*dim, (i+1)*dim),
					naiveRounds(outType, want))
			}
		}
	})
}
