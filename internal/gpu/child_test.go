package gpu_test

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"gradbus/internal/gpu"
	"gradbus/internal/gpu/fake"
	"gradbus/schema"
)

// A probe that does not behave is ended, and why is said; nothing of what it writes is kept beyond its bounds.
func TestBadProbes(t *testing.T) {
	t.Parallel()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatalf("no shell to play a probe that does not behave: %v", err)
	}
	for _, c := range []struct{ name, script, want string }{
		{"dynamic linker", `echo "probe: symbol lookup error: undefined symbol: nvmlFoo" >&2; echo more >&2; exit 127`,
			"the probe ended: exit status 127: probe: symbol lookup error: undefined symbol: nvmlFoo"},
		{"status", `echo "panic: oops" >&2; echo "goroutine 1" >&2; exit 3`, "the probe ended: exit status 3: panic: oops"},
		{"ended", `exit 0`, "the probe ended"},
		{"signal", `kill -SEGV $$`, "the probe ended: signal: segmentation fault"},
		{"no lines of a probe", `while :; do echo what; done`,
			"the probe was ended: it writes lines that are not a probe's: invalid character 'w'"},
		{"closes its output", `exec >&-; sleep 60`, "the probe has closed its output without ending, and was killed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, log := start(t, "",
				func(h *gpu.Config) { h.Probe = []string{sh, "-c", c.script}; h.Silence = 20 * time.Second })
			until(t, c.want, func() bool { return strings.Contains(strings.ReplaceAll(log.String(), `\"`, `"`), c.want) })
			until(t, "unknown", func() bool {
				g := m.GPUs()
				return len(g) == 1 && g[0].State == schema.GPUUnknown && g[0].Code == "no-answer"
			})
		})
	}
	t.Run("no program", func(t *testing.T) {
		t.Parallel()
		m, _ := start(t, "", func(h *gpu.Config) { h.Probe = []string{"/nonexistent/probe"} })
		until(t, "unknown", func() bool {
			g := m.GPUs()
			return len(g) == 1 && strings.Contains(g[0].Reason, "The probe cannot be started")
		})
	})
}

// A probe ends when whoever started it is gone, also one that hangs in the driver.
func TestProbeEndsWithItsParent(t *testing.T) {
	t.Parallel()
	needProbe(t)
	for _, hang := range []bool{false, true} {
		l := fake.Build(t)
		if hang {
			l.Set("hang nvmlDeviceGetTemperature 0")
		}
		command := exec.Command(os.Args[0], "gpu-probe", "--library", l.Path)
		in, err := command.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // it has said hello
			t.Fatal(err)
		}
		in.Close()
		ended := make(chan error, 1)
		go func() { ended <- command.Wait() }()
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			_ = command.Process.Kill()
			<-ended
			t.Errorf("hang %v: the probe has outlived its parent", hang)
		}
	}
}

// No function of the driver is left to the loader: the program starts where all are bound at once, and the probe asks
// as ever.
func TestBoundAtOnce(t *testing.T) {
	t.Parallel()
	needProbe(t)
	file, err := elf.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if strings.HasPrefix(s.Name, "nvml") {
			t.Errorf("the loader would have to find, or could take from the program, %s", s.Name)
		}
	}
	l := fake.Build(t)
	l.Set("%s", fake.Healthy(0))
	m, _ := start(t, l.Path,
		func(h *gpu.Config) { h.Probe = append([]string{"/usr/bin/env", "LD_BIND_NOW=1"}, h.Probe...) })
	if g := untilState(t, m, 0, schema.GPUHealthy, ""); g.Temperature == nil || *g.Temperature != 55 {
		t.Errorf("GPU tells %+v", g)
	}
}

// Twenty starts of a probe that ends leave nothing behind: goleak looks at the end of all tests, this one at files.
func TestManyRestarts(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatalf("no shell: %v", err)
	}
	before := openFiles(t)
	count := filepath.Join(t.TempDir(), "count")
	m, _ := start(t, "", func(h *gpu.Config) {
		h.Probe = []string{sh, "-c", fmt.Sprintf("echo x >>%q", count)}
		h.Backoff = time.Nanosecond
		h.Silence = 4 * time.Millisecond
		h.Patience = 10 * time.Second
	})
	until(t, "many restarts", func() bool {
		data, _ := os.ReadFile(count)
		return len(data) >= 2*20
	})
	m.Close()
	if after := openFiles(t); after > before+3 {
		t.Errorf("%d files are open, before %d", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	switch {
	case err != nil && runtime.GOOS == "linux":
		t.Fatal(err)
	case err != nil:
		lacking(t, fmt.Sprintf("open files are counted on Linux alone: %v", err))
	}
	return len(entries)
}
