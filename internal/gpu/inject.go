package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
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

// kind is one thing that can be injected.
type kind struct {
	value bool // wants =NUMBER
	once  bool // happens at a moment: for= makes no sense
	alter func(s *Sample, value uint64)
	help  string
}

func ptr[T any](v T) *T { return &v }

func kinds() map[string]kind {
	return map[string]kind{
		"xid":      {value: true, once: true, help: "an error of the driver, by number"},
		"mismatch": {once: true, help: "results that differ from the CPU's"},
		KindBit:    {once: true, help: "a wrong bit in what the arithmetic writes, on a GPU or not, which --verify 1 finds"},
		"hang":     {help: "a driver that does not answer"},
		"lost": {alter: func(s *Sample, _ uint64) { s.Lost = LostGone },
			help: "a GPU that the driver has lost"},
		"reset": {alter: func(s *Sample, _ uint64) { s.Lost = LostReset },
			help: "a GPU that wants a reset"},
		"ecc": {value: true, help: "uncorrectable memory errors, so many",
			alter: func(s *Sample, n uint64) { s.ECCUncorrected = ptr(or(s.ECCUncorrected) + n) }},
		"ecc-corrected": {value: true, help: "corrected memory errors, so many",
			alter: func(s *Sample, n uint64) { s.ECCCorrected = ptr(or(s.ECCCorrected) + n) }},
		"recovery": {value: true, alter: func(s *Sample, n uint64) { s.RecoveryAction = ptr(n) },
			help: "the recovery that the driver asks for, by number"},
		"remap-pending": {alter: func(s *Sample, _ uint64) { s.RemapPending = ptr(true) },
			help: "a memory row that waits to be remapped"},
		"remap-failed": {alter: func(s *Sample, _ uint64) { s.RemapFailed = ptr(true) },
			help: "a memory row that could not be remapped"},
		"thermal": {alter: func(s *Sample, _ uint64) { s.ThermalMargin = ptr(1) },
			help: "a GPU that is close to its limit of heat"},
		"slowdown": {alter: func(s *Sample, _ uint64) { s.Slower = ptr(or(s.Slower) | SlowerHardware) },
			help: "clocks lowered by the hardware; shows after six minutes"},
		"pcie-width": {value: true, help: "a PCIe link of so many lanes",
			alter: func(s *Sample, n uint64) { s.PCIeWidth, s.PCIeWidthMax = ptr(int(n)), ptr(16) }},
	}
}

// KindBit is the one fault that is no GPU's and that a Monitor leaves alone: whoever opens the arithmetic sees to it.
const KindBit = "bit"

func or(v *uint64) uint64 {
	if v == nil {
		return 0
	}
	return *v
}

// Kinds are the faults that can be injected, for help texts.
func Kinds() []string {
	var names []string
	for name, k := range kinds() {
		if k.value {
			name += "=N"
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

const injectExample = "gpu=0,xid=79,after=30s"

// ParseInjection reads one --inject: parts separated by commas, one of them the kind, and gpu=INDEX, after=TIME and
// for=TIME.
func ParseInjection(text string) (Injection, error) {
	in := Injection{Spec: text}
	fail := func(format string, args ...any) (Injection, error) {
		return Injection{}, fmt.Errorf("inject %q: %s (for example %s)", text, fmt.Sprintf(format, args...), injectExample)
	}
	seen := map[string]bool{}
	all := kinds()
	for _, part := range strings.Split(text, ",") {
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
			if name == "after" {
				in.After = d
			} else {
				in.For = d
			}
		case isKind && in.Kind != "":
			return fail("%s and %s: want one fault in each --inject", in.Kind, name)
		case isKind && k.value != has:
			if k.value {
				return fail("%s: want a number, %s=N", name, name)
			}
			return fail("%s: it takes no value", name)
		case isKind:
			in.Kind = name
			if in.Value, err = strconv.ParseUint(value, 10, 32); k.value && err != nil {
				return fail("%s %q: want a number", name, value)
			}
		default:
			return fail("%q is not known: want gpu=, after=, for= and one of %s", name, strings.Join(Kinds(), ", "))
		}
	}
	switch {
	case in.Kind == "":
		return fail("no fault: want one of %s", strings.Join(Kinds(), ", "))
	case in.For > 0 && all[in.Kind].once:
		return fail("for: %s happens at a moment, and has no end", in.Kind)
	case in.Kind == "hang" && seen["gpu"]:
		return fail("gpu: a hang is of the driver, and so of all GPUs")
	case in.Kind == KindBit && seen["gpu"]:
		return fail("gpu: a wrong bit is of this process's arithmetic, wherever that is done")
	}
	return in, nil
}

// active says whether the injection is in force so long after the start.
func (in *Injection) active(after time.Duration) bool { return in.touches(after, after) }

// touches says whether the injection was in force at some time between from, exclusive, and to: one that is shorter
// than the time between two samples shows in the sample after it, whenever that is.
func (in *Injection) touches(from, to time.Duration) bool {
	return to >= in.After && (in.For == 0 || min(from, to) < in.After+in.For)
}
