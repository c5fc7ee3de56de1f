package gpu_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gradbus/internal/gpu"
	"gradbus/internal/gpu/fake"
	"gradbus/schema"
)

// kept starts a watch that remembers, as one process after another, or beside it, would. boot is the machine's run.
func kept(t *testing.T, l *fake.Library, path, boot string, alter func(*gpu.Config)) (*gpu.Monitor, *safeLog) {
	t.Helper()
	return start(t, l.Path, func(c *gpu.Config) {
		c.Kept, c.Boot = fileAt(path), func() string { return boot }
		if alter != nil {
			alter(c)
		}
	})
}

func fileAt(path string) *gpu.File {
	f, _ := gpu.StateFile(path) // an error is of the default alone
	return f
}

func statePath(t *testing.T) string { return filepath.Join(t.TempDir(), "state", "gpus.json") }

func isThere(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// A GPU that broke is broken for the next process too, from its first word on, until it is acknowledged; and the
// process after that one knows of the acknowledgement.
func TestMonitorKeptAcrossProcesses(t *testing.T) {
	t.Parallel()
	l, path := build(t), statePath(t)
	m, _ := kept(t, l, path, "boot-1", nil)
	untilState(t, m, 0, schema.GPUHealthy, "")
	m.Close()
	if isThere(t, filepath.Dir(path)) {
		t.Error("something was made although nothing was wrong")
	}

	m, _ = kept(t, l, path, "boot-1", nil)
	untilState(t, m, 1, schema.GPUHealthy, "")
	l.XID(1, 79)
	since := untilState(t, m, 1, schema.GPUUnhealthy, "xid-79").SinceMS
	m.Close()
	l.Unset("xid ") // or the stand-in would tell the next one, too

	m, _ = kept(t, l, path, "boot-1", nil)
	if err := m.Take(t.Context(), "1"); err == nil || !strings.Contains(err.Error(), "XID 79") ||
		!strings.Contains(err.Error(), "./bin/ps gpu-ack 1") {
		t.Errorf("the next process takes it: %v", err)
	}
	if g := untilState(t, m, 1, schema.GPUUnhealthy, "xid-79"); g.SinceMS != since || g.Injected {
		t.Errorf("since %d, want %d; injected %v", g.SinceMS, since, g.Injected)
	}
	untilState(t, m, 0, schema.GPUHealthy, "")
	if err := m.Acknowledge("1"); err != nil {
		t.Fatal(err)
	}
	m.Close()

	m, _ = kept(t, l, path, "boot-1", nil)
	untilState(t, m, 1, schema.GPUHealthy, "")
}

// What one process finds or acknowledges reaches another one that runs beside it, and so does whoever changes the file.
func TestMonitorKeptBeside(t *testing.T) {
	t.Parallel()
	l, path := build(t), statePath(t)
	a, _ := kept(t, l, path, "boot-1", nil)
	b, log := kept(t, l, path, "boot-1", nil)
	untilState(t, a, 0, schema.GPUHealthy, "")
	untilState(t, b, 0, schema.GPUHealthy, "")
	a.Mismatch("GPU-fake-0", "1 of 10 blocks", false) // which b cannot see by itself
	untilState(t, b, 0, schema.GPUUnhealthy, "verify-mismatch")
	if n := b.AcknowledgeAll(); n != 1 {
		t.Errorf("%d acknowledged", n)
	}
	untilState(t, a, 0, schema.GPUHealthy, "")
	a.Mismatch("GPU-fake-0", "2 of 10 blocks", false)
	untilState(t, b, 0, schema.GPUUnhealthy, "verify-mismatch")
	if err := fileAt(path).Change(func(all []gpu.Kept) ([]gpu.Kept, bool) {
		all[0].Findings = nil
		return all, true
	}); err != nil {
		t.Fatal(err)
	}
	untilState(t, a, 0, schema.GPUHealthy, "")
	untilState(t, b, 0, schema.GPUHealthy, "")
	until(t, "the acknowledgement in the log",
		func() bool { return strings.Contains(log.String(), "What was wrong has been acknowledged.") })
}

// A restart of the machine in between ends what was.
func TestMonitorKeptBoot(t *testing.T) {
	t.Parallel()
	l, path := build(t), statePath(t)
	m, _ := kept(t, l, path, "boot-1", nil)
	untilState(t, m, 0, schema.GPUHealthy, "")
	l.XID(0, 119)
	untilState(t, m, 0, schema.GPUUnhealthy, "xid-119")
	m.Close()
	l.Unset("xid ")
	m, _ = kept(t, l, path, "boot-2", nil)
	untilState(t, m, 0, schema.GPUHealthy, "")
	m.Close()
	if all, err := fileAt(path).Read(); err != nil || len(all) != 0 {
		t.Errorf("remembered %+v, %v", all, err)
	}
}

// Rehearsals are not remembered: neither on real GPUs, nor made up ones.
func TestMonitorKeptNotInjected(t *testing.T) {
	t.Parallel()
	l, path := build(t), statePath(t)
	m, _ := kept(t, l, path, "boot-1",
		func(c *gpu.Config) { c.Inject = inject(t, "gpu=0,xid=79", "gpu=1,remap-failed") })
	untilState(t, m, 0, schema.GPUUnhealthy, "xid-79")
	g := untilState(t, m, 1, schema.GPUUnhealthy, "remap-failed")
	if !g.Injected || !strings.HasSuffix(g.Action, "acknowledge it: kill -USR1 the ps or trainer that watches it.") {
		t.Errorf("injected %v, action %q", g.Injected, g.Action)
	}
	m.AcknowledgeAll()
	m.Mismatch("GPU-fake-1", "1 of 10 blocks", true)
	m.Close()
	made, err := gpu.Start(t.Context(), gpu.Config{Driver: func() bool { return false }, Kept: fileAt(path),
		Inject: inject(t, "gpu=0,xid=79")})
	if err != nil {
		t.Fatal(err)
	}
	untilState(t, made, 0, schema.GPUUnhealthy, "xid-79")
	made.Close()
	if isThere(t, filepath.Dir(path)) {
		t.Error("a rehearsal is remembered")
	}
}

// Who only looks leaves nothing behind.
func TestMonitorKeptAsIs(t *testing.T) {
	t.Parallel()
	l, path := build(t), statePath(t)
	m, _ := kept(t, l, path, "boot-1", func(c *gpu.Config) { c.KeptAsIs = true })
	untilState(t, m, 0, schema.GPUHealthy, "")
	l.XID(0, 79)
	untilState(t, m, 0, schema.GPUUnhealthy, "xid-79")
	m.Close()
	if isThere(t, filepath.Dir(path)) {
		t.Error("it was written")
	}
}

// A file that cannot be read or written is one warning, and the watch goes on.
func TestMonitorKeptNowhere(t *testing.T) {
	t.Parallel()
	const newer = `{"version":9}`
	for _, c := range []struct{ name, content, want string }{
		{"damaged", "{", "the file is damaged or of another version"},
		{"newer", newer, "the file is damaged or of another version: version 9"},
		{"no folder", "", "not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l, path := build(t), filepath.Join(t.TempDir(), "gpus.json")
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.content == "" {
				path = filepath.Join(path, "below", "gpus.json")
			}
			m, log := kept(t, l, path, "boot-1", nil)
			untilState(t, m, 0, schema.GPUHealthy, "")
			l.XID(0, 79)
			untilState(t, m, 0, schema.GPUUnhealthy, "xid-79")
			until(t, "why nothing is remembered", func() bool { return strings.Contains(log.String(), c.want) })
			m.Close()
			if n := strings.Count(log.String(), "what is wrong with GPUs is not remembered"); n != 1 ||
				!strings.Contains(log.String(), c.want) {
				t.Errorf("%d warnings, want one with %q", n, c.want)
			}
			if data, _ := os.ReadFile(path); string(data) != c.content {
				t.Errorf("the file was changed: %q", data)
			}
		})
	}
}
