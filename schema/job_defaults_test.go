package schema

import (
	"reflect"
	"testing"
)

// What a manifest need not say has the value that its comment names, and what it says stays.
func TestJobWithDefaults(t *testing.T) {
	short := &Job{Name: "clicks", Tables: []TableSpec{{Name: "items", Rows: 10, Dim: 2, Init: Uniform(0.5)}}}
	full := &Job{Name: "clicks", Workload: "clicks", Trainers: 1, Lanes: 8, Consistency: "sync", Apply: "update",
		Policy:     "recover",
		ChunkBytes: 256 << 10, Optimizer: Optimizer{Kind: "sgd"},
		Tables: []TableSpec{{Name: "items", Rows: 10, Dim: 2, Partitions: 64, Init: Init{Kind: "uniform", Scale: 0.5}}}}
	if got := short.WithDefaults(); !reflect.DeepEqual(got, full) {
		t.Errorf("%+v\nwant %+v", got, full)
	}
	if err := full.Validate(); err != nil || short.Tables[0].Partitions != 0 {
		t.Errorf("error %v, and the manifest given has %+v", err, short)
	}
	said := &Job{Name: "n", Workload: "w", Trainers: 2, Lanes: 3, Consistency: "async", Apply: "update", Policy: "fail",
		ChunkBytes: 8 << 10,
		Optimizer:  Optimizer{Kind: "sgd", LR: 1}, Parameters: []Parameter{{Name: "p", Shape: []int{1}, Init: Normal(1)}},
		Tables: []TableSpec{{Name: "t", Rows: 4, Dim: 1, Partitions: 2, Init: Zeros()}}}
	if got := said.WithDefaults(); !reflect.DeepEqual(got, said) {
		t.Errorf("%+v\nwant %+v", got, said)
	}
	for _, c := range []struct {
		job   Job
		lanes int
		apply string
	}{{Job{Trainers: 11}, 16, "update"}, {Job{Reduce: "trainers"}, 8, "mean"}} {
		if got := c.job.WithDefaults(); got.Lanes != c.lanes || got.Apply != c.apply {
			t.Errorf("%+v: lanes %d, apply %s", c.job, got.Lanes, got.Apply)
		}
	}
}
