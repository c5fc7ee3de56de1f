package cuda

import "gradbus/lane"

// Sums along the lane tree. The terms are disjoint nodes of the tree in lane order, so the tree over them is known from
// the depth at which each two neighbours part: the deeper they part, the earlier they are added.

// partDepth is the depth of the smallest node of the tree that holds both a and b, where a ends before b begins.
func partDepth(a, b lane.Node, lanes int) int {
	at := lane.Root(lanes)
	for depth := 0; ; depth++ {
		left, right := at.Split()
		switch {
		case left.Contains(a) && left.Contains(b):
			at = left
		case right.Contains(a) && right.Contains(b):
			at = right
		default:
			return depth
		}
	}
}

// step of a plan: push the term with this index, or, where it is addStep, replace the two topmost sums by left + right.
type step int32

const addStep step = -1

// planner turns the depths at which neighbours part into steps. Of two neighbouring gaps one is always deeper, since
// nodes of equal depth are themselves parted by a higher one.
type planner struct {
	steps  []step
	depths []int // of the gaps between the sums that wait on the stack
}

func (p *planner) reset() { p.steps, p.depths = p.steps[:0], p.depths[:0] }

// push adds a term. depth is that of the gap to the term before it; the first term's is not looked at.
func (p *planner) push(term, depth int) {
	if len(p.steps) > 0 {
		p.fold(depth)
		p.depths = append(p.depths, depth)
	}
	p.steps = append(p.steps, step(term))
}

// fold adds up what parts deeper than depth; fold(-1) ends the plan.
func (p *planner) fold(depth int) {
	for len(p.depths) > 0 && p.depths[len(p.depths)-1] > depth {
		p.steps = append(p.steps, addStep)
		p.depths = p.depths[:len(p.depths)-1]
	}
}

// mergeScratch is the memory of sums along the tree.
type mergeScratch struct {
	plan   planner
	gaps   []int       // gaps[i] is the depth at which terms i and i+1 part
	heads  []int       // how many keys of each term are done
	active []int       // terms that have the present key
	stack  [][]float32 // sums that wait; entry i is a term's own memory or own[i]
	own    [][]float32

	quotient []float32 // a sum divided, before it is narrowed
}

// gapsOf fills gaps for n nodes.
func (m *mergeScratch) gapsOf(lanes, n int, node func(i int) lane.Node) {
	m.gaps = grow(m.gaps, max(n-1, 0))
	for i := range m.gaps {
		m.gaps[i] = partDepth(node(i), node(i+1), lanes)
	}
}

// run executes the plan over rows of n values and returns the sum, which is a term's memory or scratch.
func (m *mergeScratch) run(n int, term func(i int) Vector) []float32 {
	top := 0
	for _, s := range m.plan.steps {
		if s != addStep {
			if top == len(m.stack) {
				m.stack, m.own = append(m.stack, nil), append(m.own, nil)
			}
			m.stack[top] = floats32(term(int(s)), &m.own[top])
			top++
			continue
		}
		top--
		m.own[top-1] = grow(m.own[top-1], n)
		sum, left, right := m.own[top-1], m.stack[top-1][:n], m.stack[top][:n]
		for d := range sum {
			sum[d] = left[d] + right[d]
		}
		m.stack[top-1] = sum
	}
	sum := m.stack[0]
	clear(m.stack) // keeps no caller's memory alive
	return sum
}

// Merge: see the interface.
func (r *reference) Merge(a Merge) (int, error) {
	r.calls.n.Add(1)
	if err := a.check(); err != nil {
		return 0, err
	}
	s := r.borrow()
	defer r.giveBack(s)
	m := &s.merge
	n := m.union(a.Terms, func(int, uint64) {})
	if n > a.OutKeys.n {
		return 0, tooFew("merge", a.OutKeys.n, n)
	}
	m.gapsOf(a.Lanes, len(a.Terms), func(i int) lane.Node { return a.Terms[i].node() })
	keys := view[uint64](a.OutKeys)
	return m.union(a.Terms, func(position int, key uint64) {
		keys[position] = key
		m.plan.reset()
		for i, t := range m.active {
			depth := 0
			if i > 0 {
				depth = lowest(m.gaps[m.active[i-1]:t])
			}
			m.plan.push(t, depth)
		}
		m.plan.fold(-1)
		sum := m.run(a.Dim, func(i int) Vector {
			return a.Terms[i].Rows.Slice(m.heads[i]*a.Dim, (m.heads[i]+1)*a.Dim)
		})
		m.store(a.OutRows.Slice(position*a.Dim, (position+1)*a.Dim), sum, a.Weight)
	}), nil
}

// store divides a sum, unless weight is 0, and writes it.
func (m *mergeScratch) store(to Vector, sum []float32, weight float32) {
	switch {
	case weight == 0:
		narrow(to, sum)
	case to.dtype == Float32:
		divide(view[float32](to), sum, weight)
	default:
		m.quotient = grow(m.quotient, to.n)
		divide(m.quotient, sum, weight)
		narrow(to, m.quotient)
	}
}

// union visits the union of the terms' keys, ascending, with m.active naming the terms that have the key and m.heads
// the position of it in each of them. It returns the number of keys.
func (m *mergeScratch) union(terms []RowsTerm, visit func(position int, key uint64)) int {
	m.heads = grow(m.heads, len(terms))
	clear(m.heads)
	for position := 0; ; position++ {
		m.active = m.active[:0]
		var key uint64
		for i := range terms {
			if m.heads[i] == terms[i].Keys.n {
				continue
			}
			k := view[uint64](terms[i].Keys)[m.heads[i]]
			if len(m.active) == 0 || k < key {
				m.active, key = append(m.active[:0], i), k
			} else if k == key {
				m.active = append(m.active, i)
			}
		}
		if len(m.active) == 0 {
			return position
		}
		visit(position, key)
		for _, i := range m.active {
			m.heads[i]++
		}
	}
}

func lowest(depths []int) int {
	low := depths[0]
	for _, d := range depths[1:] {
		low = min(low, d)
	}
	return low
}

// tileValues is how much of a dense term is summed at a time, so that the waiting sums stay in the first-level cache.
const tileValues = 512

// planOf is the plan of a sum of dense terms.
func (m *mergeScratch) planOf(lanes int, terms []Term) {
	m.gapsOf(lanes, len(terms), func(i int) lane.Node { return terms[i].node() })
	m.plan.reset()
	for i := range terms {
		depth := 0
		if i > 0 {
			depth = m.gaps[i-1]
		}
		m.plan.push(i, depth)
	}
	m.plan.fold(-1)
}

// sum runs the plan over elements [lo, hi).
func (m *mergeScratch) sum(terms []Term, lo, hi int) []float32 {
	return m.run(hi-lo, func(i int) Vector { return terms[i].Values.Slice(lo, hi) })
}

// Average: see the interface.
func (r *reference) Average(a Average) error {
	r.calls.n.Add(1)
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	s.merge.planOf(a.Lanes, a.Terms)
	for lo := 0; lo < a.Out.n; lo += tileValues {
		hi := min(lo+tileValues, a.Out.n)
		s.merge.store(a.Out.Slice(lo, hi), s.merge.sum(a.Terms, lo, hi), a.Weight)
	}
	return nil
}
