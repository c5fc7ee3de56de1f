package trainer

import (
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
)

// NetWorkload makes a net of package nn a Workload. The net's parameters are the job's dense parameters of the same
// names (Job.Module adds them). The gradient of each parameter is sent as soon as it is final, while the backward pass
// continues. After the first batch it allocates nothing.
//
// A workload that uses tables too embeds NetWorkload and has its own Keys, and Bags; Input then reads rows, and
// InputGrad sets their gradients.
//
//	w := &trainer.NetWorkload{Net: net, Seed: seed, Samples: count, Input: images,
//		Loss: func(_ *trainer.LaneStep, y, gradY []float32) (float64, error) {
//			return nn.NLL(y, classes, targets, gradY)
//		}}
type NetWorkload struct {
	Net  *nn.Net
	Seed uint64 // seed of dropout, keyed by batch and lane

	// Samples returns the number of samples of a lane. It may be nil if another type provides Keys.
	Samples func(b schema.Batch, l lane.Lane) int
	// Input returns the input of the net, [samples, In]. It must not change until the lane ends.
	Input func(step *LaneStep) (x []float32, err error)
	// Loss returns the sum of the losses of the samples for y [samples, Out], and writes the gradient of that sum to
	// gradY.
	Loss func(step *LaneStep, y, gradY []float32) (lossSum float64, err error)
	// Sending is called just before the first gradient of a lane is sent. nil: no call.
	Sending func(step *LaneStep)
	// InputGrad receives the gradient of the input, which is nil unless Net.GradX is set. nil: no call.
	InputGrad func(step *LaneStep, gradX []float32)

	step   *LaneStep // lane under way
	sent   bool      // Sending was called for it
	names  []string  // parameter names in the net's order
	params [][]float32
	gradY  []float32
	grad   func(i int) []float32
	done   func(i int)
}

var _ Workload = (*NetWorkload)(nil)

// Keys implements Workload, for a net without tables.
func (w *NetWorkload) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64) {
	return w.Samples(b, l), keys
}

// Lane implements Workload: forward, loss, backward.
func (w *NetWorkload) Lane(step *LaneStep) (lossSum float64, err error) {
	if w.names == nil {
		w.begin()
	}
	w.step, w.sent = step, false
	for i, name := range w.names {
		w.params[i] = step.Param(name)
	}
	x, err := w.Input(step)
	if err != nil {
		return 0, err
	}
	y, err := w.Net.Forward(w.params, x,
		nn.Mode{Train: true, Random: nn.Random{Seed: w.Seed, Batch: uint64(step.Batch), Lane: uint64(step.Lane)}})
	if err != nil {
		return 0, err
	}
	w.gradY = grown(w.gradY, len(y))
	if lossSum, err = w.Loss(step, y, w.gradY); err != nil {
		return 0, err
	}
	gradX, err := w.Net.Backward(w.params, w.gradY, w.grad, w.done)
	if err != nil {
		return 0, err
	}
	if w.InputGrad != nil {
		w.InputGrad(step, gradX)
	}
	return lossSum, nil
}

// begin prepares what is the same for every lane.
func (w *NetWorkload) begin() {
	for _, p := range w.Net.Parameters() {
		w.names = append(w.names, p.Name)
	}
	w.params = make([][]float32, len(w.names))
	w.grad = func(i int) []float32 { return w.step.Grad(w.names[i]) }
	w.done = func(i int) {
		if w.Sending != nil && !w.sent {
			w.Sending(w.step)
		}
		w.sent = true
		w.step.Done(w.names[i])
	}
}
