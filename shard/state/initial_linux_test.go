package state

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"gradbus/cuda"
	"gradbus/philox"
	"gradbus/schema"
)

// smallPages gives memory of which the kernel keeps the pages that were touched, 4 KiB each.
type smallPages struct {
	t    *testing.T
	from []uintptr // and the ends of it
}

func (s *smallPages) alloc(values int) ([]float32, func(), error) {
	const flags = syscall.MAP_ANON | syscall.MAP_PRIVATE | syscall.MAP_NORESERVE
	pages, err := syscall.Mmap(-1, 0, 4*values, syscall.PROT_READ|syscall.PROT_WRITE, flags)
	if err != nil {
		return nil, nil, err
	}
	_ = syscall.Madvise(pages, syscall.MADV_NOHUGEPAGE) // a kernel without huge pages refuses
	at := uintptr(unsafe.Pointer(&pages[0]))
	s.from = append(s.from, at, at+uintptr(len(pages)))
	return unsafe.Slice((*float32)(unsafe.Pointer(&pages[0])), values), func() { must(s.t, syscall.Munmap(pages)) }, nil
}

// resident is how many bytes of it are there, as the kernel says.
func (s *smallPages) resident() (bytes int) {
	s.t.Helper()
	maps, err := os.ReadFile("/proc/self/smaps")
	must(s.t, err)
	here := false
	for line := range strings.Lines(string(maps)) {
		var from, end uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &end); n == 2 {
			here = false
			for i := 0; i < len(s.from); i += 2 {
				here = here || from < s.from[i+1] && s.from[i] < end
			}
		}
		var kib int
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kib); n == 1 && here {
			bytes += kib << 10
		}
	}
	return bytes
}

// A table takes memory for the rows that are wanted of it: at most three pages for each, however many it could have.
// Nothing is kept of keys.
func TestSparseTable(t *testing.T) {
	const rows, dim = 1 << 40, 4
	touched := 100_000
	if raced {
		touched /= 10
	}
	r := rand.New(rand.NewPCG(1, 1))
	keys := make([]uint64, touched)
	for i := range keys {
		keys[i] = r.Uint64N(rows)
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	spec := &schema.TableSpec{Name: "t", Rows: rows, Dim: dim, Partitions: 64, Init: schema.Uniform(1)}
	for _, o := range []schema.Optimizer{{Kind: schema.OptimizerSGD, LR: 0.5}, {Kind: schema.OptimizerAdagrad, LR: 0.5}} {
		memory := &smallPages{t: t}
		a, err := NewArray(t.Context(), ArrayConfig{Backend: testBackend(t), Spec: spec, Optimizer: o, Seed: 3,
			Here: everywhere, Columns: dim, alloc: memory.alloc})
		must(t, err)
		defer a.Close()
		if b := memory.resident(); b > 1<<20 {
			t.Errorf("%s: %d bytes before anybody wants a row", o.Kind, b)
		}
		want, sums := make([]float32, len(keys)*dim), make([]float32, len(keys)*dim)
		for i, key := range keys {
			must(t, philox.FillRow(want[i*dim:(i+1)*dim], spec.Init.Kind, 1, 3, "t", key))
			sums[i*dim] = 2
		}
		if !sameBits(gathered(t, a, dim, keys...), want) {
			t.Errorf("%s: initial rows are others", o.Kind)
		}
		must(t, a.Apply(RowGradient{Keys: keys, Sums: cuda.Float32s(sums), Weight: 4, Scale: 1}))
		a.Commit()
		got := gathered(t, a, dim, keys...)
		for i := range keys {
			if moved := want[i*dim] - got[i*dim]; moved < 0.24 || moved > 0.51 { // by lr*2/4, or lr with Adagrad
				t.Fatalf("%s: row of key %d moved by %v", o.Kind, keys[i], moved)
			}
		}
		if pages := float64(memory.resident()) / 4096 / float64(len(keys)); pages > 3 {
			t.Errorf("%s: %.2f pages a key", o.Kind, pages)
		} else {
			t.Logf("%s: %.2f pages a key", o.Kind, pages)
		}
		a.Close()
	}
}
