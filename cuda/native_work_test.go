//go:build native

package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestPaysOnDevice: what is small stays, what is large or computes much does not.
func TestPaysOnDevice(t *testing.T) {
	for name, c := range map[string]struct {
		w       work
		threads int
		pays    bool
	}{
		"nothing":                            {work{}, 1, false},
		"a sum of a megabyte":                {work{pageable: 1 << 20, touched: 1 << 20}, 1, false},
		"a gibibyte that the device reaches": {work{pinned: 1 << 30, touched: 1 << 30}, 1, true},
		"and many threads are there":         {work{pinned: 1 << 30, touched: 1 << 30}, 8, false},
		"a small product":                    {work{pageable: 3 << 14, touched: 3 << 14, flops: 2 << 18}, 1, false},
		"a product of 1024 by 1024 by 1024":  {work{pageable: 3 << 22, touched: 3 << 22, flops: 2 << 30}, 1, true},
		"a few keys":                         {work{pageable: 1 << 16, touched: 1 << 16, keys: 1 << 10}, 1, false},
		"a million keys of rows of 16 bytes": {work{pageable: 1 << 25, touched: 1 << 25, keys: 1 << 20}, 1, true},
		"a row of a large pageable table":    {work{pageable: 1 << 28, touched: 1 << 8}, 1, false},
	} {
		if got := c.w.paysOnDevice(c.threads); got != c.pays {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// placed is a call of which the size grows, on memory as a job has it: tables from Alloc, the rest from the Go heap.
type placed struct {
	name string
	make func(k Backend) func() error
}

// placedCalls are those by which the rates of native_work.go are judged.
func placedCalls() []placed {
	const rows, dim = 1 << 20, 64
	r := rand.New(rand.NewPCG(1, 1))
	ids := func(n, below int) Vector {
		v := make([]int64, n)
		for i := range v {
			v[i] = int64(r.IntN(below))
		}
		return Int64s(v)
	}
	ascending := func(n, step int) Vector {
		v := make([]int64, n)
		for i := range v {
			v[i] = int64(i * step)
		}
		return Int64s(v)
	}
	heap := func(n int) Vector { return Float32s(make([]float32, n)) }
	table := func(k Backend) Vector {
		m, err := k.Alloc(rows * dim)
		if err != nil {
			panic(err)
		}
		values := m.Float32s()
		for i := range values {
			values[i] = 1 // else a CPU reads one page of zeros again and again
		}
		return Float32s(values)
	}
	var all []placed
	for _, n := range []int{160, 2560, 20480, 163840} {
		all = append(all, placed{fmt.Sprintf("bag_forward/%d", n), func(k Backend) func() error {
			a := BagForward{Dim: dim, Padding: NoPadding, Rows: table(k), IDs: ids(n, rows), Offsets: ascending(n/20+1, 20),
				Out: heap(n / 20 * dim)}
			return func() error { return k.BagForward(a) }
		}}, placed{fmt.Sprintf("apply_rows/%d", n), func(k Backend) func() error {
			of, slot := table(k), table(k)
			a := ApplyRows{Dim: dim, Optimizer: SGD{LR: 0.1, Momentum: 0.9}, Weight: 1, Table: of, Out: of,
				Slots: []Slot{{Name: "momentum", Before: slot, After: slot}}, Index: ascending(n, rows/n), Grad: heap(n * dim)}
			return func() error { return k.ApplyRows(a) }
		}}, placed{fmt.Sprintf("bag_backward/%d", n), func(k Backend) func() error {
			a := BagBackward{Dim: dim, Padding: NoPadding, R: rows, IDs: ids(n, rows), Offsets: ascending(n/20+1, 20),
				GradOut: heap(n / 20 * dim), Keys: Int64s(make([]int64, n)), Out: heap(n * dim)}
			return func() error { _, err := k.BagBackward(a); return err }
		}}, placed{fmt.Sprintf("average/%d", n*16), func(k Backend) func() error {
			a := Average{Lanes: 4, Weight: 4, Out: heap(n * 16)}
			for i := range 4 {
				a.Terms = append(a.Terms, Term{First: uint16(i), Count: 1, Values: heap(n * 16)})
			}
			return func() error { return k.Average(a) }
		}})
	}
	for _, n := range []int{32, 128, 512, 1024} {
		all = append(all, placed{fmt.Sprintf("matmul/%d", n), func(k Backend) func() error {
			a := MatMul{M: n, N: n, K: n, A: heap(n * n), B: heap(n * n), C: heap(n * n)}
			return func() error { return k.MatMul(a) }
		}})
	}
	return all
}

// BenchmarkPlaced is the time of a call on the CPU, on the GPU whatever it takes, and where it is placed.
func BenchmarkPlaced(b *testing.B) {
	for _, c := range placedCalls() {
		for _, o := range []Options{{Name: "cpu"}, {Name: "cuda", EveryCall: true}, {Name: "cuda"}} {
			name := o.Name
			if o.Name == "cuda" && !o.EveryCall {
				name = "placed"
			}
			b.Run(c.name+"/"+name, func(b *testing.B) {
				o.Library = *library
				k, err := Open(o)
				if errors.Is(err, ErrNoBackend) {
					b.Skip(err)
				}
				fail(b, err)
				defer k.Close()
				call := c.make(k)
				fail(b, call())
				for b.Loop() {
					fail(b, call())
				}
			})
		}
	}
}
