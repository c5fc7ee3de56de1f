package trainer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// Three lanes of one node over one parameter of two values, which one checks by hand: ((a+b)+c), not (a+(b+c)).
func TestDenseSumsLiteral(t *testing.T) {
	const big = 1 << 24
	p := newLanePlan(0, 3, 3)
	p.present([]int{1, 1, 1})
	d := newDenseSums(testBackend(t), 3, p.slots(), []span{{0, 2}}, []span{{0, 2}})
	out := make([]float32, 2)
	closed := 0
	d.frame = func(node, chunk int) cuda.Vector { return cuda.Float32s(out) }
	d.closed = func(node, chunk int) error { closed++; return nil }
	for i, values := range [][]float32{{big, 1}, {1, 2}, {1, 4}} {
		d.begin(p.lanes[i])
		copy(d.grad(0), values)
		if err := d.end(); err != nil {
			t.Fatal(err)
		}
	}
	if want := []float32{big, 7}; !slices.Equal(out, want) || closed != 1 {
		t.Errorf("sum = %v in %d closes, want %v in 1: 2^24 + 1 + 1 is 2^24 from the left", out, closed, want)
	}
}

// treeSum is the oracle: the sum over a node as the design words it. nil is an absent lane.
func treeSum(n lane.Node, of func(lane.Lane) []float32) []float32 {
	if n.Count == 1 {
		return of(n.First)
	}
	l, r := n.Split()
	left, right := treeSum(l, of), treeSum(r, of)
	if left == nil {
		return right
	}
	if right == nil {
		return left
	}
	sum := make([]float32, len(left))
	for i := range sum {
		sum[i] = left[i] + right[i]
	}
	return sum
}

// Any hosted range, absent lanes, parameters declared final in any order or not at all, chunks that cut parameters and
// parameters that share chunks: the frames hold the tree's sums, bit by bit, and chunks close in order.
func TestDenseSumsAgainstTree(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 3))
	for range 60 {
		lanes := 1 + random.IntN(9)
		first := random.IntN(lanes)
		count := 1 + random.IntN(lanes-first)
		params, values := randomSpans(random, 1+random.IntN(5), 30)
		chunks := fixedSpans(values, 1+random.IntN(16))
		p := newLanePlan(lane.Lane(first), count, lanes)
		d := newDenseSums(testBackend(t), lanes, p.slots(), params, chunks)
		frames, closed := make([][]float32, len(p.nodes)), make([]int, len(p.nodes))
		for i := range frames {
			frames[i] = make([]float32, values)
		}
		d.frame = func(node, chunk int) cuda.Vector {
			return cuda.Float32s(frames[node]).Slice(chunks[chunk].lo, chunks[chunk].hi)
		}
		d.closed = func(node, chunk int) error {
			if closed[node] != chunk {
				return fmt.Errorf("node %d closes chunk %d, want %d", node, chunk, closed[node])
			}
			closed[node]++
			return nil
		}
		for batch := range 3 {
			samples, grads := make([]int, count), make([][]float32, count)
			for i := range samples {
				samples[i] = random.IntN(3)
			}
			p.present(samples)
			clear(closed)
			for i := range grads {
				if samples[i] == 0 {
					continue
				}
				grads[i] = make([]float32, values)
				d.begin(p.lanes[i])
				for _, at := range random.Perm(len(params)) {
					if random.IntN(4) == 0 {
						continue // not touched: zero
					}
					g := grads[i][params[at].lo:params[at].hi]
					for j := range g {
						g[j] = (random.Float32() - 0.5) * float32(math.Exp2(float64(random.IntN(30))))
					}
					copy(d.grad(at), g)
					if random.IntN(4) > 0 {
						if err := d.done(at); err != nil {
							t.Fatalf("seed %d: %v", seed, err)
						}
					}
				}
				if err := d.end(); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			for i, n := range p.nodes {
				want := treeSum(n, func(l lane.Lane) []float32 { return grads[int(l)-first] })
				if want == nil {
					continue
				}
				if !sameBits(frames[i], want) || closed[i] != len(chunks) {
					t.Fatalf("seed %d: batch %d, lanes %v of node %v: %d of %d chunks\n%v\nwant %v",
						seed, batch, samples, n, closed[i], len(chunks), frames[i], want)
				}
			}
		}
	}
}

func randomSpans(random *rand.Rand, n, longest int) (spans []span, values int) {
	for range n {
		length := 1 + random.IntN(longest)
		spans = append(spans, span{values, values + length})
		values += length
	}
	return spans, values
}

func fixedSpans(values, length int) (spans []span) {
	for lo := 0; lo < values; lo += length {
		spans = append(spans, span{lo, min(lo+length, values)})
	}
	return spans
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// Rows of any lanes, tables without rows and lanes without a gradient: each node holds for each key the tree's sum over
// the lanes that have the key.
func TestRowSumsAgainstTree(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 4))
	dims := []int{3, 1}
	for range 60 {
		lanes := 1 + random.IntN(9)
		first := random.IntN(lanes)
		count := 1 + random.IntN(lanes-first)
		p := newLanePlan(lane.Lane(first), count, lanes)
		s := testRowSums(t, lanes, p, dims)
		for range 3 {
			samples := make([]int, count)
			grads := make([]map[[2]int][]float32, count) // [lane][table, id]
			for i := range samples {
				samples[i] = random.IntN(3)
				grads[i] = map[[2]int][]float32{}
			}
			p.present(samples)
			s.reset()
			for i := range samples {
				if samples[i] > 0 {
					randomRowGrad(t, random, s, i, p.lanes[i], dims, grads[i])
				}
			}
			for i, n := range p.nodes {
				checkNodeRows(t, seed, s.node[i], dims, func(table, id int) []float32 {
					return treeSum(n, func(l lane.Lane) []float32 { return grads[int(l)-first][[2]int{table, id}] })
				})
			}
		}
	}
}

const testIDs = 12

// testRowSums are those of tables that travel as rows, to one shard.
func testRowSums(t *testing.T, lanes int, p *lanePlan, dims []int) *rowSums {
	bags := newBagGrads(schema.DTypeFloat32, p, newRouting(dims, 1, 1, nil), make([]schema.TableSpec, len(dims)))
	for table := range bags.perRow {
		bags.perRow[table] = true
	}
	s := newRowSums(testBackend(t), lanes, bags, dims)
	s.count = func(int) int { return testIDs }
	return s
}

func randomRowGrad(t *testing.T, random *rand.Rand, s *rowSums, at int, l laneSums, dims []int,
	to map[[2]int][]float32) {
	t.Helper()
	s.begin(at, l)
	for table, dim := range dims {
		if random.IntN(4) == 0 {
			continue
		}
		var ids []uint64
		var values []float32
		for id := range testIDs {
			if random.IntN(3) > 0 {
				continue
			}
			row := make([]float32, dim)
			for j := range row {
				row[j] = (random.Float32() - 0.5) * float32(math.Exp2(float64(random.IntN(30))))
			}
			to[[2]int{table, id}] = row
			ids, values = append(ids, uint64(id)), append(values, row...)
		}
		if err := s.add(table, ids, values); err != nil {
			t.Fatal(err)
		}
		clear(values) // the sums may not lean on the caller's memory
	}
	if err := s.end(); err != nil {
		t.Fatal(err)
	}
}

func checkNodeRows(t *testing.T, seed uint64, node []rows, dims []int, want func(table, id int) []float32) {
	t.Helper()
	for table, dim := range dims {
		at := 0
		for id := range testIDs {
			row := want(table, id)
			if row == nil {
				continue
			}
			if at >= len(node[table].ids) || node[table].ids[at] != uint64(id) ||
				!sameBits(node[table].values[at*dim:(at+1)*dim], row) {
				t.Fatalf("seed %d: row %d of table %d: have ids %v values %v, want id %d values %v", seed, at, table,
					node[table].ids, node[table].values, id, row)
			}
			at++
		}
		if len(node[table].ids) != at {
			t.Fatalf("seed %d: table %d holds ids %v, want %d of them", seed, table, node[table].ids, at)
		}
	}
}

func TestRowSumsRefusesTwice(t *testing.T) {
	s := testRowSums(t, 1, newLanePlan(0, 1, 1), []int{1})
	s.begin(0, laneSums{})
	if err := s.add(0, []uint64{1}, []float32{1}); err != nil {
		t.Fatal(err)
	}
	if err := s.add(0, []uint64{2}, []float32{1}); err == nil {
		t.Error("a second row gradient of one table passes")
	}
}
