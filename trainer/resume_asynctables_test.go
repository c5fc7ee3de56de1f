package trainer

import (
	"fmt"
	"slices"
	"testing"

	"gradbus/checkpoint"
	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

// Tables whose gradients are applied as they arrive are written down as they are when the batch begins that is computed
// on the version of the parameters, which trainers add up, and which are as they would have been. With one trainer all
// is of that version.
func TestResumeAsyncTables(t *testing.T) { testkit.Waits(t, resumeAsyncTables) }

func resumeAsyncTables(t *testing.T) {
	for _, trainers := range []int{1, 2} {
		job := asyncTablesJob(trainers)
		kept := ps.Config{Shards: 2, Checkpoints: checkpoint.Policy{Dir: t.TempDir(), Batches: 1}}
		server := startServerWith(t, kept)
		version, reached := trainUntilDurable(t, kept.Checkpoints.Dir, joinAll(t, testConfig(t, server), job), job, given{},
			true)
		server.Close()
		if version == 0 || version >= reached {
			t.Fatalf("version %d is durable after %d batches", version, reached)
		}
		batches := uint64(reached) + 5
		quiet := joinAll(t, testConfig(t, startServerWith(t, ps.Config{})), asyncTablesJob(1))
		want := digestAfter(t, quiet, given{}, batches)
		kept.Shards = 3
		config := testConfig(t, startServerWith(t, kept))
		config.Resume = true
		sessions := joinAll(t, config, job)
		if v := sessions[0].Version(); v < version || v >= reached {
			t.Errorf("%d trainers: resumed at version %d after %d batches, of which %d were durable", trainers, v, reached,
				version)
		}
		trainTo(t, sessions, given{}, batches)
		digests := digestsOf(t, sessions)
		if trainers == 1 && digests[0] != want {
			t.Errorf("weights %x, want %x", digests[0][:6], want[:6])
		}
		if !slices.Equal(sessions[0].Param("w"), quiet[0].Param("w")) {
			t.Errorf("%d trainers: parameters are others than they should", trainers)
		}
		leaveAll(t, sessions)
	}
}

// asyncTablesJob is one whose trainers add up the parameters, and whose tables take gradients as they arrive.
func asyncTablesJob(trainers int) *schema.Job {
	job := givenJob(trainers, 0)
	job.Name = schema.JobName(fmt.Sprint("rows-", trainers))
	job.Apply, job.Reduce = schema.ApplyMean, schema.ReduceTrainers
	job.TableConsistency, job.Policy = schema.ConsistencyAsync, schema.PolicyFail
	return job
}
