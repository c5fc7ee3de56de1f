package endpoint

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/schema"
	"gradbus/shard"
)

// outgoingMax bounds what may wait to be published for one shard. Where there is more, the next step waits for it.
const outgoingMax = 256

// outgoing is what a shard has put out and what is not published yet, in its order. One goroutine at a time publishes,
// without the step lock, so that the shard can be stepped at the same time. What it publishes lies in frames of the
// shard's: see Ready.
type outgoing struct {
	publish func(*shard.Output)
	spent   atomic.Int64 // time in publishing, nanoseconds
	// sending is held by who publishes. But by Close it is never waited for with the step lock. Lock order: sending,
	// then mu.
	sending sync.Mutex

	mu    sync.Mutex // a leaf
	queue []queued
	sent  int // of queue: these are published
}

// queued is an output, and what is to be done once it is published.
type queued struct {
	shard.Output
	then func()
}

// Put appends what a step has put out. then, where it is not nil, is called once all of it is published.
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

// next forgets what was published last, and gives what is to be published next. sending is held.
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
	if o.sent == outgoingMax { // it need never be empty
		o.queue, o.sent = slices.Delete(o.queue, 0, o.sent), 0
	}
	return o.queue[o.sent], true
}

// Waits reports whether anything is to be published, or is being.
func (o *outgoing) Waits() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sent < len(o.queue)
}

// outlasts reports whether the frames of all that waits stay as they are in a step.
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

// Ready reports whether a step of a frame writes to nothing that is still to be published.
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

// publishUnlocked publishes what waits, without the step lock. It leaves both locks as they were also where it panics.
func (e *Endpoint) publishUnlocked(stepLock sync.Locker) {
	stepLock.Unlock()
	defer stepLock.Lock()
	e.sending.Lock()
	defer e.sending.Unlock()
	e.publishAll()
}

// Flush publishes what waits, unless another goroutine is at it, which then publishes this too.
func (o *outgoing) Flush() {
	for o.Waits() && o.sending.TryLock() {
		func() {
			defer o.sending.Unlock()
			o.publishAll()
		}()
	}
}

// publishAll publishes what waits. sending is held.
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

// Publishing is the time that was spent in it.
func (o *outgoing) Publishing() time.Duration { return time.Duration(o.spent.Load()) }
