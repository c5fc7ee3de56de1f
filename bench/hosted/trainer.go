package hosted

import (
	"context"
	"errors"
	"fmt"
	"time"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/examples/mnist"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// RoleTrainer is the name of the role of a trainer.
const RoleTrainer = "hosted-trainer"

// Roles are the roles of this benchmark.
func Roles() map[string]harness.Role {
	return map[string]harness.Role{RoleTrainer: trainerRole}
}

// trainerResult is what one trainer found.
type trainerResult struct {
	Images  int     `json:"images"`  // that were trained on while time was taken
	Seconds float64 `json:"seconds"` // that this took
	Loss    float64 `json:"loss"`    // of the last batches, mean
	Seen    int     `json:"seen"`    // of its share of the test set
	Right   int     `json:"right"`
	LossSum float64 `json:"loss_sum"` // over these
	Digest  string  `json:"digest"`   // of the weights at the end
	Library string  `json:"library"`  // that computed here; empty where the server did
}

// lossEvery is how many batches go by from one line about the loss to the next.
const lossEvery = 5

// runner is one trainer.
type runner struct {
	config  Config
	member  *harness.Member
	url     string
	id      schema.Member // to ask for; empty is the next that is free
	data    *mnist.Data
	backend cuda.Backend
	session *trainer.Session

	all, warmup int
	began       time.Time
	images      int
	lossSum     float64 // since the last line
	lossCount   int
	result      trainerResult
}

func trainerRole(ctx context.Context, m *harness.Member) (result any, err error) {
	var s settings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	r := &runner{config: s.Config, member: m, url: s.URL, id: s.Member}
	if r.data, err = mnist.Load(r.config.Data, r.config.DataDir); err != nil {
		return nil, err
	}
	if r.backend, err = cuda.Open(cuda.Options{}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.backend.Close()) }()
	work := r.pull
	if r.config.Mode == Remote {
		work = r.remote
	}
	if err := work(ctx); err != nil {
		return nil, err
	}
	return r.result, nil
}

// join joins the job. The caller leaves by leave.
func (r *runner) join(ctx context.Context, job *schema.Job) (err error) {
	r.session, err = trainer.Join(ctx, trainer.Config{Server: r.url, Member: r.id, Backend: r.backend}, job)
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
	r.lossSum, r.lossCount = r.lossSum+lossSum, r.lossCount+samples
	r.member.Progress(b+1, r.all)
	if (b+1)%lossEvery != 0 && b+1 != r.all {
		return nil
	}
	r.result.Loss = r.lossSum / float64(max(1, r.lossCount))
	r.lossSum, r.lossCount = 0, 0
	return r.member.Say(fmt.Sprintf("%s batch %d of %d: loss %.4f", r.session.Member(), b+1, r.all, r.result.Loss))
}

// begin waits for the others and takes the time; end takes it again and waits until all have trained.
func (r *runner) begin(ctx context.Context) error {
	err := r.member.Wait(ctx)
	r.began = time.Now()
	return err
}

func (r *runner) end(ctx context.Context) error {
	r.result.Seconds, r.result.Images = time.Since(r.began).Seconds(), r.images
	return r.member.Wait(ctx)
}

// share is this trainer's part of the test set.
func (r *runner) share() *mnist.Set {
	all := &r.data.Test
	lo, hi := lane.Slice(r.lane(), r.config.Trainers, all.Len())
	return &mnist.Set{Images: all.Images[lo*mnist.Pixels : hi*mnist.Pixels], Labels: all.Labels[lo:hi]}
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
