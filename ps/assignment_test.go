package ps

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// Who is lost when, on a clock of its own.
func TestModuleLives(t *testing.T) {
	l := newTrainerLiveness(&schema.Job{Name: "j", Trainers: 3}, 30*time.Second)
	at, ticks := time.Unix(1000, 0), liveness.Ticks{}
	look := func(clients []string) []lostTrainer { return l.tick(at, ticks.Tick(at, 30*time.Second), clients) }
	tick := func(after time.Duration, clients ...string) string {
		t.Helper()
		at = at.Add(time.Second)
		for end := at.Add(after - time.Second); at.Before(end); at = at.Add(time.Second) {
			if lost := look(clients); lost != nil {
				return fmt.Sprint(lost)
			}
		}
		return fmt.Sprint(look(clients))
	}
	l.sign(0, at)
	l.sign(1, at)
	if got := tick(5*time.Second, "j/t0", "j/t1"); got != "[]" {
		t.Errorf("all are there: %s", got)
	}
	if got := tick(10*time.Second, "j/t1"); !strings.Contains(got,
		"{0 t0 was not heard of for 7s, and its connection is gone}") {
		t.Errorf("a connection that is gone: %s", got)
	}
	if got := tick(30*time.Second, "j/t1"); !strings.Contains(got, "{1 t1 was not heard of for 31s (deadline 30s)}") {
		t.Errorf("silence: %s", got)
	}
	l.sign(2, at)
	at = at.Add(time.Hour) // this process did not run
	if got := tick(5 * time.Second); got != "[]" {
		t.Errorf("after a pause: %s", got)
	}
	l.leave(2)
	if got := tick(100 * time.Second); got != "[]" {
		t.Errorf("who has left is not lost: %s", got)
	}
}

// What a trainer asked before it was lost, or left, is no sign of life afterwards: contexts expire once for each end.
func TestContextsExpireOnceForEachEnd(t *testing.T) {
	l := newTrainerLiveness(&schema.Job{Name: "j", Trainers: 2}, 30*time.Second)
	at := time.Unix(1000, 0)
	asked := []time.Time{at, at} // the module requests that are heard of again at each tick
	ends := func(seconds int) (lost []int) {
		for range seconds {
			at = at.Add(time.Second)
			for i := range asked {
				l.sign(i, asked[i])
			}
			for _, end := range l.tick(at, 0, []string{"j/t1"}) {
				lost = append(lost, end.contributor)
			}
		}
		return lost
	}
	l.sign(0, at)
	if l.leave(0); len(ends(20)) > 0 {
		t.Error("lost before the deadline")
	}
	if lost := ends(200); !slices.Equal(lost, []int{1}) {
		t.Errorf("trainer 0 has left, and trainer 1 is silent: lost are %v, want 1 once", lost)
	}
	asked[0], asked[1] = at, at // both are back
	if lost := ends(200); !slices.Equal(lost, []int{0, 1}) {
		t.Errorf("silent again: lost are %v, want each once", lost)
	}
}

// Shards are given up when their coordinator is silent, and not because this process did not run for an hour.
func TestOwnPauseIsNotTheCoordinatorsSilence(t *testing.T) {
	at := time.Unix(1000, 0)
	a := &assignment{deadline: 30 * time.Second}
	a.coordinator.Begin(at)
	a.excusePause(at)
	at = at.Add(time.Hour)
	a.excusePause(at)
	if a.deserted(at) {
		t.Error("given up after a pause of this process")
	}
	silent := 0
	for ; silent < 60 && !a.deserted(at); silent++ {
		at = at.Add(time.Second)
		a.excusePause(at)
	}
	if want := 36; silent != want {
		t.Errorf("given up after %d s of silence, want %d: the deadline and 5 s", silent, want)
	}
}
