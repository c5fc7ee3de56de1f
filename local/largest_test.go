package local_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/lane"
	"gradbus/local"
	"gradbus/philox"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// ones is a workload whose gradients are 1.
type ones struct{ job *schema.Job }

func (ones) Keys(_ schema.Batch, _ lane.Lane, keys [][]uint64) (int, [][]uint64) { return 1, keys }

func (o ones) Lane(s *trainer.LaneStep) (float64, error) {
	for _, p := range o.job.Parameters {
		grad := s.Grad(p.Name)
		for i := range grad {
			grad[i] = 1
		}
		s.Done(p.Name)
	}
	return 1, nil
}

// manyParameters is a job of as many parameters as its manifest may have, with slots.
func manyParameters(name string, parameters int) *schema.Job {
	j := &schema.Job{Name: schema.JobName(name), Trainers: 1, Lanes: 1,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerAdam, LR: 0.5}}
	for i := range parameters {
		j.Parameters = append(j.Parameters,
			schema.Parameter{Name: fmt.Sprintf("p%d", i), Shape: []int{1}, Init: schema.Init{Kind: philox.Zeros}})
	}
	return j
}

// bytesOf is what the manifest of a job takes.
func bytesOf(t *testing.T, j *schema.Job) int {
	t.Helper()
	text, err := j.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return len(text)
}

// The largest manifest that is admitted trains, becomes durable and is saved; the next larger one is refused when its
// trainer joins.
func TestLargestManifest(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes 15 s, and two minutes under the race detector")
	}
	dir := t.TempDir()
	s := start(t, local.Options{Adjust: func(c *ps.Config, _ *ps.Options) {
		c.Checkpoints = checkpoint.Policy{Dir: dir, Batches: 1, Keep: 2}
	}})
	parameters := 1000
	for bytesOf(t, manyParameters("largest", parameters+100)) <= schema.ManifestBytesMax {
		parameters += 100
	}
	if parameters < 10_000 {
		t.Errorf("%d parameters in the largest manifest: want more than ten thousand", parameters)
	}
	saved := filepath.Join(dir, "saved.safetensors")
	patient, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	run := func(j *schema.Job) error {
		return s.Run(patient, 1, func(ctx context.Context, _ int, c trainer.Config) error {
			session, err := trainer.Join(ctx, c, j)
			if err != nil {
				return err
			}
			for durable := false; !durable; {
				if err := session.Run(ctx, ones{j}, 1, nil); err != nil {
					return session.Abort(err)
				}
				found, err := checkpoint.List(dir, session.Job().Name)
				durable = err == nil && slices.ContainsFunc(found, func(f checkpoint.Found) bool { return f.Err == nil })
			}
			if err := session.Save(ctx, saved); err != nil {
				return session.Abort(err)
			}
			return session.Close()
		})
	}
	if err := run(manyParameters("largest", parameters)); err != nil {
		t.Fatal(err)
	}
	m, err := trainer.OpenModel(saved)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Param(fmt.Sprintf("p%d", parameters-1)); len(got) != 1 || got[0] > -0.9 {
		t.Errorf("last parameter %v", got)
	}
	err = run(manyParameters("larger", parameters+100))
	if err == nil || !strings.Contains(err.Error(), "manifest") {
		t.Errorf("%v: want a refusal of the manifest", err)
	}
}
