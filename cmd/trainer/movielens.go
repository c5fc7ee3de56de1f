package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"gradbus/examples/movielens"
	"gradbus/internal/config"
	"gradbus/internal/report"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// filmsShown is the number of films in a recommendation.
const filmsShown = 10

func movielensCommand() *cobra.Command {
	s, input := movielens.Defaults(), ""
	o := &common{shared: &s.Shared}
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
	set := c.Flags()
	o.addServer(set)
	o.addPlace(set)
	set.StringVar(&input, "input", "",
		"`PATH`: ratings file of MovieLens, or synthetic; empty is what make data fetches")
	set.StringVar(&s.Split, "split", s.Split,
		"`HOW`: test set: user is the last fifth of each user's ratings, time the last fifth of all")
	set.IntVar(&s.Epochs, "epochs", s.Epochs, "`N`: passes over the training set")
	set.IntVar(&s.Batch, "batch", s.Batch, "`N`: most ratings in a batch of all trainers together")
	set.IntVar(&s.Factors, "factors", s.Factors, "`N`: factors of a user and of a film, without the bias")
	set.IntVar(&s.Rows, "rows", s.Rows, "`N`: rows of each table; ids are hashed into them")
	set.Float64Var(&s.Decay, "decay", s.Decay, "`WEIGHT`: of the squared rows of a rating in the loss (L2)")
	o.addTraining(set, "initial values and order", "dense ")
	o.addOutput(set)
	set.StringVar(&o.predict, "predict", "", "`USER`: user to recommend films to, with --load")
	set.StringVar(&o.dump, "dump", "", "`PATH`: write the ratings to this file as ratings.csv and exit")
	config.AddFileFlag(set)
	o.asides = []aside{o.asking(), dumping(&o.dump, "input", "split")}
	o.own = func() []config.Idle {
		return []config.Idle{{When: true, Flags: []string{"error-feedback"},
			Why: "all that this workload learns is rows of tables, whose gradients have none: leave it out"}}
	}
	o.validate = func() error { return s.Validate() }
	o.load = func(context.Context) (*dataset, error) { return loadMovielens(&s, input) }
	o.ask = o.askMovielens
	return o.command(c)
}

func loadMovielens(s *movielens.Settings, input string) (*dataset, error) {
	data, err := movielens.Load(input, s.Split)
	if err != nil {
		return nil, err
	}
	per := s.BatchesPerEpoch(len(data.Train))
	return &dataset{source: data.Source, synthetic: data.Synthetic, test: len(data.Test), dump: data.Dump, perEpoch: per,
		batches: uint64(per) * uint64(s.Epochs),
		job:     func(nn.Env) *schema.Job { return movielens.Job(*s, data) },
		workload: func(session *trainer.Session, _ nn.Env) (trainer.Workload, error) {
			return movielens.NewWorkload(session, *s, data)
		},
		epoch: func(ctx context.Context, session *trainer.Session, r *report.Result) (string, error) {
			scores, err := movielens.Evaluate(ctx, session, *s, data.Mean, data.Test)
			r.RMSE, r.AUC = scores.RMSE, scores.AUC
			return fmt.Sprintf("RMSE %.4f  AUC %.4f", r.RMSE, r.AUC), err
		},
		metadata: movielens.Metadata(data)}, nil
}

func (o *common) askMovielens() error {
	user, err := strconv.ParseUint(o.predict, 10, 64)
	if err != nil {
		return fmt.Errorf("--predict %q: want the number of a user", o.predict)
	}
	model, err := movielens.LoadModel(o.model)
	if err != nil {
		return err
	}
	films := model.Recommend(user, filmsShown)
	var lines []string
	for _, f := range films {
		name := f.Title
		if name == "" {
			name = fmt.Sprintf("film %d", f.ID)
		}
		lines = append(lines, fmt.Sprintf("%.2f  %s", f.Stars, schema.Printable(name)))
	}
	return o.answer(map[string]any{"user": user, "films": films}, model.Weights, "ratings", lines)
}
