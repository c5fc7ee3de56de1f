package shard

import (
	"gradbus/schema"
)

// stepPull answers what a trainer asks for again: a kept result, current parameters, or rows of a table.
func (s *Shard) stepPull(contributor int, h *schema.Head, v *schema.View) (*refusal, error) {
	parameters := h.Flags&schema.FlagParameters != 0
	switch ofTrainers := parameters && s.dense == nil; { // CheckFrame has found that they are to be had
	case ofTrainers && len(v.Sections()) > 0:
		return s.pullReplicaRows(contributor, h, v)
	case len(v.Sections()) > 0:
		return s.pullTable(contributor, h, v)
	case !parameters:
		return s.pullResult(contributor, h, h.Batch), nil
	case h.Batch == 0:
		return schema.Refuse(schema.ReasonStaleBatch,
			"parameters of version 0 follow from the manifest: want version 1 or later"), nil
	case ofTrainers:
		return s.pullReplica(contributor, h)
	}
	return s.pullResult(contributor, h, h.Batch-1), nil // version v is the result of batch v-1
}

// pullResult publishes a kept result once more, to one trainer. A round that is still open gives no answer; its result
// goes out when it closes.
func (s *Shard) pullResult(contributor int, h *schema.Head, batch schema.Batch) *refusal {
	dense := s.config.Placement.IsDense(h.Bucket)
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
		f := s.clock.Kept(e, s.chunk(h))
		if f == nil {
			return schema.Refuse(schema.ReasonStaleBatch, "result of batch %d: it was made before the job was resumed", batch)
		}
		frames = []*schema.Frame{f}
	}
	for _, f := range frames {
		s.outputResult(e.Line, e.Round, s.config.Contributors[contributor].Member, batch, h.Bucket, f)
	}
	return nil
}
