package ps

import (
	"testing"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// The next run of a job that goes back has as many places as there are trainers. Where there is no room for more than
// before it has as many as before, and is told so. Another job of the name has all of its own.
func TestTrainersLeft(t *testing.T) {
	job := shardtest.SmallJob("fewer", 3, 6)
	job.Consistency, job.Ahead, job.Policy = schema.ConsistencyBounded, 1, schema.PolicyRecover
	must(t, job.Validate())
	history := endedJobs{{name: "fewer", places: 3, manifest: job.WithTrainers(2)}}
	left := func(of *schema.Job, trainers, places int, cramped bool) {
		t.Helper()
		now, known := history.withTrainersLeft(of)
		if want := (trainersLeft{places, cramped}); now.Trainers != trainers || known != want {
			t.Errorf("%d trainers, %+v, want %d, %+v", now.Trainers, known, trainers, want)
		}
	}
	left(job, 3, 3, false)
	other, waits := *job, *job
	other.Optimizer.LR, waits.Policy = 0.25, schema.PolicyWait
	left(&other, 3, 0, false)
	left(&waits, 3, 0, false)
	if !history.noRoomForMore(job) {
		t.Error("there was room for two")
	}
	left(job, 2, 3, true)
	if history.noRoomForMore(job.WithTrainers(2)) {
		t.Error("what there is no room for has no more trainers than before")
	}
}
