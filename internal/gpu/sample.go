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
	// Driver says that a driver is there, but that it does not work; else there is none.
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

// Sample is what the driver says of one GPU at one moment. What it does not say is nil, never 0: "not supported" is no
// sample.
type Sample struct {
	GPU
	// Lost is empty, LostGone or LostReset: what any call said.
	Lost string `json:"lost,omitempty"`

	Temperature   *int    `json:"temperature_celsius,omitempty"`
	ThermalMargin *int    `json:"thermal_margin_celsius,omitempty"` // to the next slowdown
	Power         *uint64 `json:"power_mw,omitempty"`
	PowerLimit    *uint64 `json:"power_limit_mw,omitempty"`
	Utilisation   *uint64 `json:"utilisation_percent,omitempty"`
	MemoryUsed    *uint64 `json:"memory_used_bytes,omitempty"`
	MemoryTotal   *uint64 `json:"memory_total_bytes,omitempty"`
	MemoryOthers  *uint64 `json:"memory_others_bytes,omitempty"` // of processes that are not ours
	Others        *int    `json:"others,omitempty"`              // their number
	SMClock       *uint64 `json:"sm_clock_mhz,omitempty"`
	MemoryClock   *uint64 `json:"memory_clock_mhz,omitempty"`
	Slower        *uint64 `json:"slower,omitempty"` // bits: why clocks are lowered

	RecoveryAction *uint64 `json:"recovery_action,omitempty"` // field 230
	ECCCorrected   *uint64 `json:"ecc_corrected,omitempty"`   // since the driver took the GPU
	ECCUncorrected *uint64 `json:"ecc_uncorrected,omitempty"`
	SRAMThreshold  *bool   `json:"sram_threshold,omitempty"`
	RowsRemapped   *uint64 `json:"rows_remapped,omitempty"`
	RemapPending   *bool   `json:"remap_pending,omitempty"`
	RemapFailed    *bool   `json:"remap_failed,omitempty"`
	RetiredPages   *uint64 `json:"retired_pages,omitempty"` // for single and double bit errors together
	RetiredPending *bool   `json:"retired_pending,omitempty"`

	PCIeReplays  *uint64 `json:"pcie_replays,omitempty"`
	PCIeWidth    *int    `json:"pcie_width,omitempty"`
	PCIeWidthMax *int    `json:"pcie_width_max,omitempty"`
	LinkErrors   *uint64 `json:"link_errors,omitempty"` // replays and recoveries of all NVLinks
}

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

// Values of Sample.RecoveryAction.
const (
	RecoveryNone          = 0
	RecoveryReset         = 1
	RecoveryReboot        = 2
	RecoveryDrain         = 3
	RecoveryDrainAndReset = 4
	RecoveryFabricDomain  = 5
	RecoveryBusReset      = 6 // of the slot that the GPU is in
	RecoverySystemReboot  = 7
)

// Valid says that exactly one thing is in a line, and that it names what it is of.
func (l *Line) Valid() bool {
	n := 0
	for _, there := range []bool{l.Hello != nil, l.None != nil, l.Sample != nil, l.XID != nil, l.Poll} {
		if there {
			n++
		}
	}
	return n == 1 && (l.Sample == nil || l.Sample.UUID != "" && l.Sample.Index >= 0 && l.Sample.Index < GPUsMax) &&
		(l.XID == nil || l.XID.UUID != "") && (l.Hello == nil || len(l.Hello.GPUs) <= GPUsMax)
}

// GPUs is what is told of the machine's GPUs: those that are there in order of their indices, then those that should
// be. used names the GPU that this process computes on; empty is none.
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
		if m.nobody != "" {
			p.Code, p.Reason, p.SinceMS = "no-driver", sentence(m.nobody), m.since.UnixMilli()
		}
		all = append(all, p)
	}
	if len(all) == 0 && m.nobody != "" && !m.absent {
		all = append(all, schema.GPUReport{State: schema.GPUUnknown, Code: "no-answer", Reason: sentence(m.nobody),
			Action: actAnswer, SinceMS: m.since.UnixMilli(), Injected: m.injected})
	}
	return all
}

// Nobody is why nothing can be asked; empty where something can be.
func (m *Machine) Nobody() string { return m.nobody }

func (m *Machine) report(g *gpu, used bool) schema.GPUReport {
	s := &g.last
	p := schema.GPUReport{Index: g.Index, UUID: g.UUID, Name: g.Name, PCI: g.PCI, Driver: m.driver, Used: used,
		State: g.state, SinceMS: g.since.UnixMilli(), Injected: m.isInjected(g),
		ECCCorrected: s.ECCCorrected, ECCUncorrected: s.ECCUncorrected, RetiredPages: s.RetiredPages,
		RowsRemapped: s.RowsRemapped,
		PCIeReplays:  s.PCIeReplays, PCIeWidth: s.PCIeWidth, PCIeWidthMax: s.PCIeWidthMax, NVLinkErrors: s.LinkErrors,
		Temperature: realOf(s.Temperature, 1), ThermalMargin: realOf(s.ThermalMargin, 1),
		PowerWatts: realOf(s.Power, 1000), PowerLimitWatts: realOf(s.PowerLimit, 1000),
		Utilisation: realOf(s.Utilisation, 100),
		MemoryUsed:  times(s.MemoryUsed, 1), MemoryTotal: times(s.MemoryTotal, 1), MemoryOthers: times(s.MemoryOthers, 1),
		SMClockHz: times(s.SMClock, 1e6), MemoryClockHz: times(s.MemoryClock, 1e6), Throttled: slowerNames(s.Slower)}
	p.Code, p.Reason, p.Action = m.words(g)
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

func realOf[T int | uint64](v *T, by float64) *schema.Real {
	if v == nil {
		return nil
	}
	r := schema.Real(float64(*v) / by)
	return &r
}

func times(v *uint64, by uint64) *int64 {
	if v == nil {
		return nil
	}
	n := int64(min(*v, 1<<62/by) * by)
	return &n
}
