package ops

import (
	"testing"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/ps/ops/status/statustest"
)

// The Tracker's times follow the machine's clock, and neither fall nor stand still.
func TestClock(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	var c clock
	for i, step := range []struct{ since, wall, want time.Duration }{
		{0, 0, 0},
		{time.Second, time.Second, time.Second},
		{2 * time.Second, 2*time.Second - time.Millisecond, 2*time.Second - time.Millisecond}, // it is being slowed down
		{time.Second, time.Second, 2*time.Second - time.Millisecond},                          // a report that has waited
		{3 * time.Second, time.Hour, time.Hour},                                               // set forward
		{13 * time.Second, 0, time.Hour + 9*time.Second},                                      // set back
		{23 * time.Second, 10 * time.Second, time.Hour + 18*time.Second},
		{10*time.Hour + 23*time.Second, 10*time.Hour + 10*time.Second, 10*time.Hour + 18*time.Second},
		{11*time.Hour + 23*time.Second, 11*time.Hour + 10*time.Second, 11*time.Hour + 10*time.Second}, // it has caught up
	} {
		if got := c.advance(step.since, noon.Add(step.wall)).Sub(noon); got != step.want {
			t.Errorf("step %d: %s after noon, want %s", i, got, step.want)
		}
	}
}

// Who falls silent just as the clock is set back is found all the same.
func TestClockSetBackHidesNobody(t *testing.T) {
	t.Parallel()
	cluster := statustest.NewCluster(statustest.Options{})
	tracker := cluster.NewTracker()
	var c clock
	var u status.Update
	for second := range 30 {
		wall := cluster.Now
		if second >= 20 {
			wall = wall.Add(-time.Hour)
			cluster.Trainers[1].Stopped = true
		}
		now := c.advance(time.Duration(second)*time.Second, wall)
		for _, h := range cluster.Second() {
			tracker.Take(now, h.Job, h.From, h.Telemetry)
		}
		u = tracker.Tick(now)
	}
	if why := u.Status.Why; why.Code != status.CodeSilent {
		t.Errorf("%+v", why)
	}
	if age := u.Status.Jobs[0].Trainers[1].AgeMS; age < 8000 || age > 10_000 {
		t.Errorf("last seen %d ms ago, want about 9 s", age)
	}
}
