package ps

import (
	"math"
	"slices"

	"gradbus/lane"
	"gradbus/schema"
)

// Weights are sample counts. The bounds keep float32(weight) and sums of weights finite and normal.
const (
	weightMin = 1.0 / (1 << 40)
	weightMax = 1 << 53
)

// checkContribution checks what dense and sparse contributions share: the node, who hosts it, and the weight.
func (s *Shard) checkContribution(index int, h *schema.Head) (lane.Node, *refusal) {
	host, node := &s.hosts[index], h.Node
	if int(h.Lanes) != s.job.Lanes || !lane.IsNode(node, s.job.Lanes) {
		return node, refuse(schema.ReasonWrongNode, "lanes %v of %d: want a node of the tree over %d lanes", node, h.Lanes, s.job.Lanes)
	}
	if int(node.First) < int(host.First) || node.End() > int(host.First)+host.Count {
		return node, refuse(schema.ReasonWrongSender, "lanes %v: %s hosts lanes [%d,%d)",
			node, host.Member, host.First, int(host.First)+host.Count)
	}
	if w := h.Weight; math.IsNaN(w) || w != 0 && (w < weightMin || w > weightMax) {
		return node, refuse(schema.ReasonWrongWeight, "weight %v of lanes %v: want a number of samples, 0 to 2^53", w, node)
	}
	return node, nil
}

// batchWeight remembers what a batch's contributions say of their weights. All chunks and buckets of one batch must
// agree on the weight of a node, and on the sum over all lanes.
type batchWeight struct {
	nodes   []nodeWeight // by first lane, then count
	total   float64
	totaled bool // total is known: a round of the batch has closed
}

type nodeWeight struct {
	node   lane.Node
	weight float64
}

func (w *batchWeight) reset() { *w = batchWeight{nodes: w.nodes[:0]} }

func compareNodes(a, b lane.Node) int {
	if a.First != b.First {
		return int(a.First) - int(b.First)
	}
	return int(a.Count) - int(b.Count)
}

func (w *batchWeight) find(n lane.Node) (int, bool) {
	return slices.BinarySearchFunc(w.nodes, n, func(x nodeWeight, n lane.Node) int { return compareNodes(x.node, n) })
}

// check refuses a weight that differs from an earlier one of the same node.
func (w *batchWeight) check(n lane.Node, weight float64) *refusal {
	if at, ok := w.find(n); ok && w.nodes[at].weight != weight {
		return refuse(schema.ReasonWrongWeight, "weight %v of lanes %v: other contributions of this batch say %v", weight, n, w.nodes[at].weight)
	}
	return nil
}

// note remembers a weight that check has passed.
func (w *batchWeight) note(n lane.Node, weight float64) {
	if at, ok := w.find(n); !ok {
		w.nodes = slices.Insert(w.nodes, at, nodeWeight{n, weight})
	}
}

// checkTotal refuses a sum over all lanes that differs from that of a round of this batch which has closed.
func (w *batchWeight) checkTotal(total float64) *refusal {
	if w.totaled && w.total != total {
		return refuse(schema.ReasonWrongWeight, "weights add up to %v: in other rounds of this batch to %v", total, w.total)
	}
	return nil
}

func (w *batchWeight) noteTotal(total float64) { w.total, w.totaled = total, true }

// treeWeight adds the weights of nodes that cover the tree, along the tree, so that it does not matter who added
// which. Counts of samples are exact anyway. nodes are in lane order and weight(i) is that of nodes[i].
func treeWeight(lanes int, nodes []lane.Node, weight func(int) float64) float64 {
	next := 0
	var sum func(at lane.Node) float64
	sum = func(at lane.Node) float64 {
		if next < len(nodes) && nodes[next] == at {
			next++
			return weight(next - 1)
		}
		if at.Count <= 1 {
			return 0
		}
		left, right := at.Split()
		l := sum(left)
		return l + sum(right)
	}
	return sum(lane.Root(lanes))
}

// place finds where a node belongs among the disjoint nodes of a round, in lane order. The same node is a repeat;
// one that shares lanes with another is refused, since those lanes have been counted.
func place(nodes []lane.Node, n lane.Node) (int, *refusal) {
	at, found := slices.BinarySearchFunc(nodes, n, compareNodes)
	switch {
	case found:
		return at, repeated()
	case at > 0 && nodes[at-1].End() > int(n.First):
		return at, refuse(schema.ReasonWrongNode, "lanes %v overlap lanes %v, which have contributed", n, nodes[at-1])
	case at < len(nodes) && int(nodes[at].First) < n.End():
		return at, refuse(schema.ReasonWrongNode, "lanes %v overlap lanes %v, which have contributed", n, nodes[at])
	}
	return at, nil
}

// checkStaged refuses what the budget for open rounds has no room for.
func (s *Shard) checkStaged(bytes int64) *refusal {
	if s.staged+bytes > s.stagedMax {
		return refuse(schema.ReasonOverBudget, "%d bytes: %d of the %d bytes for open rounds are in use; "+
			"raise the server's --staged-mib or send smaller batches", bytes, s.staged, s.stagedMax)
	}
	return nil
}
