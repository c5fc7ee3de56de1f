package ps

import (
	"fmt"

	"gradbus/schema"
)

// refusal says why a frame was not taken. It changes nothing but a counter.
type refusal = schema.FrameError

// outputRefusal tells the sender. The frame is a new one: refusals are rare and small.
func (s *Shard) outputRefusal(to schema.Member, h schema.Head, r *refusal) {
	frame, err := schema.EncodeRefusal(h, r.Reason, r.Detail)
	if err != nil {
		panic(fmt.Sprintf("ps: encode refusal %v: %v", r.Reason, err)) // a clipped text always fits
	}
	s.outputs = append(s.outputs, Output{
		Kind: schema.KindRefusal, To: to, Batch: h.Batch, Bucket: h.Bucket, Reason: r.Reason, Text: r.Detail, Frame: frame,
	})
}
