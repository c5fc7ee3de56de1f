package movielens_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/examples/movielens"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// patience bounds what ends in well under a second when it works.
const patience = 5 * time.Minute

func small(t testing.TB) *movielens.Data {
	t.Helper()
	d, err := movielens.Load(movielens.InputSynthetic, movielens.SplitUser)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func settings(trainers int) movielens.Settings {
	s := movielens.Defaults()
	s.Trainers, s.Lanes, s.Epochs, s.Rows, s.Factors, s.Batch = trainers, 4, 2, 4096, 4, 128
	return s
}

// outcome is what one trainer ends with.
type outcome struct {
	digest [32]byte
	scores movielens.Scores
	model  *trainer.Model
	err    error
}

// train runs a whole job on a server of its own, its trainers as goroutines.
func train(t *testing.T, s movielens.Settings, data *movielens.Data, shards int) []outcome {
	t.Helper()
	b, err := cuda.Open(cuda.Options{Name: "auto"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	config := ps.Default()
	config.Deadline, config.Port, config.Shards = 2*patience, 0, shards
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server, err := ps.Start(ctx, config, ps.Options{Backend: b})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	outcomes := make([]outcome, s.Trainers)
	done := make(chan int)
	for i := range outcomes {
		go func() {
			outcomes[i] = trainOne(ctx, server.URL(), s, data, b)
			if outcomes[i].err != nil {
				cancel() // the others would wait for it
			}
			done <- i
		}()
	}
	for range outcomes {
		if i := <-done; outcomes[i].err != nil {
			t.Errorf("trainer %d: %v", i, outcomes[i].err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return outcomes
}

func trainOne(ctx context.Context, url string, s movielens.Settings, data *movielens.Data, b cuda.Backend) (o outcome) {
	session, err := trainer.Join(ctx, trainer.Config{Server: url, Backend: b, AnswerWithin: patience,
		ReconnectTimeout: patience, LeaveWithin: patience, TelemetryEvery: time.Hour}, movielens.Job(s, data))
	if err != nil {
		return outcome{err: fmt.Errorf("join: %w", err)}
	}
	defer func() { o.err = errors.Join(o.err, session.Close()) }()
	w, err := movielens.NewWorkload(session, s, data)
	if err != nil {
		return outcome{err: err}
	}
	if o.err = session.Run(ctx, w, uint64(s.Epochs*s.BatchesPerEpoch(len(data.Train))), nil); o.err != nil {
		return o
	}
	if o.digest, o.err = session.Digest(ctx); o.err != nil {
		return o
	}
	if o.scores, o.err = movielens.Evaluate(ctx, session, s, data.Mean, data.Test); o.err != nil {
		return o
	}
	o.model, o.err = session.Weights(ctx)
	return o
}

// However a job is cut into trainers and shards, and whoever adds up and applies, it ends with the same weights.
func TestOneDigest(t *testing.T) {
	data := small(t)
	want := train(t, settings(1), data, 1)[0]
	for _, c := range []struct {
		trainers, shards int
		apply, reduce    string
	}{
		{2, 3, schema.ApplyUpdate, ""}, {4, 2, schema.ApplyUpdate, ""}, {2, 2, schema.ApplyMean, ""},
		{2, 1, schema.ApplyMean, schema.ReduceTrainers},
	} {
		t.Run(fmt.Sprintf("%d trainers %d shards %s %s", c.trainers, c.shards, c.apply, c.reduce), func(t *testing.T) {
			s := settings(c.trainers)
			s.Apply, s.Reduce = c.apply, c.reduce
			for i, o := range train(t, s, data, c.shards) {
				if o.digest != want.digest {
					t.Errorf("trainer %d: weights %x, want %x", i, o.digest[:8], want.digest[:8])
				}
				if o.scores != want.scores {
					t.Errorf("trainer %d: scores %+v, want %+v", i, o.scores, want.scores)
				}
			}
		})
	}
}

// What is learned foretells ratings better than their mean does; what is saved and loaded answers as the
// session did.
func TestLearnsAndKeeps(t *testing.T) {
	data := small(t)
	s := settings(1)
	s.Epochs = 20
	o := train(t, s, data, 2)[0]
	if o.scores.RMSE > 0.75 || o.scores.AUC < 0.75 {
		t.Errorf("scores %+v: nothing was learned", o.scores)
	}
	path := filepath.Join(t.TempDir(), "m.safetensors")
	o.model.Metadata = movielens.Metadata(data)
	if err := o.model.Save(path); err != nil {
		t.Fatal(err)
	}
	m, err := movielens.LoadModel(path)
	if err != nil {
		t.Fatal(err)
	}
	if m.Weights.Digest() != o.digest || m.Mean != data.Mean || len(m.Films) == 0 {
		t.Errorf("the loaded model differs from what was trained: mean %v, %d films", m.Mean, len(m.Films))
	}
	squares := 0.0
	for _, r := range data.Test {
		e := float64(m.Rating(r.User, r.Movie)) - float64(r.Stars)
		squares += e * e
	}
	if got := squares / float64(len(data.Test)); got < 0.999*o.scores.RMSE*o.scores.RMSE ||
		got > 1.001*o.scores.RMSE*o.scores.RMSE {
		t.Errorf("mean squared error %v of the loaded model, %v of the session", got, o.scores.RMSE*o.scores.RMSE)
	}
	best := m.Recommend(7, 3)
	if len(best) != 3 || best[0].Stars < best[1].Stars || best[1].Stars < best[2].Stars {
		t.Errorf("recommended: %+v", best)
	}
	// a film of which little is known is no recommendation, however many stars it would get
	m.Films = []movielens.Film{{ID: best[0].ID, Ratings: 9}, {ID: best[1].ID, Ratings: 10}}
	if few := m.Recommend(7, 3); len(few) != 1 || few[0].ID != best[1].ID {
		t.Errorf("of films with 9 and 10 ratings recommended: %+v", few)
	}
}
