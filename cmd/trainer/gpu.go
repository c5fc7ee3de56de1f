package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"gradbus/cuda"
	"gradbus/internal/gpu"
	"gradbus/internal/report"
)

// watchGPUs watches the GPUs where this process computes on one, and gives a context that ends, with the GPU's reason
// as its cause, when it must not any more, until trained is called. It takes some hundred milliseconds where there is a
// GPU, and nothing elsewhere.
func (o *common) watchGPUs(ctx context.Context) (watched context.Context, stop func(), err error) {
	if !o.gpu.Takes(o.backend) && o.gpu.Mode != string(gpu.Require) {
		return ctx, func() {}, o.gpu.Check()
	}
	m, err := o.gpu.Watch(ctx, o.backend, cuda.LacksCUDA(), o.log)
	if err != nil {
		return nil, nil, err
	}
	watched, cancel := context.WithCancelCause(ctx)
	trained, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(fitEvery)
		defer tick.Stop()
		for {
			select {
			case <-watched.Done():
				return
			case <-trained:
				return
			case <-tick.C:
				if err := m.Fit(); err != nil {
					cancel(&unfitError{err})
					return
				}
			}
		}
	}()
	o.gpus, o.watchedFrom = m, time.Now()
	o.endTraining = sync.OnceFunc(func() { close(trained); <-ended })
	return watched, func() { cancel(nil); <-ended; m.Close() }, nil
}

// trained says that the training is over: from now on a fault of the GPU makes what was trained suspect, rather than
// end the process and lose it, and other faults end this process alone.
func (o *common) trained() {
	if o.events != "" {
		_ = report.Event{Trained: true}.Write(o.out) // a parent that is gone ends this process anyway
	}
	if o.endTraining != nil {
		o.endTraining()
	}
}

// blame gives the GPU's reason for an error after the training, where it has one.
func (o *common) blame(err error) error {
	if err == nil || o.gpus == nil {
		return err
	}
	if unfit := o.gpus.Fit(); unfit != nil {
		return fmt.Errorf("%w (%w)", unfit, err)
	}
	return err
}

// fitEvery is how often a trainer asks whether it may go on.
const fitEvery = 200 * time.Millisecond

// unfitError ends a trainer whose GPU is broken.
type unfitError struct{ reason error }

func (e *unfitError) Error() string { return e.reason.Error() }

// because gives the GPU's reason for an error, where that is what ended the trainer.
func because(ctx context.Context, err error) error {
	if err != nil && isUnfit(ctx) {
		return context.Cause(ctx)
	}
	return err
}

func isUnfit(ctx context.Context) bool { return errors.As(context.Cause(ctx), new(*unfitError)) }

// suspectWithin is how long a save waits for the word of the GPU on the time of the training.
const suspectWithin = 5 * time.Second

// suspect says why what was trained may be wrong; empty where nothing speaks for it. It waits for a word of the GPU
// that is younger than the training.
func (o *common) suspect(ctx context.Context) string {
	if o.gpus == nil {
		return ""
	}
	o.log.Debug("asking the GPU whether its memory was sound")
	text := o.gpus.Doubt(ctx, o.watchedFrom, suspectWithin)
	if text != "" {
		o.log.Warn("what was trained is suspect", "reason", text)
	}
	return text
}
