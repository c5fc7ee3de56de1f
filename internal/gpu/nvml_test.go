//go:build cgo && linux

package gpu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// mocked gives a library with one device.
func mocked(d *mock.Device) *mock.Interface {
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return 1, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return d, nvml.SUCCESS },
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
	p := &probe{out: json.NewEncoder(out)}
	if none := p.open(api, func(string) error { return nil }); none != nil {
		t.Fatalf("nothing to ask: %s", none.Reason)
	}
	return p, out
}

// Nothing is called before the library has begun, nor where it cannot: the mock panics, as real ones crash.
func TestNothingBeforeInit(t *testing.T) {
	t.Parallel()
	for _, ret := range []nvml.Return{nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH,
		nvml.ERROR_NO_PERMISSION, nvml.ERROR_UNKNOWN, nvml.ERROR_LIBRARY_NOT_FOUND, 12345} {
		api := &mock.Interface{InitFunc: func() nvml.Return { return ret }}
		none := new(probe).open(api, func(string) error { return nil })
		if none == nil || none.Reason == "" || none.Driver != (ret != nvml.ERROR_DRIVER_NOT_LOADED) {
			t.Errorf("%d: told %+v", ret, none)
		}
	}
	none := new(probe).open(&mock.Interface{}, func(string) error { return errors.New("no such file") })
	if none == nil || none.Driver || !strings.Contains(none.Reason, "cannot be loaded: no such file") {
		t.Errorf("without a library: told %+v", none)
	}
}

// A GPU that is lost is not asked any further: the mock panics. A device that the process may not see is none of ours.
func TestLost(t *testing.T) {
	t.Parallel()
	for ret, want := range map[nvml.Return]string{nvml.ERROR_GPU_IS_LOST: LostGone, nvml.ERROR_RESET_REQUIRED: LostReset} {
		d := bare()
		d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, ret }
		p, _ := open(t, mocked(d))
		if s := p.sample(p.devices[0]); s.Lost != want || s.Temperature != nil {
			t.Errorf("sample %+v, want %s", s, want)
		}
	}
	api := mocked(bare())
	api.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_NO_PERMISSION }
	if p, _ := open(t, api); len(p.devices) != 0 {
		t.Errorf("%d devices, want none", len(p.devices))
	}
}

// Every code but success is no value: never 0.
func TestRefusedIsNoValue(t *testing.T) {
	t.Parallel()
	for _, ret := range []nvml.Return{nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NO_PERMISSION, nvml.ERROR_UNKNOWN,
		nvml.ERROR_TIMEOUT, nvml.ERROR_NO_DATA, nvml.ERROR_UNINITIALIZED, nvml.ERROR_ARGUMENT_VERSION_MISMATCH,
		nvml.ERROR_FUNCTION_NOT_FOUND, 12345} {
		s := &Sample{}
		if number(s, &s.ECCCorrected, func() (uint32, nvml.Return) { return 7, ret }) || !reflect.DeepEqual(s, &Sample{}) {
			t.Errorf("%d: sample %+v", ret, s)
		}
	}
	d := bare()
	d.GetFieldValuesFunc = func([]nvml.FieldValue) nvml.Return { return nvml.SUCCESS } // and writes nothing
	s := &Sample{}
	if sampleFields(d, s); !reflect.DeepEqual(s, &Sample{}) {
		t.Errorf("fields that were not written: %+v", s)
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
		!strings.Contains(text, `"xid":{"uuid":"GPU-m","number":48}`) {
		t.Errorf("told %q", text)
	}
}
