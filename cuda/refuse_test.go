package cuda

import (
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

// outputs hands out slices full of sevens and checks that they still are.
type outputs struct{ all [][]float32 }

func (o *outputs) floats(n int) []float32 {
	s := slices.Repeat([]float32{7}, n)
	o.all = append(o.all, s)
	return s
}

func (o *outputs) untouched() bool {
	for _, s := range o.all {
		if slices.ContainsFunc(s, func(v float32) bool { return v != 7 }) {
			return false
		}
	}
	return true
}

type refusal struct {
	name string
	want error
	text string // part of the message
	call func(b Backend, o *outputs) error
}

func bagRefusals() []refusal {
	rows := []float32{1, 2, 3, 4}
	forward := func(name string, want error, text string, change func(a *BagForward)) refusal {
		return refusal{"bag forward " + name, want, text, func(b Backend, o *outputs) error {
			a := bagForward(2, Sum, NoPadding, rows, []int64{0, 1, 0}, []int64{0, 1, 3}, o.floats(4))
			change(&a)
			return b.BagForward(a)
		}}
	}
	backward := func(name string, want error, text string, change func(a *BagBackward)) refusal {
		return refusal{"bag backward " + name, want, text, func(b Backend, o *outputs) error {
			a := bagBackward(2, Sum, NoPadding, 2, []int64{0, 1, 0}, []int64{0, 1, 3}, rows, make([]int64, 3), o.floats(6))
			change(&a)
			n, err := b.BagBackward(a)
			if n != 0 || slices.ContainsFunc(view[int64](a.Keys), func(k int64) bool { return k != 0 }) {
				return errors.New("keys written")
			}
			return err
		}}
	}
	return []refusal{
		forward("dim 0", ErrShape, "dim 0", func(a *BagForward) { a.Dim = 0 }),
		forward("half a row", ErrShape, "dim 2", func(a *BagForward) { a.Rows = Float32s(rows[:3]) }),
		forward("short output", ErrShape, "want 2 rows of 2", func(a *BagForward) { a.Out = a.Out.Slice(0, 2) }),
		forward("no offsets", ErrShape, "offsets", func(a *BagForward) { a.Offsets = Vector{} }),
		forward("offsets from 1", ErrShape, "offsets", func(a *BagForward) { a.Offsets = int64sOf(1, 2, 3) }),
		forward("falling offsets", ErrShape, "offsets fall", func(a *BagForward) { a.Offsets = int64sOf(0, 4, 3) }),
		forward("offsets beyond the ids", ErrShape, "offsets", func(a *BagForward) { a.Offsets = int64sOf(0, 1, 4) }),
		forward("mode", ErrUnsupported, "mode 3", func(a *BagForward) { a.Mode = 3 }),
		forward("padding", ErrArgument, "-2", func(a *BagForward) { a.Padding = -2 }),
		forward("id 2", ErrID, "id 2 at position 1 is not in [0,2)", func(a *BagForward) { a.IDs = int64sOf(0, 2, -1) }),
		forward("id -1", ErrID, "id -1 at position 2", func(a *BagForward) { a.IDs = int64sOf(0, 1, -1) }),
		forward("huge id", ErrID, "id 9223372036854775807 at position 0",
			func(a *BagForward) { a.IDs = int64sOf(math.MaxInt64, 1, 1) }),
		forward("id beside padding", ErrID, "id 3 at position 1",
			func(a *BagForward) { a.Padding, a.IDs = 2, int64sOf(2, 3, 0) }),
		forward("output over input", ErrOverlap, "out", func(a *BagForward) { a.Rows = a.Out }),
		backward("id", ErrID, "id 2 at position 1 is not in [0,2)", func(a *BagBackward) { a.IDs = int64sOf(0, 2, 5) }),
		backward("room for keys", ErrShape, "room for 1 keys, want 2", func(a *BagBackward) { a.Keys = a.Keys.Slice(0, 1) }),
		backward("room for rows", ErrShape, "want at least 3 rows", func(a *BagBackward) { a.Out = a.Out.Slice(0, 5) }),
		backward("gradient", ErrShape, "grad out", func(a *BagBackward) { a.GradOut = Float32s(rows[:2]) }),
		backward("offsets", ErrShape, "offsets end at 2", func(a *BagBackward) { a.Offsets = int64sOf(0, 1, 2) }),
		backward("rows", ErrShape, "-1 rows", func(a *BagBackward) { a.R = -1 }),
	}
}

func sumRefusals() []refusal {
	coalesce := func(name string, want error, text string, change func(a *Coalesce)) refusal {
		return refusal{"coalesce " + name, want, text, func(b Backend, o *outputs) error {
			a := coalesce(1, []uint64{5, 3, 5}, []float32{1, 2, 3}, make([]uint64, 3), o.floats(3))
			change(&a)
			_, err := b.Coalesce(a)
			return err
		}}
	}
	merge := func(name string, want error, text string, change func(a *Merge)) refusal {
		return refusal{"merge " + name, want, text, func(b Backend, o *outputs) error {
			terms := []RowsTerm{{0, 1, uint64sOf(1, 2), floatsOf(1, 2)}, {2, 1, uint64sOf(2, 3), floatsOf(1, 2)}}
			a := merge(1, 3, terms, make([]uint64, 4), o.floats(4))
			change(&a)
			_, err := b.Merge(a)
			return err
		}}
	}
	average := func(name string, want error, text string, change func(a *Average)) refusal {
		return refusal{"average " + name, want, text, func(b Backend, o *outputs) error {
			a := average(3, 2, []Term{{0, 1, floatsOf(1, 2)}, {2, 1, floatsOf(1, 2)}}, o.floats(2))
			change(&a)
			return b.Average(a)
		}}
	}
	return []refusal{
		coalesce("rows", ErrShape, "want 3 rows of 1", func(a *Coalesce) { a.Rows = a.Rows.Slice(0, 2) }),
		coalesce("room", ErrShape, "room for 1 keys, want 2", func(a *Coalesce) { a.OutKeys = a.OutKeys.Slice(0, 1) }),
		coalesce("overlap", ErrOverlap, "out keys", func(a *Coalesce) { a.OutKeys = a.Keys }),
		merge("order", ErrOrder, "term 1, position 1", func(a *Merge) { a.Terms[1].Keys = uint64sOf(3, 3) }),
		merge("rows", ErrShape, "term 1", func(a *Merge) { a.Terms[1].Rows = Vector{} }),
		merge("room", ErrShape, "room for 2 keys, want 3", func(a *Merge) { a.OutKeys = a.OutKeys.Slice(0, 2) }),
		merge("no node", ErrNode, "term 0, lanes [0,3), is no node", func(a *Merge) { a.Lanes, a.Terms[0].Count = 4, 3 }),
		merge("twice the same lane", ErrNode, "term 1", func(a *Merge) { a.Terms[0].Count = 2; a.Terms[1].First = 1 }),
		merge("beyond the tree", ErrNode, "term 1", func(a *Merge) { a.Terms[1].First = 3 }),
		merge("overlap", ErrOverlap, "term 0",
			func(a *Merge) { a.OutKeys, a.OutRows = a.OutKeys.Slice(0, 2), a.Terms[0].Rows }),
		average("no terms", ErrShape, "no terms", func(a *Average) { a.Terms = nil }),
		average("weight 0", ErrArgument, "weight 0", func(a *Average) { a.Weight = 0 }),
		average("weight NaN", ErrArgument, "weight NaN", func(a *Average) { a.Weight = nan }),
		average("length", ErrShape, "term 1 has 1 values", func(a *Average) { a.Terms[1].Values = floatsOf(1) }),
		average("order", ErrNode, "term 1", func(a *Average) { slices.Reverse(a.Terms) }),
		average("shifted", ErrOverlap, "term 0", func(a *Average) {
			three := []float32{7, 7, 7}
			a.Terms[0].Values, a.Out = Float32s(three[:2]), Float32s(three[1:])
		}),
	}
}

func applyRefusals() []refusal {
	rows := func(name string, want error, text string, change func(a *ApplyRows)) refusal {
		return refusal{"apply rows " + name, want, text, func(b Backend, o *outputs) error {
			a := applyRows(1, SGD{LR: 1, Momentum: 0.5}, 1, []float32{1, 2}, []int64{1}, []uint8{0}, []float32{5}, o.floats(1),
				slot("momentum", []float32{0, 0}, o.floats(1)))
			change(&a)
			return b.ApplyRows(a)
		}}
	}
	dense := func(name string, want error, text string, change func(a *ApplyDense)) refusal {
		return refusal{"apply dense " + name, want, text, func(b Backend, o *outputs) error {
			a := applyDense(SGD{LR: 1, Momentum: 0.5}, 1, false, []float32{1, 2}, []float32{1, 2}, o.floats(2),
				slot("momentum", []float32{1, 2}, o.floats(2)))
			change(&a)
			return b.ApplyDense(a)
		}}
	}
	return []refusal{
		rows("index", ErrID, "id 2 at position 0 is not in [0,2)", func(a *ApplyRows) { a.Index = int64sOf(2) }),
		rows("weight", ErrArgument, "weight -1", func(a *ApplyRows) { a.Weight = -1 }),
		rows("hyperparameter", ErrArgument, "finite", func(a *ApplyRows) { a.Optimizer = SGD{LR: inf, Momentum: 0.5} }),
		rows("first", ErrShape, "first", func(a *ApplyRows) { a.First = uint8sOf(0, 1) }),
		rows("momentum", ErrShape, "no slot momentum", func(a *ApplyRows) { a.Slots = nil }),
		rows("momentum without use", ErrShape, "1 slots, want 0", func(a *ApplyRows) { a.Optimizer = SGD{LR: 1} }),
		rows("in place", ErrOverlap, "out", func(a *ApplyRows) { a.Table = floatsOf(7, 7); a.Out = a.Table.Slice(0, 1) }),
		dense("length", ErrShape, "grad 1", func(a *ApplyDense) { a.Grad = a.Grad.Slice(0, 1) }),
		dense("momentum", ErrShape, "momentum", func(a *ApplyDense) { a.Slots[0].After = Vector{} }),
		dense("weight", ErrArgument, "weight +Inf", func(a *ApplyDense) { a.Weight = inf }),
		dense("shifted", ErrOverlap, "out", func(a *ApplyDense) {
			three := []float32{7, 7, 7}
			a.Param, a.Out = Float32s(three[:2]), Float32s(three[1:])
		}),
		dense("out over gradient", ErrOverlap, "out", func(a *ApplyDense) { a.Grad = a.Out }),
	}
}

func layerRefusals() []refusal {
	matmul := func(name string, want error, text string, change func(a *MatMul)) refusal {
		return refusal{"matmul " + name, want, text, func(b Backend, o *outputs) error {
			a := matMul(1, 2, 2, false, false, []float32{1, 2}, []float32{1, 2, 3, 4}, []float32{1, 2}, o.floats(2))
			change(&a)
			return b.MatMul(a)
		}}
	}
	softmax := func(name string, want error, text string, change func(a *SoftmaxCrossEntropy)) refusal {
		return refusal{"softmax " + name, want, text, func(b Backend, o *outputs) error {
			a := softmax(2, []float32{1, 2, 3, 4}, []int32{1, 0}, o.floats(2), o.floats(4), o.floats(4))
			change(&a)
			return b.SoftmaxCrossEntropy(a)
		}}
	}
	return []refusal{
		matmul("a", ErrShape, "a has 1 values, want 1 x 2", func(a *MatMul) { a.A = a.A.Slice(0, 1) }),
		matmul("b", ErrShape, "b has", func(a *MatMul) { a.B = Vector{} }),
		matmul("c", ErrShape, "c has", func(a *MatMul) { a.C = a.C.Slice(0, 1) }),
		matmul("bias", ErrShape, "bias has 1", func(a *MatMul) { a.Bias = a.Bias.Slice(0, 1) }),
		matmul("negative", ErrShape, "-1", func(a *MatMul) { a.M = -1 }),
		matmul("overflow", ErrShape, "x", func(a *MatMul) { a.M, a.K = math.MaxInt, math.MaxInt }),
		matmul("in place", ErrOverlap, "c", func(a *MatMul) { a.A = a.C }),
		softmax("target 2", ErrID, "id 2 at position 1 is not in [0,2)",
			func(a *SoftmaxCrossEntropy) { a.Targets = int32sOf(0, 2) }),
		softmax("target -1", ErrID, "id -1 at position 0", func(a *SoftmaxCrossEntropy) { a.Targets = int32sOf(-1, 2) }),
		softmax("no targets", ErrShape, "targets", func(a *SoftmaxCrossEntropy) { a.Targets = Vector{} }),
		softmax("classes", ErrShape, "0 classes", func(a *SoftmaxCrossEntropy) { a.Classes = 0 }),
		softmax("loss", ErrShape, "loss", func(a *SoftmaxCrossEntropy) { a.Loss = a.Loss.Slice(0, 1) }),
		softmax("in place", ErrOverlap, "grad", func(a *SoftmaxCrossEntropy) { a.Grad = a.Logits }),
	}
}

// TestRefusals: bad arguments get an error that says what and where, and nothing is written.
func TestRefusals(t *testing.T) {
	cases := slices.Concat(bagRefusals(), sumRefusals(), applyRefusals(), layerRefusals())
	onEach(t, func(t *testing.T, b Backend) {
		for _, c := range cases {
			var o outputs
			err := c.call(b, &o)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: error %v, want %v with %q", c.name, err, c.want, c.text)
			}
			if !o.untouched() {
				t.Errorf("%s: outputs were written: %v", c.name, o.all)
			}
		}
	})
}

// TestPaddingBeyondTheTable: a padding id need not be a row.
func TestPaddingBeyondTheTable(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		out := make([]float32, 1)
		must(t, b.BagForward(bagForward(1, Mean, 99, []float32{5}, []int64{99, 0}, []int64{0, 2}, out)))
		wantFloats(t, "out", out, []float32{5})
	})
}

func TestAlloc(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		m, err := b.Alloc(1000)
		must(t, err)
		v := m.Float32s()
		if len(v) != 1000 || uintptr(unsafe.Pointer(&v[0]))%64 != 0 || slices.Max(v) != 0 || slices.Min(v) != 0 {
			t.Errorf("%d values at %p, not 1000 zeros at a multiple of 64", len(v), &v[0])
		}
		v[999] = 1
		m.Free()
		m.Free()
		if m.Float32s() != nil {
			t.Error("a freed buffer still shows its memory")
		}
		if empty, err := b.Alloc(0); err != nil || len(empty.Float32s()) != 0 {
			t.Errorf("empty buffer: %v", err)
		}
		for _, n := range []int{-1, math.MaxInt} {
			if _, err := b.Alloc(n); !errors.Is(err, ErrArgument) {
				t.Errorf("alloc of %d: %v", n, err)
			}
		}
		if _, err := b.Alloc(math.MaxInt / 16); !errors.Is(err, ErrMemory) {
			t.Errorf("alloc of too much: %v", err)
		}
	})
}

// TestConcurrentUse: one backend, many goroutines, each with its own data.
func TestConcurrentUse(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		var wait sync.WaitGroup
		for g := range 8 {
			wait.Go(func() {
				x, c := slices.Repeat([]float32{float32(g)}, 100*60), make([]float32, 100*60)
				for range 50 {
					if err := b.Average(average(2, 2, []Term{term(0, 1, x), term(1, 1, x)}, c)); err != nil || !slices.Equal(x, c) {
						t.Errorf("average of goroutine %d: %v", g, err)
					}
					keys, rows := make([]uint64, 100), make([]float32, 100*60)
					n, err := b.Coalesce(coalesce(60, make([]uint64, 100), x, keys, rows))
					if err != nil || n != 1 || rows[59] != float32(100*g) {
						t.Errorf("coalesce of goroutine %d: %d %v %v", g, n, rows[59], err)
					}
				}
			})
		}
		wait.Wait()
	})
}

func TestOpen(t *testing.T) {
	for _, c := range []struct {
		options Options
		want    error
		text    string
	}{
		{Options{Name: "gpu"}, ErrArgument, `want one of ["auto" "go" "cpu" "cuda"]`},
		{Options{Name: "go", ISA: "avx2"}, ErrArgument, "avx2"},
		{Options{Name: "go", Threads: 257}, ErrArgument, "threads 257, want 0 to 256"},
		{Options{Name: "cpu", ISA: "sse9"}, ErrNoBackend, ""},
	} {
		if b, err := Open(c.options); b != nil || !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("open %+v: %v", c.options, err)
		}
	}
	b, err := Open(Options{})
	must(t, err)
	want := "go (portable), auto: this build has no native library"
	if nativeBuilt {
		want = "cpu (" + b.ISA() + "), auto: the native library is built in"
	}
	if got := Describe(b); !strings.HasPrefix(got, want) {
		t.Errorf("description %q, want %q", got, want)
	}
	must(t, b.Close())
	must(t, b.Close())
}
