package gpu_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/internal/gpu"
	"gradbus/schema"
)

func TestParseInjection(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want gpu.Injection
	}{
		{"gpu=0,xid=79,after=30s", gpu.Injection{Kind: "xid", Value: 79, After: 30 * time.Second}},
		{"xid=79", gpu.Injection{Kind: "xid", Value: 79}},
		{"gpu=3, thermal , for=1m30s", gpu.Injection{GPU: 3, Kind: "thermal", For: 90 * time.Second}},
		{"after=0s,ecc=2,gpu=1", gpu.Injection{GPU: 1, Kind: "ecc", Value: 2}},
		{"hang,after=5s,for=20s", gpu.Injection{Kind: "hang", After: 5 * time.Second, For: 20 * time.Second}},
		{"lost,gpu=7", gpu.Injection{GPU: 7, Kind: "lost"}},
	} {
		got, err := gpu.ParseInjection(c.text)
		c.want.Spec = c.text
		if err != nil || got != c.want {
			t.Errorf("%q: %+v, %v; want %+v", c.text, got, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"":                      `"" is not known`,
		"gpu=0":                 "no fault: want one of",
		"xid":                   "xid: want a number, xid=N",
		"xid=":                  `xid "": want a number`,
		"xid=-1":                `xid "-1": want a number`,
		"xid=99999999999":       "want a number",
		"xid=79,lost":           "xid and lost: want one fault",
		"lost=1":                "lost: it takes no value",
		"xid=79,xid=48":         "xid is there twice",
		"gpu=x,lost":            `gpu "x": want an index from 0 to 63`,
		"gpu=64,lost":           `gpu "64": want an index from 0 to 63`,
		"gpu,lost":              `gpu "": want an index`,
		"lost,after=30":         `after "30": want a time, such as 30s`,
		"lost,after=-1s":        `after "-1s": want a time`,
		"lost,for=0s":           `for "0s": want a time`,
		"xid=79,for=1s":         "for: xid happens at a moment, and has no end",
		"hang,gpu=0":            "gpu: a hang is of the driver",
		"gpu=0,xid=79,when=30s": `"when" is not known: want gpu=, after=, for= and one of`,
	} {
		_, err := gpu.ParseInjection(text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "inject ") ||
			!strings.Contains(err.Error(), "(for example gpu=0,xid=79,after=30s)") {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func inject(t *testing.T, specs ...string) []gpu.Injection {
	t.Helper()
	var all []gpu.Injection
	for _, text := range specs {
		in, err := gpu.ParseInjection(text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, in)
	}
	return all
}

// journal keeps changes, so that a state that lasts for a moment only is not missed.
type journal struct {
	mu   sync.Mutex
	all  []gpu.Change
	read int
}

func (j *journal) add(c gpu.Change) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.all = append(j.all, c)
}

// next waits for the next change of a GPU to a state, after those that it gave before.
func (j *journal) next(t *testing.T, index int, state schema.GPUState, code string) gpu.Change {
	t.Helper()
	var found gpu.Change
	until(t, fmt.Sprintf("GPU %d, %s (%s)", index, state, code), func() bool {
		j.mu.Lock()
		defer j.mu.Unlock()
		for i, c := range j.all[j.read:] {
			if c.GPU.Index == index && c.To == state && c.Code == code {
				found, j.read = c, j.read+i+1
				return true
			}
		}
		return false
	})
	return found
}

// Without a driver faults show on GPUs that are made up, and say so.
func TestInjectWithoutGPU(t *testing.T) {
	t.Parallel()
	changes := &journal{}
	m, err := gpu.Start(t.Context(), gpu.Config{Driver: func() bool { return false }, Every: 10 * time.Millisecond,
		Silence:  100 * time.Millisecond,
		OnChange: changes.add, Inject: inject(t, "gpu=1,xid=31,after=200ms", "gpu=0,thermal,for=300ms", "hang,after=1s")})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	m.Wait(t.Context(), 10*time.Second)
	if n := len(m.GPUs()); n != 2 {
		t.Fatalf("%d GPUs with the first word, want 2: the highest index is 1", n)
	}
	m.Use(gpu.Simulated + "-1")
	c := changes.next(t, 0, schema.GPUDegraded, "thermal-margin")
	if !c.Injected || !strings.HasPrefix(c.GPU.UUID, gpu.Simulated) ||
		!strings.HasPrefix(c.GPU.Name, gpu.Simulated) {
		t.Errorf("a made up GPU is %+v", c)
	}
	if c = changes.next(t, 1, schema.GPUDegraded, "xid-31"); !c.Injected || !c.ContextLost {
		t.Errorf("GPU 1 is %+v", c)
	}
	until(t, "an end of what it had there", func() bool { return m.Fit() != nil })
	if err := m.Fit(); !strings.Contains(err.Error(), "XID 31") || !strings.Contains(err.Error(), "(Injected.)") {
		t.Errorf("fit after what it had there was lost: %v", err)
	}
	changes.next(t, 0, schema.GPUHealthy, "")
	untilState(t, m, 0, schema.GPUUnknown, "no-answer")
	if g := m.GPUs()[1]; !g.Injected || !g.Used || g.XIDs["31"] != 1 {
		t.Errorf("GPU 1 is %+v", g)
	}
}

// A driver that answers again ends a hang.
func TestInjectHangEnds(t *testing.T) {
	t.Parallel()
	changes := &journal{}
	m, err := gpu.Start(t.Context(), gpu.Config{Driver: func() bool { return false }, Every: 10 * time.Millisecond,
		Silence:  20 * time.Millisecond,
		OnChange: changes.add, Inject: inject(t, "hang,after=100ms,for=2s")})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	changes.next(t, 0, schema.GPUUnknown, "no-answer")
	changes.next(t, 0, schema.GPUHealthy, "")
}

// A fault shows however short it is, and however seldom GPUs are asked.
func TestInjectShort(t *testing.T) {
	t.Parallel()
	changes := &journal{}
	m, err := gpu.Start(t.Context(), gpu.Config{Driver: func() bool { return false }, Every: 40 * time.Millisecond,
		OnChange: changes.add,
		Inject:   inject(t, "remap-failed,after=50ms,for=1ns", "gpu=1,remap-failed,after=110ms,for=1ns")})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	changes.next(t, 0, schema.GPUUnhealthy, "remap-failed")
	changes.next(t, 1, schema.GPUUnhealthy, "remap-failed")
	until(t, "an acknowledgement that lasts", func() bool {
		for _, g := range m.GPUs() {
			if g.State == schema.GPUUnhealthy {
				_ = m.Acknowledge(g.UUID)
				return false
			}
		}
		return true
	})
}

// A driver whose files are there and which is not loaded is the same as none: each probe says so again, and what is
// made up stays as it is.
func TestInjectDriverNotLoaded(t *testing.T) {
	t.Parallel()
	changes, log := &journal{}, &safeLog{}
	const none = `{"none":{"reason":"it is not loaded"}}`
	m, err := gpu.Start(t.Context(), gpu.Config{Driver: func() bool { return true }, Every: 10 * time.Millisecond,
		OnChange: changes.add,
		Log:      slog.New(slog.NewTextHandler(log, nil)),
		Probe:    []string{"/bin/sh", "-c", "echo '" + none + "'; sleep 0.1; echo '" + none + "'; read end"},
		Inject:   inject(t, "xid=79,after=300ms")})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	changes.next(t, 0, schema.GPUUnhealthy, "xid-79")
	changes.mu.Lock()
	defer changes.mu.Unlock()
	for _, c := range changes.all {
		if c.To == schema.GPUUnknown {
			t.Errorf("a made up GPU has changed to %s: %s", c.To, c.Reason)
		}
	}
	if n := strings.Count(log.String(), "no GPU is watched"); n != 1 {
		t.Errorf("it was said %d times that no GPU is watched, want once:\n%s", n, log)
	}
}

// On a real GPU, real values are altered, while the fault lasts.
func TestInjectIntoGPU(t *testing.T) {
	t.Parallel()
	l := build(t)
	changes := &journal{}
	m, _ := start(t, l.Path, func(c *gpu.Config) {
		c.OnChange, c.Inject = changes.add, inject(t, "gpu=0,ecc=1,after=1s", "gpu=1,remap-pending,for=1s", "gpu=5,lost")
	})
	if c := changes.next(t, 1, schema.GPUDegraded, "remap-pending"); !c.Injected {
		t.Error("it is not marked as injected")
	}
	untilState(t, m, 1, schema.GPUHealthy, "")
	if g := m.GPUs()[1]; g.Injected {
		t.Error("a fault that is over is marked as injected")
	}
	g := untilState(t, m, 0, schema.GPUUnhealthy, "ecc-uncorrectable")
	if !g.Injected || *g.ECCUncorrected != 1 || *g.Temperature != 55 {
		t.Errorf("GPU 0 is %+v", g)
	}
	m.Use("GPU-fake-0")
	if err := m.Fit(); err == nil {
		t.Error("fit with an unhealthy GPU")
	}
	if len(m.GPUs()) != 2 {
		t.Errorf("%d GPUs: none is made up where there are real ones", len(m.GPUs()))
	}
}

// A GPU that is unhealthy cannot be taken; which one CUDA would take follows from its own variable.
func TestTake(t *testing.T) {
	t.Parallel()
	l := build(t)
	m, _ := start(t, l.Path, nil)
	untilState(t, m, 1, schema.GPUHealthy, "")
	l.XID(0, 79)
	untilState(t, m, 0, schema.GPUUnhealthy, "xid-79")
	for visible, refused := range map[string]bool{"": true, "0": true, "0,1": true, "GPU-fake-0": true, "1": false,
		" 1 , 0": false, "GPU-fake-1": false, "7": false, "nonsense": false} {
		err := m.Take(context.Background(), visible)
		if (err != nil) != refused {
			t.Errorf("CUDA_VISIBLE_DEVICES=%q: %v", visible, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "GPU 0 (Fake GPU, GPU-fake-0) is unhealthy") ||
			!strings.Contains(err.Error(), "XID 79")) {
			t.Errorf("the reason is %v", err)
		}
	}
}

// Off asks nothing, and says nothing.
func TestOff(t *testing.T) {
	t.Parallel()
	m, err := gpu.Start(t.Context(), gpu.Config{Mode: gpu.Off})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if len(m.GPUs()) != 0 || m.Fit() != nil || m.May("0") != nil {
		t.Error("off knows something")
	}
	m.Mismatch("", "x", false)
	if err := m.Acknowledge("0"); err == nil {
		t.Error("acknowledged a GPU that is not watched")
	}
	if _, err := gpu.Start(t.Context(), gpu.Config{Mode: "on"}); err == nil ||
		err.Error() != `gpu "on": want auto, require or off` {
		t.Errorf("mode on: %v", err)
	}
	if _, err := gpu.Start(t.Context(), gpu.Config{Mode: gpu.Off, Inject: inject(t, "lost")}); err == nil {
		t.Error("faults are injected although nothing is watched")
	}
}
