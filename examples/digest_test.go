// Package examples_test holds what is promised of every workload.
package examples_test

import (
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/examples/mnist"
	"gradbus/examples/movielens"
	"gradbus/examples/packages"
	"gradbus/examples/packages/corpus"
	"gradbus/internal/settings"
	"gradbus/internal/testkit"
	"gradbus/local"
	"gradbus/nn"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience bounds what ends in well under a second when it works.
const patience = 10 * time.Minute

// example is a workload on a few samples.
type example struct {
	name string
	job  func(settings.Shared) *schema.Job
	make func(*trainer.Session, settings.Shared) (trainer.Workload, error)
}

// batches are as many as momentum and schedules show in.
const batches = 5

// With each optimizer a workload has one digest: at any number of trainers and shards, whoever owns parameters and adds
// gradients up.
func TestOptimizersGiveOneDigest(t *testing.T) {
	b, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	routes := [][2]string{{schema.ApplyUpdate, ""}, {schema.ApplyMean, ""}, {schema.ApplyMean, schema.ReduceTrainers}}
	for _, e := range []example{ofPackages(t, b), ofMNIST(t, b), ofMovielens(t)} {
		for i, optimizer := range []string{"sgd:nesterov,weight_decay=0.01", "adagrad", "rowwise_adagrad", "adam", "adamw",
			"ftrl:l1=0.001"} {
			want := ""
			for at, route := range routes {
				for _, trainers := range []int{1, 2, 4} {
					for shards := 1; shards <= 3; shards++ {
						if testing.Short() && (at == i%3 || trainers != []int{4, 1, 2}[at] || shards != at+1) {
							continue // two cuts of each
						}
						s := settings.Shared{Job: e.name, Trainers: trainers, Lanes: 4, Epochs: 1, LR: 0.05, Seed: 1, Apply: route[0],
							Reduce:    route[1],
							Optimizer: optimizer, Schedule: "cosine:warmup=2,total=9"}
						if i == 0 {
							s.Momentum = 0.9
						}
						digest := train(t, e, s, b, shards)
						if want == "" {
							want = digest
						}
						if digest != want {
							t.Errorf("%s, %s, %v, %d trainers, %d shards: weights %s, want %s", e.name, optimizer, route, trainers, shards,
								digest, want)
						}
					}
				}
			}
		}
	}
}

// train runs a few batches of a job in this process and gives its digest, as its first trainer reads it.
func train(t *testing.T, e example, s settings.Shared, b cuda.Backend, shards int) (digest string) {
	t.Helper()
	there, err := local.Start(t.Context(),
		local.Options{Shards: shards, Backend: b, Adjust: func(c *ps.Config, _ *ps.Options) { c.Deadline = patience }})
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	err = there.Run(t.Context(), s.Trainers, func(ctx context.Context, i int, c trainer.Config) error {
		session, err := trainer.Join(ctx, c, e.job(s))
		if err != nil {
			return err
		}
		w, err := e.make(session, s)
		if err == nil {
			err = session.Run(ctx, w, batches, nil)
		}
		if err == nil && i == 0 {
			var sum [32]byte
			sum, err = session.Digest(ctx)
			digest = hex.EncodeToString(sum[:8])
		}
		if err != nil {
			return errors.Join(err, session.Abort(err))
		}
		return session.Close()
	})
	if err != nil {
		t.Fatalf("%s, %+v, %d shards: %v", e.name, s, shards, err)
	}
	return digest
}

func ofPackages(t *testing.T, b cuda.Backend) example {
	path := filepath.Join(t.TempDir(), "Packages")
	var text strings.Builder
	err := corpus.WriteSynthetic(&text, 120, 3)
	if err == nil {
		err = os.WriteFile(path, []byte(text.String()), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	data, err := corpus.Load(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	of := func(s settings.Shared) packages.Settings { return packages.Settings{Shared: s, Batch: 16, Dim: 3} }
	return example{packages.Name, func(s settings.Shared) *schema.Job { return packages.Job(of(s), data) },
		func(_ *trainer.Session, s settings.Shared) (trainer.Workload, error) {
			return packages.NewWorkload(of(s), data, b)
		}}
}

func ofMNIST(t *testing.T, b cuda.Backend) example {
	data := mnist.Synthetic(80, 1)
	m, err := nn.Build(
		[]byte(`[{"conv2d":{"in":1,"out":2,"kernel":5,"stride":3}},{"relu":{}},{"flatten":{}},{"dropout":{"p":0.1}},` +
			`{"linear":{"in":128,"out":10}},{"log_softmax":{}}]`))
	if err != nil {
		t.Fatal(err)
	}
	of := func(s settings.Shared) mnist.Settings { return mnist.Settings{Shared: s, Batch: 16} }
	return example{mnist.Name, func(s settings.Shared) *schema.Job { return mnist.Job(of(s), data, m, "own") },
		func(_ *trainer.Session, s settings.Shared) (trainer.Workload, error) {
			return mnist.NewWorkload(of(s), data, m, nn.Env{Backend: b})
		}}
}

func ofMovielens(t *testing.T) example {
	data, err := movielens.Load(movielens.InputSynthetic, movielens.SplitUser)
	if err != nil {
		t.Fatal(err)
	}
	of := func(s settings.Shared) movielens.Settings {
		d := movielens.Defaults()
		return movielens.Settings{Shared: s, Batch: 64, Factors: 3, Rows: 512, Decay: d.Decay, Split: d.Split}
	}
	return example{movielens.Name, func(s settings.Shared) *schema.Job { return movielens.Job(of(s), data) },
		func(session *trainer.Session, s settings.Shared) (trainer.Workload, error) {
			return movielens.NewWorkload(session, of(s), data)
		}}
}
