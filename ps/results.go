package ps

import (
	"gradbus/schema"
)

// stepPull answers what a trainer asks for again: a kept result, current parameters, or rows of a table.
func (s *Shard) stepPull(from schema.Member, h *schema.Head, v *schema.View) (*refusal, error) {
	if err := s.place.CheckFrame(v, s.index); err != nil {
		return refuseFrame(err), nil
	}
	if len(v.Sections()) > 0 {
		return s.pullTable(from, h, v)
	}
	batch := h.Batch
	if h.Flags&schema.FlagParameters != 0 {
		if s.job.Apply != schema.ApplyUpdate {
			return refuse(schema.ReasonUnknownBucket, "parameters of job %s are kept by its trainers: its shards only average", s.job.Name), nil
		}
		if batch == 0 {
			return refuse(schema.ReasonStaleBatch, "parameters of version 0 follow from the manifest: want version 1 or later"), nil
		}
		batch-- // version v is the result of batch v-1
	}
	return s.pullResult(from, h, batch), nil
}

// pullResult publishes a kept result once more, to one trainer: of the batch under way if its round is closed, or of
// the one before. A round that is still open gives no answer; its result goes to all when it closes.
func (s *Shard) pullResult(from schema.Member, h *schema.Head, batch schema.Batch) *refusal {
	switch {
	case batch == h.Batch && batch == s.batch+1 && s.open == 0:
		s.advance() // it has overtaken its sender's contributions: pulls and bulk come in on two connections
		return nil
	case batch > s.batch:
		return refuse(schema.ReasonEarlyBatch, "result of batch %d: batch %d is under way", batch, s.batch)
	case batch+1 < s.batch:
		return refuse(schema.ReasonStaleBatch, "result of batch %d: those of batches %d and %d are kept", batch, s.batch-1, s.batch)
	}
	current, version := batch == s.batch, (batch+1)%2
	var frame []byte
	if !s.place.IsDense(h.Bucket) {
		if !s.sparse.exists {
			return refuse(schema.ReasonUnknownBucket, "bucket %d: job %s has no tables", h.Bucket, s.job.Name)
		}
		if current && !s.sparse.closed {
			return nil
		}
		frame = s.sparse.sealed[version]
	} else {
		i := s.chunk(h)
		if current && s.dense.Closed(i) <= batch {
			return nil
		}
		frame = s.dense.Kept(i, batch)
	}
	s.outputs = append(s.outputs, Output{Kind: schema.KindMean, To: from, Batch: batch, Bucket: h.Bucket, Frame: frame})
	return nil
}
