package update

import (
	"fmt"

	"gradbus/lane"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer"
)

// workload is one trainer's part: the model on its batch. It implements trainer.Workload.
type workload struct {
	model
	trainer.NetWorkload
	batchSize int
	seed      uint64
	x         []float32 // inputs of the batch under way
	labels    []float32 // of every batch, [batchSize, out]

	began func() // a batch is about to be computed; nil for nothing
}

func newWorkload(c *Config, env nn.Env, l lane.Lane) (*workload, error) {
	m := c.module()
	net, err := nn.NewNet(m, m.in, env)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", c.Model, err)
	}
	w := &workload{model: m, batchSize: c.BatchSize, seed: c.Seed}
	w.Net = net
	w.Samples = func(schema.Batch, lane.Lane) int { return w.batchSize }
	w.Input = func(step *trainer.LaneStep) ([]float32, error) {
		w.draw(uint64(step.Batch), uint64(step.Lane))
		return w.x, nil
	}
	w.Loss = func(step *trainer.LaneStep, y, gradY []float32) (float64, error) {
		return w.loss(y, w.labels, gradY, float32(w.out))
	}
	size := c.BatchSize
	for _, n := range m.in {
		size *= n
	}
	w.x, w.labels = make([]float32, size), w.drawLabels(uint64(l))
	return w, nil
}

// draw makes the inputs of a batch and lane, whose values are used in no other one.
func (w *workload) draw(batch, lane uint64) {
	r := philox.New(w.seed, "update input", batch, lane, 0)
	for i := range w.x {
		w.x[i] = float32(r.Normal())
	}
}

// drawLabels gives the labels of a lane: zeros, or of the sample at each place in its batches a 1 for its class.
func (w *workload) drawLabels(lane uint64) []float32 {
	labels := make([]float32, w.batchSize*w.out)
	if r := philox.New(w.seed, "update label", lane, 0, 0); w.classes {
		for i := range w.batchSize {
			labels[i*w.out+int(r.Below(uint32(w.out)))] = 1
		}
	}
	return labels
}

// Lane implements trainer.Workload. The loss of a sample is the mean over its outputs, so that the mean over the
// samples of a batch is what PyTorch's losses with reduction "mean" give.
func (w *workload) Lane(step *trainer.LaneStep) (lossSum float64, err error) {
	if w.began != nil {
		w.began()
	}
	return w.NetWorkload.Lane(step)
}
