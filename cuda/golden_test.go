package cuda

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
)

// What PyTorch computes in float64 from the same numbers; see testdata/golden.py.
type golden struct {
	Steps, Rows, Dim int
	Optimizers, More []goldenSteps
	Bags             []struct {
		Mode         string
		Padding      int64
		IDs, Offsets []int64
		Weights      []float32
		Table, Grad  []float32
		Out          []float64
		GradRows     []float64 `json:"grad_rows"`
	}
}

// goldenSteps are the steps of an optimizer.
type goldenSteps struct {
	Name  string
	Hyper struct {
		LR, Momentum, Dampening, Decay, Eps, Beta1, Beta2, Initial, Beta, L1, L2 float32
		Nesterov                                                                 bool
	}
	Clip         string    // "value", "norm" of all values together, or none
	By           float32   // to which
	Rates        []float64 // of each step; without them, LR
	Param        []float32
	Index        [][]int64 // of the rows that a step names; without it, all
	Grads, After [][]float64
}

// optimizer is that of a step, from 1.
func (c *goldenSteps) optimizer(step int) Optimizer {
	h := c.Hyper
	if c.Rates != nil {
		h.LR = float32(c.Rates[step-1])
	}
	switch c.Name {
	case "sgd":
		return SGD{h.LR, h.Momentum, h.Dampening, h.Decay, h.Nesterov}
	case "adagrad", "rowwise adagrad":
		return RowwiseAdagrad{h.LR, h.Eps, h.Decay}
	case "elementwise adagrad":
		return Adagrad{h.LR, h.Eps, h.Decay}
	case "adamw":
		return AdamW{h.LR, h.Beta1, h.Beta2, h.Eps, h.Decay, uint64(step)}
	case "ftrl":
		return FTRL{h.LR, h.Beta, h.L1, h.L2}
	}
	return Adam{h.LR, h.Beta1, h.Beta2, h.Eps, h.Decay, uint64(step)}
}

// clip is that of a gradient. PyTorch divides a norm by a sum with 1e-6, which these numbers do not show.
func (c *goldenSteps) clip(g []float64) Clip {
	switch c.Clip {
	case "value":
		return Clip{ClipValue, c.By}
	case "norm":
		squares := 0.0
		for _, v := range g {
			squares += v * v
		}
		return Clip{ClipScale, float32(min(1, float64(c.By)/(math.Sqrt(squares)+1e-6)))}
	}
	return Clip{}
}

func readGolden(t *testing.T) *golden {
	t.Helper()
	text, err := os.ReadFile("testdata/golden.json")
	must(t, err)
	g := new(golden)
	must(t, json.Unmarshal(text, g))
	if len(g.Optimizers) != 7 || len(g.Bags) != 4 || len(g.More) != 6 {
		t.Fatalf("%d and %d optimizers and %d bags, want 7, 6 and 4", len(g.Optimizers), len(g.More), len(g.Bags))
	}
	return g
}

// near holds values to a number of float32 roundings at the size of the largest of them, at least 8.
func near(t *testing.T, what string, got []float32, want []float64, roundings float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	size := 8.0
	for _, v := range want {
		size = max(size, math.Abs(v))
	}
	for i, v := range want {
		if off := math.Abs(float64(got[i]) - v); !(off <= roundings*0x1p-24*size) {
			t.Errorf("%s: value %d is %v, want %v: off by %v of %v roundings", what, i, got[i], v, off/(0x1p-24*size), roundings)
		}
	}
}

func narrowed(x []float64) []float32 {
	to := make([]float32, len(x))
	for i, v := range x {
		to[i] = float32(v)
	}
	return to
}

// goldenSlots are the slots before the first step.
func goldenSlots(c *goldenSteps, o Optimizer, dim int) (slots []Slot) {
	for _, name := range o.SlotNames() {
		v := Float32s(slices.Repeat([]float32{c.Hyper.Initial}, len(c.Param)))
		if _, rowwise := o.(RowwiseAdagrad); rowwise {
			v = v.Slice(0, len(c.Param)/dim)
		}
		slots = append(slots, Slot{name, v, v})
	}
	return slots
}

// TestOptimizersAsInPyTorch: a step makes at most ten roundings of a parameter's own size or less, and hands on those
// of the steps before it.
func TestOptimizersAsInPyTorch(t *testing.T) {
	g := readGolden(t)
	onEach(t, func(t *testing.T, b Backend) {
		for n, c := range slices.Concat(g.Optimizers, g.More) {
			param := append([]float32(nil), c.Param...)
			last := make([]int64, g.Rows)
			var slots []Slot
			for step := 1; step <= g.Steps; step++ {
				o, clip, dim := c.optimizer(step), c.clip(c.Grads[step-1]), g.Dim
				if c.Name == "adagrad" {
					dim = 1 // then a row is a value, and the two are the same
				}
				if step == 1 {
					slots = goldenSlots(&c, o, dim)
				}
				grad, p := Float32s(narrowed(c.Grads[step-1])), Float32s(param)
				if c.Index == nil {
					must(t, b.ApplyDense(ApplyDense{Dim: dim, Optimizer: o, Clip: clip, Weight: 1, First: step == 1, Slots: slots,
						Param: p, Grad: grad, Out: p}))
				} else {
					must(t,
						b.ApplyRows(ApplyRows{Dim: dim, Optimizer: o, Clip: clip, Weight: 1, Slots: slots,
							Steps: Steps{Int64s(last), Int64s(last), int64(step), false}, Table: p,
							Index: Int64s(c.Index[step-1]), Grad: grad, Out: p}))
				}
				near(t, fmt.Sprintf("%s %d, step %d", c.Name, n, step), param, c.After[step-1], float64(10*step))
			}
		}
	})
}

// TestBagsAsInPyTorch: bags have at most five rows; the largest of a column is exact.
func TestBagsAsInPyTorch(t *testing.T) {
	g := readGolden(t)
	onEach(t, func(t *testing.T, b Backend) {
		for _, c := range g.Bags {
			mode := map[string]Mode{"sum": Sum, "mean": Mean, "max": Max}[c.Mode]
			out := make([]float32, len(c.Out))
			a := BagForward{Dim: g.Dim, Mode: mode, Padding: c.Padding, OpenOffsets: true, Rows: Float32s(c.Table),
				IDs: Int64s(c.IDs), Offsets: Int64s(c.Offsets),
				Weights: Float32s(c.Weights), Out: Float32s(out)}
			back := BagBackward{Dim: g.Dim, Mode: mode, Padding: c.Padding, OpenOffsets: true, R: int64(g.Rows), IDs: a.IDs,
				Offsets: a.Offsets, Weights: a.Weights,
				GradOut: Float32s(c.Grad)}
			if mode == Max {
				a.ArgMax = Int32s(make([]int32, len(out)))
				back.ArgMax = a.ArgMax
			}
			must(t, b.BagForward(a))
			roundings := 7.0
			if mode == Max {
				roundings = 0
			}
			near(t, c.Mode, out, c.Out, roundings)
			keys, rows := make([]int64, g.Rows), make([]float32, g.Rows*g.Dim)
			back.Keys, back.Out = Int64s(keys), Float32s(rows)
			n, err := b.BagBackward(back)
			must(t, err)
			all := make([]float32, g.Rows*g.Dim) // ids without a gradient have one of zero
			for i, key := range keys[:n] {
				copy(all[int(key)*g.Dim:][:g.Dim], rows[i*g.Dim:])
			}
			near(t, c.Mode+" backward", all, c.GradRows, 7)
		}
	})
}
