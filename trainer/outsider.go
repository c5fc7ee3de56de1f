package trainer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// outsider asks a job's coordinator something for a process that is no member of the job, under a name of its own. It has
// its own connection, because the name of a connection, by which the server knows when a member is gone, is fixed.
type outsider struct {
	conn    *fabric.Control
	subject string
}

// dialOutside dials the server. receive gets what is said to the outsider, its frames unread, and releases them.
func (c *Config) dialOutside(ctx context.Context, job *schema.Job, receive func(fabric.Message)) (o outsider,
	err error) {
	var random [6]byte
	_, _ = rand.Read(random[:]) // never fails
	name, coordinator := "j-"+hex.EncodeToString(random[:]), string(schema.Coordinator)
	o.subject = fabric.At(string(job.Name), name, fabric.KindCtl, coordinator).String()
	if o.conn, err = fabric.DialControl(ctx, c.fabricConfig(job, name, nil)); err != nil {
		return o, err
	}
	heard := fabric.Pattern(string(job.Name), coordinator, fabric.KindCtl, name, false)
	if err = o.conn.Subscribe(heard, receive); err != nil {
		o.conn.Close()
	}
	return o, err
}

// answerOf reads what a coordinator says to an outsider. One that does not read what this program says, or says what
// this program does not read, gives a Refused that names both versions. ok is false of what is no answer.
func answerOf(data []byte) (c schema.Control, ok bool) {
	v, err := schema.Verify(data, schema.Limits{})
	switch {
	case err == nil && v.Head().Kind == schema.KindRefusal:
		c.Refused = schema.RefusedByOlder(&v)
		return c, c.Refused != nil
	case err == nil:
		c, err = schema.DecodeControl(&v)
	}
	if reason := schema.ReasonOf(err); reason == schema.ReasonUnknownVersion {
		return schema.Control{Refused: &schema.Refused{Reason: reason.String(), Text: schema.Refusing(err).Detail}}, true
	}
	return c, err == nil
}

// publish sends a frame to the coordinator.
func (o *outsider) publish(frame []byte) error { return o.conn.Publish(o.subject, frame) }

// ErrNoTakeover is the error of Takeover if the ps does not continue the job; its text says why.
var ErrNoTakeover = errors.New("job not continued")

// Takeover has a ps continue a job of which it has a replica, although fewer than half of the job's trainers have asked
// it to, or with one NATS server none. Use it only if the ps that had the job has ended: if it still runs, the job runs
// twice. c.Server is the ps with the replica, or that NATS server. Errors: ErrConfig, those of dialing, ErrNoTakeover, ErrNoAnswer, and ctx's cause.
//
//	err := trainer.Takeover(ctx, trainer.Config{Server: "nats://10.0.0.2:4222"}, "films")
func Takeover(ctx context.Context, c Config, job schema.JobName) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if err := schema.CheckName("job", string(job)); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c = c.withDefaults()
	answers := make(chan schema.Control, 1)
	o, err := c.dialOutside(ctx, &schema.Job{Name: job}, func(m fabric.Message) {
		defer m.Release()
		if a, ok := answerOf(m.Data); ok && (a.Lost != nil || a.Refused != nil) {
			select {
			case answers <- a:
			default: // of a question that was repeated
			}
		}
	})
	if err != nil {
		return fmt.Errorf("continue job %s: %w", job, err)
	}
	defer o.conn.Close()
	frame, err := schema.EncodeControl(schema.Head{}, schema.Control{Takeover: &schema.Takeover{}})
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeoutCause(ctx, c.AnswerWithin, fmt.Errorf("%w within %v", ErrNoAnswer, c.AnswerWithin))
	defer cancel()
	answer, err := fabric.Ask(within, c.RetryAfter, func() error { return o.publish(frame) }, answers)
	switch {
	case err != nil:
		return fmt.Errorf("continue job %s at %s: %w", job, c.serverName(), err)
	case answer.Refused != nil:
		return refusedBy(answer.Refused)
	case !answer.Lost.Lost:
		return fmt.Errorf("%w: %s", ErrNoTakeover, answer.Lost.Text)
	}
	return nil
}

// drainAskEvery is the time between two questions to a ps that ends.
const drainAskEvery = 250 * time.Millisecond

// Drain has a ps end as it does when it is interrupted: its jobs are handed over to the ps that stands by, or have a
// last version made durable. c says where the ps is, or its control server; id names it among those that share that
// one, and empty is the one that has it in itself. told, which may be nil, is called with each answer. It returns when
// the ps serves no job any more. Errors: ErrConfig, those of dialing, that no such ps answered within
// Config.AnswerWithin, and ctx's cause; the ps ends all the same once it has answered.
//
//	err := trainer.Drain(ctx, trainer.Config{Server: "nats://10.0.0.1:4222"}, "", nil)
func Drain(ctx context.Context, c Config, id string, told func(schema.Draining)) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if told == nil {
		told = func(schema.Draining) {}
	}
	c = c.withDefaults()
	d := drainAsker{ask: schema.Drain{Server: id}, answers: make(chan schema.Control, 1)}
	var err error
	if d.outsider, err = c.dialOutside(ctx, &schema.Job{Name: schema.TelemetryJob}, d.receive); err == nil {
		defer d.conn.Close()
		err = d.follow(ctx, &c, told)
	}
	if err != nil {
		return fmt.Errorf("have a ps end: %w", err)
	}
	return nil
}

// drainAsker asks a ps to end, and hears how far that is.
type drainAsker struct {
	outsider
	ask     schema.Drain
	answers chan schema.Control // the latest
	refused *schema.Refused     // by a ps that does not read this program's messages; nil: by none
}

func (d *drainAsker) receive(m fabric.Message) {
	defer m.Release()
	if c, ok := answerOf(m.Data); ok && (c.Draining != nil || c.Refused != nil) {
		select {
		case <-d.answers: // of before
		default:
		}
		d.answers <- c // which has no other sender
	}
}

// follow asks until the ps has ended: it says so, or its own control server is gone.
func (d *drainAsker) follow(ctx context.Context, c *Config, told func(schema.Draining)) error {
	ticker := time.NewTicker(drainAskEvery)
	defer ticker.Stop()
	within := time.NewTimer(c.AnswerWithin)
	defer within.Stop()
	for ended := false; ; {
		frame, err := schema.EncodeControl(schema.Head{}, schema.Control{Drain: &d.ask})
		if err == nil {
			err = d.publish(frame)
		}
		if lost := errors.Is(err, fabric.ErrLost); err != nil && !lost {
			return err
		} else if lost && d.ask.Incarnation != 0 {
			select {
			case last := <-d.answers:
				if last.Draining != nil {
					told(*last.Draining)
				}
			case <-time.After(drainAskEvery):
			}
			return nil
		}
		select {
		case answer := <-d.answers:
			switch r := answer.Refused; {
			case r != nil && r.Reason == schema.ReasonUnknownVersion.String(): // maybe by another ps than the one that is meant
				d.refused = r
				continue
			case r != nil:
				return refusedBy(r)
			}
			a := *answer.Draining
			if ended { // the ps that answers was started since
				return nil
			}
			if d.ask.Incarnation = a.Incarnation; !a.Ended || len(a.Jobs) > 0 {
				told(a)
			}
			if ended = a.Ended; ended && d.ask.Server != "" {
				return nil
			}
			within.Stop()
			if ended { // but for its server, which is lost any moment
				within.Reset(c.AnswerWithin)
				ticker.Reset(askEvery)
			}
		case <-ticker.C:
			continue
		case <-within.C:
			if ended {
				return nil
			}
			return d.noPS(c)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (d *drainAsker) noPS(c *Config) error {
	if d.refused != nil {
		return refusedBy(d.refused)
	}
	which := "ps " + d.ask.Server
	if d.ask.Server == "" {
		which = "ps that has this control server in it"
	}
	return fmt.Errorf("no %s has answered at %s within %v: want the id of one that ./bin/ps status shows", which,
		c.serverName(), c.AnswerWithin)
}
