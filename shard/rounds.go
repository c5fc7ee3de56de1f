package shard

import (
	"context"
	"errors"
	"fmt"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/state"
)

// makeDense makes the state of the parameters where they are on shards, and draws version 0. The result frame of a
// version is also where the chunk's values of that version live: the optimizer reads one frame and writes another, and
// publishing needs no copy.
func (s *Shard) makeDense(ctx context.Context, chunks []round.Chunk) (err error) {
	if s.config.Placement.Plan.Owner != schema.ByShards {
		return nil
	}
	config := state.DenseConfig{Backend: s.config.Backend, LR: s.lr, Lanes: s.config.Job.Lanes,
		Start:  s.config.Job.StartVersion(),
		Values: s.values}
	for i := range chunks {
		config.Chunks = append(config.Chunks, state.PlacedChunk(s.config.Job, s.config.Placement, chunks[i].Bucket,
			chunks[i].Chunk,
			true))
	}
	if s.dense, err = state.NewDense(config); err != nil || s.config.Resumed != nil { // else there is another version
		return err
	}
	return s.dense.Draw(ctx)
}

// values is where a version of the i-th chunk lies.
func (s *Shard) values(i int, v schema.Version) []float32 { return s.clock.Results(v).Values(i, v) }

// stepDense takes one node's sum over one chunk. The chunk closes when its nodes cover all lanes.
func (s *Shard) stepDense(contributor int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	e, refused := s.clock.Reach(contributor, h.Batch)
	if refused != nil {
		return refused, nil
	}
	if refused = round.CheckSender(&s.config.Contributors[contributor], s.config.Job.Lanes, h); refused != nil {
		return refused, nil
	}
	l := e.Line
	c := round.Contribution{
		Batch: e.Round, Chunk: s.config.Placement.IndexOfChunk(h.Bucket, h.Chunk), Node: h.Node, Weight: h.Weight, Values: round.Values(v),
		Contributor: contributor, Bytes: s.bytes(s.config.Contributors[contributor].Member, v), Payload: payload,
	}
	if !e.Fresh {
		if refused = l.Dense.Check(&c, l.Weights(e.Round)); refused != nil {
			return refused, nil
		}
	}
	if refused = s.budget.check(s.held.Bytes(), c.Bytes); refused != nil {
		return refused, nil
	}
	if refused = l.Dense.CheckFinite(&c); refused != nil {
		return refused, nil
	}
	s.enter(e)
	s.kept = true
	if err := l.Dense.Add(&c, l.Weights(e.Round)); err != nil {
		return nil, err
	}
	if err := s.closeDense(l, c.Chunk); err != nil {
		return nil, err
	}
	return nil, s.closeHeld(l)
}

// closeDense computes and publishes the outcome of every round of a chunk whose turn it is and whose lanes are all
// there, but for those that wait for a copy.
func (s *Shard) closeDense(l *round.Line, i int) error {
	for {
		c, ok := l.Dense.Next(i)
		if !ok || s.holds(l, c.Batch) {
			return nil
		}
		if err := s.clock.Begin(c.Batch); err != nil {
			return err
		}
		s.closing(l, c.Batch, l.Dense.Chunk(i).Bucket)
		if err := s.outcome(i, &c); err != nil {
			return ofRound(s.config.Job, c.Batch, l.Dense.Nodes(i, c.Batch), l.Dense.NameMismatch(i, err))
		}
		l.Dense.Finish(i, l.Weights(c.Batch), c.Weight)
		v := c.Batch + 1
		if s.dense != nil {
			v = s.dense.Version(i)
		}
		frame := s.clock.Results(v).Seal(i, v, schema.Head{Batch: c.Batch, Weight: c.Weight, Node: l.Node,
			Flags: s.asksToCopy(schema.Version(c.Batch) + 1)})
		s.closed(l, c.Batch, l.Dense.Chunk(i).Bucket, frame)
	}
}

// outcome computes what a round makes of a chunk, as the chunk's next version.
func (s *Shard) outcome(i int, c *round.Closing) error {
	switch {
	case s.dense != nil && c.Weight == 0:
		s.dense.Keep(i)
		return nil
	case s.dense != nil:
		return s.dense.Average(i, c.Weight, c.Terms)
	}
	out := s.values(i, c.Batch+1)
	if c.Weight == 0 {
		clear(out)
		return nil
	}
	err := s.config.Backend.Average(cuda.Average{Lanes: s.config.Job.Lanes, Weight: float32(c.Weight), Terms: c.Terms,
		Out: cuda.Float32s(out)})
	if err != nil {
		return err
	}
	k := s.clock.Line(0).Dense.Chunk(i)
	return state.CheckFinite(s.config.Backend, out, func(at int) string {
		return "the mean gradient of " + s.config.Placement.ElementName(k.Bucket, int(k.Offset)+at)
	})
}

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
	c := round.SparseChunk{Head: *h, View: *v, Contributor: contributor, Bytes: s.bytes(s.config.Contributors[contributor].Member, v), Payload: payload}
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
	if refused = s.budget.check(s.held.Bytes(), c.Bytes); refused != nil {
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

// closeSparse closes every round whose turn it is and whose lanes are all there, and tells who takes part. The rows of
// version b are no longer needed then: each trainer has had its own before it contributed to the round, and what reads
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
			return ofRound(s.config.Job, b, l.Sparse.Nodes(b), err)
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

// ownedChunks lists the chunks that add up at an owner.
func ownedChunks(place *schema.Placement, owner int) []round.Chunk {
	var chunks []round.Chunk
	for _, c := range place.OwnedChunks(owner) {
		offset, elements := place.ChunkRange(c.Bucket, c.Chunk)
		chunks = append(chunks, round.Chunk{Bucket: c.Bucket, Chunk: c.Chunk, Chunks: schema.Chunk(place.Chunks(c.Bucket)),
			Offset: uint64(offset), Elements: elements})
	}
	return chunks
}

// ofRound says which round an outcome that is not finite is of. Other errors stay as they are.
func ofRound(job *schema.Job, b schema.Batch, lanes []lane.Node, err error) error {
	if _, ok := errors.AsType[*state.NonFiniteError](err); !ok {
		return err
	}
	return fmt.Errorf("batch %d of lanes %v: %w", job.Counted(b), lanes, err)
}
