package cuda

import "math/rand/v2"

// Arguments over plain slices, the most common types, for tests to change as they please.

func bagForward(dim int, mode Mode, padding int64, rows []float32, ids, offsets []int64, out []float32) BagForward {
	return BagForward{Dim: dim, Mode: mode, Padding: padding, Rows: Float32s(rows), IDs: Int64s(ids),
		Offsets: Int64s(offsets),
		Out:     Float32s(out)}
}

func bagBackward(dim int, mode Mode, padding, rows int64, ids, offsets []int64, grad []float32, keys []int64,
	out []float32) BagBackward {
	return BagBackward{Dim: dim, Mode: mode, Padding: padding, R: rows, IDs: Int64s(ids), Offsets: Int64s(offsets),
		GradOut: Float32s(grad), Keys: Int64s(keys), Out: Float32s(out)}
}

func coalesce(dim int, keys []uint64, rows []float32, outKeys []uint64, outRows []float32) Coalesce {
	return Coalesce{Dim: dim, Keys: Uint64s(keys), Rows: Float32s(rows), OutKeys: Uint64s(outKeys),
		OutRows: Float32s(outRows)}
}

func rowsTerm(first, count uint16, keys []uint64, rows []float32) RowsTerm {
	return RowsTerm{first, count, Uint64s(keys), Float32s(rows)}
}

func merge(dim, lanes int, terms []RowsTerm, keys []uint64, rows []float32) Merge {
	return Merge{Dim: dim, Lanes: lanes, Terms: terms, OutKeys: Uint64s(keys), OutRows: Float32s(rows)}
}

func term(first, count uint16, values []float32) Term { return Term{first, count, Float32s(values)} }

func average(lanes int, weight float32, terms []Term, out []float32) Average {
	return Average{Lanes: lanes, Weight: weight, Terms: terms, Out: Float32s(out)}
}

func matMul(m, n, k int, transA, transB bool, a, b, bias, c []float32) MatMul {
	return MatMul{m, n, k, transA, transB, Float32s(a), Float32s(b), Float32s(bias), Float32s(c)}
}

func softmax(classes int, logits []float32, targets []int32, loss, grad, prob []float32) SoftmaxCrossEntropy {
	return SoftmaxCrossEntropy{classes, Float32s(logits), Int32s(targets), Float32s(loss), Float32s(grad), Float32s(prob)}
}

// slot is one slot of float32.
func slot(name string, before, after []float32) Slot {
	return Slot{name, Float32s(before), Float32s(after)}
}

func applyDense(o Optimizer, weight float32, first bool, param, grad, out []float32, slots ...Slot) ApplyDense {
	return ApplyDense{Optimizer: o, Weight: weight, First: first, Slots: slots, Param: Float32s(param),
		Grad: Float32s(grad),
		Out:  Float32s(out)}
}

func applyRows(dim int, o Optimizer, weight float32, table []float32, index []int64, first []uint8, grad, out []float32,
	slots ...Slot) ApplyRows {
	return ApplyRows{Dim: dim, Optimizer: o, Weight: weight, Slots: slots, Table: Float32s(table), Index: Int64s(index),
		First: Uint8s(first), Grad: Float32s(grad), Out: Float32s(out)}
}

// Vectors over literals.
func floatsOf(x ...float32) Vector { return Float32s(x) }
func int64sOf(x ...int64) Vector   { return Int64s(x) }
func int32sOf(x ...int32) Vector   { return Int32s(x) }
func uint64sOf(x ...uint64) Vector { return Uint64s(x) }
func uint8sOf(x ...uint8) Vector   { return Uint8s(x) }

// newRand draws the same numbers for the same seed.
func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 97)) }
