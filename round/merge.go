package round

import (
	"slices"

	"gradbus/cuda"
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
	outKeys  []uint64
	outRows  []float32
}

// Merge adds up the contributions to one table of the round that Next gave, along the lane tree: keys ascending and a row
// of dim values for each, undivided. Both are valid until the next Merge or Close. There are none where nobody touched
// the table.
func (s *Sparse) Merge(id schema.Table, dim int) (keys []uint64, rows cuda.Vector, err error) {
	m := &s.merge
	m.gather(s.round(s.closed), id, s.config.DType)
	defer func() { // payloads are let go
		clear(m.terms)
		m.lastKeys, m.lastRows = nil, cuda.Vector{}
	}()
	switch len(m.terms) {
	case 0:
		return nil, cuda.Vector{}, nil
	case 1: // a node with one present child is that child
		return m.lastKeys, m.lastRows, nil
	}
	most := 0
	for _, term := range m.terms {
		most += term.Keys.Len()
	}
	m.outKeys, m.outRows = grown(m.outKeys, most), grown(m.outRows, most*dim)
	n, err := s.config.Backend.Merge(cuda.Merge{
		Dim: dim, Lanes: s.config.Lanes, Terms: m.terms, OutKeys: cuda.Uint64s(m.outKeys), OutRows: cuda.Float32s(m.outRows),
	})
	if err != nil {
		return nil, cuda.Vector{}, err
	}
	return m.outKeys[:n], cuda.Float32s(m.outRows[:n*dim]), nil
}

// gather lists the terms of one table. A contribution in one chunk is used where it lies; one in several is put together
// first.
func (m *merging) gather(r *sparseRound, id schema.Table, dtype schema.DType) {
	m.terms = m.terms[:0]
	total := 0
	for i := range r.terms {
		total += r.terms[i].spread(id)
	}
	m.keys, m.rows, m.halves = grown(m.keys, total)[:0], m.rows[:0], m.halves[:0]
	for i := range r.terms {
		t, node := &r.terms[i], r.nodes[i]
		if r.weights[i] == 0 {
			continue // lanes without samples are absent
		}
		var keys []uint64
		var rows cuda.Vector
		if t.spread(id) == 0 {
			for k := range t.parts {
				if part := t.parts[k].section(id); len(part.Keys) > 0 {
					keys, rows = part.Keys, Rows(dtype, &part)
				}
			}
		} else {
			keys, rows = m.join(t, id, dtype)
		}
		if len(keys) > 0 {
			m.lastKeys, m.lastRows = keys, rows
			m.terms = append(m.terms, cuda.RowsTerm{First: uint16(node.First), Count: node.Count, Keys: cuda.Uint64s(keys), Rows: rows})
		}
	}
}

// join puts the chunks of one term together.
func (m *merging) join(t *sparseTerm, id schema.Table, dtype schema.DType) ([]uint64, cuda.Vector) {
	firstKey, floats, halves := len(m.keys), len(m.rows), len(m.halves)
	for k := range t.parts {
		part := t.parts[k].section(id)
		m.keys, m.rows, m.halves = append(m.keys, part.Keys...), append(m.rows, part.Rows...), append(m.halves, part.Halves...)
	}
	return m.keys[firstKey:], Vector(dtype, m.rows[floats:], m.halves[halves:])
}

// spread is the number of the term's keys of a table where they lie in more than one chunk, else 0.
func (t *sparseTerm) spread(id schema.Table) int {
	keys, parts := 0, 0
	for i := range t.parts {
		if own := t.parts[i].section(id).Keys; len(own) > 0 {
			keys += len(own)
			parts++
		}
	}
	if parts < 2 {
		return 0
	}
	return keys
}

// section is the part of a chunk that belongs to a table, without keys where there is none.
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
