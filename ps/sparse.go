package ps

import (
	"gradbus/lane"
	"gradbus/round"
	"gradbus/schema"
	"gradbus/shard/state"
)

// sparseOwner is what a shard makes of the sparse rounds over all its table partitions. A round closes whole, when every
// lane's contribution is there with all its chunks.
type sparseOwner struct {
	exists bool // the job has tables
	bucket schema.Bucket

	result []*schema.Frame // says that the round of batch b has closed, at b % len: ahead+2
	sealed [][]byte
	one    [1][]byte // of these, as it is published

	means *round.RowResults // in place of these, where tables are replicated: mean gradients of their rows
}

func (s *Shard) makeSparse() (err error) {
	r := &s.sparse
	r.exists, r.bucket = s.place.HasRows(s.index), s.place.SparseBucket(s.index)
	r.result, r.sealed = make([]*schema.Frame, s.job.Ahead+2), make([][]byte, s.job.Ahead+2)
	for v := range r.result {
		if r.result[v], err = schema.NewFrame(schema.Layout{Kind: schema.KindMean}); err != nil {
			return err
		}
	}
	if tables := round.Replicated(s.job, s.place.Plan, schema.ByShards); len(tables) > 0 {
		r.means = round.NewRowResults(round.RowResultsConfig{Backend: s.backend, Lanes: s.job.Lanes, ChunkBytes: s.job.ChunkBytes, Versions: 2,
			Head: schema.Head{Job: s.run, Generation: s.generation, Bucket: r.bucket}, Tables: tables})
	}
	return nil
}

// stepSparse takes one chunk of one node's contribution.
func (s *Shard) stepSparse(host int, h *schema.Head, v *schema.View, payload Payload) (*refusal, error) {
	l := s.line(host)
	fresh, refused := s.reach(l, h.Batch)
	if refused != nil {
		return refused, nil
	}
	if l.sparse == nil || h.Bucket != s.sparse.bucket {
		return schema.Refuse(schema.ReasonUnknownBucket, "sparse bucket %d is not on %s", h.Bucket, s.member), nil
	}
	if refused = round.CheckSender(&s.hosts[host], s.job.Lanes, h); refused != nil {
		return refused, nil
	}
	if err := s.place.CheckWire(v); err != nil {
		return schema.Refusing(err), nil
	}
	if _, refused = s.checkSections(v, true); refused != nil {
		return refused, nil
	}
	c := round.SparseChunk{Head: *h, View: *v, Host: host, Bytes: int64(len(v.Bytes())), Payload: payload}
	if refused = c.Check(); refused != nil {
		return refused, nil
	}
	if !fresh {
		if refused = l.sparse.Check(&c, l.weight(h.Batch)); refused != nil {
			return refused, nil
		}
	}
	if refused = s.checkShare(host, h, l.sparse.Cost(&c)); refused != nil {
		return refused, nil
	}
	if refused = s.checkStaged(c.Bytes); refused != nil {
		return refused, nil
	}
	if refused = l.sparse.CheckFinite(&c); refused != nil {
		return refused, nil
	}
	s.advance(l, h.Batch)
	s.kept = true
	if err := l.sparse.Add(&c, l.weight(h.Batch)); err != nil {
		return nil, err
	}
	return nil, s.closeSparse(l)
}

// checkShare refuses what does not fit its sender's share of the budget together with the sparse contributions to this
// batch that it has sent: all of them have to be here before the round closes, so waiting for room would never end.
// Dense contributions do not count, since their rounds close without it.
func (s *Shard) checkShare(host int, h *schema.Head, bytes int64) *refusal {
	share, l := s.stagedMax/int64(len(s.hosts)), s.line(host)
	if h.Kind != schema.KindSparse || l.sparse == nil || h.Batch < l.sparse.Closed() {
		return nil
	}
	held := int64(0) // of a batch that this frame is the first of
	if h.Batch <= l.batch {
		held = l.sparse.HeldOf(h.Batch, host)
	}
	if held+bytes <= share {
		return nil
	}
	return schema.Refuse(schema.ReasonOverBudget, "%d bytes after %d: a trainer's sparse gradients of one batch may take %d bytes on a shard, "+
		"its share of %d; raise the server's --staged-mib or send smaller batches", bytes, held, share, s.stagedMax)
}

// closeSparse merges the contributions of every round whose turn it is and whose lanes are all there, and runs the
// optimizer on the touched rows, beside the table. In sync they stay there until the batch is complete everywhere.
func (s *Shard) closeSparse(l *timeline) error {
	for {
		b, total, ok := l.sparse.Next()
		if !ok {
			return nil
		}
		for id, t := range s.tables {
			if t == nil || total == 0 {
				continue
			}
			_, dim := s.place.Columns(schema.Table(id), s.index)
			keys, rows, weight, err := l.sparse.Merge(schema.Table(id), dim, total)
			if err == nil {
				err = t.Stage(state.RowGradient{Keys: keys, Sums: rows, Weight: weight, Scale: 1})
			}
			if err != nil {
				return err
			}
		}
		if !s.place.Plan.DeferredCommit() {
			s.commitRows()
		}
		if s.journal != nil {
			s.journal(Journal{Kind: schema.KindSparse, From: s.audience(l), Batch: b})
		}
		frames, err := s.sparseResult(l, b, total)
		if err != nil {
			return err
		}
		l.sparse.Close(l.weight(b), total)
		s.closed(l, b)
		if s.place.Plan.AsyncTables {
			continue // its trainer waits for no result: that the round is received is enough
		}
		for _, frame := range frames {
			s.outputs = append(s.outputs, Output{Kind: schema.KindMean, To: s.audience(l), Batch: b, Bucket: s.sparse.bucket, Frame: frame})
		}
	}
}

// sparseResult makes what is published of a round that closes.
func (s *Shard) sparseResult(l *timeline, b schema.Batch, total float64) ([][]byte, error) {
	if s.sparse.means != nil {
		return s.sparse.means.Make(l.sparse, b, total)
	}
	s.sparse.one[0] = s.sealSparse(b, total)
	return s.sparse.one[:], nil
}

// sealSparse makes the frame that says that a round has closed.
func (s *Shard) sealSparse(b schema.Batch, total float64) []byte {
	r := &s.sparse
	h := schema.Head{
		Kind: schema.KindMean, Job: s.run, Generation: s.generation, Batch: b, Bucket: r.bucket, Chunks: 1,
		Node: lane.Root(s.job.Lanes), Lanes: uint16(s.job.Lanes), DType: schema.DTypeFloat32, Weight: total,
	}
	if s.place.Plan.PerTrainer() {
		h.Node = lane.Node{}
	}
	at := int(b % schema.Batch(len(r.result)))
	r.result[at].SetHead(h)
	r.sealed[at] = r.result[at].Seal()
	return r.sealed[at]
}
