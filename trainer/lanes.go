package trainer

import "gradbus/lane"

// lanePlan says for one batch how the sums of the hosted lanes run up the lane tree while the lanes are computed one
// after the other. A sum under way lives in a slot: a lane's gradient is written to its slot, and a lane that ends a
// subtree adds the subtrees that it completes. There are at most log2(lanes)+1 slots at once.
//
// Lanes without samples are absent: they are not computed, and a node with one present child is that child.
type lanePlan struct {
	first lane.Lane
	nodes []lane.Node // the fewest nodes that are the hosted lanes, in lane order
	lanes []laneSums  // of each hosted lane
	last  int         // index of the last present lane, or -1 where none is

	samples []int // of each hosted lane
	weights []int // samples of each node
}

// laneSums does the work after the computation of one lane.
type laneSums struct {
	slot   int
	adds   []slotSum // in this order
	closes int       // index of the hosted node that is complete after adds, its sum being in slot 0, or -1
}

// slotSum adds slot from, a sum over right, to slot into, a sum over left.
type slotSum struct {
	into, from  int
	left, right lane.Node
}

func newLanePlan(first lane.Lane, count, lanes int) *lanePlan {
	return &lanePlan{first: first, nodes: lane.Nodes(first, count, lanes), lanes: make([]laneSums, count)}
}

// slots is the number of slots that a plan may need.
func (p *lanePlan) slots() int {
	most := 1
	for _, n := range p.nodes {
		most = max(most, slotsOf(n))
	}
	return most
}

func slotsOf(n lane.Node) int {
	if n.Count <= 1 {
		return 1
	}
	left, right := n.Split()
	return max(slotsOf(left), 1+slotsOf(right))
}

// present lays the plan for lanes of the given numbers of samples.
func (p *lanePlan) present(samples []int) {
	p.samples, p.last = samples, -1
	for i := range p.lanes {
		p.lanes[i].adds, p.lanes[i].closes = p.lanes[i].adds[:0], -1
	}
	p.weights = p.weights[:0]
	for i, n := range p.nodes {
		weight := 0
		for l := int(n.First); l < n.End(); l++ {
			weight += samples[l-int(p.first)]
		}
		p.weights = append(p.weights, weight)
		if p.lay(n, 0) {
			p.lanes[p.last].closes = i
		}
	}
}

// drop takes out a lane that was computed and is absent after all, while no later lane is. What it was to end, the last
// present lane before it ends: late is what follows that one in addition, its sums being in place.
func (p *lanePlan) drop(at int) (late laneSums) {
	last := at - 1
	for last >= 0 && p.samples[last] == 0 {
		last--
	}
	done, closed := 0, -1
	if last >= 0 {
		done, closed = len(p.lanes[last].adds), p.lanes[last].closes
	}
	p.samples[at] = 0
	p.present(p.samples) // which moves no lane before at: their slots depend on lanes before them alone
	if last < 0 || closed >= 0 {
		return laneSums{closes: -1}
	}
	late = p.lanes[last]
	late.adds = late.adds[done:]
	return late
}

// lay places the sum over a node in a slot and reports whether any lane of it is present.
func (p *lanePlan) lay(n lane.Node, slot int) bool {
	if n.Count == 1 {
		at := int(n.First) - int(p.first)
		if p.samples[at] == 0 {
			return false
		}
		p.lanes[at].slot, p.last = slot, at
		return true
	}
	left, right := n.Split()
	if !p.lay(left, slot) {
		return p.lay(right, slot)
	}
	if p.lay(right, slot+1) {
		end := &p.lanes[p.last]
		end.adds = append(end.adds, slotSum{into: slot, from: slot + 1, left: left, right: right})
	}
	return true
}
