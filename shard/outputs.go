package shard

import (
	"gradbus/schema"
	"gradbus/shard/round"
)

// Output is a frame that the shard wants published.
type Output struct {
	Kind   schema.Kind   // schema.KindMean, KindRows, KindRefusal, or what is asked of a trainer: KindPull, KindState
	To     schema.Member // a trainer, or schema.All
	Batch  schema.Batch
	Bucket schema.Bucket
	Reason schema.Reason // of a refusal; ReasonOK otherwise
	Text   string        // of a refusal: what is in the frame, for a log
	Frame  []byte        // valid until the next call of Step or Answer, and beyond where Outlasts says so
	Built  *schema.Frame // whose bytes Frame is; nil of a refusal

	until schema.Batch // of a result: the first batch whose rounds may write to the frame; 0: any may
}

// Outlasts reports whether Frame stays as it is in a Step of a frame of this kind, newest being the newest batch that
// is under way then. A refusal has a frame of its own, as has what is rare; rows lie in that of all answers, and the
// frames of a chunk's results take turns.
func (o *Output) Outlasts(kind schema.Kind, newest schema.Batch) bool {
	switch o.Kind {
	case schema.KindRefusal, schema.KindPull, schema.KindState:
		return true
	case schema.KindRows:
		return kind == schema.KindDense || kind == schema.KindSparse
	}
	return newest < o.until
}

// refusal says why a frame was not taken. It changes nothing but a counter.
type refusal = schema.FrameError

// outbox is what a call of the shard has to publish.
type outbox struct{ outputs []Output }

// output publishes a sealed frame.
func (o *outbox) output(kind schema.Kind, to schema.Member, b schema.Batch, bucket schema.Bucket, f *schema.Frame) {
	v := f.View()
	o.outputs = append(o.outputs, Output{Kind: kind, To: to, Batch: b, Bucket: bucket, Frame: v.Bytes(), Built: f})
}

// outputResult publishes the result of a round, as that of what its receiver calls batch b.
func (o *outbox) outputResult(l *round.Line, r schema.Batch, to schema.Member, b schema.Batch, bucket schema.Bucket,
	f *schema.Frame) {
	o.output(schema.KindMean, to, b, bucket, f)
	if l.Stays > 0 {
		o.outputs[len(o.outputs)-1].until = r + l.Stays
	}
}

// outputRefusal tells the sender. The frame is a new one: refusals are rare and small.
func (o *outbox) outputRefusal(to schema.Member, h schema.Head, r *refusal) {
	o.outputs = append(o.outputs, Output{Kind: schema.KindRefusal, To: to, Batch: h.Batch, Bucket: h.Bucket,
		Reason: r.Reason, Text: r.Detail, Frame: schema.EncodeRefusal(h, r.Reason, r.Detail)})
}

// Refuse is the refusal of a frame that the shard's owner has not stepped. It is an output as of Step.
func (o *outbox) Refuse(to schema.Member, h schema.Head, r *schema.FrameError) []Output {
	o.outputs = o.outputs[:0]
	o.outputRefusal(to, h, r)
	return o.outputs
}
