package schema

import (
	"strings"
	"testing"
)

// Jobs that are not in step, or some of whose state is with trainers and some on shards, are refused by name, and no
// others.
func TestCheckVersions(t *testing.T) {
	table := TableSpec{Name: "t", Rows: 9, Dim: 2, Init: Zeros()}
	modules := []ModuleSpec{{Name: "m", In: []int{2}, Samples: 1, Contexts: 1,
		Module: `{"layers":[{"kind":"linear","out":2}]}`}}
	for _, c := range []versionsCase{
		{"", false, false, func(*Job) {}},
		{"", true, false, func(j *Job) { j.Consistency, j.Ahead = ConsistencyBounded, 1 }},
		{"", true, false, func(j *Job) { j.Wire = Wire{Gradients: GradientsBFloat16, ErrorFeedback: true} }},
		{"", false, false, func(j *Job) { j.Consistency = ConsistencyAsync }},
		{"", false, false, func(j *Job) { j.Consistency, j.Group = ConsistencyGrouped, 1 }},
		{"exact rows", false, false, func(j *Job) { j.Consistency, j.Optimizer.Exact = ConsistencyAsync, true }},
		{"", true, false, func(j *Job) {
			j.TableConsistency, j.Reduce = ConsistencyAsync, ReduceTrainers
			j.Tables = []TableSpec{table}
		}},
		{"exact rows", false, false, func(j *Job) {
			j.TableConsistency, j.Reduce, j.Optimizer.Exact = ConsistencyAsync, ReduceTrainers, true
			j.Tables = []TableSpec{table}
		}},
		{"", true, true, func(j *Job) { j.Apply = ApplyMean }},
		{"", true, true, func(j *Job) {
			j.Apply, j.Reduce, j.Tables = ApplyMean, ReduceTrainers, []TableSpec{table}
		}},
		{"", true, true, func(j *Job) {
			j.Parameters, j.Tables, j.Apply = nil, []TableSpec{table}, ApplyMean
			j.Tables[0].Replicated = true
		}},
		{"", true, true, func(j *Job) {
			j.Tables, j.Optimizer.Exact, j.Optimizer.Momentum = []TableSpec{table}, true, 0.5
		}},
		{"", true, false, func(j *Job) { j.Modules = modules }},
		{"", true, false, func(j *Job) { j.Modules, j.Parameters = modules, nil }},
		{"", false, false, func(j *Job) { j.Modules, j.Consistency = modules, ConsistencyAsync }},
		{"", true, false, func(j *Job) { j.Modules, j.Consistency, j.Ahead = modules, ConsistencyBounded, 1 }},
		{"its shards add up nothing", false, false, func(j *Job) {
			j.Modules, j.Apply, j.Reduce = modules, ApplyMean, ReduceTrainers
		}},
		{"its shards add up nothing", false, false, func(j *Job) {
			j.Modules, j.Apply, j.Reduce, j.Tables = modules, ApplyMean, ReduceTrainers, []TableSpec{table}
			j.Tables[0].Replicated = true
		}},
		{"its shards add up nothing", false, false, func(j *Job) {
			j.Apply, j.Reduce, j.Tables = ApplyMean, ReduceTrainers, []TableSpec{table}
			j.Tables[0].Replicated = true
		}},
	} {
		c.check(t)
	}
}

// versionsCase is a job with what CheckVersions says of it, or nothing.
type versionsCase struct {
	says    string
	rewinds bool
	alike   bool
	change  func(j *Job)
}

func (c *versionsCase) check(t *testing.T) {
	job := &Job{Name: "films", Optimizer: Optimizer{LR: 0.1},
		Parameters: []Parameter{{Name: "w", Shape: []int{2}, Init: Zeros()}}}
	c.change(job)
	job = job.WithDefaults()
	if err := job.Validate(); err != nil {
		t.Errorf("%q: %v", c.says, err)
	}
	if rewinds := job.Rewinds(); rewinds != c.rewinds {
		t.Errorf("%q: it rewinds: %v", c.says, rewinds)
	}
	if goes := job.Policy != PolicyFail; goes != (job.TakesOver() || c.alike) || job.rewindsAlike() != c.alike {
		t.Errorf("%q: by itself its policy is %s; its bits are those of a quiet one: %v", c.says, job.Policy,
			job.rewindsAlike())
	}
	err := job.CheckVersions()
	if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
		t.Errorf("%v, want it to say %q", err, c.says)
	}
	job.Policy = PolicyWait
	if err := job.Validate(); (err == nil) != (c.rewinds || job.TakesOver()) {
		t.Errorf("%q: with policy wait: %v", c.says, err)
	}
}
