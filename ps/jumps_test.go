package ps

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"gradbus/internal/testkit"
	"gradbus/schema"
)

// The machine's clock is set, forward and back, while a ps runs: nothing stood still, was lost or is to be renewed for
// that.
func TestClockIsSetWhileServing(t *testing.T) {
	t.Parallel()
	var clock testkit.Clock
	s, err := Start(context.Background(), Config{Deadline: unhurried},
		Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), lease: time.Hour, clock: clock.Now})
	must(t, err)
	t.Cleanup(s.Close)
	well := func() bool { return !slices.ContainsFunc(s.Checks(), func(c Check) bool { return !c.OK }) }
	eventually(t, "all is well", well)
	for _, by := range []time.Duration{2 * time.Hour, -4 * time.Hour, 2 * time.Hour} {
		clock.Jump(by)
		if still := clock.Now().Sub(s.Alive()); still < 0 || still > time.Hour { // a busy machine may take a while
			t.Errorf("set by %s: the last iteration began %s ago", by, still)
		}
		eventually(t, "all is well again, long before the next renewal", well)
	}
}

// A trainer whose contexts a shard holds is lost by its silence, and not by the machine's clock.
func TestClockIsSetWhileContextsAreHeld(t *testing.T) {
	t.Parallel()
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		var clock testkit.Clock
		l := newTrainerLiveness(&schema.Job{Name: "j", Trainers: 1}, 30*time.Second)
		l.sign(0, clock.Now()) // as module.Set.Heard tells it
		clock.Jump(by)
		now := clock.Now()
		if lost := l.tick(now, 0, nil); lost != nil {
			t.Errorf("set by %s: %v", by, lost)
		}
		silent := 0
		for ; silent < 60 && l.tick(now.Add(time.Duration(silent)*time.Second), 0, nil) == nil; silent++ {
		}
		if silent < 25 || silent > 31 {
			t.Errorf("set by %s: silence is found after %d s, want about 31", by, silent)
		}
	}
}
