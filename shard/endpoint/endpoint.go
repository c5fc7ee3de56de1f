// Package endpoint puts a shard behind the windows of its contributors. A ps runs one endpoint for each shard of a job,
// and a trainer that reduces runs one for its range, so both acknowledge, refuse and publish by the same rules.
//
//   - endpoint.go passes contributions through windows to the shard, and acknowledges them.
//   - outgoing.go publishes what the shard puts out, in order, outside its steps.
//
// It knows no subject, connection or goroutine. It reads the clock only to measure the time spent publishing.
package endpoint

import (
	"context"
	"fmt"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
)

// Config configures an endpoint. All fields are required.
type Config struct {
	Shard shard.Config
	// WindowBytes bounds the bytes that a contributor may have in flight.
	WindowBytes int64
	// Publish sends one output of the shard at a time, in the order of the steps, without the step lock.
	Publish func(*shard.Output)
	// Ack sends an ack with the step lock held. It must not keep the frame.
	Ack func(to schema.Member, frame []byte)
}

// Endpoint is a shard with the windows of its contributors and the queue of outputs. The caller holds its own step lock
// during each call. Only Flush and Waits need no lock; call them without it if Publish may wait for a goroutine that
// steps.
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

// window is the receiving side of one contributor's window.
type window struct {
	receipt *fabric.Receipt
	batch   schema.Batch // newest batch that the contributor has begun
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

// TakeOver records that a contributor's slot was taken over, as shard.Shard.TakeOver does. The new process numbers its
// frames from the first.
func (e *Endpoint) TakeOver(contributor int, g schema.Generation) {
	e.Shard.TakeOver(contributor, g)
	e.windows[contributor] = window{receipt: e.receipt()}
}

// Close frees the shard once no publish is in progress. Queued outputs are dropped.
func (e *Endpoint) Close() {
	e.sending.Lock()
	defer e.sending.Unlock()
	e.mu.Lock()
	e.queue, e.sent = nil, 0
	e.mu.Unlock()
	e.Shard.Close()
}

// Taken is the result of a step.
type Taken struct {
	Outputs []shard.Output // for Put
	Reason  schema.Reason  // as of shard.Shard.Step
	Repeat  bool           // the window has seen the frame before, so the shard was not stepped
	Dropped bool           // the window had no room: the sender retransmits the frame
	Pending bool           // an ack remains, for Tick
}

// Step passes a frame to the shard, as shard.Shard.Step does; a contribution passes its sender's window first. It
// acknowledges what is due to the sender, and to all contributors if a round has closed. Ready must have reported true
// for the frame.
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

// Gone removes contributors that left or were lost, as shard.Shard.Gone does.
func (e *Endpoint) Gone(members []schema.Member) (t Taken, err error) {
	rounds := e.Rounds()
	if t.Outputs, err = e.Shard.Gone(members); err == nil && e.Rounds() > rounds {
		t.Pending = e.settle(-1, true)
	}
	return t, err
}

// Acks returns the number of acks sent.
func (e *Endpoint) Acks() uint64 { return e.acks }

// begins records the batch of a contribution. If beginning the batch proves that all the sender's earlier frames
// arrived, their ack is unnecessary. A pull or lookup does not prove that.
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

// accept passes a contribution through its sender's window, and reports whether the shard must step it. A frame without
// room is dropped and comes again; one that will never fit is refused, so that its sender does not wait forever.
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

// settle acknowledges to one contributor, or to all if a round has closed.
func (e *Endpoint) settle(contributor int, closed bool) (pending bool) {
	for i := range e.windows {
		if closed || i == contributor {
			pending = e.acknowledge(i, (*fabric.Receipt).Due) || pending
		}
	}
	return pending
}

// Tick sends the acks that have waited long enough, and reports whether any remain. The caller runs it every third of
// fabric.AckDelayMax while acks are pending.
func (e *Endpoint) Tick() (pending bool) {
	for i := range e.windows {
		pending = e.acknowledge(i, (*fabric.Receipt).Tick) || pending
	}
	return pending
}

// acknowledge tells a contributor which frames have arrived and how much room it has, if an ack is due. It reports
// whether an ack remains.
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
