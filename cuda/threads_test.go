package cuda

import (
	"fmt"
	"sync"
	"testing"
)

// workload is one call on data large enough to be shared among threads. It returns everything that the call wrote.
type workload struct {
	name string
	run  func(b Backend) ([]Vector, error)
}

// skewed draws ids of which the lower ones come more often, some very often.
func skewed(n int, rows int64) []int64 {
	r := newRand(7)
	ids := make([]int64, n)
	for i := range ids {
		u := r.Float64()
		ids[i] = int64(u * u * u * u * float64(rows))
	}
	return ids
}

func bagWorkloads() []workload {
	const rows, dim, bags, each = 5000, 64, 2000, 10
	r := newRand(1)
	table, ids, offsets := noise(r, rows*dim), skewed(bags*each, rows), make([]int64, bags+1)
	for i := range offsets {
		offsets[i] = int64(i * each)
	}
	offsets[1] = 0        // an empty bag
	offsets[bags-1] = 900 // and a long one
	for i := 2; i < bags-1; i++ {
		offsets[i] = min(offsets[i], 900)
	}
	weights := noise(r, len(ids))
	grad := noise(r, bags*dim)
	var all []workload
	for mode := Sum; mode <= Max; mode++ {
		a := BagForward{Dim: dim, Mode: mode, Padding: 3, Rows: Float32s(table), IDs: Int64s(ids), Offsets: Int64s(offsets)}
		back := BagBackward{Dim: dim, Mode: mode, Padding: 3, R: rows, IDs: Int64s(ids), Offsets: Int64s(offsets),
			GradOut: Float32s(grad)}
		if mode == Sum {
			a.Weights, back.Weights = Float32s(weights), Float32s(weights)
		}
		all = append(all, workload{fmt.Sprintf("bag forward %d", mode), func(b Backend) ([]Vector, error) {
			a := a
			a.Out = Float32s(make([]float32, bags*dim))
			if mode == Max {
				a.ArgMax = Int32s(make([]int32, bags*dim))
			}
			err := b.BagForward(a)
			return []Vector{a.Out, a.ArgMax}, err
		}})
		if mode == Max {
			argmax := make([]int32, bags*dim)
			for i := range argmax {
				argmax[i] = int32(offsets[i/dim]) + int32(i%each)
			}
			back.ArgMax = Int32s(argmax)
		}
		all = append(all, workload{fmt.Sprintf("bag backward %d", mode), func(b Backend) ([]Vector, error) {
			a := back
			a.Keys, a.Out = Int64s(make([]int64, rows)), Float32s(make([]float32, rows*dim))
			_, err := b.BagBackward(a)
			return []Vector{a.Keys, a.Out}, err
		}})
	}
	return all
}

func sumWorkloads() []workload {
	const n, rows = 30_000, 4000
	r := newRand(2)
	ids := skewed(n, rows)
	var all []workload
	for _, dim := range []int{3, 64} {
		grad := noise(r, n*dim)
		for _, key := range []DType{Int64, Int32} {
			keys := idsOf(key, ids)
			all = append(all, workload{fmt.Sprintf("coalesce dim %d by %v", dim, key), func(b Backend) ([]Vector, error) {
				a := Coalesce{Dim: dim, Weight: 7, Keys: keys, Rows: Float32s(grad), OutKeys: idsOf(key, make([]int64, rows)),
					OutRows: Float32s(make([]float32, rows*dim))}
				_, err := b.Coalesce(a)
				return []Vector{a.OutKeys, a.OutRows}, err
			}})
		}
		all = append(all, workload{fmt.Sprintf("one segment of dim %d", dim), func(b Backend) ([]Vector, error) {
			a := Coalesce{Dim: dim, Keys: Int64s(make([]int64, n)), Rows: Float32s(grad), OutKeys: Int64s(make([]int64, 1)),
				OutRows: Float32s(make([]float32, dim))}
			_, err := b.Coalesce(a)
			return []Vector{a.OutKeys, a.OutRows}, err
		}})
	}
	var sparse []RowsTerm
	var dense []Term
	for l := range uint16(8) {
		var keys []uint64
		for key := range uint64(3000) {
			if r.IntN(2) == 0 {
				keys = append(keys, key)
			}
		}
		sparse = append(sparse, rowsTerm(l, 1, keys, noise(r, len(keys)*16)))
		dense = append(dense, term(l, 1, noise(r, 200_003)))
	}
	return append(all, workload{"merge", func(b Backend) ([]Vector, error) {
		a := Merge{Dim: 16, Lanes: 8, Weight: 3, Terms: sparse, OutKeys: Uint64s(make([]uint64, 3000)),
			OutRows: Float32s(make([]float32, 3000*16))}
		_, err := b.Merge(a)
		return []Vector{a.OutKeys, a.OutRows}, err
	}}, workload{"average", func(b Backend) ([]Vector, error) {
		out := Float32s(make([]float32, 200_003))
		return []Vector{out}, b.Average(Average{8, 3, dense, out})
	}}, workload{"average apply", func(b Backend) ([]Vector, error) {
		p, m := Float32s(make([]float32, 200_003)), Float32s(make([]float32, 200_003))
		return []Vector{p, m}, b.AverageApply(AverageApply{Lanes: 8, Optimizer: SGD{LR: 0.1, Momentum: 0.9, WeightDecay: 0.1},
			Weight: 3, Terms: dense,
			Slots: []Slot{{"momentum", m, m}}, Param: p, Out: p})
	}})
}

func stepWorkloads() []workload {
	const rows, dim, n = 6000, 64, 20_000
	r := newRand(3)
	table, slots, grad := noise(r, rows*dim), noise(r, rows*dim), noise(r, n*dim)
	for i, v := range slots {
		slots[i] = v * v
	}
	ids := skewed(n, rows)
	var index []int64
	last := make([]int64, rows)
	for row := range int64(rows) {
		last[row] = r.Int64N(4)
		if r.IntN(2) == 0 {
			index = append(index, row)
		}
	}
	clone := func(x []float32, n int) Vector { return Float32s(append([]float32(nil), x[:n]...)) }
	var all []workload
	for _, o := range []Optimizer{SGD{LR: 0.1}, SGD{LR: 0.1, Momentum: 0.9, WeightDecay: 0.01, Nesterov: true},
		RowwiseAdagrad{0.1, 1e-6, 0.01},
		FTRL{0.1, 1, 0.1, 0.1}, Adam{0.1, 0.9, 0.99, 1e-6, 0.01, 5}} {
		width := rows * dim
		if _, ok := o.(RowwiseAdagrad); ok {
			width = rows
		}
		state := func() (table_, last_ Vector, s []Slot, all []Vector) {
			table_, last_ = clone(table, rows*dim), Int64s(append([]int64(nil), last...))
			all = []Vector{table_, last_}
			for _, name := range o.SlotNames() {
				v := clone(slots, width)
				s, all = append(s, Slot{name, v, v}), append(all, v)
			}
			return
		}
		all = append(all, workload{fmt.Sprintf("apply rows %T", o), func(b Backend) ([]Vector, error) {
			p, l, s, written := state()
			return written,
				b.ApplyRows(ApplyRows{Dim: dim, Optimizer: o, Weight: 2, Slots: s, Steps: Steps{l, l, 5, hasExact(o)}, Table: p,
					Index: Int64s(index),
					Grad:  Float32s(grad[:len(index)*dim]), Out: p})
		}}, workload{fmt.Sprintf("coalesce apply %T", o), func(b Backend) ([]Vector, error) {
			p, l, s, written := state()
			_, err := b.CoalesceApply(CoalesceApply{Dim: dim, Optimizer: o, Weight: 2, NonFinite: Refuse, Slots: s,
				Steps: Steps{l, l, 5, hasExact(o)}, Table: p, Keys: Int64s(ids),
				Rows: Float32s(grad), Out: p})
			return written, err
		}}, workload{fmt.Sprintf("apply dense %T", o), func(b Backend) ([]Vector, error) {
			p, _, s, written := state()
			return written, b.ApplyDense(ApplyDense{Dim: dim, Optimizer: o, Weight: 2, NonFinite: Refuse, Slots: s, Param: p,
				Grad: Float32s(grad[:rows*dim]), Out: p})
		}})
	}
	return all
}

// threadOptions lists the instruction sets of this machine, each with one, two and three threads.
func threadOptions() []Options {
	var all []Options
	for _, o := range backendOptions() {
		if o.Name != "cpu" || o.ISA == "" {
			continue
		}
		for threads := range 3 {
			o.Threads = threads + 1
			all = append(all, o)
		}
	}
	return all
}

// TestThreadsChangeNoBit compares with the portable backend, which has one thread.
func TestThreadsChangeNoBit(t *testing.T) {
	options := threadOptions()
	if len(options) == 0 {
		t.Log("this build has no backend with threads")
		return
	}
	var opened []Backend
	for _, o := range options {
		b, err := Open(o)
		must(t, err)
		defer func() { must(t, b.Close()) }()
		if b.Threads() != o.Threads {
			t.Errorf("%+v: %d threads", o, b.Threads())
		}
		opened = append(opened, b)
	}
	oracle := newReference()
	for _, w := range append(append(bagWorkloads(), sumWorkloads()...), stepWorkloads()...) {
		want, err := w.run(oracle)
		must(t, err)
		for i, b := range opened {
			var wait sync.WaitGroup
			for range 2 { // two callers at once share the threads
				wait.Go(func() {
					got, err := w.run(b)
					if err != nil {
						t.Errorf("%s on %+v: %v", w.name, options[i], err)
						return
					}
					for v := range want {
						if string(got[v].bytes()) != string(want[v].bytes()) {
							t.Errorf("%s on %+v: output %d differs", w.name, options[i], v)
						}
					}
				})
			}
			wait.Wait()
		}
	}
}
