// Package spawn runs several processes as one: the trainers of a job, started by one command.
//
// All are started; when one fails that does not end alone, or the caller's context ends, the others are asked to end
// and, after a grace period, killed. Run returns only when every process is gone, so none is ever left over; on Linux
// they die with the caller even where that is killed with -9. The package knows nothing of what the processes do: it
// hands their lines on.
package spawn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is one command. OnLine, where set, is called with each line of its standard output, from one goroutine; the
// slice is reused. OnLog, where set, is called likewise with each line of its standard error, and tells whether that
// was a line of a log: such a line is never what a process said last. Stdin is what the process reads; nil is nothing.
// It stays the caller's, who may close it once the process has started, that is, after its first line. Alone, where
// set, is asked when the process has failed, after its last line: true says that the others go on.
type Process struct {
	Name   string // for messages, for example "trainer 1 of 2"
	Path   string
	Args   []string
	Stdin  *os.File
	OnLine func(line []byte)
	OnLog  func(line []byte) bool
	Alone  func() bool
}

const (
	// graceDefault is the time between asking processes to end and killing them.
	graceDefault = 10 * time.Second
	// lineBytesMax bounds one line of a process's output.
	lineBytesMax = 1 << 20
)

// Group runs processes. Its zero value is ready.
type Group struct {
	Grace time.Duration // 0: ten seconds
	// Patience is the time for which the others may continue after one was killed by a signal, so that they can report
	// themselves which one is missing, instead of being asked to end. 0: none.
	Patience time.Duration
}

// Error says which process failed, how, and what it said last.
type Error struct {
	Name string
	Said string // its last line on standard error, or the one that says why a Go program crashed; empty when killed
	Err  error  // of exec
}

func (e *Error) Error() string {
	if e.Said != "" {
		return e.Name + ": " + e.Said
	}
	return fmt.Sprintf("%s: %v", e.Name, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Run starts the processes and waits for all of them. The error is that of the first which failed by itself, as an
// *Error; what the others say while they are being ended is not reported. When ctx ends, it is ctx's cause.
func (g Group) Run(ctx context.Context, processes []Process) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	grace := g.Grace
	if grace == 0 {
		grace = graceDefault
	}
	var wait sync.WaitGroup
	var first error
	var once sync.Once
	for _, p := range processes {
		wait.Go(func() {
			err := run(ctx, p, grace)
			if err == nil {
				return
			}
			once.Do(func() { first = err })
			if p.Alone != nil && p.Alone() {
				return
			}
			if g.Patience > 0 && Killed(err) {
				time.AfterFunc(g.Patience, func() { cancel(err) }) // after the end of Run it does nothing
				return
			}
			cancel(err)
		})
	}
	wait.Wait()
	if first != nil {
		return first
	}
	return context.Cause(ctx)
}

// run is one process from start to end. Its goroutine keeps its thread, since the kernel signals the child when the
// thread that started it dies, not when the process does.
func run(ctx context.Context, p Process, grace time.Duration) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	said, crashed := "", false
	out := &lineWriter{do: p.OnLine}
	stderr := &lineWriter{do: func(line []byte) {
		if p.OnLog != nil && !crashed && p.OnLog(line) {
			return
		}
		if text := strings.TrimSpace(string(line)); text != "" && !crashed {
			said, crashed = text, strings.HasPrefix(text, "panic: ") || strings.HasPrefix(text, "fatal error: ")
		}
	}}
	command := exec.CommandContext(ctx, p.Path, p.Args...)
	command.Stdout, command.Stderr = out, stderr
	if p.Stdin != nil {
		command.Stdin = p.Stdin
	}
	command.SysProcAttr = attributes()
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = grace // after which it is killed
	err := command.Run()
	out.end()
	stderr.end()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		if Killed(err) && !crashed {
			said = "" // what it logged last has nothing to do with its end
		}
		return &Error{Name: p.Name, Said: said, Err: err}
	}
	return nil
}

// Killed tells whether a process ended by a signal, as by kill -9 or where the machine is out of memory, from an error
// of Run.
func Killed(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled()
}

// lineWriter cuts what is written to it into lines. A line beyond lineBytesMax loses its end.
type lineWriter struct {
	do   func(line []byte)
	part []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		w.part = append(w.part, line[:min(len(line), lineBytesMax-len(w.part))]...)
		if !whole {
			return n, nil
		}
		w.emit()
		p = rest
	}
}

// end hands on what came after the last end of line.
func (w *lineWriter) end() {
	if len(w.part) > 0 {
		w.emit()
	}
}

func (w *lineWriter) emit() {
	if w.do != nil {
		w.do(w.part)
	}
	w.part = w.part[:0]
}
