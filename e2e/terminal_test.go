package e2e

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"gradbus/internal/gpu/fake"
)

// exits waits for the end and wants a status.
func (p *process) exits(t *testing.T, want int) {
	t.Helper()
	if status := p.status(t); status != want {
		t.Errorf("%s ended with status %d, want %d: %s%s", p.name, status, want, p.stdout.String(), p.stderr.String())
	}
}

// ps status tells people and programs the same, and says by its exit status whether somebody has to look.
func TestStatus(t *testing.T) {
	_, nats, at := page(t)
	poll(t, "an idle server is well", func() bool { // which a busy machine may make it wait for
		idle := start(t, "ps", "status", "--ps", at)
		status, out := idle.status(t), idle.stdout.String()
		if strings.Contains(out, "\x1b") {
			t.Fatalf("printed %q", out)
		}
		return status == 0 && strings.Contains(out, "INFO")
	})
	data := index(t, 200)
	for _, id := range []string{"t0", "t1"} {
		start(t, "trainer", long(nats, data, "--trainers", "2", "--id", id)...)
	}
	poll(t, "the job is shown", func() bool {
		p := start(t, "ps", "status", "--ps", at)
		p.status(t)
		out := p.stdout.String()
		return strings.Contains(out, "running") && strings.Contains(out, "t0") && strings.Contains(out, "t1") &&
			strings.Contains(out, "s1")
	})
	p := start(t, "ps", "status", "--ps", at, "--json")
	exit := p.status(t)
	var status struct {
		Jobs []struct{ Name string }
		Why  struct{ Level, Text string }
	}
	if out := p.stdout.String(); strings.Count(out, "\n") != 1 || json.Unmarshal([]byte(out), &status) != nil ||
		len(status.Jobs) != 1 || status.Why.Level == "" {
		t.Errorf("printed %q, want one line of JSON with one job", out)
	}
	// A busy machine may give reasons for warnings of its own.
	if want, known := map[string]int{"ok": 0, "info": 0, "warning": 1, "critical": 2}[status.Why.Level]; !known ||
		exit != want {
		t.Errorf("status %d with %+v", exit, status.Why)
	}
}

// Whatever is wrong with the question is one line and a status of its own.
func TestStatusWrong(t *testing.T) {
	secret := secretFile(t, "a-token-of-this-test")
	_, nats, at := page(t, "--http-token-file", secret)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"no ps answers at http://127.0.0.1:1", []string{"status", "--ps", "http://127.0.0.1:1"}},
		{"--http-token-file", []string{"status", "--ps", at}},
		{"speaks no HTTP", []string{"status", "--ps", strings.Replace(nats, "nats:", "http:", 1)}},
		{"address for trainers", []string{"status", "--ps", nats}},
		{"unknown flag", []string{"status", "--no-such-flag"}},
		{"unexpected argument", []string{"status", "x"}},
	} {
		p := start(t, "ps", c.args...)
		p.exits(t, 3)
		if said := p.stderr.String(); !strings.HasPrefix(said, "ps: ") || strings.Count(said, "\n") != 1 ||
			!strings.Contains(said, c.want) {
			t.Errorf("%q: said %q, want one line with %q", c.args, said, c.want)
		}
	}
	start(t, "ps", "status", "--ps", at, "--http-token-file", secret).exits(t, 0)
	start(t, "ps", "top", "--ps", at).fails(t, "no such command any more", "ps status", "page")
	p := start(t, "ps", "doctor", "--json", "--gpu", "off")
	if status := p.status(t); status > 1 || strings.Count(p.stdout.String(), "\n") != 1 ||
		!strings.Contains(p.stdout.String(), "dense library") {
		t.Errorf("doctor ended with %d: %s%s", status, p.stdout.String(), p.stderr.String())
	}
}

// ps doctor asks the driver by a process of its own, and says what is wrong with one that is there.
func TestDoctorAsksTheDriver(t *testing.T) {
	library := fake.Build(t)
	library.Set("%s", fake.Healthy(0))
	for _, c := range []struct{ path, want string }{
		{library.Path, `"name":"GPU 0","text":"Fake GPU`},
		{filepath.Join(t.TempDir(), "libnvidia-ml.so.1"), "none can be used: the driver's library cannot be loaded"},
	} {
		p := start(t, "ps", "doctor", "--json", "--gpu-library", c.path)
		if status := p.status(t); status > 2 || !strings.Contains(p.stdout.String(), c.want) {
			t.Errorf("doctor ended with %d, want %q in %s%s", status, c.want, p.stdout.String(), p.stderr.String())
		}
	}
}
