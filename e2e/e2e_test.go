// Package e2e tests the commands as processes: what they print, how they end, what they leave behind.
//
// It knows the commands by their flags and output only. Nothing here depends on how fast it runs: what is waited for is
// polled, under a guard generous enough that reaching it means that it will never come.
package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gradbus/e2e/commands"
	"gradbus/internal/report"
	"gradbus/internal/testkit"
)

// guard bounds every wait.
const guard = 3 * time.Minute

// binaries is where the commands are, once build has made them.
var binaries string

// build compiles the commands once, with the tags of this test.
var build = sync.OnceValue(func() error {
	if err := noteSources(); err != nil {
		return err
	}
	return commands.Build(binaries,
		"gradbus/cmd/ps", "gradbus/cmd/trainer",
		"gradbus/cmd/psbench", "gradbus/e2e/natsd")
})

// noteSources looks at every source file, so that Go's test cache knows that these tests depend on them.
func noteSources() error {
	return filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "bin" || entry.Name() == "build"):
			return filepath.SkipDir
		case filepath.Ext(path) == ".go" || entry.Name() == "go.mod" || filepath.Ext(path) == ".h":
			_, err = os.Stat(path)
		}
		return err
	})
}

func TestMain(m *testing.M) {
	var err error
	if binaries, err = os.MkdirTemp("", "gradbus-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	_ = os.RemoveAll(binaries)
	os.Exit(status)
}

// process is a running command. Its output may be read at any time.
type process struct {
	*exec.Cmd
	name           string
	stdout, stderr testkit.Text
	done           <-chan struct{} // closed when it has ended
}

// start runs bin/NAME; whatever happens, it is gone when the test ends.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	if err := build(); err != nil {
		t.Fatal(err)
	}
	return startCommand(t, name, exec.Command(filepath.Join(binaries, name), args...))
}

// startCommand runs a command that is known by name.
func startCommand(t *testing.T, name string, command *exec.Cmd) *process {
	t.Helper()
	p := &process{Cmd: command, name: name}
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	p.done = commands.Run(t, command, commands.Kill,
		func() string { return "stdout:\n" + p.stdout.String() + "stderr:\n" + p.stderr.String() })
	return p
}

// status waits for the end and returns the exit status, -1 where a signal ended it.
func (p *process) status(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
		return p.ProcessState.ExitCode()
	case <-time.After(guard):
		t.Fatalf("%s has not ended within %v", p.name, guard)
		return 0
	}
}

// succeeds waits for the end and wants status 0.
func (p *process) succeeds(t *testing.T) {
	t.Helper()
	if status := p.status(t); status != 0 {
		t.Fatalf("%s ended with status %d: %s", p.name, status, p.stderr.String())
	}
}

// fails waits for the end and wants one line on standard error, apart from log lines, that has all the parts.
func (p *process) fails(t *testing.T, parts ...string) {
	t.Helper()
	status := p.status(t)
	line := p.errorLine()
	if status != 1 || line == "" {
		t.Errorf("%s ended with status %d and said %q, want 1 and an error", p.name, status, p.stderr.String())
		return
	}
	for _, part := range parts {
		if !strings.Contains(line, part) {
			t.Errorf("%s said %q, want %q in it", p.name, line, part)
		}
	}
}

// errorLine is the last line on standard error where it is an error of the command, else "".
func (p *process) errorLine() string {
	lines := strings.Split(strings.TrimSpace(p.stderr.String()), "\n")
	if last := lines[len(lines)-1]; strings.HasPrefix(last, p.name+": ") {
		return last
	}
	return ""
}

// poll waits until the condition holds.
func poll(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(guard); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, guard)
		}
	}
}

// says waits until the process has printed the text, or ended.
func (p *process) says(t *testing.T, text string) {
	t.Helper()
	poll(t, fmt.Sprintf("%s says %q", p.name, text), func() bool {
		select {
		case <-p.done:
			if !strings.Contains(p.stdout.String()+p.stderr.String(), text) {
				t.Fatalf("%s ended without saying %q: %s", p.name, text, p.stderr.String())
			}
			return true
		default:
			return strings.Contains(p.stdout.String()+p.stderr.String(), text)
		}
	})
}

func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
}

// server starts a ps on a free port and waits until it is ready.
func server(t *testing.T, args ...string) (p *process, url string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "url")
	p = start(t, "ps", append([]string{"--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--port-file", file},
		args...)...)
	p.says(t, "is ready at")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return p, strings.TrimSpace(string(data))
}

// index writes a small package index whose words tell the section, and returns its path.
func index(t *testing.T, records int) string {
	t.Helper()
	sections := []string{"admin", "devel", "games", "math", "sound"}
	var b strings.Builder
	for i := range records {
		s := sections[i%len(sections)]
		fmt.Fprintf(&b, "Package: %s-%d-x\nVersion: 1\nSection: %s\nDescription: %sword%d common%d %sword%d\n\n",
			s, i, s, s, i*7%11, i*5%13, s, i*3%17)
	}
	path := filepath.Join(t.TempDir(), "Packages")
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// result is the only line on a process's standard output, parsed.
func (p *process) result(t *testing.T) report.Result {
	t.Helper()
	out := p.stdout.String()
	if strings.Count(out, "\n") != 1 || !strings.HasSuffix(out, "\n") {
		t.Fatalf("%s printed %q, want exactly one line", p.name, out)
	}
	var r report.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%s printed %q: %v", p.name, out, err)
	}
	return r
}
