// Package commands builds commands and runs them as processes, for the suites of tests that need them: package e2e and
// those below it.
//
// It knows go build and processes. It must not know what any command does.
package commands

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Build compiles packages of this module into a folder, with the backend that this package was built with.
func Build(folder string, packages ...string) error {
	args := append(append([]string{"build", "-o", folder + "/", "-ldflags=-s -w"}, flags()...), kind()...)
	out, err := exec.Command("go", append(args, packages...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// Run starts a command, whose done is closed when it has ended. When the test ends, end is called and the command
// waited for; where the test has failed, it is told what said gives.
func Run(t testing.TB, c *exec.Cmd, end func(*os.Process, <-chan struct{}), said func() string) (done <-chan struct{}) {
	t.Helper()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait()
	}()
	t.Cleanup(func() {
		end(c.Process, ended)
		<-ended
		if t.Failed() {
			t.Logf("%q\n%s", c.Args, said())
		}
	})
	return ended
}

// Kill ends a process at once.
func Kill(p *os.Process, _ <-chan struct{}) { _ = p.Kill() }

// Terminate asks a process to end, also one that was stopped, and ends it after ten seconds.
func Terminate(p *os.Process, done <-chan struct{}) {
	_ = p.Signal(syscall.SIGCONT)
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		_ = p.Kill()
	}
}

// Library compiles the library for C into a file, by the script that make does it with, and more flags of go build.
func Library(file, script string, more ...string) error {
	out, err := exec.Command(script, append(append([]string{file}, flags()...), more...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", script, err, out)
	}
	return nil
}
