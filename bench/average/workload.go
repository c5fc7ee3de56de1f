package average

import (
	"time"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// workload feeds and computes the lanes of a job, of which each trainer has one; it is a trainer.Workload. It is not
// safe for concurrent use.
type workload struct {
	data   *data
	dealt  dealt
	scale  func(sizes []int, lane int) float32 // of a lane's gradient, by the mean
	sizes  []int                               // of the lanes of a step
	model  *model
	sparse bool
	step   iterationStep

	now    *trainer.LaneStep // the step at hand
	params [][]float32       // its parameters
	grad   func(i int) []float32
	done   func(i int)

	ids, offsets []int64
	times        passTimes // of the last lane computed
}

// passTimes is when the parts of a step were done.
type passTimes struct{ begun, forward, backward time.Time }

var _ trainer.Workload = (*workload)(nil)

// newWorkload draws the data and readies the model.
func newWorkload(s *system, e nn.Env) (*workload, error) {
	preprocess, err := preprocessings.find("preprocess", s.Preprocess)
	if err != nil {
		return nil, err
	}
	step, err := iterationSteps.find("iteration-step", s.IterationStep)
	if err != nil {
		return nil, err
	}
	scale, err := means.find("mean", s.Mean)
	if err != nil {
		return nil, err
	}
	model, err := newModel(s.Model, s.Criterion, e)
	if err != nil {
		return nil, err
	}
	w := &workload{data: newData(s.Data, s.Seed), dealt: s.dealt(), scale: scale, model: model,
		sparse: s.Model.Sparse, step: step}
	w.grad = func(i int) []float32 { return w.now.Grad(model.names[i]) }
	w.done = func(i int) { w.now.Done(model.names[i]) }
	preprocess(w.data)
	return w, nil
}

// Keys appends the ids of a lane's batch, where they are keys of a table.
func (w *workload) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64) {
	lo, hi := w.dealt.of(uint64(b), int(l))
	if w.sparse {
		for _, id := range w.data.IDs[lo*w.data.Length : hi*w.data.Length] {
			keys[0] = append(keys[0], uint64(id))
		}
	}
	return hi - lo, keys
}

// Lane is one step of a trainer.
func (w *workload) Lane(s *trainer.LaneStep) (lossSum float64, err error) {
	w.now, w.params = s, w.params[:0]
	for _, name := range w.model.names {
		w.params = append(w.params, s.Param(name))
	}
	return w.step(w, s)
}

// forward is a step's forward pass and loss.
func (w *workload) forward(s *trainer.LaneStep) (lossSum float64, err error) {
	w.times.begun = time.Now()
	lo, hi := w.dealt.of(uint64(s.Batch), int(s.Lane))
	w.offsets = w.offsets[:0]
	for i := range hi - lo + 1 {
		w.offsets = append(w.offsets, int64(i*w.data.Length))
	}
	bags := nn.Bags{Offsets: w.offsets}
	if w.sparse {
		bags.Rows, bags.IDs = s.Rows(0), s.IDs(0)
	} else {
		w.ids = w.ids[:0]
		for _, id := range w.data.IDs[lo*w.data.Length : hi*w.data.Length] {
			w.ids = append(w.ids, int64(id))
		}
		bags.IDs = w.ids
	}
	lossSum, err = w.model.forward(w.params, bags, w.data.Targets[lo:hi])
	if scale := w.scale(w.laneSizes(uint64(s.Batch)), int(s.Lane)); scale != 1 {
		for i := range w.model.gradY {
			w.model.gradY[i] *= scale
		}
	}
	w.times.forward = time.Now()
	return lossSum, err
}

// laneSizes are the samples of each lane of a step.
func (w *workload) laneSizes(step uint64) []int {
	w.sizes = w.sizes[:0]
	for l := range w.dealt.trainers {
		lo, hi := w.dealt.of(step, l)
		w.sizes = append(w.sizes, hi-lo)
	}
	return w.sizes
}

// backward is its backward pass; done is told which gradients are final.
func (w *workload) backward(s *trainer.LaneStep, done func(i int)) error {
	pooled, err := w.model.backward(w.params, w.grad, done)
	if err != nil {
		return err
	}
	if w.sparse {
		s.BagGrad(0, cuda.Mean, w.offsets, pooled)
	}
	w.times.backward = time.Now()
	return nil
}

// means are the choices of --mean.
var means = choice[func(sizes []int, lane int) float32]{
	{harness.MeanSamples, func([]int, int) float32 { return 1 }},
	{harness.MeanLanes, harness.LaneScale},
}

// iterationStep is what a trainer does with a batch, by name.
type iterationStep func(w *workload, s *trainer.LaneStep) (lossSum float64, err error)

// iterationSteps are the choices of --iteration-step. Both give the same weights.
var iterationSteps = choice[iterationStep]{
	{"basic_iteration_step", basicStep},
	{"sequential_iteration_step", sequentialStep},
}

// basicStep sends each gradient as soon as it is final, while the backward pass continues.
func basicStep(w *workload, s *trainer.LaneStep) (float64, error) {
	lossSum, err := w.forward(s)
	if err != nil {
		return 0, err
	}
	return lossSum, w.backward(s, w.done)
}

// sequentialStep sends nothing before the backward pass is over, which shows what their overlap is worth.
func sequentialStep(w *workload, s *trainer.LaneStep) (float64, error) {
	lossSum, err := w.forward(s)
	if err != nil {
		return 0, err
	}
	return lossSum, w.backward(s, nil)
}
