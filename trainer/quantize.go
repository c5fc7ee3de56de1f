package trainer

import (
	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// vectorOf is the values of a frame, of whichever type.
func vectorOf(f *schema.Frame) cuda.Vector {
	if f.DType() == schema.DTypeFloat32 {
		return cuda.Float32s(f.Float32s())
	}
	return halfVector(f.DType(), f.Halves())
}

// halfVector is a vector of 16-bit values, given by their bits.
func halfVector(dtype schema.DType, bits []uint16) cuda.Vector {
	if dtype == schema.DTypeFloat16 {
		return cuda.Float16s(bits)
	}
	return cuda.BFloat16s(bits)
}

// rounder runs the backend's kernels where sums become what travels. It keeps their arguments, so that a call allocates
// nothing.
//
// Error feedback, with 16 bits only: a node's residual r over a chunk begins at +0 and carries what rounding takes away
// to the next batch in which the node has samples. All in float32 but for q, which is what travels:
//
//	t  = s + r        s is the sum over the node's lanes
//	q  = round(t)     to nearest even; beyond the type's range it is infinite, and the shard refuses it
//	r' = t - q        exact wherever q is finite
type rounder struct {
	backend cuda.Backend
	terms   []cuda.Term // two
	less    cuda.Optimizer
}

func newRounder(backend cuda.Backend) rounder {
	// p - lr*(g/weight) with a rate and a weight of 1 is p - g, since neither rounds.
	return rounder{backend: backend, terms: make([]cuda.Term, 2), less: cuda.SGD{LR: 1}}
}

// sum writes left + right, sums over two neighbouring nodes of the tree, to out: once rounded where it has 16 bits. out
// may be the memory of either.
func (r *rounder) sum(lanes int, leftNode, rightNode lane.Node, left, right []float32, out cuda.Vector) error {
	r.terms[0] = cuda.Term{First: uint16(leftNode.First), Count: leftNode.Count, Values: cuda.Float32s(left)}
	r.terms[1] = cuda.Term{First: uint16(rightNode.First), Count: rightNode.Count, Values: cuda.Float32s(right)}
	return r.backend.Average(cuda.Average{Lanes: lanes, Weight: 1, Out: out, Terms: r.terms})
}

// round writes x to out, which shares no memory with it.
//
//	{1, 1.00390625, 1.01171875}  ->  bfloat16 {1, 1, 1.015625}: ties go to the even one
func (r *rounder) round(out cuda.Vector, x []float32) error {
	if out.Len() == 0 {
		return nil
	}
	if out.DType() == cuda.Float32 {
		return r.backend.Copy(out, cuda.Float32s(x))
	}
	r.terms[0] = cuda.Term{Count: 1, Values: cuda.Float32s(x)}
	return r.backend.Average(cuda.Average{Lanes: 1, Weight: 1, Out: out, Terms: r.terms[:1]})
}

// feedBack adds the residual to a sum, writes that to out, rounded, and what the rounding took away to the residual.
// The sum is overwritten.
//
//	sum {1}, residual {0.00390625}, bfloat16  ->  out {1}, residual {0.00390625}
//	sum {1}, residual {0.005}                 ->  out {1.0078125}, residual {-0.0028125}
func (r *rounder) feedBack(out cuda.Vector, sum, residual []float32) error {
	if out.Len() == 0 {
		return nil
	}
	if err := r.sum(2, lane.Node{Count: 1}, lane.Node{First: 1, Count: 1}, sum, residual, cuda.Float32s(sum)); err != nil {
		return err
	}
	if err := r.round(out, sum); err != nil {
		return err
	}
	return r.backend.ApplyDense(cuda.ApplyDense{Optimizer: r.less, Weight: 1, Param: cuda.Float32s(sum), Grad: out,
		Out: cuda.Float32s(residual)})
}
