package schema

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
)

func countTrue(all []bool) (n int) {
	for _, is := range all {
		if is {
			n++
		}
	}
	return n
}

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
		if n := countTrue(job.BusyShards(2)); n != busy {
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

// Which shards have something to do is found without a placement, and is what the placement says.
func TestBusyShardsAreThoseOfThePlacement(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 5))
	one := func(words ...string) string { return words[r.IntN(len(words))] }
	idle := 0
	for range 4000 {
		job := &Job{Name: "j", Workload: "w", Lanes: 8, Trainers: 1 + r.IntN(8), ChunkBytes: 4096 << r.IntN(2),
			Consistency: one(ConsistencySync, ConsistencyBounded, ConsistencyAsync, ConsistencyGrouped), Group: 1, Ahead: 1,
			Apply: one(ApplyUpdate, ApplyMean), Reduce: one(ReduceShards, ReduceTrainers),
			FirstBucketBytes: 4096 << r.IntN(6), BucketBytes: 4096 << r.IntN(4)}
		if job.Reduce == ReduceTrainers {
			job.Apply = ApplyMean
		}
		for range r.IntN(5) {
			job.Parameters = append(job.Parameters, Parameter{Shape: []int{1 + r.IntN(1<<r.IntN(15))}})
			if r.IntN(4) == 0 { // a bucket of its own
				job.Parameters[len(job.Parameters)-1].Optimizer = &Optimizer{Kind: OptimizerSGD, LR: r.Float32()}
			}
		}
		for i := range r.IntN(3) {
			table := TableSpec{Name: fmt.Sprint("t", i), Rows: 9, Dim: 1 + r.IntN(9), Partitions: 1 + r.IntN(9),
				Pooling: PoolingSum, Placement: one(PlacementRows, PlacementColumns, PlacementTables)}
			if table.Placement == PlacementRows && r.IntN(2) == 0 {
				table.Replicated, table.Reduce = true, one("", ReduceShards)
			}
			job.Tables = append(job.Tables, table)
		}
		if r.IntN(4) == 0 {
			job.Modules = append(job.Modules, ModuleSpec{Shard: r.IntN(9)})
		}
		shards := 1 + r.IntN(12)
		p, busy := NewPlacement(job, shards), job.BusyShards(shards)
		for i, is := range busy {
			if want := p.Idle(i) == ""; is != want {
				t.Fatalf("shard %d of %d is busy: %v, want %v, of\n%+v", i, shards, is, want, job)
			}
			for table := range job.Tables {
				held := 0
				for part := range job.Tables[table].Partitions {
					if p.Holds(Table(table), Partition(part), i) {
						held++
					}
				}
				if n := p.PartitionsOf(Table(table), i); n != held {
					t.Fatalf("shard %d of %d has %d partitions of table %d, want %d, of\n%+v", i, shards, n, table, held, job)
				}
			}
		}
		idle += shards - countTrue(busy)
	}
	if idle < 1000 {
		t.Errorf("%d shards were idle, too few to tell", idle)
	}
}

// A short manifest costs little before it is known whether there is room for its job, however much it asks for.
func TestBusyShardsOfVastJobs(t *testing.T) {
	for _, c := range []struct{ parameters, elements, first, others, chunk, busy int }{
		{9, 1_900_000_000, 0, 0, 4096, ShardsMax},
		{4, 1 << 30, 1 << 30, 4096, 4 << 20, ShardsMax}, // most chunks are tiny beside those of the first bucket
		{9, 1_900_000_000, 4096, 4096, 4096, ShardsMax},
		{3, 1200 << 20, 0, 0, 4 << 20, 3910},
	} {
		job := &Job{Lanes: 1, Trainers: 1, ChunkBytes: c.chunk, FirstBucketBytes: c.first, BucketBytes: c.others}
		for range c.parameters {
			job.Parameters = append(job.Parameters, Parameter{Shape: []int{c.elements}})
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		busy := countTrue(job.BusyShards(ShardsMax))
		runtime.ReadMemStats(&after)
		const most = 4 << 20
		if n := after.TotalAlloc - before.TotalAlloc; busy != c.busy || n > most {
			t.Errorf("%+v: %d busy shards, found with %d bytes, want %d with at most %d", c, busy, n, c.busy, most)
		}
	}
}
