package hosted

import (
	"context"
	"errors"
	"fmt"

	"gradbus/cuda"
	"gradbus/examples/mnist"
	"gradbus/nn"
	"gradbus/trainer"
)

// chunkBytes is the largest chunk whose message the NATS server passes on as it was read.
const chunkBytes = 65024

// pull trains a model that the server keeps the parameters of: they come here, and gradients go there.
func (r *runner) pull(ctx context.Context) (err error) {
	dense, err := cuda.OpenDense(r.backend, cuda.DenseOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dense.Close()) }()
	env := nn.Env{Backend: r.backend, Dense: dense}
	r.result.Library = dense.Name()
	model, s := mnist.Model(), r.config.pullSettings()
	job := mnist.Job(s, r.data, model, dense.Name())
	job.ChunkBytes = chunkBytes
	if err := r.join(ctx, job); err != nil {
		return err
	}
	defer func() { err = r.leave(err) }()
	workload, err := mnist.NewWorkload(s, r.data, model, env)
	if err != nil {
		return err
	}
	r.plan(s.BatchesPerEpoch(r.data.Train.Len()))
	done := 0
	run := func(batches int) error {
		var saying error
		err := r.session.Run(ctx, workload, uint64(batches), func(p trainer.Progress) {
			saying = errors.Join(saying, r.batchDone(done, p.Samples, p.Loss*float64(p.Samples)))
			done++
		})
		return errors.Join(err, saying)
	}
	if r.warmup > 0 {
		if err := run(r.warmup); err != nil {
			return err
		}
	}
	if err := r.begin(ctx); err != nil {
		return err
	}
	if err := run(r.all - r.warmup); err != nil {
		return err
	}
	if err := r.end(ctx); err != nil {
		return err
	}
	if err := r.evaluateHere(model, env); err != nil {
		return err
	}
	digest, err := r.session.Digest(ctx)
	r.result.Digest = fmt.Sprintf("%x", digest)
	return errors.Join(err, r.wait(ctx, "tested"))
}

// evaluateHere goes through this trainer's part of the test set with the parameters as it has them.
func (r *runner) evaluateHere(model nn.Module, env nn.Env) error {
	net, err := nn.NewNet(model, mnist.Input(), env)
	if err != nil {
		return err
	}
	var params [][]float32
	for _, p := range net.Parameters() {
		params = append(params, r.session.Param(p.Name))
	}
	return r.test(func(x []float32) ([]float32, error) { return net.Forward(params, x, nn.Mode{}) })
}
