package update

import (
	"fmt"

	"gradbus/lane"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer"
)

// dataValues bounds the inputs that a trainer draws before it begins, and comes back to: drawing 2000 normal values
// takes as long as the forward and the backward pass of the small model together.
const (
	dataValues = 1 << 21
	dataMost   = 64 // batches
	dataLeast  = 4
)

// workload is one trainer's part: the model on its batch. It implements trainer.Workload.
type workload struct {
	model
	trainer.NetWorkload
	batchSize int
	data      [][]float32 // batches of inputs; batch b is b % len
	labels    [][]float32 // of each of data, [batchSize, out]

	began func(b schema.Batch) // a batch is about to be computed; nil for nothing
	ended func(b schema.Batch) // its gradients are written
}

func newWorkload(c *Config, env nn.Env, l lane.Lane) (*workload, error) {
	m := c.module()
	net, err := nn.NewNet(m, m.in, env)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", c.Model, err)
	}
	w := &workload{model: m, batchSize: c.BatchSize}
	w.Net = net
	w.Samples = func(schema.Batch, lane.Lane) int { return w.batchSize }
	w.Input = func(step *trainer.LaneStep) ([]float32, error) { return w.data[int(step.Batch)%len(w.data)], nil }
	w.Loss = func(step *trainer.LaneStep, y, gradY []float32) (float64, error) {
		return w.loss(y, w.labels[int(step.Batch)%len(w.labels)], gradY, float32(w.out))
	}
	size := c.BatchSize
	for _, n := range m.in {
		size *= n
	}
	for i := range min(max(dataValues/size, dataLeast), dataMost, c.Warmup+c.Batches) {
		x := make([]float32, size)
		r := philox.New(c.Seed, "update input", uint64(i), uint64(l), 0)
		for j := range x {
			x[j] = float32(r.Normal())
		}
		w.data = append(w.data, x)
		w.labels = append(w.labels, w.drawLabels(c.Seed, uint64(i), uint64(l)))
	}
	return w, nil
}

// drawLabels gives the labels of a batch: zeros, or of each sample a 1 for its class.
func (w *workload) drawLabels(seed, batch, lane uint64) []float32 {
	labels := make([]float32, w.batchSize*w.out)
	if r := philox.New(seed, "update label", batch, lane, 0); w.classes {
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
		w.began(step.Batch)
	}
	lossSum, err = w.NetWorkload.Lane(step)
	if w.ended != nil {
		w.ended(step.Batch)
	}
	return lossSum, err
}
