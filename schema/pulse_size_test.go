package schema

import (
	"runtime"
	"strings"
	"testing"
)

// What a pulse is said to take is what the heap grows by, but for what an allocator rounds up.
func TestPulseMemory(t *testing.T) {
	many := func() *Pulse {
		p := testServerPulse()
		for range 2000 {
			p.Server.Jobs[0].Members = append(p.Server.Jobs[0].Members, MemberPulse{Member: "t1"})
			p.Server.Shards = append(p.Server.Shards, ShardPulse{Job: "demo", Waiting: &Wait{Members: []Member{"t1"}}})
		}
		p.Server.Shards, p.Server.Reasons = p.Server.Shards[:1000], map[string]uint64{}
		for i := range 200 {
			p.Server.Reasons["reason_"+strings.Repeat("x", i%50)+string(rune('a'+i/50))] = 1
		}
		p.Server.Backend = strings.Repeat("b", 4000)
		return p
	}
	links := func() *Pulse {
		p := testTrainerPulse()
		p.Trainer.Links = make([]LinkPulse, LinksMax)
		p.Trainer.GPUs = make([]GPUPulse, PulseGPUsMax)
		for i := range p.Trainer.GPUs {
			p.Trainer.GPUs[i] = GPUPulse{State: GPUHealthy, Temperature: real(1), XIDs: map[string]uint64{"63": 1}}
		}
		return p
	}
	for name, make := range map[string]func() *Pulse{"server": many, "trainer": links} {
		frame, err := EncodePulse(Head{}, make())
		check(t, err)
		v, err := Verify(frame, Limits{})
		check(t, err)
		const copies = 64
		all := [copies]*Pulse{}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range all {
			all[i], err = DecodePulse(&v)
			check(t, err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		took, said := int64(after.HeapAlloc-before.HeapAlloc)/copies, int64(all[0].MemoryBytes())
		if took > said*3/2 || took < said/2 {
			t.Errorf("a pulse of a %s takes %d bytes, and is said to take %d; its frame has %d", name, took, said, len(frame))
		}
		t.Logf("%s: %d bytes, said %d, frame %d", name, took, said, len(frame))
		runtime.KeepAlive(&all)
	}
	b := testTrainerPulse()
	if n := testing.AllocsPerRun(10, func() { _ = b.MemoryBytes() }); n > 20 {
		t.Errorf("%v allocations", n)
	}
}
