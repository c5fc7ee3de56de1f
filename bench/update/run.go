package update

import (
	"context"
	"fmt"
	"io"
	"time"

	"gradbus/bench/harness"
	"gradbus/internal/connect"
	"gradbus/schema"
)

// Result is what a run found; rates are medians over the runs, and losses those of the last.
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
	team := c.Harness("update", Roles(), out, errs)
	defer func() {
		if e := team.Close(); err == nil {
			err = e
		}
	}()
	url, err := c.Address()
	if err != nil {
		return nil, err
	}
	if url == "" {
		if _, url, err = team.StartServers(ctx, 1, harness.ServerSettings{Procs: c.Procs}); err != nil {
			return nil, err
		}
	}
	trainers, err := team.Start(ctx,
		c.TrainerSpecs(roleTrainer, c.Trainers, url, func(way connect.Flags, _ schema.Member) any {
			return settings{way, of}
		})...)
	if err != nil {
		return nil, err
	}
	if err := team.Gather(ctx, trainers...); err != nil { // each waits when all have joined
		return nil, err
	}
	begun := time.Now()
	if c.Log {
		team.Say(stamped(begun, "Start training"))
	}
	if err := team.Go(ctx, trainers...); err != nil {
		return nil, err
	}
	if found, err = c.collect(ctx, trainers); err != nil {
		return nil, err
	}
	if c.Log {
		finished := time.Now()
		team.Say(stamped(finished, "Finish training"))
		team.Say(stamped(finished, fmt.Sprintf("Time spent training: %.3fs", finished.Sub(begun).Seconds())))
	}
	return found, nil
}

// collect waits for the trainers' results and puts them together.
func (c *Config) collect(ctx context.Context, trainers []*harness.Handle) (*Result, error) {
	job := c.job(c.Flags.Job)
	r := &Result{Trainers: c.Trainers, UpdateSize: job.Group, Model: c.Model}
	for _, p := range job.Parameters {
		r.Parameters += p.Elements()
	}
	var rates []float64
	for _, h := range trainers {
		var t trainerResult
		if err := h.Result(ctx, &t); err != nil {
			return nil, err
		}
		rates = append(rates, float64(t.Updates)/t.Seconds)
		if r.Seconds = max(r.Seconds, t.Seconds); t.Version >= r.Updates {
			r.Updates, r.WeightsSHA256 = t.Version, t.Digest
		}
		if r.BeganMS = max(r.BeganMS, t.BeganMS); r.EndedMS == 0 || t.EndedMS < r.EndedMS {
			r.EndedMS = t.EndedMS
		}
		r.LossFirst += t.First / float64(len(trainers))
		r.LossLast += t.Last / float64(len(trainers))
	}
	// Every trainer counts updates by the versions of its own answers and on its own clock, so that hosts need no common
	// one.
	r.RoundsPerSecond = harness.Median(rates)
	r.PushBytesPerSecond = 4 * float64(r.Parameters) * float64(c.Trainers) * float64(c.Batches) / r.Seconds
	return r, nil
}

// Print writes a result for people.
func (r *Result) Print(to io.Writer) error {
	_, err := fmt.Fprintf(to, "%s, %d trainers, an update for every %d: %.1f updates/s, %.3f GB/s of gradients, %d "+
		"updates, %.3f s\nloss %.6f -> %.6f; weights %.16s\n",
		r.Model, r.Trainers, r.UpdateSize, r.RoundsPerSecond, r.PushBytesPerSecond/1e9, r.Updates, r.Seconds,
		r.LossFirst, r.LossLast, r.WeightsSHA256)
	return err
}
