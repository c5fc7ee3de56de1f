package round

import (
	"unsafe"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// A contribution in form bags is brought into form rows here, lane by lane: each distinct key gets the sum over its
// positions of its bags' gradients, in canonical order. That is what a trainer does for form rows, whose order of keys
// and positions the frames keep; so both forms give equal bits.

// expanding is scratch, reused from batch to batch.
type expanding struct {
	lanes []expanded // of the table that is merged
	used  int

	parts []schema.Part // of one lane
	one   [1]cuda.Term

	// One lane's bags of several chunks put together.
	keys    []uint64
	offsets []uint32
	rows    []float32
	halves  []uint16
}

// expanded is one lane's rows.
type expanded struct {
	keys []int64
	rows []float32
}

// Cost is how many bytes a chunk counts as in its sender's share: what it holds, or, with bags, what their rows may
// come to where that is more. So a share bounds the memory of expanding, too, which the length of a frame does not.
func (s *Sparse) Cost(c *SparseChunk) int64 {
	if c.View.Bags() == nil {
		return c.Bytes
	}
	rows := int64(0)
	for _, part := range c.View.Parts() {
		n := uint64(len(part.Keys))
		if part.Bags > 0 {
			n = min(n, s.config.tables[part.Table].Rows)
		}
		rows += int64(n) * int64(8+4*part.Dim)
	}
	return max(c.Bytes, rows)
}

// expand appends the terms of a contribution whose rows of a table travel as bags.
func (s *Sparse) expand(t *sparseTerm, id schema.Table) error {
	e := &s.merge.bags
	e.parts = e.parts[:0]
	for k := range t.parts {
		for _, part := range t.parts[k].View.Parts() {
			if part.Table != id || len(part.Keys) == 0 { // which says nothing, and has no lane
				continue
			}
			if len(e.parts) > 0 && e.parts[0].Lane != part.Lane {
				if err := s.expandParts(); err != nil {
					return err
				}
			}
			e.parts = append(e.parts, part)
		}
	}
	return s.expandParts()
}

// expandParts appends the term of the one lane whose parts have been collected.
func (s *Sparse) expandParts() error {
	e := &s.merge.bags
	keys, rows, err := s.expandLane(e.parts)
	if err != nil {
		return err
	}
	s.merge.add(lane.Node{First: e.parts[0].Lane, Count: 1}, keys, rows)
	clear(e.parts) // payloads are released
	e.parts = e.parts[:0]
	return nil
}

// expandLane sums one lane's bags up by row.
func (s *Sparse) expandLane(parts []schema.Part) ([]uint64, cuda.Vector, error) {
	e, spec := &s.merge.bags, &s.config.tables[parts[0].Table]
	keys, offsets, grad := parts[0].Keys, parts[0].Offsets, rows(s.config.dType, &parts[0])
	if len(parts) > 1 {
		e.keys, e.offsets, e.rows, e.halves = e.keys[:0], e.offsets[:0], e.rows[:0], e.halves[:0]
		for i := range parts {
			for _, at := range parts[i].Offsets {
				e.offsets = append(e.offsets, uint32(len(e.keys))+at)
			}
			e.keys, e.rows, e.halves = append(e.keys, parts[i].Keys...), append(e.rows, parts[i].Rows...),
				append(e.halves, parts[i].Halves...)
		}
		keys, offsets, grad = e.keys, e.offsets, vector(s.config.dType, e.rows, e.halves)
	}
	if e.used == len(e.lanes) {
		e.lanes = append(e.lanes, expanded{})
	}
	out := &e.lanes[e.used]
	e.used++
	room := int(min(uint64(len(keys)), spec.Rows))
	out.keys, out.rows = grown(out.keys, room), grown(out.rows, room*spec.Dim)
	n, err := s.config.backend.BagBackward(cuda.BagBackward{
		Dim: spec.Dim, Mode: cuda.Sum, Padding: cuda.NoPadding, OpenOffsets: true, R: int64(spec.Rows),
		IDs: cuda.Int64s(signed[int64](keys)), Offsets: cuda.Int32s(signed[int32](offsets)), GradOut: grad,
		Keys: cuda.Int64s(out.keys), Out: cuda.Float32s(out.rows),
	})
	if err != nil {
		return nil, cuda.Vector{}, err
	}
	return signed[uint64](out.keys[:n]), cuda.Float32s(out.rows[:n*spec.Dim]), nil
}

// signed is the same numbers under the other sign: keys, which are below 2^40, and offsets, below 2^20, are none the
// less.
func signed[To, From int32 | uint32 | int64 | uint64](s []From) []To {
	return unsafe.Slice((*To)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}

// widen makes terms float32 where rows of 16 bits meet rows that were expanded, since terms of a sum are of one type.
// It is exact, and what the sum would do.
func (s *Sparse) widen() error {
	for i := range s.merge.terms {
		t := &s.merge.terms[i]
		if t.Rows.DType() == cuda.Float32 || t.Rows.Len() == 0 {
			continue
		}
		e := &s.merge.bags
		if e.used == len(e.lanes) {
			e.lanes = append(e.lanes, expanded{})
		}
		out := &e.lanes[e.used]
		e.used++
		out.rows = grown(out.rows, t.Rows.Len())
		e.one[0] = cuda.Term{Count: 1, Values: t.Rows}
		err := s.config.backend.Average(cuda.Average{Lanes: 1, Weight: 1, Terms: e.one[:], Out: cuda.Float32s(out.rows)})
		e.one[0] = cuda.Term{}
		if err != nil {
			return err
		}
		t.Rows = cuda.Float32s(out.rows)
	}
	return nil
}
