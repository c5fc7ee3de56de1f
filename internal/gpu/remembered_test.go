package gpu

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/schema"
)

// again is another process on the same machine, later: it knows what the first one would have remembered.
func (b *bench) again(gap time.Duration, boot string) *bench {
	c := &bench{t: b.t, m: New(0), now: b.now.Add(gap)}
	c.m.command = "ps gpu-ack"
	c.m.Learn(c.now, boot, b.m.Kept(b.now))
	c.took(c.m.Hello(c.now, &Hello{GPUs: []GPU{id(0)}}))
	return c
}

// beside is another process that runs at the same time and takes what the first one has written.
func (b *bench) learns(from *bench) {
	b.took(b.m.Learn(b.now, "boot-1", from.m.Kept(from.now)))
}

// A quarantine outlives the process: it holds before the first sample of the next one, since when it began.
func TestKeptQuarantine(t *testing.T) {
	b := newBench(t)
	b.m.Learn(b.now, "boot-1", nil)
	b.sample(nil)
	b.xid(79)
	since := b.now
	want := []Kept{{GPU: id(0), Boot: "boot-1", Findings: []KeptFinding{{"xid-79",
		"XID 79: the GPU has fallen off the bus", actPower, since.UnixMilli(), since.UnixMilli(), false}}}}
	if got := b.m.Kept(b.now); !reflect.DeepEqual(got, want) {
		t.Fatalf("kept %+v, want %+v", got, want)
	}
	c := b.again(time.Hour, "boot-1")
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
	if d := c.again(time.Minute, "boot-1"); d.m.May("GPU-0") != nil {
		t.Error("acknowledged, and remembered all the same")
	}
}

// What goes by itself and what is made up are not remembered.
func TestKeptNot(t *testing.T) {
	for name, do := range map[string]func(b *bench){
		"nothing":      func(b *bench) {},
		"a warning":    func(b *bench) { b.sample(func(s *Sample) { s.PCIeWidth = ptr(8) }) },
		"a XID":        func(b *bench) { b.xid(63) },
		"one unlisted": func(b *bench) { b.xid(999) },
		"made up": func(b *bench) {
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
		b := newBench(t)
		b.m.Learn(b.now, "boot-1", nil)
		do(b)
		if kept := b.m.Kept(b.now); len(kept) != 0 {
			t.Errorf("%s: kept %+v", name, kept)
		}
		_, _ = b.m.Acknowledge(b.now, "GPU-0")
		if kept := b.m.Kept(b.now); len(kept) != 0 {
			t.Errorf("%s, acknowledged: kept %+v", name, kept)
		}
	}
}

// Every XID of class Restart quarantines on a repeat within a day, although the first one has ended the process.
func TestKeptRepeat(t *testing.T) {
	for _, number := range []uint64{13, 31, 39, 45, 94} {
		for _, c := range []struct {
			gap   time.Duration
			state schema.GPUState
		}{
			{2 * time.Second, schema.GPUDegraded}, // the rest of a burst, to a process that was started in the midst of it
			{10 * time.Second, schema.GPUUnhealthy}, {time.Hour, schema.GPUUnhealthy}, {24 * time.Hour, schema.GPUUnhealthy},
			{24*time.Hour + time.Second, schema.GPUDegraded},
		} {
			b := newBench(t)
			b.xid(number)
			n := b.again(c.gap, "boot-1")
			n.is(schema.GPUUnknown, "no-answer", "")
			n.xid(number)
			n.sample(nil)
			n.is(c.state, fmt.Sprintf("xid-%d", number), "XID ")
			if n.m.GPUs("")[0].State == schema.GPUUnhealthy {
				n = n.again(time.Second, "boot-1")
				if n.m.May("0") == nil {
					t.Errorf("XID %d: the quarantine itself is not remembered", number)
				}
			}
		}
	}
	b := newBench(t)
	b.xid(31)
	b = b.again(time.Hour, "boot-2") // a restart of the machine is no excuse for a repeat
	b.sample(nil)
	b.xid(31)
	b.is(schema.GPUUnhealthy, "xid-31",
		"XID 31: a kernel read or wrote memory that it may not, for the second time within 24h.")
	b = newBench(t)
	b.xid(31)
	if _, err := b.m.Acknowledge(b.now, "0"); err != nil { // but an acknowledgement is
		t.Fatal(err)
	}
	b = b.again(time.Hour, "boot-1")
	b.sample(nil)
	b.xid(31)
	b.is(schema.GPUDegraded, "xid-31", "")
}

// A process that crashes again and again, within a minute each time, is noticed; many reports of one crash are none.
func TestKeptCrashLoop(t *testing.T) {
	b := newBench(t)
	b.m.Learn(b.now, "boot-1", nil)
	for range 50 {
		b.xid(45)
		b.now = b.now.Add(time.Second)
	}
	b.is(schema.GPUDegraded, "xid-45", "")
	b = b.again(20*time.Second, "boot-1")
	b.xid(45)
	b.is(schema.GPUUnhealthy, "xid-45", "")
}

// A restart of the machine ends what was; a reset of the GPU is to be acknowledged.
func TestKeptBoot(t *testing.T) {
	for boot, well := range map[string]bool{"boot-1": false, "boot-2": true, "": false} { // of which nothing is known
		b := newBench(t)
		b.m.Learn(b.now, "boot-1", nil)
		b.xid(48)
		for range 2 { // the third process comes to the same
			b = b.again(time.Hour, boot)
			b.sample(nil)
			if state := b.m.GPUs("")[0].State; (state != schema.GPUUnhealthy) != well {
				t.Errorf("boot %q: %s", boot, state)
			}
		}
		if kept := b.m.Kept(b.now); well && (len(kept) != 1 || kept[0].Holds()) {
			t.Errorf("boot %q: kept %+v, want an empty record in the place of the old one", boot, kept)
		}
	}
}

// Two processes that watch the same GPU come to the same.
func TestKeptBeside(t *testing.T) {
	a, b := newBench(t), newBench(t)
	a.m.Learn(a.now, "boot-1", nil)
	b.m.Learn(b.now, "boot-1", nil)
	a.took(a.m.Mismatch(a.now, "GPU-0", "1 of 10 blocks", false)) // which b cannot have seen
	b.now, b.all = a.now.Add(time.Second), nil
	b.learns(a)
	b.is(schema.GPUUnhealthy, "verify-mismatch", "Its results differ from those of the CPU: 1 of 10 blocks.")
	if len(b.all) != 1 || b.all[0].From != schema.GPUHealthy || !b.m.Suspect("GPU-0", a.now) {
		t.Errorf("told %+v, suspect %v", b.all, b.m.Suspect("GPU-0", a.now))
	}
	b.all = nil
	b.learns(a)
	if b.all != nil {
		t.Errorf("told again: %+v", b.all)
	}
	a.now = b.now.Add(time.Second)
	b.xid(48) // a has not seen it, and acknowledges
	b.now = a.now
	if _, err := a.m.Acknowledge(a.now, "0"); err != nil {
		t.Fatal(err)
	}
	b.now = b.now.Add(time.Second)
	b.xid(79) // after the acknowledgement
	b.all = nil
	b.learns(a)
	b.is(schema.GPUUnhealthy, "xid-79", "XID 79: the GPU has fallen off the bus.")
	if slices.ContainsFunc(b.all, func(c Change) bool { return c.Code == "acknowledged" }) {
		t.Errorf("told of an acknowledgement of what has come after it: %+v", b.all)
	}
	a.now = b.now
	a.learns(b)
	a.is(schema.GPUUnhealthy, "xid-79", "")
	if _, err := b.m.Acknowledge(b.now, "0"); err != nil {
		t.Fatal(err)
	}
	a.all = nil
	a.learns(b)
	a.is(schema.GPUHealthy, "", "")
	if len(a.all) != 1 || a.all[0].Code != "acknowledged" {
		t.Errorf("told %+v", a.all)
	}
	// What is still wrong comes back, and counters go on from where they were acknowledged.
	a.sample(func(s *Sample) { s.ECCUncorrected, s.RemapFailed = ptr(uint64(3)), ptr(true) })
	b.now = a.now
	b.learns(a)
	if _, err := b.m.Acknowledge(b.now, "0"); err != nil {
		t.Fatal(err)
	}
	a.learns(b)
	a.is(schema.GPUHealthy, "", "")
	a.sample(func(s *Sample) { s.ECCUncorrected, s.RemapFailed = ptr(uint64(3)), ptr(true) })
	a.is(schema.GPUUnhealthy, "remap-failed", "A faulty memory row could not be remapped.")
}

// A clock that was set back makes no acknowledgement void.
func TestKeptClockBack(t *testing.T) {
	b := newBench(t)
	b.xid(79)
	k := b.m.Kept(b.now)[0]
	if f, _ := k.Acknowledge(b.now.Add(-time.Hour)); len(f) != 1 || len(k.Findings) != 0 {
		t.Fatalf("forgot %+v, kept %+v", f, k)
	}
	again := Kept{AcknowledgedMS: 100, Findings: []KeptFinding{{SinceMS: 5, SeenMS: 6}}}
	if again.Acknowledge(time.UnixMilli(7)); again.AcknowledgedMS != 101 {
		t.Errorf("acknowledged at %d, want 101: who knows of 100 is to take it for a new one", again.AcknowledgedMS)
	}
	b.took(b.m.Learn(b.now.Add(-time.Hour), "boot-1", []Kept{k}))
	b.is(schema.GPUHealthy, "", "")
	b.xid(79)
	b.now = b.now.Add(-time.Hour)
	if _, err := b.m.Acknowledge(b.now, "0"); err != nil {
		t.Fatal(err)
	}
	if kept := b.m.Kept(b.now); len(kept) != 1 || kept[0].AcknowledgedMS <= k.AcknowledgedMS {
		t.Errorf("kept %+v after %+v", kept, k)
	}
}
