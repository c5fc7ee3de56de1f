package ps

import (
	"sync"

	"gradbus/round"
	"gradbus/schema"
)

// Bounds of what waits for one shard of one job. Beyond them frames are dropped, not refused: trainers send again what
// was neither acknowledged nor answered. Windows of 4 MiB keep 16 trainers below.
const (
	queueBytesMax = 64 << 20
	queueItemsMax = 1 << 14
)

// item is a verified frame, who sent it and the memory that it lies in.
type item struct {
	from    schema.Member
	view    schema.View
	payload Payload
}

// queue holds frames between the goroutine that receives for all jobs and the one that runs a shard. The reader takes
// all that is there at once, so that one wake-up and one ack serve many frames.
type queue struct {
	wake chan struct{} // has room for one: something was put in, or close was called

	mu     sync.Mutex
	items  []item
	bytes  int
	closed bool
}

func newQueue() *queue { return &queue{wake: make(chan struct{}, 1)} }

// put appends a frame; false says that it was dropped, its payload being released.
func (q *queue) put(it item) bool {
	bytes := len(it.view.Bytes())
	q.mu.Lock()
	ok := !q.closed && len(q.items) < queueItemsMax && q.bytes+bytes <= queueBytesMax
	if ok {
		q.items = append(q.items, it)
		q.bytes += bytes
	}
	q.mu.Unlock()
	if !ok {
		round.Release(it.payload)
		return false
	}
	q.signal()
	return true
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default: // the reader has not yet answered the last signal
	}
}

// swap gives what has come in since the last call, and takes room that the reader is done with for what comes next. The
// payloads of what it gives are the reader's to release.
func (q *queue) swap(done []item) []item {
	clear(done) // views and payloads are forgotten
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items, q.bytes = done[:0], 0
	return items
}

// close makes every further put fail, and releases what nobody has taken.
func (q *queue) close() {
	q.mu.Lock()
	items := q.items
	q.closed, q.items, q.bytes = true, nil, 0
	q.mu.Unlock()
	for i := range items {
		round.Release(items[i].payload)
	}
}
