package gpu_test

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gradbus/internal/gpu"
	"gradbus/internal/gpu/fake"
	"gradbus/internal/testkit"
	"gradbus/schema"
)

// safeLog is a log that may be read while it is written.
type safeLog struct{ testkit.Text }

// pid is that of the newest probe.
func (l *safeLog) pid(t *testing.T) int {
	t.Helper()
	text := l.String()
	at := strings.LastIndex(text, "GPUs are watched")
	if at < 0 {
		t.Fatalf("no probe in the log:\n%s", text)
	}
	_, after, _ := strings.Cut(text[at:], "pid=")
	number, _, _ := strings.Cut(strings.TrimSpace(after), " ")
	number, _, _ = strings.Cut(number, "\n")
	pid, err := strconv.Atoi(number)
	if err != nil {
		t.Fatalf("pid in %q: %v", text[at:], err)
	}
	return pid
}

var probeFlag = flag.Bool("need-probe", false, "fail, rather than skip, where this build has no probe")

// needProbe skips what a probe is needed for where the build has none.
func needProbe(t *testing.T) {
	t.Helper()
	if gpu.Built {
		return
	}
	lacking(t, "this build has no probe: it was made without cgo, or not for Linux")
}

// lacking skips what cannot be tested here.
func lacking(t *testing.T, why string) {
	t.Helper()
	if *probeFlag {
		t.Fatal(why)
	}
	t.Skip(why + "; -need-probe makes this a failure")
}

// start watches the GPUs of a stand-in with a real probe.
func start(t *testing.T, library string, alter func(*gpu.Config)) (*gpu.Monitor, *safeLog) {
	t.Helper()
	needProbe(t)
	log := &safeLog{}
	c := gpu.Config{
		Probe:   []string{os.Args[0], "gpu-probe", "--library", library},
		Silence: 5 * time.Second, Backoff: 20 * time.Millisecond, Driver: func() bool { return true },
		Log: slog.New(slog.NewTextHandler(log, nil)),
	}
	if alter != nil {
		alter(&c)
	}
	m, err := gpu.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		if t.Failed() {
			t.Logf("log:\n%s", log)
		}
	})
	return m, log
}

// guard bounds every wait for what must come. It is reached only by what never does.
const guard = 3 * time.Minute

// until waits for what must come.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(guard); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s has not come", what)
		}
	}
}

// untilState waits for the state and code of a GPU.
func untilState(t *testing.T, m *gpu.Monitor, index int, state schema.GPUState, code string) schema.GPUReport {
	t.Helper()
	var last []schema.GPUReport
	deadline := time.Now().Add(guard)
	for {
		last = m.GPUs()
		for _, g := range last {
			if g.Index == index && g.State == state && g.Code == code {
				return g
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("GPU %d is not %s (%s): %+v", index, state, code, last)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// What a healthy GPU tells arrives as it was told, and what it does not tell is nil.
func TestMonitorHealthy(t *testing.T) {
	t.Parallel()
	l := fake.Build(t)
	l.Set("count 2\n%s", fake.Healthy(0)) // the second tells nothing but its name
	m, _ := start(t, l.Path, func(c *gpu.Config) { c.Expected = 3 })
	untilState(t, m, 1, schema.GPUHealthy, "")
	g := untilState(t, m, 0, schema.GPUHealthy, "")
	if g.UUID != "GPU-fake-0" || g.Name != "Fake GPU" || g.PCI != "0000:3b:00.0" || g.Driver != "580.00.fake" ||
		g.SampleMS == 0 || g.Injected {
		t.Errorf("GPU 0 is %+v", g)
	}
	if *g.Temperature != 55 || *g.ThermalMargin != 32 || *g.PowerWatts != 300 || *g.PowerLimitWatts != 700 ||
		*g.Utilisation != 0.42 ||
		*g.MemoryTotal != 80<<30 || *g.MemoryUsed != 8<<30 || *g.SMClockHz != 1_980_000_000 ||
		*g.MemoryClockHz != 2_619_000_000 ||
		*g.ECCCorrected != 0 || *g.ECCUncorrected != 0 || *g.RowsRemapped != 0 || *g.PCIeReplays != 0 || *g.PCIeWidth != 16 ||
		*g.PCIeWidthMax != 16 {
		t.Errorf("GPU 0 tells %+v", g)
	}
	if g.RetiredPages != nil || g.NVLinkErrors != nil { // fields that it does not support
		t.Errorf("retired pages %v, errors of links %v: want nil", g.RetiredPages, g.NVLinkErrors)
	}
	silent := m.GPUs()[1]
	if silent.Temperature != nil || silent.PowerWatts != nil || silent.ECCCorrected != nil || silent.MemoryUsed != nil ||
		silent.PCIeWidth != nil {
		t.Errorf("GPU 1 tells nothing, and is shown as %+v", silent)
	}
	absent := m.GPUs()[2]
	if absent.State != schema.GPUAbsent || absent.Code != "gpu-missing" ||
		absent.Reason != "3 GPUs are expected and the driver counts 2." {
		t.Errorf("the third of three is %+v", absent)
	}
}

// Faults that the library tells of, one after the other, with an acknowledgement between them.
func TestMonitorFaults(t *testing.T) {
	t.Parallel()
	l := fake.Build(t)
	l.Set("count 2\n%s\n%s", fake.Healthy(0), fake.Healthy(1))
	var mu sync.Mutex
	var changes []gpu.Change
	m, _ := start(t, l.Path, func(c *gpu.Config) {
		c.OnChange = func(ch gpu.Change) { mu.Lock(); defer mu.Unlock(); changes = append(changes, ch) }
	})
	untilState(t, m, 0, schema.GPUHealthy, "")
	untilState(t, m, 1, schema.GPUHealthy, "")
	l.Set("set slower 0 8")
	untilState(t, m, 0, schema.GPUDegraded, "hw-slowdown")
	if got := m.GPUs()[0].Throttled; !slices.Equal(got, []string{"hw_slowdown"}) {
		t.Errorf("clocks are lowered for %v", got)
	}
	l.Set("set slower 0 0")
	untilState(t, m, 0, schema.GPUHealthy, "")

	l.XID(1, 79)
	g := untilState(t, m, 1, schema.GPUUnhealthy, "xid-79")
	if g.XIDs["79"] != 1 {
		t.Errorf("XIDs are %v", g.XIDs)
	}
	if err := m.May("GPU-fake-1"); err == nil || !strings.Contains(err.Error(), "XID 79") {
		t.Errorf("may use GPU 1: %v", err)
	}
	if err := m.May("GPU-fake-0"); err != nil {
		t.Errorf("may not use GPU 0: %v", err)
	}
	mu.Lock()
	told := slices.ContainsFunc(changes, func(c gpu.Change) bool {
		return c.Code == "xid-79" && c.ContextLost && c.GPU.Index == 1 && c.From != schema.GPUUnhealthy &&
			c.To == schema.GPUUnhealthy
	})
	mu.Unlock()
	if !told {
		t.Errorf("nobody is told of XID 79: %+v", changes)
	}
	if err := m.Acknowledge("GPU-fake-1"); err != nil {
		t.Fatal(err)
	}
	untilState(t, m, 1, schema.GPUHealthy, "")

	l.Set("set ecc_uncorrected 0 2")
	untilState(t, m, 0, schema.GPUUnhealthy, "ecc-uncorrectable")
}

// What any call says of a lost GPU, and of one that needs a reset.
func TestMonitorLost(t *testing.T) {
	t.Parallel()
	l := build(t)
	m, _ := start(t, l.Path, nil)
	untilState(t, m, 0, schema.GPUHealthy, "")
	l.Set("ret nvmlDeviceGetPowerUsage 0 15") // GPU is lost
	g := untilState(t, m, 0, schema.GPUUnhealthy, "gpu-lost")
	if g.Reason != "The driver has lost the GPU." {
		t.Errorf("reason is %q", g.Reason)
	}
	l.Set("ret nvmlDeviceGetTemperature 1 16") // reset required
	untilState(t, m, 1, schema.GPUUnhealthy, "gpu-reset-required")
}

// brief lets a hang be noticed soon. A busy machine may then take a probe that is well for one that hangs.
func brief(c *gpu.Config) { c.Silence = 500 * time.Millisecond }

// A call that hangs makes the GPUs unknown, is noticed while nobody waits, and ends with the probe that is killed.
func TestMonitorHang(t *testing.T) {
	t.Parallel()
	l := fake.Build(t)
	l.Set("count 2\n%s\n%s", fake.Healthy(0), fake.Healthy(1))
	m, log := start(t, l.Path, brief)
	untilState(t, m, 1, schema.GPUHealthy, "")
	first := log.pid(t)
	l.Set("hang nvmlDeviceGetTemperature 1")
	until(t, "the call that hangs in the reason", func() bool {
		g := untilState(t, m, 0, schema.GPUUnknown, "no-answer")
		return strings.HasPrefix(g.Reason, "The driver does not answer") &&
			strings.Contains(g.Reason, "since GPU 0 was asked") && g.Action != ""
	})
	l.XID(0, 48) // errors still arrive: another thread waits for them
	untilState(t, m, 0, schema.GPUUnhealthy, "xid-48")
	until(t, "the end of the probe that hangs", func() bool { return syscall.Kill(first, 0) != nil })
	l.Unset("hang ")
	untilState(t, m, 1, schema.GPUHealthy, "")
	untilState(t, m, 0, schema.GPUUnhealthy, "xid-48") // kept, though the probe is another one
	if log.pid(t) == first {
		t.Error("the probe is the one that was killed")
	}
}

// A driver that hangs from the start is said to, before the probe is given up.
func TestMonitorHangAtStart(t *testing.T) {
	t.Parallel()
	l := fake.Build(t)
	l.Set("hang nvmlInit_v2 *")
	m, _ := start(t, l.Path, brief)
	var g schema.GPUReport
	until(t, "unknown", func() bool {
		for _, g = range m.GPUs() {
			return g.State == schema.GPUUnknown && g.Code == "no-answer"
		}
		return false
	})
	if !strings.Contains(g.Reason, "since the probe was started") {
		t.Errorf("reason is %q", g.Reason)
	}
}

// A probe that is killed is started again, and nothing is forgotten. That no GPU is used is said once.
func TestMonitorProbeKilled(t *testing.T) {
	t.Parallel()
	l := fake.Build(t)
	l.Set("%s", fake.Healthy(0))
	m, log := start(t, l.Path, func(c *gpu.Config) { c.Unused = "say how" })
	untilState(t, m, 0, schema.GPUHealthy, "")
	l.XID(0, 79)
	untilState(t, m, 0, schema.GPUUnhealthy, "xid-79")
	first := log.pid(t)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "a new probe", func() bool { return log.pid(t) != first })
	if text := log.String(); !strings.Contains(text, "the probe ended: signal: killed") {
		t.Error("the log does not say how the probe ended")
	} else if n := strings.Count(text, `msg="no GPU is used" reason="say how"`); n != 1 {
		t.Errorf("the log says %d times how to use a GPU, want once", n)
	}
	untilState(t, m, 0, schema.GPUUnhealthy, "xid-79")
}

// An old driver lacks functions: what they tell is not sampled, and everything else is.
func TestMonitorOldDriver(t *testing.T) {
	t.Parallel()
	l := fake.Build(t, "OLD")
	l.Set("%s", fake.Healthy(0))
	m, _ := start(t, l.Path, nil)
	g := untilState(t, m, 0, schema.GPUHealthy, "")
	if g.ThermalMargin != nil || g.Temperature == nil || *g.Temperature != 55 || g.PCIeWidth == nil {
		t.Errorf("GPU tells %+v", g)
	}
	l.Set("set slowdown_at 0 95")
	until(t, "the margin, by what older drivers tell",
		func() bool { m := m.GPUs()[0].ThermalMargin; return m != nil && *m == 40 })
	l.Set("set slower 0 64") // by the function that older drivers have
	until(t, "lower clocks", func() bool { return len(m.GPUs()[0].Throttled) == 1 })
}

// What is said where nothing can be asked.
func TestMonitorNothingToAsk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, define, set, want string }{
		{"no driver", "", "ret nvmlInit_v2 * 9", "the NVIDIA driver is not loaded"},
		{"versions differ", "", "ret nvmlInit_v2 * 18", "of different versions"},
		{"no permission", "", "ret nvmlInit_v2 * 4", `nvmlInit says \"no permission\" (4)`},
		{"not the library", "NO_INIT", "", "it has no function nvmlInit"},
		{"no library", "gone", "", "cannot be loaded"},
		{"no count", "", "ret nvmlDeviceGetCount_v2 * 999", `nvmlDeviceGetCount says \"unknown error\" (999)`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var l *fake.Library
			if c.define == "" || c.define == "gone" {
				l = fake.Build(t)
			} else {
				l = fake.Build(t, c.define)
			}
			path := l.Path
			if c.define == "gone" {
				path += ".gone"
			}
			l.Set("%s", c.set)
			_, log := start(t, path, func(c *gpu.Config) { c.Unused = "say how" })
			until(t, c.want, func() bool { return strings.Contains(log.String(), c.want) })
			if n := strings.Count(log.String(), "\n"); n != 1 {
				t.Errorf("the log has %d lines, want one:\n%s", n, log)
			}
		})
	}
}

// Require refuses to start without the GPUs that it wants, and says what is wrong in one line.
func TestRequire(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, set string
		expected  int
		want      string
	}{
		{"all well", "", 1, ""},
		{"no driver", "ret nvmlInit_v2 * 9", 0, "gpu require: the NVIDIA driver is not loaded"},
		{"none", "count 0", 0, "gpu require: the driver counts no GPU"},
		{"too few", "", 2, "gpu require: 2 GPUs are expected and the driver counts 1."},
		{"unhealthy", "set remap_failed 0 1", 1,
			"gpu require: GPU 0 (Fake GPU, GPU-fake-0) is unhealthy: A faulty memory row could not be remapped."},
		{"lost", "ret nvmlDeviceGetHandleByIndex_v2 0 15", 1, "is unhealthy: The driver has lost the GPU"},
		{"hangs", "hang nvmlInit_v2 *", 1, "gpu require: the driver has not answered within 1s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			needProbe(t)
			l := fake.Build(t)
			l.Set("%s\n%s", fake.Healthy(0), c.set)
			patience := guard
			if c.name == "hangs" {
				patience = time.Second
			}
			m, err := gpu.Start(context.Background(), gpu.Config{Mode: gpu.Require, Expected: c.expected,
				Patience: patience,
				Probe:    []string{os.Args[0], "gpu-probe", "--library", l.Path}})
			if err == nil {
				defer m.Close()
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// build gives a stand-in with two healthy GPUs.
func build(t *testing.T) *fake.Library {
	t.Helper()
	l := fake.Build(t)
	l.Set("count 2\n%s\n%s", fake.Healthy(0), fake.Healthy(1))
	return l
}

// Results are in doubt where memory was wrong while they were made, and where the GPU has not answered since.
func TestDoubt(t *testing.T) {
	t.Parallel()
	l := build(t)
	m, _ := start(t, l.Path, nil)
	untilState(t, m, 0, schema.GPUHealthy, "")
	begun := time.Now()
	if text := m.Doubt(t.Context(), begun, guard); text != "" {
		t.Errorf("no GPU is used, and there is doubt: %q", text)
	}
	m.Use("GPU-fake-0")
	if text := m.Doubt(t.Context(), begun, guard); text != "" {
		t.Errorf("all is well, and there is doubt: %q", text)
	}
	l.Set("set ecc_uncorrected 0 1") // seen by nobody yet: the next sample shows it
	if text := m.Doubt(t.Context(), begun, guard); !strings.Contains(text,
		"Memory of GPU 0 (GPU-fake-0) was faulty during the run: 1 memory error") {
		t.Errorf("memory was wrong, and the doubt is %q", text)
	}
	m.Use("GPU-fake-1")
	l.Set("hang nvmlDeviceGetTemperature 1")
	untilState(t, m, 1, schema.GPUUnknown, "no-answer")
	if text := m.Doubt(t.Context(), begun, 10*time.Millisecond); !strings.Contains(text,
		"GPU 1 (GPU-fake-1) has not answered since") {
		t.Errorf("nobody answers, and the doubt is %q", text)
	}
}

// Results that differ from the CPU's make the GPU in use unhealthy, and what it computed suspect.
func TestMismatch(t *testing.T) {
	t.Parallel()
	l := build(t)
	m, _ := start(t, l.Path, nil)
	untilState(t, m, 1, schema.GPUHealthy, "")
	m.Mismatch("", "no GPU is in use", false)
	m.Use("GPU-fake-1")
	m.Mismatch("", "1 of 10 blocks", false)
	g := untilState(t, m, 1, schema.GPUUnhealthy, "verify-mismatch")
	if g.Reason != "Its results differ from those of the CPU: 1 of 10 blocks." || !g.Used || m.Fit() == nil {
		t.Errorf("GPU is %+v, fit %v", g, m.Fit())
	}
	if g := m.GPUs()[0]; g.State != schema.GPUHealthy {
		t.Errorf("the other GPU is %s", g.State)
	}
}

// Why no GPU is watched is logged once, though it is asked again and again whether a driver has come.
func TestNoneIsLoggedOnce(t *testing.T) {
	const same, other = `{"none":{"reason":"no driver"}}`, `{"none":{"reason":"another"}}`
	log := &safeLog{}
	m, err := gpu.Start(t.Context(), gpu.Config{
		Probe:   []string{"/bin/sh", "-c", "echo '" + same + "'; echo '" + same + "'; echo '" + other + "'; read end"},
		Silence: time.Minute,
		Driver:  func() bool { return true }, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for end := time.Now().Add(time.Minute); !strings.Contains(log.String(), "another"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("log:\n%s", log)
		}
	}
	if n := strings.Count(log.String(), "no driver"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log)
	}
}
