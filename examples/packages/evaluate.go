package packages

import (
	"context"
	"fmt"

	"gradbus/cuda"
	"gradbus/examples/packages/corpus"
	"gradbus/trainer"
)

// Weights gives the weights of a model in training; a *trainer.Session is one.
type Weights interface {
	// Lookup gives the rows [len(Keys), dim] of each of asks.
	Lookup(ctx context.Context, asks []trainer.TableKeys) ([][]float32, error)
	// Param gives a dense parameter.
	Param(name string) []float32
}

var _ Weights = (*trainer.Session)(nil)

// evaluationSamples is how many samples are evaluated at once: it bounds the rows that are held, about 10 a sample.
const evaluationSamples = 4096

// Evaluate is the share of examples whose highest score is that of their class; of equal scores the first counts. dim
// and classes are those of the model. It fails where the lookup or the backend does, and where the set is empty.
//
//	accuracy, err := packages.Evaluate(ctx, session, backend, settings.Dim, len(data.Classes), &data.Test)
func Evaluate(ctx context.Context, w Weights, backend cuda.Backend, dim, classes int, set *corpus.Examples) (float64,
	error) {
	if set.Len() == 0 {
		return 0, fmt.Errorf("evaluate: no examples")
	}
	e := evaluator{weights: w, layers: newLayers(backend, dim, classes), dim: dim, classes: classes}
	right := 0
	for lo := 0; lo < set.Len(); lo += evaluationSamples {
		hi := min(lo+evaluationSamples, set.Len())
		keys := set.Keys[set.Offsets[lo]:set.Offsets[hi]]
		e.offsets = e.offsets[:0]
		for _, at := range set.Offsets[lo : hi+1] {
			e.offsets = append(e.offsets, at-set.Offsets[lo])
		}
		logits, err := e.scores(ctx, keys)
		if err != nil {
			return 0, fmt.Errorf("evaluate examples %d to %d: %w", lo, hi, err)
		}
		for i, label := range set.Labels[lo:hi] {
			if highest(logits[i*classes:][:classes]) == int(label) {
				right++
			}
		}
	}
	return float64(right) / float64(set.Len()), nil
}

// evaluator runs the model forward.
type evaluator struct {
	weights        Weights
	layers         *layers
	dim, classes   int
	ids            []int64
	offsets        []int64 // [n+1] of the samples in hand
	pooled, logits []float32
}

// scores gives the logits [n, classes] of samples whose keys begin at e.offsets. They are valid until the next call.
func (e *evaluator) scores(ctx context.Context, keys []uint64) ([]float32, error) {
	rows, err := e.weights.Lookup(ctx, []trainer.TableKeys{{Table: 0, Keys: keys}})
	if err != nil {
		return nil, err
	}
	for len(e.ids) < len(keys) {
		e.ids = append(e.ids, int64(len(e.ids)))
	}
	n := len(e.offsets) - 1
	e.pooled, e.logits = grown(e.pooled, n*e.dim), grown(e.logits, n*e.classes)
	if err := e.layers.bag.Forward(rows[0], e.ids[:len(keys)], e.offsets, e.pooled); err != nil {
		return nil, err
	}
	err = e.layers.linear.Forward(e.weights.Param(weightName), e.weights.Param(biasName), e.pooled, e.logits)
	return e.logits, err
}

func highest(scores []float32) int {
	best := 0
	for i, s := range scores {
		if s > scores[best] {
			best = i
		}
	}
	return best
}
