package mnist

import (
	"fmt"

	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// Workload feeds and computes the lanes of a job; it is a trainer.Workload. The whole model is computed here, with
// parameters that came from the shards, and each parameter's gradient leaves as soon as it is final, while the backward pass
// goes on. It is not safe for concurrent use.
type Workload struct {
	feed  *Feed
	seed  uint64
	net   *nn.Net
	names []string // of the parameters, in the net's order

	step    *trainer.LaneStep // under way
	grad    func(i int) []float32
	done    func(i int)
	params  [][]float32
	x       []float32
	targets []int32
	gradY   []float32
}

var _ trainer.Workload = (*Workload)(nil)

// NewWorkload readies the training samples of data for the job of s and the memory of m. It fails where deal.New does, and
// with nn.ErrShape where m does not take images and give a score for each class.
func NewWorkload(s Settings, data *Data, m nn.Module, e nn.Env) (*Workload, error) {
	if err := checkModel(m); err != nil {
		return nil, err
	}
	net, err := nn.NewNet(m, Input(), e)
	if err != nil {
		return nil, err
	}
	feed, err := NewFeed(s.Seed, &data.Train, s.Batch, s.LaneCount())
	if err != nil {
		return nil, err
	}
	w := &Workload{feed: feed, seed: s.Seed, net: net}
	for _, p := range net.Parameters() {
		w.names = append(w.names, p.Name)
	}
	w.params = make([][]float32, len(w.names))
	w.grad = func(i int) []float32 { return w.step.Grad(w.names[i]) }
	w.done = func(i int) { w.step.Done(w.names[i]) }
	return w, nil
}

// Keys says how many samples a lane has; the model has no tables.
func (w *Workload) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (samples int, out [][]uint64) {
	return len(w.feed.Samples(b, l)), keys
}

// Lane computes forward, loss and backward of a lane. Nothing is allocated once the first batch is through.
func (w *Workload) Lane(step *trainer.LaneStep) (lossSum float64, err error) {
	w.step = step
	w.x, w.targets = w.feed.Fill(step.Batch, step.Lane, w.x[:0], w.targets[:0])
	for i, name := range w.names {
		w.params[i] = step.Param(name)
	}
	y, err := w.net.Forward(w.params, w.x, nn.Mode{Train: true,
		Random: nn.Random{Seed: w.seed, Batch: uint64(step.Batch), Lane: uint64(step.Lane)}})
	if err != nil {
		return 0, err
	}
	if cap(w.gradY) < len(y) {
		w.gradY = make([]float32, len(y))
	}
	w.gradY = w.gradY[:len(y)]
	if lossSum, err = nn.NLL(y, Classes, w.targets, w.gradY); err != nil {
		return 0, err
	}
	_, err = w.net.Backward(w.params, w.gradY, w.grad, w.done)
	return lossSum, err
}

// Params gives dense parameters by name, nil for an unknown one; a *trainer.Session does.
type Params interface {
	Param(name string) []float32
}

var _ Params = (*trainer.Session)(nil)

// evaluationSamples is how many samples are evaluated at once: it bounds the memory, 300 KB a sample.
const evaluationSamples = 100

// Evaluate is the share of a set's images whose highest score is that of their label (of equal scores the first counts), and
// the mean loss, without dropout. It fails with nn.ErrShape where p has not the model's parameters, and where the set is
// empty.
//
//	accuracy, loss, err := mnist.Evaluate(session, mnist.Model(), env, &data.Test)
func Evaluate(p Params, m nn.Module, e nn.Env, set *Set) (accuracy, loss float64, err error) {
	if set.Len() == 0 {
		return 0, 0, fmt.Errorf("evaluate: no samples")
	}
	if err := checkModel(m); err != nil {
		return 0, 0, err
	}
	net, err := nn.NewNet(m, Input(), e)
	if err != nil {
		return 0, 0, err
	}
	var params [][]float32
	for _, q := range net.Parameters() {
		params = append(params, p.Param(q.Name))
	}
	right, unused := 0, make([]float32, evaluationSamples*Classes)
	err = Scan(set, evaluationSamples, func(x []float32, targets []int32) error {
		y, err := net.Forward(params, x, nn.Mode{})
		if err != nil {
			return err
		}
		for i, t := range targets {
			if Highest(y[i*Classes:][:Classes]) == int(t) {
				right++
			}
		}
		sum, err := nn.NLL(y, Classes, targets, unused[:len(y)])
		loss += sum
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("evaluate: %w", err)
	}
	n := float64(set.Len())
	return float64(right) / n, loss / n, nil
}

// Highest is the place of the highest score, the first of equal ones.
func Highest(scores []float32) int {
	best := 0
	for i, s := range scores {
		if s > scores[best] {
			best = i
		}
	}
	return best
}
