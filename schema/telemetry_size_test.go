package schema

import (
	"runtime"
	"strings"
	"testing"
)

// What a report is said to take is what the heap grows by, but for what an allocator rounds up.
func TestReportMemory(t *testing.T) {
	many := func() *Telemetry {
		p := testServerReport()
		for range 2000 {
			p.Server.Jobs[0].Members = append(p.Server.Jobs[0].Members, MemberReport{Member: "t1"})
			p.Server.Shards = append(p.Server.Shards, ShardReport{Job: "demo", Waiting: &Waiting{Members: []Member{"t1"}}})
		}
		p.Server.Shards, p.Server.Reasons = p.Server.Shards[:1000], map[string]uint64{}
		for i := range 200 {
			p.Server.Reasons["reason_"+strings.Repeat("x", i%50)+string(rune('a'+i/50))] = 1
		}
		p.Server.Backend = strings.Repeat("b", 4000)
		return p
	}
	links := func() *Telemetry {
		p := testTrainerReport()
		p.Trainer.Links = make([]LinkReport, LinksMax)
		p.Trainer.GPUs = make([]GPUReport, telemetryGPUsMax)
		for i := range p.Trainer.GPUs {
			p.Trainer.GPUs[i] = GPUReport{State: GPUHealthy, Temperature: real(1), XIDs: map[string]uint64{"63": 1}}
		}
		return p
	}
	for name, make := range map[string]func() *Telemetry{"server": many, "trainer": links} {
		frame, err := encodeReport(Head{}, make())
		check(t, err)
		v, err := Verify(frame, Limits{})
		check(t, err)
		const copies = 64
		all := [copies]*Telemetry{}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range all {
			all[i], err = DecodeTelemetry(&v)
			check(t, err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		took, said := int64(after.HeapAlloc-before.HeapAlloc)/copies, int64(all[0].MemoryBytes())
		if took > said*3/2 || took < said/2 {
			t.Errorf("a report of a %s takes %d bytes, and is said to take %d; its frame has %d", name, took, said, len(frame))
		}
		t.Logf("%s: %d bytes, said %d, frame %d", name, took, said, len(frame))
		runtime.KeepAlive(&all)
	}
	b := testTrainerReport()
	if n := testing.AllocsPerRun(10, func() { _ = b.MemoryBytes() }); n > 20 {
		t.Errorf("%v allocations", n)
	}
}
