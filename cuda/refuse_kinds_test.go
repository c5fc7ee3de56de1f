package cuda

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
)

// Refusals of the arguments that types, weights, optimizers, slots and steps brought.

func poolRefusals() []refusal {
	forward := func(name string, want error, text string, change func(a *BagForward)) refusal {
		return refusal{"bag forward " + name, want, text, func(b Backend, o *outputs) error {
			a := bagForward(2, Sum, NoPadding, []float32{1, 2, 3, 4}, []int64{0, 1, 0}, []int64{0, 1, 3}, o.floats(4))
			change(&a)
			return b.BagForward(a)
		}}
	}
	backward := func(name string, want error, text string, change func(a *BagBackward)) refusal {
		return refusal{"bag backward " + name, want, text, func(b Backend, o *outputs) error {
			a := bagBackward(2, Sum, NoPadding, 2, []int64{0, 1, 0}, []int64{0, 1, 3}, []float32{1, 2, 3, 4}, make([]int64, 3),
				o.floats(6))
			change(&a)
			_, err := b.BagBackward(a)
			return err
		}}
	}
	halves := Float16s(make([]uint16, 4))
	return []refusal{
		forward("type of rows", ErrUnsupported, "rows of int32", func(a *BagForward) { a.Rows = int32sOf(1, 2, 3, 4) }),
		forward("type of ids", ErrUnsupported, "ids of uint64", func(a *BagForward) { a.IDs = uint64sOf(0, 1, 0) }),
		forward("type of offsets", ErrUnsupported, "offsets of float32",
			func(a *BagForward) { a.Offsets = floatsOf(0, 1, 3) }),
		forward("type of out", ErrUnsupported, "out of float16", func(a *BagForward) { a.Out = halves }),
		forward("number of weights", ErrShape, "2 weights, want 3", func(a *BagForward) { a.Weights = floatsOf(1, 2) }),
		forward("type of weights", ErrUnsupported, "weights of float16",
			func(a *BagForward) { a.Weights = halves.Slice(0, 3) }),
		forward("weights of a mean", ErrArgument, "weights with mode 1",
			func(a *BagForward) { a.Mode, a.Weights = Mean, floatsOf(1, 2, 3) }),
		forward("weights of a maximum", ErrArgument, "weights with mode 2",
			func(a *BagForward) { a.Mode, a.Weights = Max, floatsOf(1, 2, 3) }),
		forward("argmax of a sum", ErrArgument, "argmax with mode 0",
			func(a *BagForward) { a.ArgMax = int32sOf(1, 2, 3, 4) }),
		forward("size of argmax", ErrShape, "argmax has 3",
			func(a *BagForward) { a.Mode, a.ArgMax = Max, int32sOf(1, 2, 3) }),
		forward("type of argmax", ErrUnsupported, "argmax of int64",
			func(a *BagForward) { a.Mode, a.ArgMax = Max, int64sOf(1, 2, 3, 4) }),
		forward("open offsets beyond the ids", ErrShape, "offsets end at 4",
			func(a *BagForward) { a.OpenOffsets, a.Offsets = true, int64sOf(0, 4) }),
		forward("open offsets from 1", ErrShape, "offsets start at 1",
			func(a *BagForward) { a.OpenOffsets, a.Offsets = true, int64sOf(1, 2) }),
		forward("ids without a bag", ErrShape, "no offsets",
			func(a *BagForward) { a.OpenOffsets, a.Offsets, a.Out = true, Vector{}, Vector{} }),
		forward("offsets of int32", ErrShape, "offsets fall from 4 to 3 at 2",
			func(a *BagForward) { a.Offsets = int32sOf(0, 4, 3) }),
		forward("id of int32", ErrID, "id -2147483648 at position 1",
			func(a *BagForward) { a.IDs = int32sOf(0, math.MinInt32, 1) }),
		forward("offsets before ids", ErrShape, "offsets",
			func(a *BagForward) { a.IDs, a.Offsets = int64sOf(0, 9, 0), int64sOf(0, 2, 1) }),
		forward("out over ids", ErrOverlap, "out", func(a *BagForward) {
			ids := make([]int64, 3)
			a.IDs, a.Out = Int64s(ids), Vector{Int64s(ids).data, 4, Float32}
		}),
		forward("argmax over weights", ErrOverlap, "out", func(a *BagForward) {
			a.Mode, a.ArgMax = Max, Vector{a.Out.data, 4, Int32}
		}),
		backward("argmax", ErrShape, "argmax has 0", func(a *BagBackward) { a.Mode = Max }),
		backward("type of keys", ErrUnsupported, "keys of int32", func(a *BagBackward) { a.Keys = Int32s(make([]int32, 3)) }),
		backward("type of gradient", ErrUnsupported, "grad out of int64",
			func(a *BagBackward) { a.GradOut = int64sOf(1, 2, 3, 4) }),
		backward("type of out", ErrUnsupported, "out of bfloat16",
			func(a *BagBackward) { a.Out = BFloat16s(make([]uint16, 6)) }),
		backward("keys over ids", ErrOverlap, "keys", func(a *BagBackward) { a.Keys = a.IDs }),
		backward("id", ErrID, "id 2 at position 1", func(a *BagBackward) { a.IDs = int32sOf(0, 2, 0) }),
	}
}

func sumKindRefusals() []refusal {
	add := func(name string, want error, text string, change func(a *Coalesce)) refusal {
		return refusal{"coalesce " + name, want, text, func(b Backend, o *outputs) error {
			a := coalesce(1, []uint64{5, 3, 5}, []float32{1, 2, 3}, make([]uint64, 3), o.floats(3))
			change(&a)
			_, err := b.Coalesce(a)
			return err
		}}
	}
	join := func(name string, want error, text string, change func(a *Merge)) refusal {
		return refusal{"merge " + name, want, text, func(b Backend, o *outputs) error {
			a := merge(1, 3, []RowsTerm{rowsTerm(0, 1, []uint64{1, 2}, []float32{1, 2}),
				rowsTerm(2, 1, []uint64{2, 3}, []float32{1, 2})}, make([]uint64, 4), o.floats(4))
			change(&a)
			_, err := b.Merge(a)
			return err
		}}
	}
	copies := func(name string, want error, text string, to, from Vector) refusal {
		return refusal{"copy " + name, want, text, func(b Backend, o *outputs) error { return b.Copy(to, from) }}
	}
	some := floatsOf(1, 2, 3, 4)
	return []refusal{
		add("weight", ErrArgument, "weight -1", func(a *Coalesce) { a.Weight = -1 }),
		add("infinite weight", ErrArgument, "weight +Inf", func(a *Coalesce) { a.Weight = inf }),
		add("type of keys", ErrUnsupported, "keys of uint8", func(a *Coalesce) { a.Keys = uint8sOf(1, 2, 3) }),
		add("type of out keys", ErrUnsupported, "out keys of uint64, want int64",
			func(a *Coalesce) { a.Keys = int64sOf(1, 2, 3) }),
		add("type of out rows", ErrUnsupported, "out rows of float16",
			func(a *Coalesce) { a.OutRows = Float16s(make([]uint16, 3)) }),
		add("negative key", ErrID, "id -3 at position 1",
			func(a *Coalesce) { a.Keys, a.OutKeys = int64sOf(5, -3, 5), Int64s(make([]int64, 3)) }),
		add("negative key of int32", ErrID, "id -3 at position 1",
			func(a *Coalesce) { a.Keys, a.OutKeys = int32sOf(5, -3, 5), Int32s(make([]int32, 3)) }),
		join("weight", ErrArgument, "weight NaN", func(a *Merge) { a.Weight = nan }),
		join("types of terms", ErrUnsupported, "term 1",
			func(a *Merge) { a.Terms[1].Rows = packed(Float16, []float32{1, 2}) }),
		join("type of keys", ErrUnsupported, "keys of int64", func(a *Merge) { a.Terms[0].Keys = int64sOf(1, 2) }),
		join("type of out", ErrUnsupported, "out rows of bfloat16",
			func(a *Merge) { a.OutRows = BFloat16s(make([]uint16, 4)) }),
		{"average types of terms", ErrUnsupported, "a term", func(b Backend, o *outputs) error {
			return b.Average(average(2, 1, []Term{term(0, 1, []float32{1}), {1, 1, packed(Float16, []float32{1})}}, o.floats(1)))
		}},
		{"average type of out", ErrUnsupported, "out of float16", func(b Backend, o *outputs) error {
			return b.Average(Average{1, 1, []Term{{0, 1, packed(BFloat16, []float32{1})}}, Float16s(make([]uint16, 1))})
		}},
		copies("length", ErrShape, "from 4 of float32 to 3 of float32", some.Slice(0, 3), floatsOf(1, 2, 3, 4)),
		copies("type", ErrShape, "from 4 of float32 to 4 of int32", int32sOf(1, 2, 3, 4), some),
		copies("unknown type", ErrUnsupported, "dtype 7", Vector{some.data, 1, 7}, Vector{floatsOf(1).data, 1, 7}),
		copies("over itself", ErrOverlap, "to", some.Slice(0, 3), some.Slice(1, 4)),
	}
}

func rowsRefused(name string, want error, text string, change func(a *ApplyRows)) refusal {
	return refusal{"apply rows " + name, want, text, func(b Backend, o *outputs) error {
		a := applyRows(1, SGD{LR: 1, Momentum: 0.5}, 1, []float32{1, 2, 3}, []int64{1, 2}, nil, []float32{5, 6}, o.floats(2),
			slot("momentum", []float32{0, 0, 0}, o.floats(2)))
		change(&a)
		return b.ApplyRows(a)
	}}
}

func stepped(a *ApplyRows) { a.Steps = Steps{int64sOf(0, 1, 2), int64sOf(0, 0), 3, false} }

func rowsRefusals() []refusal {
	rows := rowsRefused
	return append(rowsRefusalsOfSteps(), []refusal{
		rows("no optimizer", ErrArgument, "no optimizer", func(a *ApplyRows) { a.Optimizer = nil }),
		rows("nil optimizer", ErrArgument, "no optimizer", func(a *ApplyRows) { a.Optimizer = (*SGD)(nil) }),
		rows("step of adam", ErrArgument, "step 0 of adam", func(a *ApplyRows) { a.Optimizer = Adam{} }),
		rows("beta", ErrArgument, "beta 1 is not in [0,1)", func(a *ApplyRows) { a.Optimizer = Adam{Beta2: 1, Step: 1} }),
		rows("beta of NaN", ErrArgument, "beta NaN", func(a *ApplyRows) { a.Optimizer = Adam{Beta1: nan, Step: 1} }),
		rows("beta of adamw", ErrArgument, "beta 2", func(a *ApplyRows) { a.Optimizer = AdamW{Beta1: 2, Step: 1} }),
		rows("step of adamw", ErrArgument, "step 0 of adam", func(a *ApplyRows) { a.Optimizer = &AdamW{} }),
		rows("l1", ErrArgument, "finite", func(a *ApplyRows) { a.Optimizer = FTRL{LR: 1, L1: inf} }),
		rows("slots of ftrl", ErrShape, "no slot z", func(a *ApplyRows) { a.Optimizer = FTRL{} }),
		rows("clip of no kind", ErrArgument, "clip of kind 4", func(a *ApplyRows) { a.Clip = Clip{4, 1} }),
		rows("clip by 0", ErrArgument, "by 0, want a finite number above 0", func(a *ApplyRows) { a.Clip.Kind = ClipRow }),
		rows("clip by NaN", ErrArgument, "by NaN", func(a *ApplyRows) { a.Clip = Clip{ClipScale, nan} }),
		rows("no clip by 1", ErrArgument, "kind 0 by 1", func(a *ApplyRows) { a.Clip.By = 1 }),
		rows("epsilon", ErrArgument, "finite", func(a *ApplyRows) { a.Optimizer = RowwiseAdagrad{Eps: inf} }),
		rows("policy", ErrArgument, "policy 3", func(a *ApplyRows) { a.NonFinite = 3 }),
		rows("name of slot", ErrShape, "no slot sum", func(a *ApplyRows) { a.Optimizer = RowwiseAdagrad{} }),
		rows("one slot too many", ErrShape, "2 slots, want 1", func(a *ApplyRows) { a.Slots = append(a.Slots, a.Slots[0]) }),
		rows("type of sum", ErrUnsupported, "sum of float16", func(a *ApplyRows) {
			a.Optimizer = RowwiseAdagrad{}
			a.Slots = []Slot{{"sum", Float16s(make([]uint16, 3)), Float16s(make([]uint16, 2))}}
		}),
		rows("type of after", ErrUnsupported, "momentum of float16, want float32",
			func(a *ApplyRows) { a.Slots[0].After = Float16s(make([]uint16, 2)) }),
		rows("type of out", ErrUnsupported, "out of float16, want float32",
			func(a *ApplyRows) { a.Out = Float16s(make([]uint16, 2)) }),
		rows("type of index", ErrUnsupported, "index of uint64", func(a *ApplyRows) { a.Index = uint64sOf(1, 2) }),
		rows("slot", ErrShape, "momentum has 2 values, want 3 rows of 1",
			func(a *ApplyRows) { a.Slots[0].Before = floatsOf(1, 2) }),
		rows("slot after", ErrShape, "momentum after has 1",
			func(a *ApplyRows) { a.Slots[0].After = a.Slots[0].After.Slice(0, 1) }),
		rows("first beside last", ErrArgument, "both first and last",
			func(a *ApplyRows) { stepped(a); a.First = uint8sOf(0, 1) }),
	}...)
}

func rowsRefusalsOfSteps() []refusal {
	rows := rowsRefused
	here := func(a *ApplyRows) { // in place
		a.Out, a.Slots[0].After = a.Table, a.Slots[0].Before
	}
	return []refusal{
		rows("last", ErrShape, "last has 2", func(a *ApplyRows) { stepped(a); a.Steps.Last = int64sOf(1, 2) }),
		rows("last after", ErrShape, "last after has 1", func(a *ApplyRows) { stepped(a); a.Steps.LastAfter = int64sOf(1) }),
		rows("last after alone", ErrShape, "last after without last",
			func(a *ApplyRows) { stepped(a); a.Steps.Last = Vector{} }),
		rows("type of last", ErrUnsupported, "last of int32",
			func(a *ApplyRows) { stepped(a); a.Steps.Last = int32sOf(0, 1, 2) }),
		rows("step 0", ErrArgument, "step 0, want 1", func(a *ApplyRows) { stepped(a); a.Steps.Step = 0 }),
		rows("exact without last", ErrArgument, "exact without last", func(a *ApplyRows) { a.Steps.Exact = true }),
		rows("exact adam", ErrArgument, "adam has no exact mode",
			func(a *ApplyRows) { a.Optimizer, a.Steps.Exact = Adam{Step: 1}, true; a.Slots = adamSlots(3, 2) }),
		rows("exact ftrl", ErrArgument, "ftrl has no exact mode", func(a *ApplyRows) {
			a.Optimizer, a.Steps.Exact, a.Slots = FTRL{}, true, []Slot{{"z", zeros(3), zeros(2)}, {"n", zeros(3), zeros(2)}}
		}),
		rows("in place out of order", ErrOrder, "position 1", func(a *ApplyRows) { here(a); a.Index = int64sOf(2, 1) }),
		rows("in place twice", ErrOrder, "position 1", func(a *ApplyRows) { here(a); a.Index = int32sOf(1, 1) }),
		rows("in place twice beside skipped", ErrOrder, "position 2", func(a *ApplyRows) {
			here(a)
			a.SkipBadIDs, a.Index, a.Grad = true, int64sOf(1, 9, 1), floatsOf(1, 2, 3)
		}),
		rows("index before order", ErrID, "id 9 at position 2",
			func(a *ApplyRows) { here(a); a.Index, a.Grad = int64sOf(1, 1, 9), floatsOf(1, 2, 3) }),
		rows("slot not in place", ErrShape, "momentum after must be", func(a *ApplyRows) { a.Out = a.Table }),
		rows("slot alone in place", ErrShape, "momentum after must not be", func(a *ApplyRows) {
			a.Index, a.Grad, a.Slots[0].After = int64sOf(0, 1, 2), floatsOf(1, 2, 3), a.Slots[0].Before
			a.Out = Float32s(make([]float32, 3))
		}),
		rows("last not in place", ErrShape, "last after must be", func(a *ApplyRows) { here(a); stepped(a) }),
		rows("after over gradient", ErrOverlap, "output", func(a *ApplyRows) { a.Slots[0].After = a.Grad }),
		rows("after over out", ErrOverlap, "output", func(a *ApplyRows) { a.Slots[0].After = a.Out }),
		rows("half the table", ErrOverlap, "out", func(a *ApplyRows) { a.Out = a.Table.Slice(1, 3) }),
	}
}

func adamSlots(before, after int) []Slot {
	return []Slot{slot("mean", make([]float32, before), make([]float32, after)),
		slot("square", make([]float32, before), make([]float32, after))}
}

func fusedRefusals() []refusal {
	fused := func(name string, want error, text string, change func(a *CoalesceApply)) refusal {
		return refusal{"coalesce apply " + name, want, text, func(b Backend, o *outputs) error {
			a := CoalesceApply{Dim: 1, Optimizer: SGD{LR: 1}, Weight: 1, Table: floatsOf(1, 2, 3), Keys: int64sOf(1, 2, 1),
				Rows:    floatsOf(1, 2, 3),
				OutKeys: Int64s(make([]int64, 2)), Out: Float32s(o.floats(2))}
			change(&a)
			n, err := b.CoalesceApply(a)
			if n != 0 || slices.ContainsFunc(view[int64](a.OutKeys), func(k int64) bool { return k != 0 }) {
				return errors.New("keys written")
			}
			return err
		}}
	}
	average := func(name string, want error, text string, change func(a *AverageApply)) refusal {
		return refusal{"average apply " + name, want, text, func(b Backend, o *outputs) error {
			a := AverageApply{Lanes: 2, Optimizer: SGD{LR: 1}, Weight: 1,
				Terms: []Term{term(0, 1, []float32{1, 2}), term(1, 1, []float32{1, 2})},
				Param: floatsOf(1, 2), Out: Float32s(o.floats(2))}
			change(&a)
			return b.AverageApply(a)
		}}
	}
	return []refusal{
		fused("key", ErrID, "id 3 at position 1 is not in [0,3)", func(a *CoalesceApply) { a.Keys = int64sOf(1, 3, 9) }),
		fused("huge key", ErrID, "position 2", func(a *CoalesceApply) { a.Keys = uint64sOf(1, 2, math.MaxUint64) }),
		fused("room", ErrShape, "room for 1 keys, want 2", func(a *CoalesceApply) { a.OutKeys = a.OutKeys.Slice(0, 1) }),
		fused("no room", ErrShape, "room for 0 keys, want 2", func(a *CoalesceApply) { a.OutKeys = Vector{} }),
		fused("room in place", ErrShape, "room for 1 keys, want 2",
			func(a *CoalesceApply) { a.Out = a.Table; a.OutKeys = a.OutKeys.Slice(0, 1) }),
		fused("rows of out", ErrShape, "out has 1 rows of 1, want 2", func(a *CoalesceApply) { a.Out = a.Out.Slice(0, 1) }),
		fused("rows", ErrShape, "rows has 2", func(a *CoalesceApply) { a.Rows = floatsOf(1, 2) }),
		fused("type of keys", ErrUnsupported, "keys of float32", func(a *CoalesceApply) { a.Keys = floatsOf(1, 2, 3) }),
		fused("type of out keys", ErrUnsupported, "out keys of uint64",
			func(a *CoalesceApply) { a.OutKeys = uint64sOf(0, 0) }),
		fused("weight", ErrArgument, "weight 0", func(a *CoalesceApply) { a.Weight = 0 }),
		fused("key before values", ErrID, "position 0", func(a *CoalesceApply) {
			a.NonFinite, a.Keys, a.Rows = Refuse, int64sOf(9, 1, 1), floatsOf(inf, inf, inf)
		}),
		fused("room before values", ErrShape, "room for 1", func(a *CoalesceApply) {
			a.NonFinite, a.OutKeys, a.Rows = Refuse, a.OutKeys.Slice(0, 1), floatsOf(inf, inf, inf)
		}),
		fused("out over rows", ErrOverlap, "output", func(a *CoalesceApply) { a.Out = a.Rows.Slice(0, 2) }),
		average("terms", ErrShape, "no terms", func(a *AverageApply) { a.Terms = nil }),
		average("length", ErrShape, "term 1 has 1 values", func(a *AverageApply) { a.Terms[1].Values = floatsOf(1) }),
		average("node", ErrNode, "term 1", func(a *AverageApply) { a.Terms[1].First = 2 }),
		average("weight", ErrArgument, "weight 0", func(a *AverageApply) { a.Weight = 0 }),
		average("rows", ErrShape, "no multiple of dim 3", func(a *AverageApply) {
			a.Dim, a.Optimizer, a.Slots = 3, RowwiseAdagrad{}, []Slot{slot("sum", []float32{0}, []float32{0})}
		}),
		average("norm of rows", ErrArgument, "no rows to be clipped", func(a *AverageApply) { a.Clip = Clip{ClipRow, 1} }),
		average("negative rows", ErrShape, "dim -1", func(a *AverageApply) { a.Dim = -1 }),
		average("out over a term", ErrOverlap, "term 1", func(a *AverageApply) { a.Out = a.Terms[1].Values }),
		average("out", ErrShape, "out 1", func(a *AverageApply) { a.Out = a.Out.Slice(0, 1) }),
	}
}

func TestRefusalsOfEveryKind(t *testing.T) {
	cases := slices.Concat(poolRefusals(), sumKindRefusals(), rowsRefusals(), fusedRefusals())
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
