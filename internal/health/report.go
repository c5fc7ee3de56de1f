package health

import (
	"fmt"
	"strconv"

	"gradbus/schema"
)

// GPUs is what is told of the machine's GPUs: those that are there in order of their indices, then those that should
// be. used names the GPU that this process computes on; empty is none.
func (m *Machine) GPUs(used string) []schema.GPUReport {
	var all []schema.GPUReport
	for _, g := range m.gpus {
		all = append(all, m.report(g, g.UUID == used && used != ""))
	}
	known := len(all)
	for i := known; i < m.policy.Expected; i++ {
		p := schema.GPUReport{Index: i, Driver: m.driver, State: schema.GPUAbsent, Code: "gpu-missing",
			Reason: fmt.Sprintf("%d GPUs are expected and the driver counts %d.", m.policy.Expected, known),
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
		PCIeReplays: s.PCIeReplays, PCIeWidth: s.PCIeWidth, PCIeWidthMax: s.PCIeWidthMax, NVLinkErrors: s.LinkErrors,
		Temperature: realOf(s.Temperature, 1), ThermalMargin: realOf(s.ThermalMargin, 1),
		PowerWatts: realOf(s.Power, 1000), PowerLimitWatts: realOf(s.PowerLimit, 1000),
		Utilisation: realOf(s.Utilisation, 100),
		MemoryUsed:  times(s.MemoryUsed, 1), MemoryTotal: times(s.MemoryTotal, 1), MemoryOthers: times(s.MemoryOthers, 1),
		SMClockHz: times(s.SMClock, 1e6), MemoryClockHz: times(s.MemoryClock, 1e6), Throttled: slowerNames(s.Slower)}
	p.Code, p.Reason, p.Action = m.words(g)
	if g.sampled {
		p.SampleMS = g.lastAt.UnixMilli()
	}
	if s.RowsCorrected != nil && s.RowsUncorrect != nil {
		n := *s.RowsCorrected + *s.RowsUncorrect
		p.RowsRemapped = &n
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
