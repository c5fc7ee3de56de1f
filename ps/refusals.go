package ps

import (
	"errors"
	"fmt"

	"gradbus/schema"
)

// refusal says why a frame was not taken. It changes nothing but a counter.
type refusal struct {
	reason schema.Reason
	text   string
}

func refuse(reason schema.Reason, format string, args ...any) *refusal {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

// refuseFrame passes on what package schema has found.
func refuseFrame(err error) *refusal {
	r := &refusal{reason: schema.ReasonOf(err), text: err.Error()}
	var frame *schema.FrameError
	if errors.As(err, &frame) {
		r.text = frame.Detail
	}
	return r
}

// repeated is the answer to a frame that was taken before.
func repeated() *refusal { return &refusal{reason: schema.ReasonDuplicate} }

// outputRefusal tells the sender. The frame is a new one: refusals are rare and small.
func (s *Shard) outputRefusal(to schema.Member, h schema.Head, r *refusal) {
	frame, err := schema.EncodeRefusal(h, r.reason, r.text)
	if err != nil {
		panic(fmt.Sprintf("ps: encode refusal %v: %v", r.reason, err)) // a clipped text always fits
	}
	s.outputs = append(s.outputs, Output{
		Kind: schema.KindRefusal, To: to, Batch: h.Batch, Bucket: h.Bucket, Reason: r.reason, Text: r.text, Frame: frame,
	})
}
