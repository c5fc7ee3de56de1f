package ps

import (
	"gradbus/cuda"
	"gradbus/round"
	"gradbus/schema"
)

// closeTable merges the contributions to one table and stages its new rows.
func (s *Shard) closeTable(t *table, weight float32) error {
	r := &s.sparse
	r.gather(t.id, s.job.Wire.DType())
	var keys []uint64
	var grads cuda.Vector
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
		keys, grads = r.outKeys[:n], cuda.Float32s(r.outRows[:n*t.dim])
	}
	defer r.letGo()
	return s.stageRows(t, keys, grads, weight)
}

// letGo forgets the payloads of the terms.
func (r *sparseRound) letGo() {
	clear(r.merge)
	r.lastKeys, r.lastRows = nil, cuda.Vector{}
}

// stageRows runs the optimizer on the rows of keys, from the table into the staged rows.
func (s *Shard) stageRows(t *table, keys []uint64, grads cuda.Vector, weight float32) error {
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
		Grad: grads, Out: cuda.Float32s(st.rows),
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
func (r *sparseRound) gather(id schema.Table, dtype schema.DType) {
	r.merge = r.merge[:0]
	total := 0
	for i := range r.terms {
		total += r.terms[i].spread(id)
	}
	r.keys, r.rows, r.halves = grown(r.keys, total)[:0], r.rows[:0], r.halves[:0]
	for i := range r.terms {
		t := &r.terms[i]
		if t.weight == 0 {
			continue // lanes without samples are absent
		}
		var keys []uint64
		var rows cuda.Vector
		if t.spread(id) == 0 {
			for _, p := range t.parts {
				if part := p.section(id); len(part.Keys) > 0 {
					keys, rows = part.Keys, round.Rows(dtype, &part)
				}
			}
		} else {
			keys, rows = r.join(t, id, dtype)
		}
		if len(keys) > 0 {
			r.lastKeys, r.lastRows = keys, rows
			r.merge = append(r.merge, cuda.RowsTerm{First: uint16(t.node.First), Count: t.node.Count, Keys: cuda.Uint64s(keys), Rows: rows})
		}
	}
}

// join puts the chunks of one term together.
func (r *sparseRound) join(t *sparseTerm, id schema.Table, dtype schema.DType) ([]uint64, cuda.Vector) {
	firstKey, floats, halves := len(r.keys), len(r.rows), len(r.halves)
	for _, p := range t.parts {
		part := p.section(id)
		r.keys, r.rows, r.halves = append(r.keys, part.Keys...), append(r.rows, part.Rows...), append(r.halves, part.Halves...)
	}
	return r.keys[firstKey:], round.Vector(dtype, r.rows[floats:], r.halves[halves:])
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
func (p *sparsePart) section(id schema.Table) schema.Part {
	for _, part := range p.view.Parts() {
		if part.Table == id {
			return part
		}
	}
	return schema.Part{}
}
