package ps

import (
	"sync"
	"sync/atomic"
	"time"

	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
)

// queueItemsMax bounds what waits for one shard of one job, as queue.bytesMax does. Beyond them frames are dropped, not
// refused: trainers send again what was neither acknowledged nor answered.
const queueItemsMax = 1 << 14

// item is a verified frame, who sent it and the memory that it lies in.
type item struct {
	from    schema.Member
	view    schema.View
	payload shard.Payload
	came    time.Time // when it arrived
}

// queue holds frames that could not be stepped by whoever received them. The reader takes all that is there at once, so
// that one wake-up and one ack serve many frames. What trainers wait for, lookups and pulls, is kept apart, since it
// goes first: it may overtake contributions, which come on another connection anyway.
type queue struct {
	wake     chan struct{} // has room for one: something was put in, or close was called
	ask      atomic.Int32  // len(asks), to be read without the lock
	bytesMax int           // of frames that wait: the windows of all trainers, twice, since frames may be repeated

	mu     sync.Mutex
	items  []item // contributions, in their order
	asks   []item // lookups and pulls, in theirs
	bytes  int
	closed bool
}

// isAsk reports whether a trainer waits for the answer to a frame of the kind.
func isAsk(k schema.Kind) bool { return k == schema.KindLookup || k == schema.KindPull }

func newQueue(bytesMax int) *queue { return &queue{wake: make(chan struct{}, 1), bytesMax: bytesMax} }

// put appends a frame; false says that it was dropped, its payload being released.
func (q *queue) put(it item) bool {
	bytes := len(it.view.Bytes())
	q.mu.Lock()
	ok := !q.closed && len(q.items)+len(q.asks) < queueItemsMax && q.bytes+bytes <= q.bytesMax
	switch {
	case !ok:
	case isAsk(it.view.Head().Kind):
		q.asks = append(q.asks, it)
		q.ask.Store(int32(len(q.asks)))
		q.bytes += bytes
	default:
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
	nudge(q.wake)
}

// swap gives the contributions that have come in since the last call, and takes room that the reader is done with for
// what comes next. The payloads of what it gives are the reader's to release.
func (q *queue) swap(done []item) []item {
	clear(done) // views and payloads are forgotten
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = done[:0]
	q.taken(items)
	return items
}

// swapAsks is swap for lookups and pulls.
func (q *queue) swapAsks(done []item) []item {
	clear(done)
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.asks
	q.asks = done[:0]
	q.ask.Store(0)
	q.taken(items)
	return items
}

func (q *queue) taken(items []item) {
	for i := range items {
		q.bytes -= len(items[i].view.Bytes())
	}
}

// empty reports whether no contribution waits.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) == 0 && !q.closed
}

// load is how much waits.
func (q *queue) load() (frames int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) + len(q.asks), int64(q.bytes)
}

// close makes every further put fail, and releases what nobody has taken.
func (q *queue) close() {
	q.mu.Lock()
	items := append(q.items, q.asks...)
	q.closed, q.items, q.asks, q.bytes = true, nil, nil, 0
	q.mu.Unlock()
	release(items)
}

func release(items []item) {
	for i := range items {
		round.Release(items[i].payload)
	}
}

// nudge has whoever reads c look once more. It never waits: one who has yet to look finds what is new, too.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
