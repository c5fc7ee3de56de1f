package average

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/internal/connect"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// trainerSettings are those of one trainer.
type trainerSettings struct {
	System   system        `json:"system"`
	Way      connect.Flags `json:"way"`
	Member   schema.Member `json:"member"` // to ask for; empty is the next that is free
	Jobs     []string      `json:"jobs"`   // one after the other; the first is to warm up
	Device   string        `json:"device"`
	Timeout  time.Duration `json:"timeout"`
	Timeline bool          `json:"timeline"` // spans are wanted
}

// trainerResult is what a trainer found in all runs but the first.
type trainerResult struct {
	Rank  int          `json:"rank"`
	Dense string       `json:"dense"` // whose matrix products
	Runs  []trainerRun `json:"runs"`
}

type trainerRun struct {
	Metrics   metrics `json:"metrics"`
	Spans     []Span  `json:"spans"`
	Batches   uint64  `json:"batches"`
	Samples   uint64  `json:"samples"`
	LossFirst float64 `json:"loss_first"` // mean over this trainer's samples of its first batch
	LossLast  float64 `json:"loss_last"`
	Seconds   float64 `json:"seconds"`
	BytesSent uint64  `json:"bytes_sent"`
	Weights   string  `json:"weights"` // SHA-256
	Run       run     `json:"run"`
}

// trainerRole trains the jobs, in this order.
func trainerRole(ctx context.Context, m *harness.Member) (result any, err error) {
	var s trainerSettings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	e, end, err := openEnv(s.Device)
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := end(); err == nil {
			err = e
		}
	}()
	w, err := newWorkload(&s.System, e)
	if err != nil {
		return nil, err
	}
	found := trainerResult{Dense: e.Dense.Name()}
	for i, job := range s.Jobs {
		r := &recorder{workload: w, hook: hookMetrics(s.System.Hook), spans: s.Timeline}
		rank, err := r.run(ctx, m, &s, e, job, i)
		if err != nil {
			return nil, err
		}
		if found.Rank = rank; i > 0 {
			found.Runs = append(found.Runs, r.found)
		}
	}
	return found, nil
}

// openEnv opens what a trainer computes with on a device: a backend, and the library of matrix products that goes with
// it.
func openEnv(device string) (e nn.Env, end func() error, err error) {
	name, err := devices.find("backend", device)
	if err != nil {
		return e, nil, err
	}
	var o cuda.DenseOptions
	if device == deviceCUDA {
		o.Library = "cublas"
	}
	if e.Backend, err = cuda.Open(cuda.Options{Name: name}); err != nil {
		return e, nil, err
	}
	if e.Dense, err = cuda.OpenDense(e.Backend, o); err != nil {
		return e, nil, errors.Join(err, e.Backend.Close())
	}
	return e, func() error { return errors.Join(e.Dense.Close(), e.Backend.Close()) }, nil
}

// run joins a job, trains it and leaves it.
func (r *recorder) run(ctx context.Context, m *harness.Member, s *trainerSettings, e nn.Env, name string,
	number int) (rank int, err error) {
	job, err := s.System.job(name, e.Dense.Name())
	if err != nil {
		return 0, err
	}
	config, err := s.Way.Config(slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	config.Member, config.Backend, config.Timeline = s.Member, e.Backend, true
	config.ReconnectTimeout, config.LeaveWithin = s.Timeout, s.Timeout
	session, err := trainer.Join(ctx, config, job)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, session.Abort(err)) }()
	if _, err := fmt.Sscanf(string(session.Member()), "t%d", &rank); err != nil {
		return 0, fmt.Errorf("member %q: %w", session.Member(), err)
	}
	steps := s.System.steps()
	r.found.Metrics, r.found.Run = metrics{}, run{session.RunID(), session.Shards()}
	began, sent := time.Now(), session.Stats().Traffic.BytesSent
	err = session.Run(ctx, r, steps, func(p trainer.Progress) {
		r.record(&p)
		m.Progress(number*int(steps)+int(p.Done), len(s.Jobs)*int(steps))
	})
	if err != nil {
		return rank, err
	}
	r.found.Seconds, r.found.BytesSent = time.Since(began).Seconds(), session.Stats().Traffic.BytesSent-sent
	sum, err := session.Digest(ctx)
	if err != nil {
		return rank, err
	}
	r.found.Weights = hex.EncodeToString(sum[:])
	return rank, nil
}
