package ops

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// Tracker is what a Hub needs of status.Tracker. The Hub alone calls it, from one goroutine.
type Tracker interface {
	// Take is given a report as it was heard, and keeps it.
	Take(now time.Time, job schema.JobName, from schema.Member, p *schema.Telemetry)
	// Changed reports whether a report since the last Tick is worth one at once.
	Changed() bool
	// Tick makes the view of this moment, once a second and after such reports. What it returns is immutable.
	Tick(now time.Time) status.Update
	// Series are the curves of a job since a time; false where no such job is known.
	Series(job string, sinceMS int64) (status.Series, bool)
	// Events are those after a serial, newest last.
	Events(since uint64) []status.Event
}

const (
	// reportsMax bounds the reports that wait for the Hub: some seconds of the largest jobs. It waits for nothing but the
	// processor, so a full queue says that the machine is short of that, and the newest report tells most.
	reportsMax = 1024
	// reportBytesMax bounds them in bytes of memory: those of some seconds of the largest jobs, again.
	reportBytesMax = 32 << 20
	// asksMax bounds the questions that wait for the Hub; who asks more waits before the queue.
	asksMax = 16
	// tickEvery is how often a view is made, and tickSoonest what keeps a storm of urgent reports from making more.
	tickEvery   = time.Second
	tickSoonest = 100 * time.Millisecond
	// panicsLogged bounds what is logged of a Tracker that fails on every report.
	panicsLogged = 10
)

// ErrStarting says that nothing is known yet: the ps still starts.
var ErrStarting = errors.New("the ps still starts: ask again in a second")

// errEnding says that the Hub was closed.
var errEnding = errors.New("the ps ends")

// Hub owns the Tracker: one goroutine gives it the reports that come in, and makes a view of all jobs once a second,
// which whoever shows it reads without a lock. Views are made into JSON only when somebody asks, once for all who do.
type Hub struct {
	log     *slog.Logger
	reports chan heard
	asks    chan func(Tracker)
	self    schema.Member // set before the goroutine starts
	tracker Tracker       // the goroutine's alone, as is
	clock   clock
	now     func() time.Time // set before the goroutine starts

	latest  atomic.Pointer[view] // never nil
	dropped atomic.Uint64        // reports
	waiting atomic.Int64         // bytes of those in reports
	panics  atomic.Uint64
	packer  packer

	helloOnce   sync.Once
	helloPacked []byte

	mu      sync.Mutex // guards the next two
	started bool
	closed  bool
	stop    chan struct{}
	done    chan struct{}
}

// heard is a report on its way to the Tracker.
type heard struct {
	at   time.Time
	job  schema.JobName
	from schema.Member
	p    *schema.Telemetry

	bytes int64
}

// NewHub makes a Hub that keeps what it hears until Start. A nil log discards.
func NewHub(log *slog.Logger) *Hub {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	h := &Hub{log: log, now: time.Now, reports: make(chan heard, reportsMax), asks: make(chan func(Tracker), asksMax),
		stop: make(chan struct{}), done: make(chan struct{})}
	h.latest.Store(&view{hub: h, newer: make(chan struct{})})
	return h
}

// Start begins to make views. self is the ps whose own reports Own keeps. It is called once.
func (h *Hub) Start(self schema.Member, tracker Tracker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.started || h.closed {
		return
	}
	h.started, h.self, h.tracker, h.clock.began = true, self, tracker, h.now()
	go h.run()
}

// Close ends the Hub and waits for it. Streams of it end; its last view stays. It may be called again.
func (h *Hub) Close() {
	h.mu.Lock()
	started := h.started
	if !h.closed {
		h.closed = true
		close(h.stop)
	}
	h.mu.Unlock()
	if started {
		<-h.done
	}
}

// Take is ps.Options.Telemetry: it keeps p, which must not change afterwards, and never blocks. When the queue is full
// the oldest report is dropped and counted.
func (h *Hub) Take(job schema.JobName, from schema.Member, p *schema.Telemetry) {
	in := heard{h.now(), job, from, p, int64(p.MemoryBytes())}
	for h.waiting.Add(in.bytes); ; {
		if h.waiting.Load() <= reportBytesMax || len(h.reports) == 0 {
			select {
			case h.reports <- in:
				return
			default:
			}
		}
		select {
		case oldest := <-h.reports:
			h.waiting.Add(-oldest.bytes)
			h.dropped.Add(1)
		default:
		}
	}
}

// Status is the latest view, at most about a second old; nil before the first. It must not be changed.
func (h *Hub) Status() *status.Status {
	if v := h.latest.Load(); v.made() {
		return &v.update.Status
	}
	return nil
}

// Dropped counts reports that came faster than they were taken.
func (h *Hub) Dropped() uint64 { return h.dropped.Load() }

// Age is how old Status is; 0 before the first.
func (h *Hub) Age() time.Duration {
	age, _ := h.age(h.now())
	return age
}

// age is how old the latest view is; false before the first.
func (h *Hub) age(now time.Time) (time.Duration, bool) {
	v := h.latest.Load()
	return now.Sub(v.at), v.made()
}

func (h *Hub) run() {
	defer close(h.done)
	every := time.NewTimer(untilTick(h.now()))
	defer every.Stop()
	soon := time.NewTimer(0) // the first view, of what came before Start, at once
	defer soon.Stop()
	var last time.Time
	tick := func() {
		soon.Stop()
		last = h.now()
		h.tick(last)
	}
	for {
		select {
		case <-h.stop:
			return
		case p := <-h.reports:
			h.waiting.Add(-p.bytes)
			if h.take(p) {
				soon.Reset(max(0, tickSoonest-h.now().Sub(last)))
			}
		case ask := <-h.asks:
			h.safely("answer a question", func() { ask(h.tracker) })
		case <-every.C:
			tick()
			every.Reset(untilNext(h.clock.shown))
		case <-soon.C:
			tick()
		}
	}
}

// untilTick is how long it is to the next middle of a second: curves have a point for each second, and ticks that fall
// near its edge would now and then give one second two and the next none.
func untilTick(now time.Time) time.Duration {
	return now.Add(-tickEvery / 2).Truncate(tickEvery).Add(tickEvery * 3 / 2).Sub(now.Round(0))
}

// untilNext is the same after a tick that was due: where it came early, as by a clock that is slowed down, the next is
// not at once.
func untilNext(now time.Time) time.Duration {
	wait := untilTick(now)
	if wait < tickEvery/2 {
		wait += tickEvery
	}
	return wait
}

func (h *Hub) take(in heard) (urgent bool) {
	h.safely("take a report of "+string(in.from), func() {
		h.tracker.Take(h.clock.at(in.at), in.job, in.from, in.p)
		urgent = h.tracker.Changed()
	})
	return urgent
}

// tick makes the next view and wakes all who wait for it.
func (h *Hub) tick(now time.Time) {
	h.safely("make a view", func() {
		next := &view{hub: h, at: now, update: h.tracker.Tick(h.clock.at(now)), newer: make(chan struct{})}
		close(h.latest.Swap(next).newer)
		h.record(&next.update)
	})
}

// safely keeps a fault of what is only shown from ending training.
func (h *Hub) safely(what string, do func()) {
	defer func() {
		if r := recover(); r != nil {
			if n := h.panics.Add(1); n <= panicsLogged {
				h.log.Error("the status failed", "doing", what, "panic", r, "stack", string(debug.Stack()))
			}
		}
	}()
	do()
}

// ask has f called with the Tracker, between reports, and returns what it returned.
func ask[T any](ctx context.Context, h *Hub, f func(Tracker) T) (answer T, err error) {
	if !h.latest.Load().made() {
		return answer, ErrStarting
	}
	answers := make(chan T, 1) // whoever gave up on the answer need not be waited for
	question := func(t Tracker) {
		defer close(answers) // without an answer, where the Tracker failed
		answers <- f(t)
	}
	select {
	case h.asks <- question:
	case <-h.stop:
		return answer, errEnding
	case <-ctx.Done():
		return answer, fmt.Errorf("wait for the status: %w", ctx.Err())
	}
	select {
	case answer, ok := <-answers:
		if !ok {
			return answer, errors.New("the status failed: see the log of the ps")
		}
		return answer, nil
	case <-h.stop:
		return answer, errEnding
	case <-ctx.Done():
		return answer, fmt.Errorf("wait for the status: %w", ctx.Err())
	}
}
