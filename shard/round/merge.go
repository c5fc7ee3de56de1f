package round

import (
	"fmt"
	"slices"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// merging is scratch of sums over rows, reused from batch to batch; at most the size of what a round merges.
type merging struct {
	terms    []cuda.RowsTerm
	lastKeys []uint64 // the last of terms as slices, for a round of one term
	lastRows cuda.Vector
	keys     []uint64 // chunks of one term put together
	rows     []float32
	halves   []uint16 // or these, where values are of 16 bits
	out      sumRows  // of a table when the round closes
	bags     expanding
	counted  []float32 // rows with their counts, of a table that is divided by them
	divided  []float32
}

// Merge adds up the contributions to one table of the round that Next gave, along the lane tree: keys ascending and a
// row of dim values for each, which is yet to be divided by divisor, once: by total, the round's weight. Of a table
// with PerRow each row has been divided by its own count, and divisor is 1. Keys and rows are valid until the next
// Merge or Close. There are none if the table was not touched.
func (s *Sparse) Merge(id schema.Table, dim int, total float64) (keys []uint64, rows cuda.Vector, divisor float32,
	err error) {
	perRow := s.config.tables[id].PerRow
	if perRow {
		dim++
	}
	keys, rows, _, err = s.mergeNode(s.round(s.closed), id, dim, lane.Root(s.config.lanes), &s.merge.out)
	if err != nil || !perRow {
		return keys, rows, float32(total), err
	}
	m := &s.merge
	m.counted, m.divided = grown(m.counted, rows.Len()), grown(m.divided, len(keys)*(dim-1))
	if err := s.config.backend.Copy(cuda.Float32s(m.counted), rows); err != nil {
		return nil, cuda.Vector{}, 0, err
	}
	divideByCounts(m.divided, m.counted, dim-1)
	return keys, cuda.Float32s(m.divided), 1, nil
}

// divideByCounts divides rows of dim values by the count behind each.
func divideByCounts(to, counted []float32, dim int) {
	for ; len(counted) > 0; to, counted = to[dim:], counted[dim+1:] {
		count := counted[dim]
		for i, v := range counted[:dim] {
			to[i] = v / count
		}
	}
}

// checkCounts refuses rows whose count is none.
func (s *Sparse) checkCounts(c *SparseChunk) *schema.FrameError {
	for _, part := range c.View.Parts() {
		spec := &s.config.tables[part.Table]
		if !spec.PerRow {
			continue
		}
		for i, key := range part.Keys {
			if n := part.Rows[(i+1)*part.Dim-1]; n < 1 || n != float32(int64(n)) {
				return schema.Refuse(schema.ReasonWrongShape,
					"key %d of table %q, lanes %v, with count %v: want a number of at least 1",
					key, spec.Name, c.Head.Node, n)
			}
		}
	}
	return nil
}

// mergeNode is Merge over one node of the tree, whose lanes are there as far as the round needs them. Where there is
// anything to add up, the outcome is merged into the memory of out; else it lies where it came in.
func (s *Sparse) mergeNode(r *sparseRound, id schema.Table, dim int, at lane.Node, out *sumRows) (keys []uint64,
	rows cuda.Vector, merged bool, err error) {
	m := &s.merge
	defer func() { // payloads are released
		clear(m.terms)
		m.lastKeys, m.lastRows = nil, cuda.Vector{}
	}()
	if err := s.gather(r, id, at); err != nil {
		return nil, cuda.Vector{}, false, err
	}
	switch len(m.terms) {
	case 0:
		return nil, cuda.Vector{}, false, nil
	case 1: // a node with one present child is that child
		return m.lastKeys, m.lastRows, false, nil
	}
	most := 0
	for _, term := range m.terms {
		most += term.Keys.Len()
	}
	out.keys, out.rows = grown(out.keys, most), grown(out.rows, most*dim)
	n, err := s.config.backend.Merge(cuda.Merge{
		Dim: dim, Lanes: s.config.lanes, Terms: m.terms, OutKeys: cuda.Uint64s(out.keys), OutRows: cuda.Float32s(out.rows),
	})
	if err != nil {
		return nil, cuda.Vector{}, false, cuda.NameMismatch(err, func(e *cuda.MismatchError) string {
			if e.Key < 0 {
				return fmt.Sprintf("table %q", s.config.tables[id].Name)
			}
			return e.InTable(s.config.tables[id].Name, uint64(e.Key))
		})
	}
	out.keys, out.rows = out.keys[:n], out.rows[:n*dim]
	return out.keys, cuda.Float32s(out.rows), true, nil
}

// gather lists the terms of one table below a node. A contribution in one chunk is used where it lies; one in several
// is put together first, and bags are expanded.
func (s *Sparse) gather(r *sparseRound, id schema.Table, at lane.Node) error {
	m, dtype := &s.merge, s.config.dType
	m.terms = m.terms[:0]
	total := 0
	for i := range r.terms {
		total += r.terms[i].spread(id)
	}
	m.keys, m.rows, m.halves, m.bags.used = grown(m.keys, total)[:0], m.rows[:0], m.halves[:0], 0
	var last *sparseSum
	for i := range r.terms {
		t := &r.terms[i]
		if t.merged && at.Contains(r.nodes[i]) {
			if sum := r.over(r.nodes[i]); sum != last {
				last = sum
				m.addSum(sum, id)
			}
			continue
		}
		if r.weights[i] == 0 || !at.Contains(r.nodes[i]) {
			continue // lanes without samples are absent
		}
		switch first, chunks := t.first(id); {
		case len(first.Keys) == 0:
		case first.Bags > 0:
			if err := s.expand(t, id); err != nil {
				return err
			}
		case chunks == 1:
			m.add(r.nodes[i], first.Keys, rows(dtype, &first))
		default:
			keys, rows := m.join(t, id, dtype)
			m.add(r.nodes[i], keys, rows)
		}
	}
	if m.bags.used > 0 && len(m.terms) > 1 {
		return s.widen()
	}
	return nil
}

func (m *merging) add(n lane.Node, keys []uint64, rows cuda.Vector) {
	m.lastKeys, m.lastRows = keys, rows
	m.terms = append(m.terms, cuda.RowsTerm{First: uint16(n.First), Count: n.Count, Keys: cuda.Uint64s(keys), Rows: rows})
}

func (m *merging) addSum(sum *sparseSum, id schema.Table) {
	if t := &sum.tables[id]; len(t.keys) > 0 {
		m.add(sum.node, t.keys, cuda.Float32s(t.rows))
	}
}

// join puts the chunks of one term together.
func (m *merging) join(t *sparseTerm, id schema.Table, dtype schema.DType) ([]uint64, cuda.Vector) {
	firstKey, floats, halves := len(m.keys), len(m.rows), len(m.halves)
	for k := range t.parts {
		part := t.parts[k].section(id)
		m.keys, m.rows, m.halves = append(m.keys, part.Keys...), append(m.rows, part.Rows...),
			append(m.halves, part.Halves...)
	}
	return m.keys[firstKey:], vector(dtype, m.rows[floats:], m.halves[halves:])
}

// spread is the number of the term's keys of a table where they lie in more than one chunk, else 0.
func (t *sparseTerm) spread(id schema.Table) int {
	if first, chunks := t.first(id); chunks < 2 || first.Bags > 0 {
		return 0
	}
	keys := 0
	for i := range t.parts {
		keys += len(t.parts[i].section(id).Keys)
	}
	return keys
}

// first is the term's first part of a table, and in how many chunks there are some.
func (t *sparseTerm) first(id schema.Table) (first schema.Part, chunks int) {
	for i := range t.parts {
		if own := t.parts[i].section(id); len(own.Keys) > 0 {
			if chunks++; chunks == 1 {
				first = own
			}
		}
	}
	return first, chunks
}

// section is a chunk's first part of a table, without keys where there is none. In form rows it is the only one.
func (c *SparseChunk) section(id schema.Table) schema.Part {
	for _, part := range c.View.Parts() {
		if part.Table == id {
			return part
		}
	}
	return schema.Part{}
}

// grown gives n elements that reuse s where it is large enough. They are what they happen to be.
func grown[T any](s []T, n int) []T {
	if cap(s) >= n {
		return s[:n]
	}
	return slices.Grow(s[:0], n)[:n]
}
