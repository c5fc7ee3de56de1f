package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gradbus/schema"
)

// Injection is a fault that is made up, to show what follows from it.
type Injection struct {
	Spec  string // as it was written
	GPU   int    // index
	Kind  string
	Value uint64        // of kinds that have one
	After time.Duration // from the start of the watch
	For   time.Duration // 0 is for ever
}

// kind is one thing that can be injected: an event, or a sample that is altered while it lasts.
type kind struct {
	value bool // wants =NUMBER
	once  bool // happens at a moment: for= makes no sense
	alter func(s *Sample, value uint64)
}

func ptr[T any](v T) *T { return &v }

// KindBit is a wrong bit in the results of the arithmetic, on a GPU or not, which --verify 1 finds. It is the only
// fault that is not of a GPU, and that a Monitor ignores: the code that opens the arithmetic injects it.
const KindBit = "bit"

func kinds() map[string]kind {
	or := func(v *uint64) uint64 {
		if v == nil {
			return 0
		}
		return *v
	}
	return map[string]kind{
		"xid":           {value: true, once: true},
		"mismatch":      {once: true},
		KindBit:         {once: true},
		"hang":          {}, // of the driver
		"lost":          {alter: func(s *Sample, _ uint64) { s.Lost = LostGone }},
		"reset":         {alter: func(s *Sample, _ uint64) { s.Lost = LostReset }},
		"ecc":           {value: true, alter: func(s *Sample, n uint64) { s.ECCUncorrected = ptr(or(s.ECCUncorrected) + n) }},
		"ecc-corrected": {value: true, alter: func(s *Sample, n uint64) { s.ECCCorrected = ptr(or(s.ECCCorrected) + n) }},
		"recovery":      {value: true, alter: func(s *Sample, n uint64) { s.RecoveryAction = ptr(n) }},
		"remap-pending": {alter: func(s *Sample, _ uint64) { s.RemapPending = ptr(true) }},
		"remap-failed":  {alter: func(s *Sample, _ uint64) { s.RemapFailed = ptr(true) }},
		"thermal":       {alter: func(s *Sample, _ uint64) { s.ThermalMargin = ptr(schema.Real(1)) }},
		"slowdown":      {alter: func(s *Sample, _ uint64) { s.Slower = ptr(or(s.Slower) | SlowerHardware) }},
		"pcie-width": {value: true,
			alter: func(s *Sample, n uint64) { s.PCIeWidth, s.PCIeWidthMax = ptr(int(n)), ptr(16) }},
	}
}

// Kinds are the faults that can be injected, for help texts.
func Kinds() string {
	var names []string
	for name, k := range kinds() {
		if k.value {
			name += "=N"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// ParseInjection reads one --inject: parts separated by commas, one of them the kind, and gpu=INDEX, after=TIME and
// for=TIME.
func ParseInjection(text string) (Injection, error) {
	in := Injection{Spec: text}
	fail := func(format string, args ...any) (Injection, error) {
		return Injection{}, fmt.Errorf("inject %q: %s (for example gpu=0,xid=79,after=30s)", text,
			fmt.Sprintf(format, args...))
	}
	seen := map[string]bool{}
	all := kinds()
	for part := range strings.SplitSeq(text, ",") {
		name, value, has := strings.Cut(strings.TrimSpace(part), "=")
		if seen[name] {
			return fail("%s is there twice", name)
		}
		seen[name] = true
		k, isKind := all[name]
		var err error
		switch {
		case name == "gpu":
			if in.GPU, err = strconv.Atoi(value); err != nil || in.GPU < 0 || in.GPU >= GPUsMax {
				return fail("gpu %q: want an index from 0 to %d", value, GPUsMax-1)
			}
		case name == "after" || name == "for":
			d, err := time.ParseDuration(value)
			if err != nil || d < 0 || name == "for" && d == 0 {
				return fail("%s %q: want a time, such as 30s", name, value)
			}
			*map[string]*time.Duration{"after": &in.After, "for": &in.For}[name] = d
		case !isKind:
			return fail("%q is not known: want gpu=, after=, for= and one of %s", name, Kinds())
		case in.Kind != "":
			return fail("%s and %s: want one fault in each --inject", in.Kind, name)
		case k.value && !has:
			return fail("%s: want a number, %s=N", name, name)
		case !k.value && has:
			return fail("%s: it takes no value", name)
		default:
			in.Kind = name
			if in.Value, err = strconv.ParseUint(value, 10, 32); k.value && err != nil {
				return fail("%s %q: want a number", name, value)
			}
		}
	}
	switch {
	case in.Kind == "":
		return fail("no fault: want one of %s", Kinds())
	case in.For > 0 && all[in.Kind].once:
		return fail("for: %s happens at a moment, and has no end", in.Kind)
	case in.Kind == "hang" && seen["gpu"]:
		return fail("gpu: a hang is of the driver, and so of all GPUs")
	case in.Kind == KindBit && seen["gpu"]:
		return fail("gpu: a wrong bit is of this process's arithmetic, wherever that is done")
	}
	return in, nil
}

// touches says whether the injection was in force at some time between from, exclusive, and to: one that is shorter
// than the time between two samples shows in the sample after it, whenever that is.
func (in *Injection) touches(from, to time.Duration) bool {
	return to >= in.After && (in.For == 0 || min(from, to) < in.After+in.For)
}

// hangs says whether the driver is made up to hang.
func (w *watch) hangs(now time.Time) bool {
	at := now.Sub(w.start)
	return slices.ContainsFunc(w.m.config.Inject, func(in Injection) bool { return in.Kind == "hang" && in.touches(at, at) })
}

// alter makes the faults up that were in force for a sample's GPU since the sample before.
func (w *watch) alter(now time.Time, s *Sample) (altered bool) {
	from, to := w.sampled[s.Index], now.Sub(w.start)
	w.sampled[s.Index] = to
	for _, in := range w.m.config.Inject {
		if k := kinds()[in.Kind]; k.alter != nil && in.GPU == s.Index && in.touches(from, to) {
			k.alter(s, in.Value)
			altered = true
		}
	}
	return altered
}

// injectOnce makes faults up that happen at a moment, once their GPU is there.
func (w *watch) injectOnce(now time.Time) {
	for i, in := range w.m.config.Inject {
		if w.done[i] || !kinds()[in.Kind].once || now.Sub(w.start) < in.After {
			continue
		}
		for _, g := range w.m.GPUs() {
			if g.Index != in.GPU || g.UUID == "" {
				continue
			}
			w.done[i] = true
			w.m.config.Log.Warn("fault injected", "inject", in.Spec, "gpu", g.UUID)
			w.m.change(func(m *Machine) []Change {
				if in.Kind == "mismatch" {
					return m.Mismatch(now, g.UUID, "a mismatch that was injected", true)
				}
				return m.XID(now, &XID{UUID: g.UUID, Number: in.Value}, true)
			})
		}
	}
}

// Simulated begins the name and the UUID of a GPU that is made up, for injected faults on a machine without one.
const Simulated = "SIMULATED"

// simulate gives samples of made up GPUs: those that faults are injected into, on a machine without a driver.
func (w *watch) simulate(now time.Time) {
	if w.none == "" || len(w.m.config.Inject) == 0 {
		return
	}
	if w.hangs(now) {
		if now.Sub(w.last) >= w.m.config.Silence && !w.silent {
			w.silence(now, fmt.Sprintf("the driver does not answer: no word for %s", now.Sub(w.last).Round(time.Second)))
		}
		return
	}
	w.last, w.silent = now, false
	most := 0
	for _, in := range w.m.config.Inject {
		most = max(most, in.GPU)
	}
	for i := range most + 1 {
		s := simulated(i)
		w.alter(now, s)
		w.m.change(func(m *Machine) []Change { return m.Sample(now, s, true) })
	}
}

// simulated is a healthy sample with round figures.
func simulated(index int) *Sample {
	s := sampleOf(GPU{index, fmt.Sprintf("%s-%d", Simulated, index), Simulated + " (this machine has no GPU)",
		fmt.Sprintf("0000:%02x:00.0", index)})
	s.Temperature, s.ThermalMargin = ptr(schema.Real(60)), ptr(schema.Real(25))
	s.PowerWatts, s.PowerLimitWatts, s.Utilisation = ptr(schema.Real(300)), ptr(schema.Real(700)), ptr(schema.Real(0.5))
	s.MemoryUsed, s.MemoryTotal = ptr(int64(8<<30)), ptr(int64(80<<30))
	s.SMClockHz, s.MemoryClockHz = ptr(int64(1_500_000_000)), ptr(int64(2_600_000_000))
	s.Slower, s.RecoveryAction, s.RemapPending, s.RemapFailed = ptr(uint64(0)), ptr(uint64(0)), ptr(false), ptr(false)
	s.ECCCorrected, s.ECCUncorrected, s.PCIeReplays = ptr(uint64(0)), ptr(uint64(0)), ptr(uint64(0))
	s.PCIeWidth, s.PCIeWidthMax = ptr(16), ptr(16)
	return s
}
