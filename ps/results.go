package ps

import (
	"gradbus/schema"
)

// stepPull answers what a trainer asks for again: a kept result, current parameters, or rows of a table.
func (s *Shard) stepPull(host int, h *schema.Head, v *schema.View) (*refusal, error) {
	if err := s.place.CheckFrame(v, s.index); err != nil {
		return schema.Refusing(err), nil
	}
	if len(v.Sections()) > 0 {
		return s.pullTable(host, h, v)
	}
	batch := h.Batch
	if h.Flags&schema.FlagParameters != 0 {
		if s.place.Plan.Owner != schema.ByShards {
			return schema.Refuse(schema.ReasonUnknownBucket, "parameters of job %s are kept by its trainers: its shards only average", s.job.Name), nil
		}
		if batch == 0 {
			return schema.Refuse(schema.ReasonStaleBatch, "parameters of version 0 follow from the manifest: want version 1 or later"), nil
		}
		batch-- // version v is the result of batch v-1
	}
	return s.pullResult(host, h, batch), nil
}

// pullResult publishes a kept result once more, to one trainer. A round that is still open gives no answer; its result
// goes out when it closes.
func (s *Shard) pullResult(host int, h *schema.Head, batch schema.Batch) *refusal {
	l := s.line(host)
	if s.groups != nil {
		return s.pullGroup(l, host, h, batch)
	}
	if batch == h.Batch && batch > l.batch && batch <= l.done+l.ahead {
		s.advance(l, batch) // it has overtaken its sender's contributions: pulls and bulk come in on two connections
		return nil
	}
	switch kept := l.ahead + 1; {
	case batch > l.batch:
		return schema.Refuse(schema.ReasonEarlyBatch, "result of batch %d: batch %d is under way", batch, l.batch)
	case batch+kept < l.batch:
		return schema.Refuse(schema.ReasonStaleBatch, "result of batch %d: those of batches %d to %d are kept", batch, l.batch-kept, l.batch)
	}
	if s.sparse.means != nil && !s.place.IsDense(h.Bucket) && batch < l.sparse.Closed() {
		for _, frame := range s.sparse.means.Kept(batch) { // all of it: who asks does not know how much it is
			s.outputs = append(s.outputs, Output{Kind: schema.KindMean, To: s.hosts[host].Member, Batch: batch, Bucket: h.Bucket, Frame: frame})
		}
		return nil
	}
	frame := s.keptResult(l, h, batch)
	if !s.place.IsDense(h.Bucket) && l.sparse == nil {
		return schema.Refuse(schema.ReasonUnknownBucket, "bucket %d: job %s has no tables", h.Bucket, s.job.Name)
	}
	if frame != nil {
		s.outputs = append(s.outputs, Output{Kind: schema.KindMean, To: s.hosts[host].Member, Batch: batch, Bucket: h.Bucket, Frame: frame})
	}
	return nil
}

// keptResult is the result that a pull asks for; nil where its round is open. In async it is the newest version of the
// chunk, whoever made it.
func (s *Shard) keptResult(l *timeline, h *schema.Head, batch schema.Batch) []byte {
	if !s.place.IsDense(h.Bucket) {
		if l.sparse == nil || batch >= l.sparse.Closed() {
			return nil
		}
		if s.place.Plan.Clock == schema.ClockEach {
			return s.sealSparse(batch, l.weight(l.batch).Total())
		}
		return s.sparse.sealed[int(batch%schema.Batch(len(s.sparse.sealed)))]
	}
	i := s.chunk(h)
	if s.place.Plan.Clock == schema.ClockEach && batch < l.dense.Closed(i) {
		return s.sealDense(i, batch, l.weight(l.batch).Total())
	}
	return l.dense.Kept(i, batch)
}
