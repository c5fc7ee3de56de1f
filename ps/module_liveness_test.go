package ps

import (
	"fmt"
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
