//go:build cgo && linux

package gpu

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gradbus/schema"
)

// Built says whether this build can ask a driver.
const Built = true

// probe asks one driver, by its library libnvidia-ml.so.1. The library is opened at run time, and none of its functions
// is left to the loader: library.c defines all that go-nvml refers to, so that a program starts without a driver, and a
// function that the library lacks answers "function not found".
type probe struct {
	options ProbeOptions
	api     nvml.Interface
	devices []*device

	mu  sync.Mutex
	out *json.Encoder
}

// device is a GPU. Its handle is nil where the driver does not even give one.
type device struct {
	id     GPU
	handle nvml.Device
	lost   string // what the driver said instead of giving a handle
}

// write writes a line whole.
func (p *probe) write(l Line) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.out.Encode(l); err != nil {
		return fmt.Errorf("write a line: %w", err)
	}
	return nil
}

// Serve asks the driver until ctx or its input ends, or its output is closed. Run it in a process of its own: a call of
// the driver may never return. A missing or failing driver is reported in a line, and is no error.
func Serve(ctx context.Context, o ProbeOptions) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // ends with the process: nothing interrupts a read of standard input
		_, _ = io.Copy(io.Discard, o.In)
		os.Exit(0) // not by way of ctx: a call of the driver may hang
	}()
	p := &probe{options: o, out: json.NewEncoder(o.Out)}
	if none := p.open(nvml.New(nvml.WithLibraryPath(o.Library)), openLibrary); none != nil {
		return p.write(Line{None: none})
	}
	hello := p.hello()
	events, without := p.listen()
	hello.NoXIDs = without
	if err := p.write(Line{Hello: hello}); err != nil {
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
	return p.poll(ctx)
}

// poll samples all GPUs again and again. Its lines are the sign that the driver answers.
func (p *probe) poll(ctx context.Context) error {
	tick := time.NewTicker(p.options.Every)
	defer tick.Stop()
	for {
		for _, d := range p.devices {
			if err := p.write(Line{Sample: p.sample(d)}); err != nil {
				return err
			}
		}
		if err := p.write(Line{Poll: true}); err != nil {
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
func (p *probe) open(api nvml.Interface, openLibrary func(string) error) *None {
	p.api = api
	if err := openLibrary(p.options.Library); err != nil {
		return &None{Reason: fmt.Sprintf("the driver's library cannot be loaded: %v", err)}
	}
	switch ret := api.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return &None{Reason: "the driver's library cannot be loaded: it has no function nvmlInit"}
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return &None{Reason: "the NVIDIA driver is not loaded"}
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return &None{Driver: true,
			Reason: "the driver in the kernel and its library are of different versions: reboot, or load the driver again"}
	default:
		return &None{Driver: true, Reason: "the driver does not let itself be asked: nvmlInit says " + named(ret)}
	}
	count, ret := api.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return &None{Driver: true, Reason: "the driver does not count its GPUs: nvmlDeviceGetCount says " + named(ret)}
	}
	for i := range min(count, GPUsMax) {
		p.add(i)
	}
	return nil
}

// add takes in the GPU with an index.
func (p *probe) add(index int) {
	d := &device{id: GPU{Index: index, UUID: fmt.Sprintf("unknown-%d", index)}}
	handle, ret := p.api.DeviceGetHandleByIndex(index)
	switch ret {
	case nvml.ERROR_NO_PERMISSION:
		return // not one of ours
	case nvml.SUCCESS:
		d.handle = handle
		if uuid, ret := handle.GetUUID(); ret == nvml.SUCCESS && uuid != "" {
			d.id.UUID = uuid
		}
		if name, ret := handle.GetName(); ret == nvml.SUCCESS {
			d.id.Name = name
		}
		if pci, ret := handle.GetPciInfo(); ret == nvml.SUCCESS {
			d.id.PCI = fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
		}
	case nvml.ERROR_RESET_REQUIRED:
		d.lost = LostReset
	default:
		d.lost = LostGone
	}
	p.devices = append(p.devices, d)
}

// hello says what was found. What the driver does not tell is empty.
func (p *probe) hello() *Hello {
	h := &Hello{}
	h.Driver, _ = p.api.SystemGetDriverVersion()
	h.NVML, _ = p.api.SystemGetNVMLVersion()
	for _, d := range p.devices {
		h.GPUs = append(h.GPUs, d.id)
	}
	return h
}

// named says what the library answers, without asking it for the text: nvmlErrorString may be missing.
func named(ret nvml.Return) string {
	text, known := map[nvml.Return]string{nvml.ERROR_NO_PERMISSION: "no permission", nvml.ERROR_TIMEOUT: "timeout",
		nvml.ERROR_FUNCTION_NOT_FOUND: "function not found", nvml.ERROR_GPU_IS_LOST: "a GPU is lost",
		nvml.ERROR_RESET_REQUIRED: "a GPU needs a reset", nvml.ERROR_MEMORY: "out of memory",
		nvml.ERROR_UNKNOWN: "unknown error"}[ret]
	if !known {
		return fmt.Sprintf("error %d", int(ret))
	}
	return fmt.Sprintf("%q (%d)", text, int(ret))
}

// ask calls a function of the driver for a sample. What the library lacks or the GPU does not support is no value,
// never 0. Once the driver says that the GPU is lost nothing more is asked.
func ask[T any](s *Sample, f func() (T, nvml.Return)) (value T, ok bool) {
	if s.Lost != "" {
		return value, false
	}
	value, ret := f()
	s.Lost = lostBy(ret)
	return value, ret == nvml.SUCCESS
}

func lostBy(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		return LostGone
	case nvml.ERROR_RESET_REQUIRED:
		return LostReset
	}
	return ""
}

type integer interface {
	~int | ~int64 | ~uint32 | ~uint64
}

// number asks for a number, which goes to a field of the sample.
func number[T, V integer](s *Sample, to **V, f func() (T, nvml.Return)) bool {
	v, ok := ask(s, f)
	if ok {
		*to = ptr(V(v))
	}
	return ok
}

// real asks for a number in parts of a unit.
func real[T integer](s *Sample, to **schema.Real, parts schema.Real, f func() (T, nvml.Return)) {
	if v, ok := ask(s, f); ok {
		*to = ptr(schema.Real(v) / parts)
	}
}

// of gives the function of a first argument.
func of[A, T any](f func(A) (T, nvml.Return), a A) func() (T, nvml.Return) {
	return func() (T, nvml.Return) { return f(a) }
}

// sample asks all there is to know of one GPU.
func (p *probe) sample(d *device) *Sample {
	s := sampleOf(d.id)
	s.Lost = d.lost
	h := d.handle
	if h == nil {
		return s
	}
	real(s, &s.Temperature, 1, of(h.GetTemperature, nvml.TEMPERATURE_GPU))
	if v, ok := ask(s, h.GetMarginTemperature); ok {
		s.ThermalMargin = ptr(schema.Real(v.MarginTemperature))
	} else if v, ok := ask(s, of(h.GetTemperatureThreshold, nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)); ok &&
		s.Temperature != nil { // older drivers tell where the GPU slows down
		s.ThermalMargin = ptr(schema.Real(v) - *s.Temperature)
	}
	real(s, &s.PowerWatts, 1000, h.GetPowerUsage)
	real(s, &s.PowerLimitWatts, 1000, h.GetEnforcedPowerLimit)
	if v, ok := ask(s, h.GetUtilizationRates); ok {
		s.Utilisation = ptr(schema.Real(v.Gpu) / 100)
	}
	if v, ok := ask(s, h.GetMemoryInfo); ok {
		s.MemoryUsed, s.MemoryTotal = ptr(int64(v.Used)), ptr(int64(v.Total))
	}
	clock := func(kind nvml.ClockType) func() (int64, nvml.Return) { // in Hz, of MHz
		return func() (int64, nvml.Return) { v, ret := h.GetClockInfo(kind); return int64(v) * 1e6, ret }
	}
	number(s, &s.SMClockHz, clock(nvml.CLOCK_SM))
	number(s, &s.MemoryClockHz, clock(nvml.CLOCK_MEM))
	if !number(s, &s.Slower, h.GetCurrentClocksEventReasons) {
		number(s, &s.Slower, h.GetCurrentClocksThrottleReasons) // of older drivers
	}
	ecc := func(kind nvml.MemoryErrorType) func() (uint64, nvml.Return) {
		return func() (uint64, nvml.Return) { return h.GetTotalEccErrors(kind, nvml.VOLATILE_ECC) }
	}
	number(s, &s.ECCCorrected, ecc(nvml.MEMORY_ERROR_TYPE_CORRECTED))
	number(s, &s.ECCUncorrected, ecc(nvml.MEMORY_ERROR_TYPE_UNCORRECTED))
	if v, ok := ask(s, h.GetSramEccErrorStatus); ok {
		s.SRAMThreshold = ptr(v.BThresholdExceeded != 0)
	}
	number(s, &s.RowsRemapped, func() (int, nvml.Return) {
		corrected, uncorrected, pending, failed, ret := h.GetRemappedRows()
		if ret == nvml.SUCCESS {
			s.RemapPending, s.RemapFailed = &pending, &failed
		}
		return corrected + uncorrected, ret
	})
	if v, ok := ask(s, h.GetRetiredPagesPendingStatus); ok {
		s.RetiredPending = ptr(v == nvml.FEATURE_ENABLED)
	}
	sampleFields(h, s)
	number(s, &s.PCIeReplays, h.GetPcieReplayCounter)
	number(s, &s.PCIeWidth, h.GetCurrPcieLinkWidth)
	number(s, &s.PCIeWidthMax, h.GetMaxPcieLinkWidth)
	return s
}

// sampleFields asks for what has a number instead of a function, in one call.
func sampleFields(h nvml.Device, s *Sample) {
	fields := make([]nvml.FieldValue, 5)
	for i, id := range []uint32{nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, nvml.FI_DEV_RETIRED_SBE, nvml.FI_DEV_RETIRED_DBE,
		nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL} {
		fields[i].FieldId = id
		fields[i].NvmlReturn = uint32(nvml.ERROR_UNKNOWN) // where the driver writes nothing
	}
	if _, ok := ask(s, func() (struct{}, nvml.Return) { return struct{}{}, h.GetFieldValues(fields) }); !ok {
		return
	}
	for _, f := range fields {
		s.Lost = cmp.Or(s.Lost, lostBy(nvml.Return(f.NvmlReturn)))
	}
	sum := func(a, b *uint64) *uint64 {
		if a == nil || b == nil {
			return cmp.Or(a, b)
		}
		return ptr(*a + *b)
	}
	s.RecoveryAction = fieldValue(&fields[0])
	s.RetiredPages = sum(fieldValue(&fields[1]), fieldValue(&fields[2]))
	s.NVLinkErrors = sum(fieldValue(&fields[3]), fieldValue(&fields[4]))
}

// fieldValue returns the value of a field, nil if the driver has none. Negative and fractional values are not used.
func fieldValue(f *nvml.FieldValue) *uint64 {
	if nvml.Return(f.NvmlReturn) != nvml.SUCCESS {
		return nil
	}
	raw := binary.NativeEndian.Uint64(f.Value[:])
	switch nvml.ValueType(f.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		raw &= math.MaxUint16 // NVML's machines are little-endian
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		raw &= math.MaxUint32
	case nvml.VALUE_TYPE_SIGNED_INT:
		raw = uint64(int32(raw))
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
	default:
		return nil
	}
	if int64(raw) < 0 {
		return nil
	}
	return &raw
}

// listen asks the driver for events of every GPU. It gives nil where it sends none, and the indices of the GPUs for
// which it does not.
func (p *probe) listen() (events nvml.EventSet, without []int) {
	set, ret := p.api.EventSetCreate()
	for _, d := range p.devices {
		if ret == nvml.SUCCESS && d.handle != nil &&
			d.handle.RegisterEvents(nvml.EventTypeXidCriticalError, set) == nvml.SUCCESS {
			events = set
		} else {
			without = append(without, d.id.Index)
		}
	}
	return events, without
}

// eventWait bounds one call that waits for an event; the call may also hang forever.
const eventWait = time.Second

// waitEvents passes events on until ctx ends.
func (p *probe) waitEvents(ctx context.Context, events nvml.EventSet) error {
	for ctx.Err() == nil {
		e, ret := events.Wait(uint32(eventWait.Milliseconds()))
		switch {
		case ret == nvml.SUCCESS && e.EventType == nvml.EventTypeXidCriticalError && e.Device != nil:
			uuid, _ := e.Device.GetUUID()
			for _, d := range p.devices {
				if d.handle != e.Device && d.id.UUID != uuid {
					continue
				}
				if err := p.write(Line{XID: &XID{UUID: d.id.UUID, Number: e.EventData}}); err != nil {
					return err
				}
				break
			}
		case ret == nvml.SUCCESS || ret == nvml.ERROR_TIMEOUT:
		default: // such as a lost GPU, which samples tell of too: it may answer so at once, again and again
			select {
			case <-ctx.Done():
			case <-time.After(eventWait):
			}
		}
	}
	return nil
}
