package schema

import (
	"strings"
	"testing"
)

// A shard is idle where the job has neither chunks nor rows for it, and says where they are.
func TestIdleShards(t *testing.T) {
	whole := func(placement string) *Job {
		return (&Job{Name: "idle", Workload: "w", Trainers: 1, Lanes: 1,
			Parameters: []Parameter{{Name: "w", Shape: []int{8}}},
			Tables: []TableSpec{{Name: "embedding", Rows: 64, Dim: 8, Partitions: 4, Placement: placement,
				Pooling: PoolingMean}}}).WithDefaults()
	}
	for placement, busy := range map[string]int{PlacementTables: 1, PlacementColumns: 2, PlacementRows: 2, "mean": 1} {
		job := whole(placement)
		if placement == "mean" {
			job.Apply, job.Tables[0].Placement = ApplyMean, PlacementTables
		}
		if placement == PlacementRows {
			job.Tables[0].Pooling = ""
		}
		p := NewPlacement(job, 2)
		if n := job.BusyShards(2); n != busy {
			t.Errorf("%s: %d busy shards, want %d", placement, n, busy)
		}
		if why := p.Idle(0); why != "" {
			t.Errorf("%s: s0 is idle: %s", placement, why)
		}
		if why := p.Idle(1); busy == 1 && (!strings.Contains(why, "table embedding is whole on s0") ||
			!strings.Contains(why, "dense chunks: 1, on other shards")) {
			t.Errorf("%s: s1 is idle: %q", placement, why)
		}
	}
}
