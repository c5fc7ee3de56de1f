package trainer

import (
	"fmt"
	"testing"

	"gradbus/schema"
)

// reduceJob is the toy's job with its dense parameters reduced between trainers; its tables stay on shards.
func reduceJob(name string, trainers, lanes int) *schema.Job {
	job := toyJob(name, trainers, lanes, schema.ApplyMean)
	job.Reduce = schema.ReduceTrainers
	return job
}

// Reduced between trainers, a job has the bits that it has through shards.
func TestReduceBetweenTrainersGivesEqualBits(t *testing.T) {
	const lanes, batches = 6, 7
	o := newOracle(t, toyJob("oracle", 1, lanes, schema.ApplyUpdate))
	w := newToy(t, o.job)
	losses := make([]float64, batches)
	for b := range losses {
		losses[b], _ = o.step(t, w, schema.Batch(b))
	}
	want := o.digest(t)
	for shards := 1; shards <= 2; shards++ {
		server := startServer(t, shards)
		for _, trainers := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("hybrid/%d shards/%d trainers", shards, trainers), func(t *testing.T) {
				job := reduceJob(fmt.Sprintf("hybrid-%d", trainers), trainers, lanes)
				checkOutcomes(t, trainAll(t, testConfig(t, server), job, batches), want, losses)
			})
		}
		server.Close()
	}
}
