package cuda

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unsafe"
)

// samples are commands of every operation, small and without fault, with their own memory. Equal seeds give equal ones.
func samples(seed uint64) []command {
	r := rand.New(rand.NewPCG(seed, 1))
	const dim, rows, n, bags = 5, 40, 30, 6
	f := func(n int) Vector { return Float32s(noise(r, n)) }
	half := func(n int) Vector {
		v := make([]uint16, n)
		for i := range v {
			v[i] = uint16(0x3c00 + r.IntN(0x400)) // float16 from 1 to 2
		}
		return Float16s(v)
	}
	out := func(n int) Vector { return Float32s(make([]float32, n)) }
	ids := make([]int64, n)
	ids32, keys := make([]int32, n), make([]uint64, n)
	for i := range ids {
		ids[i], ids32[i], keys[i] = r.Int64N(rows), r.Int32N(rows), r.Uint64N(rows)
	}
	ids[7] = rows + 3 // skipped where it is used
	offsets, offsets32 := []int64{0, 3, 3, 10, 11, 29, 30}, []int32{0, 3, 3, 10, 11, 29}
	index := []int64{3, 4, 9, 20}
	slot := func(name string, of, to int) Slot { return Slot{name, Float32s(make([]float32, of)), out(to)} }
	argmax := Int32s(make([]int32, bags*dim))
	last := make([]int64, rows)
	last[9] = 2
	return []command{
		&BagForward{Dim: dim, Mode: Mean, Padding: 2, SkipBadIDs: true, Rows: f(rows * dim), IDs: Int64s(ids),
			Offsets: Int64s(offsets), Out: out(bags * dim)},
		&BagForward{Dim: dim, Mode: Max, Padding: NoPadding, OpenOffsets: true, Rows: half(rows * dim), IDs: Int32s(ids32),
			Offsets: Int32s(offsets32), Out: Float16s(make([]uint16, bags*dim)), ArgMax: argmax},
		&BagBackward{Dim: dim, Mode: Sum, Padding: NoPadding, R: rows, IDs: Int32s(ids32), Offsets: Int64s(offsets),
			Weights: f(n), GradOut: f(bags * dim), Keys: Int64s(make([]int64, n)), Out: out(n * dim)},
		&Coalesce{Dim: dim, Weight: 3, Keys: Uint64s(keys), Rows: f(n * dim), OutKeys: Uint64s(make([]uint64, n)),
			OutRows: out(n * dim)},
		&Merge{Dim: dim, Lanes: 4, Weight: 2, Terms: []RowsTerm{
			{0, 2, Uint64s([]uint64{1, 4, 9}), f(3 * dim)}, {2, 1, Uint64s(nil), f(0)},
			{3, 1, Uint64s([]uint64{4, 8}), f(2 * dim)}},
			OutKeys: Uint64s(make([]uint64, 5)), OutRows: out(5 * dim)},
		&ApplyRows{Dim: dim, Optimizer: SGD{LR: 0.1, Momentum: 0.9, Nesterov: true}, Weight: 4,
			Slots: []Slot{slot("momentum", rows*dim, 4*dim)},
			Table: f(rows * dim), Index: Int64s(index), First: Uint8s([]uint8{0, 1, 0, 1}), Grad: f(4 * dim), Out: out(4 * dim)},
		&CoalesceApply{Dim: dim, Optimizer: RowwiseAdagrad{LR: 0.1, Eps: 1e-6}, Weight: 4, NonFinite: Count,
			Slots: []Slot{slot("sum", rows, n)}, Steps: Steps{Int64s(last), Int64s(make([]int64, n)), 5, false},
			Table: f(rows * dim),
			Keys:  Int32s(ids32), Rows: f(n * dim), OutKeys: Int64s(make([]int64, n)), Out: out(n * dim)},
		&ApplyDense{Optimizer: Adam{LR: 0.1, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: 3}, Weight: 4,
			Slots: []Slot{slot("square", 33, 33), slot("mean", 33, 33)}, Param: f(33), Grad: f(33), Out: out(33)},
		&Average{Lanes: 3, Weight: 3, Terms: []Term{{0, 2, f(33)}, {2, 1, f(33)}}, Out: out(33)},
		&AverageApply{Lanes: 3, Optimizer: SGD{LR: 0.5}, Weight: 3, First: true,
			Terms: []Term{{0, 1, f(33)}, {1, 1, f(33)}, {2, 1, f(33)}},
			Param: f(33), Out: out(33)},
		&MatMul{M: 3, N: 4, K: 7, TransB: true, A: f(21), B: f(28), Bias: f(4), C: out(12)},
		&SoftmaxCrossEntropy{Classes: 4, Logits: f(12), Targets: Int32s([]int32{3, 0, 2}), Loss: out(3), Grad: out(12)},
		&lookForNonFinite{Float32s([]float32{1, 2, inf, 4, nan})},
		&copying{Int64s(make([]int64, 4)), Int64s(index)},
	}
}

// vectors calls f on every vector of a command.
func vectors(c command, f func(*Vector)) {
	switch c := c.(type) {
	case *lookForNonFinite:
		f(&c.values)
	case *copying:
		f(&c.to)
		f(&c.from)
	default:
		vectorsOf(reflect.ValueOf(c).Elem(), f)
	}
}

func vectorsOf(v reflect.Value, f func(*Vector)) {
	switch {
	case v.Type() == reflect.TypeFor[Vector]():
		f(v.Addr().Interface().(*Vector))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			vectorsOf(v.Field(i), f)
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			vectorsOf(v.Index(i), f)
		}
	}
}

// bytesOf is a vector's memory.
func bytesOf(v Vector) []byte { return unsafe.Slice((*byte)(v.data), v.n*v.dtype.Bytes()) }

// memoryOf is all that a command reads and writes.
func memoryOf(c command) []byte {
	var all []byte
	vectors(c, func(v *Vector) { all = append(all, bytesOf(*v)...) })
	return all
}

// wanted is what the portable backend makes of the samples, one call each.
func wanted(t testing.TB, seed uint64) (memory [][]byte, counts []int, reports []Report) {
	k, err := Open(Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range samples(seed) {
		report := new(Report)
		if at := c.reported(); at != nil {
			*at = report
		}
		n, err := c.on(k)
		if err != nil {
			t.Fatalf("sample %d, %T: %v", i, c, err)
		}
		memory, counts, reports = append(memory, memoryOf(c)), append(counts, n), append(reports, *report)
	}
	return memory, counts, reports
}

func TestCalls(t *testing.T) {
	memory, counts, reports := wanted(t, 3)
	onEach(t, func(t *testing.T, b Backend) {
		for i, c := range samples(3) {
			report := new(Report)
			if at := c.reported(); at != nil {
				*at = report
			}
			n, err := c.on(b)
			if err != nil || n != counts[i] || *report != reports[i] {
				t.Errorf("%T: %d, %+v, %v; want %d, %+v", c, n, *report, err, counts[i], reports[i])
			}
			if !bytes.Equal(memoryOf(c), memory[i]) {
				t.Errorf("%T: other bits than the portable backend's", c)
			}
		}
	})
}

func TestBatch(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		batch := b.NewBatch()
		defer batch.Free()
		must(t, b.Submit(batch)) // nothing to do
		for seed := range uint64(3) {
			memory, counts, reports := wanted(t, seed)
			all := samples(seed)
			var told Report
			all[0].(*BagForward).Report = &told
			for range 7 { // more commands than the batch has room for at first
				for _, c := range all {
					must(t, batch.add(c))
				}
			}
			must(t, b.Submit(batch))
			must(t, b.Submit(batch))
			if batch.Len() != 7*len(all) || told != reports[0] || told.skipped != 1 {
				t.Errorf("%d commands, report %+v", batch.Len(), told)
			}
			for i, c := range all {
				if batch.Count(i) != counts[i] || batch.report(i) != reports[i] {
					t.Errorf("%T: %d, %+v, want %d, %+v", c, batch.Count(i), batch.report(i), counts[i], reports[i])
				}
				if !bytes.Equal(memoryOf(c), memory[i]) {
					t.Errorf("%T: other bits than a call's", c)
				}
			}
			batch.reset()
		}
		if batch.Len() != 0 {
			t.Errorf("%d commands after Reset", batch.Len())
		}
	})
}

// addOne is a command that adds a row of one table to out.
func addOne(id int64, out []float32) BagForward {
	return BagForward{Dim: 1, Padding: NoPadding, Rows: Float32s([]float32{5, 6}), IDs: Int64s([]int64{id}),
		Offsets: Int64s([]int64{0, 1}), Out: Float32s(out)}
}

func TestBatchStopsAtTheFirstFault(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		batch := b.NewBatch()
		defer batch.Free()
		outs := make([]float32, 4)
		for i, id := range []int64{0, 1, 7, 1} {
			must(t, batch.BagForward(addOne(id, outs[i:i+1])))
		}
		err := b.Submit(batch)
		var bad *idError
		if !errors.As(err, &bad) || bad.id != 7 || !strings.Contains(err.Error(), "command 2: bag forward") {
			t.Errorf("error %v", err)
		}
		wantFloats(t, "what ran", outs, []float32{5, 6, 0, 0})
	})
}

func TestBatchRefuses(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		batch := b.NewBatch()
		defer batch.Free()
		must(t, batch.BagForward(addOne(0, make([]float32, 1))))
		err := batch.BagForward(addOne(0, make([]float32, 2)))
		if !errors.Is(err, ErrShape) || !strings.Contains(err.Error(), "command 1: ") || batch.Len() != 1 {
			t.Errorf("bad shape: %v, %d commands", err, batch.Len())
		}
		other, err := Open(Options{Name: "go"})
		must(t, err)
		if err := other.Submit(batch); !errors.Is(err, ErrArgument) {
			t.Errorf("another backend's batch: %v", err)
		}
		batch.Free()
		batch.Free()
	})
}

// TestBatchKeepsMemory: a batch alone holds on to what its commands name.
func TestBatchKeepsMemory(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		batch := b.NewBatch()
		defer batch.Free()
		const n = 1 << 12
		outs := make([]float32, 20)
		for i := range outs {
			rows, ones := make([]float32, n), make([]float32, n)
			for k := range rows {
				rows[k], ones[k] = float32(i), 1
			}
			must(t, batch.matMul(MatMul{M: 1, N: 1, K: n, A: Float32s(rows), B: Float32s(ones), C: Float32s(outs[i : i+1])}))
		}
		var garbage [][]float32
		runtime.GC()
		runtime.GC()
		for range 200 { // memory that was let go would be taken and written over
			x := make([]float32, n)
			for k := range x {
				x[k] = nan
			}
			if garbage = append(garbage, x); len(garbage) > 50 {
				garbage = nil
			}
		}
		must(t, b.Submit(batch))
		for i, got := range outs {
			if got != float32(i*n) {
				t.Errorf("command %d: %v, want %v", i, got, i*n)
			}
		}
	})
}

// TestBatchAllocatesNothing: what a batch needs it has when Submit is called.
func TestBatchAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	onEach(t, func(t *testing.T, b Backend) {
		batch := b.NewBatch()
		defer batch.Free()
		out := make([]float32, 1)
		for range 64 {
			must(t, batch.BagForward(addOne(1, out)))
		}
		if n := testing.AllocsPerRun(100, func() { _ = b.Submit(batch) }); n != 0 {
			t.Errorf("Submit allocates %v times", n)
		}
	})
}
