package trainer

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// denseSums adds the dense gradients of the hosted lanes up the lane tree, chunk by chunk, while the backward pass of
// each lane runs. All dense parameters lie in one flat space, in the order in which their buckets are sent; chunks cut
// it. As soon as a lane's parameters up to the end of a chunk are final, the chunk is added to what earlier lanes left,
// and where that completes a hosted node the sum goes to the node's frame.
type denseSums struct {
	backend cuda.Backend
	lanes   int // of the job
	params  []span
	chunks  []span
	slots   [][]float32 // each as long as the flat space
	rounder rounder

	// frame is where the sum of a node over a chunk goes, in the type in which gradients travel; closed says that it is
	// there.
	frame  func(node, chunk int) cuda.Vector
	closed func(node, chunk int) error

	// residuals are the rounding errors of each hosted node, as long as the flat space; nil without error feedback.
	residuals [][]float32

	held    bool     // a lane's gradients are added up when all of them are final, not as they become so
	now     laneSums // the lane being computed
	touched []bool   // of each parameter: its gradient was asked for
	final   []bool   // of each parameter: its gradient will not change any more
	params0 int      // parameters before this one are final
	chunk   int      // chunks before this one are added up
}

// span is a range of the flat space.
type span struct{ lo, hi int }

func newDenseSums(backend cuda.Backend, lanes, slots int, params, chunks []span) *denseSums {
	d := &denseSums{backend: backend, rounder: newRounder(backend), lanes: lanes, params: params, chunks: chunks,
		touched: make([]bool, len(params)), final: make([]bool, len(params))}
	values := 0
	if len(params) > 0 {
		values = params[len(params)-1].hi
	}
	d.slots = make([][]float32, slots)
	for i := range d.slots {
		d.slots[i] = make([]float32, values)
	}
	return d
}

// begin starts a lane.
func (d *denseSums) begin(l laneSums) {
	d.now, d.params0, d.chunk = l, 0, 0
	clear(d.touched)
	clear(d.final)
}

// grad is where the lane's gradient of a parameter is to be written. What it holds before is unspecified.
func (d *denseSums) grad(param int) []float32 {
	d.touched[param] = true
	return d.slots[d.now.slot][d.params[param].lo:d.params[param].hi]
}

// done declares a gradient final and adds up the chunks that this completes. A gradient that was not asked for is zero.
func (d *denseSums) done(param int) error {
	if d.final[param] {
		return nil
	}
	if !d.touched[param] {
		clear(d.grad(param))
	}
	d.final[param] = true
	if d.held {
		return nil
	}
	return d.addFinal()
}

// addFinal adds up the chunks that are final.
func (d *denseSums) addFinal() error {
	for d.params0 < len(d.params) && d.final[d.params0] {
		d.params0++
	}
	upTo := 0
	if d.params0 > 0 {
		upTo = d.params[d.params0-1].hi
	}
	for ; d.chunk < len(d.chunks) && d.chunks[d.chunk].hi <= upTo; d.chunk++ {
		if err := d.add(d.chunk); err != nil {
			return err
		}
	}
	return nil
}

// end declares all gradients of the lane final.
func (d *denseSums) end() error {
	for i := range d.params {
		if err := d.done(i); err != nil {
			return err
		}
	}
	return d.addFinal()
}

// finite reports whether the lane's gradients, which are final now, have finite values alone. Only where they are held
// can it be told that nothing of the lane has left.
func (d *denseSums) finite() bool {
	for i := range d.params {
		_ = d.done(i) // which adds nothing
	}
	return d.backend.FirstNonFinite(cuda.Float32s(d.slots[d.now.slot])) < 0
}

// finish does what follows a lane that was added up before.
func (d *denseSums) finish(late laneSums) error {
	d.now = late
	for chunk := range d.chunks {
		if err := d.add(chunk); err != nil {
			return err
		}
	}
	return nil
}

// keepResiduals turns error feedback on, for a number of hosted nodes. All residuals begin at zero.
func (d *denseSums) keepResiduals(nodes int) {
	d.residuals = make([][]float32, nodes)
	for i := range d.residuals {
		d.residuals[i] = make([]float32, len(d.slots[0]))
	}
}

// add brings the lane's values of a chunk up the tree as far as its subtrees are complete. What completes a hosted node
// goes to the node's frame, rounded once where that holds 16 bits.
func (d *denseSums) add(chunk int) error {
	at, node := d.chunks[chunk], d.now.closes
	inFrame := false
	for i, a := range d.now.adds {
		left := d.slots[a.into][at.lo:at.hi]
		out := cuda.Float32s(left)
		if i == len(d.now.adds)-1 && node >= 0 && d.residuals == nil {
			out, inFrame = d.frame(node, chunk), true
		}
		if err := d.rounder.sum(d.lanes, a.left, a.right, left, d.slots[a.from][at.lo:at.hi], out); err != nil {
			return fmt.Errorf("add gradients of %v and %v: %w", a.left, a.right, err)
		}
	}
	if node < 0 {
		return nil
	}
	var err error
	switch sum := d.slots[0][at.lo:at.hi]; {
	case inFrame:
	case d.residuals != nil:
		err = d.rounder.feedBack(d.frame(node, chunk), sum, d.residuals[node][at.lo:at.hi])
	default:
		err = d.rounder.round(d.frame(node, chunk), sum)
	}
	if err != nil {
		return fmt.Errorf("round gradients of node %d to %d values: %w", node, at.hi-at.lo, err)
	}
	return d.closed(node, chunk)
}

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
