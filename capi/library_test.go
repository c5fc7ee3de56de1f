//go:build cgo

package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"gradbus"
	"gradbus/cuda"
	"gradbus/e2e/commands"
	"gradbus/local"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

var asan = flag.Bool("library-asan", false,
	"build the library, too, for the address sanitizer: it then looks at what Go does with a caller's memory")

// folder has the library and the programs of the tests.
var folder string

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if folder, err = os.MkdirTemp("", "gradbus-capi-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(folder)
	os.Exit(code)
}

// compiler is what compiles C here; cgo has had one.
func compiler(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"cc", "gcc", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("no C compiler here: cc, gcc or clang")
	return ""
}

// program compiles a program in C for the address sanitizer, against the library, which it builds first.
func program(t *testing.T, source string, more ...string) string {
	t.Helper()
	cc, library := compiler(t), filepath.Join(folder, "libgradbus.so")
	if _, err := os.Stat(library); errors.Is(err, fs.ErrNotExist) {
		var more []string
		if *asan {
			more = []string{"-asan"}
		}
		if err := commands.Library(library, "../scripts/capi.sh", more...); err != nil {
			t.Fatal(err)
		}
	}
	to := filepath.Join(folder, strings.TrimSuffix(filepath.Base(source), ".c"))
	args := []string{"-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address", "-I.", "-o", to, source, library,
		"-Wl,-rpath," + folder, "-lpthread", "-lm"}
	if out, err := exec.Command(cc, append(args, more...)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	return to
}

// run runs a program, which is to print so much and end well.
func run(t *testing.T, program string, args ...string) string {
	t.Helper()
	c := exec.Command(program, args...)
	c.Dir = t.TempDir()
	// Memory that Go alone knows looks leaked.
	c.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0", "GODEBUG=cgocheck=1")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", args, err, out)
	}
	return string(out)
}

// What the header promises, as a program in C meets it. Nothing is printed but by the program, where something is
// wrong.
func TestSession(t *testing.T) {
	p := program(t, "testdata/session_test.c")
	for _, name := range []string{"trains", "saves", "cancels", "cancels-a-batch", "refuses", "threads", "forks",
		"signals", "wakes"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out := run(t, p, name); out != "" && !t.Failed() {
				t.Errorf("printed %q", out)
			}
		})
	}
}

// An elastic program gets the lanes of a trainer that has left in the middle of a batch.
func TestElastic(t *testing.T) {
	backend, err := cuda.Open(cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	server, err := ps.Start(context.Background(), ps.Config{Shards: 2},
		ps.Options{Backend: backend, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if out := run(t, program(t, "testdata/session_test.c"), "elastic", server.URL()); out != "" {
		t.Errorf("printed %q", out)
	}
}

// The example is a program that a reader can compile, and learns.
func TestExample(t *testing.T) {
	var first, last float64
	lines := strings.Split(strings.TrimSpace(run(t, program(t, "example.c"))), "\n")
	if _, err := fmt.Sscanf(lines[0], "batch 50: RMSE %f", &first); err != nil {
		t.Fatalf("%v: %q", err, lines)
	}
	if _, err := fmt.Sscanf(lines[len(lines)-1], "batch 200: RMSE %f", &last); err != nil || !(last < 0.8*first) {
		t.Errorf("RMSE %v after %v: %v", last, first, err)
	}
}

// The library takes its kernels from the file that the environment names.
func TestKernelsOfTheEnvironment(t *testing.T) {
	c := exec.Command(program(t, "example.c"))
	c.Dir = t.TempDir()
	c.Env = append(c.Environ(), "ASAN_OPTIONS=detect_leaks=0", cuda.LibraryVariable+"=/nowhere/none.so")
	if out, err := c.CombinedOutput(); err == nil || !strings.Contains(string(out), "/nowhere/none.so") {
		t.Errorf("without the file: %v: %s", err, out)
	}
}

// The library's names are the functions of the header, and no others: those of Go, of cgo and of the arithmetic would
// meet the names of whoever loads it.
func TestHeaderNamesTheLibrary(t *testing.T) {
	program(t, "example.c")
	header, err := os.ReadFile("gradbus.h")
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, found := range regexp.MustCompile(`(?m)^(?:int32_t |void |const char \*)(\w+)\(`).FindAllSubmatch(header, -1) {
		want = append(want, string(found[1]))
	}
	library, err := elf.Open(filepath.Join(folder, "libgradbus.so"))
	if err != nil {
		t.Fatal(err)
	}
	defer library.Close()
	symbols, err := library.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			got = append(got, s.Name)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) < 20 || !slices.Equal(got, want) {
		t.Errorf("the library has %d names, want %d:\n%q\n%q", len(got), len(want), got, want)
	}
}

func TestVersion(t *testing.T) {
	shim, err := os.ReadFile("shim.h")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(shim, []byte(`#define GRADBUS_RELEASE "`+gradbus.Version+`"`)) {
		t.Errorf("shim.h is of another version than %s", gradbus.Version)
	}
}

// A panic of a call is the caller's to hear of, and not its end; and an error has the code of what is behind it.
func TestCodes(t *testing.T) {
	var nothing []int
	panicked := guarded(func() error { _ = nothing[len(nothing)]; return nil })
	for want, err := range map[int]error{
		2:  fmt.Errorf("x: %w", trainer.ErrWorkload),
		3:  fmt.Errorf("x: %w", trainer.ErrOrder),
		4:  schema.JobErrors{{Field: "lanes"}},
		5:  trainer.ErrServerLost,
		6:  trainer.ErrJobFailed,
		7:  errVersion,
		8:  fmt.Errorf("%w; then %w", trainer.ErrJobFailed, errCanceled),
		9:  trainer.ErrLeft,
		13: fmt.Errorf("%w: %w", trainer.ErrRewound, trainer.ErrServerLost),
		11: &fs.PathError{Op: "open", Path: "/nowhere", Err: fs.ErrNotExist},
		12: panicked,
	} {
		if got := int(codeOf(err)); got != want {
			t.Errorf("%v: code %d, want %d", err, got, want)
		}
	}
	if !strings.Contains(panicked.Error(), "index out of range") {
		t.Error(panicked)
	}
	if factor := uint64(spread); factor*gathered != 1 {
		t.Error("handles cannot be told from invented ones")
	}
}

// A handle is of one kind, and gone when it is.
func TestHandles(t *testing.T) {
	h := all.add(&trainer.Model{})
	if _, err := get[*trainer.Model](h); err != nil {
		t.Error(err)
	}
	if _, err := get[*session](h); !errors.Is(err, errArgument) {
		t.Errorf("%v of another kind, want %v", err, errArgument)
	}
	all.remove(h)
	if _, err := get[*trainer.Model](h); !errors.Is(err, errClosed) {
		t.Errorf("%v, want %v", err, errClosed)
	}
	for _, invented := range []uint64{0, 1, h + 1, 1 << 63} {
		if _, err := get[*trainer.Model](invented); !errors.Is(err, errArgument) {
			t.Errorf("handle %#x: %v, want %v", invented, err, errArgument)
		}
	}
	runtime.KeepAlive(h)
}

// BenchmarkBatch is what costs measures in C (testdata/session_test.c), by the trainer alone: the difference is what
// the library costs.
func BenchmarkBatch(b *testing.B) {
	shards, err := local.Start(b.Context(), local.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer shards.Close()
	job := &schema.Job{Name: "costs", Lanes: 1, Optimizer: schema.Optimizer{LR: 1},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{5}, Init: schema.Zeros()}},
		Tables:     []schema.TableSpec{{Name: "rows", Rows: 1000, Dim: 16, Init: schema.Zeros()}}}
	s, err := trainer.Join(b.Context(), shards.Config(), job)
	if err != nil {
		b.Fatal(err)
	}
	keys, ids, unique, rows := make([]uint64, 64), make([]int64, 64), make([]uint64, 64), make([]float32, 64*16)
	for i := range keys {
		keys[i] = uint64(i * 7919 % 1000)
	}
	for b.Loop() {
		batch, err := s.Next()
		n, err1 := s.Distinct(0, keys, unique, ids)
		err = errors.Join(err, err1,
			s.LookupInto(b.Context(), []trainer.Query{{Table: 0, Keys: unique[:n], Rows: rows[:n*16]}}))
		batch.Samples(0, 1)
		batch.Keys(0, 0, unique[:n]...)
		err = errors.Join(err, batch.SkipFetch(b.Context()))
		step, err1 := batch.Lane(0)
		if err = errors.Join(err, err1); err != nil {
			b.Fatal(err)
		}
		step.RowGrad(0, step.IDs(0), rows[:n*16])
		clear(step.Grad("w"))
		if err := errors.Join(step.End(0), batch.Commit(b.Context())); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Error(err)
	}
}
