package fabric

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// The example of RFC 6298's formulas by hand: R = 100, then 100, 180 and 100 ms; and what doubles the wait and ends
// that.
func TestRoundTrips(t *testing.T) {
	const ms = time.Millisecond
	r := RoundTrips{First: 1000 * ms, Slack: 20 * ms, delay: 30 * ms, Max: 5000 * ms}
	want := func(what string, mean, usual, timeout time.Duration) {
		t.Helper()
		if r.Mean() != mean || r.usual() != usual || r.Timeout() != timeout {
			t.Errorf("%s: mean %v, usual %v, timeout %v; want %v, %v, %v", what, r.Mean(), r.usual(), r.Timeout(), mean,
				usual, timeout)
		}
	}
	want("nothing measured", 0, 1000*ms, 1000*ms)
	r.Took(100 * ms)
	want("first: spread is half", 100*ms, 300*ms, 330*ms)
	r.Expect(7 * ms)
	want("a guess where there is a measure", 100*ms, 300*ms, 330*ms)
	r.Took(100 * ms)
	want("spread 37.5", 100*ms, 250*ms, 280*ms)
	r.Took(180 * ms)
	want("spread 37.5+(80-37.5)/4 = 48.125, mean 110", 110*ms, 302500*time.Microsecond, 332500*time.Microsecond)
	r.Late()
	want("doubled", 110*ms, 302500*time.Microsecond, 665*ms)
	for range 10 {
		r.Late()
	}
	want("the most", 110*ms, 302500*time.Microsecond, 5000*ms)
	r.fresh()
	want("not any more", 110*ms, 302500*time.Microsecond, 332500*time.Microsecond)
	r.Late()
	r.Took(110 * ms)
	want("a measure ends doubling: spread 36.09375", 110*ms, 254375*time.Microsecond, 284375*time.Microsecond)
	for range 100 {
		r.Took(2 * ms)
	}
	if got := r.Timeout(); got < 52*ms || got > 53*ms {
		t.Errorf("a short way: %v, want 2 ms and what is least", got)
	}

	r = RoundTrips{First: 1000 * ms, Slack: 20 * ms, Max: 5000 * ms}
	r.Late()
	want("before any measure", 0, 1000*ms, 2000*ms)
	r.Expect(240 * ms)
	want("guess", 240*ms, 720*ms, 720*ms)
	r.Took(80 * ms)
	want("a measure takes the guess's place", 80*ms, 240*ms, 240*ms)
	r.Took(8 * ms)
	want("spread 40+(72-40)/4, mean 71", 71*ms, 263*ms, 263*ms)
	r.Took(time.Hour)
	if got := r.Timeout(); got != 5000*ms {
		t.Errorf("after an hour: %v", got)
	}
}

// docs/protocol.md says how long the wait is.
func TestWaitIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	r := NewOutbox(OutboxConfig{Envelope: envelope{}, Publish: func(Subject, Payload) error { return nil }}).trips
	for what, d := range map[string]time.Duration{"before anything was measured": r.First, "slack": r.Slack,
		"delay": r.delay, "at most": r.Max} {
		if row := fmt.Sprintf("| %s | %d |", what, d.Milliseconds()); !strings.Contains(string(text), row+"\n") {
			t.Errorf("docs/protocol.md: want the row %q", row)
		}
	}
}
