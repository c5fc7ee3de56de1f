package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Server is where a job lives: the address of a ps ("" for that of ./bin/ps on this machine), or a whole Config, such
// as that of package local, where no server is needed.
type Server interface{ string | Config }

// Train joins a job, trains it on data with a function that computes some samples at a time (Step), and gives the
// session, from which the weights can be read and saved; it is to be closed. Every trainer of the job runs the same
// program with the same data, and is told which samples are its. The data's size, batches, seed and epochs are noted in
// the manifest, so that a trainer with others is refused.
//
// It is Join and Run with a Workload made of the function. After an error there is no session, and the other trainers
// hear the reason. Where the job goes back to an earlier version, epochs since then are computed and told again.
func Train[S Server, T any](ctx context.Context, server S, job *Job, data *Data[T],
	step func(b *Step[T]) (loss float64), options ...Option) (*Session, error) {
	var o training
	for _, option := range options {
		if option != nil {
			option(&o)
		}
	}
	if job == nil || step == nil {
		return nil, fmt.Errorf("%w: the job or the function that computes a step is nil", ErrConfig)
	}
	if err := data.check(); err != nil {
		return nil, err
	}
	manifest, err := job.Manifest()
	if err != nil {
		return nil, err
	}
	dataSettings(manifest, map[string]int{"samples": len(data.items), "batch": data.batch, "data_seed": int(data.seed),
		"epochs": data.epochs})
	config, whole := any(server).(Config)
	if !whole {
		config = Config{Server: any(server).(string)}
	}
	if job.from != nil {
		config.From = job.from
	}
	s, err := Join(ctx, config, manifest)
	if err != nil {
		return nil, err
	}
	returned := false
	defer func() { // a panic, or an end of this goroutine, leaves nobody who could close the session
		if !returned {
			_ = s.Abort(errPanicked)
		}
	}()
	err = trainEpochs(ctx, s, data, step, &o)
	returned = true
	if err != nil {
		return nil, errors.Join(err, s.Abort(err))
	}
	return s, nil
}

// trainEpochs runs what is left of all epochs.
func trainEpochs[T any](ctx context.Context, s *Session, data *Data[T], step func(b *Step[T]) (loss float64),
	o *training) error {
	w, err := newSampled(s.Job(), data, step)
	if err != nil {
		return err
	}
	r := &epochs{session: s, options: o, each: uint64(w.shuffler.PerEpoch()), of: data.epochs, began: time.Now(),
		done: uint64(s.Version())}
	all := r.each * uint64(data.epochs)
	if err := s.Run(ctx, w, all-min(all, r.done), r.batch); err != nil {
		return err
	}
	return r.err
}

// errPanicked is what the other trainers hear where a function of the program did not return.
var errPanicked = errors.New("the program's function did not return")

// Option is a wish for Train.
type Option func(*training)

// training is what Train was asked for beside the training.
type training struct {
	epoch []func(Epoch) error
	batch []func(Progress)
}

// Epoch is one time through the data, as this trainer sees it.
type Epoch struct {
	Number, Of int           // from 1
	Loss       float64       // mean over this trainer's samples, each as it was when its batch was computed
	Samples    uint64        // of this trainer
	Time       time.Duration // that it took
	Session    *Session      // to look at the weights: Lookup, Param, Save
}

// OnEpoch calls a function after each epoch; its error ends the training.
func OnEpoch(f func(Epoch) error) Option { return func(o *training) { o.epoch = append(o.epoch, f) } }

// OnBatch calls a function after each batch.
func OnBatch(f func(Progress)) Option { return func(o *training) { o.batch = append(o.batch, f) } }

// PrintEpochs is an Option that writes a line after each epoch to standard output.
func PrintEpochs(o *training) { PrintEpochsTo(os.Stdout)(o) }

// PrintEpochsTo writes a line after each epoch.
func PrintEpochsTo(to io.Writer) Option {
	return OnEpoch(func(e Epoch) error {
		who := ""
		if e.Session.job.Trainers > 1 {
			who = string(e.Session.Member()) + "  "
		}
		_, err := fmt.Fprintf(to, "%sepoch %d of %d  loss %.4f\n", who, e.Number, e.Of, e.Loss)
		return err
	})
}

// epochs counts batches up to epochs.
type epochs struct {
	session *Session
	options *training
	each    uint64
	of      int
	done    uint64 // batches of the job, as of the last report
	began   time.Time
	samples uint64
	loss    float64
	err     error // of OnEpoch
}

// batch takes a batch that is complete.
func (r *epochs) batch(p Progress) {
	for _, f := range r.options.batch {
		f(p)
	}
	r.err = nil                    // a restart followed it
	if uint64(p.Batch) != r.done { // the job went on from an earlier version
		r.samples, r.loss, r.began = 0, 0, time.Now()
	}
	r.samples, r.loss = r.samples+uint64(p.Samples), r.loss+p.Loss*float64(p.Samples)
	if r.done = uint64(p.Batch) + 1; r.done%r.each != 0 {
		return
	}
	e := Epoch{Number: int(r.done / r.each), Of: r.of, Loss: r.loss / float64(max(1, r.samples)), Samples: r.samples,
		Time: time.Since(r.began), Session: r.session}
	for _, f := range r.options.epoch {
		if err := f(e); err != nil {
			r.err = fmt.Errorf("after epoch %d: %w", e.Number, err)
			r.session.fail(r.err)
			return
		}
	}
	r.samples, r.loss, r.began = 0, 0, time.Now()
}
