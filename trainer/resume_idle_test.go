package trainer

import (
	"testing"

	"gradbus/checkpoint"
	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

// Where trainers add up, and some shards have no rows, these write what trainers have of the chunks there, in
// increments as in full checkpoints.
func TestResumeWithIdleShards(t *testing.T) { testkit.Waits(t, resumeWithIdleShards) }

func resumeWithIdleShards(t *testing.T) {
	job := bagJob("idle", schema.PlacementTables, 2, 4)
	job.Parameters = append(job.Parameters, schema.Parameter{Name: "ballast", Shape: []int{9000},
		Init: schema.Normal(1)})
	kept := ps.Config{Shards: 5, Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 1}}
	server := startServerWith(t, kept)
	w := ballastToy{&bagToy{toy: newToy(t, job)}}
	version, reached := trainUntilDurable(t, kept.Checkpoints.Dir, joinAll(t, testConfig(t, server), job), job, w, false)
	server.Close()
	if version == 0 || version >= reached {
		t.Fatalf("version %d is durable as an increment after %d batches", version, reached)
	}
	batches := uint64(reached) + 4
	want := digestAfter(t, joinAll(t, testConfig(t, startServerWith(t, ps.Config{})), job), w, batches)
	kept.Shards = 2
	config := testConfig(t, startServerWith(t, kept))
	config.Resume = true
	sessions := joinAll(t, config, job)
	if v := sessions[0].Version(); v < version {
		t.Errorf("resumed at version %d, and %d was durable", v, version)
	}
	if got := digestAfter(t, sessions, w, batches); got != want {
		t.Errorf("weights %x, want %x", got[:6], want[:6])
	}
}

// ballastToy has a parameter besides, large enough to lie on shards that have no rows.
type ballastToy struct{ *bagToy }

func (m ballastToy) Lane(step *LaneStep) (float64, error) {
	grad := step.Grad("ballast")
	for i := range grad {
		grad[i] = float32(step.Batch%7) - 3
	}
	return m.bagToy.Lane(step)
}
