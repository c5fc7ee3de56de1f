package local_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"gradbus/cuda"
	"gradbus/local"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer"
)

const readableRows = 24

// readableJob has parameters and rows on each of several shards.
func readableJob() *schema.Job {
	job := &schema.Job{Name: "readable", Trainers: 1, Lanes: 4, Policy: schema.PolicyFail,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 2},
		Tables: []schema.TableSpec{{Name: "rows", Rows: readableRows, Dim: 2,
			Init: schema.Init{Kind: philox.Normal, Scale: 1}}}}
	for i := range 4 {
		job.Parameters = append(job.Parameters, schema.Parameter{Name: fmt.Sprintf("w%d", i), Shape: []int{8},
			Init: schema.Init{Kind: philox.Normal, Scale: 1}})
	}
	return job
}

// gradients are those of a lane, in which a test may spoil a value.
type gradients struct {
	batch, lane int
	w           []float32 // of the last parameter
	rows        []float32
}

// trainReadable trains some batches, from a first one on, with gradients that follow from batch and lane, all rows in each.
func trainReadable(ctx context.Context, s *trainer.Session, first, batches int, spoil func(gradients)) error {
	for n := first; n < first+batches; n++ {
		b, err := s.Next()
		if err != nil {
			return err
		}
		for _, l := range b.Lanes() {
			b.Samples(l, 1)
			for key := range uint64(readableRows) {
				b.Keys(l, 0, key)
			}
		}
		if err := b.Fetch(ctx); err != nil {
			return err
		}
		for _, l := range b.Lanes() {
			step, err := b.Lane(l)
			if err != nil {
				return err
			}
			g := gradients{batch: n, lane: int(l), rows: make([]float32, 2*readableRows)}
			for i := range g.rows {
				g.rows[i] = float32(n+1) / float32(i+int(l)+1)
			}
			for i := range 4 {
				g.w = step.Grad(fmt.Sprintf("w%d", i))
				for k := range g.w {
					g.w[k] = float32(n+2) / float32(k+int(l)+1)
				}
			}
			spoil(g)
			step.BagGrad(0, cuda.Sum, nil, g.rows)
			if err := step.End(0); err != nil {
				return err
			}
		}
		if err := b.Commit(ctx); err != nil {
			return err
		}
	}
	return s.Finish(ctx)
}

// A value that is not finite ends the training. Whatever else of the batch was good, and on however many shards, the
// last complete version can be read and saved; the session trains no more, and says why each time.
func TestStaysReadable(t *testing.T) {
	nan, large := float32(math.NaN()), float32(math.MaxFloat32)
	for name, spoil := range map[string]func(g gradients){
		"parameter":              func(g gradients) { g.w[3] = nan },
		"row":                    func(g gradients) { g.rows[9] = nan },
		"computed for parameter": func(g gradients) { g.w[3] = large },
		"computed for row":       func(g gradients) { g.rows[9] = large },
	} {
		for _, shards := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s, %d shards", name, shards), func(t *testing.T) {
				s := start(t, local.Options{Shards: shards})
				want, err := trainer.Join(t.Context(), s.Config(), readableJob())
				must(t, err)
				must(t, trainReadable(t.Context(), want, 0, 2, func(gradients) {}))
				good, err := want.Digest(t.Context())
				must(t, err)
				must(t, want.Close())

				session, err := trainer.Join(t.Context(), s.Config(), readableJob())
				must(t, err)
				defer session.Close()
				err = trainReadable(t.Context(), session, 0, 4, func(g gradients) {
					if g.batch == 2 && (g.lane == 1 || strings.HasPrefix(name, "computed")) {
						spoil(g)
					}
				})
				for _, text := range []string{"batch 2", "non_finite", "version 2 can still be read and saved"} {
					if err == nil || !strings.Contains(err.Error(), text) {
						t.Fatalf("%v: want %q in it", err, text)
					}
				}
				path := filepath.Join(t.TempDir(), "model.safetensors")
				for range 2 {
					if got, err := session.Digest(t.Context()); err != nil || got != good {
						t.Fatalf("digest %x, %v, want %x", got, err, good)
					}
					must(t, session.Save(t.Context(), path))
					if _, err := session.Next(); err == nil || !strings.Contains(err.Error(), "non_finite") {
						t.Fatalf("Next: %v, want why it trains no more", err)
					}
				}
				model, err := trainer.OpenModel(path)
				must(t, err)
				if model.Version != 2 || session.Version() != 2 {
					t.Errorf("saved version %d of %d, want 2", model.Version, session.Version())
				}
			})
		}
	}
}

// A module steps before its batch is sent, so a value that is not finite leaves no version that is whole: the session
// of such a job ends, and neither its error nor a later call says that it can be read.
func TestEndsWholeWithModules(t *testing.T) {
	for name, value := range map[string]float32{"refused": float32(math.NaN()), "computed": math.MaxFloat32} {
		t.Run(name, func(t *testing.T) {
			s, job := start(t, local.Options{Shards: 2}), readableJob()
			job.Optimizer.LR = 100
			job.Modules = []schema.ModuleSpec{{Name: "head", In: []int{1}, Samples: 1, Contexts: 1,
				Module: `[{"linear":{"in":1,"out":1}}]`}}
			session, err := trainer.Join(t.Context(), s.Config(), job)
			must(t, err)
			defer session.Close()
			ends := trainReadable(t.Context(), session, 0, 4, func(g gradients) {
				if g.batch == 2 && g.lane == 0 {
					g.rows[9] = value
				}
			})
			path := filepath.Join(t.TempDir(), "model.safetensors")
			for call, err := range map[string]error{"training": ends, "save": session.Save(t.Context(), path),
				"session": session.Err()} {
				if err == nil || !strings.Contains(err.Error(), "non_finite") || strings.Contains(err.Error(), "can still be") {
					t.Errorf("%s: %v, want that a value is non_finite and no version to read", call, err)
				}
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
