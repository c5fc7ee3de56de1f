package cuda

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// written is an output of a call: what it wrote, all of it or, of what it replaced in place, some rows.
type written struct {
	Vector
	width int
	rows  []int64
}

// anywhere is one element of it.
func (w *written) anywhere(r *rand.Rand) int {
	if w.rows == nil {
		return r.IntN(w.n)
	}
	return int(w.rows[r.IntN(len(w.rows))])*w.width + r.IntN(w.width)
}

// bent is a backend whose results come out wrong: harm is called with a call's outputs, by name, afterwards.
type bent struct {
	Backend
	harm func(outputs map[string]written)
}

func whole(v Vector) written { return written{v, 1, nil} }

func (b *bent) dense(slots []Slot, out Vector, err error) error {
	m := map[string]written{"parameters": whole(out)}
	for _, s := range slots {
		m[s.Name] = whole(s.After)
	}
	b.harm(m)
	return err
}

func (b *bent) ApplyDense(a ApplyDense) error {
	return b.dense(a.Slots, a.Out, b.Backend.ApplyDense(a))
}

func (b *bent) AverageApply(a AverageApply) error {
	return b.dense(a.Slots, a.Out, b.Backend.AverageApply(a))
}

// rows are the outputs of n rows: in place those of the table that ids name.
func (b *bent) rows(dim, n int, slots []Slot, steps Steps, table, out Vector, ids Vector) map[string]written {
	m, rows, inPlace := map[string]written{}, table.n/dim, out.is(table)
	note := func(name string, v Vector, per int) {
		w := written{Vector: v, width: per}
		if inPlace {
			for i := range ids.n {
				w.rows = append(w.rows, indexAt(ids, i))
			}
		} else {
			w.Vector = v.Slice(0, n*per)
		}
		m[name] = w
	}
	note("parameters", out, dim)
	for _, s := range slots {
		note(s.Name, s.After, s.Before.n/rows)
	}
	if steps.LastAfter.n > 0 {
		note("last step", steps.LastAfter, 1)
	}
	return m
}

func (b *bent) ApplyRows(a ApplyRows) error {
	err := b.Backend.ApplyRows(a)
	b.harm(b.rows(a.Dim, a.Index.n, a.Slots, a.Steps, a.Table, a.Out, a.Index))
	return err
}

func (b *bent) CoalesceApply(a CoalesceApply) (int, error) {
	n, err := b.Backend.CoalesceApply(a)
	m := b.rows(a.Dim, n, a.Slots, a.Steps, a.Table, a.Out, a.Keys)
	if !a.Out.is(a.Table) {
		m["keys"] = whole(a.OutKeys.Slice(0, n))
	}
	b.harm(m)
	return n, err
}

func (b *bent) Average(a Average) error {
	err := b.Backend.Average(a)
	b.harm(map[string]written{"sum": whole(a.Out)})
	return err
}

func (b *bent) Merge(a Merge) (int, error) {
	n, err := b.Backend.Merge(a)
	b.harm(map[string]written{"keys": whole(a.OutKeys.Slice(0, n)), "sum": whole(a.OutRows.Slice(0, n*a.Dim))})
	return n, err
}

func (b *bent) Copy(to, from Vector) error {
	err := b.Backend.Copy(to, from)
	b.harm(map[string]written{"copy": whole(to)})
	return err
}

func verified(t testing.TB, b Backend, oneIn int) *Verified {
	t.Helper()
	v, err := Verify(b, newReference(), oneIn)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// verifiedCall is a call of a method of Backend, made on a backend or added to a batch of it.
type verifiedCall struct {
	method string
	c      command
}

func (c verifiedCall) on(b Backend) error {
	_, err := c.c.on(b)
	return err
}

func (c verifiedCall) inBatch(b Backend) error {
	batch := b.NewBatch()
	defer batch.Free()
	if err := batch.add(c.c); err != nil {
		return err
	}
	return b.Submit(batch)
}

// verifiedCalls are calls of all operations that are checked: with every optimizer, into other memory and in place.
func verifiedCalls(r *rand.Rand) map[string]verifiedCall {
	calls := map[string]verifiedCall{}
	for name, o := range map[string]Optimizer{
		"sgd": SGD{LR: 0.1, Momentum: 0.9, WeightDecay: 0.01}, "rowwise": RowwiseAdagrad{LR: 0.1, Eps: 1e-8},
		"adagrad": Adagrad{LR: 0.1, Eps: 1e-8}, "ftrl": FTRL{LR: 0.1, Beta: 1, L1: 0.1},
		"adam": Adam{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Step: 3},
	} {
		for _, where := range []string{"beside", "in place"} {
			stepCalls(r, calls, name, where, o)
		}
	}
	const n = 2*verifyValues + 60
	terms := []Term{{0, 1, randomOf(r, n)}, {1, 1, randomOf(r, n)}}
	calls["average/beside"] = verifiedCall{"Average", &Average{Lanes: 2, Weight: 3, Terms: terms, Out: zeros(n)}}
	calls["average/in place"] = verifiedCall{"Average", &Average{Lanes: 2, Weight: 3, Terms: terms, Out: terms[0].Values}}
	calls["copy"] = verifiedCall{"Copy", &copying{zeros(n), terms[0].Values}}
	const dim, rows = 40, 350
	some, others := keysOf(r, 1000, rows), keysOf(r, 1000, rows/2)
	calls["merge"] = verifiedCall{"Merge", &Merge{Dim: dim, Lanes: 2, Weight: 2, OutKeys: Uint64s(make([]uint64, rows*2)),
		OutRows: zeros(rows * 2 * dim),
		Terms: []RowsTerm{{0, 1, Uint64s(some), randomOf(r, len(some)*dim)},
			{1, 1, Uint64s(others), randomOf(r, len(others)*dim)}}}}
	return calls
}

func randomOf(r *rand.Rand, n int) Vector {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return Float32s(x)
}

func zeros(n int) Vector { return Float32s(make([]float32, n)) }

// keysOf are n ascending keys below a limit, of which all are there but the first.
func keysOf(r *rand.Rand, limit, n int) []uint64 {
	keys := []uint64{}
	for _, k := range r.Perm(limit - 1)[:n] {
		keys = append(keys, uint64(k)+1)
	}
	slices.Sort(keys)
	return keys
}

// slotsOf are slots of rows of dim, at least 0, to be written in place or beside them.
func slotsOf(r *rand.Rand, o Optimizer, name string, beside bool, rows, dim, after int) (s []Slot) {
	for _, what := range o.SlotNames() {
		if name == "rowwise" {
			dim = 1
		}
		before := randomOf(r, rows*dim)
		for i, x := range view[float32](before) {
			view[float32](before)[i] = float32(math.Abs(float64(x)))
		}
		one := Slot{what, before, before}
		if beside {
			one.After = zeros(after * dim)
		}
		s = append(s, one)
	}
	return s
}

// stepCalls are those with an optimizer.
func stepCalls(r *rand.Rand, calls map[string]verifiedCall, name, where string, o Optimizer) {
	const n, dim, rows = 2*verifyValues + 60, 4, 300
	beside := where == "beside"
	slot := func(rows, dim, after int) []Slot { return slotsOf(r, o, name, beside, rows, dim, after) }
	other := func(v Vector, n int) Vector {
		if beside {
			return zeros(n)
		}
		return v
	}
	param := randomOf(r, n)
	calls[fmt.Sprintf("apply dense/%s/%s", name, where)] = verifiedCall{"ApplyDense",
		&ApplyDense{Dim: dim, Optimizer: o, Weight: 3, Param: param,
			Grad: randomOf(r, n), Out: other(param, n), Slots: slot(n/dim, dim, n/dim)}}
	one := randomOf(r, n)
	calls[fmt.Sprintf("apply dense, one row/%s/%s", name, where)] = verifiedCall{"ApplyDense",
		&ApplyDense{Optimizer: o, Weight: 3, Param: one,
			Grad: randomOf(r, n), Out: other(one, n), Slots: slot(1, n, 1)}}
	averaged := randomOf(r, n)
	calls[fmt.Sprintf("average apply/%s/%s", name, where)] = verifiedCall{"AverageApply",
		&AverageApply{Dim: dim, Optimizer: o, Weight: 3, Lanes: 2,
			Param: averaged, Out: other(averaged, n), Slots: slot(n/dim, dim, n/dim),
			Terms: []Term{{0, 1, randomOf(r, n)}, {1, 1, randomOf(r, n)}}}}

	index := []int64{}
	for i := range int64(rows) {
		if i%3 > 0 {
			index = append(index, i)
		}
	}
	table, last := randomOf(r, rows*dim), Int64s(make([]int64, rows))
	steps := func(n int) Steps {
		if beside {
			return Steps{Step: 5, Last: last, LastAfter: Int64s(make([]int64, n))}
		}
		return Steps{Step: 5, Last: last, LastAfter: last}
	}
	calls[fmt.Sprintf("apply rows/%s/%s", name, where)] = verifiedCall{"ApplyRows",
		&ApplyRows{Dim: dim, Optimizer: o, Clip: Clip{ClipRow, 0.5}, Weight: 2, Table: table,
			Index: Int64s(index), Grad: randomOf(r, len(index)*dim), Out: other(table, len(index)*dim),
			Slots: slot(rows, dim, len(index)), Steps: steps(len(index))}}

	keys := make([]int64, 700) // some often, and some never
	for i := range keys {
		keys[i] = int64(r.IntN(rows) * r.IntN(rows) / rows)
	}
	copy(keys[300:], slices.Repeat([]int64{17}, 200)) // a sum over more than one block of 64
	summed, out := randomOf(r, rows*dim), Vector{}
	if beside {
		out = Int64s(make([]int64, len(keys)))
	}
	last = Int64s(make([]int64, rows))
	calls[fmt.Sprintf("coalesce apply/%s/%s", name, where)] = verifiedCall{"CoalesceApply",
		&CoalesceApply{Dim: dim, Optimizer: o, Clip: Clip{ClipRow, 0.5}, Weight: 2, Table: summed,
			Keys: Int64s(keys), Rows: randomOf(r, len(keys)*dim), OutKeys: out, Out: other(summed, len(keys)*dim),
			Slots: slot(rows, dim, len(keys)), Steps: steps(len(keys))}}
}

// What every backend makes of every call is what the oracle makes of it, alone and in a batch.
func TestVerifiedAgrees(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		v := verified(t, b, 1)
		for name, c := range verifiedCalls(rand.New(rand.NewPCG(1, 2))) {
			before, _ := v.Checked()
			if err := errors.Join(c.on(v), c.inBatch(v)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if blocks, wrong := v.Checked(); blocks < before+2 || wrong != 0 {
				t.Errorf("%s: %d blocks checked, %d mismatches, want some and none", name, blocks-before, wrong)
			}
		}
	})
}

// A flipped bit anywhere is found at once where every block is checked, alone and in a batch, and is said where it is.
func TestVerifiedFinds(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for name, c := range verifiedCalls(r) {
		for i, run := range []func(Backend) error{c.on, c.inBatch} {
			broken := &bent{Backend: newReference()}
			v := verified(t, broken, 1)
			outputs := []string{}
			broken.harm = func(m map[string]written) {
				for what := range m {
					outputs = append(outputs, what)
				}
			}
			must(t, run(v))
			for _, what := range outputs {
				at, value, right := 0, []byte(nil), []byte(nil)
				broken.harm = func(m map[string]written) {
					w := m[what]
					at = w.anywhere(r)
					value = rawBytes(w.Slice(at, at+1))
					right = slices.Clone(value)
					value[r.IntN(len(value))] ^= 1 << r.IntN(8)
				}
				err := run(v)
				there := value
				value = slices.Clone(value)
				// in place the next call goes on from it: with wrong state to where all is NaN, and any NaN is as good as another
				copy(there, right)
				var wrong *MismatchError
				if !errors.As(err, &wrong) || !errors.Is(err, ErrVerify) {
					t.Fatalf("%s (%d): flipped a bit of %s at %d, found %v", name, i, what, at, err)
				}
				if what == "keys" { // of what is missing, or of what stands in its place
					continue
				}
				if wrong.What != what || slices.Equal(wrong.got, wrong.want) || !slices.Equal(wrong.got, value) ||
					wrong.Position != at {
					t.Fatalf("%s (%d): flipped a bit of %s at %d, found %v", name, i, what, at, err)
				}
				if wrong.Key >= 0 && strings.Contains(name, "in place") && int(wrong.Key) != at/wrong.Width {
					t.Fatalf("%s (%d): flipped a bit of %s at row %d, found %v", name, i, what, at/wrong.Width, err)
				}
			}
			if _, wrong := v.Checked(); wrong != uint64(len(outputs)) {
				t.Errorf("%s: %d mismatches counted, want %d", name, wrong, len(outputs))
			}
		}
	}
}

// A row that never comes out is found, and one that has no business there.
func TestVerifiedMissesNoRow(t *testing.T) {
	lost := func(n int) *Verified { return verified(t, &losing{newReference(), n}, 1) }
	merge := Merge{Dim: 1, Lanes: 1, OutKeys: Uint64s(make([]uint64, 3)), OutRows: zeros(3),
		Terms: []RowsTerm{{0, 1, Uint64s([]uint64{4, 7, 9}), Float32s([]float32{1, 2, 3})}}}
	for i, v := range []*Verified{lost(1), lost(2), lost(3)} {
		_, err := v.Merge(merge)
		if want := fmt.Sprintf("merge: keys at position %d in block 0: go gives none and go gives %d", 2-i,
			[]int{9, 7, 4}[i]); !errors.Is(err, ErrVerify) || !strings.Contains(err.Error(), want) {
			t.Errorf("lost %d rows: %v, want %q", i+1, err, want)
		}
	}
	a := CoalesceApply{Dim: 1, Optimizer: SGD{LR: 1}, Weight: 1, Table: zeros(9), Keys: Int64s([]int64{8, 2, 2}),
		Rows:    Float32s([]float32{1, 2, 3}),
		OutKeys: Int64s(make([]int64, 3)), Out: zeros(3)}
	if _, err := lost(1).CoalesceApply(a); !errors.Is(err, ErrVerify) || !strings.Contains(err.Error(), "gives none") {
		t.Errorf("lost a row: %v", err)
	}
	// each row is a block
	wide := Merge{Dim: verifyValues, Lanes: 1, OutKeys: Uint64s(make([]uint64, 3)), OutRows: zeros(3 * verifyValues),
		Terms: []RowsTerm{{0, 1, Uint64s([]uint64{4, 7, 9}), zeros(3 * verifyValues)}}}
	for at, want := range []string{"keys at position 0 in block 0: go gives 7 and go gives 4",
		"keys at position 1 in block 0: go gives none and go gives 7",
		"keys at position 2 in block 1: go gives none and go gives 9"} {
		if _, err := verified(t, &losing{newReference(), at - 3}, 1).Merge(wide); !errors.Is(err, ErrVerify) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("lost row %d: %v, want %q", at, err, want)
		}
	}
	for _, n := range []int{-9, 9} {
		_, merged := lost(n).Merge(merge)
		_, applied := lost(n).CoalesceApply(a)
		if !errors.Is(merged, ErrVerify) || !errors.Is(applied, ErrVerify) {
			t.Errorf("%d rows less than there are: %v, %v", n, merged, applied)
		}
	}
}

// losing says that n fewer rows came out than did, or for n from -3 to -1 loses row n+3 of three.
type losing struct {
	Backend
	n int
}

func (b *losing) Merge(a Merge) (int, error) {
	n, err := b.Backend.Merge(a)
	if lost := b.n + 3; lost >= 0 && lost < 3 {
		keys := view[uint64](a.OutKeys)
		copy(keys[lost:], keys[lost+1:]) // the rows are equal
		return n - 1, err
	}
	return n - b.n, err
}

func (b *losing) CoalesceApply(a CoalesceApply) (int, error) {
	n, err := b.Backend.CoalesceApply(a)
	return n - b.n, err
}

// Random calls, right and wrong: what a backend refuses it refuses when it is
// verified, and a NaN is no mismatch.
func TestVerifiedRefusesAlike(t *testing.T) {
	plain := newReference()
	v := verified(t, newReference(), 1)
	for seed := range uint64(4000) {
		want, _, wantWritten := wildCall(t, plain, seed)
		got, _, written := wildCall(t, v, seed)
		if got != want {
			t.Fatalf("seed %d: %q, not verified %q", seed, got, want)
		}
		for i := range written {
			sameVector(t, fmt.Sprintf("seed %d (%s): output %d", seed, want, i), written[i], wantWritten[i])
		}
	}
	if _, wrong := v.Checked(); wrong != 0 {
		t.Errorf("%d mismatches, want none", wrong)
	}
}

// A checked call allocates nothing once it is warm.
func TestVerifiedAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector")
	}
	v := verified(t, newReference(), 1)
	for name, c := range verifiedCalls(rand.New(rand.NewPCG(5, 6))) {
		batch := v.NewBatch()
		must(t, batch.add(c.c))
		if n := testing.AllocsPerRun(20, func() {
			if err := errors.Join(c.on(v), v.Submit(batch)); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations a call", name, n)
		}
		batch.Free()
	}
	if !strings.Contains(Describe(v), "one optimizer block in 1 checked by go (portable)") {
		t.Errorf("described as %q", Describe(v))
	}
}
