package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gradbus/e2e/commands"
	"gradbus/internal/health/nvml/fake"
	"gradbus/internal/testkit"
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
	start(t, "ps", "top", "--ps", at).fails(t, "needs a terminal", "ps status")
	p := start(t, "ps", "doctor", "--ps", at, "--http-token-file", secret, "--listen", "127.0.0.1:0", "--http",
		"127.0.0.1:0", "--json", "--gpu", "off")
	if status := p.status(t); status > 1 || strings.Count(p.stdout.String(), "\n") != 1 ||
		!strings.Contains(p.stdout.String(), "checks hold") {
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
		p := start(t, "ps", "doctor", "--ps", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0",
			"--json", "--gpu-library", c.path)
		if status := p.status(t); status > 2 || !strings.Contains(p.stdout.String(), c.want) {
			t.Errorf("doctor ended with %d, want %q in %s%s", status, c.want, p.stdout.String(), p.stderr.String())
		}
	}
}

// terminalOf gives both ends of a terminal of a size.
func terminalOf(t *testing.T, columns, lines uint16) (ours, theirs *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	t.Cleanup(func() { ours.Close() })
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() })
	resize(t, ours, columns, lines)
	return ours, theirs
}

func resize(t *testing.T, terminal *os.File, columns, lines uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Col: columns, Row: lines}); err != nil {
		t.Fatal(err)
	}
}

// ps top in a terminal: it follows, takes keys and a new size, and leaves the terminal as it was.
func TestTop(t *testing.T) {
	_, nats, at := page(t)
	ours, theirs := terminalOf(t, 80, 24)
	before, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(filepath.Join(binaries, "ps"), "top", "--ps", at)
	command.Env = append(os.Environ(), "TERM=xterm", "NO_COLOR=1")
	command.Stdin = theirs
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	var shown testkit.Text
	command.Stdout, command.Stderr = theirs, theirs
	p := &process{Cmd: command, name: "ps"}
	p.done = commands.Run(t, command, commands.Kill, shown.String)
	go func() { // until the terminal is closed
		buffer := make([]byte, 4096)
		for {
			n, err := ours.Read(buffer)
			if err != nil {
				return
			}
			_, _ = shown.Write(buffer[:n])
		}
	}()
	sees := func(text string) {
		t.Helper()
		poll(t, fmt.Sprintf("the terminal shows %q", text), func() bool { return strings.Contains(shown.String(), text) })
	}
	sees("No job")
	sees("q quit")
	start(t, "trainer", long(nats, index(t, 200))...)
	sees("TRAINER")
	resize(t, ours, 60, 12)
	if _, err := ours.WriteString("vv"); err != nil {
		t.Fatal(err)
	}
	sees("shards")
	if strings.Contains(shown.String(), "\x1b[32m") || strings.Contains(shown.String(), "\x1b[1;31m") {
		t.Error("colours in spite of NO_COLOR")
	}
	if _, err := ours.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	p.exits(t, 0)
	after, err := unix.IoctlGetTermios(int(theirs.Fd()), unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal is not as it was: %v, %+v, was %+v", err, after, before)
	}
	sees("\x1b[?1049l") // the screen that was there before is given back; its last bytes may still be on their way
}
