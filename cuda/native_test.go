//go:build native

package cuda

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// library makes the tests take the cpu and cuda backends from a shared library that was built elsewhere:
//
//	go test -c -tags native ./cuda/ && ./cuda.test -library build/libgradbus.so -require cuda
var library = flag.String("library", "", "path of libgradbus.so, to be tested instead of the linked library")

// backendOptions lists the backends that the tests run on: go, the cpu backend's instruction sets that this machine
// has, the best one with several threads, and cuda where there is a GPU. The tag emu adds the CUDA kernels, emulated.
func backendOptions() []Options {
	all := []Options{{Name: "go"}, {Name: "cpu", ISA: "baseline"}}
	for _, o := range []Options{{Name: "cpu", ISA: "avx2"}, {Name: "cpu", ISA: "avx512"}, {Name: "cpu", Threads: 3},
		{Name: "cuda"}, {Name: "cuda", EveryCall: true}} {
		o.Library = *library
		if b, err := Open(o); err == nil {
			b.Close()
			all = append(all, o)
		}
	}
	all[1].Library = *library
	if emuBuilt {
		all = append(all, Options{Name: "emu"})
	}
	return all
}

// TestInstructionSets says which instruction sets the other tests left out because this machine lacks them.
func TestInstructionSets(t *testing.T) {
	for _, o := range []Options{{Name: "cpu", ISA: "avx2"}, {Name: "cpu", ISA: "avx512"}, {Name: "cuda"}} {
		o.Library = *library
		b, err := Open(o)
		if err != nil {
			leftOut(t, cmp.Or(o.ISA, o.Name), err)
			if !errors.Is(err, ErrNoBackend) {
				t.Errorf("open %+v: %v, want ErrNoBackend", o, err)
			}
			continue
		}
		if o.ISA != "" && b.ISA() != o.ISA {
			t.Errorf("asked for %s, got %s", o.ISA, b.ISA())
		}
		must(t, b.Close())
	}
}

func TestThreads(t *testing.T) {
	for _, c := range []struct{ ask, want int }{{0, 1}, {1, 1}, {5, 5}, {256, 256}} {
		b, err := Open(Options{Name: "cpu", Threads: c.ask, Library: *library})
		must(t, err)
		if b.Threads() != c.want {
			t.Errorf("asked for %d threads, got %d", c.ask, b.Threads())
		}
		must(t, b.Close())
	}
	for _, n := range []int{-1, 257} {
		if _, err := Open(Options{Threads: n}); !errors.Is(err, ErrArgument) {
			t.Errorf("%d threads: %v", n, err)
		}
	}
}

// TestManyGoroutines: one backend with threads of its own serves many callers at once.
func TestManyGoroutines(t *testing.T) {
	memory, counts, _ := wanted(t, 9)
	b, err := Open(Options{Name: "cpu", Threads: 3, Library: *library})
	must(t, err)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				for i, c := range samples(9) {
					if n, err := c.on(b); err != nil || n != counts[i] || !bytes.Equal(memoryOf(c), memory[i]) {
						t.Errorf("%T: %d, %v, or other bits", c, n, err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	must(t, b.Close())
}

// TestLibrary opens a backend of the shared library that CMake builds beside the archive.
func TestLibrary(t *testing.T) {
	path := cmp.Or(*library, filepath.Join("..", "build", "libgradbus.so"))
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the shared library is not built: %v", err)
	}
	b, err := Open(Options{Name: "cpu", Library: path, Threads: 2})
	must(t, err)
	out := make([]float32, 1)
	must(t, b.BagForward(addOne(1, out)))
	wantFloats(t, "out", out, []float32{6})
	must(t, b.Close())
	text := filepath.Join(t.TempDir(), "text.so")
	must(t, os.WriteFile(text, []byte("no library"), 0o600))
	other := otherInterface(t)
	for _, c := range []struct {
		o    Options
		want error
		says string
	}{
		{Options{Name: "cpu", Library: "/nowhere/libgradbus.so"}, ErrNoBackend, "/nowhere/libgradbus.so"},
		{Options{Name: "cpu", Library: text}, ErrNoBackend, text},
		{Options{Name: "cpu", Library: "libc.so.6"}, ErrNoBackend, "has no function gb_backend"},
		{Options{Name: "cpu", Library: other}, ErrNoBackend, other + " does not speak version"},
		{Options{Name: "cuda", Library: other}, ErrNoBackend, other + " does not speak version"},
		{Options{Name: "go", Library: path}, ErrArgument, path},
		{Options{Name: "cpu", Library: path, ISA: "mmx"}, ErrNoBackend, "mmx"},
	} {
		if _, err := Open(c.o); !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %v that says %q", c.o, err, c.want, c.says)
		}
	}
}

// otherInterface is a shared library of another version of the interface.
func otherInterface(t *testing.T) string {
	t.Helper()
	source, path := filepath.Join(t.TempDir(), "other.c"), filepath.Join(t.TempDir(), "other.so")
	must(t, os.WriteFile(source, []byte(`
static const struct { unsigned size, abi; } later = {8, 1u << 30};
const void* gb_backend(unsigned abi) { return abi == later.abi ? &later : 0; }
const void* gb_cuda_backend(unsigned abi) { return &later; }
`), 0o600))
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", path, source).CombinedOutput(); err != nil {
		t.Fatalf("cc, which cgo has needed as well: %v: %s", err, out)
	}
	return path
}

// TestLibraryOfTheEnvironment: the variable gives every backend of the process its library, but for one whose options
// name another.
func TestLibraryOfTheEnvironment(t *testing.T) {
	path, none := cmp.Or(*library, filepath.Join("..", "build", "libgradbus.so")), filepath.Join(t.TempDir(), "none.so")
	reasonFor := func(o Options) string {
		b, err := Open(o)
		if err != nil {
			return err.Error()
		}
		defer b.Close()
		return Describe(b)
	}
	t.Setenv(LibraryVariable, path)
	for _, name := range []string{"", "auto", "cpu"} {
		if says := reasonFor(Options{Name: name}); !strings.HasSuffix(says, "; kernels of "+path) {
			t.Errorf("backend %q with %s=%s: %s", name, LibraryVariable, path, says)
		}
	}
	t.Setenv(LibraryVariable, none)
	for _, name := range []string{"", "auto", "cpu", "cuda"} {
		if says := reasonFor(Options{Name: name}); !strings.Contains(says, "kernel library "+none) {
			t.Errorf("backend %q with %s=%s: %s", name, LibraryVariable, none, says)
		}
	}
	for name, o := range map[string]Options{"portable": {Name: "go"}, "named": {Name: "cpu", Library: path}} {
		if says := reasonFor(o); strings.Contains(says, none) {
			t.Errorf("%s with %s=%s: %s", name, LibraryVariable, none, says)
		}
	}
}

// TestCallsAllocateNothing in steady state, on backends that run on this machine's processor alone.
func TestCallsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	onEach(t, func(t *testing.T, b Backend) {
		if b.Name() != "cpu" {
			return
		}
		for _, c := range samples(5) {
			call := func() {
				if _, err := c.on(b); err != nil {
					t.Error(err)
				}
			}
			if n := testing.AllocsPerRun(100, call); n != 0 {
				t.Errorf("%T allocates %v times", c, n)
			}
		}
	})
}

func TestClosed(t *testing.T) {
	b, err := Open(Options{Name: "cpu", Library: *library})
	must(t, err)
	batch := b.NewBatch()
	must(t, batch.BagForward(addOne(0, make([]float32, 1))))
	must(t, b.Close())
	must(t, b.Close())
	if err := b.ApplyDense(ApplyDense{Optimizer: SGD{}, Weight: 1}); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed backend answered %v", err)
	}
	if err := b.Submit(batch); !errors.Is(err, ErrClosed) {
		t.Errorf("a closed backend answered a batch with %v", err)
	}
	batch.Free()
}

// TestGlibc says which glibc this test binary needs, since it is carried to machines with another; see -library.
func TestGlibc(t *testing.T) {
	path, err := os.Executable()
	must(t, err)
	file, err := elf.Open(path)
	must(t, err)
	defer file.Close()
	symbols, err := file.ImportedSymbols()
	must(t, err)
	const want = 34
	newest, name := 0, ""
	for _, s := range symbols {
		var minor int
		if n, _ := fmt.Sscanf(s.Version, "GLIBC_2.%d", &minor); n == 1 && minor > newest {
			newest, name = minor, s.Name
		}
	}
	t.Logf("needs glibc 2.%d, for instance for %s", newest, name)
	if newest > want {
		leftOut(t, "glibc", fmt.Errorf("%s needs glibc 2.%d, want at most 2.%d", name, newest, want))
	}
}

func TestStamp(t *testing.T) {
	if len(nativeStamp()) != 64 || strings.Trim(nativeStamp(), "0123456789abcdef") != "" {
		t.Errorf("stamp %q is no SHA-256", nativeStamp())
	}
	if emuBuilt == (emuStamp() == "") {
		t.Errorf("emulation %v, but its stamp is %q", emuBuilt, emuStamp())
	}
}
