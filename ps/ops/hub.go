package ops

import (
	"encoding/json"
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

// Tracker is the part of status.Tracker that a Hub uses. The Hub never calls it twice at once.
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
	// tickEvery is the interval of views, and tickSoonest the shortest time between two if urgent reports arrive.
	tickEvery   = time.Second
	tickSoonest = 100 * time.Millisecond
	// panicsLogged bounds what is logged of a Tracker that fails on every report.
	panicsLogged = 10
)

// ErrStarting says that nothing is known yet: the ps still starts.
var ErrStarting = errors.New("the ps still starts: ask again in a second")

// errEnding says that the Hub was closed.
var errEnding = errors.New("the ps ends")

// Hub owns the Tracker: it adds the reports as they come, and a goroutine makes a view of all jobs once a second, which
// readers use without a lock. A view is converted to JSON on the first request, once for all readers.
type Hub struct {
	log    *slog.Logger
	now    func() time.Time // set before the goroutine starts
	urgent chan struct{}    // has room for one: the next view is due at once

	latest atomic.Pointer[view] // never nil
	panics atomic.Uint64
	stop   chan struct{}
	done   chan struct{}

	mu      sync.Mutex // guards the rest; held for the time of a view at most
	self    schema.Member
	tracker Tracker // nil before Start
	clock   clock
	closed  bool
}

// NewHub returns a Hub that ignores reports until Start. A nil log discards.
func NewHub(log *slog.Logger) *Hub {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	h := &Hub{log: log, now: time.Now, urgent: make(chan struct{}, 1), stop: make(chan struct{}),
		done: make(chan struct{})}
	h.latest.Store(&view{newer: make(chan struct{})})
	return h
}

// Start begins to make views. self is the ps that answers; it logs the problems that concern it.
func (h *Hub) Start(self schema.Member, tracker Tracker) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tracker != nil || h.closed {
		return
	}
	h.self, h.tracker, h.clock.began = self, tracker, h.now()
	go h.run()
}

// Close ends the Hub and waits for it. Streams of it end; its last view stays. It may be called again.
func (h *Hub) Close() {
	h.mu.Lock()
	started := h.tracker != nil
	if !h.closed {
		h.closed = true
		close(h.stop)
	}
	h.mu.Unlock()
	if started {
		<-h.done
	}
}

// Take is ps.Options.Telemetry: it keeps p, which must not change afterwards. It waits for a view that is being made,
// but never for a reader. The ps bounds and counts the reports that wait for it.
func (h *Hub) Take(job schema.JobName, from schema.Member, p *schema.Telemetry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tracker == nil || h.closed {
		return
	}
	h.safely("take a report of "+string(from), func() {
		h.tracker.Take(h.clock.at(h.now()), job, from, p)
		if !h.tracker.Changed() {
			return
		}
		select {
		case h.urgent <- struct{}{}:
		default:
		}
	})
}

// Status is the latest view, at most about a second old; nil before the first. It must not be changed.
func (h *Hub) Status() *status.Status {
	if v := h.latest.Load(); v.made() {
		return &v.update.Status
	}
	return nil
}

// Age returns the age of Status; 0 before the first.
func (h *Hub) Age() time.Duration {
	age, _ := h.age(h.now())
	return age
}

// age returns the age of the latest view; false before the first.
func (h *Hub) age(now time.Time) (time.Duration, bool) {
	v := h.latest.Load()
	return now.Sub(v.at), v.made()
}

func (h *Hub) run() {
	defer close(h.done)
	every := time.NewTimer(untilTick(h.now()))
	defer every.Stop()
	soon := time.NewTimer(0) // the first view at once
	defer soon.Stop()
	var last time.Time
	tick := func() time.Time {
		soon.Stop()
		last = h.now()
		return h.tick(last)
	}
	for {
		select {
		case <-h.stop:
			return
		case <-h.urgent:
			soon.Reset(max(0, tickSoonest-h.now().Sub(last)))
		case <-every.C:
			every.Reset(untilNext(tick()))
		case <-soon.C:
			tick()
		}
	}
}

// untilTick returns the time until the next middle of a second: curves have a point for each second, and ticks near its
// edge would sometimes give one second two points and the next none.
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

// tick makes the next view, wakes all readers that wait for it, and returns its time for the Tracker.
func (h *Hub) tick(now time.Time) (shown time.Time) {
	h.mu.Lock()
	shown = h.clock.at(now)
	var next *view
	h.safely("make a view", func() {
		next = newView(now, h.tracker.Tick(shown))
		close(h.latest.Swap(next).newer)
	})
	h.mu.Unlock()
	if next != nil { // a log that blocks holds up no report
		h.record(&next.update)
	}
	return shown
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

// query returns what f returns of the Tracker, between reports.
func query[T any](h *Hub, f func(Tracker) T) (answer T, err error) {
	if !h.latest.Load().made() {
		return answer, ErrStarting
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return answer, errEnding
	}
	err = errors.New("the status failed: see the log of the ps")
	h.safely("answer a query", func() { answer, err = f(h.tracker), nil })
	return answer, err
}

// view is one update of the status. Its JSON is made on the first request, and shared by all readers. It is immutable.
type view struct {
	at     time.Time
	update status.Update
	newer  chan struct{} // closed when there is a newer one

	event  func() ([]byte, error) // the update as an event of the stream
	status func() ([]byte, error) // the status alone
}

func newView(at time.Time, update status.Update) *view {
	v := &view{at: at, update: update, newer: make(chan struct{})}
	v.event = sync.OnceValues(func() ([]byte, error) {
		text, err := json.Marshal(&v.update)
		return fmt.Appendf(nil, "id: %d\nevent: update\ndata: %s\n\n", update.Status.Serial, text), err
	})
	v.status = sync.OnceValues(func() ([]byte, error) { return json.Marshal(&v.update.Status) })
	return v
}

// made is false of the view that stands for none, before the first.
func (v *view) made() bool { return !v.at.IsZero() }

// recordsMax bounds what is logged of one view. More begins at once only where a whole cluster changes; the events have
// all of it.
const recordsMax = 20

// record writes what has gone wrong, and what is over, into the log: events are kept in memory, and the log is what is
// left of a ps that has ended. Several ps see the same; the one that it concerns writes it.
func (h *Hub) record(u *status.Update) {
	written := 0
	for i := range u.Events {
		e := &u.Events[i]
		if e.Level == status.Info || !h.concerns(&u.Status, e) { // joins, ends and the like: the coordinator logs them
			continue
		}
		if written++; written > recordsMax {
			h.log.Warn("more problems than are logged: the page has them", "events", len(u.Events))
			return
		}
		log := h.log.With("code", e.Code)
		if e.Job != "" {
			log = log.With("job", e.Job)
		}
		if e.Member != "" {
			log = log.With("member", e.Member)
		}
		switch e.Level {
		case status.Critical:
			log.Error("problem", "text", e.Text)
		case status.Warning:
			log.Warn("problem", "text", e.Text)
		case status.OK:
			log.Info("problem over", "text", e.Text)
		}
	}
}

// concerns reports whether this ps logs an event: of a job that it coordinates, or of itself. An event that no other ps
// can log concerns all: a silent ps, and a job whose coordinator is silent. The ps that reads a GPU logs its events.
func (h *Hub) concerns(s *status.Status, e *status.Event) bool {
	switch {
	case e.Code == status.CodeCoordinator || e.Code == status.CodeServerSilent:
		return true
	case e.Job == "":
		return e.GPU == "" && (e.Member == "" || e.Member == string(h.self))
	}
	for i := range s.Jobs {
		if s.Jobs[i].Name == e.Job {
			return s.Jobs[i].Coordinator == s.Server
		}
	}
	return true
}

// clock provides the Tracker's times: those of the machine's clock, which may be set while jobs run, but never falling.
// If the clock is set forward, they jump with it, and the Tracker takes the jump for a pause of the process. If it is
// set back, they continue a tenth slower until the clock has caught up: if they stood still for an hour, no silent
// member would be found for an hour.
type clock struct {
	began time.Time
	read  time.Duration // since began, at the latest call, by the monotonic clock
	shown time.Time     // then
}

// at is a moment, as time.Now has told it, as the Tracker sees it.
func (c *clock) at(t time.Time) time.Time { return c.advance(t.Sub(c.began), t.Round(0)) }

func (c *clock) advance(since time.Duration, wall time.Time) time.Time {
	passed := max(0, since-c.read) // a report may have waited while a view was made
	c.read += passed
	if c.shown = c.shown.Add(passed - passed/10); wall.After(c.shown) {
		c.shown = wall
	}
	return c.shown
}
