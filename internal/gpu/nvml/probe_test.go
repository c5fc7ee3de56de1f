//go:build cgo && linux

package nvml

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gradbus/internal/gpu"
	"gradbus/internal/testkit"
)

// mocked gives a library with one device, which lacks the functions named.
func mocked(d *mock.Device, lacks ...string) *mock.Interface {
	extensions := &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
		for _, l := range lacks {
			if l == name {
				return errors.New("not there")
			}
		}
		return nil
	}}
	return &mock.Interface{
		ExtensionsFunc:             func() nvml.ExtendedInterface { return extensions },
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return 1, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return d, nvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "1.2", nvml.SUCCESS },
		SystemGetNVMLVersionFunc:   func() (string, nvml.Return) { return "3.4", nvml.SUCCESS },
	}
}

// bare has what every device must have; all else panics when it is called.
func bare() *mock.Device {
	return &mock.Device{
		GetUUIDFunc:    func() (string, nvml.Return) { return "GPU-m", nvml.SUCCESS },
		GetNameFunc:    func() (string, nvml.Return) { return "Mock", nvml.SUCCESS },
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{Domain: 1, Bus: 0xaf}, nvml.SUCCESS },
	}
}

func open(t *testing.T, api nvml.Interface) (*probe, *bytes.Buffer) {
	t.Helper()
	out := &bytes.Buffer{}
	p := &probe{out: &lineWriter{to: json.NewEncoder(out)}, lacks: map[string]bool{}}
	if none := p.open(api, func(string) error { return nil }); none != nil {
		t.Fatalf("nothing to ask: %s", none.Reason)
	}
	return p, out
}

// A function that the library lacks is never called: the mock would panic, as the linker would end the process.
func TestMissingFunctionsAreNotCalled(t *testing.T) {
	t.Parallel()
	var all []string
	for _, names := range functions() {
		all = append(all, names...)
	}
	p, _ := open(t, mocked(bare(), append(all, "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2")...))
	h := p.hello()
	if len(h.Missing) != len(functions()) || h.Driver != "" {
		t.Errorf("missing are %q, driver %q", h.Missing, h.Driver)
	}
	if events, without := p.listen(); events != nil || len(without) != 1 {
		t.Errorf("events %v, GPUs without %v", events, without)
	}
	s := p.sample(p.devices[0])
	if *s != (gpu.Sample{GPU: gpu.GPU{UUID: "GPU-m"}}) {
		t.Errorf("sample %+v: want nothing but the GPU", s)
	}
}

// What a library must have is said where it has not; nothing is called then.
func TestTooOld(t *testing.T) {
	t.Parallel()
	p := &probe{lacks: map[string]bool{}}
	none := p.open(mocked(bare(), "nvmlDeviceGetUUID"), func(string) error { return nil })
	if none == nil || !none.Driver || !strings.Contains(none.Reason, "it has no function nvmlDeviceGetUUID") {
		t.Errorf("told %+v", none)
	}
}

// Nothing is called before the library has begun, nor where it cannot: the mock panics, as real ones crash. A missing
// library is not even asked for its functions.
func TestNothingBeforeInit(t *testing.T) {
	t.Parallel()
	for _, ret := range []nvml.Return{nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH,
		nvml.ERROR_NO_PERMISSION, nvml.ERROR_UNKNOWN, nvml.ERROR_LIBRARY_NOT_FOUND, 12345} {
		extensions := &mock.ExtendedInterface{LookupSymbolFunc: func(string) error { return nil }} // which asks the linker
		api := &mock.Interface{ExtensionsFunc: func() nvml.ExtendedInterface { return extensions },
			InitFunc: func() nvml.Return { return ret }}
		none := (&probe{lacks: map[string]bool{}}).open(api, func(string) error { return nil })
		if none == nil || none.Reason == "" || none.Driver != (ret != nvml.ERROR_DRIVER_NOT_LOADED) {
			t.Errorf("%d: told %+v", ret, none)
		}
	}
	none := (&probe{lacks: map[string]bool{}}).open(&mock.Interface{},
		func(string) error { return errors.New("no such file") })
	if none == nil || none.Driver || !strings.Contains(none.Reason, "cannot be loaded: no such file") {
		t.Errorf("without a library: told %+v", none)
	}
}

// A GPU that is lost is not asked any further, and a device that the process may not see is none of ours.
func TestLost(t *testing.T) {
	t.Parallel()
	var others []string
	for _, names := range functions() {
		if names[0] != "nvmlDeviceGetTemperature" && names[0] != "nvmlDeviceGetPowerUsage" {
			others = append(others, names...)
		}
	}
	d := bare()
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
	p, _ := open(t, mocked(d, others...)) // GetPowerUsage would panic
	if s := p.sample(p.devices[0]); s.Lost != gpu.LostGone || s.Call != "nvmlDeviceGetTemperature" ||
		s.Temperature != nil {
		t.Errorf("sample %+v", s)
	}
	api := mocked(bare())
	api.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_NO_PERMISSION }
	if p, _ := open(t, api); len(p.devices) != 0 {
		t.Errorf("%d devices, want none", len(p.devices))
	}
}

// Every code but success is no sample: never 0.
func TestRefusedIsNoSample(t *testing.T) {
	t.Parallel()
	var others []string
	for _, names := range functions() {
		if names[0] != "nvmlDeviceGetPowerUsage" && names[0] != "nvmlDeviceGetFieldValues" {
			others = append(others, names...)
		}
	}
	for _, ret := range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_UNKNOWN,
		nvml.ERROR_TIMEOUT, nvml.ERROR_NO_DATA, nvml.ERROR_UNINITIALIZED, nvml.ERROR_ARGUMENT_VERSION_MISMATCH, 12345} {
		d := bare()
		d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, ret }
		d.GetFieldValuesFunc = func([]nvml.FieldValue) nvml.Return { return nvml.SUCCESS } // and writes nothing
		p, _ := open(t, mocked(d, others...))
		if s := p.sample(p.devices[0]); *s != (gpu.Sample{GPU: gpu.GPU{UUID: "GPU-m"}}) {
			t.Errorf("%d: sample %+v", ret, s)
		}
	}
}

func TestFieldValue(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind  nvml.ValueType
		bytes [8]byte
		want  any // nil or the value
	}{
		{nvml.VALUE_TYPE_UNSIGNED_INT, [8]byte{1, 0, 0, 0, 9, 9, 9, 9}, uint64(1)},
		{nvml.VALUE_TYPE_UNSIGNED_LONG, [8]byte{0, 1}, uint64(256)},
		{nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, [8]byte{7: 1}, uint64(1) << 56},
		{nvml.VALUE_TYPE_SIGNED_LONG_LONG, [8]byte{5}, uint64(5)},
		{nvml.VALUE_TYPE_SIGNED_LONG_LONG, [8]byte{7: 0x80}, nil},
		{nvml.VALUE_TYPE_SIGNED_INT, [8]byte{5, 0, 0, 0, 9}, uint64(5)},
		{nvml.VALUE_TYPE_SIGNED_INT, [8]byte{3: 0x80}, nil},
		{nvml.VALUE_TYPE_UNSIGNED_SHORT, [8]byte{2, 1, 9}, uint64(258)},
		{nvml.VALUE_TYPE_DOUBLE, [8]byte{1}, nil},
		{99, [8]byte{1}, nil},
	} {
		got := fieldValue(&nvml.FieldValue{ValueType: uint32(c.kind), Value: c.bytes})
		if (got == nil) != (c.want == nil) || got != nil && *got != c.want {
			t.Errorf("type %d, bytes %v: %v, want %v", c.kind, c.bytes, got, c.want)
		}
	}
	if got := fieldValue(&nvml.FieldValue{NvmlReturn: uint32(nvml.ERROR_NOT_SUPPORTED),
		ValueType: uint32(nvml.VALUE_TYPE_UNSIGNED_INT)}); got != nil {
		t.Errorf("not supported gives %d", *got)
	}
}

func TestParseXID(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]gpu.XID{
		"4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=trainer, GPU has fallen off the bus.\n": {
			PCI: "0000:3b:00", Number: 79, Text: "pid=1234, name=trainer, GPU has fallen off the bus.",
		},
		"NVRM: Xid (0000:03:00): 14, Channel 00000001": {
			PCI: "0000:03:00", Number: 14, Text: "Channel 00000001",
		},
		"NVRM: Xid (PCI:0018:01:00): 31": {
			PCI: "0018:01:00", Number: 31,
		},
	} {
		want.Source = gpu.SourceKernel
		if got := parseXID(line); got == nil || *got != want {
			t.Errorf("%q gives %+v", line, got)
		}
	}
	for _, line := range []string{"", "NVRM: loading", "NVRM: Xid (PCI:0000:3b:00): x",
		"NVRM: Xid (PCI:0000:3b:00): 99999999999999", "Xid (PCI:0000:3b:00): 79",
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28002"} {
		if got := parseXID(line); got != nil {
			t.Errorf("%q gives %+v", line, got)
		}
	}
	if got := parseXID("NVRM: Xid (PCI:0000:3b:00): 79, " + strings.Repeat("x", 9000)); got == nil ||
		len(got.Text) != 200 {
		t.Error("a long line is not cut")
	}
	if !gpu.SamePCI("0000:3b:00", "00000000:3B:00.0") || gpu.SamePCI("0000:3b:00", "0000:3c:00.0") ||
		gpu.SamePCI("", "") {
		t.Error("addresses are compared wrongly")
	}
}

// The kernel's log is read from its end on, as it grows; what was there before is of before.
func TestKernelLog(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kmsg")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Skipf("no FIFO to stand for the kernel's log: %v", err)
	}
	feed, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	log, err := openKernelLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	var out testkit.Text
	p := &probe{out: &lineWriter{to: json.NewEncoder(&out)}}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.readKernelLog(ctx, log) }()
	if _, err := feed.WriteString("4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, gone\n"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		text := out.String()
		if strings.Contains(text, `"number":79`) && strings.Contains(text, `"source":"kernel"`) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing was told of the XID: %q", text)
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := openKernelLog(path + ".gone"); err == nil {
		t.Error("a log that is not there was opened")
	}
}

// An event that cannot be waited for, since a GPU is lost, does not keep a processor busy; those that come are told of.
func TestEvents(t *testing.T) {
	t.Parallel()
	d := bare()
	ctx, stop := context.WithCancel(t.Context())
	calls := 0
	set := &mock.EventSet{WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
		switch calls++; calls {
		case 1:
			return nvml.EventData{Device: d, EventType: nvml.EventTypeXidCriticalError, EventData: 48}, nvml.SUCCESS
		case 2:
			return nvml.EventData{}, nvml.ERROR_TIMEOUT
		case 3:
			return nvml.EventData{Device: d, EventType: nvml.EventTypeSingleBitEccError}, nvml.SUCCESS
		}
		stop()
		return nvml.EventData{}, nvml.ERROR_GPU_IS_LOST
	}}
	api := mocked(d)
	api.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS }
	d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypeXidCriticalError, nvml.SUCCESS }
	d.RegisterEventsFunc = func(types uint64, _ nvml.EventSet) nvml.Return { return nvml.SUCCESS }
	p, out := open(t, api)
	events, without := p.listen()
	if events == nil || without != nil {
		t.Fatalf("events %v, without %v", events, without)
	}
	if err := p.waitEvents(ctx, events); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); strings.Count(text, "\n") != 1 ||
		!strings.Contains(text, `"xid":{"uuid":"GPU-m","pci":"0001:af:00.0","number":48,"source":"event"}`) {
		t.Errorf("told %q", text)
	}
}
