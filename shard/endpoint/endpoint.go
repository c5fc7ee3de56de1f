// Package endpoint puts a shard behind the windows of its contributors. A ps runs one for each shard of a job, and a
// trainer that reduces one for its range, so both acknowledge, refuse and publish by the same rules.
//
//   - endpoint.go passes contributions through windows to the shard, and acknowledges.
//   - outgoing.go publishes what the shard puts out beside its steps, in their order.
//
// It knows no subject, no connection and no goroutine. The clock it reads tells how long publishing took, and nothing
// else.
package endpoint

import (
	"context"
	"fmt"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
)

// Config is what an endpoint is made from. Every field is needed.
type Config struct {
	Shard shard.Config
	// WindowBytes is what a contributor may have under way before it hears of more.
	WindowBytes int64
	// Publish sends what the shard puts out: one output at a time, in the order of the steps, without the step lock.
	Publish func(*shard.Output)
	// Ack sends an ack, and may not keep the frame. The step lock is held.
	Ack func(to schema.Member, frame []byte)
}

// Endpoint is a shard, the windows of its contributors, and what waits to be published. The caller holds the step lock,
// which is the owner's; only Flush and Waits need none, and must not be called with it where Publish waits for anybody
// who steps.
type Endpoint struct {
	*shard.Shard
	outgoing
	config  shard.Config
	windows []window // by contributor
	receipt func() *fabric.Receipt
	ack     func(to schema.Member, frame []byte)
	frame   *schema.Frame // of acks
	acks    uint64
}

// window is the receiving side of one contributor's.
type window struct {
	receipt *fabric.Receipt
	batch   schema.Batch // the newest that the contributor has begun
}

// New makes a shard, as shard.New does, and its windows.
func New(ctx context.Context, c Config) (*Endpoint, error) {
	frame, err := schema.NewFrame(schema.Layout{Kind: schema.KindAck})
	if err != nil {
		return nil, fmt.Errorf("build ack: %w", err)
	}
	made, err := shard.New(ctx, c.Shard)
	if err != nil {
		return nil, err
	}
	e := &Endpoint{Shard: made, config: c.Shard, ack: c.Ack, frame: frame, outgoing: outgoing{publish: c.Publish}}
	e.receipt = func() *fabric.Receipt {
		return fabric.NewReceipt(uint64(c.Shard.StagedBytesMax)/uint64(len(c.Shard.Contributors)), int(c.WindowBytes),
			c.Shard.Job.MessageBytesMax())
	}
	for range c.Shard.Contributors {
		e.windows = append(e.windows, window{receipt: e.receipt()})
	}
	return e, nil
}

// TakeOver tells the shard that a contributor's place was taken, as shard.Shard.TakeOver does. Who has it now begins to
// count from the first frame.
func (e *Endpoint) TakeOver(contributor int, g schema.Generation) {
	e.Shard.TakeOver(contributor, g)
	e.windows[contributor] = window{receipt: e.receipt()}
}

// Close frees the shard, once nothing is being published. What waits is not.
func (e *Endpoint) Close() {
	e.sending.Lock()
	defer e.sending.Unlock()
	e.mu.Lock()
	e.queue, e.sent = nil, 0
	e.mu.Unlock()
	e.Shard.Close()
}

// Taken is what became of a frame.
type Taken struct {
	Outputs []shard.Output // for Put
	Reason  schema.Reason  // as of shard.Shard.Step
	Repeat  bool           // its window has had it before, so the shard has not seen it
	Dropped bool           // its window had no room for it: it comes again
	Pending bool           // something is left to be acknowledged by Tick
}

// Step takes a frame: a contribution by way of its sender's window, then the shard, as shard.Shard.Step does. It
// acknowledges to the sender what is due, and to everybody where a round has closed. The endpoint is ready for the
// frame.
func (e *Endpoint) Step(from schema.Member, v *schema.View, payload shard.Payload) (t Taken, err error) {
	h, i := v.Head(), e.Contributor(from)
	contribution := h.Kind == schema.KindDense || h.Kind == schema.KindSparse
	rounds, pass := e.Rounds(), true
	if contribution && i >= 0 && from != e.config.Own && e.CheckMember(i, v) == nil {
		e.begins(i, h.Batch)
		pass = e.accept(i, &h, len(v.Bytes()), &t)
	}
	if !pass {
		round.Release(payload)
	} else if t.Outputs, t.Reason, err = e.Shard.Step(from, v, payload); err != nil {
		return t, err
	}
	if contribution {
		t.Pending = e.settle(i, e.Rounds() > rounds)
	}
	return t, nil
}

// Gone tells the shard who contributes no more, as shard.Shard.Gone does.
func (e *Endpoint) Gone(members []schema.Member) (t Taken, err error) {
	rounds := e.Rounds()
	if t.Outputs, err = e.Shard.Gone(members); err == nil && e.Rounds() > rounds {
		t.Pending = e.settle(-1, true)
	}
	return t, err
}

// Acks counts those that were sent.
func (e *Endpoint) Acks() uint64 { return e.acks }

// begins notes the batch that a contribution is of. Where that proves that all its sender sent before has come, the
// sender need not be told: it knows, since it has begun the batch. One that asks for results may have begun nothing.
func (e *Endpoint) begins(i int, b schema.Batch) {
	w := &e.windows[i]
	if b <= w.batch {
		return
	}
	w.batch = b
	if e.BeginningProves(i) {
		w.receipt.Known()
	}
}

// accept passes a contribution through its sender's window. It reports whether the shard is to step it. What has no
// room will come again; but what will not fit then either is refused, so that its sender does not wait for ever.
func (e *Endpoint) accept(i int, h *schema.Head, bytes int, t *Taken) bool {
	var refused *schema.FrameError
	if h.Sequence == 0 {
		refused = schema.Refuse(schema.ReasonMalformed, "%v frame without a sequence number", h.Kind)
	} else if fresh, ok := e.windows[i].receipt.Accept(uint64(h.Sequence), bytes, h.Flags&schema.FlagNarrow != 0); fresh {
		return true
	} else if ok {
		t.Repeat, t.Reason = true, schema.ReasonDuplicate
	} else if refused = e.CheckShare(i, h, int64(bytes)); refused == nil {
		t.Dropped = true
	}
	if refused != nil {
		t.Outputs, t.Reason = e.Refuse(e.config.Contributors[i].Member, *h, refused), refused.Reason
	}
	return false
}

// settle acknowledges to one contributor, or to all where a round has closed.
func (e *Endpoint) settle(contributor int, closed bool) (pending bool) {
	for i := range e.windows {
		if closed || i == contributor {
			pending = e.acknowledge(i, (*fabric.Receipt).Due) || pending
		}
	}
	return pending
}

// Tick acknowledges what has waited for long enough. It is called every third of fabric.AckDelayMax while something is
// pending, and reports whether something still is.
func (e *Endpoint) Tick() (pending bool) {
	for i := range e.windows {
		pending = e.acknowledge(i, (*fabric.Receipt).Tick) || pending
	}
	return pending
}

// acknowledge tells a contributor what has come in, and what of it is no longer held, where an ack is due. It reports
// whether something is left to be told.
func (e *Endpoint) acknowledge(i int, due func(*fabric.Receipt) bool) (pending bool) {
	r := e.windows[i].receipt
	r.Holds(e.HeldBytes(i))
	if !due(r) {
		return r.Pending()
	}
	e.acks++
	e.frame.SetHead(schema.Head{
		Job: e.config.RunID, Generation: e.Since(i), Batch: e.Batch(), Lanes: uint16(e.config.Job.Lanes),
	})
	e.frame.SetAck(schema.Ack(r.Ack()))
	e.ack(e.config.Contributors[i].Member, e.frame.Seal())
	return false
}
