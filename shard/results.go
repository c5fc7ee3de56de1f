package shard

import (
	"gradbus/schema"
)

// stepPull answers what a trainer asks for again: a kept result, current parameters, or rows of a table.
func (s *Shard) stepPull(contributor int, h *schema.Head, v *schema.View) (*refusal, error) {
	place := s.config.Placement
	if h.Flags&schema.FlagParameters != 0 && s.replica.place != nil {
		place = s.replica.place
	}
	if err := place.CheckFrame(v, s.config.Index); err != nil {
		return schema.Refusing(err), nil
	}
	if h.Flags&schema.FlagParameters != 0 && s.replica.place != nil && len(v.Sections()) > 0 {
		return s.pullReplicaRows(contributor, h, v)
	}
	if len(v.Sections()) > 0 {
		return s.pullTable(contributor, h, v)
	}
	batch := h.Batch
	if h.Flags&schema.FlagParameters != 0 {
		if batch == 0 {
			return schema.Refuse(schema.ReasonStaleBatch,
				"parameters of version 0 follow from the manifest: want version 1 or later"), nil
		}
		switch {
		case s.dense != nil:
		case s.ReplicaChunks() > 0:
			return s.pullReplica(contributor, h)
		default:
			return schema.Refuse(schema.ReasonUnknownBucket,
				"parameters of job %s are kept by its trainers: its shards only average", s.config.Job.Name), nil
		}
		batch-- // version v is the result of batch v-1
	}
	return s.pullResult(contributor, h, batch), nil
}

// pullResult publishes a kept result once more, to one trainer. A round that is still open gives no answer; its result
// goes out when it closes.
func (s *Shard) pullResult(contributor int, h *schema.Head, batch schema.Batch) *refusal {
	dense := s.config.Placement.IsDense(h.Bucket)
	if !dense && s.clock.Line(contributor).Sparse == nil {
		return schema.Refuse(schema.ReasonUnknownBucket, "bucket %d: job %s has no tables", h.Bucket, s.config.Job.Name)
	}
	e, kept, refused := s.clock.Pull(contributor, batch, batch == h.Batch)
	if e.Fresh {
		s.enter(e)
	}
	if refused != nil || !kept {
		return refused
	}
	var frames []*schema.Frame
	switch {
	case !dense:
		frames = e.Line.Means.Kept(e.Round) // all of it: who asks does not know how much it is
	case e.Round < e.Line.Dense.Closed(s.chunk(h)):
		frames = []*schema.Frame{s.clock.Kept(e, s.chunk(h))}
	}
	for _, f := range frames {
		s.outputResult(e.Line, e.Round, s.config.Contributors[contributor].Member, batch, h.Bucket, f)
	}
	return nil
}
