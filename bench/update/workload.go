package update

import (
	"fmt"

	"gradbus/lane"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer"
)

// dataValues bounds the inputs that a trainer draws before it begins, and comes back to: drawing 2000 normal values takes as long as
// the forward and the backward pass of the small model together.
const (
	dataValues = 1 << 21
	dataMost   = 64 // batches
	dataLeast  = 4
)

// workload is one trainer's part: the model on its batch. It implements trainer.Workload.
type workload struct {
	model
	net       *nn.Net
	names     []string // of the parameters
	batchSize int
	data      [][]float32 // batches of inputs; batch b is b % len
	labels    [][]float32 // of each of data, [batchSize, out]
	gradY     []float32
	params    [][]float32
	step      *trainer.LaneStep // under way
	grad      func(i int) []float32
	done      func(i int)

	began func(b schema.Batch) // a batch is about to be computed; nil for nothing
	ended func(b schema.Batch) // its gradients are written
}

func newWorkload(c *Config, env nn.Env, l lane.Lane) (*workload, error) {
	m := c.module()
	net, err := nn.NewNet(m, m.in, env)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", c.Model, err)
	}
	w := &workload{model: m, net: net, batchSize: c.BatchSize}
	for _, p := range m.Parameters() {
		w.names = append(w.names, p.Name)
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
	w.gradY = make([]float32, c.BatchSize*m.out)
	w.params = make([][]float32, len(w.names))
	w.grad = func(i int) []float32 { return w.step.Grad(w.names[i]) }
	w.done = func(i int) { w.step.Done(w.names[i]) }
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

// Keys implements trainer.Workload: there are no tables.
func (w *workload) Keys(_ schema.Batch, _ lane.Lane, keys [][]uint64) (int, [][]uint64) {
	return w.batchSize, keys
}

// Lane implements trainer.Workload. The loss of a sample is the mean over its outputs, so that the mean over the samples of a
// batch is what PyTorch's losses with reduction "mean" give.
func (w *workload) Lane(step *trainer.LaneStep) (lossSum float64, err error) {
	if w.began != nil {
		w.began(step.Batch)
	}
	w.step = step
	for i, name := range w.names {
		w.params[i] = step.Param(name)
	}
	y, err := w.net.Forward(w.params, w.data[int(step.Batch)%len(w.data)], nn.Mode{Train: true})
	if err == nil {
		lossSum, err = w.loss(y, w.labels[int(step.Batch)%len(w.labels)], w.gradY, float32(w.out))
	}
	if err == nil {
		_, err = w.net.Backward(w.params, w.gradY, w.grad, w.done)
	}
	if w.ended != nil {
		w.ended(step.Batch)
	}
	return lossSum, err
}
