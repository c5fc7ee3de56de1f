package gpu

import (
	"strings"
	"testing"
	"time"

	"gradbus/schema"
)

// A counter's rise is that of the last span; one that fell begins anew, and no rise is ever larger than its value.
func TestWindow(t *testing.T) {
	var w window
	at := time.Unix(1_800_000_000, 0)
	for i, step := range []struct {
		after       time.Duration
		value, rise uint64
	}{
		{0, 100, 0}, {time.Second, 103, 3}, {time.Second, 103, 3}, {57 * time.Second, 105, 5},
		{2 * time.Second, 105, 2}, // of a minute ago there were 103
		{59 * time.Second, 106, 1}, {time.Hour, 200, 0},
		{time.Second, 7, 0}, {time.Second, 9, 2}, // it fell
	} {
		at = at.Add(step.after)
		if got := w.rise(at, step.value, time.Minute); got != step.rise {
			t.Errorf("step %d: %d has risen by %d, want %d", i, step.value, got, step.rise)
		}
	}
	for i := range 10_000 {
		at = at.Add(time.Millisecond)
		if w.rise(at, 9+uint64(i), time.Minute); len(w.points) > windowPoints+2 {
			t.Fatalf("%d points of %d ms", len(w.points), i)
		}
	}
}

// Counters of links that fall by themselves are no storm of errors.
func TestCountersThatFall(t *testing.T) {
	b := newBench(t)
	b.sample(func(s *Sample) { s.PCIeReplays = ptr(uint64(5)) })
	b.sample(func(s *Sample) { s.PCIeReplays = ptr(uint64(1)) })
	b.is(schema.GPUHealthy, "", "")
}

// Six minutes of ten are enough, to the second, and the supply's word counts as the hardware's.
func TestSlowdownEdge(t *testing.T) {
	b := newBench(t)
	brake := func(s *Sample) { s.Slower = ptr(uint64(SlowerPowerBrake)) }
	for range 6*60 - 1 {
		b.sample(brake)
	}
	b.is(schema.GPUHealthy, "", "")
	b.sample(brake)
	b.is(schema.GPUDegraded, "hw-slowdown", "The hardware has slowed the GPU down for 6m")
	if a := b.m.GPUs("")[0].Action; !strings.Contains(a, "power supply: it asks") {
		t.Errorf("action %q", a)
	}
	b = newBench(t)
	for range 8 * 60 {
		b.sample(func(s *Sample) { s.Slower = ptr(uint64(SlowerPowerCap | SlowerSWThermal)) }) // settings, and no fault
	}
	b.is(schema.GPUHealthy, "", "")
}

// A drain that a reset is to follow says so.
func TestDrainAndReset(t *testing.T) {
	b := newBench(t)
	b.sample(func(s *Sample) { s.RecoveryAction = ptr(uint64(4)) })
	b.is(schema.GPUDegraded, "recovery-drain", "The GPU works with less capacity")
}

// That a GPU was not asked yet is no news; that the first question has no answer is.
func TestListedIsNoNews(t *testing.T) {
	m, now := New(0), time.Unix(1_800_000_000, 0)
	if changes := m.Hello(now, &Hello{GPUs: []GPU{id(0), id(1)}}); len(changes) != 0 {
		t.Errorf("listing GPUs: %+v, want nothing told", changes)
	}
	if g := m.GPUs(""); len(g) != 2 || g[0].State != schema.GPUUnknown || g[0].Reason != "It was not asked yet." {
		t.Errorf("%+v", g)
	}
	changes := m.Silent(now.Add(9*time.Second), "the driver does not answer", false, false)
	if len(changes) != 2 || changes[0].From != schema.GPUUnknown || changes[0].To != schema.GPUUnknown ||
		changes[0].Code != "no-answer" || changes[0].Reason != "The driver does not answer." {
		t.Errorf("silence from the beginning: %+v", changes)
	}
}
