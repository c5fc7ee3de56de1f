package trainer

import (
	"fmt"
	"testing"

	"gradbus/schema"
)

// routes are the ways that a job's gradients may take where its trainers keep its parameters, and perhaps its tables.
var routes = []struct {
	name       string
	reduce     string
	replicated []bool // of the toy's tables
}{
	{"shards, tables there", schema.ReduceShards, []bool{false, false}},
	{"shards, tables replicated", schema.ReduceShards, []bool{true, true}},
	{"shards, one table replicated", schema.ReduceShards, []bool{false, true}},
	{"trainers, tables on shards", schema.ReduceTrainers, []bool{false, false}},
	{"trainers, tables replicated", schema.ReduceTrainers, []bool{true, true}},
	{"trainers, one table replicated", schema.ReduceTrainers, []bool{true, false}},
}

func routeJob(name string, route, trainers, lanes int) *schema.Job {
	job := toyJob(name, trainers, lanes, schema.ApplyMean)
	job.Reduce = routes[route].reduce
	for i, replicated := range routes[route].replicated {
		job.Tables[i].Replicated = replicated
	}
	return job
}

// Whichever way gradients take, a job has the same bits: those of the oracle, with momentum, uneven and empty lanes and a
// batch without any sample.
func TestEveryRouteGivesEqualBits(t *testing.T) {
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
		for route := range routes {
			for _, trainers := range []int{1, 2, 4} {
				t.Run(fmt.Sprintf("%s/%d shards/%d trainers", routes[route].name, shards, trainers), func(t *testing.T) {
					job := routeJob(fmt.Sprintf("route-%d-%d", route, trainers), route, trainers, lanes)
					checkOutcomes(t, trainAll(t, testConfig(t, server), job, batches), want, losses)
				})
			}
		}
		server.Close()
	}
}
