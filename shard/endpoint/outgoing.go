package endpoint

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/schema"
	"gradbus/shard"
)

// outgoingMax bounds the queued outputs of one shard. The next step waits when the queue is full.
const outgoingMax = 256

// outgoing is the queue of a shard's outputs, in order. One goroutine at a time publishes them without the step lock,
// so that the shard can be stepped meanwhile. The outputs lie in frames of the shard: see Ready.
type outgoing struct {
	publish func(*shard.Output)
	spent   atomic.Int64 // nanoseconds spent publishing
	// sending is held by the goroutine that publishes. Only Close waits for it with the step lock held. Lock order:
	// sending, then mu.
	sending sync.Mutex

	mu    sync.Mutex // a leaf
	queue []queued
	sent  int // number of queue entries that are published
}

// queued is an output, and a function to call once it is published.
type queued struct {
	shard.Output
	then func()
}

// Put queues the outputs of a step. If then is not nil, it is called once all of them are published.
func (o *outgoing) Put(outputs []shard.Output, then func()) {
	if len(outputs) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range outputs {
		o.queue = append(o.queue, queued{Output: outputs[i]})
	}
	o.queue[len(o.queue)-1].then = then
}

// next drops the output that was published last, and returns the next one. The caller holds sending.
func (o *outgoing) next(done bool) (next queued, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if done {
		o.queue[o.sent] = queued{}
		o.sent++
	}
	if o.sent == len(o.queue) {
		o.queue, o.sent = o.queue[:0], 0
		return queued{}, false
	}
	if o.sent == outgoingMax { // the queue may never be empty
		o.queue, o.sent = slices.Delete(o.queue, 0, o.sent), 0
	}
	return o.queue[o.sent], true
}

// Waits reports whether an output is queued or being published.
func (o *outgoing) Waits() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent < len(o.queue)
}

// outlasts reports whether the frames of all queued outputs stay valid in a step.
func (o *outgoing) outlasts(kind schema.Kind, newest schema.Batch) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue)-o.sent >= outgoingMax {
		return false
	}
	for i := o.sent; i < len(o.queue); i++ {
		if !o.queue[i].Outlasts(kind, newest) {
			return false
		}
	}
	return true
}

// Ready reports whether a step of a frame overwrites no queued output.
func (e *Endpoint) Ready(kind schema.Kind, b schema.Batch) bool {
	return e.outlasts(kind, max(b, e.Batch()))
}

// Await returns when the endpoint is ready for a frame. Until then it publishes, or waits for the goroutine that does,
// without the step lock: the shard may have been stepped when it returns.
func (e *Endpoint) Await(stepLock sync.Locker, kind schema.Kind, b schema.Batch) {
	for !e.Ready(kind, b) {
		e.publishUnlocked(stepLock)
	}
}

// publishUnlocked publishes the queue without the step lock. Both locks are as before when it returns or panics.
func (e *Endpoint) publishUnlocked(stepLock sync.Locker) {
	stepLock.Unlock()
	defer stepLock.Lock()
	e.sending.Lock()
	defer e.sending.Unlock()
	e.publishAll()
}

// Flush publishes the queue, unless another goroutine is publishing, which then publishes this output, too.
func (o *outgoing) Flush() {
	for o.Waits() && o.sending.TryLock() {
		func() {
			defer o.sending.Unlock()
			o.publishAll()
		}()
	}
}

// publishAll publishes the queue. The caller holds sending.
func (o *outgoing) publishAll() {
	began := time.Now()
	for q, ok := o.next(false); ok; q, ok = o.next(true) {
		o.publish(&q.Output)
		if q.then != nil {
			q.then()
		}
	}
	o.spent.Add(int64(time.Since(began)))
}

// Publishing returns the time spent publishing.
func (o *outgoing) Publishing() time.Duration { return time.Duration(o.spent.Load()) }
