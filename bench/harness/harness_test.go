package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/fabric/fabrictest"
	"gradbus/internal/config"
	"gradbus/internal/testkit"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == ChildArgument { // as harnesstest has it
		os.Exit(config.Run(filepath.Base(os.Args[0]), os.Stderr, func(ctx context.Context) error {
			return Child(ctx, testRoles(), os.Stdin, os.Stdout)
		}))
	}
	fabrictest.Main(m)
}

// guard bounds what a test waits for; nothing here depends on how fast it is.
const guard = time.Minute

type testSettings struct {
	Number int    `json:"number"`
	Text   string `json:"text"`
}

type testResult struct {
	Name   string `json:"name"`
	Number int    `json:"number"`
	PID    int    `json:"pid"`
	Text   string `json:"text"`
}

func testRoles() map[string]Role {
	return map[string]Role{
		"adder": func(ctx context.Context, m *Member) (any, error) {
			var s testSettings
			if err := m.Settings(&s); err != nil {
				return nil, err
			}
			if err := m.Tell("number", s.Number); err != nil {
				return nil, err
			}
			for i := range 2 {
				if err := m.Wait(ctx); err != nil {
					return nil, err
				}
				m.Progress(i+1, 2)
				_ = m.Say(fmt.Sprintf("%s round %d", m.Name, i))
			}
			return testResult{m.Name, s.Number + 1, os.Getpid(), s.Text}, nil
		},
		"keeper": func(ctx context.Context, m *Member) (any, error) {
			_ = m.Tell("pid", os.Getpid())
			select {
			case <-m.Done():
				return testResult{Name: m.Name}, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		},
		"counter": func(ctx context.Context, m *Member) (any, error) {
			sum := 0
			err := m.Serve(ctx, func(_ context.Context, question json.RawMessage) (any, error) {
				var n int
				if err := json.Unmarshal(question, &n); err != nil {
					return nil, err
				}
				sum += n
				return sum, nil
			})
			return testResult{Number: sum}, err
		},
		"failer": func(ctx context.Context, m *Member) (any, error) { return nil, errors.New("the disk is full") },
		"quitter": func(ctx context.Context, m *Member) (any, error) {
			os.Exit(0)
			return nil, nil
		},
		"deaf": func(ctx context.Context, m *Member) (any, error) {
			_ = m.Tell("pid", os.Getpid())
			select {}
		},
	}
}

// both runs a test with processes and with goroutines.
func both(t *testing.T, do func(t *testing.T, c *Harness)) {
	for _, inProcess := range []bool{false, true} {
		t.Run(fmt.Sprintf("in-process=%v", inProcess), func(t *testing.T) {
			c := &Harness{Roles: testRoles(), InProcess: inProcess}
			defer func() {
				_ = c.Close() // what it says is the test's to look at
				if left := children(t); len(left) > 0 {
					t.Errorf("processes %v are left over", left)
				}
			}()
			do(t, c)
		})
	}
}

// children are the processes that this one has started and that are still there.
func children(t *testing.T) (pids []string) {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range entries {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		_, rest, ok := strings.Cut(string(stat), ") ")
		if words := strings.Fields(rest); ok && len(words) > 1 && words[1] == strconv.Itoa(os.Getpid()) && words[0] != "Z" {
			pids = append(pids, filepath.Base(filepath.Dir(path)))
		}
	}
	return pids
}

func start(t *testing.T, c *Harness, specs ...Spec) []*Handle {
	t.Helper()
	all, err := c.Start(t.Context(), specs...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Members get their settings, tell, begin together and give results; a long text goes both ways whole.
func TestCrew(t *testing.T) {
	long := strings.Repeat("0123456789<\"é", 60_000) // over a part, with what JSON escapes and what takes two bytes
	both(t, func(t *testing.T, c *Harness) {
		var out, bar testkit.Text
		c.Out, c.Bar, c.Title = &out, &bar, "adding"
		all := start(t, c, Spec{"adder", "t0", testSettings{10, ""}}, Spec{"adder", "t1", testSettings{20, long}})
		for i, h := range all {
			var n int
			if err := h.Told(t.Context(), "number", &n); err != nil || n != 10*(i+1) {
				t.Fatalf("%s told %d: %v", h.Name, n, err)
			}
		}
		for range 2 {
			if err := c.Go(t.Context(), all...); err != nil {
				t.Fatal(err)
			}
		}
		for i, h := range all {
			var r testResult
			if err := h.Result(t.Context(), &r); err != nil {
				t.Fatal(err)
			}
			want := testResult{h.Name, 10*(i+1) + 1, r.PID, []string{"", long}[i]}
			if r != want {
				t.Errorf("%s: %+.200v", h.Name, r)
			}
			if (r.PID == os.Getpid()) != c.InProcess {
				t.Errorf("%s ran as process %d", h.Name, r.PID)
			}
		}
		if err := all[0].Told(t.Context(), "nothing", nil); err == nil ||
			err.Error() != "t0: has ended and not told nothing" {
			t.Errorf("a value that never comes: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		lines := strings.Fields(strings.ReplaceAll(strings.TrimSpace(out.String()), " ", "-"))
		slices.Sort(lines)
		if got := strings.Join(lines, " "); got != "t0-round-0 t0-round-1 t1-round-0 t1-round-1" {
			t.Errorf("said %q", got)
		}
		if !strings.Contains(bar.String(), "adding") || !strings.Contains(bar.String(), "4/4") {
			t.Errorf("bar %q", bar.String())
		}
	})
}

// Nobody goes on before all have reached the barrier.
func TestGoWaitsForAll(t *testing.T) {
	both(t, func(t *testing.T, c *Harness) {
		all := start(t, c, Spec{"adder", "t0", testSettings{}}, Spec{"keeper", "k", nil})
		ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("long enough"))
		defer cancel()
		if err := c.Go(ctx, all...); err == nil || err.Error() != "long enough" {
			t.Errorf("the barrier without a keeper that waits: %v", err)
		}
		if h := all[0]; h.released != 0 {
			t.Error("the first went on alone")
		}
	})
}

// A member that serves ends when it is asked to, with its result, and its name may then be used again.
func TestStop(t *testing.T) {
	both(t, func(t *testing.T, c *Harness) {
		for range 2 {
			h := start(t, c, Spec{"keeper", "s0", nil})[0]
			if _, err := c.Start(t.Context(), Spec{"keeper", "s0", nil}); err == nil ||
				!strings.Contains(err.Error(), "start s0: there is a member of this name already") {
				t.Errorf("a name given twice: %v", err)
			}
			var r testResult
			if err := errors.Join(h.stop(t.Context()), h.Result(t.Context(), &r), h.stop(t.Context())); err != nil ||
				r.Name != "s0" {
				t.Fatalf("%+v, %v", r, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A member that serves answers each question, until it is stopped; a question that it cannot answer ends it.
func TestServe(t *testing.T) {
	both(t, func(t *testing.T, c *Harness) {
		handles, err := c.Start(t.Context(), Spec{Role: "counter", Name: "a"}, Spec{Role: "counter", Name: "b"})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []int{3, 6, 9} {
			for _, h := range handles {
				if err := h.Ask(t.Context(), 3); err != nil {
					t.Fatal(err)
				}
			}
			for _, h := range handles {
				got := 0
				if err := h.Answer(t.Context(), &got); err != nil || got != want {
					t.Fatalf("%s: %d, %v, want %d", h.Name, got, err, want)
				}
			}
		}
		var found testResult
		if err := errors.Join(handles[0].stop(t.Context()), handles[0].Result(t.Context(), &found)); err != nil ||
			found.Number != 9 {
			t.Errorf("%+v, %v", found, err)
		}
		if err := handles[1].Ask(t.Context(), "three"); err != nil {
			t.Fatal(err)
		}
		if err := handles[1].Answer(t.Context(), nil); err == nil ||
			!strings.HasPrefix(err.Error(), "b: json: cannot unmarshal string") {
			t.Errorf("a question that is no number: %v", err)
		}
	})
}

// The member that fails is named in one line, to every wait, and takes the others with it.
func TestFailure(t *testing.T) {
	both(t, func(t *testing.T, c *Harness) {
		all := start(t, c, Spec{"keeper", "s0", nil}, Spec{"failer", "t1", nil})
		const want = "t1: the disk is full"
		for name, err := range map[string]error{"result": all[0].Result(t.Context(), nil),
			"barrier": c.Go(t.Context(), all...), "close": c.Close(), "close again": c.Close()} {
			if err == nil || err.Error() != want {
				t.Errorf("%s: got %v, want %s", name, err, want)
			}
		}
		if _, err := c.Start(t.Context(), Spec{"keeper", "s2", nil}); !errors.Is(err, errClosed) {
			t.Errorf("start after the end: %v", err)
		}
	})
}

// A process that is killed, or ends without a word, is named too.
func TestDeath(t *testing.T) {
	c := &Harness{Roles: testRoles()}
	all := start(t, c, Spec{"keeper", "t0", nil}, Spec{"keeper", "t1", nil})
	var pid int
	if err := all[1].Told(t.Context(), "pid", &pid); err != nil {
		t.Fatal(err)
	}
	process, err := os.FindProcess(pid)
	if err == nil {
		err = process.Kill()
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := all[0].Result(t.Context(), nil); err == nil || err.Error() != "t1: signal: killed" {
		t.Errorf("killed: %v", err)
	}
	_ = c.Close()
	c = &Harness{Roles: testRoles()}
	start(t, c, Spec{"quitter", "t0", nil})
	<-c.ctx.Done()
	if err := c.Close(); err == nil || err.Error() != "t0: ended without a result" {
		t.Errorf("ended without a word: %v", err)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("processes %v are left over", left)
	}
}

// With patience the others of one that was killed may find that out and end by themselves; what failed first stays the
// reason.
func TestDeathWithPatience(t *testing.T) {
	for _, patience := range []time.Duration{guard, time.Millisecond} {
		c := &Harness{Roles: testRoles(), Patience: patience}
		all := start(t, c, Spec{"keeper", "t0", nil}, Spec{"keeper", "t1", nil})
		var pid int
		if err := all[1].Told(t.Context(), "pid", &pid); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if patience == guard {
			for first := func() error { c.mu.Lock(); defer c.mu.Unlock(); return c.first }; first() ==
				nil; time.Sleep(time.Millisecond) {
				if t.Context().Err() != nil {
					t.Fatal("nobody noticed")
				}
			}
			if err := c.failed(); err != nil {
				t.Errorf("without patience: %v", err)
			}
			start(t, c, Spec{"failer", "t2", nil}) // finds out, and fails by itself
		}
		if err := all[0].Result(t.Context(), nil); err == nil || err.Error() != "t1: signal: killed" {
			t.Errorf("killed, with patience of %v: %v", patience, err)
		}
		_ = c.Close()
	}
}

// An interrupt ends the members; the error is that of the context.
func TestInterrupt(t *testing.T) {
	both(t, func(t *testing.T, c *Harness) {
		ctx, cancel := context.WithCancel(t.Context())
		all, err := c.Start(ctx, Spec{"keeper", "s0", nil}, Spec{"adder", "t0", testSettings{}})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(20*time.Millisecond, cancel)
		if err := c.Go(t.Context(), all...); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		if err := c.Close(); !errors.Is(err, context.Canceled) {
			t.Errorf("close: %v", err)
		}
	})
}

// A member that hears nothing is killed.
func TestDeaf(t *testing.T) {
	c := &Harness{Roles: testRoles(), grace: 50 * time.Millisecond}
	h := start(t, c, Spec{"deaf", "t0", nil})[0]
	var pid int
	if err := h.Told(t.Context(), "pid", &pid); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if left := children(t); len(left) > 0 {
		t.Errorf("processes %v are left over", left)
	}
}

// What cannot be started is said at once.
func TestRefused(t *testing.T) {
	both(t, func(t *testing.T, c *Harness) {
		if _, err := c.Start(t.Context(), Spec{"dancer", "t0", nil}); err == nil ||
			err.Error() != `start t0: role "dancer": no such role (known: adder, counter, deaf, failer, keeper, quitter)` {
			t.Errorf("role: %v", err)
		}
		if _, err := c.Start(t.Context(), Spec{"adder", "t0", func() {}}); err == nil ||
			!strings.HasPrefix(err.Error(), "start t0: settings: ") {
			t.Errorf("settings: %v", err)
		}
		h := start(t, c, Spec{"adder", "t0", map[string]int{"colour": 3}})[0]
		if err := h.Result(t.Context(), nil); err == nil || err.Error() != `t0: read settings: json: unknown field "colour"` {
			t.Errorf("settings that the role does not have: %v", err)
		}
	})
}

// Two servers are ready, know each other, and end when they are asked to.
func TestServers(t *testing.T) {
	both(t, func(t *testing.T, c *Harness) {
		ctx, cancel := context.WithTimeout(t.Context(), guard)
		defer cancel()
		servers, url, err := c.StartServers(ctx, 2, ServerSettings{})
		if err != nil {
			t.Fatal(err)
		}
		conn, err := fabric.Dial(ctx, fabric.Config{URL: url, Name: "test"})
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if err := c.StopServers(ctx, servers...); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestSplit(t *testing.T) {
	for n, want := range map[int]int{1: 1, partBytesMax: 1, partBytesMax + 1: 3, 2 * partBytesMax: 3} {
		parts, err := split(message{Op: opTell, Key: "k", Value: bytes.Repeat([]byte("1"), n)})
		if err != nil || len(parts) != want {
			t.Fatalf("%d bytes: %d messages, %v", n, len(parts), err)
		}
	}
	if _, err := split(message{Op: opTell, Key: "k", Value: make([]byte, valueBytesMax+1)}); err == nil {
		t.Error("no bound")
	}
}

func TestFlags(t *testing.T) {
	ok := toyFlags()
	for _, c := range []struct {
		change func(*Flags)
		want   string
	}{
		{func(*Flags) {}, ""},
		{func(f *Flags) { f.Way.Server, f.Here = "nats://10.0.0.1:4222", 2 }, ""},
		{func(f *Flags) { f.Runs = 0 }, "runs 0: want 1 to 1000"},
		{func(f *Flags) { f.Way.Server = "here" }, `invalid trainer configuration: server "here": want an address such as nats://127.0.0.1:4222`},
		{func(f *Flags) { f.Here = 1 }, "here 1: only with --server"},
		{func(f *Flags) { f.Way.Server, f.Here = "nats://10.0.0.1:4222", 4 }, "here 4: want 1 to 3, the number of trainers"},
		{func(f *Flags) { f.Job = "Ü" }, `job "Ü": want 1 to 63 of a-z, 0-9 and -`},
	} {
		f := ok
		c.change(&f)
		err := f.Validate(&f, 3)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	f := ok
	if n := f.TrainersHere(3); n != 3 {
		t.Errorf("%d trainers here", n)
	}
	f.Here = 2
	if n := f.TrainersHere(3); n != 2 {
		t.Errorf("%d trainers here", n)
	}
	if m := Median([]float64{3, 1, 2}); m != 2 || Median([]float64{1, 2}) != 1.5 || Median(nil) != 0 {
		t.Error("median", m)
	}
}

// The parts of a long value stay together, whoever else speaks meanwhile.
func TestPartsStayTogether(t *testing.T) {
	h := &Handle{harness: &Harness{}, told: map[string]json.RawMessage{}, changed: make(chan struct{})}
	m := newMember("t0", nil, func(x message) error { runtime.Gosched(); h.take(x); return nil })
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			for range 5 {
				if err := m.Tell(strconv.Itoa(i), strings.Repeat(strconv.Itoa(i), 2*partBytesMax)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	for key, value := range h.told {
		if len(value) != 2*partBytesMax+2 || strings.Trim(string(value), `"`+key) != "" {
			t.Errorf("value %s: %d bytes: %.40s", key, len(value), value)
		}
	}
	if len(h.told) != 4 {
		t.Errorf("%d values", len(h.told))
	}
}
