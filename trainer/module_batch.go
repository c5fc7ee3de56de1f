package trainer

import (
	"context"
	"fmt"
)

// Step has the module of a pass stepped with the batch, so that one optimizer, the job's, moves the parameters of the
// job and those of the module. Commit steps the module by the gradients of all passes that lanes of this trainer were
// given here, divided once by the samples of these passes; the job's parameters take part as ever. The pass has gone
// Backward, and ends with the batch. One that no lane was given is the caller's to Step or to Release.
//
//	pass, y, err := head.Forward(ctx, features, trainer.Pass{Batch: b.Number(), Lane: step.Lane})
//	lossSum, err := loss.Loss(y, classes, gradY)
//	gradFeatures, err := pass.BackwardInput(ctx, gradY)
//	step.Step(pass)
//	copy(step.Grad("weight"), ...)  // from gradFeatures; then step.Done, step.End, b.Commit
func (s *LaneStep) Step(pass *Activation) { s.batch.passes = append(s.batch.passes, pass) }

// stepModules steps the modules of the passes that lanes gave, in the order of the first pass of each.
func (b *Batch) stepModules(ctx context.Context) error {
	for len(b.passes) > 0 {
		module, samples := b.passes[0].module, 0
		var of, rest []*Activation
		for _, p := range b.passes {
			if p.module != module {
				rest = append(rest, p)
				continue
			}
			of, samples = append(of, p), samples+p.samples
		}
		if _, err := module.Step(ctx, samples, of...); err != nil {
			return fmt.Errorf("the batch's %w", err)
		}
		b.passes = rest
	}
	return nil
}
