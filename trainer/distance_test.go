package trainer

import (
	"testing"
	"testing/synctest"
	"time"

	"gradbus/fabric"
	"gradbus/ps"
	"gradbus/schema"
)

// farAway is how long every message takes in tests of distance: 20 ms.
const farAway = 20 * time.Millisecond

// farSessions are the trainers of a job who are far from its shards, and from each other.
func farSessions(t *testing.T, job *schema.Job) []*Session {
	t.Helper()
	bus := fabric.NewBus()
	bus.Delay = farAway
	server := startOn(t, bus, ps.Config{Shards: 2})
	return joinAll(t, patient(Config{Server: server.URL(), Bus: bus, Backend: testBackend(t)}), job)
}

// A batch with tables pays one round trip: the lookup of the next leaves right behind its gradients, and is answered
// when they are applied. Time is that of the messages alone here, so a second round trip would take as long again.
func TestBatchesPayOneRoundTrip(t *testing.T) {
	for name, change := range map[string]func(*schema.Job){
		"shards apply":   func(*schema.Job) {},
		"trainers apply": func(j *schema.Job) { j.Apply = schema.ApplyMean },
		"pooled": func(j *schema.Job) {
			j.Tables[0].Placement, j.Tables[1].Placement = schema.PlacementColumns, schema.PlacementTables
		},
		"trainers reduce": func(j *schema.Job) { j.Apply, j.Reduce = schema.ApplyMean, schema.ReduceTrainers },
		"bounded":         func(j *schema.Job) { j.Consistency, j.Ahead = schema.ConsistencyBounded, 1 },
		"async":           func(j *schema.Job) { j.Consistency = schema.ConsistencyAsync },
		"async tables": func(j *schema.Job) {
			j.Apply, j.Reduce, j.TableConsistency = schema.ApplyMean, schema.ReduceTrainers, schema.ConsistencyAsync
		},
		"no keys":   func(j *schema.Job) { j.Tables = j.Tables[:1] },
		"no tables": func(j *schema.Job) { j.Tables = nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				job := bagJob("far", "", 2, 4)
				job.Apply, job.Reduce = schema.ApplyUpdate, schema.ReduceShards
				change(job)
				var w Workload = &bagToy{toy: newToy(t, job)}
				if len(job.Tables) < 2 {
					w = &pull{job: job}
				}
				sessions := farSessions(t, job)
				began := time.Now()
				for i, err := range runAll(testContext(t), sessions, w, farBatches) {
					if err != nil {
						t.Fatalf("t%d: %v", i, err)
					}
				}
				checkTrips(t, time.Since(began))
			})
		})
	}
}

// farBatches are how many batches a test of distance has.
const farBatches = 10

// checkTrips checks that batches took a round trip each. The first has two: nobody has named its keys before.
func checkTrips(t *testing.T, took time.Duration) {
	t.Helper()
	trips := took.Seconds() / (2 * farAway).Seconds()
	t.Logf("%.2f round trips for %d batches", trips, farBatches)
	if most := farBatches + 1.5; trips > most {
		t.Errorf("%d batches took as long as %.2f round trips, want at most %.1f", farBatches, trips, most)
	}
}
