package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// ErrRefused is the error of a request that a ps or a coordinator turned away. The text has the reason.
var ErrRefused = errors.New("refused")

const (
	repeatEvery = time.Second            // between two copies of a request without an answer
	drainEvery  = 250 * time.Millisecond // between two questions to a ps that drains
)

// Operator asks a ps what an operator may ask. Errors of its methods: those of fabric.DialControl, ErrRefused, the cause
// of ctx, and that nothing has answered within AnswerWithin.
type Operator struct {
	Server       fabric.Config // of the ps, or of the NATS server that several ps share
	AnswerWithin time.Duration // longest wait for an answer
}

func refused(r *schema.Refused) error { return fmt.Errorf("%w (%s): %s", ErrRefused, r.Reason, r.Text) }

// dial connects to the coordinator of a job and gives the latest answer that wanted accepts, or a Refused.
func (o *Operator) dial(ctx context.Context, job schema.JobName,
	wanted func(*schema.Control) bool) (*Client, <-chan schema.Control, error) {
	answers := make(chan schema.Control, 1)
	c, err := Dial(ctx, o.Server, job, func(m fabric.Message) {
		defer m.Release()
		a, ok := Answer(m.Data)
		if v, err := schema.Verify(m.Data, schema.Limits{}); !ok && err == nil && v.Head().Kind == schema.KindRefusal {
			if r, err := schema.DecodeRefusal(&v); err == nil && r.Reason == schema.ReasonJobUnknown.String() {
				a.Refused, ok = &schema.Refused{Reason: r.Reason, Text: fmt.Sprintf("job %s is not registered there", job)}, true
			}
		}
		if !ok || a.Refused == nil && !wanted(&a) {
			return
		}
		select {
		case <-answers: // an older one
		default:
		}
		answers <- a // which has no other sender
	})
	return c, answers, err
}

// ask repeats a request to the coordinator of a job until it is answered.
func (o *Operator) ask(ctx context.Context, job schema.JobName, request schema.Control,
	wanted func(*schema.Control) bool) (schema.Control, error) {
	frame, err := schema.EncodeControl(schema.Head{}, request)
	if err != nil {
		return schema.Control{}, err
	}
	c, answers, err := o.dial(ctx, job, wanted)
	if err != nil {
		return schema.Control{}, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, o.AnswerWithin, fmt.Errorf("no answer within %v: is the job running?", o.AnswerWithin))
	defer cancel()
	answer, err := fabric.Ask(ctx, repeatEvery, func() error { return c.Publish(frame) }, answers)
	if err == nil && answer.Refused != nil {
		err = refused(answer.Refused)
	}
	return answer, err
}

// ScaleLR multiplies the learning rates of a job's manifest by scale, from a batch on that it returns; see
// trainer.Session.ScaleLR. from 0 asks for a batch soon. The coordinator refuses a scale other than 0 outside
// schema.LRScaleMin to LRScaleMax unless force is true, since it is most likely a mistake.
func (o *Operator) ScaleLR(ctx context.Context, job schema.JobName, from schema.Batch, scale float32,
	force bool) (schema.Batch, error) {
	if !(scale >= 0 && scale <= math.MaxFloat32) {
		return 0, fmt.Errorf("scale %v of the learning rates: want a finite number, at least 0", scale)
	}
	answer, err := o.ask(ctx, job, schema.Control{LR: &schema.LR{
		Changes: []schema.LRChange{{From: from, Scale: scale}}, Force: force}},
		func(c *schema.Control) bool { return c.LR != nil && c.LR.Final })
	if err != nil {
		return 0, fmt.Errorf("scale the learning rates of job %s: %w", job, err)
	}
	if n := len(answer.LR.Changes); from == 0 && n > 0 {
		from = answer.LR.Changes[n-1].From
	}
	return from, nil
}

// Takeover has a ps continue a job of which it has a replica, although fewer than half of the job's trainers have asked
// it to, or with one NATS server none. Use it only if the ps that had the job has ended: if it still runs, the job runs
// twice. Server is the ps with the replica, or that NATS server.
func (o *Operator) Takeover(ctx context.Context, job schema.JobName) error {
	_, err := o.ask(ctx, job, schema.Control{Query: &schema.Query{Over: true}},
		func(c *schema.Control) bool { return c.Ended != nil })
	if err != nil {
		return fmt.Errorf("continue job %s: %w", job, err)
	}
	return nil
}

// Drain ends a ps as an interrupt does: it hands its jobs over to the ps that has their replicas, or makes a last
// version of them durable. id names it among those that share the server; empty is the one that has the server in it.
// It returns what the ps said last, when the ps serves no job any more. The ps ends even if ctx ends first, once it has
// answered.
func (o *Operator) Drain(ctx context.Context, id string) (last schema.Jobs, err error) {
	d := drain{ask: schema.Drain{Server: id}, within: o.AnswerWithin}
	d.client, d.answers, err = o.dial(ctx, schema.TelemetryJob, func(c *schema.Control) bool { return c.Jobs != nil })
	if err == nil {
		defer d.client.Close()
		err = d.follow(ctx)
	}
	if err != nil {
		return d.last, fmt.Errorf("drain at %s: %w", fabric.WithoutUser(o.Server.URL), err)
	}
	return d.last, nil
}

// drain is one request to end.
type drain struct {
	client     *Client
	answers    <-chan schema.Control
	ask        schema.Drain
	within     time.Duration
	unanswered *time.Timer
	last       schema.Jobs // what the ps said
	ended      bool        // it said so; its server may still be there
	refused    error       // by a ps of another version, maybe not the one that is meant
}

// follow asks until the ps has ended: it says so, and if the server is its own, that is gone.
func (d *drain) follow(ctx context.Context) error {
	d.unanswered = time.NewTimer(d.within)
	defer d.unanswered.Stop()
	for {
		frame, err := schema.EncodeControl(schema.Head{}, schema.Control{Drain: &d.ask})
		if err == nil {
			err = d.client.Publish(frame)
		}
		lost := errors.Is(err, fabric.ErrLost)
		if err != nil && !lost {
			return err
		}
		next := time.After(drainEvery)
		select {
		case a := <-d.answers:
			if done, err := d.take(&a); done || err != nil {
				return err
			}
		case <-next:
			if lost && d.ask.Incarnation != 0 {
				return nil
			}
			continue
		case <-d.unanswered.C:
			if d.ended {
				return nil
			}
			return d.noAnswer()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		<-next
	}
}

// take takes an answer. done reports that the ps has ended, and its server with it where it has one.
func (d *drain) take(a *schema.Control) (done bool, err error) {
	if r := a.Refused; r != nil {
		if d.refused = refused(r); r.Reason == schema.ReasonUnknownVersion.String() {
			return false, nil
		}
		return false, d.refused
	}
	said := a.Jobs
	if d.ended { // a ps that was started since
		return true, nil
	}
	if d.ask.Incarnation = said.Incarnation; !said.Ended || len(said.Jobs) > 0 {
		d.last = *said
	}
	if d.ended = said.Ended; d.ended {
		d.unanswered.Reset(d.within)
		return d.ask.Server != "", nil
	}
	d.unanswered.Stop()
	return false, nil
}

func (d *drain) noAnswer() error {
	if d.refused != nil {
		return d.refused
	}
	which := "ps " + d.ask.Server
	if d.ask.Server == "" {
		which = "ps that has this control server in it"
	}
	return fmt.Errorf("no %s has answered within %v: want the id of one that ./bin/ps status shows", which, d.within)
}
