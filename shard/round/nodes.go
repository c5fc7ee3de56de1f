package round

import (
	"slices"

	"gradbus/lane"
	"gradbus/schema"
)

// Contributor is a trainer and its lanes: [First, First+Count).
type Contributor struct {
	Member schema.Member
	First  lane.Lane
	Count  int
}

// ContributorsOf is the trainers of a job with their lanes, in order.
func ContributorsOf(job *schema.Job) []Contributor {
	contributors := make([]Contributor, job.Trainers)
	for i := range contributors {
		first, count := lane.Share(i, job.Trainers, job.Lanes)
		contributors[i] = Contributor{Member: schema.TrainerMember(i), First: first, Count: count}
	}
	return contributors
}

// Weights are sample counts. The bounds keep float32(weight) and sums of weights finite and normal.
const (
	weightMin = 1.0 / (1 << 40)
	weightMax = schema.WeightMax
)

// IsWeight reports whether a sum may be divided by w samples.
func IsWeight(w float64) bool { return w >= weightMin && w <= weightMax }

// CheckSender checks what dense and sparse contributions have in common: that the node is one of the tree and
// the contributor's, and that the weight is a number of samples.
func CheckSender(contributor *Contributor, lanes int, h *schema.Head) *schema.FrameError {
	node := h.Node
	if int(h.Lanes) != lanes || !lane.IsNode(node, lanes) {
		return schema.Refuse(schema.ReasonWrongNode, "lanes %v of %d: want a node of the tree over %d lanes", node,
			h.Lanes, lanes)
	}
	if int(node.First) < int(contributor.First) || node.End() > int(contributor.First)+contributor.Count {
		return schema.Refuse(schema.ReasonWrongSender, "lanes %v: %s hosts lanes [%d,%d)",
			node, contributor.Member, contributor.First, int(contributor.First)+contributor.Count)
	}
	if w := h.Weight; w != 0 && !IsWeight(w) {
		return schema.Refuse(schema.ReasonWrongWeight, "weight %v of lanes %v: want a number of samples, 0 to 2^53", w, node)
	}
	return nil
}

// place finds where a node belongs among the disjoint nodes of a round, in lane order. The same node is a repeat
// (schema.ReasonDuplicate, without a text); one that shares lanes with another is refused, since those lanes have been
// counted.
func place(nodes []lane.Node, n lane.Node) (int, *schema.FrameError) {
	at, found := slices.BinarySearchFunc(nodes, n, compareNodes)
	switch {
	case found:
		return at, &schema.FrameError{Reason: schema.ReasonDuplicate}
	case at > 0 && nodes[at-1].End() > int(n.First):
		return at, schema.Refuse(schema.ReasonWrongNode, "lanes %v overlap lanes %v, which have contributed", n, nodes[at-1])
	case at < len(nodes) && int(nodes[at].First) < n.End():
		return at, schema.Refuse(schema.ReasonWrongNode, "lanes %v overlap lanes %v, which have contributed", n, nodes[at])
	}
	return at, nil
}

func compareNodes(a, b lane.Node) int {
	if a.First != b.First {
		return int(a.First) - int(b.First)
	}
	return int(a.Count) - int(b.Count)
}

// covered is how many of the lanes [first, first+count) the disjoint nodes hold.
func covered(nodes []lane.Node, first, count int) int {
	n := 0
	for _, node := range nodes {
		n += max(0, min(node.End(), first+count)-max(int(node.First), first))
	}
	return n
}
