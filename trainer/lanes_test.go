package trainer

import (
	"reflect"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// A manifest without a number of lanes gets the default, and one with it stays as it is.
func TestWithLanes(t *testing.T) {
	for _, c := range []struct{ trainers, lanes, want int }{{2, 0, 8}, {9, 0, 16}, {2, 3, 3}, {0, 0, 8},
		{lane.LanesMax + 1, 0, 0}} {
		job := &schema.Job{Trainers: c.trainers, Lanes: c.lanes}
		if got := job.WithDefaults().Lanes; got != c.want || job.Lanes != c.lanes {
			t.Errorf("%d trainers, %d lanes: %d, want %d and the caller's as it was", c.trainers, c.lanes, got, c.want)
		}
	}
}

func TestLanePlanOfFour(t *testing.T) {
	p := newLanePlan(0, 4, 4)
	if p.slots() != 3 {
		t.Errorf("4 lanes need %d slots, want 3", p.slots())
	}
	p.present([]int{1, 1, 1, 1})
	want := []laneSums{
		{slot: 0, closes: -1},
		{slot: 1, adds: []slotSum{{0, 1, lane.Node{First: 0, Count: 1}, lane.Node{First: 1, Count: 1}}}, closes: -1},
		{slot: 1, closes: -1},
		{slot: 2, adds: []slotSum{{1, 2, lane.Node{First: 2, Count: 1}, lane.Node{First: 3, Count: 1}},
			{0, 1, lane.Node{First: 0, Count: 2}, lane.Node{First: 2, Count: 2}}}, closes: 0},
	}
	if !reflect.DeepEqual(p.lanes, want) {
		t.Errorf("plan of 4 lanes = %+v\nwant %+v", p.lanes, want)
	}
}

func TestLanePlanSkipsAbsentLanes(t *testing.T) {
	p := newLanePlan(1, 3, 4) // nodes [1,2) and [2,4)
	p.present([]int{2, 0, 5})
	if p.lanes[0].closes != 0 || p.lanes[2].closes != 1 || len(p.lanes[2].adds) != 0 || p.lanes[2].slot != 0 {
		t.Errorf("plan = %+v, want lane 1 to close node 0, and lane 3 alone to close node 1 in slot 0", p.lanes)
	}
	if p.last != 2 {
		t.Errorf("last present lane = %d, want 2", p.last)
	}
	if w := p.weights[1]; w != 5 {
		t.Errorf("weight of %v = %d, want 5", p.nodes[1], w)
	}
	p.present([]int{0, 0, 0})
	if p.last != -1 {
		t.Errorf("last present lane of none = %d, want -1", p.last)
	}
}

// Run with sets of lanes instead of sums, the plan leaves in slot 0 the present lanes of each node, with every
// addition a true one of the tree: children of one node, but for absent lanes.
func TestLanePlanAddsTreeNodes(t *testing.T) {
	for lanes := 1; lanes <= 9; lanes++ {
		for first := range lanes {
			for count := 1; first+count <= lanes; count++ {
				p := newLanePlan(lane.Lane(first), count, lanes)
				for mask := range 1 << count {
					samples := make([]int, count)
					for i := range samples {
						samples[i] = mask >> i & 1
					}
					p.present(samples)
					runPlanOnSets(t, p, mask<<first)
				}
			}
		}
	}
}

func runPlanOnSets(t *testing.T, p *lanePlan, present int) {
	t.Helper()
	slots := make([]int, p.slots())
	closed := 0
	for i, l := range p.lanes {
		if p.samples[i] == 0 {
			continue
		}
		slots[l.slot] = 1 << (int(p.first) + i)
		for _, a := range l.adds {
			if slots[a.into] != setOf(a.left)&present || slots[a.from] != setOf(a.right)&present {
				t.Fatalf("lanes %b of %v: adds %b and %b as %v and %v", present, p.nodes, slots[a.into], slots[a.from],
					a.left, a.right)
			}
			slots[a.into] |= slots[a.from]
		}
		if l.closes >= 0 {
			if want := setOf(p.nodes[l.closes]) & present; slots[0] != want {
				t.Fatalf("lanes %b: node %v closes with %b, want %b", present, p.nodes[l.closes], slots[0], want)
			}
			closed |= slots[0]
		}
	}
	if closed != present {
		t.Fatalf("nodes %v close with lanes %b, want %b", p.nodes, closed, present)
	}
}

func setOf(n lane.Node) int { return (1<<n.Count - 1) << n.First }

// The last of four lanes is absent after all: the third, alone in its node now, completes the tree. Before others
// nothing is left to do.
func TestLanePlanDropsALane(t *testing.T) {
	p := newLanePlan(0, 4, 4)
	p.present([]int{1, 2, 3, 4})
	late := p.drop(3)
	want := []slotSum{{0, 1, lane.Node{First: 0, Count: 2}, lane.Node{First: 2, Count: 2}}}
	if !reflect.DeepEqual(late, laneSums{slot: 1, adds: want, closes: 0}) || p.last != 2 || p.weights[0] != 6 {
		t.Errorf("after lane 3 there is %+v to do, the last lane is %d and the weight %d", late, p.last, p.weights[0])
	}
	p.present([]int{1, 2, 3, 4})
	if late = p.drop(0); late.closes >= 0 || len(late.adds) > 0 || p.lanes[1].slot != 0 || len(p.lanes[1].adds) != 0 {
		t.Errorf("after lane 0 there is %+v to do, and lanes are %+v", late, p.lanes)
	}
	for _, at := range []int{1, 2, 3} {
		late = p.drop(at)
	}
	if late.closes >= 0 || p.last != -1 || p.weights[0] != 0 {
		t.Errorf("without any lane there is %+v to do", late)
	}
}
