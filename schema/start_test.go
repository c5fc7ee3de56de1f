package schema

import (
	"errors"
	"strings"
	"testing"
)

const startDigest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// A start has as many batches as keep each below what a trainer may have open on a server with the smallest budget.
func TestStartBatches(t *testing.T) {
	job := &Job{Trainers: 2, Tables: []TableSpec{{Rows: 1 << 20, Dim: 14}, {Rows: 1 << 18, Dim: 13, PerRow: true}}}
	if n := job.NewStart(startDigest).Batches; n != 20 { // 80 MiB, of which a batch has 4
		t.Errorf("%d batches, want 20", n)
	}
	if job.StartVersion() != 0 || (&Job{Start: job.NewStart(startDigest)}).StartVersion() != 20 ||
		(&Job{}).NewStart(startDigest).Batches != 1 {
		t.Error("version of the first step")
	}
}

// What could not begin with the bits of a model is named, with what would be right.
func TestValidateStart(t *testing.T) {
	for _, c := range []struct {
		field, value, want string
		change             func(*Job)
	}{
		{"start.digest", `"AB"`, "64 hexadecimal", func(j *Job) { j.Start.Digest = "AB" }},
		{"start.batches", "1048577", "1 to 1048576", func(j *Job) { j.Start.Batches = 1<<20 + 1 }},
		{"start", `"float16"`, "float32", func(j *Job) { j.Wire.Gradients = GradientsFloat16 }},
		{"start", `"async"`, "sync, bounded or grouped", func(j *Job) { j.Consistency = ConsistencyAsync }},
		{"start", `"async"`, "table_consistency sync",
			func(j *Job) { j.Apply, j.Reduce, j.TableConsistency = ApplyMean, ReduceTrainers, ConsistencyAsync }},
		{"start", "1", "no modules", func(j *Job) { j.Modules = []ModuleSpec{{}} }},
	} {
		job := testJob()
		job.Start = job.NewStart(startDigest)
		if err := job.Validate(); err != nil {
			t.Fatal(err)
		}
		c.change(job)
		var all JobErrors
		if !errors.As(job.Validate(), &all) {
			t.Errorf("%s %s is not found", c.field, c.value)
			continue
		}
		found := false
		for _, e := range all {
			found = found || e.Field == c.field && e.Value == c.value && strings.Contains(e.Want, c.want)
		}
		if !found {
			t.Errorf("%v: want %s: %s: %s", all, c.field, c.value, c.want)
		}
	}
}
