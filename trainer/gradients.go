package trainer

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// denseSums sums the dense gradients of the hosted lanes up the lane tree, chunk by chunk, during the backward pass of
// each lane. All dense parameters are one flat space, in the order in which their buckets are sent; chunks cut it. As
// soon as a lane's parameters up to the end of a chunk are final, the chunk is added to the sums of earlier lanes. If
// that completes a hosted node, the sum goes to the node's frame.
type denseSums struct {
	backend cuda.Backend
	lanes   int // of the job
	params  []span
	chunks  []span
	slots   [][]float32 // each as long as the flat space
	rounder rounder

	// frame returns the memory for the sum of a node over a chunk, in the type of gradients in frames. closed is called
	// when the sum is there.
	frame  func(node, chunk int) cuda.Vector
	closed func(node, chunk int) error

	// residuals are the rounding errors of each hosted node, as long as the flat space; nil without error feedback.
	residuals [][]float32

	afterLane bool     // a lane's gradients are added when all of them are final, instead of one by one
	now       laneSums // the lane being computed
	touched   []bool   // [parameter] its gradient was requested
	final     []bool   // [parameter] its gradient will not change any more
	params0   int      // parameters before this one are final
	chunk     int      // chunks before this one are added
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

// grad returns the memory for the lane's gradient of a parameter. Its initial content is undefined.
func (d *denseSums) grad(param int) []float32 {
	d.touched[param] = true
	return d.slots[d.now.slot][d.params[param].lo:d.params[param].hi]
}

// done marks a gradient as final and adds the chunks that this completes. A gradient that was not requested is zero.
func (d *denseSums) done(param int) error {
	if d.final[param] {
		return nil
	}
	if !d.touched[param] {
		clear(d.grad(param))
	}
	d.final[param] = true
	if d.afterLane {
		return nil
	}
	return d.addFinal()
}

// addFinal adds the chunks that are final.
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

// end marks all gradients of the lane as final.
func (d *denseSums) end() error {
	for i := range d.params {
		if err := d.done(i); err != nil {
			return err
		}
	}
	return d.addFinal()
}

// finite reports whether the lane's gradients, which it marks as final, have only finite values. It requires afterLane,
// so that nothing of the lane has been added.
func (d *denseSums) finite() bool {
	for i := range d.params {
		_ = d.done(i) // adds nothing
	}
	return d.backend.FirstNonFinite(cuda.Float32s(d.slots[d.now.slot])) < 0
}

// finish does the additions that follow a lane that was added before.
func (d *denseSums) finish(late laneSums) error {
	d.now = late
	for chunk := range d.chunks {
		if err := d.add(chunk); err != nil {
			return err
		}
	}
	return nil
}

// keepResiduals enables error feedback for a number of hosted nodes. All residuals begin at zero.
func (d *denseSums) keepResiduals(nodes int) {
	d.residuals = make([][]float32, nodes)
	for i := range d.residuals {
		d.residuals[i] = make([]float32, len(d.slots[0]))
	}
}

// add adds the lane's values of a chunk up the tree as far as subtrees are complete. The sum of a complete hosted node
// goes to the node's frame, rounded once if the frame has 16-bit values.
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

// vectorOf returns the values of a frame of any type.
func vectorOf(f *schema.Frame) cuda.Vector {
	if f.DType() == schema.DTypeFloat32 {
		return cuda.Float32s(f.Float32s())
	}
	return halfVector(f.DType(), f.Halves())
}

// halfVector returns a vector of 16-bit values from their bits.
func halfVector(dtype schema.DType, bits []uint16) cuda.Vector {
	if dtype == schema.DTypeFloat16 {
		return cuda.Float16s(bits)
	}
	return cuda.BFloat16s(bits)
}

// rounder runs the backend's kernels that turn sums into frames. It stores their arguments, so calls allocate nothing.
//
// Error feedback, with 16 bits only: a node's residual r over a chunk begins at +0. It carries the rounding error to
// the next batch in which the node has samples. All values are float32 except q, which is sent:
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

// sum writes left + right, sums over two neighboring nodes of the tree, to out, rounded once if out has 16-bit values.
// out may be the memory of either.
func (r *rounder) sum(lanes int, leftNode, rightNode lane.Node, left, right []float32, out cuda.Vector) error {
	r.terms[0] = cuda.Term{First: uint16(leftNode.First), Count: leftNode.Count, Values: cuda.Float32s(left)}
	r.terms[1] = cuda.Term{First: uint16(rightNode.First), Count: rightNode.Count, Values: cuda.Float32s(right)}
	return r.backend.Average(cuda.Average{Lanes: lanes, Weight: 1, Out: out, Terms: r.terms})
}

// round writes x to out, which must not share its memory.
//
//	{1, 1.00390625, 1.01171875}  ->  bfloat16 {1, 1, 1.015625}: ties to even
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

// feedBack adds the residual to a sum, writes the rounded result to out, and the rounding error to residual. It
// overwrites sum.
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
