package shard

import (
	"fmt"

	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// stepSparse takes one chunk of one node's contribution to the round over all rows that are here. The round closes
// whole, when every lane's contribution is there with all its chunks.
func (s *Shard) stepSparse(contributor int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	e, refused := s.clock.Reach(contributor, h.Batch)
	if refused != nil {
		return refused, nil
	}
	l := e.Line
	if refused = round.CheckSender(&s.config.Contributors[contributor], s.config.Job.Lanes, h); refused != nil {
		return refused, nil
	}
	c := round.SparseChunk{Head: *h, View: *v, Contributor: contributor, Bytes: s.bytes(contributor, v), Payload: payload}
	if refused = c.Check(); refused != nil {
		return refused, nil
	}
	if !e.Fresh {
		if refused = l.Sparse.Check(&c, l.Weights(h.Batch)); refused != nil {
			return refused, nil
		}
	}
	if refused = s.CheckShare(contributor, h, l.Sparse.Cost(&c)); refused != nil {
		return refused, nil
	}
	if refused = s.checkStaged(c.Bytes); refused != nil {
		return refused, nil
	}
	if refused = l.Sparse.CheckFinite(&c); refused != nil {
		return refused, nil
	}
	s.enter(e)
	s.kept = true
	if err := l.Sparse.Add(&c, l.Weights(h.Batch)); err != nil {
		return nil, err
	}
	if err := s.closeSparse(l); err != nil {
		return nil, err
	}
	return nil, s.closeHeld(l)
}

// CheckShare refuses what does not fit its sender's share of the budget together with the sparse contributions to this
// batch that it has sent: all of them have to be here before the round closes, so waiting for room would never end.
// Dense contributions do not count: their rounds close without it, or, where a version is copied in bounded, wait for
// the sparse rounds of earlier batches alone, of which every trainer sends all before anything of a later one.
func (s *Shard) CheckShare(contributor int, h *schema.Head, bytes int64) *refusal {
	share, l := s.config.StagedBytesMax/int64(len(s.config.Contributors)), s.clock.Line(contributor)
	if h.Kind != schema.KindSparse || l.Sparse == nil || h.Batch < l.Sparse.Closed() {
		return nil
	}
	held := int64(0) // of a batch that this frame is the first of
	if h.Batch <= l.Batch() {
		held = l.Sparse.HeldOf(h.Batch, contributor)
	}
	if held+bytes <= share {
		return nil
	}
	return schema.Refuse(schema.ReasonOverBudget,
		"%d bytes after %d: a trainer's sparse gradients of one batch may take %d bytes on a shard, "+
			"its share of %d; %s", bytes, held, share, s.config.StagedBytesMax, s.config.Advice)
}

// closeSparse closes every round whose turn it is and whose lanes are all there, and tells who takes part. Nobody needs
// the rows of version b any more then: each trainer has had its own before it contributed to the round, and what reads
// besides waits until b is complete. Where others may finish a lost trainer's batch, they read the undo log.
func (s *Shard) closeSparse(l *round.Line) error {
	for {
		b, total, ok := l.Sparse.Next()
		if !ok || s.holds(l, b) {
			return nil
		}
		s.closing(l, b, s.config.Placement.SparseBucket(s.config.Index))
		frames, err := s.applyRound(l, b, total)
		s.endRound(err == nil)
		if err != nil {
			return s.ofRound(b, l.Sparse.Nodes(b), err)
		}
		if s.config.Journal != nil {
			s.config.Journal(Journal{Kind: schema.KindSparse, From: l.Whose, Batch: b})
		}
		l.Sparse.Close(l.Weights(b), total)
		s.closedRows(l, b, frames)
	}
}

// applyRound merges the contributions of a round, runs the optimizer on the rows that they touch, and makes its result.
func (s *Shard) applyRound(l *round.Line, b schema.Batch, total float64) ([]*schema.Frame, error) {
	for id, t := range s.tables {
		if t == nil || total == 0 {
			continue
		}
		_, dim := s.config.Placement.Columns(schema.Table(id), s.config.Index)
		keys, rows, weight, err := l.Sparse.Merge(schema.Table(id), dim, total)
		if err == nil {
			err = t.Apply(state.RowGradient{Keys: keys, Sums: rows, Weight: weight, Scale: 1})
		}
		if err != nil {
			return nil, err
		}
	}
	frames, err := l.Means.Make(l.Sparse, b, total, s.asksToCopy(schema.Version(b)+1))
	if err == nil {
		err = s.checkMeans(frames)
	}
	return frames, err
}

// checkMeans checks the means of rows that trainers keep.
func (s *Shard) checkMeans(frames []*schema.Frame) error {
	for _, f := range frames {
		err := state.CheckFinite(s.config.Backend, f.Float32s(), func(at int) string {
			v := f.View()
			for _, part := range v.Parts() {
				if n := len(part.Keys) * part.Dim; at >= n {
					at -= n
					continue
				}
				return fmt.Sprintf("the mean gradient of table %q, row %d, column %d", s.config.Job.Tables[part.Table].Name,
					part.Keys[at/part.Dim], at%part.Dim)
			}
			return "a mean gradient"
		})
		if err != nil {
			return err
		}
	}
	return nil
}
