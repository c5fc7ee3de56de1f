//go:build cgo && linux

package nvml

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
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
	if o.Topology {
		return p.out.write(gpu.Line{Topology: p.topology()})
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
