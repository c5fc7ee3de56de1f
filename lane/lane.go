// Package lane computes the fixed binary tree over the lanes of a job. Every sum across lanes follows it. Nodes lists
// the nodes that cover the lanes of a trainer, and Share and Slice cut lanes and samples.
//
// A lane is a fixed slice of every global batch. The tree over lanes [0, n) splits at the largest power of two below n,
// and so do its parts; a node is a contiguous range of lanes. Sums that follow the tree have the same bits whichever
// trainer computed which lane. The package knows nothing of trainers, frames or numbers: it only names nodes.
package lane

import (
	"fmt"
	"math/bits"
)

// LanesMax bounds the number of lanes of a job; frames store lanes as 16 bits.
const LanesMax = 4096

// DefaultMin is the smallest number of lanes that Default returns.
const DefaultMin = 8

// Default returns the number of lanes of a job that does not set it: 8, or, with more trainers, the smallest power of
// two that is at least trainers. So 1 to 8 trainers produce the same bits, and so do 9 to 16, and 17 to 32. The work is
// balanced if the number of trainers divides the number of lanes: with seven trainers, one computes two of the eight
// lanes. trainers is 1 to LanesMax.
//
//	Default(1), Default(8), Default(9) // 8, 8, 16
func Default(trainers int) int {
	return max(DefaultMin, 1<<bits.Len(uint(max(trainers, 1)-1)))
}

// Lane is the index of a lane, from 0.
type Lane uint16

// Node is a node of the lane tree: lanes [First, First+Count).
type Node struct {
	First Lane
	Count uint16
}

func (n Node) String() string { return fmt.Sprintf("[%d,%d)", n.First, n.End()) }

// End returns the first lane after the node.
func (n Node) End() int { return int(n.First) + int(n.Count) }

// Split returns the two children of a node of at least two lanes. The left one has the largest power of two below
// n.Count lanes: a node over 3 lanes splits into 2 and 1, a node over 4 into 2 and 2.
func (n Node) Split() (left, right Node) {
	half := uint16(1) << (bits.Len16(n.Count-1) - 1)
	return Node{n.First, half}, Node{n.First + Lane(half), n.Count - half}
}

// Root returns the node over all lanes.
func Root(lanes int) Node { return Node{0, uint16(lanes)} }

// Contains reports whether m lies within n.
func (n Node) Contains(m Node) bool { return m.First >= n.First && m.End() <= n.End() }

// IsNode reports whether n is a node of the tree over the given number of lanes.
func IsNode(n Node, lanes int) bool {
	if lanes < 1 || lanes > LanesMax || n.Count == 0 || n.End() > lanes {
		return false
	}
	at := Root(lanes)
	for at != n {
		if at.Count == 1 {
			return false
		}
		left, right := at.Split()
		switch {
		case left.Contains(n):
			at = left
		case right.Contains(n):
			at = right
		default:
			return false
		}
	}
	return true
}

// Parent returns the parent of n in the tree over lanes; false for the root. n must be a node of the tree.
func Parent(n Node, lanes int) (Node, bool) {
	at := Root(lanes)
	for at != n && at.Count > 1 {
		left, right := at.Split()
		if left == n || right == n {
			return at, true
		}
		if at = right; left.Contains(n) {
			at = left
		}
	}
	return Node{}, false
}

// Nodes returns the smallest set of nodes of the tree over lanes that together are exactly [first, first+count), in
// lane order. A trainer that hosts those lanes contributes one sum for each of them.
func Nodes(first Lane, count, lanes int) []Node {
	return appendNodes(nil, Root(lanes), int(first), int(first)+count)
}

func appendNodes(to []Node, at Node, first, end int) []Node {
	switch {
	case int(at.First) >= end || at.End() <= first || at.Count == 0:
		return to
	case int(at.First) >= first && at.End() <= end:
		return append(to, at)
	}
	left, right := at.Split()
	return appendNodes(appendNodes(to, left, first, end), right, first, end)
}

// Share returns the contiguous range of lanes that trainer index of trainers hosts. The ranges of all trainers cover
// every lane once, and none is empty while trainers <= lanes.
func Share(index, trainers, lanes int) (first Lane, count int) {
	lo, hi := index*lanes/trainers, (index+1)*lanes/trainers
	return Lane(lo), hi - lo
}

// Slice returns the samples [lo, hi) of a global batch of n samples that belong to a lane. Some lanes are empty if n is
// smaller than the number of lanes.
func Slice(l Lane, lanes, n int) (lo, hi int) {
	return int(l) * n / lanes, (int(l) + 1) * n / lanes
}
