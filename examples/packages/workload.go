package packages

import (
	"gradbus/cuda"
	"gradbus/examples/packages/corpus"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
	"gradbus/trainer/shuffle"
)

// Workload feeds and computes the lanes of a job; it is a trainer.Workload. It is not safe for concurrent use.
type Workload struct {
	settings Settings
	data     *corpus.Data
	shuffler *shuffle.Shuffler
	layers   *layers

	targets                        []int32
	logits, gradLogits, gradPooled []float32
}

var _ trainer.Bagged = (*Workload)(nil)

// NewWorkload readies the examples of data for the job of s. It fails where shuffle.New does.
func NewWorkload(s Settings, data *corpus.Data, backend cuda.Backend) (*Workload, error) {
	shuffler, err := shuffle.New(s.Seed, data.Train.Len(), s.Batch, s.LaneCount())
	if err != nil {
		return nil, err
	}
	return &Workload{settings: s, data: data, shuffler: shuffler, layers: newLayers(backend, s.Dim, len(data.Classes))},
		nil
}

// layers is the model without its parameters.
type layers struct {
	bag    *nn.EmbeddingBag
	linear *nn.Linear
	loss   *nn.CrossEntropy
}

func newLayers(backend cuda.Backend, dim, classes int) *layers {
	return &layers{bag: nn.NewEmbeddingBag(backend, dim, cuda.Mean), linear: nn.NewLinear(backend, dim, classes),
		loss: nn.NewCrossEntropy(backend, classes)}
}

// examples are the training examples of a lane, as indices into the training set.
func (w *Workload) examples(b schema.Batch, l lane.Lane) []int32 { return w.shuffler.Samples(b, l) }

// Keys appends the keys of a lane's examples.
func (w *Workload) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64) {
	chosen := w.examples(b, l)
	for _, i := range chosen {
		keys[0] = append(keys[0], w.data.Train.KeysOf(int(i))...)
	}
	return len(chosen), keys
}

// Bags appends where each example's keys begin: an example is a bag.
func (w *Workload) Bags(b schema.Batch, l lane.Lane, offsets [][]int64) [][]int64 {
	at, all := int64(0), append(offsets[0], 0)
	for _, i := range w.examples(b, l) {
		at += int64(len(w.data.Train.KeysOf(int(i))))
		all = append(all, at)
	}
	offsets[0] = all
	return offsets
}

// Lane computes forward, loss and backward of a lane. The linear layer's gradients are declared final before those of
// the rows are computed, so that they are under way meanwhile.
func (w *Workload) Lane(step *trainer.LaneStep) (lossSum float64, err error) {
	pooled, chosen := step.Pooled(0), w.examples(step.Batch, step.Lane)
	n, dim, classes := len(chosen), w.settings.Dim, len(w.data.Classes)
	w.targets = w.targets[:0]
	for _, i := range chosen {
		w.targets = append(w.targets, w.data.Train.Labels[i])
	}
	w.gradPooled = grown(w.gradPooled, n*dim)
	w.logits, w.gradLogits = grown(w.logits, n*classes), grown(w.gradLogits, n*classes)
	weight := step.Param(weightName)
	if err := w.layers.linear.Forward(weight, step.Param(biasName), pooled, w.logits); err != nil {
		return 0, err
	}
	if lossSum, err = w.layers.loss.Loss(w.logits, w.targets, w.gradLogits); err != nil {
		return 0, err
	}
	if err := w.layers.linear.BackwardParams(pooled, w.gradLogits, step.Grad(weightName),
		step.Grad(biasName)); err != nil {
		return 0, err
	}
	step.Done(biasName)
	step.Done(weightName)
	if err := w.layers.linear.BackwardInput(weight, w.gradLogits, w.gradPooled); err != nil {
		return 0, err
	}
	step.PooledGrad(0, w.gradPooled)
	return lossSum, nil
}

// grown gives s the length n, keeping its memory where that suffices. Values are what they happen to be.
func grown[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n, n+n/4)
	}
	return s[:n]
}
