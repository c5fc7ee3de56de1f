package trainer

import (
	"fmt"

	"gradbus/cuda"
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

	// residuals are what rounding has taken from each hosted node, as long as the flat space; nil without error feedback.
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
