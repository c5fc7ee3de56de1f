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

	// frame is where the sum of a node over a chunk goes; closed says that it is there.
	frame  func(node, chunk int) []float32
	closed func(node, chunk int) error

	now     laneSums // the lane being computed
	touched []bool   // of each parameter: its gradient was asked for
	final   []bool   // of each parameter: its gradient will not change any more
	params0 int      // parameters before this one are final
	chunk   int      // chunks before this one are added up
}

// span is a range of the flat space.
type span struct{ lo, hi int }

func newDenseSums(backend cuda.Backend, lanes, slots int, params, chunks []span) *denseSums {
	d := &denseSums{backend: backend, lanes: lanes, params: params, chunks: chunks,
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
	return nil
}

// add brings the lane's values of a chunk up the tree as far as its subtrees are complete.
func (d *denseSums) add(chunk int) error {
	at := d.chunks[chunk]
	for i, a := range d.now.adds {
		out := d.slots[a.into][at.lo:at.hi]
		sum := cuda.Average{Lanes: d.lanes, Weight: 1, Out: cuda.Float32s(out), Terms: []cuda.Term{
			{First: uint16(a.left.First), Count: a.left.Count, Values: cuda.Float32s(out)},
			{First: uint16(a.right.First), Count: a.right.Count, Values: cuda.Float32s(d.slots[a.from][at.lo:at.hi])}}}
		if i == len(d.now.adds)-1 && d.now.closes >= 0 {
			sum.Out = cuda.Float32s(d.frame(d.now.closes, chunk))
		}
		if err := d.backend.Average(sum); err != nil {
			return fmt.Errorf("add gradients of %v and %v: %w", a.left, a.right, err)
		}
	}
	if d.now.closes < 0 {
		return nil
	}
	if len(d.now.adds) == 0 {
		copy(d.frame(d.now.closes, chunk), d.slots[0][at.lo:at.hi])
	}
	return d.closed(d.now.closes, chunk)
}
