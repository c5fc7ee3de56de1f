package round

import (
	"fmt"
	"slices"

	"gradbus/lane"
	"gradbus/schema"
)

// Weights remembers what the contributions to one batch say of their weights: all rounds of a batch, dense and sparse,
// agree on the weight of a node, and on the sum over all lanes. The zero value is ready.
type Weights struct {
	nodes   []nodeWeight // by first lane, then count
	total   float64
	totaled bool // total is known: a round of the batch has closed

	// Scratch of looking ahead.
	ahead  []lane.Node
	aheadW []float64
}

type nodeWeight struct {
	node   lane.Node
	weight float64
}

// reset forgets the batch.
func (w *Weights) reset() { w.nodes, w.total, w.totaled = w.nodes[:0], 0, false }

func (w *Weights) find(n lane.Node) (int, bool) {
	return slices.BinarySearchFunc(w.nodes, n, func(x nodeWeight, n lane.Node) int { return compareNodes(x.node, n) })
}

// String lists what is known, for logs and tests.
func (w *Weights) String() string { return fmt.Sprint(w.nodes, w.total, w.totaled) }

// check refuses a weight that differs from an earlier one of the same node.
func (w *Weights) check(n lane.Node, weight float64) *schema.FrameError {
	if at, ok := w.find(n); ok && w.nodes[at].weight != weight {
		return schema.Refuse(schema.ReasonWrongWeight, "weight %v of lanes %v: other contributions of this batch say %v",
			weight, n, w.nodes[at].weight)
	}
	return nil
}

// note remembers a weight that Check has passed.
func (w *Weights) note(n lane.Node, weight float64) {
	if at, ok := w.find(n); !ok {
		w.nodes = slices.Insert(w.nodes, at, nodeWeight{n, weight})
	}
}

// checkTotal looks ahead: where a node of this weight, which belongs at index at of the nodes of a round, is the last
// that the round lacks, so many lanes being missing, the weights must add up to what those of other rounds of the batch
// did.
func (w *Weights) checkTotal(lanes, missing int, nodes []lane.Node, weights []float64, at int, node lane.Node,
	weight float64) *schema.FrameError {
	if !w.totaled || int(node.Count) < missing {
		return nil
	}
	w.ahead = append(append(append(w.ahead[:0], nodes[:at]...), node), nodes[at:]...)
	w.aheadW = append(append(append(w.aheadW[:0], weights[:at]...), weight), weights[at:]...)
	if total := TreeWeight(lanes, w.ahead, w.aheadW); w.total != total {
		return schema.Refuse(schema.ReasonWrongWeight, "weights add up to %v: in other rounds of this batch to %v",
			total, w.total)
	}
	return nil
}

// noteTotal remembers the sum over all lanes, which a round has closed with.
func (w *Weights) noteTotal(total float64) { w.total, w.totaled = total, true }

// Total is the sum over all lanes, as rounds of the batch closed with; 0 where none has.
func (w *Weights) Total() float64 { return w.total }

// TreeWeight adds the weights of nodes that cover the tree, along the tree, so that it does not matter who added which.
// Counts of samples are exact anyway. nodes are in lane order.
func TreeWeight(lanes int, nodes []lane.Node, weights []float64) float64 {
	sum, _ := treeWeight(lane.Root(lanes), nodes, weights, 0)
	return sum
}

// treeWeight adds up what lies below at, of which nodes[next] is the first, and gives what follows it.
func treeWeight(at lane.Node, nodes []lane.Node, weights []float64, next int) (sum float64, after int) {
	if next < len(nodes) && nodes[next] == at {
		return weights[next], next + 1
	}
	if at.Count <= 1 {
		return 0, next
	}
	left, right := at.Split()
	l, next := treeWeight(left, nodes, weights, next)
	r, next := treeWeight(right, nodes, weights, next)
	return l + r, next
}
