package update

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/internal/connect"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer"
)

// Result is the result of a run; rates are medians over the runs, and losses those of the last.
type Result struct {
	RoundsPerSecond    float64 `json:"rounds_per_second"`     // updates of the server
	PushBytesPerSecond float64 `json:"push_bytes_per_second"` // of gradients, as float32, from all trainers
	Seconds            float64 `json:"seconds"`               // of the measured batches
	LossFirst          float64 `json:"loss_first"`            // mean over the trainers, of the first batch
	LossLast           float64 `json:"loss_last"`             // of the last
	Updates            uint64  `json:"updates"`               // of the server in all, warm-up included
	Trainers           int     `json:"trainers"`
	UpdateSize         int     `json:"update_size"`
	BeganMS            int64   `json:"began_ms"` // since 1970: when the last trainer had done its warm-up
	EndedMS            int64   `json:"ended_ms"` // since 1970: when the first trainer had done its last batch
	Parameters         int     `json:"parameters"`
	Model              string  `json:"model"`
	WeightsSHA256      string  `json:"weights_sha256"` // of the newest answer
}

// Run runs the benchmark. What members say goes to out or errs, as harness.Flags.Harness tells.
func Run(ctx context.Context, c Config, out, errs io.Writer) (*Result, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	var all []*Result
	for run := range c.Runs {
		found, err := c.once(ctx, run, out, errs)
		if err != nil {
			return nil, err
		}
		all = append(all, found)
	}
	median := func(of func(*Result) float64) float64 {
		var values []float64
		for _, r := range all {
			values = append(values, of(r))
		}
		return harness.Median(values)
	}
	last := *all[len(all)-1]
	last.RoundsPerSecond = median(func(r *Result) float64 { return r.RoundsPerSecond })
	last.PushBytesPerSecond = median(func(r *Result) float64 { return r.PushBytesPerSecond })
	last.Seconds = median(func(r *Result) float64 { return r.Seconds })
	return &last, nil
}

// once is one run: servers, trainers and all.
func (c *Config) once(ctx context.Context, run int, out, errs io.Writer) (found *Result, err error) {
	of := *c
	if run > 0 {
		of.Flags.Job = fmt.Sprintf("%s-%d", c.Flags.Job, run)
	}
	system := harness.System{Title: "update", Roles: Roles(), Servers: 1, Procs: c.Procs, Role: roleTrainer,
		Trainers: c.Trainers, Waits: 1,
		Settings: func(way connect.Flags, _ schema.Member) any { return settings{way, of} }}
	if c.Log {
		var begun time.Time
		system.Begin = func(team *harness.Harness) { // all have joined
			begun = time.Now()
			team.Say(stamped(begun, "Start training"))
		}
		system.End = func(team *harness.Harness) {
			finished := time.Now()
			team.Say(stamped(finished, "Finish training"))
			team.Say(stamped(finished, fmt.Sprintf("Time spent training: %.3fs", finished.Sub(begun).Seconds())))
		}
	}
	trained, err := harness.Once[trainerResult](ctx, &c.Flags, system, out, errs)
	if err != nil {
		return nil, err
	}
	return c.collect(trained), nil
}

// collect puts the trainers' results together.
func (c *Config) collect(trained []trainerResult) *Result {
	job := c.job(c.Flags.Job)
	r := &Result{Trainers: c.Trainers, UpdateSize: job.Group, Model: c.Model}
	for _, p := range job.Parameters {
		r.Parameters += p.Elements()
	}
	var rates []float64
	for _, t := range trained {
		rates = append(rates, float64(t.Updates)/t.Seconds)
		if r.Seconds = max(r.Seconds, t.Seconds); t.Version >= r.Updates {
			r.Updates, r.WeightsSHA256 = t.Version, t.Digest
		}
		if r.BeganMS = max(r.BeganMS, t.BeganMS); r.EndedMS == 0 || t.EndedMS < r.EndedMS {
			r.EndedMS = t.EndedMS
		}
		r.LossFirst += t.First / float64(len(trained))
		r.LossLast += t.Last / float64(len(trained))
	}
	// Every trainer counts updates by the versions of its own answers and on its own clock, so that hosts need no common
	// one.
	r.RoundsPerSecond = harness.Median(rates)
	r.PushBytesPerSecond = 4 * float64(r.Parameters) * float64(c.Trainers) * float64(c.Batches) / r.Seconds
	return r
}

// Print writes a result for people.
func (r *Result) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "%s, %d trainers, an update for every %d: %.1f updates/s, %.3f GB/s of gradients, %d "+
		"updates, %.3f s\nloss %.6f -> %.6f; weights %.16s\n",
		r.Model, r.Trainers, r.UpdateSize, r.RoundsPerSecond, r.PushBytesPerSecond/1e9, r.Updates, r.Seconds,
		r.LossFirst, r.LossLast, r.WeightsSHA256)
	return err
}

// roleTrainer is the role of a trainer.
const roleTrainer = "update-trainer"

// Roles returns the roles of member processes of this system.
func Roles() map[string]harness.Role {
	return map[string]harness.Role{roleTrainer: trainerRole}
}

// trainerResult is the result of one trainer for its measured batches.
type trainerResult struct {
	Seconds float64 `json:"seconds"`  // from the answer to the last batch of the warm-up to that of the last
	Updates uint64  `json:"updates"`  // of the server in that time, as the versions of the answers say
	Version uint64  `json:"version"`  // of the last answer
	BeganMS int64   `json:"began_ms"` // since 1970, by its clock
	EndedMS int64   `json:"ended_ms"`
	First   float64 `json:"first"` // losses: of the first batch of all, and of the last
	Last    float64 `json:"last"`
	Digest  string  `json:"digest"` // SHA-256 of the weights of the last answer
}

// trainerRole joins, waits for the others, and trains.
func trainerRole(ctx context.Context, m *harness.Member) (any, error) {
	var s settings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	c := &s.Config
	m.LimitProcs(c.Procs)
	backend, err := cuda.Open(cuda.Options{Threads: 1})
	if err != nil {
		return nil, err
	}
	defer backend.Close()
	dense, err := cuda.OpenDense(backend, cuda.DenseOptions{})
	if err != nil {
		return nil, err
	}
	defer dense.Close()
	config, err := s.Way.Config(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	config.Backend, config.TelemetryEvery, config.HeartbeatEvery = backend, c.TelemetryEvery, c.HeartbeatEvery
	if config.From, err = c.weights(); err != nil {
		return nil, err
	}
	var says *log
	if c.Log {
		says = &log{member: m}
		config.OnGroup = says.group
	}
	if err := says.begin(); err != nil {
		return nil, err
	}
	session, err := trainer.Join(ctx, config, c.job(c.Flags.Job))
	if err != nil {
		return nil, err
	}
	found, err := c.train(ctx, m, session, says, nn.Env{Backend: backend, Dense: dense})
	_ = session.Abort(err) // the others hear what err says
	if err != nil {
		return nil, err
	}
	return found, nil
}

// train runs the warm-up and the measured batches, in one run: groups continue from one to the other.
func (c *Config) train(ctx context.Context, m *harness.Member, session *trainer.Session, says *log,
	env nn.Env) (*trainerResult, error) {
	first, count := session.Lanes()
	if count != 1 {
		return nil, fmt.Errorf("%d lanes: want one a trainer", count)
	}
	w, err := newWorkload(c, env, first)
	if err != nil {
		return nil, err
	}
	if says != nil {
		says.name = "trainer" + string(session.Member()[1:])
	}
	w.began = func() { says.say("processing one batch") }
	w.Sending = func(*trainer.LaneStep) { says.say("reporting grads") }
	if err := m.Wait(ctx); err != nil {
		return nil, err
	}
	all := c.Warmup + c.Batches
	found, began, from := &trainerResult{}, time.Now(), uint64(0)
	err = session.Run(ctx, w, uint64(all), func(p trainer.Progress) {
		says.say("got updated model")
		if p.Done == 1 {
			found.First = p.Loss
		}
		if p.Done == uint64(c.Warmup) {
			began, from = time.Now(), uint64(p.Version)
		}
		if p.Done == p.Batches {
			found.Last, found.Version = p.Loss, uint64(p.Version)
		}
		m.Progress(int(p.Done), all)
	})
	found.BeganMS, found.EndedMS = began.UnixMilli(), time.Now().UnixMilli()
	found.Seconds, found.Updates = time.Since(began).Seconds(), found.Version-from
	if err == nil {
		var sum [32]byte
		sum, err = session.Digest(ctx)
		found.Digest = hex.EncodeToString(sum[:])
	}
	if errors.Is(err, trainer.ErrJobFailed) && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	return found, err
}

// stamped is a line of the log: the time of day and what happened.
func stamped(at time.Time, text string) string { return at.Format("15:04:05") + " " + text }

// serverStream is the stream of lines that the server is told of by every trainer.
const serverStream = "server"

// log says what happens to a trainer, and what its server tells it, in the words of the program that this one stands
// beside. A nil log says nothing.
type log struct {
	member *harness.Member
	name   string
}

// begin tells the driver who will say something.
func (l *log) begin() error {
	if l == nil {
		return nil
	}
	return l.member.Feed("", serverStream)
}

// say says what has just happened to the trainer.
func (l *log) say(what string) {
	if l != nil {
		now := time.Now()
		_ = l.member.SayAt("", now, stamped(now, l.name+" "+what)) // a driver that is gone ends this member anyway
	}
}

// group says what has become of a group, at the time of the server's clock.
func (l *log) group(g schema.Group) {
	if l == nil || g.Start {
		return
	}
	at, text := time.Unix(0, g.AtNS), "PS updated model"
	if !g.Closed {
		text = fmt.Sprintf("PS got %d/%d updates", g.Parked, g.Size)
	}
	_ = l.member.SayAt(serverStream, at, stamped(at, text))
}

// workload is one trainer's part: the model on its batch. It implements trainer.Workload.
type workload struct {
	model
	trainer.NetWorkload
	batchSize int
	seed      uint64
	x         []float32 // inputs of the batch under way
	labels    []float32 // of every batch, [batchSize, out]

	began func() // a batch is about to be computed; nil for nothing
}

func newWorkload(c *Config, env nn.Env, l lane.Lane) (*workload, error) {
	m := c.module()
	net, err := nn.NewNet(m, m.in, env)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", c.Model, err)
	}
	w := &workload{model: m, batchSize: c.BatchSize, seed: c.Seed}
	w.Net = net
	w.Samples = func(schema.Batch, lane.Lane) int { return w.batchSize }
	w.Input = func(step *trainer.LaneStep) ([]float32, error) {
		w.draw(uint64(step.Batch), uint64(step.Lane))
		return w.x, nil
	}
	w.Loss = func(step *trainer.LaneStep, y, gradY []float32) (float64, error) {
		return w.loss(y, w.labels, gradY, float32(w.out))
	}
	size := c.BatchSize
	for _, n := range m.in {
		size *= n
	}
	w.x, w.labels = make([]float32, size), w.drawLabels(uint64(l))
	return w, nil
}

// draw makes the inputs of a batch and lane, whose values are used in no other one.
func (w *workload) draw(batch, lane uint64) {
	r := philox.New(w.seed, "update input", batch, lane, 0)
	for i := range w.x {
		w.x[i] = float32(r.Normal())
	}
}

// drawLabels gives the labels of a lane: zeros, or of the sample at each place in its batches a 1 for its class.
func (w *workload) drawLabels(lane uint64) []float32 {
	labels := make([]float32, w.batchSize*w.out)
	if r := philox.New(w.seed, "update label", lane, 0, 0); w.classes {
		for i := range w.batchSize {
			labels[i*w.out+int(r.Below(uint32(w.out)))] = 1
		}
	}
	return labels
}

// Lane implements trainer.Workload. The loss of a sample is the mean over its outputs, so that the mean over the
// samples of a batch is what PyTorch's losses with reduction "mean" give.
func (w *workload) Lane(step *trainer.LaneStep) (lossSum float64, err error) {
	if w.began != nil {
		w.began()
	}
	return w.NetWorkload.Lane(step)
}
