package gpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gradbus/schema"
)

// learning is a process that takes a record in some state of its own.
type learning struct {
	first func(b *bench)                     // what the process has seen before
	other func(b *bench)                     // what another one has
	then  func(b *bench, k []Kept, old Kept) // after it has learnt k
	state schema.GPUState
	code  string
}

func learnings() map[string]learning {
	real := func(b *bench) { b.xid(79) }
	return map[string]learning{
		"an old record does not undo an acknowledgement": {real, nil, func(b *bench, k []Kept, old Kept) {
			_, _ = b.m.Acknowledge(b.now, "0")
			b.m.Learn(b.now, "boot-1", []Kept{old})
		}, schema.GPUHealthy, ""},
		"nor where the clock was set back": {real, nil, func(b *bench, k []Kept, old Kept) {
			_, _ = b.m.Acknowledge(b.now.Add(-time.Hour), "0")
			b.m.Learn(b.now, "boot-1", []Kept{old})
		}, schema.GPUHealthy, ""},
		"nor one of an incident": {func(b *bench) { b.xid(31) }, nil, func(b *bench, k []Kept, old Kept) {
			_, _ = b.m.Acknowledge(b.now, "0")
			b.m.Learn(b.now, "boot-1", []Kept{old})
			b.now = b.now.Add(time.Hour)
			b.xid(31)
		}, schema.GPUDegraded, "xid-31"},
		"an incident that another acknowledges": {func(b *bench) { b.xid(31) }, nil, func(b *bench, k []Kept, old Kept) {
			old.Acknowledge(b.now.Add(time.Second))
			b.m.Learn(b.now, "boot-1", []Kept{old})
			b.now = b.now.Add(time.Hour)
			b.xid(31)
		}, schema.GPUDegraded, "xid-31"},
		"or acknowledges after the clock was set back": {func(b *bench) { b.xid(31) }, nil,
			func(b *bench, k []Kept, old Kept) {
				old.Acknowledge(b.now.Add(-time.Hour))
				b.m.Learn(b.now, "boot-1", []Kept{old})
				b.now = b.now.Add(time.Hour)
				b.xid(31)
			}, schema.GPUDegraded, "xid-31"},
		"an error that came again after the acknowledgement": {real, nil, func(b *bench, k []Kept, old Kept) {
			old.Acknowledge(b.now.Add(time.Second))
			b.now = b.now.Add(2 * time.Second)
			b.xid(79)
			b.m.Learn(b.now, "boot-1", []Kept{old})
		}, schema.GPUUnhealthy, "xid-79"},
		"a burst of which others tell": {nil, func(b *bench) { b.xid(45) }, func(b *bench, k []Kept, old Kept) {
			b.now = b.now.Add(20 * time.Second)
			b.xid(45)
		}, schema.GPUDegraded, "xid-45"},
		"a warning that is a quarantine to others": {func(b *bench) { b.xid(31) },
			func(b *bench) { b.xid(31); b.now = b.now.Add(time.Hour); b.xid(31) }, nil, schema.GPUUnhealthy, "xid-31"},
		"no boot is known to the record": {nil, real, func(b *bench, k []Kept, old Kept) {
			k[0].Boot = ""
			b.m = New(0)
			b.m.Learn(b.now, "boot-1", k)
			b.m.Hello(b.now, &Hello{GPUs: []GPU{id(0)}})
		}, schema.GPUUnhealthy, "xid-79"},
		"a finding after the clock was set back by more than its acknowledgement": {real, nil,
			func(b *bench, k []Kept, old Kept) {
				_, _ = b.m.Acknowledge(b.now, "0")
				b.now = b.now.Add(-time.Hour)
				b.xid(79)
				*b = *b.again(time.Second, "boot-1")
			}, schema.GPUUnhealthy, "xid-79"},
	}
}

// A record is taken in whatever state the process is that takes it.
func TestLearn(t *testing.T) {
	for name, c := range learnings() {
		b, other := newBench(t), newBench(t)
		for _, one := range []*bench{b, other} {
			one.m.Learn(one.now, "boot-1", nil)
			one.sample(nil)
		}
		if c.first != nil {
			c.first(b)
		}
		old := Kept{}
		if k := b.m.Kept(b.now); len(k) == 1 {
			old = k[0]
		}
		var k []Kept
		if c.other != nil {
			c.other(other)
			k = other.m.Kept(other.now)
			b.m.Learn(b.now, "boot-1", k)
		}
		if c.then != nil {
			c.then(b, k, old)
		}
		if g := b.m.GPUs("")[0]; g.State != c.state || g.Code != c.code {
			t.Errorf("%s: %s, %q; want %s, %q", name, g.State, g.Code, c.state, c.code)
		}
	}
}

// shared is a file of what is remembered, to which benches hold as processes do.
type shared struct {
	all    []Kept
	writes int
}

func (f *shared) sync(b *bench, boot string) {
	b.took(b.m.Learn(b.now, boot, f.all))
	for _, ours := range b.m.Kept(b.now) {
		i := slices.IndexFunc(f.all, func(k Kept) bool { return k.UUID == ours.UUID })
		switch {
		case i < 0:
			f.all = append(slices.Clone(f.all), ours)
			f.writes++
		case !f.all[i].Same(&ours):
			f.all = slices.Clone(f.all)
			f.all[i] = ours
			f.writes++
		}
	}
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
		f := &shared{}
		now := time.Unix(1_800_000_000, 0)
		var all []*bench
		begin := func() *bench {
			b := &bench{t: t, m: New(0), now: now}
			b.m.Learn(now, "boot-1", f.all)
			b.m.Hello(now, &Hello{GPUs: []GPU{id(0)}})
			b.sample(nil)
			return b
		}
		for range 3 {
			all = append(all, begin())
		}
		for range steps {
			now = now.Add(time.Duration(r.IntN(5000)) * time.Millisecond)
			b := all[r.IntN(len(all))]
			for _, one := range all {
				one.now = now.Add(time.Duration(r.IntN(1_000_000))) // not to the same nanosecond
			}
			switch r.IntN(12) {
			case 0:
				all[r.IntN(len(all))] = begin()
			case 1:
				for i := range f.all {
					f.all = slices.Clone(f.all)
					f.all[i].Acknowledge(now)
				}
			case 2, 3, 4:
				f.sync(b, "boot-1")
			default:
				something(r, b, all)
			}
		}
		now = now.Add(time.Minute)
		for _, b := range all {
			b.now = now
			b.sample(func(s *Sample) { s.ECCUncorrected, s.ECCCorrected = nil, nil })
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
			real := slices.ContainsFunc(b.m.gpus[0].found, func(c *condition) bool { return c.Sticky && !c.injected })
			if real != held {
				t.Fatalf("seed %d: process %d has findings: %v, the file: %v", seed, i, real, held)
			}
		}
	}
}
