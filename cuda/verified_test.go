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

// bent is a backend whose optimizer steps come out wrong: harm is called with a call's outputs, by name, afterwards.
type bent struct {
	Backend
	harm func(outputs map[string]Vector)
}

func named(slots []Slot, out Vector) map[string]Vector {
	m := map[string]Vector{"parameters": out}
	for _, s := range slots {
		m[s.Name] = s.After
	}
	return m
}

func (b *bent) ApplyDense(a ApplyDense) error {
	defer func() { b.harm(named(a.Slots, a.Out)) }()
	return b.Backend.ApplyDense(a)
}

func (b *bent) AverageApply(a AverageApply) error {
	defer func() { b.harm(named(a.Slots, a.Out)) }()
	return b.Backend.AverageApply(a)
}

func (b *bent) ApplyRows(a ApplyRows) error {
	m := named(a.Slots, a.Out)
	if a.Steps.LastAfter.Len() > 0 {
		m["last step"] = a.Steps.LastAfter
	}
	defer func() { b.harm(m) }()
	return b.Backend.ApplyRows(a)
}

func verified(t *testing.T, b Backend, oneIn int) *Verified {
	t.Helper()
	v, err := Verify(b, newReference(), oneIn)
	must(t, err)
	return v
}

// steps are calls of all three operations: as they are, in place, with every optimizer. run says what came out.
func verifiedCalls(r *rand.Rand) map[string]func(Backend) error {
	const n, dim, rows = 3*verifyValues + 7*4, 4, 300
	random := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64())
		}
		return x
	}
	calls := map[string]func(Backend) error{}
	for name, o := range map[string]Optimizer{
		"sgd": SGD{LR: 0.1, Momentum: 0.9, WeightDecay: 0.01}, "adagrad": RowwiseAdagrad{LR: 0.1, Eps: 1e-8},
		"adam": Adam{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Step: 3},
	} {
		slot := func(rows, dim int, after bool) []Slot {
			var s []Slot
			for _, what := range o.SlotNames() {
				per := dim
				if name == "adagrad" {
					per = 1
				}
				before := random(rows * per)
				for i := range before {
					before[i] = float32(math.Abs(float64(before[i])))
				}
				one := Slot{what, Float32s(before), Float32s(before)}
				if after {
					one.After = Float32s(make([]float32, rows*per))
				}
				s = append(s, one)
			}
			return s
		}
		index := make([]int64, 0, rows)
		for i := range rows {
			if i%3 > 0 {
				index = append(index, int64(i))
			}
		}
		for _, inPlace := range []bool{false, true} {
			param, grad, other := Float32s(random(n)), Float32s(random(n)), Float32s(random(n))
			out := param
			if !inPlace {
				out = Float32s(make([]float32, n))
			}
			dense := ApplyDense{Dim: dim, Optimizer: o, Weight: 3, Param: param, Grad: grad, Out: out, Slots: slot(n/dim, dim, !inPlace)}
			calls[fmt.Sprintf("apply dense/%s/in place %t", name, inPlace)] = func(b Backend) error { return b.ApplyDense(dense) }
			average := AverageApply{Dim: dim, Optimizer: o, Weight: 3, Lanes: 2, Param: param, Out: out, Slots: slot(n/dim, dim, !inPlace),
				Terms: []Term{{0, 1, grad}, {1, 1, other}}}
			calls[fmt.Sprintf("average apply/%s/in place %t", name, inPlace)] = func(b Backend) error { return b.AverageApply(average) }

			some := Float32s(random(len(index) * dim))
			table := Float32s(random(rows * dim))
			apply := ApplyRows{Dim: dim, Optimizer: o, Weight: 2, Table: table, Index: Int64s(index), Grad: some, Out: table,
				Slots: slot(rows, dim, false), Steps: Steps{Step: 5}}
			last := make([]int64, rows)
			apply.Steps.Last, apply.Steps.LastAfter = Int64s(last), Int64s(last)
			if !inPlace {
				apply.Out, apply.Steps.LastAfter = Float32s(make([]float32, len(index)*dim)), Int64s(make([]int64, len(index)))
				for i, s := range apply.Slots {
					apply.Slots[i].After = Float32s(make([]float32, s.Before.Len()/rows*len(index)))
				}
			}
			calls[fmt.Sprintf("apply rows/%s/in place %t", name, inPlace)] = func(b Backend) error { return b.ApplyRows(apply) }
		}
	}
	return calls
}

// What every backend makes of every call is what the oracle makes of it.
func TestVerifiedAgrees(t *testing.T) {
	onEach(t, func(t *testing.T, b Backend) {
		v := verified(t, b, 1)
		calls := verifiedCalls(rand.New(rand.NewPCG(1, 2)))
		for name, run := range calls {
			for range 3 {
				if err := run(v); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
		if blocks, wrong := v.Checked(); blocks != uint64(3*len(calls)) || wrong != 0 {
			t.Errorf("%d blocks checked, %d mismatches, want %d and none", blocks, wrong, 3*len(calls))
		}
	})
}

// A flipped bit anywhere is found, wherever it lies, once its block is checked.
func TestVerifiedFinds(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for name, run := range verifiedCalls(r) {
		found := map[string]bool{}
		broken := &bent{Backend: newReference()}
		v := verified(t, broken, 1)
		outputs := []string{}
		broken.harm = func(m map[string]Vector) {
			for what := range m {
				outputs = append(outputs, what)
			}
		}
		must(t, run(v))
		for _, what := range outputs {
			for range 200 { // the block with the flipped value is not checked each time
				at := 0
				broken.harm = func(m map[string]Vector) {
					at = r.IntN(m[what].Len())
					if strings.Contains(name, "in place true") && strings.HasPrefix(name, "apply rows") {
						at -= at % (m[what].Len() / 300)
						at = at / (m[what].Len() / 300) / 3 * 3 // a row of the table that the call names
						at = (at + 1) * (m[what].Len() / 300)
					}
					raw := rawBytes(m[what].Slice(at, at+1))
					raw[0] ^= 1
				}
				err := run(v)
				var wrong *MismatchError
				if !errors.As(err, &wrong) {
					must(t, err)
					continue
				}
				if !errors.Is(err, ErrVerify) || wrong.What != what || slices.Equal(wrong.Got, wrong.Want) || wrong.Got[0]^1 != wrong.Want[0] {
					t.Fatalf("%s: flipped a bit of %s at %d, found %v", name, what, at, err)
				}
				if !strings.Contains(name, "in place true") && wrong.Position != at {
					t.Fatalf("%s: flipped a bit of %s at %d, found %v", name, what, at, err)
				}
				found[what] = true
				break
			}
		}
		for _, what := range outputs {
			if !found[what] {
				t.Errorf("%s: a flipped bit of %s was not found in 200 calls", name, what)
			}
		}
		if _, wrong := v.Checked(); wrong != uint64(len(found)) {
			t.Errorf("%s: %d mismatches counted, want %d", name, wrong, len(found))
		}
	}
}

// One block in 100 is checked, and in the long run each block of a call.
func TestVerifiedPicks(t *testing.T) {
	v := verified(t, newReference(), 100)
	seen, picked := map[int]bool{}, 0
	for range 10000 {
		if i, ok := v.pick(10); ok {
			seen[i] = true
			picked++
		}
	}
	if picked != 1000 || len(seen) != 10 {
		t.Errorf("of 100000 blocks in calls of 10, one in 100: %d picked at %d of 10 places", picked, len(seen))
	}
	if _, ok := v.pick(0); ok {
		t.Error("a call of no blocks has one picked")
	}
	if _, err := Verify(newReference(), newReference(), 0); !errors.Is(err, ErrArgument) {
		t.Errorf("one in 0: %v", err)
	}
}

// What a backend refuses it refuses still, and a NaN is a NaN.
func TestVerifiedRefusesAlike(t *testing.T) {
	plain := newReference()
	v := verified(t, plain, 1)
	nans := Float32s([]float32{nan, 1, inf, -inf})
	zero := func() Vector { return Float32s(make([]float32, 4)) }
	for i, a := range []ApplyDense{
		{Optimizer: SGD{LR: 1}, Weight: 1, Param: zero(), Grad: Float32s(make([]float32, 3)), Out: zero()},
		{Optimizer: SGD{LR: 1}, Weight: 0, Param: zero(), Grad: zero(), Out: zero()},
		{Optimizer: SGD{LR: 1, Momentum: 0.5}, Weight: 1, Param: zero(), Grad: zero(), Out: zero()},
		{Optimizer: SGD{LR: 1}, Weight: 1, Param: zero(), Grad: nans, Out: zero(), NonFinite: Refuse},
		{Optimizer: SGD{LR: 1}, Weight: 1, Param: zero(), Grad: nans, Out: zero()},
		{Dim: -1, Optimizer: SGD{LR: 1}, Weight: 1, Param: zero(), Grad: zero(), Out: zero()},
		{Optimizer: SGD{LR: 1}, Weight: 1},
	} {
		want, got := plain.ApplyDense(a), v.ApplyDense(a)
		if fmt.Sprint(want) != fmt.Sprint(got) {
			t.Errorf("call %d: %v, and verified %v", i, want, got)
		}
	}
	table := Float32s([]float32{1, 2, 3, 4})
	for i, a := range []ApplyRows{
		{Dim: 2, Optimizer: SGD{LR: 1}, Weight: 1, Table: table, Index: Int64s([]int64{5}), Grad: zero().Slice(0, 2), Out: zero().Slice(0, 2)},
		{Dim: 2, Optimizer: SGD{LR: 1}, Weight: 1, Table: table, Index: Int64s([]int64{5, 1}), Grad: zero(), Out: zero(), SkipBadIDs: true},
		{Dim: 2, Optimizer: SGD{LR: 1}, Weight: 1, Table: table, Index: Int64s([]int64{0, 1}), Grad: zero().Slice(0, 3), Out: zero()},
		{Dim: 2, Optimizer: SGD{LR: 1}, Weight: 1, Table: table},
	} {
		want, got := plain.ApplyRows(a), v.ApplyRows(a)
		if fmt.Sprint(want) != fmt.Sprint(got) {
			t.Errorf("rows, call %d: %v, and verified %v", i, want, got)
		}
	}
}

// A checked call allocates nothing once it is warm.
func TestVerifiedAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("under the race detector")
	}
	v := verified(t, newReference(), 1)
	for name, run := range verifiedCalls(rand.New(rand.NewPCG(5, 6))) {
		if n := testing.AllocsPerRun(50, func() {
			if err := run(v); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations a call", name, n)
		}
	}
	if !strings.Contains(Describe(v), "one optimizer block in 1 checked by go (portable)") {
		t.Errorf("described as %q", Describe(v))
	}
}
