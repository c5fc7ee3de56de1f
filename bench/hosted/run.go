package hosted

import (
	"context"
	"fmt"
	"io"

	"gradbus/bench/harness"
	"gradbus/examples/mnist"
	"gradbus/internal/connect"
	"gradbus/schema"
)

// Result is what a run found; figures are medians over the runs, accuracy, losses and digest those of the last.
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
	team := c.Harness("hosted", Roles(), out, errs)
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
		if _, url, err = team.StartServers(ctx, 1, harness.ServerSettings{}); err != nil {
			return nil, err
		}
	}
	part := -1
	trainers, err := team.Start(ctx,
		c.TrainerSpecs(roleTrainer, c.Trainers, url, func(way connect.Flags, member schema.Member) any {
			part++
			return settings{way, member, of, part}
		})...)
	if err != nil {
		return nil, err
	}
	for range 3 { // to begin, when all have trained, and when all have looked at the weights
		if err := team.Go(ctx, trainers...); err != nil {
			return nil, err
		}
	}
	return c.collect(ctx, trainers)
}

// collect waits for the trainers' results and puts them together.
func (c *Config) collect(ctx context.Context, trainers []*harness.Handle) (*Result, error) {
	found := &Result{Trainers: c.Trainers, Mode: c.Mode, Data: c.Data}
	if c.Mode == pull {
		found.Sync = c.Sync
	}
	images, right := 0, 0
	for _, h := range trainers {
		var t trainerResult
		if err := h.Result(ctx, &t); err != nil {
			return nil, err
		}
		images, right = images+t.Images, right+t.Right
		found.TestImages += t.Seen
		found.Seconds = max(found.Seconds, t.Seconds)
		found.Loss += t.LossSum
		found.TrainLoss += t.Loss / float64(len(trainers))
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
