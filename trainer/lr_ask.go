package trainer

import (
	"context"
	"fmt"
	"math"

	"gradbus/fabric"
	"gradbus/schema"
)

// ScaleLR does what Session.ScaleLR does, for somebody who is no trainer of the job: c says where its coordinator is
// found. A scale other than 0 that is not from schema.LRScaleMin to LRScaleMax is refused unless force is true: it is
// rather a slip. Errors: ErrConfig, those of dialing, Refused with the reason, and that no coordinator answered
// within Config.AnswerWithin.
//
//	from, err := trainer.ScaleLR(ctx, trainer.Config{Server: "nats://127.0.0.1:4222"}, "clicks", 0, 0.1, false)
func ScaleLR(ctx context.Context, c Config, job schema.JobName, from schema.Batch, scale float32,
	force bool) (schema.Batch, error) {
	if err := c.Validate(); err != nil {
		return 0, err
	}
	if err := schema.CheckName("job", string(job)); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if !(scale >= 0 && scale <= math.MaxFloat32) {
		return 0, fmt.Errorf("%w: scale %v of the learning rates: want a finite number, at least 0", ErrConfig, scale)
	}
	c = c.withDefaults()
	a := lrAsker{job: job, answers: make(chan schema.Control, 1)}
	frame, err := schema.EncodeControl(schema.Head{}, schema.Control{ScaleLR: &schema.ScaleLR{From: from, Scale: scale,
		Force: force}})
	if err != nil {
		return 0, err
	}
	if a.outsider, err = c.dialOutside(ctx, &schema.Job{Name: job}, a.receive); err != nil {
		return 0, fmt.Errorf("scale the learning rates of job %s: %w", job, err)
	}
	defer a.conn.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, c.AnswerWithin,
		fmt.Errorf("no answer within %v: is the job running, and do its trainers begin batches?", c.AnswerWithin))
	defer cancel()
	answer, err := fabric.Ask(ctx, c.RetryAfter, func() error { return a.publish(frame) }, a.answers)
	if err != nil {
		return 0, fmt.Errorf("scale the learning rates of job %s at %s: %w", job, c.serverName(), err)
	}
	if answer.Refused != nil {
		return 0, fmt.Errorf("scale the learning rates of job %s: %w", job, refusedBy(answer.Refused))
	}
	if n := len(answer.LR.Changes); from == 0 && n > 0 {
		from = answer.LR.Changes[n-1].From
	}
	return from, nil
}

// lrAsker hears what a coordinator answers.
type lrAsker struct {
	outsider
	job     schema.JobName
	answers chan schema.Control
}

func (a *lrAsker) receive(m fabric.Message) {
	defer m.Release()
	c, ok := answerOf(m.Data)
	if v, err := schema.Verify(m.Data, schema.Limits{}); err == nil && v.Head().Kind == schema.KindRefusal && !ok {
		r, err := schema.DecodeRefusal(&v)
		if err != nil {
			return
		}
		c.Refused = &schema.Refused{Reason: r.Reason, Text: fmt.Sprintf("job %s is not registered there", a.job)}
		if r.Reason != schema.ReasonJobUnknown.String() {
			c.Refused.Text = r.Text
		}
	} else if !ok || c.Refused == nil && (c.LR == nil || !c.LR.Final) {
		return
	}
	select {
	case a.answers <- c:
	default:
	}
}
