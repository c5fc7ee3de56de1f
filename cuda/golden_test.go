package cuda

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"
)

// What PyTorch computes in float64 from the same numbers; see testdata/golden.py.
type golden struct {
	Steps, Rows, Dim int
	Optimizers       []struct {
		Name  string
		Hyper struct {
			LR, Momentum, Dampening, Decay, Eps, Beta1, Beta2 float32
			Nesterov                                          bool
		}
		Param        []float32
		Index        [][]int64 // of the rows that a step names; without it, all
		Grads, After [][]float64
	}
	Bags []struct {
		Mode         string
		Padding      int64
		IDs, Offsets []int64
		Weights      []float32
		Table, Grad  []float32
		Out          []float64
		GradRows     []float64 `json:"grad_rows"`
	}
}

func readGolden(t *testing.T) *golden {
	t.Helper()
	text, err := os.ReadFile("testdata/golden.json")
	must(t, err)
	g := new(golden)
	must(t, json.Unmarshal(text, g))
	if len(g.Optimizers) != 7 || len(g.Bags) != 4 {
		t.Fatalf("%d optimizers and %d bags, want 7 and 4", len(g.Optimizers), len(g.Bags))
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

// TestOptimizersAsInPyTorch: a step makes at most ten roundings of a parameter's own size or less, and hands on those of
// the steps before it.
func TestOptimizersAsInPyTorch(t *testing.T) {
	g := readGolden(t)
	onEach(t, func(t *testing.T, b Backend) {
		for n, c := range g.Optimizers {
			param, h := c.Param, c.Hyper
			param = append([]float32(nil), param...)
			last := make([]int64, g.Rows)
			var slots []Slot
			for step := 1; step <= g.Steps; step++ {
				var o Optimizer
				dim := g.Dim
				switch c.Name {
				case "sgd":
					o = SGD{h.LR, h.Momentum, h.Dampening, h.Decay, h.Nesterov}
				case "adagrad", "rowwise adagrad":
					o = RowwiseAdagrad{h.LR, h.Eps, h.Decay}
					if c.Name == "adagrad" {
						dim = 1 // then a row is a value, and the two are the same
					}
				default:
					o = Adam{h.LR, h.Beta1, h.Beta2, h.Eps, h.Decay, uint64(step)}
				}
				if step == 1 {
					for _, name := range o.SlotNames() {
						v := Float32s(make([]float32, len(param)))
						if name == "sum" {
							v = v.Slice(0, len(param)/dim)
						}
						slots = append(slots, Slot{name, v, v})
					}
				}
				grad, p := Float32s(narrowed(c.Grads[step-1])), Float32s(param)
				if c.Index == nil {
					must(t, b.ApplyDense(ApplyDense{Dim: dim, Optimizer: o, Weight: 1, First: step == 1, Slots: slots, Param: p, Grad: grad, Out: p}))
				} else {
					must(t, b.ApplyRows(ApplyRows{Dim: dim, Optimizer: o, Weight: 1, Slots: slots, Steps: Steps{Int64s(last), Int64s(last), int64(step), false}, Table: p,
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
			a := BagForward{Dim: g.Dim, Mode: mode, Padding: c.Padding, OpenOffsets: true, Rows: Float32s(c.Table), IDs: Int64s(c.IDs), Offsets: Int64s(c.Offsets),
				Weights: Float32s(c.Weights), Out: Float32s(out)}
			back := BagBackward{Dim: g.Dim, Mode: mode, Padding: c.Padding, OpenOffsets: true, R: int64(g.Rows), IDs: a.IDs, Offsets: a.Offsets, Weights: a.Weights,
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
