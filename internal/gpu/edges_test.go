package gpu

import (
	"strings"
	"testing"
	"time"

	"gradbus/schema"
)

// The hardware slows the GPU down, and the supply's word counts as the hardware's; settings and software do not.
func TestSlowdown(t *testing.T) {
	b := newBench(t)
	b.sample(func(s *Sample) { s.Slower = ptr(uint64(SlowerPowerBrake)) })
	b.is(schema.GPUDegraded, "hw-slowdown", "The hardware slows the GPU down")
	if a := b.m.GPUs("")[0].Action; !strings.Contains(a, "power supply: it asks") {
		t.Errorf("action %q", a)
	}
	b = newBench(t)
	b.sample(func(s *Sample) { s.Slower = ptr(uint64(SlowerHWThermal | 1)) })
	b.is(schema.GPUDegraded, "hw-slowdown", "")
	if got := b.m.GPUs("")[0].Throttled; len(got) != 1 || got[0] != "hw_thermal" {
		t.Errorf("clocks are lowered for %v: idling is no reason", got)
	}
	for range cleanPolls {
		b.sample(func(s *Sample) { s.Slower = ptr(uint64(SlowerPowerCap | SlowerSWThermal)) })
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
