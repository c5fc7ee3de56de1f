package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
)

// bodyJob has a layer at the trainers, and behind it a head that a shard hosts; one optimizer is over both.
func bodyJob(name string, trainers int, apply string) (*schema.Job, nn.Module) {
	body := nn.Sequential(nn.LinearLayer{In: 6, Out: 4}, nn.ReLU{})
	job := moduleJob(name, trainers, schema.ConsistencySync)
	job.Apply, job.Lanes = apply, 2*trainers
	job.Modules = []schema.ModuleSpec{{Name: "head", Seed: 3, In: []int{4}, Samples: 4, Contexts: 2 * trainers,
		Module: `[{"linear":{"in":4,"out":3}}]`}}
	for _, p := range body.Parameters() {
		job.Parameters = append(job.Parameters, schema.Parameter{Name: "body." + p.Name, Shape: p.Shape,
			Init: schema.Init{Kind: p.Kind, Scale: p.Scale}})
	}
	return job, body
}

// bodySamples is how many samples a lane has.
func bodySamples(b schema.Batch, l lane.Lane) int { return 1 + (int(b)+int(l))%4 }

// bodyLane computes a lane: the body here, the head wherever forward and backward go.
func bodyLane(net *nn.Net, params [][]float32, b schema.Batch, l lane.Lane, grads [][]float32,
	head func(x, target []float32) (gradX []float32, lossSum float64, err error)) (float64, error) {
	x, target := moduleInput(uint64(b), uint64(l), 6, 3)
	n := bodySamples(b, l)
	for len(x) < 6*n {
		x, target = append(x, x...), append(target, target...)
	}
	features, err := net.Forward(params, x[:6*n], nn.Mode{Train: true})
	if err != nil {
		return 0, err
	}
	gradX, loss, err := head(slices.Clone(features), target[:3*n])
	if err != nil {
		return 0, err
	}
	_, err = net.Backward(params, gradX, func(i int) []float32 { return grads[i] }, nil)
	return loss, err
}

// trainBody runs batches of a trainer, in which both parts step by one Commit.
func trainBody(ctx context.Context, s *Session, body nn.Module, batches int) error {
	return trainBodySlowly(ctx, s, body, batches, 0)
}

// trainBodySlowly has trainer t1 pause before each Commit.
func trainBodySlowly(ctx context.Context, s *Session, body nn.Module, batches int, pause time.Duration) error {
	net, err := nn.NewNet(body, []int{6}, nn.Env{Backend: s.Backend()})
	if err != nil {
		return err
	}
	head, err := s.Module("head")
	if err != nil {
		return err
	}
	for range batches {
		b, err := s.Next()
		if err != nil {
			return err
		}
		for _, l := range b.Lanes() {
			b.Samples(l, bodySamples(b.Number(), l))
		}
		if err := b.Fetch(ctx); err != nil {
			return err
		}
		for _, l := range b.Lanes() {
			step, err := b.Lane(l)
			if err != nil {
				return err
			}
			var params, grads [][]float32
			for _, p := range body.Parameters() {
				params, grads = append(params, step.Param("body."+p.Name)), append(grads, step.Grad("body."+p.Name))
			}
			loss, err := bodyLane(net, params, b.Number(), l, grads, func(x, target []float32) ([]float32, float64, error) {
				pass, y, err := head.Forward(ctx, b.Number(), l, x)
				if err != nil {
					return nil, 0, err
				}
				gradY := make([]float32, len(y))
				sum, err := nn.MSE(y, target, gradY, 1)
				if err != nil {
					return nil, 0, err
				}
				gradX, err := pass.BackwardInput(ctx, gradY)
				step.Step(pass)
				return gradX, sum, err
			})
			if err != nil {
				return err
			}
			if err := step.End(loss); err != nil {
				return err
			}
		}
		if pause > 0 && s.joined.Member == "t1" {
			time.Sleep(pause)
		}
		if err := b.Commit(ctx); err != nil {
			return err
		}
	}
	return s.Finish(ctx)
}

// A trainer's own parameters and those of a hosted module in one job: both parts are, bit for bit and momentum
// included, those of the same steps of one process, wherever the own parameters are kept.
func TestOwnParametersBesideAHostedModule(t *testing.T) {
	const batches = 4
	for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		job, body := bodyJob("beside-"+apply, 1, apply)
		s := joinAll(t, testConfig(t, startServer(t, 2)), job)[0]
		own := &schema.Job{Seed: job.Seed, Parameters: job.Parameters, Optimizer: job.Optimizer}
		o := newModuleOracle(t, job, 0)
		net, err := nn.NewNet(body, []int{6}, nn.Env{Backend: o.backend})
		if err != nil {
			t.Fatal(err)
		}
		var params, momentum [][]float32
		for _, p := range own.Parameters {
			params, momentum = append(params, slices.Clone(s.Param(p.Name))), append(momentum, make([]float32, p.Elements()))
		}
		for b := range schema.Batch(batches) {
			bodySum, headSum, samples := zerosLike(params), zerosLike(o.versions[b]), 0
			for l := range lane.Lane(2) {
				grads := zerosLike(params)
				if _, err := bodyLane(net, params, b, l, grads, func(x, target []float32) ([]float32, float64, error) {
					y, err := o.net.Forward(o.versions[b], x, nn.Mode{Train: true})
					if err != nil {
						return nil, 0, err
					}
					gradY, headGrads := make([]float32, len(y)), zerosLike(o.versions[b])
					if _, err := nn.MSE(y, target, gradY, 1); err != nil {
						return nil, 0, err
					}
					gradX, err := o.net.Backward(o.versions[b], gradY, func(i int) []float32 { return headGrads[i] }, nil)
					addTo(headSum, headGrads, l == 0)
					return gradX, 0, err
				}); err != nil {
					t.Fatal(err)
				}
				addTo(bodySum, grads, l == 0)
				samples += bodySamples(b, l)
			}
			o.step(headSum, float32(samples))
			for i := range params {
				m := cuda.Float32s(momentum[i])
				if err := o.backend.ApplyDense(cuda.ApplyDense{Optimizer: o.sgd, Weight: float32(samples), First: b == 0,
					Slots: []cuda.Slot{{Name: "momentum", Before: m, After: m}}, Param: cuda.Float32s(params[i]),
					Grad: cuda.Float32s(bodySum[i]), Out: cuda.Float32s(params[i])}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := trainBody(testContext(t), s, body, batches); err != nil {
			t.Fatal(err)
		}
		for i, p := range own.Parameters {
			equalValues(t, apply+": "+p.Name, s.Param(p.Name), params[i])
		}
		head, err := s.Module("head")
		if err != nil {
			t.Fatal(err)
		}
		weights, version, err := head.Weights(testContext(t))
		if err != nil || version != batches {
			t.Fatalf("%s: the head is of version %d, want %d: %v", apply, version, batches, err)
		}
		for i, w := range weights {
			equalValues(t, apply+": "+w.Name, w.Values, o.versions[batches][i])
		}
	}
}

// With several trainers the own parameters stay the same everywhere, while each one's batches step the module.
func TestTrainersShareAHostedModule(t *testing.T) {
	const trainers, batches = 3, 5
	job, body := bodyJob("shared", trainers, schema.ApplyMean)
	sessions := joinAll(t, testConfig(t, startServer(t, 2)), job)
	errs := make([]error, trainers)
	var all sync.WaitGroup
	for i, s := range sessions {
		all.Go(func() { errs[i] = trainBody(testContext(t), s, body, batches) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i, s := range sessions[1:] {
		for _, p := range job.Parameters {
			equalValues(t, fmt.Sprintf("%s of trainer %d", p.Name, i+1), s.Param(p.Name), sessions[0].Param(p.Name))
		}
	}
	head, err := sessions[0].Module("head")
	if err != nil {
		t.Fatal(err)
	}
	if _, version, err := head.Weights(testContext(t)); err != nil || version != trainers*batches {
		t.Errorf("the head is of version %d, want %d: %v", version, trainers*batches, err)
	}
}

func zerosLike(all [][]float32) [][]float32 {
	zeros := make([][]float32, len(all))
	for i := range all {
		zeros[i] = make([]float32, len(all[i]))
	}
	return zeros
}

// addTo adds, or where first is set, sets.
func addTo(sum, values [][]float32, first bool) {
	for i := range sum {
		for j := range sum[i] {
			if first {
				sum[i][j] = values[i][j]
			} else {
				sum[i][j] += values[i][j]
			}
		}
	}
}
