package ps

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/philox"
	"gradbus/round"
	"gradbus/schema"
)

// denseRounds are the dense chunks of the buckets that this shard owns. Chunks close one by one.
//
// The result frame of a version is also where the chunk's values of that version live in mode update: the optimizer reads
// one frame and writes another, and publishing needs no copy.
type denseRounds struct {
	*round.Dense
	first map[schema.Bucket]int // index of the bucket's chunk 0; looked up, never ranged over
	owned []denseOwned          // by chunk; what the optimizer keeps
}

// denseOwned is what the optimizer keeps of a chunk. Index v%2 is version v.
type denseOwned struct {
	momentum [2][]float32
	slots    [2][]cuda.Slot // from each version to the other
	stepped  [2]bool        // momentum holds the outcome of at least one step
}

// makeDense builds the rounds of every chunk and, in mode update, draws version 0 into them.
func (s *Shard) makeDense() (err error) {
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
	head := schema.Head{Job: s.run, Generation: s.generation}
	if s.job.Apply == schema.ApplyUpdate {
		head.Flags = schema.FlagParameters
	}
	s.dense.Dense, err = round.NewDense(round.DenseConfig{
		Backend: s.backend, Lanes: s.job.Lanes, Ahead: s.job.Ahead, Head: head, Held: s.held, Chunks: chunks,
	})
	if err != nil || s.job.Apply != schema.ApplyUpdate {
		return err
	}
	s.dense.owned = make([]denseOwned, len(chunks))
	for i := range chunks {
		if err := s.makeMomentum(&s.dense.owned[i], chunks[i].Elements); err != nil {
			return fmt.Errorf("bucket %d chunk %d: %w", chunks[i].Bucket, chunks[i].Chunk, err)
		}
	}
	return s.drawParameters()
}

// makeMomentum allocates what the optimizer keeps of two versions of a chunk.
func (s *Shard) makeMomentum(o *denseOwned, elements int) (err error) {
	if s.sgd.Momentum == 0 {
		return nil
	}
	for v := range o.momentum {
		if o.momentum[v], err = s.alloc(elements); err != nil {
			return err
		}
	}
	for v := range o.slots {
		o.slots[v] = []cuda.Slot{{Name: "momentum", Before: cuda.Float32s(o.momentum[v]), After: cuda.Float32s(o.momentum[1-v])}}
	}
	return nil
}

// drawParameters draws version 0 of every parameter that has a part here, and puts the parts in their chunks.
func (s *Shard) drawParameters() error {
	var tensor []float32
	for i, p := range s.job.Parameters {
		drawn := false
		for _, span := range s.place.Spans(i) {
			first, here := s.dense.first[span.Bucket]
			if !here {
				continue
			}
			if !drawn {
				tensor, drawn = grown(tensor, p.Elements()), true
				if err := philox.FillTensor(tensor, p.Init.Kind, p.Init.Scale, s.job.Seed, p.Name); err != nil {
					return fmt.Errorf("initial values of parameter %q: %w", p.Name, err)
				}
			}
			s.putInitial(first, span, tensor[span.From:span.From+span.Elements])
		}
	}
	return nil
}

// putInitial puts a stretch of a bucket into version 0 of the bucket's chunks, of which first is the first.
func (s *Shard) putInitial(first int, span schema.Span, values []float32) {
	for at := span.Offset; len(values) > 0; {
		full := s.dense.Chunk(first).Elements // of every chunk but the last
		i := first + at/full
		n := copy(s.dense.Result(i, 0)[at-int(s.dense.Chunk(i).Offset):], values)
		at, values = at+n, values[n:]
	}
}

// chunk is the index of the chunk that a frame names, which CheckFrame has found to be on this shard.
func (s *Shard) chunk(h *schema.Head) int { return s.dense.first[h.Bucket] + int(h.Chunk) }

// stepDense takes one node's sum over one chunk. The chunk closes when its nodes cover all lanes.
func (s *Shard) stepDense(host int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	ahead, refused := s.reach(h.Batch)
	if refused != nil {
		return refused, nil
	}
	if err := s.place.CheckFrame(v, s.index); err != nil {
		return refuseFrame(err), nil
	}
	if refused = round.CheckSender(&s.hosts[host], s.job.Lanes, h); refused != nil {
		return refused, nil
	}
	c := round.Contribution{
		Batch: h.Batch, Chunk: s.chunk(h), Node: h.Node, Weight: h.Weight, Values: round.Values(v),
		Host: host, Bytes: int64(len(v.Bytes())), Payload: payload,
	}
	if ahead == 0 {
		if refused = s.dense.Check(&c, &s.weight); refused != nil {
			return refused, nil
		}
	}
	if refused = s.checkStaged(c.Bytes); refused != nil {
		return refused, nil
	}
	if refused = s.dense.CheckFinite(&c); refused != nil {
		return refused, nil
	}
	if ahead == 1 {
		s.advance()
	}
	s.kept = true
	if err := s.dense.Add(&c, &s.weight); err != nil {
		return nil, err
	}
	return nil, s.closeDense(c.Chunk)
}

// closeDense computes and publishes the outcome of every round of a chunk whose turn it is and whose lanes are all there.
func (s *Shard) closeDense(i int) error {
	for {
		c, ok := s.dense.Next(i)
		if !ok {
			return nil
		}
		if err := s.outcome(i, &c); err != nil {
			return err
		}
		frame := s.dense.Close(i, &s.weight, c.Weight)
		s.open--
		s.outputs = append(s.outputs, Output{Kind: schema.KindMean, To: schema.All, Batch: c.Batch, Bucket: s.dense.Chunk(i).Bucket, Frame: frame})
	}
}

// outcome computes what a round makes of a chunk into the frame of the next version.
func (s *Shard) outcome(i int, c *round.Closing) error {
	now, out := s.dense.Result(i, c.Batch), s.dense.Result(i, c.Batch+1)
	switch {
	case s.job.Apply == schema.ApplyUpdate && c.Weight == 0:
		o, next := &s.dense.owned[i], (c.Batch+1)%2
		copy(out, now)
		copy(o.momentum[next], o.momentum[c.Batch%2])
		o.stepped[next] = o.stepped[c.Batch%2]
		return nil
	case s.job.Apply == schema.ApplyUpdate:
		return s.updateDense(i, c, now, out)
	case c.Weight == 0:
		clear(out)
		return nil
	}
	return s.backend.Average(cuda.Average{Lanes: s.job.Lanes, Weight: float32(c.Weight), Terms: c.Terms, Out: cuda.Float32s(out)})
}

// updateDense adds up what is left of the sum and runs the optimizer, which divides once, from one version to the next in
// one pass.
func (s *Shard) updateDense(i int, c *round.Closing, now, out []float32) error {
	o := &s.dense.owned[i]
	o.stepped[(c.Batch+1)%2] = true
	return s.backend.AverageApply(cuda.AverageApply{
		Lanes: s.job.Lanes, Optimizer: s.optimizer, Weight: float32(c.Weight), First: !o.stepped[c.Batch%2], Terms: c.Terms,
		Slots: o.slots[c.Batch%2], Param: cuda.Float32s(now), Out: cuda.Float32s(out),
	})
}

// meanHead is the head of a result of the batch under way. Its node is the whole tree.
func (s *Shard) meanHead(bucket schema.Bucket, total float64) schema.Head {
	return schema.Head{
		Kind: schema.KindMean, Job: s.run, Generation: s.generation, Batch: s.batch, Bucket: bucket, Chunks: 1,
		Node: lane.Root(s.job.Lanes), Lanes: uint16(s.job.Lanes), DType: schema.DTypeFloat32, Weight: total,
	}
}
