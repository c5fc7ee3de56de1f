package gpu

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"gradbus/schema"
)

// Unhealthy stays through clean polls and silence; acknowledging ends it, and what still is comes back.
func TestAcknowledge(t *testing.T) {
	b := newBench(t)
	b.sample(func(s *Sample) { s.RemapFailed = ptr(true) })
	for range 10 {
		b.sample(nil)
	}
	b.is(schema.GPUUnhealthy, "remap-failed", "")
	b.took(b.m.Silent(b.now, "the driver does not answer", false, false))
	b.is(schema.GPUUnhealthy, "remap-failed", "")
	for _, wrong := range []string{"", "GPU-1", "7", "x"} {
		if _, err := b.m.Acknowledge(b.now, wrong); err == nil || !strings.Contains(err.Error(), "GPU-0") {
			t.Errorf("acknowledge %q: %v", wrong, err)
		}
	}
	if _, err := b.m.Acknowledge(b.now, "gpu-"); err != nil { // the beginning of one
		t.Fatal(err)
	}
	b.is(schema.GPUUnknown, "no-answer", "The driver does not answer.")
	b.sample(nil)
	b.is(schema.GPUHealthy, "", "")
	if _, err := b.m.Acknowledge(b.now, "0"); err == nil || !strings.Contains(err.Error(), "nothing is wrong") {
		t.Errorf("acknowledge a healthy GPU: %v", err)
	}
	b.sample(func(s *Sample) { s.RemapFailed = ptr(true) })
	if _, err := b.m.Acknowledge(b.now, "GPU-0"); err != nil {
		t.Fatal(err)
	}
	b.sample(func(s *Sample) { s.RemapFailed = ptr(true) })
	b.is(schema.GPUUnhealthy, "remap-failed", "")

	// Counters count on from where they were acknowledged.
	b = newBench(t)
	b.sample(func(s *Sample) { s.ECCUncorrected = ptr(uint64(3)) })
	if _, err := b.m.Acknowledge(b.now, "0"); err != nil {
		t.Fatal(err)
	}
	b.sample(func(s *Sample) { s.ECCUncorrected = ptr(uint64(3)) })
	b.is(schema.GPUHealthy, "", "")
	b.sample(func(s *Sample) { s.ECCUncorrected = ptr(uint64(4)) })
	b.is(schema.GPUUnhealthy, "ecc-uncorrectable", "1 memory error")
}

// Errors from before this process are a warning.
func TestErrorsFromBefore(t *testing.T) {
	b := &bench{t: t, m: New(0), now: time.Unix(1_800_000_000, 0)}
	b.sample(func(s *Sample) { s.ECCUncorrected = ptr(uint64(2)) })
	b.is(schema.GPUDegraded, "ecc-uncorrectable-before", "2 memory errors")
	b.sample(func(s *Sample) { s.ECCUncorrected = ptr(uint64(3)) })
	b.is(schema.GPUUnhealthy, "ecc-uncorrectable", "1 memory error")
}

// A GPU that a later probe does not list any more is lost.
func TestGone(t *testing.T) {
	b := newBench(t)
	b.took(b.m.Hello(b.now, &Hello{GPUs: []GPU{id(1)}}))
	b.is(schema.GPUUnhealthy, "gpu-lost", "The driver does not list the GPU any more.")
	if n := len(b.m.GPUs("")); n != 2 {
		t.Errorf("%d GPUs, want 2", n)
	}
}

// What was computed before a sample that shows a memory fault is suspect.
func TestSuspect(t *testing.T) {
	b := newBench(t)
	last := b.now
	b.sample(func(s *Sample) { s.ECCUncorrected = ptr(uint64(1)) })
	shown := b.now
	b.sample(func(s *Sample) { s.ECCUncorrected = ptr(uint64(1)) })
	if !b.m.Suspect("GPU-0", last) || !b.m.Suspect("GPU-0", shown) || b.m.Suspect("GPU-0", shown.Add(1)) ||
		b.m.Suspect("GPU-1", last) {
		t.Error("want what was begun before the sample that shows it, on that GPU")
	}
	for number, want := range map[uint64]bool{48: true, 64: true, 94: true, 95: true, 140: true, 79: false, 31: false,
		63: false, 999: false} {
		b := newBench(t)
		b.xid(number)
		if got := b.m.Suspect("GPU-0", b.now); got != want {
			t.Errorf("XID %d: suspect %v", number, got)
		}
	}
	if newBench(t).m.Suspect("GPU-0", time.Time{}) {
		t.Error("nothing was wrong, and it is suspect")
	}
}

// The state is that of the worst finding, and names the others.
func TestSeveral(t *testing.T) {
	b := newBench(t)
	b.sample(func(s *Sample) { s.PCIeWidth, s.RemapPending = ptr(4), ptr(true) })
	b.is(schema.GPUDegraded, "remap-pending",
		"A faulty memory row waits to be remapped, which takes a reset; besides: pcie-width.")
	since := b.m.GPUs("")[0].SinceMS
	b.sample(func(s *Sample) { s.PCIeWidth, s.RemapPending = ptr(4), ptr(true) })
	if got := b.m.GPUs("")[0].SinceMS; got != since {
		t.Error("since when changes with every sample")
	}
	b.xid(79)
	b.is(schema.GPUUnhealthy, "xid-79", "XID 79: the GPU has fallen off the bus; besides: remap-pending, pcie-width.")
	if err := b.m.May("GPU-0"); err == nil || !strings.Contains(err.Error(), "GPU 0 (H100, GPU-0) is unhealthy since") {
		t.Errorf("may: %v", err)
	}
	if b.m.May("GPU-9") != nil {
		t.Error("a GPU of which nothing is known may not be used")
	}
}

// Without a driver: nothing where none is expected, absent ones where some are, one unknown where the driver does not
// work.
func TestNobody(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	m := New(0)
	if n := len(m.GPUs("")); n != 0 {
		t.Errorf("%d GPUs before anything is known", n)
	}
	m.Silent(now, "the NVIDIA driver is not loaded", true, false)
	if n := len(m.GPUs("")); n != 0 {
		t.Errorf("%d GPUs where none is expected", n)
	}
	m.Silent(now, "versions differ", false, false)
	if g := m.GPUs(""); len(g) != 1 || g[0].State != schema.GPUUnknown || g[0].Reason != "Versions differ." {
		t.Errorf("GPUs are %+v", g)
	}
	m = New(2)
	m.Silent(now, "the NVIDIA driver is not loaded", true, false)
	if g := m.GPUs(""); len(g) != 2 || g[1].State != schema.GPUAbsent || g[1].Code != "no-driver" ||
		g[1].Reason != "The NVIDIA driver is not loaded." {
		t.Errorf("GPUs are %+v", g)
	}
}

// Any lines in any order: nothing panics, what is remembered is bounded, and every state has what is to be told of it.
func TestRandomLines(t *testing.T) {
	const rounds, steps = 30, 600
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 7))
		m := New(0)
		now := time.Unix(1_800_000_000, 0)
		for range steps {
			now = now.Add(time.Duration(r.IntN(3000)) * time.Millisecond)
			var changes []Change
			switch r.IntN(10) {
			case 0:
				changes = m.Hello(now, &Hello{GPUs: []GPU{id(r.IntN(3)), id(3)}})
			case 1:
				changes = m.Silent(now, "the driver does not answer", false, r.IntN(2) == 0)
			case 2:
				changes = m.XID(now, &XID{UUID: id(r.IntN(4)).UUID, Number: uint64(r.IntN(200))}, r.IntN(3) == 0)
			case 3:
				changes, _ = m.Acknowledge(now, id(r.IntN(4)).UUID)
			default:
				changes = m.Sample(now, randomSample(r), r.IntN(9) == 0)
			}
			for _, c := range changes {
				if c.From == c.To && c.Code == "" || c.To == schema.GPUUnhealthy && (c.Reason == "" || c.Action == "") &&
					c.Code != "acknowledged" {
					t.Fatalf("seed %d: change %+v", seed, c)
				}
			}
			for _, g := range m.GPUs("") {
				if healthy := g.State == schema.GPUHealthy; healthy != (g.Code == "") || healthy != (g.Reason == "") ||
					healthy != (g.Action == "") {
					t.Fatalf("seed %d: %+v", seed, g)
				}
			}
		}
		if len(m.gpus) > 4 {
			t.Fatalf("seed %d: %d GPUs", seed, len(m.gpus))
		}
	}
}

// randomSample is what a driver could say: most of it is there or not, as it happens.
func randomSample(r *rand.Rand) *Sample {
	n := func(most int) *uint64 {
		if r.IntN(3) == 0 {
			return nil
		}
		return ptr(uint64(r.IntN(most)))
	}
	yes := func() *bool {
		if r.IntN(3) == 0 {
			return nil
		}
		return ptr(r.IntN(20) == 0)
	}
	s := sampleOf(id(r.IntN(4)))
	s.ECCCorrected, s.ECCUncorrected, s.RetiredPages, s.RowsRemapped = n(300), n(3), n(80), n(5)
	s.PCIeReplays, s.NVLinkErrors, s.Slower, s.RecoveryAction = n(40), n(5), n(512), n(7)
	s.SRAMThreshold, s.RemapPending, s.RemapFailed, s.RetiredPending = yes(), yes(), yes(), yes()
	s.MemoryTotal = ptr(int64(r.IntN(30)))
	if r.IntN(30) == 0 {
		s.Lost = []string{LostGone, LostReset}[r.IntN(2)]
	}
	return s
}
