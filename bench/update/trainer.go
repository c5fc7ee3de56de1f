package update

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/nn"
	"gradbus/trainer"
)

// roleTrainer is the role of a trainer.
const roleTrainer = "update-trainer"

// Roles are what member processes of this system can be.
func Roles() map[string]harness.Role {
	return map[string]harness.Role{roleTrainer: trainerRole}
}

// trainerResult is what one trainer has to say of its measured batches.
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
