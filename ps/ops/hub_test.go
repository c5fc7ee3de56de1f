package ops

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gradbus/internal/testkit"
	"gradbus/schema"
)

// One view a second, and one soon after an urgent report, but never more than ten a second.
func TestHubTicks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{urgent: func(p *schema.Telemetry) bool { return p.Serial == 1 }}
		h := NewHub(nil)
		defer h.Close()
		ticks := func() int {
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.ticks
		}
		if h.Status() != nil {
			t.Fatal("something before the start")
		}
		h.Take("", "p-p1", &schema.Telemetry{}) // before the start
		h.Start("p-p1", f)
		if n := ticks(); n != 1 {
			t.Fatalf("%d ticks at the start", n)
		}
		time.Sleep(10*time.Second + time.Millisecond)
		if n := ticks(); n != 11 || f.takes != 0 {
			t.Fatalf("%d ticks and %d reports after 10 s", n, f.takes)
		}
		for range 1000 {
			h.Take("packages", "t0", &schema.Telemetry{})
			time.Sleep(time.Millisecond)
		}
		if n := ticks(); n != 12 || f.takes != 1000 {
			t.Fatalf("%d ticks and %d reports after 11 s", n, f.takes)
		}
		time.Sleep(700 * time.Millisecond)
		h.Take("packages", "t0", &schema.Telemetry{Serial: 1})
		if n := ticks(); n != 14 {
			t.Fatalf("%d ticks after an urgent report", n)
		}
		for range 300 { // for 300 ms
			h.Take("packages", "t0", &schema.Telemetry{Serial: 1})
			time.Sleep(time.Millisecond)
		}
		if n := ticks(); n < 16 || n > 17 {
			t.Fatalf("%d ticks after 300 ms of urgent reports", n)
		}
	})
}

// The machine's clock is set, forward and back: urgent reports are shown, views do not storm, and times neither fall
// nor stand still.
func TestHubWhenTheClockIsSet(t *testing.T) {
	t.Parallel()
	var set testkit.Clock
	f := &fake{urgent: func(p *schema.Telemetry) bool { return p.Serial == 1 }}
	h := NewHub(nil)
	h.now = set.Now
	defer h.Close()
	h.Start("p-p1", f)
	ticks := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.ticks
	}
	const urgent = 5
	shown := func() time.Duration { // how long it takes until so many urgent reports are shown, one after the other
		began := time.Now()
		for range urgent {
			before := ticks()
			h.Take("packages", "t0", &schema.Telemetry{Serial: 1})
			eventually(t, "a view of an urgent report", func() bool { return ticks() > before })
		}
		return time.Since(began)
	}
	for _, by := range []time.Duration{0, time.Hour, -2 * time.Hour, 24 * time.Hour} {
		set.Jump(by)
		before, began, latest := ticks(), time.Now(), f.at()
		// Views that come once a second take more than three seconds, on any machine; urgent ones half a second, on one that
		// is not busy.
		eventually(t, "urgent reports are shown at once", func() bool { return shown() < (urgent-2)*tickEvery })
		if n, most := ticks()-before, 2+2*int(time.Since(began)/tickSoonest); n > most {
			t.Errorf("set by %s: %d views, want at most %d", by, n, most)
		}
		if age, ok := h.age(set.Now()); !ok || age < 0 || age > time.Hour {
			t.Errorf("set by %s: the view is %s old", by, age)
		}
		if passed := f.at().Sub(latest); passed <= max(0, by)/2 {
			t.Errorf("set by %s: %s have passed for the Tracker", by, passed)
		}
		f.mu.Lock()
		if f.fell {
			t.Errorf("set by %s: a time was before the one before", by)
		}
		f.mu.Unlock()
	}
}

// Ticks are in the middle of seconds, whenever the process has started.
func TestTicksFallInTheMiddleOfSeconds(t *testing.T) {
	t.Parallel()
	for ms, want := range map[int]int{0: 500, 1: 499, 499: 1, 500: 1000, 501: 999, 999: 501} {
		if got := untilTick(time.Unix(1e9, int64(ms)*1e6)); got != time.Duration(want)*time.Millisecond {
			t.Errorf("%d ms after a second: %s, want %d ms", ms, got, want)
		}
		if want < 500 {
			want += 1000
		}
		if got := untilNext(time.Unix(1e9, int64(ms)*1e6)); got != time.Duration(want)*time.Millisecond {
			t.Errorf("%d ms after a second: %s after a tick, want %d ms", ms, got, want)
		}
	}
}

// The Tracker is called with the times of one clock, though the machine's was set back by an hour.
func TestHubHasOneClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		h := NewHub(nil)
		defer h.Close()
		h.clock.shown = time.Now().Add(time.Hour)
		h.Start("p-p1", f)
		for range 3 {
			h.Take("packages", "t0", &schema.Telemetry{})
			time.Sleep(time.Second)
		}
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.fell || f.takes != 3 || f.ticks > 5 || time.Until(f.latest) < 59*time.Minute {
			t.Errorf("times fell: %v; the last of %d reports and %d ticks was %s from now", f.fell, f.takes, f.ticks,
				time.Until(f.latest))
		}
	})
}

// A Tracker that panics ends nothing, and works again when it does not.
func TestHubSurvivesTheTracker(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.tracker.fail.Store(true)
	s.hub.Take("packages", "t0", &schema.Telemetry{})
	eventually(t, "a panic", func() bool { return s.Stats().OverviewFaults > 0 })
	answer, body := s.get(t, "/api/v1/events")
	wantError(t, answer, body, 503, "the status failed")
	s.tracker.fail.Store(false)
	if answer, body := s.get(t, "/api/v1/events"); answer.StatusCode != 200 {
		t.Errorf("status %d, %s", answer.StatusCode, body)
	}
	if got := s.log.String(); got == "" {
		t.Error("nothing in the log")
	}
}

// A ps whose views are old is not ready: nobody would see there that anything is wrong.
func TestOldViewsAreNotReady(t *testing.T) {
	t.Parallel()
	h := NewHub(nil)
	s := &Server{hub: h, limits: limits{}.withDefaults()}
	for old, want := range map[time.Duration]bool{0: true, s.limits.aliveTime + time.Millisecond: false} {
		h.latest.Store(&view{at: time.Now().Add(-old), newer: make(chan struct{})})
		if at := slices.IndexFunc(s.checks(), func(c Check) bool { return c.Name == "status" && c.OK == want }); at < 0 {
			t.Errorf("a view of %s ago: %+v", old, s.checks())
		}
	}
}

// A query is answered between the first view and the end.
func TestQuery(t *testing.T) {
	t.Parallel()
	h := NewHub(nil)
	seven := func(Tracker) int { return 7 }
	if _, err := query(h, seven); !errors.Is(err, ErrStarting) {
		t.Errorf("before the start: %v", err)
	}
	f := &fake{}
	h.Start("p-p1", f)
	eventually(t, "a view", func() bool { return h.Status() != nil })
	if n, err := query(h, seven); n != 7 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	h.Close()
	h.Close()
	h.Take("packages", "t0", &schema.Telemetry{})
	if _, err := query(h, seven); !errors.Is(err, errEnding) || f.takes != 0 {
		t.Errorf("after the end: %v, %d reports", err, f.takes)
	}
}
