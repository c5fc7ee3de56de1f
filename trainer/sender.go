package trainer

import (
	"context"
	"fmt"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/schema"
)

// sender sends a trainer's gradients.
//
// The rounds of an owner are sent in one order, which is the same for all trainers: chunk after chunk of the flat
// space, each for all hosted nodes, then the sparse rounds. With another order, two trainers whose windows are full of
// different rounds could wait for each other forever. So a trainer with several nodes sends while the last of them is
// computed.
type sender struct {
	job, from string
	links     []*shardLink // by owner
	reducer   *reducer     // sums what this trainer owns; nil if it owns nothing
	flat      *flatSpace
	compute   *compute
	sparse    []rowOwner // empty if the job has no tables

	sets      []*frameSet // of batch b at b % len; ahead+1 entries
	*frameSet             // of the batch under way
	scatter   *scatter    // cuts a node's rows into messages
	lookup    *routing    // routes all keys of the batch to their owners

	results   *results
	activity  *activity // of the session
	norm      gradientNorm
	times     *bucketTrace  // of the batch under way; nil without a trace
	head      schema.Head   // common fields of its frames
	sendTime  time.Duration // time spent sending it
	left      int           // number of its chunks that are not closed
	postponed int           // last chunk, if it is sent after modules were stepped; else -1
	postpones bool          // the last chunk waits for modules to step
}

// frameSet has the frames of one batch, built once and refilled in place.
type frameSet struct {
	dense [][]*schema.Frame // [node][chunk]
	rows  rowFrames
}

// rowFrames are the frames of one batch's rows, [node][sparse owner][chunk]. They grow as needed.
type rowFrames [][][]*schema.Frame

func newRowFrames(nodes, sparse int) rowFrames {
	all := make(rowFrames, nodes)
	for i := range all {
		all[i] = make([][]*schema.Frame, sparse)
	}
	return all
}

func newSender(job *schema.Job, from schema.Member, links []*shardLink, flat *flatSpace, c *compute,
	sparse []rowOwner, lookup *routing) (*sender, error) {
	rows := newRouting(c.rows.dims, lookup.shards, lookup.valuesMax, nil)
	s := &sender{job: string(job.Name), from: string(from), links: links, flat: flat, compute: c, sparse: sparse,
		lookup: lookup, postpones: len(job.Modules) > 0,
		scatter: newScatter(c.rows, rows, flat.place, func(table int) []uint64 { return c.tables.keys[table] })}
	for range job.Ahead + 1 {
		set, err := s.newFrames()
		if err != nil {
			return nil, err
		}
		s.sets = append(s.sets, set)
	}
	s.frameSet = s.sets[0]
	c.dense.frame = func(node, chunk int) cuda.Vector { return vectorOf(s.dense[node][chunk]) }
	c.dense.closed = s.chunkClosed
	return s, nil
}

// newFrames builds the frames of one batch.
func (s *sender) newFrames() (*frameSet, error) {
	set, dtype := &frameSet{rows: newRowFrames(len(s.compute.plan.nodes), len(s.sparse))}, s.compute.rows.dtype
	for range s.compute.plan.nodes {
		var frames []*schema.Frame
		for i, at := range s.flat.chunks {
			f, err := schema.NewFrame(schema.Layout{Kind: schema.KindDense, DType: dtype,
				Values: dtype.Bytes() * (at.hi - at.lo)})
			if err != nil {
				return nil, fmt.Errorf("build frame of dense chunk %d: %w", i, err)
			}
			frames = append(frames, f)
		}
		set.dense = append(set.dense, frames)
	}
	return set, nil
}

// begin starts a batch, and waits until its frames, which an earlier batch used, may be refilled.
func (s *sender) begin(ctx context.Context, head schema.Head) error {
	s.head, s.sendTime, s.times = head, 0, s.results.timesOf(head.Batch)
	s.left, s.postponed = len(s.flat.chunks), -1
	s.frameSet = s.sets[int(head.Batch)%len(s.sets)]
	for _, l := range s.links {
		if err := l.received(ctx, head.Batch); err != nil {
			return err
		}
	}
	return nil
}

// end records what has been posted up to the end of batch b.
func (s *sender) end(b schema.Batch) {
	for _, l := range s.links {
		if l.outbox != nil {
			l.marks[int(b)%len(l.marks)] = l.posted
		}
	}
}

// awaitSent waits until all frames of batch b, which is complete, count as sent. A result may arrive before the call
// that sent the last frame returns.
func (s *sender) awaitSent(ctx context.Context, b schema.Batch) error {
	for _, l := range s.links {
		if l.outbox == nil {
			continue
		}
		if err := l.emptied(ctx, l.marks[int(b)%len(l.marks)]); err != nil {
			return err
		}
	}
	return nil
}

// chunkClosed is called when the sum of a node over a chunk is in its frame. If the node is the last present one, the
// chunk is sent for all nodes.
func (s *sender) chunkClosed(node, chunk int) error {
	plan := s.compute.plan
	if node != plan.lanes[plan.last].closes {
		return nil
	}
	if s.left--; s.left == 0 && s.postpones {
		s.postponed = chunk
		return nil
	}
	return s.sendChunk(chunk)
}

// sendPostponed sends the chunk that waited, so no batch is complete before its modules are stepped.
func (s *sender) sendPostponed() error {
	if s.postponed < 0 {
		return nil
	}
	chunk := s.postponed
	s.postponed = -1
	return s.sendChunk(chunk)
}

// sendAbsent sends the dense rounds of a batch in which no lane of this trainer has samples.
func (s *sender) sendAbsent() error {
	for chunk := range s.flat.chunks {
		if err := s.sendChunk(chunk); err != nil {
			return err
		}
	}
	return nil
}

func (s *sender) sendChunk(chunk int) error {
	begin := time.Now()
	s.activity.beginAt(sending, begin)
	defer func() {
		now := time.Now()
		s.activity.beginAt(computing, now)
		s.sendTime += now.Sub(begin)
	}()
	s.norm.dense(s.dense, chunk, s.compute.plan.weights)
	round := &s.flat.rounds[chunk]
	s.times.begin(round.bucket)
	for i, node := range s.compute.plan.nodes {
		h, f := s.head, s.dense[i][chunk]
		h.Node, h.Weight = node, float64(s.compute.plan.weights[i])
		h.Bucket, h.Chunk, h.Chunks, h.Offset = round.bucket, round.chunk, round.chunks, round.offset
		h.Flags = s.links[round.owner].flags
		if h.Weight == 0 {
			clear(f.Values())
		}
		f.SetHead(h)
		if err := s.send(round.owner, fabric.KindDense, round.bucket, f); err != nil {
			return err
		}
	}
	return nil
}

// sendRows sends every node's rows to every owner. An owner without rows receives an empty frame.
func (s *sender) sendRows() error {
	if len(s.sparse) == 0 {
		return nil
	}
	s.norm.rows(s.compute.rows)
	begin := time.Now()
	s.activity.beginAt(sending, begin)
	defer func() { s.sendTime += time.Since(begin) }()
	for i, node := range s.compute.plan.nodes {
		if err := s.scatter.assign(i, s.lookup); err != nil {
			return err
		}
		s.head.Node, s.head.Weight = node, float64(s.compute.plan.weights[i])
		for at := range s.sparse {
			if err := s.sendShare(i, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendShare sends an owner its part of a node's rows, in at least one frame.
func (s *sender) sendShare(node, at int) error {
	owner, bucket := s.sparse[at].owner, s.sparse[at].bucket
	chunks := s.scatter.share(owner)
	n := max(1, len(chunks))
	s.times.begin(bucket)
	for i := range n {
		if i == len(s.rows[node][at]) {
			s.rows[node][at] = append(s.rows[node][at], new(schema.Frame))
		}
		f := s.rows[node][at][i]
		var pieces []scatterPiece
		if len(chunks) > 0 {
			pieces = chunks[i]
		}
		if err := f.Reset(s.scatter.layout(owner, pieces)); err != nil {
			return fmt.Errorf("build sparse frame of batch %d: %w", s.head.Batch, err)
		}
		s.scatter.fill(f, owner, pieces)
		h := s.head
		h.Bucket, h.Chunk, h.Chunks, h.Flags = bucket, schema.Chunk(i), schema.Chunk(n), s.links[owner].flags
		f.SetHead(h)
		if err := s.send(owner, fabric.KindSparse, h.Bucket, f); err != nil {
			return err
		}
	}
	return nil
}

func (s *sender) send(owner int, kind string, bucket schema.Bucket, f *schema.Frame) error {
	link := s.links[owner]
	if link.outbox == nil {
		s.times.sent(bucket, 0)
		return s.reducer.contribute(f)
	}
	to := fabric.At(s.job, s.from, link.kind(kind), string(link.member)).WithBucket(uint64(s.head.Batch), uint32(bucket))
	f.Seal()
	return link.post(posted{subject: to, frame: fabric.NewPayload(f.Room()), bucket: bucket, times: s.times})
}
