package ps

import (
	"errors"
	"fmt"

	"gradbus/schema"
)

// refusal says why a frame was not taken. It changes nothing but a counter.
type refusal = schema.FrameError

func refuse(reason schema.Reason, format string, args ...any) *refusal {
	return &refusal{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// refuseFrame passes on what package schema has found.
func refuseFrame(err error) *refusal {
	if r, ok := errors.AsType[*schema.FrameError](err); ok {
		return r
	}
	return &refusal{Reason: schema.ReasonOf(err), Detail: err.Error()}
}

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
