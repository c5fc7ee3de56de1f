package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gradbus/cuda"
	"gradbus/examples/movielens"
	"gradbus/internal/atomicfile"
	"gradbus/internal/config"
	"gradbus/internal/report"
	"gradbus/schema"
	"gradbus/trainer"
)

// movielensOptions are what `trainer movielens` was told.
type movielensOptions struct {
	common
	settings movielens.Settings
	input    string
	dump     string
	data     func() (*movielens.Data, error) // reads it, once
}

// filmsShown is how many films a recommendation lists.
const filmsShown = 10

func movielensCommand() *cobra.Command {
	o := movielensOptions{settings: movielens.Defaults()}
	c := &cobra.Command{
		Use:   "movielens",
		Short: "Recommend films from MovieLens ratings (matrix factorization)",
		Long: `Recommend films from MovieLens ratings by matrix factorization.

The command joins a job as its next trainer, trains, and prints the result. The input is MovieLens' ratings.csv, ratings.dat
or u.data. The default is the 100,004 ratings of Debian's r-cran-dslabs, which "make data" fetches. The first trainer
registers the job; the others need the same settings and ratings.`,
		Example: `  ./bin/trainer movielens --local                             a job in this process alone, without a server
  ./bin/trainer movielens                                     a job of one trainer, on a server on this machine
  ./bin/trainer movielens --input ml-latest/ratings.csv --spawn --trainers 2
  ./bin/trainer movielens --local --save films.safetensors
  ./bin/trainer movielens --load films.safetensors --predict 15      films for user 15`,
	}
	o.add(c.Flags())
	return o.workloadCommand(c, o.run)
}

func (o *movielensOptions) add(set *pflag.FlagSet) {
	s := &o.settings
	o.addServer(set)
	o.addPlace(set, &s.Shared)
	set.StringVar(&o.input, "input", "",
		"`PATH`: ratings file of MovieLens, or synthetic; empty is what make data fetches")
	set.StringVar(&s.Split, "split", s.Split,
		"`HOW`: test set: user is the last fifth of each user's ratings, time the last fifth of all")
	set.IntVar(&s.Epochs, "epochs", s.Epochs, "`N`: passes over the training set")
	set.IntVar(&s.Batch, "batch", s.Batch, "`N`: most ratings in a batch of all trainers together")
	set.IntVar(&s.Factors, "factors", s.Factors, "`N`: factors of a user and of a film, without the bias")
	set.IntVar(&s.Rows, "rows", s.Rows, "`N`: rows of each table; ids are hashed into them")
	set.Float64Var(&s.Decay, "decay", s.Decay, "`WEIGHT`: of the squared rows of a rating in the loss (L2)")
	o.addTraining(set, &s.Shared, "initial values and order", "dense ")
	o.addOutput(set)
	set.StringVar(&o.predict, "predict", "", "`USER`: user to recommend films to, with --load")
	set.StringVar(&o.dump, "dump", "", "`PATH`: write the ratings to this file as ratings.csv and exit")
	config.AddFileFlag(set)
	o.asides = []aside{o.asking(), dumping(&o.dump, "input", "split")}
	o.own = func() []config.Idle {
		return []config.Idle{{When: true, Flags: []string{"error-feedback"},
			Why: "all that this workload learns is rows of tables, whose gradients have none: leave it out"}}
	}
}

func (o *movielensOptions) run(ctx context.Context) error {
	switch {
	case o.asks():
		return o.ask()
	case o.predict != "":
		return errors.New("--predict needs a model: name its file with --load")
	}
	if err := o.settings.Validate(); err != nil {
		return err
	}
	o.data = sync.OnceValues(func() (*movielens.Data, error) { return movielens.Load(o.input, o.settings.Split) })
	if o.dump != "" {
		return o.dumpRatings()
	}
	if err := o.writables(); err != nil {
		return err
	}
	result, err := o.train(ctx)
	if err != nil {
		return err
	}
	return o.print(result)
}

// train runs the job, or this process's part of it.
func (o *movielensOptions) train(ctx context.Context) (r report.Result, err error) {
	if o.spawn {
		return o.trainAll(ctx, &o.settings.Shared, o.childArgs)
	}
	ctx, stop, err := o.watchGPUs(ctx)
	if err != nil {
		return r, err
	}
	defer stop()
	backend, err := o.openBackend()
	if err != nil {
		return r, err
	}
	defer backend.Close()
	if !o.local.on {
		r, err := o.trainOne(ctx, backend)
		return r, because(ctx, err)
	}
	return o.trainLocal(ctx, backend, &o.settings.Shared, func(ctx context.Context, of common) (report.Result, error) {
		one := *o
		one.common = of
		return one.trainOne(ctx, backend)
	})
}

// childArgs are the flags of the i-th trainer.
func (o *movielensOptions) childArgs(i int) []string {
	s := &o.settings
	return append([]string{"movielens", "--input", o.input, "--split", s.Split, "--batch", strconv.Itoa(s.Batch),
		"--factors", strconv.Itoa(s.Factors),
		"--rows", strconv.Itoa(s.Rows), "--decay", strconv.FormatFloat(s.Decay, 'g', -1, 64)},
		o.common.childArgs(i, &s.Shared)...)
}

// trainOne is one trainer, from reading the data to leaving the job.
func (o *movielensOptions) trainOne(ctx context.Context, backend cuda.Backend) (r report.Result, err error) {
	data, err := o.data()
	if err != nil {
		return r, err
	}
	if data.Synthetic && !o.quiet {
		o.log.Warn("the input is synthetic: what is learned of it says nothing about people", "input", data.Source)
	}
	session, err := o.join(ctx, backend, movielens.Job(o.settings, data))
	if err != nil {
		return r, err
	}
	defer func() { err = leave(ctx, session, err) }()
	w, err := movielens.NewWorkload(session, o.settings, data)
	if err != nil {
		return r, err
	}
	m := newMeter(&o.common, o.settings.BatchesPerEpoch(len(data.Train)), session)
	if m.board, err = o.openBoard(session); err != nil {
		return r, err
	}
	defer func() { m.board.end(err) }()
	scores, err := o.epochs(ctx, session, w, data, m)
	m.show.End()
	if err != nil {
		return r, err
	}
	o.trained()
	r, err = o.conclude(ctx, session, backend, data, m)
	r.RMSE, r.AUC = scores.RMSE, scores.AUC
	return r, o.blame(err)
}

// epochs runs all epochs, and measures the model after each.
func (o *movielensOptions) epochs(ctx context.Context, session *trainer.Session, w trainer.Workload,
	data *movielens.Data, m *meter) (s movielens.Scores, err error) {
	per, all := uint64(o.settings.BatchesPerEpoch(len(data.Train))), uint64(o.settings.Epochs)
	var before time.Duration // of the epochs that are over, without the measuring
	for epoch := uint64(session.Version()) / per; epoch < all; epoch++ {
		done := uint64(session.Version()) // more than epochs that are over, where the job was resumed
		err := session.Run(ctx, w, (epoch+1)*per-done, func(p trainer.Progress) {
			p.Batches, p.Done, p.ElapsedTime = all*per, done+p.Done, before+p.ElapsedTime
			m.batch(p)
		})
		if err != nil {
			return s, err
		}
		before = m.last.ElapsedTime
		if s, err = movielens.Evaluate(ctx, session, o.settings, data.Mean, data.Test); err != nil {
			return s, err
		}
		m.show.Note(fmt.Sprintf("epoch %d of %d  RMSE %.4f  AUC %.4f", epoch+1, all, s.RMSE, s.AUC))
	}
	return s, nil
}

// conclude says what was trained, and saves it where asked to.
func (o *movielensOptions) conclude(ctx context.Context, session *trainer.Session, backend cuda.Backend,
	data *movielens.Data, m *meter) (report.Result, error) {
	r := m.result(session, backend)
	r.Epochs = o.settings.Epochs
	r.Input, r.Synthetic, r.TestSamples = data.Source, data.Synthetic, len(data.Test)
	digest, err := session.Digest(ctx)
	if err != nil {
		return r, err
	}
	r.WeightsSHA256 = hex.EncodeToString(digest[:])
	r.Suspect = o.suspect(ctx)
	if o.save != "" {
		model, err := movielens.Collect(ctx, session, data)
		if err == nil {
			model.Suspect = r.Suspect
			err = model.Save(o.save)
		}
		if err != nil {
			return r, err
		}
		r.Saved = o.save
	}
	return r, nil
}

func (o *movielensOptions) dumpRatings() error {
	data, err := o.data()
	if err != nil {
		return err
	}
	if err := atomicfile.Write(o.dump, 0o666, data.Dump); err != nil {
		return fmt.Errorf("dump ratings: %w", err)
	}
	return nil
}

// ask answers --predict with a saved model; no server is needed.
func (o *movielensOptions) ask() error {
	user, err := strconv.ParseUint(o.predict, 10, 64)
	if err != nil {
		return fmt.Errorf("--predict %q: want the number of a user", o.predict)
	}
	model, err := movielens.LoadModel(o.load)
	if err != nil {
		return err
	}
	films := model.Recommend(user, filmsShown)
	if o.json {
		return json.NewEncoder(o.out).Encode(map[string]any{"user": user, "synthetic": model.Synthetic, "films": films})
	}
	if model.Suspect != "" {
		fmt.Fprintf(o.errOut, suspectNote, schema.Printable(model.Suspect))
	}
	if model.Synthetic {
		fmt.Fprintln(o.errOut, "note: this model was trained on synthetic ratings; its answers say nothing about real films")
	}
	for _, f := range films {
		name := f.Title
		if name == "" {
			name = fmt.Sprintf("film %d", f.ID)
		}
		if _, err := fmt.Fprintf(o.out, "%.2f  %s\n", f.Stars, schema.Printable(name)); err != nil {
			return err
		}
	}
	return nil
}
