package lane

import (
	"reflect"
	"testing"
)

func TestSplitLargestPowerOfTwoBelow(t *testing.T) {
	for _, c := range []struct{ n, left, right uint16 }{{2, 1, 1}, {3, 2, 1}, {4, 2, 2}, {5, 4, 1}, {7, 4, 3}, {8, 4, 4},
		{9, 8, 1}} {
		left, right := Node{10, c.n}.Split()
		if left != (Node{10, c.left}) || right != (Node{10 + Lane(c.left), c.right}) {
			t.Errorf("split of %d lanes = %v %v, want %d and %d", c.n, left, right, c.left, c.right)
		}
	}
}

func TestDefault(t *testing.T) {
	for trainers, want := range map[int]int{1: 8, 3: 8, 8: 8, 9: 16, 16: 16, 17: 32, LanesMax: LanesMax} {
		if got := Default(trainers); got != want {
			t.Errorf("%d lanes for %d trainers, want %d", got, trainers, want)
		}
	}
}

func TestNodes(t *testing.T) {
	for _, c := range []struct {
		first Lane
		count int
		lanes int
		want  []Node
	}{
		{0, 4, 4, []Node{{0, 4}}},
		{0, 2, 4, []Node{{0, 2}}},
		{1, 2, 4, []Node{{1, 1}, {2, 1}}},
		{1, 3, 4, []Node{{1, 1}, {2, 2}}},
		{0, 3, 5, []Node{{0, 2}, {2, 1}}},
		{0, 1, 1, []Node{{0, 1}}},
	} {
		if got := Nodes(c.first, c.count, c.lanes); !reflect.DeepEqual(got, c.want) {
			t.Errorf("nodes of %d lanes from %d of %d = %v, want %v", c.count, c.first, c.lanes, got, c.want)
		}
	}
}

// A node is a child of its parent, and the root has none.
func TestParent(t *testing.T) {
	for lanes := 1; lanes <= 17; lanes++ {
		var visit func(n Node)
		visit = func(n Node) {
			if n.Count == 1 {
				return
			}
			left, right := n.Split()
			for _, child := range []Node{left, right} {
				if p, ok := Parent(child, lanes); !ok || p != n {
					t.Errorf("parent of %v of %d lanes = %v %v, want %v", child, lanes, p, ok, n)
				}
				visit(child)
			}
		}
		visit(Root(lanes))
		if p, ok := Parent(Root(lanes), lanes); ok {
			t.Errorf("the root over %d lanes has parent %v", lanes, p)
		}
	}
}

// Every share of every number of trainers decomposes into true nodes that cover its lanes once.
func TestSharesCoverEveryLaneOnce(t *testing.T) {
	for lanes := 1; lanes <= 17; lanes++ {
		for trainers := 1; trainers <= lanes; trainers++ {
			seen := make([]int, lanes)
			for i := range trainers {
				first, count := Share(i, trainers, lanes)
				if count == 0 {
					t.Fatalf("trainer %d of %d hosts none of %d lanes", i, trainers, lanes)
				}
				for _, n := range Nodes(first, count, lanes) {
					if !IsNode(n, lanes) {
						t.Fatalf("%v is not a node of the tree over %d lanes", n, lanes)
					}
					for l := int(n.First); l < n.End(); l++ {
						seen[l]++
					}
				}
			}
			for l, n := range seen {
				if n != 1 {
					t.Fatalf("lane %d of %d is covered %d times by %d trainers", l, lanes, n, trainers)
				}
			}
		}
	}
}

func TestIsNodeRefuses(t *testing.T) {
	for _, c := range []struct {
		n     Node
		lanes int
	}{{Node{1, 2}, 4}, {Node{0, 3}, 4}, {Node{0, 0}, 4}, {Node{3, 2}, 4}, {Node{0, 5}, 4}, {Node{0, 1}, 0}} {
		if IsNode(c.n, c.lanes) {
			t.Errorf("%v of %d lanes passes for a node", c.n, c.lanes)
		}
	}
}

func TestSliceCoversEverySample(t *testing.T) {
	for _, n := range []int{0, 1, 3, 4, 255, 256} {
		next := 0
		for l := range Lane(4) {
			lo, hi := Slice(l, 4, n)
			if lo != next || hi < lo {
				t.Fatalf("lane %d of a batch of %d starts at %d, want %d", l, n, lo, next)
			}
			next = hi
		}
		if next != n {
			t.Fatalf("lanes cover %d of %d samples", next, n)
		}
	}
}
