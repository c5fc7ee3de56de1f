package ps

import (
	"fmt"
	"slices"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/philox"
	"gradbus/schema"
)

// denseRounds are the dense chunks of the buckets that this shard owns. Chunks close one by one.
type denseRounds struct {
	chunks []denseChunk
	first  map[schema.Bucket]int // index in chunks of the bucket's chunk 0; looked up, never ranged over
	terms  []cuda.Term           // scratch
}

// denseChunk is a round over one chunk of a bucket.
//
// The result frame of version v, v%2 naming which, is also where the values of version v live in mode update: the
// optimizer reads one frame and writes the other, and publishing needs no copy.
type denseChunk struct {
	bucket   schema.Bucket
	chunk    schema.Chunk
	chunks   schema.Chunk
	offset   uint64 // of the chunk's first element within its bucket
	elements int

	closed bool
	nodes  []lane.Node // that have contributed, in lane order; kept after closing so that repeats are known
	parts  []densePart // of the same index; nil after closing

	result   [2]*schema.Frame
	sealed   [2][]byte // result as published, nil before the first batch
	momentum [2][]float32
	slots    [2][]cuda.Slot // of the optimizer, from each version to the other
	stepped  [2]bool        // momentum holds the outcome of at least one step
}

type densePart struct {
	values  []float32 // within the received payload; may be empty where the weight is 0
	weight  float64
	host    int   // who sent it
	bytes   int64 // of the payload
	payload Payload
}

// makeDense builds a frame pair for every chunk and, in mode update, draws version 0 into them.
func (s *Shard) makeDense() error {
	s.dense.first = map[schema.Bucket]int{}
	for _, b := range s.place.Buckets {
		if s.place.ShardOfBucket(b.ID) != s.index {
			continue
		}
		s.dense.first[b.ID] = len(s.dense.chunks)
		count := s.place.Chunks(b.ID)
		for i := range count {
			offset, elements := s.place.ChunkRange(b.ID, schema.Chunk(i))
			c := denseChunk{
				bucket: b.ID, chunk: schema.Chunk(i), chunks: schema.Chunk(count), offset: uint64(offset), elements: elements,
			}
			if err := s.makeVersions(&c); err != nil {
				return fmt.Errorf("bucket %d chunk %d: %w", b.ID, i, err)
			}
			s.dense.chunks = append(s.dense.chunks, c)
		}
	}
	if s.job.Apply != schema.ApplyUpdate {
		return nil
	}
	return s.drawParameters()
}

// makeVersions allocates what a chunk holds of two versions.
func (s *Shard) makeVersions(c *denseChunk) (err error) {
	for v := range c.result {
		c.result[v], err = schema.NewFrame(schema.Layout{Kind: schema.KindMean, Values: 4 * c.elements})
		if err != nil {
			return err
		}
		if s.job.Apply == schema.ApplyUpdate && s.sgd.Momentum != 0 {
			if c.momentum[v], err = s.alloc(c.elements); err != nil {
				return err
			}
		}
	}
	if c.momentum[0] != nil {
		for v := range c.slots {
			c.slots[v] = []cuda.Slot{{Name: "momentum", Before: cuda.Float32s(c.momentum[v]), After: cuda.Float32s(c.momentum[1-v])}}
		}
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
		full := s.dense.chunks[first].elements // of every chunk but the last
		c := &s.dense.chunks[first+at/full]
		n := copy(c.result[0].Float32s()[at-int(c.offset):], values)
		at, values = at+n, values[n:]
	}
}

func (d *denseRounds) reset() {
	for i := range d.chunks {
		c := &d.chunks[i]
		c.closed, c.nodes = false, c.nodes[:0]
	}
}

// chunk is the chunk that a frame names, which CheckFrame has found to be on this shard.
func (s *Shard) chunk(h *schema.Head) *denseChunk {
	return &s.dense.chunks[s.dense.first[h.Bucket]+int(h.Chunk)]
}

// stepDense takes one node's sum over one chunk. The chunk closes when its nodes cover all lanes.
func (s *Shard) stepDense(host int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	ahead, refused := s.reach(h.Batch)
	if refused != nil {
		return refused, nil
	}
	if err := s.place.CheckFrame(v, s.index); err != nil {
		return refuseFrame(err), nil
	}
	c := s.chunk(h)
	node, refused := s.checkContribution(host, h)
	if refused != nil {
		return refused, nil
	}
	values, at := v.Float32s(), 0
	if ahead == 0 {
		if at, refused = place(c.nodes, node); refused != nil {
			return refused, nil
		}
		if refused = s.weight.check(node, h.Weight); refused != nil {
			return refused, nil
		}
		if refused = s.checkDenseTotal(c, at, node, h.Weight); refused != nil {
			return refused, nil
		}
	}
	bytes := int64(len(v.Bytes()))
	if refused = s.checkStaged(bytes); refused != nil {
		return refused, nil
	}
	if i := s.backend.FirstNonFinite(cuda.Float32s(values)); i >= 0 {
		return refuse(schema.ReasonNonFinite, "element %d of bucket %d, lanes %v, is %v",
			c.offset+uint64(i), c.bucket, node, values[i]), nil
	}
	if ahead == 1 {
		s.advance()
	}
	s.weight.note(node, h.Weight)
	c.nodes = slices.Insert(c.nodes, at, node)
	c.parts = slices.Insert(c.parts, at, densePart{values, h.Weight, host, bytes, payload})
	s.hold(host, bytes)
	s.kept = true
	if covered(c.nodes, 0, s.job.Lanes) < s.job.Lanes {
		return nil, nil
	}
	return nil, s.closeDense(c)
}

// checkDenseTotal looks ahead: where the node completes the chunk, the weights must add up as in other rounds.
func (s *Shard) checkDenseTotal(c *denseChunk, at int, node lane.Node, weight float64) *refusal {
	if covered(c.nodes, 0, s.job.Lanes)+int(node.Count) < s.job.Lanes {
		return nil
	}
	nodes := slices.Insert(slices.Clone(c.nodes), at, node)
	total := treeWeight(s.job.Lanes, nodes, func(i int) float64 {
		switch {
		case i < at:
			return c.parts[i].weight
		case i == at:
			return weight
		}
		return c.parts[i-1].weight
	})
	return s.weight.checkTotal(total)
}

// closeDense computes the chunk's outcome into the frame of the next version, and publishes it.
func (s *Shard) closeDense(c *denseChunk) error {
	total := treeWeight(s.job.Lanes, c.nodes, func(i int) float64 { return c.parts[i].weight })
	now, next := s.batch%2, (s.batch+1)%2
	out := c.result[next].Float32s()
	var err error
	switch {
	case s.job.Apply == schema.ApplyUpdate && total == 0:
		copy(out, c.result[now].Float32s())
		copy(c.momentum[next], c.momentum[now])
		c.stepped[next] = c.stepped[now]
	case s.job.Apply == schema.ApplyUpdate:
		err = s.updateDense(c, float32(total), out)
	case total == 0:
		clear(out)
	default:
		err = s.averageDense(c, float32(total), out)
	}
	if err != nil {
		return err
	}
	s.weight.noteTotal(total)
	for _, p := range c.parts {
		s.hold(p.host, -p.bytes)
		release(p.payload)
	}
	clear(c.parts)
	c.parts, c.closed = c.parts[:0], true
	s.open--
	c.seal(s, next, total)
	s.outputs = append(s.outputs, Output{Kind: schema.KindMean, To: schema.All, Batch: s.batch, Bucket: c.bucket, Frame: c.sealed[next]})
	return nil
}

func (c *denseChunk) seal(s *Shard, version schema.Version, total float64) {
	h := s.meanHead(c.bucket, total)
	h.Chunk, h.Chunks, h.Offset = c.chunk, c.chunks, c.offset
	if s.job.Apply == schema.ApplyUpdate {
		h.Flags = schema.FlagParameters
	}
	c.result[version].SetHead(h)
	c.sealed[version] = c.result[version].Seal()
}

// meanHead is the head of a result of the batch under way. Its node is the whole tree.
func (s *Shard) meanHead(bucket schema.Bucket, total float64) schema.Head {
	return schema.Head{
		Kind: schema.KindMean, Job: s.run, Generation: s.generation, Batch: s.batch, Bucket: bucket, Chunks: 1,
		Node: lane.Root(s.job.Lanes), Lanes: uint16(s.job.Lanes), DType: schema.DTypeFloat32, Weight: total,
	}
}

// present are the parts that count: those of lanes that had samples.
func (s *Shard) present(c *denseChunk) []cuda.Term {
	terms := s.dense.terms[:0]
	for i, p := range c.parts {
		if p.weight > 0 {
			terms = append(terms, cuda.Term{First: uint16(c.nodes[i].First), Count: c.nodes[i].Count, Values: cuda.Float32s(p.values)})
		}
	}
	s.dense.terms = terms
	return terms
}

// averageDense sums along the lane tree and divides once.
func (s *Shard) averageDense(c *denseChunk, weight float32, out []float32) error {
	terms := s.present(c)
	defer clear(terms) // payloads are let go
	return s.backend.Average(cuda.Average{Lanes: s.job.Lanes, Weight: weight, Terms: terms, Out: cuda.Float32s(out)})
}

// updateDense sums along the lane tree and runs the optimizer, which divides once, from version batch to batch+1 in one pass.
func (s *Shard) updateDense(c *denseChunk, weight float32, out []float32) error {
	terms := s.present(c)
	defer clear(terms)
	now, next := s.batch%2, (s.batch+1)%2
	c.stepped[next] = true
	return s.backend.AverageApply(cuda.AverageApply{
		Lanes: s.job.Lanes, Optimizer: s.optimizer, Weight: weight, First: !c.stepped[now], Terms: terms, Slots: c.slots[now],
		Param: cuda.Float32s(c.result[now].Float32s()), Out: cuda.Float32s(out),
	})
}
