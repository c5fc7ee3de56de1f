package trainer

import (
	"cmp"
	"errors"
	"testing"

	"gradbus/internal/testkit"
	"gradbus/schema"
)

// Once all batches are complete, what fails in one trainer ends that one: the others read, digest and leave in peace.
func TestTrainedJobOutlivesAFailingTrainer(t *testing.T) {
	testkit.Beside(t)
	jobs := map[string]*schema.Job{
		"sync":             toyJob("trained-sync", 3, 3, schema.ApplyUpdate),
		"bounded":          boundedJob("trained-bounded", 3, 3, 2),
		"between trainers": routeJob("trained-between", 4, 3, 3), "async": asyncJob("trained-async", 3, 3),
		"grouped": groupedJob("trained-grouped", 3, 3, 3),
	}
	for name, job := range jobs {
		t.Run(name, func(t *testing.T) {
			testkit.Waits(t, func(t *testing.T) {
				sessions := joinAll(t, testConfig(t, startServer(t, 2)), job)
				var w Workload = newToy(t, job)
				if job.Consistency == schema.ConsistencyGrouped {
					w = &pull{job: job}
				}
				for i, err := range runAll(testContext(t), sessions, w, 4) {
					if err != nil {
						t.Fatalf("trainer %d: %v", i, err)
					}
				}
				if err := sessions[1].Abort(errors.New("no space left on device")); err != nil {
					t.Fatal(err)
				}
				for _, i := range []int{0, 2} {
					for range 2 {
						heard := heardAt(sessions[i].connection)
						poll(t, "a heartbeat of the coordinator",
							func() bool { return heardAt(sessions[i].connection).After(heard) || sessions[i].Err() != nil })
					}
					if _, err := sessions[i].Digest(testContext(t)); err != nil {
						t.Errorf("trainer %d: %v", i, err)
					}
				}
				for _, i := range []int{0, 2} {
					if err := cmp.Or(sessions[i].Err(), sessions[i].Close()); err != nil {
						t.Errorf("trainer %d leaves: %v", i, err)
					}
				}
			})
		})
	}
}

// In the middle of a run, and before the first, a reason still ends the job for all.
func TestFailingTrainerEndsARunningJob(t *testing.T) { testkit.Waits(t, failingTrainerEndsARunningJob) }

func failingTrainerEndsARunningJob(t *testing.T) {
	server := startServer(t, 1)
	for name, batches := range map[string]uint64{"before": 0, "between": 2} {
		sessions := joinAll(t, testConfig(t, server), toyJob("failing-"+name, 2, 2, schema.ApplyUpdate))
		if batches > 0 {
			for i, err := range runAll(testContext(t), sessions, newToy(t, sessions[0].Job()), batches) {
				if err != nil {
					t.Fatalf("trainer %d: %v", i, err)
				}
			}
		}
		if err := sessions[1].Abort(errors.New("no space left on device")); err != nil {
			t.Fatal(err)
		}
		checkError(t, sessions[0].Run(testContext(t), newToy(t, sessions[0].Job()), 2, nil), ErrJobFailed, "t1",
			"no space left on device")
	}
}
