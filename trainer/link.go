package trainer

import (
	"context"
	"fmt"
	"sync"

	"gradbus/fabric"
	"gradbus/schema"
)

// shardLink is the way of gradients to one owner, a shard or another trainer: its window, and the frames that wait for
// room in it. What this trainer owns itself is not sent: that link has neither server nor window.
//
// A frame that finds room leaves at once, on the goroutine that posts it. Without room it waits in the queue, which one
// goroutine empties in order; so a full window holds up neither the backward pass nor another link. The queue holds
// nothing but frames that exist anyway: those of the batches that may be open, which are refilled only when their owner
// has them.
type shardLink struct {
	member schema.Member
	reduce bool // the owner is a trainer
	server *dataServer
	outbox *fabric.Outbox
	flags  uint32   // of the heads of its frames
	marks  []uint64 // posted at the end of batch b, at b % len: ahead+1

	ctx    context.Context    // of the session
	fail   func(error)        // ends the session
	run    func(drain func()) // on a goroutine that the session waits for
	posted uint64             // frames; of the goroutine that calls Run

	mu       sync.Mutex // a leaf
	queue    []posted
	draining bool          // a goroutine empties the queue
	left     uint64        // frames that have left
	moved    chan struct{} // of one: told when a queued frame has left
}

// posted is a frame that is to leave.
type posted struct {
	subject fabric.Subject
	frame   fabric.Payload
	bucket  schema.Bucket
	times   *bucketTrace // of its batch; nil where nobody wants to know
}

// kind is the token of the subjects of contributions to the owner.
func (l *shardLink) kind(k string) string {
	if l.reduce {
		return fabric.KindReduce
	}
	return k
}

// post sends a frame, now or when there is room for it. It does not wait for the window. The frame may not be changed
// before received says so.
func (l *shardLink) post(p posted) error {
	l.posted++
	l.mu.Lock()
	if l.draining {
		l.queue = append(l.queue, p)
		l.mu.Unlock()
		return nil
	}
	l.mu.Unlock()
	switch sent, err := l.outbox.TrySend(p.subject, p.frame); {
	case err != nil:
		return err
	case sent:
		l.sent(&p)
		return nil
	}
	l.mu.Lock()
	l.queue, l.draining = append(l.queue, p), true
	l.mu.Unlock()
	l.run(l.drain)
	return nil
}

// drain sends what is queued, until nothing is.
func (l *shardLink) drain() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.draining = false
			l.mu.Unlock()
			return
		}
		p := l.queue[0]
		l.queue[0] = posted{}
		if l.queue = l.queue[1:]; len(l.queue) == 0 {
			l.queue = nil
		}
		l.mu.Unlock()
		if err := l.outbox.Send(l.ctx, p.subject, p.frame); err != nil {
			l.fail(fmt.Errorf("batch %d: %w", p.subject.Batch, err))
			return
		}
		l.sent(&p)
		select {
		case l.moved <- struct{}{}:
		default: // told already
		}
	}
}

// received returns when the frames of batch b-ahead-1 and before may be refilled. That batch is complete, which
// proves that the owner has them whether or not the acks have arrived; what remains is that none is being sent again.
func (l *shardLink) received(ctx context.Context, b schema.Batch) error {
	if l.outbox == nil {
		return nil
	}
	mark := l.marks[int(b)%len(l.marks)]
	if err := l.emptied(ctx, mark); err != nil {
		return err
	}
	if l.outbox.Pending() == 0 {
		return nil
	}
	if err := l.outbox.Received(mark); err != nil {
		return fmt.Errorf("end window to %s: %w", l.member, err)
	}
	return l.outbox.DrainedTo(ctx, mark)
}

// sent notes that a frame has left.
func (l *shardLink) sent(p *posted) {
	p.times.sent(p.bucket, p.frame.Len())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left++
}

// emptied waits until so many frames have left.
func (l *shardLink) emptied(ctx context.Context, upTo uint64) error {
	for {
		l.mu.Lock()
		left := l.left
		l.mu.Unlock()
		if left >= upTo {
			return nil
		}
		select {
		case <-l.moved:
		case <-ctx.Done():
			return fmt.Errorf("%d frames wait for room in the window to %s: %w", upTo-left, l.member,
				context.Cause(ctx))
		}
	}
}
