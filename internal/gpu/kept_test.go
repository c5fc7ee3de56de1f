package gpu

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/schema"
)

// shared is a file of what is remembered, to which benches hold as processes do.
type shared struct {
	t      *testing.T
	all    []Kept
	writes int
}

func (f *shared) sync(b *bench, boot string) {
	f.t.Helper()
	changes, _, news := b.m.Merge(b.now, boot, f.all, false)
	b.took(changes)
	if !news {
		return
	}
	changes, to, _ := b.m.Merge(b.now, boot, f.all, true)
	b.took(changes)
	all, err := decode(encode(to))
	if err != nil {
		f.t.Fatal(err)
	}
	f.all, f.writes = all, f.writes+1
}

// acknowledge is what a command does.
func (f *shared) acknowledge() { f.all = nil }

// begin is a process that has read the file and was told of its GPU.
func (f *shared) begin(now time.Time, boot string) *bench {
	b := &bench{t: f.t, m: New(0), now: now}
	b.m.command = "ps gpu-ack"
	f.sync(b, boot)
	b.took(b.m.Hello(b.now, &Hello{GPUs: []GPU{id(0)}}))
	return b
}

// A quarantine outlives the process: it holds before the first sample of the next one, since when it began.
func TestKeptQuarantine(t *testing.T) {
	f := &shared{t: t}
	b := f.begin(time.Unix(1_800_000_000, 0), "boot-1")
	b.sample(nil)
	b.xid(79)
	since := b.now
	f.sync(b, "boot-1")
	want := []Kept{{GPU: id(0), Boot: "boot-1", Findings: []Finding{{Code: "xid-79",
		Reason: "XID 79: the GPU has fallen off the bus", Action: actPower, SinceMS: since.UnixMilli()}}}}
	if !reflect.DeepEqual(f.all, want) {
		t.Fatalf("kept %+v, want %+v", f.all, want)
	}
	c := f.begin(b.now.Add(time.Hour), "boot-1")
	if c.m.May("GPU-0") == nil {
		t.Error("a GPU that is remembered as broken may be used before it was sampled")
	}
	c.sample(nil)
	c.is(schema.GPUUnhealthy, "xid-79", "XID 79: the GPU has fallen off the bus.")
	g := c.m.GPUs("")[0]
	if g.SinceMS != since.UnixMilli() || !strings.HasSuffix(g.Action, "acknowledge it on that machine: ps gpu-ack 0.") {
		t.Errorf("since %d, want %d; action %q", g.SinceMS, since.UnixMilli(), g.Action)
	}
	if _, err := c.m.Acknowledge(c.now, "0"); err != nil {
		t.Fatal(err)
	}
	f.sync(c, "boot-1")
	c.is(schema.GPUHealthy, "", "")
	if len(f.all) != 0 || f.begin(c.now, "boot-1").m.May("GPU-0") != nil {
		t.Errorf("acknowledged, and remembered all the same: %+v", f.all)
	}
}

// What goes by itself and what is simulated are not remembered.
func TestKeptNot(t *testing.T) {
	for name, do := range map[string]func(b *bench){
		"nothing":      func(b *bench) {},
		"a warning":    func(b *bench) { b.sample(func(s *Sample) { s.PCIeWidth = ptr(8) }) },
		"a XID":        func(b *bench) { b.xid(63) },
		"one unlisted": func(b *bench) { b.xid(999) },
		"injected":     func(b *bench) { b.m.XID(b.now, &XID{UUID: "GPU-0", Number: 79}, true) },
		"simulated": func(b *bench) {
			s := sampleOf(GPU{UUID: "SIMULATED-0"})
			s.RemapFailed = ptr(true)
			b.m.Sample(b.now, s, false)
		},
		"nameless": func(b *bench) {
			s := sampleOf(GPU{UUID: "unknown-0"})
			s.Lost = LostGone
			b.m.Sample(b.now, s, false)
		},
	} {
		b, f := newBench(t), &shared{t: t}
		do(b)
		f.sync(b, "boot-1")
		_, _ = b.m.Acknowledge(b.now, "GPU-0")
		if f.sync(b, "boot-1"); f.writes != 0 {
			t.Errorf("%s: kept %+v", name, f.all)
		}
	}
}

// A restart of the machine ends what was; a reset of the GPU is to be acknowledged.
func TestKeptBoot(t *testing.T) {
	for boot, well := range map[string]bool{"boot-1": false, "boot-2": true, "": false} { // of which nothing is known
		b, f := newBench(t), &shared{t: t}
		b.xid(48)
		f.sync(b, "boot-1")
		for range 2 { // the third process comes to the same
			b = f.begin(b.now.Add(time.Hour), boot)
			b.sample(nil)
			f.sync(b, boot)
			if state := b.m.GPUs("")[0].State; (state != schema.GPUUnhealthy) != well {
				t.Errorf("boot %q: %s", boot, state)
			}
		}
	}
}

// Two processes that watch the same GPU come to the same.
func TestKeptBeside(t *testing.T) {
	a, b, f := newBench(t), newBench(t), &shared{t: t}
	both := func(first, second *bench) {
		f.sync(first, "boot-1")
		f.sync(second, "boot-1")
	}
	a.took(a.m.Mismatch(a.now, "GPU-0", "1 of 10 blocks", false)) // which b cannot have seen
	b.all = nil
	both(a, b)
	b.is(schema.GPUUnhealthy, "verify-mismatch", "Its results differ from those of the CPU: 1 of 10 blocks.")
	if len(b.all) != 1 || b.all[0].From != schema.GPUHealthy || !b.m.Suspect("GPU-0", a.now) {
		t.Errorf("told %+v, suspect %v", b.all, b.m.Suspect("GPU-0", a.now))
	}
	b.all = nil
	if f.sync(b, "boot-1"); b.all != nil {
		t.Errorf("told again: %+v", b.all)
	}
	if _, err := a.m.Acknowledge(a.now, "0"); err != nil {
		t.Fatal(err)
	}
	b.xid(79) // which a has not seen
	both(a, b)
	b.is(schema.GPUUnhealthy, "xid-79", "XID 79: the GPU has fallen off the bus.")
	f.sync(a, "boot-1")
	a.is(schema.GPUUnhealthy, "xid-79", "")
	f.acknowledge()
	a.all = nil
	both(a, b)
	a.is(schema.GPUHealthy, "", "")
	b.is(schema.GPUHealthy, "", "")
	if len(a.all) != 1 || a.all[0].Code != "acknowledged" {
		t.Errorf("told %+v", a.all)
	}
	// What is still wrong comes back, and counters go on from where they were acknowledged.
	wrong := func(s *Sample) { s.ECCUncorrected, s.RemapFailed = ptr(uint64(3)), ptr(true) }
	a.sample(wrong)
	f.sync(a, "boot-1")
	f.acknowledge()
	f.sync(a, "boot-1")
	a.is(schema.GPUHealthy, "", "")
	a.sample(wrong)
	a.is(schema.GPUUnhealthy, "remap-failed", "A faulty memory row could not be remapped.")
}

// something happens to one process, or to all of them.
func something(r *rand.Rand, b *bench, all []*bench) {
	switch r.IntN(6) {
	case 0: // an error that all see
		number := []uint64{79, 48, 31, 45, 74}[r.IntN(5)]
		for _, one := range all {
			one.xid(number)
		}
	case 1: // one that the others miss
		b.xid([]uint64{119, 13}[r.IntN(2)])
	case 2:
		b.m.Mismatch(b.now, "GPU-0", fmt.Sprintf("%d blocks", r.IntN(9)), false)
	case 3:
		_, _ = b.m.Acknowledge(b.now, "0")
	case 4:
		b.took(b.m.Silent(b.now, "nothing", false, false))
	default:
		errors, failed := uint64(r.IntN(4)), r.IntN(3) == 0
		for _, one := range all {
			one.sample(func(s *Sample) { s.ECCUncorrected, s.RemapFailed = ptr(errors), ptr(failed) })
		}
	}
}

// Whatever three processes see, acknowledge and restart, in any order: they come to the same, and then write nothing
// more.
func TestSharedComesToRest(t *testing.T) {
	const rounds, steps = 60, 80
	for seed := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed, 11))
		f := &shared{t: t}
		now := time.Unix(1_800_000_000, 0)
		var all []*bench
		for range 3 {
			all = append(all, f.begin(now, "boot-1"))
		}
		for range steps {
			now = now.Add(time.Duration(r.IntN(5000)) * time.Millisecond)
			b := all[r.IntN(len(all))]
			for _, one := range all {
				one.now = now.Add(time.Duration(r.IntN(1_000_000))) // not to the same nanosecond
			}
			switch r.IntN(12) {
			case 0:
				all[r.IntN(len(all))] = f.begin(now, "boot-1")
			case 1:
				f.acknowledge()
			case 2, 3, 4:
				f.sync(b, "boot-1")
			default:
				something(r, b, all)
			}
		}
		now = now.Add(time.Minute)
		for _, b := range all {
			b.now = now
			b.sample(func(s *Sample) { s.ECCUncorrected = nil })
		}
		for range 3 {
			for _, b := range all {
				f.sync(b, "boot-1")
			}
		}
		before := f.writes
		for _, b := range all {
			f.sync(b, "boot-1")
		}
		if f.writes != before {
			t.Fatalf("seed %d: they write for ever", seed)
		}
		held := len(f.all) > 0 && len(f.all[0].Findings) > 0
		for i, b := range all {
			real := slices.ContainsFunc(b.m.gpus[0].found, func(c *condition) bool { return c.sticky() && !c.injected })
			if real != held {
				t.Fatalf("seed %d: process %d has findings: %v, the file: %v", seed, i, real, held)
			}
		}
	}
}

// alone is a keeper whose watch is played: nothing runs but what the test calls.
func alone(path string, now time.Time) *keeper {
	m := &Monitor{config: Config{Kept: &File{path, lockTime}, Boot: func() string { return "boot-1" }}.withDefaults()}
	m.machine = New(0)
	k := newKeeper(m, now)
	m.machine.Hello(now, &Hello{GPUs: []GPU{{UUID: "GPU-0"}}})
	m.machine.Sample(now, sampleOf(GPU{UUID: "GPU-0"}), false)
	return k
}

// findings are how many the file has of the GPU.
func (k *keeper) findings() int {
	all, err := k.file.Read()
	if err != nil || len(all) == 0 {
		return 0
	}
	return len(all[0].Findings)
}

// What another process has written since is not lost when one writes.
func TestKeeperLosesNothing(t *testing.T) {
	t.Parallel()
	path, now := filepath.Join(t.TempDir(), "gpus.json"), time.Unix(1_800_000_000, 0)
	a, b := alone(path, now), alone(path, now)
	for i, k := range []*keeper{a, b} {
		k.m.machine.XID(now, &XID{UUID: "GPU-0", Number: []uint64{79, 48}[i]}, false)
		if k.sync(now); k.findings() != i+1 {
			t.Errorf("%d findings are remembered, want %d", k.findings(), i+1)
		}
	}
}

// What cannot be written is tried again after a minute, not at every tick; and is no acknowledgement.
func TestKeeperTriesAgain(t *testing.T) {
	t.Parallel()
	folder, now := t.TempDir(), time.Unix(1_800_000_000, 0)
	inTheWay := filepath.Join(folder, "state")
	if err := os.WriteFile(inTheWay, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k := alone(filepath.Join(inTheWay, "gpus.json"), now.Add(-time.Hour))
	k.m.machine.XID(now, &XID{UUID: "GPU-0", Number: 79}, false)
	if k.sync(now); k.why == "" {
		t.Fatal("written through a file")
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	if k.sync(now.Add(keepAgain - time.Second)); k.findings() != 0 {
		t.Error("tried again within a minute")
	}
	if k.sync(now.Add(keepAgain)); k.findings() != 1 || k.why != "" || k.m.machine.May("0") == nil {
		t.Errorf("not tried again: %s", k.why)
	}
}
