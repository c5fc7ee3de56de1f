package metrics

import (
	"maps"
	"slices"
	"strconv"
	"time"

	"gradbus/schema"
)

// Bounds of lists that a GPU's report carries, so that no driver and no trainer can make labels without end.
const (
	throttlesMax = 16
	xidsMax      = 64
	nameBytesMax = 40 // of a throttling reason, an XID's code
)

// gpu is a GPU at a moment.
type gpu struct {
	*schema.GPUReport
	now time.Time
}

// name of the GPU in labels: its UUID, or where the driver does not tell it, its index.
func (g gpu) name() string {
	if g.UUID == "" {
		return "index-" + strconv.Itoa(g.Index)
	}
	return g.UUID
}

func states() []schema.GPUState {
	return []schema.GPUState{schema.GPUAbsent, schema.GPUUnknown, schema.GPUHealthy, schema.GPUDegraded,
		schema.GPUUnhealthy}
}

// names are those of a list that are fit for labels: short, each once, in order, and not too many.
func names(of []string, most int) []string {
	of = slices.DeleteFunc(slices.Clone(of), func(name string) bool {
		return name == "" || len(name) > nameBytesMax ||
			label(name) != name
	})
	slices.Sort(of)
	of = slices.Compact(of)
	return of[:min(len(of), most)]
}

// told is a gauge of what the driver may not tell.
func told[N schema.Real | int64 | int](name, help string, of func(gpu) *N) figure[gpu] {
	return gauges(name, help, nil, func(g gpu, r *row) {
		if v := of(g); v != nil {
			r.value(float64(*v))
		}
	})
}

// toldCount is a counter of that kind.
func toldCount(name, help string, of func(gpu) *uint64) figure[gpu] {
	return counters(name, help, nil, func(g gpu, r *row) {
		if v := of(g); v != nil {
			r.value(float64(*v))
		}
	})
}

// gpuTable tells of GPUs.
func gpuTable() table[gpu] {
	return table[gpu]{[]string{"gpu", "host"}, append([]figure[gpu]{
		gauges("gradbus_gpu_info", "What the GPU is; always 1.", []string{"index", "name", "pci", "driver"},
			func(g gpu, r *row) {
				r.value(1, strconv.Itoa(g.Index), g.Name, g.PCI, g.Driver)
			}),
		gauges("gradbus_gpu_state", "1 for the state that the GPU is in: absent, unknown, healthy, degraded or unhealthy.",
			[]string{"state"}, func(g gpu, r *row) {
				for _, s := range states() {
					r.value(truth(g.State == s), string(s))
				}
			}),
		gauges("gradbus_gpu_problem", "1 for the code of what is wrong with the GPU; absent where nothing is.",
			[]string{"code"}, func(g gpu, r *row) {
				if g.Code != "" {
					r.value(1, g.Code)
				}
			}),
		gauges("gradbus_gpu_state_since_timestamp_seconds",
			"Since when the GPU has been in its state, in seconds since 1970.", nil, func(g gpu, r *row) {
				if g.SinceMS > 0 {
					r.value(float64(g.SinceMS) / 1000)
				}
			}),
		gauges("gradbus_gpu_sample_age_seconds", "Time since the driver last answered.", nil, func(g gpu, r *row) {
			if g.SampleMS > 0 {
				r.value(max(0, float64(g.now.UnixMilli()-g.SampleMS)/1000))
			}
		}),
		gauge("gradbus_gpu_used", "Whether the process that tells of the GPU computes on it.",
			func(g gpu) float64 { return truth(g.Used) }),
		gauge("gradbus_gpu_injected", "Whether a fault that is shown was injected for a test.",
			func(g gpu) float64 { return truth(g.Injected) }),
		gauges("gradbus_gpu_throttled", "1 for each reason why the clocks are lower than asked for; absent where "+
			"there is none.", []string{"reason"}, func(g gpu, r *row) {
			for _, reason := range names(g.Throttled, throttlesMax) {
				r.value(1, reason)
			}
		}),
		counters("gradbus_gpu_xid_events_total", "XID events of the driver by code, since the probe began.", []string{"xid"},
			func(g gpu, r *row) {
				for _, code := range names(slices.Collect(maps.Keys(g.XIDs)), xidsMax) {
					r.value(float64(g.XIDs[code]), code)
				}
			}),
		counters("gradbus_gpu_ecc_errors_total", "Memory errors since the driver was loaded, corrected and uncorrected.",
			[]string{"kind"}, func(g gpu, r *row) {
				if g.ECCCorrected != nil {
					r.value(float64(*g.ECCCorrected), "corrected")
				}
				if g.ECCUncorrected != nil {
					r.value(float64(*g.ECCUncorrected), "uncorrected")
				}
			}),
	}, sampled()...)}
}

// sampled is what the driver tells as one number.
func sampled() []figure[gpu] {
	return []figure[gpu]{
		told("gradbus_gpu_temperature_celsius", "Temperature.", func(g gpu) *schema.Real { return g.Temperature }),
		told("gradbus_gpu_thermal_margin_celsius", "Degrees below the temperature at which the GPU slows down.",
			func(g gpu) *schema.Real { return g.ThermalMargin }),
		told("gradbus_gpu_power_watts", "Power that the GPU takes.", func(g gpu) *schema.Real { return g.PowerWatts }),
		told("gradbus_gpu_power_limit_watts", "Power that it may take.",
			func(g gpu) *schema.Real { return g.PowerLimitWatts }),
		told("gradbus_gpu_utilisation_ratio", "Share of the last sampling period in which a kernel ran, 0 to 1.",
			func(g gpu) *schema.Real { return g.Utilisation }),
		told("gradbus_gpu_memory_used_bytes", "Memory in use.", func(g gpu) *int64 { return g.MemoryUsed }),
		told("gradbus_gpu_memory_size_bytes", "Memory there is.", func(g gpu) *int64 { return g.MemoryTotal }),
		told("gradbus_gpu_memory_others_bytes", "Memory used by processes that are not of gradbus.",
			func(g gpu) *int64 { return g.MemoryOthers }),
		told("gradbus_gpu_sm_clock_hertz", "Clock of the multiprocessors.", func(g gpu) *int64 { return g.SMClockHz }),
		told("gradbus_gpu_memory_clock_hertz", "Clock of the memory.", func(g gpu) *int64 { return g.MemoryClockHz }),
		toldCount("gradbus_gpu_remapped_rows_total", "Rows of memory that were replaced by spare ones.",
			func(g gpu) *uint64 { return g.RowsRemapped }),
		toldCount("gradbus_gpu_retired_pages_total", "Pages of memory that are used no more.",
			func(g gpu) *uint64 { return g.RetiredPages }),
		toldCount("gradbus_gpu_pcie_replays_total", "Transfers over PCIe that had to be repeated.",
			func(g gpu) *uint64 { return g.PCIeReplays }),
		told("gradbus_gpu_pcie_lanes", "Lanes of PCIe in use.", func(g gpu) *int { return g.PCIeWidth }),
		told("gradbus_gpu_pcie_lanes_max", "Lanes of PCIe that GPU and slot have.",
			func(g gpu) *int { return g.PCIeWidthMax }),
		toldCount("gradbus_gpu_nvlink_errors_total", "Errors on NVLink connections.",
			func(g gpu) *uint64 { return g.NVLinkErrors }),
	}
}
