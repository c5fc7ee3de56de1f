package trainer

import "gradbus/lane"

// lanePlan describes for one batch how the sums of the hosted lanes go up the lane tree while the lanes are computed in
// order. A partial sum occupies a slot: a lane's gradient is written to its slot, and a lane that ends a subtree adds
// the subtrees that it completes. At most log2(lanes)+1 slots are in use.
//
// Lanes without samples are absent: they are not computed, and a node with one present child equals that child.
type lanePlan struct {
	first lane.Lane
	nodes []lane.Node // minimal nodes that cover the hosted lanes, in lane order
	lanes []laneSums  // of each hosted lane
	last  int         // index of the last present lane, or -1

	samples []int // number of each hosted lane
	weights []int // samples of each node
}

// laneSums lists the additions after the computation of one lane.
type laneSums struct {
	slot   int
	adds   []slotSum // in this order
	closes int       // index of the hosted node that adds complete, with its sum in slot 0, or -1
}

// slotSum adds slot from, the sum over right, to slot into, the sum over left.
type slotSum struct {
	into, from  int
	left, right lane.Node
}

func newLanePlan(first lane.Lane, count, lanes int) *lanePlan {
	return &lanePlan{first: first, nodes: lane.Nodes(first, count, lanes), lanes: make([]laneSums, count)}
}

// slots returns the number of slots that a plan may use.
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

// present computes the plan for lanes with the given numbers of samples.
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

// drop removes a lane that was computed and turned out to be absent, before any later lane was computed. The last
// present lane before it takes over its additions: late lists the ones that remain for that lane, whose sums are in
// place.
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
	p.present(p.samples) // it moves no lane before at, since slots depend on earlier lanes only
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
