// Package fake builds a stand-in for NVIDIA's library and tells it what to do, for tests: it can hang, lack functions,
// answer any code and report errors, and changes while it is in use. What it does is in testdata/library.c; it is
// compiled against the header of go-nvml, so that layouts are the real ones.
package fake

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

//go:embed testdata/library.c
var source []byte

// Library is one stand-in, in a folder of its own.
type Library struct {
	Path string // of the library

	t       testing.TB
	control string
	mu      sync.Mutex
	lines   []string
	serial  int
}

// Build compiles one, with the given definitions (OLD, NO_INIT), and skips the test where there is no C compiler.
func Build(t testing.TB, definitions ...string) *Library {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skipf("no C compiler to build a stand-in for NVIDIA's library with: %v", err)
	}
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output()
	if err != nil {
		t.Fatalf("find the header of NVML: %v", err)
	}
	folder := t.TempDir()
	from := filepath.Join(folder, "fake.c")
	if err := os.WriteFile(from, source, 0o600); err != nil {
		t.Fatal(err)
	}
	l := &Library{Path: filepath.Join(folder, "libnvidia-ml.so.1"), t: t, control: filepath.Join(folder, "control")}
	args := []string{"-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations",
		"-DNVML_NO_UNVERSIONED_FUNC_DEFS",
		"-I", filepath.Join(strings.TrimSpace(string(module)), "pkg", "nvml"), "-o", l.Path, from, "-ldl"}
	for _, d := range definitions {
		args = append(args, "-D"+d)
	}
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("build the stand-in: %v\n%s", err, out)
	}
	l.write()
	return l
}

// Set takes lines of the control file: see testdata/library.c. A line replaces one that differs from it in its last
// word only.
func (l *Library) Set(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range strings.Split(fmt.Sprintf(format, args...), "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		l.drop(line[:strings.LastIndex(line, " ")+1])
		l.lines = append(l.lines, line)
	}
	l.write()
}

// Unset removes all lines that begin with the text.
func (l *Library) Unset(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(text)
	l.write()
}

// Waiting says whether a call has met a line "wait".
func (l *Library) Waiting() bool {
	_, err := os.Stat(filepath.Join(filepath.Dir(l.Path), "waiting"))
	return err == nil
}

// XID reports an error of a GPU, once.
func (l *Library) XID(gpu int, number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serial++
	l.lines = append(l.lines, fmt.Sprintf("xid %d %d %d", l.serial, gpu, number))
	l.write()
}

func (l *Library) drop(prefix string) {
	var kept []string
	for _, line := range l.lines {
		if !strings.HasPrefix(line, prefix) {
			kept = append(kept, line)
		}
	}
	l.lines = kept
}

// write replaces the control file as a whole.
func (l *Library) write() {
	part := l.control + ".part"
	if err := os.WriteFile(part, []byte(strings.Join(l.lines, "\n")+"\n"), 0o600); err != nil {
		l.t.Fatal(err)
	}
	if err := os.Rename(part, l.control); err != nil {
		l.t.Fatal(err)
	}
}

// Healthy are lines for a GPU that tells everything and lacks nothing.
func Healthy(gpu int) string {
	var lines []string
	for _, v := range []struct {
		key   string
		value int64
	}{{"temperature", 55}, {"margin", 32}, {"power", 300_000}, {"power_limit", 700_000}, {"utilisation", 42},
		{"memory_total", 80 << 30}, {"memory_used", 8 << 30}, {"sm_clock", 1980}, {"memory_clock", 2619}, {"slower", 0},
		{"ecc_corrected", 0}, {"ecc_uncorrected", 0}, {"sram", 0}, {"rows", 0}, {"remap_pending", 0}, {"remap_failed", 0},
		{"field_230", 0}, {"replays", 0}, {"width", 16}, {"width_max", 16}, {"process", 0}} {
		lines = append(lines, fmt.Sprintf("set %s %d %d", v.key, gpu, v.value))
	}
	return strings.Join(lines, "\n")
}
