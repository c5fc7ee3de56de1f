package spawn

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gradbus/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// guard bounds what a test waits for; nothing here depends on how fast it is.
const guard = time.Minute

func shell(name, script string, onLine func(string)) Process {
	p := Process{Name: name, Path: "/bin/sh", Args: []string{"-c", script}}
	if onLine != nil {
		p.OnLine = func(line []byte) { onLine(string(line)) }
	}
	return p
}

func TestRunHandsLinesOn(t *testing.T) {
	got := make([][]string, 2)
	err := Group{}.Run(t.Context(), []Process{
		shell("a", "echo one; echo two; printf three", func(l string) { got[0] = append(got[0], l) }),
		shell("b", "echo four", func(l string) { got[1] = append(got[1], l) }),
	})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := strings.Join(got[0], ","), strings.Join(got[1], ","); a != "one,two,three" || b != "four" {
		t.Errorf("got %q and %q", a, b)
	}
}

func TestRunNamesTheFirstFailure(t *testing.T) {
	started := make(chan int, 1)
	err := Group{Grace: guard}.Run(t.Context(), []Process{
		shell("long", "echo $$; exec sleep 600", func(l string) { pid, _ := strconv.Atoi(l); started <- pid }),
		shell("short", "echo first >&2; echo why >&2; exit 3", nil),
	})
	var failed *Error
	if !errors.As(err, &failed) || failed.Name != "short" || err.Error() != "short: why" {
		t.Fatalf("got %v", err)
	}
	select {
	case pid := <-started:
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d is left over: %v", pid, err)
		}
	default: // it was ended before it wrote
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	pid := 0
	err := Group{Grace: guard}.Run(ctx, []Process{
		shell("a", "echo $$; exec sleep 600", func(l string) { pid, _ = strconv.Atoi(l); cancel() }),
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is left over: %v", pid, err)
	}
}

// A process that will not end is killed after the grace period.
func TestRunKillsAfterGrace(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	pid := 0
	err := Group{Grace: 50 * time.Millisecond}.Run(ctx, []Process{
		shell("deaf", "trap '' TERM; echo $$; while :; do sleep 1; done",
			func(l string) { pid, _ = strconv.Atoi(l); cancel() }),
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is left over: %v", pid, err)
	}
}

func TestRunNamesTheCrash(t *testing.T) {
	err := Group{}.Run(t.Context(),
		[]Process{shell("a", "echo log >&2; echo panic: nil map >&2; echo goroutine 1 >&2; exit 2", nil)})
	if err == nil || err.Error() != "a: panic: nil map" {
		t.Errorf("got %v", err)
	}
}

// A killed process had no chance to say why it ends: its last line is not the reason.
func TestRunNamesTheSignal(t *testing.T) {
	err := Group{}.Run(t.Context(), []Process{shell("a", "echo log >&2; kill -9 $$", nil)})
	if err == nil || err.Error() != "a: signal: killed" {
		t.Errorf("got %v", err)
	}
}

// With patience the others of one who was killed may say what came of it; whoever fails by itself ends the others
// still.
func TestRunLetsOthersFindOut(t *testing.T) {
	said := ""
	err := Group{Grace: guard, Patience: guard}.Run(t.Context(), []Process{
		shell("killed", "kill -9 $$", nil),
		shell("other", "sleep 0.2; echo killed is missing; exit 1", func(l string) { said = l }),
		shell("third", "exec sleep 600", nil), // ended with the other, who failed by itself
	})
	if err == nil || err.Error() != "killed: signal: killed" || said != "killed is missing" {
		t.Errorf("the other said %q, and the error is %v", said, err)
	}
	err = Group{Grace: guard, Patience: time.Millisecond}.Run(t.Context(), []Process{
		shell("killed", "kill -9 $$", nil), shell("other", "exec sleep 600", nil)})
	if err == nil || err.Error() != "killed: signal: killed" {
		t.Errorf("with little patience: %v", err)
	}
}

// Whoever ends alone ends nobody, and its failure is told all the same.
func TestRunLetsOneEndAlone(t *testing.T) {
	done, said := false, ""
	failing := shell("one", "echo done; exit 3", func(string) { done = true })
	failing.Alone = func() bool { return done }
	err := Group{Grace: guard}.Run(t.Context(),
		[]Process{failing, shell("other", "sleep 0.2; echo saved", func(l string) { said = l })})
	if err == nil || err.Error() != "one: exit status 3" || said != "saved" {
		t.Errorf("the other said %q, and the error is %v", said, err)
	}
}

func TestRunNoProgram(t *testing.T) {
	err := Group{}.Run(t.Context(), []Process{{Name: "a", Path: "/none/such"}})
	if !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(err.Error(), "a: ") {
		t.Errorf("got %v", err)
	}
}

func TestLineWriter(t *testing.T) {
	var got []string
	w := &lineWriter{do: func(l []byte) { got = append(got, string(l)) }}
	for _, part := range []string{"a", "b\nc", "\n\n", "d"} {
		if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	w.end()
	if s := strings.Join(got, "|"); s != "ab|c||d" {
		t.Errorf("got %q", s)
	}
	long := strings.Repeat("x", lineBytesMax+5) + "\nnext\n"
	got = nil
	_, _ = w.Write([]byte(long))
	if len(got) != 2 || len(got[0]) != lineBytesMax || got[1] != "next" {
		t.Errorf("long line: %d lines", len(got))
	}
}

// Lines of a log are handed on, and are never what a process said last.
func TestLogLines(t *testing.T) {
	var logged []string
	p := Process{Name: "p", Path: "/bin/sh",
		Args: []string{"-c", `echo LOG a >&2; echo "no server" >&2; echo LOG b >&2; exit 1`},
		OnLog: func(line []byte) bool {
			if !strings.HasPrefix(string(line), "LOG ") {
				return false
			}
			logged = append(logged, string(line))
			return true
		}}
	err := Group{}.Run(context.Background(), []Process{p})
	if err == nil || err.Error() != "p: no server" || strings.Join(logged, ",") != "LOG a,LOG b" {
		t.Errorf("got %v, logged %q", err, logged)
	}
}
