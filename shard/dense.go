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

// ownedChunks lists the chunks that add up here.
func (s *Shard) ownedChunks() []round.Chunk {
	var chunks []round.Chunk
	for _, c := range s.config.Placement.OwnedChunks(s.config.Index) {
		offset, elements := s.config.Placement.ChunkRange(c.Bucket, c.Chunk)
		chunks = append(chunks,
			round.Chunk{Bucket: c.Bucket, Chunk: c.Chunk, Chunks: schema.Chunk(s.config.Placement.Chunks(c.Bucket)),
				Offset: uint64(offset), Elements: elements})
	}
	return chunks
}

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

// chunk is the index of the chunk that a frame names, which CheckFrame has found to be on this shard.
func (s *Shard) chunk(h *schema.Head) int { return s.config.Placement.IndexOfChunk(h.Bucket, h.Chunk) }

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
		Batch: e.Round, Chunk: s.chunk(h), Node: h.Node, Weight: h.Weight, Values: round.Values(v),
		Contributor: contributor, Bytes: s.bytes(contributor, v), Payload: payload,
	}
	if !e.Fresh {
		if refused = l.Dense.Check(&c, l.Weights(e.Round)); refused != nil {
			return refused, nil
		}
	}
	if refused = s.checkStaged(c.Bytes); refused != nil {
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
			return s.ofRound(c.Batch, l.Dense.Nodes(i, c.Batch), l.Dense.NameMismatch(i, err))
		}
		l.Dense.Finish(i, l.Weights(c.Batch), c.Weight)
		v := c.Batch + 1
		if s.dense != nil {
			v = s.version(i)
		}
		frame := s.clock.Results(v).Seal(i, v, schema.Head{Batch: c.Batch, Weight: c.Weight, Node: l.Node,
			Flags: s.asksToCopy(schema.Version(c.Batch) + 1)})
		s.closed(l, c.Batch, l.Dense.Chunk(i).Bucket, frame)
	}
}

// version is the newest version of a chunk, where the shards have it. In async rounds of several trainers have the
// same number, and each makes a version.
func (s *Shard) version(i int) schema.Version { return s.dense.Version(i) }

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

// ofRound says which round an outcome that is not finite is of. Other errors stay as they are.
func (s *Shard) ofRound(b schema.Batch, lanes []lane.Node, err error) error {
	if _, ok := errors.AsType[*state.NonFiniteError](err); !ok {
		return err
	}
	return fmt.Errorf("batch %d of lanes %v: %w", s.config.Job.Counted(b), lanes, err)
}
