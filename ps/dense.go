package ps

import (
	"context"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/round"
	"gradbus/schema"
	"gradbus/shard/state"
)

// denseOwner is what a shard makes of the dense chunks that it owns. Chunks close one by one.
//
// The result frame of a version is also where the chunk's values of that version live in mode update: the optimizer reads
// one frame and writes another, and publishing needs no copy.
type denseOwner struct {
	first   map[schema.Bucket]int // index of the bucket's chunk 0; looked up, never ranged over
	results *round.Results
	state   *state.Dense // nil where the trainers have it
}

// ownedChunks lists the chunks of the buckets that this shard owns.
func (s *Shard) ownedChunks() []round.Chunk {
	s.dense.first = map[schema.Bucket]int{}
	var chunks []round.Chunk
	for _, b := range s.place.Buckets {
		if s.place.ShardOfBucket(b.ID) != s.index {
			continue
		}
		s.dense.first[b.ID] = len(chunks)
		count := s.place.Chunks(b.ID)
		for i := range count {
			offset, elements := s.place.ChunkRange(b.ID, schema.Chunk(i))
			chunks = append(chunks, round.Chunk{
				Bucket: b.ID, Chunk: schema.Chunk(i), Chunks: schema.Chunk(count), Offset: uint64(offset), Elements: elements,
			})
		}
	}
	return chunks
}

// makeDense builds the frames of results and, in mode update, draws version 0 into them. Results of ahead+2 batches are
// kept: a trainer may lack as many.
func (s *Shard) makeDense(ctx context.Context, chunks []round.Chunk) error {
	head := schema.Head{Job: s.run, Generation: s.generation, Lanes: uint16(s.job.Lanes)}
	if s.place.Plan.Owner == schema.ByShards {
		head.Flags = schema.FlagParameters
	}
	if err := s.makeResults(ctx, chunks, head); err != nil {
		return err
	}
	if s.place.Plan.Owner != schema.ByShards {
		return nil
	}
	config := state.DenseConfig{Backend: s.backend, LR: &s.lr, Lanes: s.job.Lanes, Start: s.job.StartVersion(), Values: func(i int, v schema.Version) []float32 { return s.results(v).Values(i, v) }}
	for i := range chunks {
		config.Chunks = append(config.Chunks, state.PlacedChunk(s.job, s.place, chunks[i].Bucket, chunks[i].Chunk, true))
	}
	var err error
	if s.dense.state, err = state.NewDense(config); err != nil {
		return err
	}
	return s.dense.state.Draw(ctx)
}

// makeResults builds the frames of results: a ring of versions, or as many as there have to be where trainers make groups.
func (s *Shard) makeResults(ctx context.Context, chunks []round.Chunk, head schema.Head) (err error) {
	if s.place.Plan.Clock == schema.ClockGrouped {
		s.groups, err = newGrouping(ctx, s.job, func(ctx context.Context) (*round.Results, error) {
			return round.NewResults(ctx, chunks, 1, head)
		})
		return err
	}
	s.dense.results, err = round.NewResults(ctx, chunks, s.job.Ahead+2, head)
	return err
}

// results is where a version of the chunks lies.
func (s *Shard) results(v schema.Version) *round.Results {
	if s.groups != nil {
		return s.groups.results(v)
	}
	return s.dense.results
}

// chunk is the index of the chunk that a frame names, which CheckFrame has found to be on this shard.
func (s *Shard) chunk(h *schema.Head) int { return s.dense.first[h.Bucket] + int(h.Chunk) }

// stepDense takes one node's sum over one chunk. The chunk closes when its nodes cover all lanes.
func (s *Shard) stepDense(host int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	l := s.line(host)
	b, fresh, refused := s.reachRound(l, host, h.Batch)
	if refused != nil {
		return refused, nil
	}
	if err := s.place.CheckFrame(v, s.index); err != nil {
		return schema.Refusing(err), nil
	}
	if refused = round.CheckSender(&s.hosts[host], s.job.Lanes, h); refused != nil {
		return refused, nil
	}
	c := round.Contribution{
		Batch: b, Chunk: s.chunk(h), Node: h.Node, Weight: h.Weight, Values: round.Values(v),
		Host: host, Bytes: int64(len(v.Bytes())), Payload: payload,
	}
	if !fresh {
		if refused = l.dense.Check(&c, l.weight(b)); refused != nil {
			return refused, nil
		}
	}
	if refused = s.checkStaged(c.Bytes); refused != nil {
		return refused, nil
	}
	if refused = l.dense.CheckFinite(&c); refused != nil {
		return refused, nil
	}
	s.takeUp(l, host, b, fresh)
	s.kept = true
	if err := l.dense.Add(&c, l.weight(b)); err != nil {
		return nil, err
	}
	return nil, s.closeDense(l, c.Chunk)
}

// closeDense computes and publishes the outcome of every round of a chunk whose turn it is and whose lanes are all there.
func (s *Shard) closeDense(l *timeline, i int) error {
	for {
		c, ok := l.dense.Next(i)
		if !ok {
			return nil
		}
		if s.groups != nil {
			if err := s.beginVersion(c.Batch); err != nil {
				return err
			}
		}
		if err := s.outcome(i, &c); err != nil {
			return l.dense.NameMismatch(i, err)
		}
		l.dense.Finish(i, l.weight(c.Batch), c.Weight)
		frame, bucket := s.sealDense(i, c.Batch, c.Weight), l.dense.Chunk(i).Bucket
		s.closed(l, c.Batch)
		if s.groups != nil {
			s.answerGroup(l, c.Batch, bucket, frame)
			continue
		}
		s.outputs = append(s.outputs, Output{Kind: schema.KindMean, To: s.audience(l), Batch: c.Batch, Bucket: bucket, Frame: frame})
	}
}

// audience is whom the results of a timeline are for.
func (s *Shard) audience(l *timeline) schema.Member {
	if s.place.Plan.PerTrainer() {
		return s.hosts[l.hosts[0]].Member
	}
	return schema.All
}

// sealDense makes the newest version of a chunk the result of a batch. Its node is the whole tree, but in async and grouped,
// where the result is of some trainers' lanes and there is none.
func (s *Shard) sealDense(i int, b schema.Batch, weight float64) []byte {
	h := schema.Head{Batch: b, Weight: weight, Node: lane.Root(s.job.Lanes)}
	if s.place.Plan.Clock != schema.ClockBounded {
		h.Node = lane.Node{}
	}
	v := s.version(i, b)
	return s.results(v).Seal(i, v, h)
}

// version is what the newest outcome of a chunk made, that of a round of this batch. In async rounds of several trainers have the same
// number, and each makes a version.
func (s *Shard) version(i int, b schema.Batch) schema.Version {
	if s.dense.state != nil {
		return s.dense.state.Version(i)
	}
	return b + 1
}

// outcome computes what a round makes of a chunk, as the chunk's next version.
func (s *Shard) outcome(i int, c *round.Closing) error {
	switch {
	case s.dense.state != nil && c.Weight == 0:
		s.dense.state.Keep(i)
		return nil
	case s.dense.state != nil:
		return s.dense.state.Average(i, c.Weight, c.Terms)
	}
	v := c.Batch + 1
	out := s.results(v).Values(i, v)
	if c.Weight == 0 {
		clear(out)
		return nil
	}
	return s.backend.Average(cuda.Average{Lanes: s.job.Lanes, Weight: float32(c.Weight), Terms: c.Terms, Out: cuda.Float32s(out)})
}
