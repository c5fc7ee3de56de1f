package trainer

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/schema"
)

// rowSums adds the sparse gradients of the hosted lanes up the lane tree, table by table. Rows are named by local ids,
// whose order is the order of the keys, so that sums over local ids are sums over keys.
type rowSums struct {
	backend cuda.Backend
	lanes   int // of the job
	dims    []int

	dtype   schema.DType // in which sums travel
	rounder rounder
	bags    *bagGrads           // where they may travel as bags; else nil
	count   func(table int) int // of local ids

	slots [][]rows // [slot][table]
	spare []rows   // [table] output of the next addition
	node  [][]rows // [hosted node][table] complete sums of the batch

	now   laneSums
	at    int    // number of the hosted lane
	given []bool // of each table: the lane gave its gradient

	single []int64 // 0, 1, 2, ...
	keys   []int64 // scratch of expand
	ids    []uint64
	values []float32
}

// rows are coalesced gradients of one table: local ids, ascending and distinct, and a row of values for each.
type rows struct {
	ids    []uint64
	values []float32
	halves []uint16 // values as they travel, where that is in 16 bits
}

func (r *rows) set(ids []uint64, values []float32) {
	r.ids, r.values = append(r.ids[:0], ids...), append(r.values[:0], values...)
}

func newRowSums(backend cuda.Backend, lanes, slots, nodes int, dims []int) *rowSums {
	s := &rowSums{backend: backend, dtype: schema.DTypeFloat32, rounder: newRounder(backend), lanes: lanes, dims: dims,
		slots: make([][]rows, slots), spare: make([]rows, len(dims)), node: make([][]rows, nodes), given: make([]bool, len(dims))}
	for i := range s.slots {
		s.slots[i] = make([]rows, len(dims))
	}
	for i := range s.node {
		s.node[i] = make([]rows, len(dims))
	}
	return s
}

// singles are the offsets of n bags of one.
func (s *rowSums) singles(n int) []int64 {
	for len(s.single) <= n {
		s.single = append(s.single, int64(len(s.single)))
	}
	return s.single[:n+1]
}

// reset starts a batch: no node has a row.
func (s *rowSums) reset() {
	for _, node := range s.node {
		for table := range node {
			node[table].set(nil, nil)
		}
	}
	if s.bags != nil {
		s.bags.reset()
	}
}

// begin starts hosted lane number at.
func (s *rowSums) begin(at int, l laneSums) {
	s.at, s.now = at, l
	clear(s.given)
	if s.bags != nil {
		s.bags.begin(at, l)
	}
}

func (s *rowSums) give(table int) error {
	if s.given[table] {
		return fmt.Errorf("gradient of table %d is given twice for one lane: coalesce it into one", table)
	}
	s.given[table] = true
	return nil
}

// add takes the lane's gradient of a table and adds it up the tree as far as its subtrees are complete. ids are local
// ids below count, ascending; values [len(ids), dim] is not kept.
func (s *rowSums) add(table int, ids []uint64, values []float32) error {
	if err := s.give(table); err != nil {
		return err
	}
	if s.bags != nil {
		b := &s.bags.lanes[s.at][table]
		b.given = givenRows
		b.rows.set(ids, values)
		return nil
	}
	return s.climb(table, ids, values)
}

// addBags takes the lane's gradient of a table by its bags. ids, the lane's local ids, must stay as they are until the
// batch has been sent; offsets and grad are not kept.
func (s *rowSums) addBags(table int, mode cuda.Mode, ids, offsets []int64, grad []float32) error {
	if err := s.give(table); err != nil {
		return err
	}
	if s.bags != nil {
		s.bags.lanes[s.at][table].set(mode, s.dims[table], ids, offsets, grad)
		return nil
	}
	rowIDs, values, err := s.expand(table, mode, ids, offsets, grad)
	if err != nil {
		return err
	}
	return s.climb(table, rowIDs, values)
}

// expand sums bags up by row. What it returns is valid until the next call.
func (s *rowSums) expand(table int, mode cuda.Mode, ids, offsets []int64, grad []float32) ([]uint64, []float32, error) {
	dim, count := s.dims[table], s.count(table)
	room := min(len(ids), count)
	s.keys, s.values = grown(s.keys, room), grown(s.values, room*dim)
	n, err := s.backend.BagBackward(cuda.BagBackward{Dim: dim, Mode: mode, Padding: cuda.NoPadding, R: int64(count),
		IDs: cuda.Int64s(ids), Offsets: cuda.Int64s(offsets), GradOut: cuda.Float32s(grad), Keys: cuda.Int64s(s.keys), Out: cuda.Float32s(s.values)})
	if err != nil {
		return nil, nil, fmt.Errorf("sum bag gradients of table %d by row: %w", table, err)
	}
	s.ids = grown(s.ids, n)
	for i, id := range s.keys[:n] {
		s.ids[i] = uint64(id)
	}
	return s.ids, s.values[:n*dim], nil
}

// climb adds the lane's rows up the tree as far as its subtrees are complete.
func (s *rowSums) climb(table int, ids []uint64, values []float32) error {
	own := &s.slots[s.now.slot][table]
	if len(s.now.adds) == 0 {
		own.set(ids, values)
		return nil
	}
	term := rows{ids: ids, values: values}
	for _, a := range s.now.adds {
		left := &s.slots[a.into][table]
		switch {
		case len(term.ids) == 0:
		case len(left.ids) == 0:
			left.set(term.ids, term.values)
		default:
			if err := s.merge(table, a, *left, term); err != nil {
				return err
			}
			*left, s.spare[table] = s.spare[table], *left
		}
		term = *left
	}
	return nil
}

// merge writes left + right to the table's spare rows.
func (s *rowSums) merge(table int, a slotSum, left, right rows) error {
	out, n := &s.spare[table], len(left.ids)+len(right.ids)
	out.ids, out.values = grown(out.ids, n), grown(out.values, n*s.dims[table])
	n, err := s.backend.Merge(cuda.Merge{Dim: s.dims[table], Lanes: s.lanes,
		OutKeys: cuda.Uint64s(out.ids), OutRows: cuda.Float32s(out.values), Terms: []cuda.RowsTerm{
			{First: uint16(a.left.First), Count: a.left.Count, Keys: cuda.Uint64s(left.ids), Rows: cuda.Float32s(left.values)},
			{First: uint16(a.right.First), Count: a.right.Count,
				Keys: cuda.Uint64s(right.ids), Rows: cuda.Float32s(right.values)}}})
	if err != nil {
		return fmt.Errorf("add row gradients of table %d over %v and %v: %w", table, a.left, a.right, err)
	}
	out.ids, out.values = out.ids[:n], out.values[:n*s.dims[table]]
	return nil
}

// end finishes a lane: tables that it gave no gradient for have no rows of it, and a node that it closes is complete.
func (s *rowSums) end() error {
	if s.bags != nil {
		return s.endBags()
	}
	for table := range s.dims {
		if !s.given[table] {
			if err := s.climb(table, nil, nil); err != nil {
				return err
			}
		}
		if node := s.now.closes; node >= 0 {
			s.node[node][table], s.slots[0][table] = s.slots[0][table], s.node[node][table]
		}
	}
	return nil
}

// endBags decides the forms of a node that the lane closes, and adds up what travels as rows: lane after lane, each as it
// would have been when it was computed.
func (s *rowSums) endBags() error {
	g, node := s.bags, s.now.closes
	if node < 0 {
		return nil
	}
	lo, hi := g.lanesOf(node)
	for table := range s.dims {
		if g.form[node][table] = g.asBags(table, node, s.dims[table], s.count(table)); g.form[node][table] {
			continue
		}
		for at := lo; at < hi; at++ {
			if !g.there[at] {
				continue
			}
			s.now = g.plans[at]
			if err := s.replay(table, &g.lanes[at][table]); err != nil {
				return err
			}
		}
		s.node[node][table], s.slots[0][table] = s.slots[0][table], s.node[node][table]
	}
	return nil
}

// replay adds what a lane has given for a table up the tree.
func (s *rowSums) replay(table int, b *bagGrad) error {
	switch b.given {
	case givenRows:
		return s.climb(table, b.rows.ids, b.rows.values)
	case givenBags:
		ids, values, err := s.expand(table, cuda.Sum, b.ids, b.offsets, b.values)
		if err != nil {
			return err
		}
		return s.climb(table, ids, values)
	}
	return s.climb(table, nil, nil)
}

// rounded rounds the sums of a hosted node to what travels, where that has 16 bits. Rows have no error feedback: a
// residual for every row that a trainer ever touches would be as large as the table, and what a rare row is owed would be
// added many batches later, to a gradient that has nothing to do with it.
func (s *rowSums) rounded(node int) ([]rows, error) {
	sums := s.node[node]
	if s.dtype == schema.DTypeFloat32 {
		return sums, nil
	}
	for table := range sums {
		r := &sums[table]
		r.halves = grown(r.halves, len(r.values))
		if err := s.rounder.round(halfVector(s.dtype, r.halves), r.values); err != nil {
			return nil, fmt.Errorf("round %d row gradients of table %d: %w", len(r.ids), table, err)
		}
	}
	if s.bags != nil {
		return sums, s.roundBags(node)
	}
	return sums, nil
}

// roundBags rounds the bags of a hosted node.
func (s *rowSums) roundBags(node int) error {
	g := s.bags
	lo, hi := g.lanesOf(node)
	for table, asBags := range g.form[node] {
		for at := lo; at < hi && asBags; at++ {
			b := &g.lanes[at][table]
			if !g.there[at] || b.given != givenBags {
				continue
			}
			b.halves = grown(b.halves, len(b.values))
			if err := s.rounder.round(halfVector(s.dtype, b.halves), b.values); err != nil {
				return fmt.Errorf("round %d bag gradients of table %d: %w", len(b.offsets)-1, table, err)
			}
		}
	}
	return nil
}
