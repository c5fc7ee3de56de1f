package ps

import (
	"gradbus/cuda"
	"gradbus/schema"
)

// closeTable merges the contributions to one table and stages its new rows.
func (s *Shard) closeTable(t *table, weight float32) error {
	r := &s.sparse
	r.gather(t.id, t.dim)
	keys, grads := []uint64(nil), []float32(nil)
	switch len(r.merge) {
	case 0:
	case 1: // a node with one present child is that child
		keys, grads = r.lastKeys, r.lastRows
	default:
		most := 0
		for _, term := range r.merge {
			most += term.Keys.Len()
		}
		r.outKeys, r.outRows = grown(r.outKeys, most), grown(r.outRows, most*t.dim)
		n, err := s.backend.Merge(cuda.Merge{
			Dim: t.dim, Lanes: s.job.Lanes, Terms: r.merge, OutKeys: cuda.Uint64s(r.outKeys), OutRows: cuda.Float32s(r.outRows),
		})
		if err != nil {
			return err
		}
		keys, grads = r.outKeys[:n], r.outRows[:n*t.dim]
	}
	defer r.letGo()
	return s.stageRows(t, keys, grads, weight)
}

// letGo forgets the payloads of the terms.
func (r *sparseRound) letGo() {
	clear(r.merge)
	r.lastKeys, r.lastRows = nil, nil
}

// stageRows runs the optimizer on the rows of keys, from the table into the staged rows.
func (s *Shard) stageRows(t *table, keys []uint64, grads []float32, weight float32) error {
	r, st, n := &s.sparse, &t.staged, len(keys)
	st.index, st.rows = grown(st.index, n), grown(st.rows, n*t.dim)
	for i, key := range keys {
		st.index[i] = int64(t.slots[key])
	}
	if n == 0 {
		return nil
	}
	a := cuda.ApplyRows{
		Dim: t.dim, Optimizer: s.optimizer, Weight: weight, Table: cuda.Float32s(t.rows), Index: cuda.Int64s(st.index),
		Grad: cuda.Float32s(grads), Out: cuda.Float32s(st.rows),
	}
	if t.momentum != nil {
		st.momentum, r.firstStep = grown(st.momentum, n*t.dim), grown(r.firstStep, n)
		for i, slot := range st.index {
			r.firstStep[i] = 1 - t.stepped[slot]
		}
		r.slots = append(r.slots[:0], cuda.Slot{Name: "momentum", Before: cuda.Float32s(t.momentum), After: cuda.Float32s(st.momentum)})
		a.Slots, a.First = r.slots, cuda.Uint8s(r.firstStep)
	}
	return s.backend.ApplyRows(a)
}

// gather lists the terms of one table in r.merge. A contribution in one chunk is used where it lies; one in several
// is put together first.
func (r *sparseRound) gather(id schema.Table, dim int) {
	r.merge = r.merge[:0]
	total := 0
	for i := range r.terms {
		total += r.terms[i].spread(id)
	}
	r.keys, r.rows = grown(r.keys, total)[:0], grown(r.rows, total*dim)[:0]
	for i := range r.terms {
		t := &r.terms[i]
		if t.weight == 0 {
			continue // lanes without samples are absent
		}
		var termKeys []uint64
		var termRows []float32
		if t.spread(id) == 0 {
			for _, p := range t.parts {
				if keys, rows := p.section(id); len(keys) > 0 {
					termKeys, termRows = keys, rows
				}
			}
		} else {
			firstKey, firstRow := len(r.keys), len(r.rows)
			for _, p := range t.parts {
				keys, rows := p.section(id)
				r.keys, r.rows = append(r.keys, keys...), append(r.rows, rows...)
			}
			termKeys, termRows = r.keys[firstKey:], r.rows[firstRow:]
		}
		if len(termKeys) > 0 {
			r.lastKeys, r.lastRows = termKeys, termRows
			r.merge = append(r.merge, cuda.RowsTerm{First: uint16(t.node.First), Count: t.node.Count,
				Keys: cuda.Uint64s(termKeys), Rows: cuda.Float32s(termRows)})
		}
	}
}

// spread is the number of the term's keys of a table where they lie in more than one chunk, else 0.
func (t *sparseTerm) spread(id schema.Table) int {
	keys, parts := 0, 0
	for i := range t.parts {
		if own, _ := t.parts[i].section(id); len(own) > 0 {
			keys += len(own)
			parts++
		}
	}
	if parts < 2 {
		return 0
	}
	return keys
}

// section is the part of a chunk that belongs to a table.
func (p *sparsePart) section(id schema.Table) ([]uint64, []float32) {
	for _, part := range p.view.Parts() {
		if part.Table == id {
			return part.Keys, part.Rows
		}
	}
	return nil, nil
}
