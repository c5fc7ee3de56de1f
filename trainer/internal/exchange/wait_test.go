package exchange

import (
	"testing"
	"time"
)

// Answers are waited for as long as they take, and the wait that is too short every time grows: else a lookup over a
// long way would be sent again for ever, and none be a measure.
func TestPatience(t *testing.T) {
	const ms = time.Millisecond
	x := New(Config{Open: 1, Askers: 2, Modules: 1, RetryAfter: time.Second})
	late := func(who Asker, times int) func() {
		return func() {
			for range times {
				x.trips(who).Late()
			}
		}
	}
	took := func(who Asker, times int, trip time.Duration) func() {
		return func() {
			for range times {
				x.trips(who).Took(trip)
			}
		}
	}
	for _, c := range []struct {
		what     string
		after    func()
		who      Asker
		from, to time.Duration
	}{
		{"before any answer", func() {}, 0, 250 * ms, 250 * ms},
		{"400 ms are too long", late(0, 1), 0, 500 * ms, 500 * ms},
		{"after 400 ms", took(0, 1, 400*ms), 0, 1200 * ms, 1200 * ms},
		{"after many of 1 ms", took(0, 100, ms), 0, answerSlack, answerSlack + 2*ms},
		{"another asker of rows", func() {}, 1, answerSlack, answerSlack + 2*ms},
		{"after many of 60 ms: four times that", took(1, 100, 60*ms), 0, 239 * ms, 240 * ms},
		{"after many of 400 ms: RetryAfter", took(0, 100, 400*ms), 0, time.Second, time.Second},
		{"after none for long", late(0, 20), 0, 8 * time.Second, 8 * time.Second},
		{"a module, before any answer", func() {}, 2, time.Second, time.Second},
		{"which computes for longer than RetryAfter", late(2, 1), 2, 2 * time.Second, 2 * time.Second},
		{"that and four times half of it", took(2, 1, 1500*ms), 2, 4500 * ms, 4500 * ms},
		{"after many of 2 ms: RetryAfter and that", took(2, 100, 2*ms), 2, time.Second, 1010 * ms},
	} {
		c.after()
		if got := x.patience(c.who); got < c.from || got > c.to {
			t.Errorf("%s: waits %v, want %v to %v", c.what, got, c.from, c.to)
		}
	}
}
