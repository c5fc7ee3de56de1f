package mnist

import (
	"fmt"

	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// NewWorkload makes the workload of the training samples of data for the job of s and the memory of m. The whole model
// is computed here, with parameters that came from the shards. It fails where shuffle.New does, and with nn.ErrShape
// where m does not take images and give a score for each class. The workload is not safe for concurrent use.
func NewWorkload(s Settings, data *Data, m nn.Module, e nn.Env) (trainer.Workload, error) {
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
	var x []float32
	var targets []int32
	return &trainer.NetWorkload{Net: net, Seed: s.Seed,
		Samples: func(b schema.Batch, l lane.Lane) int { return len(feed.Samples(b, l)) },
		Input: func(step *trainer.LaneStep) ([]float32, error) {
			x, targets = feed.Fill(step.Batch, step.Lane, x[:0], targets[:0])
			return x, nil
		},
		Loss: func(_ *trainer.LaneStep, y, gradY []float32) (float64, error) {
			return nn.NLL(y, Classes, targets, gradY)
		},
	}, nil
}

// Params gives dense parameters by name, nil for an unknown one; a *trainer.Session does.
type Params interface {
	Param(name string) []float32
}

var _ Params = (*trainer.Session)(nil)

// evaluationSamples is how many samples are evaluated at once: it bounds the memory, 300 KB a sample.
const evaluationSamples = 100

// Evaluate is the share of a set's images whose highest score is that of their label (of equal scores the first
// counts), and the mean loss, without dropout. It fails with nn.ErrShape where p has not the model's parameters, and
// where the set is empty.
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
