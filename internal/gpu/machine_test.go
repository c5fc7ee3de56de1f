package gpu

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gradbus/schema"
)

// bench is a Machine with one GPU that was sampled once, and a clock.
type bench struct {
	t   *testing.T
	m   *Machine
	now time.Time
	all []Change
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, m: New(0), now: time.Unix(1_800_000_000, 0)}
	b.took(b.m.Hello(b.now, &Hello{Driver: "580.1", GPUs: []GPU{id(0)}}))
	b.sample(nil)
	return b
}

func id(index int) GPU {
	return GPU{Index: index, UUID: fmt.Sprintf("GPU-%d", index), Name: "H100",
		PCI: fmt.Sprintf("0000:%02x:00.0", 0x3b+index)}
}

func (b *bench) took(c []Change) { b.all = append(b.all, c...) }

// healthy is a sample that tells all signals, and nothing wrong.
func healthy() *Sample {
	s := sampleOf(id(0))
	for _, count := range []**uint64{&s.ECCUncorrected, &s.ECCCorrected, &s.PCIeReplays, &s.NVLinkErrors, &s.Slower,
		&s.RetiredPages, &s.RecoveryAction} {
		*count = ptr(uint64(0))
	}
	for _, flag := range []**bool{&s.RetiredPending, &s.RemapPending, &s.RemapFailed, &s.SRAMThreshold} {
		*flag = ptr(false)
	}
	s.ThermalMargin, s.PCIeWidth, s.PCIeWidthMax = ptr(schema.Real(40)), ptr(16), ptr(16)
	s.MemoryTotal = ptr(int64(80 << 30))
	return s
}

// sample is a second later, with what alter makes of a healthy sample.
func (b *bench) sample(alter func(*Sample)) {
	b.now = b.now.Add(time.Second)
	s := healthy()
	if alter != nil {
		alter(s)
	}
	b.took(b.m.Sample(b.now, s, false))
}

func (b *bench) xid(number uint64) {
	b.took(b.m.XID(b.now, &XID{UUID: "GPU-0", Number: number}, false))
}

// is checks state, code, and how the reason begins.
func (b *bench) is(state schema.GPUState, code, reason string) {
	b.t.Helper()
	g := b.m.GPUs("")[0]
	if g.State != state || g.Code != code || !strings.HasPrefix(g.Reason, reason) {
		b.t.Errorf("%s: GPU is %s, %q, %q; want %s, %q, %q...", b.now.Format("15:04:05"), g.State, g.Code, g.Reason, state,
			code, reason)
	}
	if bad := state == schema.GPUDegraded || state == schema.GPUUnhealthy || state == schema.GPUUnknown; bad &&
		(g.Action == "" || !strings.HasSuffix(g.Reason, ".")) {
		b.t.Errorf("%s: reason %q, action %q: want sentences", code, g.Reason, g.Action)
	}
}

type sign struct {
	alter  func(*Sample)
	state  schema.GPUState
	code   string
	reason string
}

// signs are samples with one sign each, and what is thought then.
func signs() []sign {
	return []sign{
		{func(s *Sample) { s.Lost = LostGone }, schema.GPUUnhealthy, "gpu-lost",
			"The driver has lost the GPU."},
		{func(s *Sample) { s.Lost = LostReset }, schema.GPUUnhealthy, "gpu-reset-required", "The driver wants the GPU reset"},
		{func(s *Sample) { s.RecoveryAction = ptr(uint64(1)) }, schema.GPUUnhealthy, "recovery-reset",
			"The driver asks for a reset"},
		{func(s *Sample) { s.RecoveryAction = ptr(uint64(2)) }, schema.GPUUnhealthy, "recovery-reboot",
			"The driver asks for a reboot"},
		{func(s *Sample) { s.RecoveryAction = ptr(uint64(6)) }, schema.GPUUnhealthy, "recovery-reset",
			"The driver asks for a reset of the GPU's PCIe bus"},
		{func(s *Sample) { s.RecoveryAction = ptr(uint64(7)) }, schema.GPUUnhealthy, "recovery-reboot",
			"The driver asks for a reboot"},
		{func(s *Sample) { s.RecoveryAction = ptr(uint64(3)) }, schema.GPUDegraded, "recovery-drain", ""},
		{func(s *Sample) { s.RecoveryAction = ptr(uint64(4)) }, schema.GPUDegraded, "recovery-drain", ""},
		{func(s *Sample) { s.RecoveryAction = ptr(uint64(5)) }, schema.GPUDegraded, "recovery-fabric", ""},
		{func(s *Sample) { s.RecoveryAction = ptr(uint64(77)) }, schema.GPUDegraded, "recovery-drain",
			"The driver asks for recovery action 77"},
		{func(s *Sample) { s.ECCUncorrected = ptr(uint64(1)) }, schema.GPUUnhealthy, "ecc-uncorrectable",
			"1 memory error that"},
		{func(s *Sample) { s.ECCUncorrected = ptr(uint64(2)) }, schema.GPUUnhealthy, "ecc-uncorrectable",
			"2 memory errors that"},
		{func(s *Sample) { s.SRAMThreshold = ptr(true) }, schema.GPUUnhealthy, "sram-threshold", "Uncorrectable errors"},
		{func(s *Sample) { s.RemapFailed = ptr(true) }, schema.GPUUnhealthy, "remap-failed", "A faulty memory row"},
		{func(s *Sample) { s.RemapPending = ptr(true) }, schema.GPUDegraded, "remap-pending", "A faulty memory row waits"},
		{func(s *Sample) { s.RetiredPages = ptr(uint64(14)) }, schema.GPUHealthy, "", ""},
		{func(s *Sample) { s.RetiredPages = ptr(uint64(15)) }, schema.GPUDegraded, "retired-pages",
			"15 memory pages are retired (63 is too many)."},
		{func(s *Sample) { s.RetiredPages = ptr(uint64(63)) }, schema.GPUUnhealthy, "retired-pages-many", "63 memory pages"},
		{func(s *Sample) { s.RetiredPending = ptr(true) }, schema.GPUDegraded, "retired-pending", "A faulty memory page"},
		{func(s *Sample) { s.ThermalMargin = ptr(schema.Real(5)) }, schema.GPUHealthy, "", ""},
		{func(s *Sample) { s.ThermalMargin = ptr(schema.Real(4)) }, schema.GPUDegraded, "thermal-margin", "The GPU is 4 degrees"},
		{func(s *Sample) { s.ThermalMargin = ptr(schema.Real(-1)) }, schema.GPUDegraded, "thermal-margin", "The GPU is -1 degrees"},
		{func(s *Sample) { s.PCIeWidth = ptr(8) }, schema.GPUDegraded, "pcie-width",
			"The GPU's PCIe link has 8 of 16 lanes."},
		{func(s *Sample) { *s = *sampleOf(s.gpu()) }, schema.GPUHealthy, "", ""},
	}
}

// Every signal, and how it goes.
func TestSignals(t *testing.T) {
	for _, c := range signs() {
		b := newBench(t)
		b.is(schema.GPUHealthy, "", "")
		b.sample(c.alter)
		b.is(c.state, c.code, c.reason)
		healthy := schema.GPUHealthy
		if c.state == schema.GPUUnhealthy {
			healthy = schema.GPUUnhealthy
		}
		// Three clean polls end what is not sticky, two do not.
		clean := func(s *Sample) { s.ECCUncorrected = nil }
		b.sample(clean)
		b.sample(clean)
		b.is(c.state, c.code, c.reason)
		b.sample(clean)
		if got := b.m.GPUs("")[0].State; got != healthy {
			t.Errorf("%s: %s after three clean polls, want %s", c.code, got, healthy)
		}
	}
}

// What is not told is no sample: it neither clears a finding nor makes one.
func TestNotToldIsNoSample(t *testing.T) {
	b := newBench(t)
	b.sample(func(s *Sample) { s.PCIeWidth = ptr(8) })
	for range 10 {
		b.sample(func(s *Sample) { s.PCIeWidth = nil })
	}
	b.is(schema.GPUDegraded, "pcie-width", "")
	for range 3 {
		b.sample(nil)
	}
	b.is(schema.GPUHealthy, "", "")
	g := b.m.GPUs("")[0]
	if g.Temperature != nil || g.PowerWatts != nil || g.RowsRemapped != nil {
		t.Errorf("temperature %v, power %v, rows %v: want nil, since none was told", g.Temperature, g.PowerWatts,
			g.RowsRemapped)
	}
	if g.ECCCorrected == nil || *g.ECCCorrected != 0 {
		t.Errorf("corrected errors %v: want 0, which was told", g.ECCCorrected)
	}
}

// What follows from XIDs by NVIDIA's catalog: 109 asks for a reset, 43 is to be ignored, 74 is a fault of NVLink, and
// those that ask to restart the application restart the job.
func TestXIDClasses(t *testing.T) {
	for class, numbers := range map[Class][]uint64{
		Quarantine: {46, 48, 54, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158},
		Restart:    {8, 13, 31, 39, 45, 80, 94, 139},
		Degrade:    {74, 78, 144, 150, 151, 159, 0, 1, 47, 61, 142, 171, 173, 999, 1 << 31},
		Ignore:     {14, 43, 44, 63, 92, 93, 121, 137, 157},
	} {
		for _, n := range numbers {
			if got := entryOf(n).class; got != class {
				t.Errorf("XID %d has class %d, want %d", n, got, class)
			}
			b := newBench(t)
			b.all = nil
			b.xid(n)
			switch class {
			case Quarantine:
				b.is(schema.GPUUnhealthy, fmt.Sprintf("xid-%d", n), fmt.Sprintf("XID %d: ", n))
			case Ignore:
				b.is(schema.GPUHealthy, "", "")
			default:
				b.is(schema.GPUDegraded, fmt.Sprintf("xid-%d", n), fmt.Sprintf("XID %d: ", n))
			}
			if len(b.all) != 1 {
				t.Fatalf("XID %d: %d changes, want 1", n, len(b.all))
			}
			if c := b.all[0]; c.ContextLost != (class == Quarantine || class == Restart) {
				t.Errorf("XID %d: context lost %v", n, c.ContextLost)
			}
			if got := b.m.GPUs("")[0].XIDs[fmt.Sprint(n)]; got != 1 {
				t.Errorf("XID %d is counted %d times", n, got)
			}
		}
	}
	if got := entryOf(63).action; got != "Reset the GPU at the next opportunity." { // the class is that of NVIDIA's catalog, which names no action
		t.Errorf("XID 63 asks to %q", got)
	}
	if got := entryOf(154).class; got != Notice {
		t.Errorf("XID 154 has class %d, want %d", got, Notice)
	}
	if e := entryOf(74); !strings.Contains(e.name, "NVLink") || !strings.Contains(e.action, "nvlink") {
		t.Errorf("XID 74: %+v", e)
	}
}

// XID 154 says that the recovery action has changed: which, the next sample says, and that decides. Where the driver
// does not tell it, the XID alone is a warning.
func TestRecoveryActionDecides(t *testing.T) {
	b := newBench(t)
	b.all = nil
	b.xid(154)
	b.is(schema.GPUHealthy, "", "")
	if len(b.all) != 1 || b.all[0].Code != "xid-154" || b.all[0].ContextLost {
		t.Fatalf("told of %+v", b.all)
	}
	b.sample(func(s *Sample) { s.RecoveryAction = ptr(uint64(1)) })
	b.is(schema.GPUUnhealthy, "recovery-reset", "The driver asks for a reset")
	if n := b.m.GPUs("")[0].XIDs["154"]; n != 1 {
		t.Errorf("XID 154 is counted %d times", n)
	}

	b = newBench(t)
	b.xid(154) // back to none, as after a reset by somebody else
	for range 5 {
		b.sample(nil)
		b.is(schema.GPUHealthy, "", "")
	}

	b = newBench(t)
	b.sample(func(s *Sample) { s.RecoveryAction = nil })
	b.xid(154)
	b.is(schema.GPUDegraded, "xid-154", "XID 154: the driver has changed the recovery")
}

// A XID that degrades counts for ten minutes, then three clean polls end it.
func TestXIDHold(t *testing.T) {
	b := newBench(t)
	b.xid(74)
	b.now = b.now.Add(10*time.Minute - 2*time.Second)
	for range 3 {
		b.sample(nil)
	}
	b.is(schema.GPUDegraded, "xid-74", "")
	b.sample(nil)
	b.sample(nil)
	b.is(schema.GPUHealthy, "", "")
}
