package shard

import "gradbus/schema"

// refusal says why a frame was not taken. It changes nothing but a counter.
type refusal = schema.FrameError

// outputRefusal tells the sender. The frame is a new one: refusals are rare and small.
func (s *Shard) outputRefusal(to schema.Member, h schema.Head, r *refusal) {
	s.outputs = append(s.outputs, Output{Kind: schema.KindRefusal, To: to, Batch: h.Batch, Bucket: h.Bucket,
		Reason: r.Reason, Text: r.Detail, Frame: schema.EncodeRefusal(h, r.Reason, r.Detail)})
}

// Refuse is the refusal of a frame that whoever runs the shard has not stepped. It is an output as of Step.
func (s *Shard) Refuse(to schema.Member, h schema.Head, r *schema.FrameError) []Output {
	s.outputs = s.outputs[:0]
	s.outputRefusal(to, h, r)
	return s.outputs
}
