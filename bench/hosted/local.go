package hosted

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/examples/mnist"
	"gradbus/nn"
	"gradbus/schema"
)

// LocalResult is what a training step takes without any server, on one thread.
type LocalResult struct {
	LocalStepMS float64 `json:"local_step_ms"` // median: forward, loss, backward and optimizer
	ForwardMS   float64 `json:"forward_ms"`
	BackwardMS  float64 `json:"backward_ms"`
	OptimizerMS float64 `json:"optimizer_ms"`
	BatchSize   int     `json:"batch_size"`
	Library     string  `json:"library"`
}

// Print writes a result for people.
func (r *LocalResult) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to,
		"one step of %d images on one thread with %s: %.2f ms (forward and loss %.2f, backward %.2f, optimizer %.2f)\n",
		r.BatchSize, r.Library, r.LocalStepMS, r.ForwardMS, r.BackwardMS, r.OptimizerMS)
	return err
}

// LocalStep measures training steps of the model in this process, on one thread.
func LocalStep(ctx context.Context, c Config) (found *LocalResult, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	backend, err := cuda.Open(cuda.Options{Threads: 1})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	dense, err := cuda.OpenDense(backend, cuda.DenseOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dense.Close()) }()
	l, err := newLocal(&c, backend, nn.Env{Backend: backend, Dense: dense})
	if err != nil {
		return nil, err
	}
	batches := c.Batches
	if batches == 0 {
		batches = 100
	}
	var times [4][]float64
	for b := range c.Warmup + batches {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		spent, err := l.step(schema.Batch(b))
		if err != nil {
			return nil, err
		}
		for i := range spent {
			if b >= c.Warmup {
				times[i] = append(times[i], spent[i].Seconds()*1000)
			}
		}
	}
	return &LocalResult{LocalStepMS: harness.Median(times[3]), ForwardMS: harness.Median(times[0]),
		BackwardMS:  harness.Median(times[1]),
		OptimizerMS: harness.Median(times[2]), BatchSize: c.BatchSize, Library: dense.Name()}, nil
}

// local is a model, its data and its optimizer.
type local struct {
	backend       cuda.Backend
	net           *nn.Net
	feed          *mnist.Feed
	seed          uint64
	params, grads [][]float32
	optimizer     cuda.Optimizer
	x, gradY      []float32
	targets       []int32
}

func newLocal(c *Config, backend cuda.Backend, env nn.Env) (*local, error) {
	data, err := mnist.Load(c.Data, c.DataDir)
	if err != nil {
		return nil, err
	}
	net, err := nn.NewNet(mnist.Model(), mnist.Input(), env)
	if err != nil {
		return nil, err
	}
	params, err := nn.Initial(mnist.Model(), c.Seed)
	if err != nil {
		return nil, err
	}
	feed, err := mnist.NewFeed(c.Seed, &data.Train, c.BatchSize, 1)
	if err != nil {
		return nil, err
	}
	l := &local{backend: backend, net: net, feed: feed, seed: c.Seed, params: params,
		optimizer: cuda.SGD{LR: float32(c.LR)}}
	for _, p := range params {
		l.grads = append(l.grads, make([]float32, len(p)))
	}
	return l, nil
}

// step is one training step: the time of forward and loss, backward, optimizer, and all.
func (l *local) step(b schema.Batch) (spent [4]time.Duration, err error) {
	l.x, l.targets = l.feed.Fill(b, 0, l.x[:0], l.targets[:0])
	began := time.Now()
	y, err := l.net.Forward(l.params, l.x, nn.Mode{Train: true, Random: nn.Random{Seed: l.seed, Batch: uint64(b)}})
	if err != nil {
		return spent, err
	}
	l.gradY = append(l.gradY[:0], y...)
	if _, err := nn.NLL(y, mnist.Classes, l.targets, l.gradY); err != nil {
		return spent, err
	}
	forward := time.Now()
	if _, err := l.net.Backward(l.params, l.gradY, func(i int) []float32 { return l.grads[i] }, nil); err != nil {
		return spent, err
	}
	backward := time.Now()
	for i, p := range l.params {
		if err := l.backend.ApplyDense(cuda.ApplyDense{Optimizer: l.optimizer, Weight: float32(len(l.targets)),
			Param: cuda.Float32s(p),
			Grad:  cuda.Float32s(l.grads[i]), Out: cuda.Float32s(p)}); err != nil {
			return spent, err
		}
	}
	end := time.Now()
	return [4]time.Duration{forward.Sub(began), backward.Sub(forward), end.Sub(backward), end.Sub(began)}, nil
}
