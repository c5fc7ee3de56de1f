//go:build cgo && linux

package nvml

import (
	"encoding/binary"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gradbus/internal/gpu"
)

// functions are all that a probe may call once it has begun, but for those of topology, each with the names that
// go-nvml has for it, newest first.
func functions() [][]string {
	return [][]string{
		{"nvmlSystemGetDriverVersion"}, {"nvmlSystemGetNVMLVersion"}, {"nvmlDeviceGetName"}, fnPCI(),
		{"nvmlDeviceGetTemperature"}, {"nvmlDeviceGetMarginTemperature"}, {"nvmlDeviceGetTemperatureThreshold"},
		{"nvmlDeviceGetPowerUsage"}, {"nvmlDeviceGetEnforcedPowerLimit"},
		{"nvmlDeviceGetTotalEnergyConsumption"}, {"nvmlDeviceGetPersistenceMode"}, {"nvmlDeviceGetUtilizationRates"},
		{"nvmlDeviceGetMemoryInfo"}, {"nvmlDeviceGetClockInfo"},
		{"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"},
		{"nvmlDeviceGetTotalEccErrors"},
		{"nvmlDeviceGetSramEccErrorStatus"}, {"nvmlDeviceGetRemappedRows"}, {"nvmlDeviceGetRetiredPagesPendingStatus"},
		{"nvmlDeviceGetFieldValues"},
		{"nvmlDeviceGetPcieReplayCounter"}, {"nvmlDeviceGetCurrPcieLinkWidth"}, {"nvmlDeviceGetMaxPcieLinkWidth"},
		{"nvmlDeviceGetNvLinkState"},
		{"nvmlDeviceGetGpuFabricInfoV"}, fnCompute(), fnGraphics(),
		{"nvmlEventSetCreate"}, {"nvmlDeviceGetSupportedEventTypes"}, {"nvmlDeviceRegisterEvents"}, fnEventWait(),
	}
}

func fnPCI() []string {
	return []string{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"}
}

func fnCompute() []string {
	return []string{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",
		"nvmlDeviceGetComputeRunningProcesses"}
}

func fnGraphics() []string {
	return []string{"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2",
		"nvmlDeviceGetGraphicsRunningProcesses"}
}

func fnEventWait() []string { return []string{"nvmlEventSetWait_v2", "nvmlEventSetWait"} }

// sample asks all there is to know of one GPU. Once the driver says that it is lost nothing more is asked.
func (p *probe) sample(d *device) *gpu.Sample {
	s := &gpu.Sample{GPU: d.id}
	d.turns++
	if d.handle == nil || d.lost != "" && d.turns == 1 {
		s.Lost, s.Call = d.lost, "nvmlDeviceGetHandleByIndex"
		return s
	}
	p.sampleLoad(d.handle, s)
	p.sampleMemory(d.handle, s)
	p.sampleLinks(d, s)
	p.sampleProcesses(d.handle, s)
	return s
}

// sampleLoad asks for what changes all the time.
func (p *probe) sampleLoad(h nvml.Device, s *gpu.Sample) {
	if v, ok := ask(p, s, func() (uint32, nvml.Return) { return h.GetTemperature(nvml.TEMPERATURE_GPU) },
		"nvmlDeviceGetTemperature"); ok {
		s.Temperature = ptr(int(v))
	}
	if v, ok := ask(p, s, h.GetMarginTemperature, "nvmlDeviceGetMarginTemperature"); ok {
		s.ThermalMargin = ptr(int(v.MarginTemperature))
	} else if s.Temperature != nil { // older drivers tell where the GPU slows down
		if v, ok := ask(p, s, func() (uint32, nvml.Return) {
			return h.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)
		}, "nvmlDeviceGetTemperatureThreshold"); ok {
			s.ThermalMargin = ptr(int(v) - *s.Temperature)
		}
	}
	if v, ok := ask(p, s, h.GetPowerUsage, "nvmlDeviceGetPowerUsage"); ok {
		s.Power = ptr(uint64(v))
	}
	if v, ok := ask(p, s, h.GetEnforcedPowerLimit, "nvmlDeviceGetEnforcedPowerLimit"); ok {
		s.PowerLimit = ptr(uint64(v))
	}
	if v, ok := ask(p, s, h.GetTotalEnergyConsumption, "nvmlDeviceGetTotalEnergyConsumption"); ok {
		s.Energy = &v
	}
	if v, ok := ask(p, s, h.GetPersistenceMode, "nvmlDeviceGetPersistenceMode"); ok {
		s.Persistent = ptr(v == nvml.FEATURE_ENABLED)
	}
	if v, ok := ask(p, s, h.GetUtilizationRates, "nvmlDeviceGetUtilizationRates"); ok {
		s.Utilisation = ptr(uint64(v.Gpu))
	}
	if v, ok := ask(p, s, h.GetMemoryInfo, "nvmlDeviceGetMemoryInfo"); ok {
		s.MemoryUsed, s.MemoryTotal = ptr(v.Used), ptr(v.Total)
	}
	if v, ok := ask(p, s, func() (uint32, nvml.Return) { return h.GetClockInfo(nvml.CLOCK_SM) },
		"nvmlDeviceGetClockInfo"); ok {
		s.SMClock = ptr(uint64(v))
	}
	if v, ok := ask(p, s, func() (uint32, nvml.Return) { return h.GetClockInfo(nvml.CLOCK_MEM) },
		"nvmlDeviceGetClockInfo"); ok {
		s.MemoryClock = ptr(uint64(v))
	}
	if p.has("nvmlDeviceGetCurrentClocksEventReasons") {
		if v, ok := ask(p, s, h.GetCurrentClocksEventReasons, "nvmlDeviceGetCurrentClocksEventReasons"); ok {
			s.Slower = &v
		}
	} else if v, ok := ask(p, s, h.GetCurrentClocksThrottleReasons, "nvmlDeviceGetCurrentClocksThrottleReasons"); ok {
		s.Slower = &v
	}
}

// sampleMemory asks for errors of the memory, and for what the driver wants done.
func (p *probe) sampleMemory(h nvml.Device, s *gpu.Sample) {
	ecc := func(kind nvml.MemoryErrorType) *uint64 {
		v, ok := ask(p, s, func() (uint64, nvml.Return) { return h.GetTotalEccErrors(kind, nvml.VOLATILE_ECC) },
			"nvmlDeviceGetTotalEccErrors")
		if !ok {
			return nil
		}
		return &v
	}
	s.ECCCorrected, s.ECCUncorrected = ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED), ecc(nvml.MEMORY_ERROR_TYPE_UNCORRECTED)
	if v, ok := ask(p, s, h.GetSramEccErrorStatus, "nvmlDeviceGetSramEccErrorStatus"); ok {
		s.SRAMThreshold = ptr(v.BThresholdExceeded != 0)
	}
	type rows struct {
		corrected, uncorrected int
		pending, failed        bool
	}
	if v, ok := ask(p, s, func() (rows, nvml.Return) {
		c, u, pending, failed, ret := h.GetRemappedRows()
		return rows{c, u, pending, failed}, ret
	}, "nvmlDeviceGetRemappedRows"); ok {
		s.RowsCorrected, s.RowsUncorrect = ptr(uint64(v.corrected)), ptr(uint64(v.uncorrected))
		s.RemapPending, s.RemapFailed = &v.pending, &v.failed
	}
	if v, ok := ask(p, s, h.GetRetiredPagesPendingStatus, "nvmlDeviceGetRetiredPagesPendingStatus"); ok {
		s.RetiredPending = ptr(v == nvml.FEATURE_ENABLED)
	}
	p.sampleFields(h, s)
}

// sampleFields asks for what has a number instead of a function, in one call.
func (p *probe) sampleFields(h nvml.Device, s *gpu.Sample) {
	ids := []uint32{nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, nvml.FI_DEV_RETIRED_SBE, nvml.FI_DEV_RETIRED_DBE,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL}
	fields := make([]nvml.FieldValue, len(ids))
	for i, id := range ids {
		fields[i].FieldId = id
		fields[i].NvmlReturn = uint32(nvml.ERROR_UNKNOWN) // where the driver writes nothing
	}
	if _, ok := ask(p, s, func() (struct{}, nvml.Return) { return struct{}{}, h.GetFieldValues(fields) },
		"nvmlDeviceGetFieldValues"); !ok {
		return
	}
	for _, f := range fields {
		if lost := lostBy(nvml.Return(f.NvmlReturn)); lost != "" && s.Lost == "" {
			s.Lost, s.Call = lost, "nvmlDeviceGetFieldValues"
		}
	}
	s.RecoveryAction = fieldValue(&fields[0])
	s.RetiredPages = sum(fieldValue(&fields[1]), fieldValue(&fields[2]))
	s.LinkErrors = sum(fieldValue(&fields[3]), fieldValue(&fields[4]))
}

// fieldValue is what a field holds, nil where the driver does not tell. Negative and fractional values are none of
// ours.
func fieldValue(f *nvml.FieldValue) *uint64 {
	if nvml.Return(f.NvmlReturn) != nvml.SUCCESS {
		return nil
	}
	raw := binary.NativeEndian.Uint64(f.Value[:])
	switch nvml.ValueType(f.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
		raw = uint64(binary.NativeEndian.Uint32(f.Value[:]))
		if nvml.ValueType(f.ValueType) == nvml.VALUE_TYPE_SIGNED_INT && int32(raw) < 0 {
			return nil
		}
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		if int64(raw) < 0 {
			return nil
		}
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		raw = uint64(binary.NativeEndian.Uint16(f.Value[:]))
	default:
		return nil
	}
	return &raw
}

// sum adds what is told; nil where neither is.
func sum(a, b *uint64) *uint64 {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return ptr(*a + *b)
}

const (
	linksMax   = 18 // of NVLink 4 and 5
	linksEvery = 5  // samples between two looks at the links, which take a call each
)

// sampleLinks asks for PCIe, NVLinks and their fabric.
func (p *probe) sampleLinks(d *device, s *gpu.Sample) {
	h := d.handle
	if v, ok := ask(p, s, h.GetPcieReplayCounter, "nvmlDeviceGetPcieReplayCounter"); ok {
		s.PCIeReplays = ptr(uint64(v))
	}
	if v, ok := ask(p, s, h.GetCurrPcieLinkWidth, "nvmlDeviceGetCurrPcieLinkWidth"); ok {
		s.PCIeWidth = &v
	}
	if v, ok := ask(p, s, h.GetMaxPcieLinkWidth, "nvmlDeviceGetMaxPcieLinkWidth"); ok {
		s.PCIeWidthMax = &v
	}
	if d.turns%linksEvery == 1 {
		d.links = nil
		for link := range linksMax {
			v, ok := ask(p, s, func() (nvml.EnableState, nvml.Return) { return h.GetNvLinkState(link) },
				"nvmlDeviceGetNvLinkState")
			if !ok {
				break
			}
			if d.links == nil {
				d.links = new(uint64)
			}
			if v == nvml.FEATURE_ENABLED {
				*d.links |= 1 << link
			}
		}
	}
	s.LinksUp = d.links
	if v, ok := ask(p, s, func() (nvml.GpuFabricInfo_v3, nvml.Return) { return h.GetGpuFabricInfoV().V3() },
		"nvmlDeviceGetGpuFabricInfoV"); ok && v.State != nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		s.FabricState, s.FabricStatus, s.FabricHealth = ptr(uint64(v.State)), ptr(uint64(v.Status)), ptr(uint64(v.HealthMask))
	} else if v, ok := ask(p, s, func() (nvml.GpuFabricInfo_v2, nvml.Return) { return h.GetGpuFabricInfoV().V2() },
		"nvmlDeviceGetGpuFabricInfoV"); ok && v.State != nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		s.FabricState, s.FabricStatus, s.FabricHealth = ptr(uint64(v.State)), ptr(uint64(v.Status)), ptr(uint64(v.HealthMask))
	}
}

// sampleProcesses asks what else uses the GPU's memory. Where a process cannot be told, as from within a container that
// does not see it, nothing is.
func (p *probe) sampleProcesses(h nvml.Device, s *gpu.Sample) {
	all, ok := ask(p, s, h.GetComputeRunningProcesses, fnCompute()...)
	if !ok {
		return
	}
	if graphics, ok := ask(p, s, h.GetGraphicsRunningProcesses, fnGraphics()...); ok {
		all = append(all, graphics...)
	}
	var others int
	var bytes uint64
	counted := map[uint32]bool{}
	for _, process := range all {
		if counted[process.Pid] {
			continue
		}
		counted[process.Pid] = true
		switch mine, known := ours(int(process.Pid), p.options.Parent); {
		case !known || !mine && process.UsedGpuMemory == math.MaxUint64: // the driver's "not available"
			return
		case !mine:
			others++
			bytes += process.UsedGpuMemory
		}
	}
	s.Others, s.MemoryOthers = &others, &bytes
}

func ptr[T any](v T) *T { return &v }
