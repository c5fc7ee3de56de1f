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

	slots [][]rows // [slot][table]
	spare []rows   // [table] output of the next addition
	node  [][]rows // [hosted node][table] complete sums of the batch

	now   laneSums
	given []bool // of each table: the lane gave its gradient
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

// reset starts a batch: no node has a row.
func (s *rowSums) reset() {
	for _, node := range s.node {
		for table := range node {
			node[table].set(nil, nil)
		}
	}
}

// begin starts a lane.
func (s *rowSums) begin(l laneSums) {
	s.now = l
	clear(s.given)
}

// add takes the lane's gradient of a table and adds it up the tree as far as its subtrees are complete. ids are local
// ids below count, ascending; values [len(ids), dim] is not kept.
func (s *rowSums) add(table int, ids []uint64, values []float32) error {
	if s.given[table] {
		return fmt.Errorf("row gradient of table %d is given twice for one lane: coalesce it into one", table)
	}
	s.given[table] = true
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
	for table := range s.dims {
		if !s.given[table] {
			if err := s.add(table, nil, nil); err != nil {
				return err
			}
		}
		if s.now.closes >= 0 {
			s.node[s.now.closes][table], s.slots[0][table] = s.slots[0][table], s.node[s.now.closes][table]
		}
	}
	return nil
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
	return sums, nil
}
