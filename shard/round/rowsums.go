package round

import (
	"fmt"
	"slices"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// sparseSum is the sum over a node of the tree, of every table, made of contributions that were there before the last
// of the round was. They are released.
type sparseSum struct {
	node   lane.Node
	tables []sumRows // by table
}

// sumRows are rows in memory of their own, keys ascending.
type sumRows struct {
	keys []uint64
	rows []float32
}

// combineUp adds the contribution of a node, which is complete, to its sibling where that is there too, and so on up
// the tree to the root's children.
func (s *Sparse) combineUp(r *sparseRound, node lane.Node) error {
	for {
		parent, ok := lane.Parent(node, s.config.lanes)
		if !ok || int(parent.Count) == s.config.lanes {
			return nil
		}
		left, right := parent.Split()
		if !s.there(r, left) || !s.there(r, right) {
			return nil
		}
		if err := s.addChildren(r, parent); err != nil {
			return fmt.Errorf("add rows of lanes %v and %v: %w", left, right, err)
		}
		node = parent
	}
}

// there reports that a node's rows are there: as one contribution with all its chunks, or as a sum.
func (s *Sparse) there(r *sparseRound, n lane.Node) bool {
	if at, ok := slices.BinarySearchFunc(r.nodes, n, compareNodes); ok {
		return r.complete(s, at)
	}
	return slices.ContainsFunc(r.sums, func(x *sparseSum) bool { return x.node == n })
}

// addChildren makes the sum over a node of what is there of its two children.
func (s *Sparse) addChildren(r *sparseRound, parent lane.Node) error {
	sum := s.newSum(parent)
	for id := range s.config.tables {
		t := &sum.tables[id]
		keys, rows, merged, err := s.mergeNode(r, schema.Table(id), s.config.tables[id].Dim, parent, t)
		if err != nil {
			return err
		}
		if merged {
			continue
		}
		t.keys, t.rows = append(t.keys[:0], keys...), grown(t.rows, rows.Len())
		if len(keys) == 0 {
			continue
		}
		if err := s.config.backend.Copy(cuda.Float32s(t.rows), rows); err != nil {
			return err
		}
	}
	for i, n := range r.nodes {
		if parent.Contains(n) && !r.terms[i].merged {
			t := &r.terms[i]
			s.config.held.add(t.contributor, -t.bytes)
			for k := range t.parts {
				Release(t.parts[k].Payload)
			}
			t.merged, t.parts, t.bytes = true, nil, 0 // its cost stays: it is what the sum may take
		}
	}
	r.sums = slices.DeleteFunc(r.sums, func(x *sparseSum) bool {
		if parent.Contains(x.node) {
			s.freeSum(x)
			return true
		}
		return false
	})
	at, _ := slices.BinarySearchFunc(r.sums, parent,
		func(x *sparseSum, n lane.Node) int { return compareNodes(x.node, n) })
	r.sums = slices.Insert(r.sums, at, sum)
	return nil
}

// newSum is a sum over a node, of the free list, or a new one.
func (s *Sparse) newSum(n lane.Node) *sparseSum {
	free := s.freeList(n)
	if last := len(*free) - 1; last >= 0 {
		sum := (*free)[last]
		sum.node, *free = n, (*free)[:last]
		return sum
	}
	return &sparseSum{node: n, tables: make([]sumRows, len(s.config.tables))}
}

// freeSum puts a sum of which nothing is needed any more on the free list.
func (s *Sparse) freeSum(sum *sparseSum) {
	free := s.freeList(sum.node)
	*free = append(*free, sum)
}

func (s *Sparse) freeList(n lane.Node) *[]*sparseSum {
	if int(n.Count) == s.config.lanes {
		return &s.roots
	}
	return &s.free
}

// over is the sum that a contribution was added to.
func (r *sparseRound) over(n lane.Node) *sparseSum {
	for _, sum := range r.sums {
		if sum.node.Contains(n) {
			return sum
		}
	}
	panic("round: rows were added to no sum")
}
