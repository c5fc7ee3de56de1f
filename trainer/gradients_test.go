package trainer

import (
	"math"
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

func fixedSpans(values, length int) (spans []span) {
	for lo := 0; lo < values; lo += length {
		spans = append(spans, span{lo, min(lo+length, values)})
	}
	return spans
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
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
