package ps

import (
	"testing"
	"time"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// The next run of a job that goes back has as many places as there are trainers. Where there is no room for more than
// before it has as many as before, and is told so. Another job of the name has all of its own.
func TestTrainersLeft(t *testing.T) {
	job := shardtest.SmallJob("fewer", 3, 6)
	job.Consistency, job.Ahead, job.Policy = schema.ConsistencyBounded, 1, schema.PolicyRecover
	must(t, job.Validate())
	l := &controlLoop{server: &Server{}}
	l.history = []endedJob{{name: "fewer", places: 3, manifest: job.WithTrainers(2)}}
	left := func(of *schema.Job, trainers, places int, cramped bool) {
		t.Helper()
		now, known := l.withTrainersLeft(of)
		if want := (trainersLeft{places, cramped}); now.Trainers != trainers || known != want {
			t.Errorf("%d trainers, %+v, want %d, %+v", now.Trainers, known, trainers, want)
		}
	}
	left(job, 3, 0, false) // it is not known to go on
	l.server.lostRuns.note("fewer", time.Now())
	left(job, 3, 3, false)
	other, waits := *job, *job
	other.Optimizer.LR, waits.Policy = 0.25, schema.PolicyWait
	left(&other, 3, 0, false)
	left(&waits, 3, 0, false)
	if !l.noRoomForMore(job) {
		t.Error("there was room for two")
	}
	left(job, 2, 3, true)
	if l.noRoomForMore(job.WithTrainers(2)) {
		t.Error("what there is no room for has no more trainers than before")
	}
}
