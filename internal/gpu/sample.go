package gpu

import (
	"fmt"
	"strconv"

	"gradbus/schema"
)

// Line is one line of JSON that a probe writes. Exactly one of the fields is set.
type Line struct {
	Hello  *Hello  `json:"hello,omitempty"`
	None   *None   `json:"none,omitempty"`
	Sample *Sample `json:"sample,omitempty"`
	XID    *XID    `json:"xid,omitempty"`
	Poll   bool    `json:"poll,omitempty"` // ends one round of samples over all GPUs
}

// Hello is a probe's first line, once the driver has answered for the first time.
type Hello struct {
	Driver string `json:"driver"`
	NVML   string `json:"nvml"`              // version of the library
	GPUs   []GPU  `json:"gpus"`              // at most GPUsMax
	NoXIDs []int  `json:"no_xids,omitempty"` // indices of GPUs for which the driver sends no events
}

// GPUsMax bounds the GPUs of a machine: more are not looked at.
const GPUsMax = 64

// None is a probe's only line where there is nothing to ask; the probe ends after it.
type None struct {
	Reason string `json:"reason"` // one sentence
	// Driver reports a driver that does not work; false: there is none.
	Driver bool `json:"driver,omitempty"`
}

// XID is an error that the driver reports by number, as an event.
type XID struct {
	UUID   string `json:"uuid"`
	Number uint64 `json:"number"`
}

// GPU says which one.
type GPU struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	Name  string `json:"name"`
	PCI   string `json:"pci"` // domain:bus:device.function
}

// Sample is the driver's state of one GPU at one moment: its identity, the figures of a report, and what rules examine
// besides. Unknown values are nil, never 0: "not supported" is no sample.
type Sample struct {
	schema.GPUReport
	Lost   string  `json:"lost,omitempty"`   // LostGone or LostReset: what any call said; else empty
	Slower *uint64 `json:"slower,omitempty"` // bits: why clocks are lowered

	RecoveryAction *uint64 `json:"recovery_action,omitempty"` // field 230
	SRAMThreshold  *bool   `json:"sram_threshold,omitempty"`
	RemapPending   *bool   `json:"remap_pending,omitempty"`
	RemapFailed    *bool   `json:"remap_failed,omitempty"`
	RetiredPending *bool   `json:"retired_pending,omitempty"`
}

// sampleOf is a sample of a GPU that says nothing yet.
func sampleOf(g GPU) *Sample {
	return &Sample{GPUReport: schema.GPUReport{Index: g.Index, UUID: g.UUID, Name: g.Name, PCI: g.PCI}}
}

func (s *Sample) gpu() GPU { return GPU{s.Index, s.UUID, s.Name, s.PCI} }

// Values of Sample.Lost.
const (
	LostGone  = "lost"           // the driver does not reach it any more
	LostReset = "reset-required" // the driver wants a reset before it answers again
)

// Bits of Sample.Slower.
const (
	SlowerPowerCap   = 1 << 2
	SlowerHardware   = 1 << 3
	SlowerSWThermal  = 1 << 5
	SlowerHWThermal  = 1 << 6
	SlowerPowerBrake = 1 << 7
)

// GPUs reports the machine's GPUs: present ones by index, then missing ones. used names the GPU that this process
// computes on; empty: none.
func (m *Machine) GPUs(used string) []schema.GPUReport {
	var all []schema.GPUReport
	for _, g := range m.gpus {
		all = append(all, m.report(g, g.UUID == used && used != ""))
	}
	known := len(all)
	for i := known; i < m.expected; i++ {
		p := schema.GPUReport{Index: i, Driver: m.driver, State: schema.GPUAbsent, Code: "gpu-missing",
			Reason: fmt.Sprintf("%d GPUs are expected and the driver counts %d.", m.expected, known),
			Action: "See whether the machine lists it (lspci) and what the kernel's log says of it; check its seat and power."}
		if m.noAnswer != "" {
			p.Code, p.Reason, p.SinceMS = "no-driver", sentence(m.noAnswer), m.since.UnixMilli()
		}
		all = append(all, p)
	}
	if len(all) == 0 && m.noAnswer != "" && !m.absent {
		all = append(all, schema.GPUReport{State: schema.GPUUnknown, Code: "no-answer", Reason: sentence(m.noAnswer),
			Action: actAnswer, SinceMS: m.since.UnixMilli(), Injected: m.injected})
	}
	return all
}

func (m *Machine) report(g *gpu, used bool) schema.GPUReport {
	p := g.last.GPUReport
	p.Index, p.UUID, p.Name, p.PCI, p.Driver, p.Used = g.Index, g.UUID, g.Name, g.PCI, m.driver, used
	p.State, p.SinceMS, p.Injected = g.state, g.since.UnixMilli(), m.isInjected(g)
	p.Code, p.Reason, p.Action = m.words(g)
	p.Throttled = slowerNames(g.last.Slower)
	if !g.lastAt.IsZero() {
		p.SampleMS = g.lastAt.UnixMilli()
	}
	if len(g.xids) > 0 {
		p.XIDs = map[string]uint64{}
		for number, n := range g.xids {
			p.XIDs[strconv.FormatUint(number, 10)] = n
		}
	}
	return p
}
