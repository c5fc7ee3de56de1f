package hosted

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/examples/mnist"
	"gradbus/internal/connect"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// Result is the result of a run; figures are medians over the runs, accuracy, losses and digest those of the last.
type Result struct {
	ImagesPerSecond float64 `json:"images_per_second"` // of all trainers together, after the warm-up
	Accuracy        float64 `json:"accuracy"`          // on the test set, at the end
	TestImages      int     `json:"test_images"`       // of the test set: all of them
	Loss            float64 `json:"loss"`              // on the test set, mean
	Seconds         float64 `json:"seconds"`           // of the measured batches, until the last trainer had its own
	TrainLoss       float64 `json:"train_loss"`        // of the last batch of each trainer, mean
	Trainers        int     `json:"trainers"`
	Mode            string  `json:"mode"`
	Sync            string  `json:"sync,omitempty"` // in mode pull
	Data            string  `json:"data"`
	Synthetic       bool    `json:"synthetic"` // the accuracy says nothing about real images
	Library         string  `json:"library,omitempty"`
	WeightsSHA256   string  `json:"weights_sha256"`
}

// Run runs the benchmark. What members say goes to out or errs, as harness.Flags.Harness tells.
func Run(ctx context.Context, c Config, out, errs io.Writer) (*Result, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	data, err := mnist.Load(c.Data, c.DataDir) // so that what is wrong with it is said once
	if err != nil {
		return nil, fmt.Errorf("data %s: %w", c.Data, err)
	}
	var last *Result
	var rates, seconds []float64
	for run := range c.Runs {
		if last, err = c.once(ctx, run, out, errs); err != nil {
			return nil, err
		}
		rates, seconds = append(rates, last.ImagesPerSecond), append(seconds, last.Seconds)
	}
	last.ImagesPerSecond, last.Seconds, last.Synthetic = harness.Median(rates), harness.Median(seconds), data.Synthetic
	return last, nil
}

// once is one run: server, trainers and all.
func (c *Config) once(ctx context.Context, run int, out, errs io.Writer) (found *Result, err error) {
	of := *c
	if run > 0 {
		of.Job = fmt.Sprintf("%s-%d", c.Job, run)
	}
	part := -1
	// they wait to begin, when all have trained, and when all have looked at the weights
	trained, err := harness.Once[trainerResult](ctx, &c.Flags, harness.System{Title: "hosted", Roles: Roles(), Servers: 1,
		Role: roleTrainer, Trainers: c.Trainers, Waits: 3, Settings: func(way connect.Flags, member schema.Member) any {
			part++
			return settings{way, member, of, part}
		}}, out, errs)
	if err != nil {
		return nil, err
	}
	found = &Result{Trainers: c.Trainers, Mode: c.Mode, Data: c.Data}
	if c.Mode == pull {
		found.Sync = c.Sync
	}
	images, right := 0, 0
	for _, t := range trained {
		images, right = images+t.Images, right+t.Right
		found.TestImages += t.Seen
		found.Seconds = max(found.Seconds, t.Seconds)
		found.Loss += t.LossSum
		found.TrainLoss += t.Loss / float64(len(trained))
		found.Library, found.WeightsSHA256 = t.Library, t.Digest
	}
	found.ImagesPerSecond = float64(images) / found.Seconds
	found.Loss /= float64(max(1, found.TestImages))
	found.Accuracy = float64(right) / float64(max(1, found.TestImages))
	return found, nil
}

// Print writes a result for people.
func (r *Result) Print(to io.Writer) error {
	of := ""
	if r.Synthetic {
		of = " (generated, which are easy)"
	}
	mode := r.Mode
	if r.Sync != "" {
		mode += " " + r.Sync
	}
	_, err := fmt.Fprintf(to,
		"%s, %d trainers, %s: %.0f images/s for %.1f s; accuracy %.4f on %d test images%s, loss %.4f; weights %.16s\n",
		mode, r.Trainers, r.Data, r.ImagesPerSecond, r.Seconds, r.Accuracy, r.TestImages, of, r.Loss, r.WeightsSHA256)
	return err
}

// roleTrainer is the name of the role of a trainer.
const roleTrainer = "hosted-trainer"

// Roles are the roles of this benchmark.
func Roles() map[string]harness.Role {
	return map[string]harness.Role{roleTrainer: trainerRole}
}

// trainerResult is the result of one trainer.
type trainerResult struct {
	Images  int     `json:"images"`  // that were trained on while time was taken
	Seconds float64 `json:"seconds"` // that this took
	Loss    float64 `json:"loss"`    // of the last batch, mean over its samples
	Seen    int     `json:"seen"`    // of its part of the test set
	Right   int     `json:"right"`
	LossSum float64 `json:"loss_sum"` // over these
	Digest  string  `json:"digest"`   // of the weights at the end
	Library string  `json:"library"`  // that computed here; empty where the server did
}

// lossEvery is the number of batches from one line about the loss to the next, beginning with the first.
const lossEvery = 5

// runner is one trainer.
type runner struct {
	config  Config
	member  *harness.Member
	way     connect.Flags
	id      schema.Member // to ask for; empty is the next that is free
	part    int
	data    *mnist.Data
	backend cuda.Backend
	session *trainer.Session
	others  connect.Meeting

	all, warmup int
	began       time.Time
	images      int
	result      trainerResult
}

func trainerRole(ctx context.Context, m *harness.Member) (result any, err error) {
	var s settings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	r := &runner{config: s.Config, member: m, way: s.Way, id: s.Member, part: s.Part}
	if r.data, err = mnist.Load(r.config.Data, r.config.DataDir); err != nil {
		return nil, err
	}
	if r.backend, err = cuda.Open(cuda.Options{}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.backend.Close()) }()
	work := r.pull
	if r.config.Mode == remote {
		work = r.remote
	}
	if err := work(ctx); err != nil {
		return nil, err
	}
	return r.result, nil
}

// join joins the job. The caller leaves by leave.
func (r *runner) join(ctx context.Context, job *schema.Job) (err error) {
	config, err := r.way.Config(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	config.Member, config.Backend = r.id, r.backend
	r.session, err = trainer.Join(ctx, config, job)
	r.others = connect.Meeting{Config: config, Session: r.session, Apart: r.config.Apart(r.config.Trainers)}
	return err
}

// leave says how it went.
func (r *runner) leave(err error) error { return errors.Join(err, r.session.Abort(err)) }

// lane is the one that this trainer hosts.
func (r *runner) lane() lane.Lane {
	first, _ := r.session.Lanes()
	return first
}

// plan says how many batches there are.
func (r *runner) plan(perEpoch int) { r.all, r.warmup = r.config.batches(perEpoch) }

// batchDone notes a batch; the b-th, from 0.
func (r *runner) batchDone(b, samples int, lossSum float64) error {
	if b >= r.warmup {
		r.images += samples
	}
	r.member.Progress(b+1, r.all)
	r.result.Loss = lossSum / float64(max(1, samples))
	if b%lossEvery != 0 {
		return nil
	}
	return r.member.Say(fmt.Sprintf("%s training batch %d loss %.4f", r.session.Member(), b, r.result.Loss))
}

// begin waits for the others and takes the time; end takes it again and waits until all have trained.
func (r *runner) begin(ctx context.Context) error {
	err := r.wait(ctx, "warm")
	r.began = time.Now()
	return err
}

func (r *runner) end(ctx context.Context) error {
	r.result.Seconds, r.result.Images = time.Since(r.began).Seconds(), r.images
	return r.wait(ctx, "trained")
}

// wait waits for the trainers of this host, and of others.
func (r *runner) wait(ctx context.Context, occasion string) error {
	if err := r.member.Wait(ctx); err != nil {
		return err
	}
	return r.others.Wait(ctx, occasion)
}

// test has a pass of the model over this trainer's part of the test set, which those of one host share: so each host
// has gone through all of it.
func (r *runner) test(pass func(x []float32) (y []float32, err error)) error {
	all := &r.data.Test
	lo, hi := lane.Slice(lane.Lane(r.part), r.config.TrainersHere(r.config.Trainers), all.Len())
	part := &mnist.Set{Images: all.Images[lo*mnist.Pixels : hi*mnist.Pixels], Labels: all.Labels[lo:hi]}
	return mnist.Scan(part, evaluationSamples, func(x []float32, targets []int32) error {
		y, err := pass(x)
		if err != nil {
			return err
		}
		return r.score(y, targets)
	})
}

// score notes what the model made of some of the test set.
func (r *runner) score(y []float32, targets []int32) error {
	sum, err := nn.NLL(y, mnist.Classes, targets, make([]float32, len(y)))
	if err != nil {
		return err
	}
	r.result.LossSum += sum
	for i, t := range targets {
		r.result.Seen++
		if mnist.Highest(y[i*mnist.Classes:][:mnist.Classes]) == int(t) {
			r.result.Right++
		}
	}
	return nil
}

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
		x, targets = feed.Fill(schema.Batch(b), r.lane(), x[:0], targets[:0])
		pass, y, err := module.Forward(ctx, schema.Batch(b), r.lane(), x)
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

// LocalResult is the time of a training step without a server, on one thread.
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
