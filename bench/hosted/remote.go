package hosted

import (
	"context"
	"fmt"

	"gradbus/examples/mnist"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// remote trains a model that the server holds: inputs go there and outputs come back, the gradient of the loss goes
// there, and the server steps.
func (r *runner) remote(ctx context.Context) (err error) {
	if err := r.join(ctx, r.config.remoteJob(r.data)); err != nil {
		return err
	}
	defer func() { err = r.leave(err) }()
	module, err := r.session.Module(moduleName)
	if err != nil {
		return err
	}
	feed, err := mnist.NewFeed(r.config.Seed, &r.data.Train, r.config.BatchSize*r.config.Trainers, r.config.Trainers)
	if err != nil {
		return err
	}
	r.plan(feed.PerEpoch())
	if err := r.remoteBatches(ctx, module, feed); err != nil {
		return err
	}
	if err := r.end(ctx); err != nil {
		return err
	}
	if err := r.test(func(x []float32) ([]float32, error) { return module.Evaluate(ctx, x) }); err != nil {
		return err
	}
	digest, err := module.Digest(ctx)
	r.result.Digest = fmt.Sprintf("%x", digest)
	if err != nil {
		return err
	}
	// an early leave would end no context, but the job if all others have left too
	return r.wait(ctx, "tested")
}

func (r *runner) remoteBatches(ctx context.Context, module *trainer.Module, feed *mnist.Feed) error {
	var x, gradY []float32
	var targets []int32
	for b := range r.all {
		if b == r.warmup {
			if err := r.begin(ctx); err != nil {
				return err
			}
		}
		at := trainer.Pass{Batch: schema.Batch(b), Lane: r.lane()}
		x, targets = feed.Fill(at.Batch, at.Lane, x[:0], targets[:0])
		pass, y, err := module.Forward(ctx, x, at)
		if err != nil {
			return err
		}
		gradY = append(gradY[:0], y...)
		lossSum, err := nn.NLL(y, mnist.Classes, targets, gradY)
		if err != nil {
			return err
		}
		if _, err := pass.BackwardStep(ctx, gradY, len(targets)); err != nil {
			return err
		}
		if err := r.batchDone(b, len(targets), lossSum); err != nil {
			return err
		}
	}
	return nil
}
