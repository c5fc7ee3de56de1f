//go:build cgo && linux

package nvml

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gradbus/internal/gpu"
)

// Built says whether this build can ask a driver.
const Built = true

// probe asks one driver.
type probe struct {
	options Options
	api     nvml.Interface
	out     *lineWriter
	lacks   map[string]bool // functions that were looked for and are not there
	devices []*device
}

// device is a GPU. Its handle is nil where the driver does not even give one.
type device struct {
	id     gpu.GPU
	handle nvml.Device
	lost   string // what the driver said instead of giving a handle
	links  *uint64
	turns  int // samples taken
}

// lineWriter writes lines whole.
type lineWriter struct {
	mu sync.Mutex
	to *json.Encoder
}

func (w *lineWriter) write(l gpu.Line) error {
	l.AtMS = time.Now().UnixMilli()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.to.Encode(l); err != nil {
		return fmt.Errorf("write a line: %w", err)
	}
	return nil
}

// Serve asks the driver until ctx ends, Options.In does or nobody reads any more. It is to run in a process of its own:
// a call of the driver may never return. A driver that is not there or does not work is said in a line, and is no
// error.
func Serve(ctx context.Context, o Options) error {
	if o.Library == "" {
		o.Library = libraryDefault
	}
	if o.Kernel == "" {
		o.Kernel = "/dev/kmsg"
	}
	if o.Every <= 0 {
		o.Every = time.Second
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if o.In != nil {
		go func() { // ends with the process: nothing interrupts a read of standard input
			_, _ = io.Copy(io.Discard, o.In)
			os.Exit(0) // not by way of ctx: a call of the driver may hang
		}()
	}
	p := &probe{options: o, out: &lineWriter{to: json.NewEncoder(o.Out)}, lacks: map[string]bool{}}
	if none := p.open(nvml.New(nvml.WithLibraryPath(o.Library)), openLibrary); none != nil {
		return p.out.write(gpu.Line{None: none})
	}
	return p.serve(ctx, stop)
}

// serve watches an open driver.
func (p *probe) serve(ctx context.Context, stop context.CancelCauseFunc) error {
	hello := p.hello()
	events, without := p.listen()
	hello.NoXIDs = without
	kernel, err := openKernelLog(p.options.Kernel)
	if err != nil {
		hello.Kernel = err.Error()
	}
	if err := p.out.write(gpu.Line{Hello: hello}); err != nil {
		return err
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	if events != nil {
		wait.Go(func() {
			if err := p.waitEvents(ctx, events); err != nil {
				stop(err)
			}
		})
	}
	if kernel != nil {
		wait.Go(func() {
			if err := p.readKernelLog(ctx, kernel); err != nil {
				stop(err)
			}
		})
		defer kernel.Close()
	}
	return p.poll(ctx)
}

// poll samples all GPUs again and again.
func (p *probe) poll(ctx context.Context) error {
	tick := time.NewTicker(p.options.Every)
	defer tick.Stop()
	for serial := uint64(1); ; serial++ {
		began := time.Now()
		for _, d := range p.devices {
			if err := p.out.write(gpu.Line{Sample: p.sample(d)}); err != nil {
				return err
			}
		}
		took := time.Since(began).Milliseconds()
		if err := p.out.write(gpu.Line{Poll: &gpu.Poll{Serial: serial, GPUs: len(p.devices), TookMS: took}}); err !=
			nil {
			return err
		}
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				return cause
			}
			return nil
		case <-tick.C:
		}
	}
}

// open begins to use the library. It gives what is to be said where that does not work.
func (p *probe) open(api nvml.Interface, openLibrary func(string) error) *gpu.None {
	p.api = api
	if err := openLibrary(p.options.Library); err != nil {
		return &gpu.None{Reason: fmt.Sprintf("the driver's library cannot be loaded: %v", err)}
	}
	switch ret := api.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return &gpu.None{Reason: "the driver's library cannot be loaded: it has no function nvmlInit"}
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return &gpu.None{Reason: "the NVIDIA driver is not loaded"}
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return &gpu.None{Driver: true,
			Reason: "the driver in the kernel and its library are of different versions: reboot, or load the driver again"}
	default:
		return &gpu.None{Driver: true, Reason: "the driver does not let itself be asked: nvmlInit says " + returnName(ret)}
	}
	for _, names := range [][]string{{"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"},
		{"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"}, {"nvmlDeviceGetUUID"}} {
		if !p.has(names...) {
			return &gpu.None{Driver: true,
				Reason: fmt.Sprintf("the driver's library is too old or not the driver's: it has no function %s", names[0])}
		}
	}
	count, ret := api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return &gpu.None{Driver: true, Reason: "the driver does not count its GPUs: nvmlDeviceGetCount says " +
			returnName(ret)}
	}
	for i := range min(count, gpu.GPUsMax) {
		p.add(i)
	}
	return nil
}

// add takes in the GPU with an index.
func (p *probe) add(index int) {
	d := &device{id: gpu.GPU{Index: index, UUID: fmt.Sprintf("unknown-%d", index)}}
	handle, ret := p.api.DeviceGetHandleByIndex(index)
	switch {
	case ret == nvml.ERROR_NO_PERMISSION:
		return // not one of ours
	case ret != nvml.SUCCESS:
		d.lost = lostBy(ret)
		if d.lost == "" {
			d.lost = gpu.LostGone
		}
	default:
		d.handle = handle
		if uuid, ret := handle.GetUUID(); ret == nvml.SUCCESS && uuid != "" {
			d.id.UUID = uuid
		} else if lost := lostBy(ret); lost != "" {
			d.lost = lost
		}
		if name, ok := ask(p, nil, handle.GetName, "nvmlDeviceGetName"); ok {
			d.id.Name = name
		}
		if pci, ok := ask(p, nil, handle.GetPciInfo, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2",
			"nvmlDeviceGetPciInfo"); ok {
			d.id.PCI = address(pci)
		}
	}
	p.devices = append(p.devices, d)
}

// hello says what was found.
func (p *probe) hello() *gpu.Hello {
	h := &gpu.Hello{Library: p.options.Library}
	if v, ok := ask(p, nil, p.api.SystemGetDriverVersion, "nvmlSystemGetDriverVersion"); ok {
		h.Driver = v
	}
	if v, ok := ask(p, nil, p.api.SystemGetNVMLVersion, "nvmlSystemGetNVMLVersion"); ok {
		h.NVML = v
	}
	for _, d := range p.devices {
		h.GPUs = append(h.GPUs, d.id)
	}
	for _, names := range functions() {
		if !p.has(names...) {
			h.Missing = append(h.Missing, names[0])
		}
	}
	slices.Sort(h.Missing)
	return h
}

// has says whether the library has one of the functions that go-nvml calls for one purpose, newest first.
func (p *probe) has(names ...string) bool {
	for _, name := range names {
		lacks, known := p.lacks[name]
		if !known {
			lacks = p.api.Extensions().LookupSymbol(name) != nil
			p.lacks[name] = lacks
		}
		if !lacks {
			return true
		}
	}
	return false
}

// ask calls a function of the driver where it is there. A GPU that is lost is noted in the sample, where one is given.
func ask[T any](p *probe, s *gpu.Sample, f func() (T, nvml.Return), names ...string) (value T, ok bool) {
	if !p.has(names...) || s != nil && s.Lost != "" {
		return value, false
	}
	value, ret := f()
	if lost := lostBy(ret); lost != "" && s != nil {
		s.Lost, s.Call = lost, names[len(names)-1]
	}
	return value, ret == nvml.SUCCESS
}

func lostBy(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		return gpu.LostGone
	case nvml.ERROR_RESET_REQUIRED:
		return gpu.LostReset
	}
	return ""
}

// returnName names what the library answers, without asking it: nvmlErrorString may be missing.
func returnName(ret nvml.Return) string {
	names := map[nvml.Return]string{
		nvml.ERROR_UNINITIALIZED: "uninitialised", nvml.ERROR_INVALID_ARGUMENT: "invalid argument",
		nvml.ERROR_NOT_SUPPORTED: "not supported",
		nvml.ERROR_NO_PERMISSION: "no permission", nvml.ERROR_NOT_FOUND: "not found", nvml.ERROR_TIMEOUT: "timeout",
		nvml.ERROR_IRQ_ISSUE:         "interrupts do not arrive",
		nvml.ERROR_LIBRARY_NOT_FOUND: "library not found", nvml.ERROR_GPU_IS_LOST: "a GPU is lost",
		nvml.ERROR_RESET_REQUIRED:   "a GPU needs a reset",
		nvml.ERROR_OPERATING_SYSTEM: "refused by the operating system", nvml.ERROR_IN_USE: "in use",
		nvml.ERROR_MEMORY: "out of memory", nvml.ERROR_UNKNOWN: "unknown error",
	}
	if name, ok := names[ret]; ok {
		return fmt.Sprintf("%q (%d)", name, int(ret))
	}
	return fmt.Sprintf("error %d", int(ret))
}

// functions are all that a probe may call once it has begun, each with the names that go-nvml has for it, newest first.
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

// listen asks the driver for events of every GPU. It gives nil where it sends none, and the indices of the GPUs for
// which it does not.
func (p *probe) listen() (events nvml.EventSet, without []int) {
	works := p.has("nvmlEventSetCreate") && p.has("nvmlDeviceRegisterEvents") &&
		p.has("nvmlDeviceGetSupportedEventTypes") && p.has(fnEventWait()...)
	if works {
		set, ret := p.api.EventSetCreate()
		works, events = ret == nvml.SUCCESS, set
	}
	any := false
	for _, d := range p.devices {
		if !works || d.handle == nil || !register(d.handle, events) {
			without = append(without, d.id.Index)
			continue
		}
		any = true
	}
	if !any {
		return nil, without
	}
	return events, without
}

func register(h nvml.Device, events nvml.EventSet) bool {
	supported, ret := h.GetSupportedEventTypes()
	if ret != nvml.SUCCESS || supported&nvml.EventTypeXidCriticalError == 0 {
		return false
	}
	return h.RegisterEvents(nvml.EventTypeXidCriticalError, events) == nvml.SUCCESS
}

// eventWait is how long one call waits for an event; the call may also hang for ever.
const eventWait = time.Second

// waitEvents passes events on until ctx ends.
func (p *probe) waitEvents(ctx context.Context, events nvml.EventSet) error {
	for ctx.Err() == nil {
		e, ret := events.Wait(uint32(eventWait.Milliseconds()))
		switch ret {
		case nvml.SUCCESS:
			if e.EventType != nvml.EventTypeXidCriticalError {
				continue
			}
			x := &gpu.XID{Number: e.EventData, Source: gpu.SourceEvent}
			if d := p.of(e.Device); d != nil {
				x.UUID, x.PCI = d.id.UUID, d.id.PCI
				if err := p.out.write(gpu.Line{XID: x}); err != nil {
					return err
				}
			}
		case nvml.ERROR_TIMEOUT:
		default: // such as a lost GPU, which samples tell of too: it may answer so at once, again and again
			select {
			case <-ctx.Done():
			case <-time.After(eventWait):
			}
		}
	}
	return nil
}

// of finds the GPU of an event.
func (p *probe) of(h nvml.Device) *device {
	for _, d := range p.devices {
		if d.handle == h {
			return d
		}
	}
	if h == nil {
		return nil
	}
	if uuid, ret := h.GetUUID(); ret == nvml.SUCCESS {
		for _, d := range p.devices {
			if d.id.UUID == uuid {
				return d
			}
		}
	}
	return nil
}

// openKernelLog opens the kernel's log at its end.
func openKernelLog(path string) (*os.File, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	_, _ = syscall.Seek(fd, 0, io.SeekEnd) // what was before is of before
	return os.NewFile(uintptr(fd), path), nil
}

// xidLine is a line of the kernel's log about a XID: "NVRM: Xid (PCI:0000:3b:00): 79, pid=..., GPU has fallen off the
// bus."
var xidLine = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): ([0-9]+),?\s*(.*)`)

// parseXID finds an XID in a line of the kernel's log; nil where there is none.
func parseXID(line string) *gpu.XID {
	const textMax = 200
	match := xidLine.FindStringSubmatch(line)
	if match == nil {
		return nil
	}
	number, err := strconv.ParseUint(match[2], 10, 32)
	if err != nil {
		return nil
	}
	text := match[3]
	if len(text) > textMax {
		text = text[:textMax]
	}
	return &gpu.XID{PCI: match[1], Number: number, Source: gpu.SourceKernel, Text: text}
}

// readKernelLog passes XIDs on until ctx ends or the log cannot be read any more.
func (p *probe) readKernelLog(ctx context.Context, log *os.File) error {
	go func() {
		<-ctx.Done()
		_ = log.SetReadDeadline(time.Now())
	}()
	record := make([]byte, 8<<10) // one read gives one record, and a record is not longer
	for ctx.Err() == nil {
		n, err := log.Read(record)
		switch {
		case errors.Is(err, syscall.EPIPE):
			// records were overwritten before they were read; the next read goes on after them
			continue
		case err != nil:
			return nil //nolint:nilerr // events remain
		}
		if x := parseXID(string(record[:n])); x != nil {
			if err := p.out.write(gpu.Line{XID: x}); err != nil {
				return err
			}
		}
	}
	return nil
}

// address is how a GPU is called by its bus.
func address(pci nvml.PciInfo) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
}

// ours says whether a process belongs to gradbus: it is the one that started the probe, or its program lies beside the
// probe's. known is false where the process cannot be seen.
func ours(pid, parent int) (mine, known bool) {
	if pid == parent && parent != 0 || pid == os.Getpid() {
		return true, true
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		return false, false
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil { // of another user, who does not run our jobs
		return false, true
	}
	own, err := os.Executable()
	return err == nil && filepath.Dir(theirs) == filepath.Dir(own), true
}
