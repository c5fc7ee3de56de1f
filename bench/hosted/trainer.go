package hosted

import (
	"context"
	"errors"
	"fmt"
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

// roleTrainer is the name of the role of a trainer.
const roleTrainer = "hosted-trainer"

// Roles are the roles of this benchmark.
func Roles() map[string]harness.Role {
	return map[string]harness.Role{roleTrainer: trainerRole}
}

// trainerResult is what one trainer found.
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

// lossEvery is how many batches go by from one line about the loss to the next, beginning with the first.
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
