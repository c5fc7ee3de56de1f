package ps

import (
	"slices"
	"testing"

	"gradbus/schema"
)

// Every bucket of every batch is told of once, when its last chunk is answered, with the times and bytes of what was taken: a
// frame that comes again counts for nothing.
func TestRoundsAreTimed(t *testing.T) {
	b := newWorkbench(t, newProblem(t, smallJob("watch", 2, 2)), false)
	var told []RoundTimes
	b.watch = newWatch(&b.config, func(r RoundTimes) { told = append(told, r) })
	for batch := range schema.Batch(2) {
		bytes := map[schema.Bucket]int64{}
		rounds := len(b.place.Buckets) + 1 // the sparse one
		for trainer := range 2 {
			for _, it := range b.frames(trainer, batch) {
				bytes[it.view.Head().Bucket] += int64(len(it.view.Bytes()))
				again := item{from: it.from, view: it.view}
				for _, it := range []*item{&it, &again} {
					b.watch.arrived(it)
					b.turn.Lock()
					err := b.step(it)
					b.turn.Unlock()
					must(t, err)
				}
			}
			if trainer == 0 && len(told) != 0 {
				t.Fatalf("told of %v before the other trainer", told)
			}
		}
		if len(told) != rounds || len(b.watch.open) != 0 {
			t.Fatalf("batch %d: told %d times, %d open, want %d rounds", batch, len(told), len(b.watch.open), rounds)
		}
		for i, r := range told {
			if r.Job != "watch" || r.Batch != batch || r.Bytes != bytes[r.Bucket] || r.Sparse != (int(r.Bucket) == rounds-1) || r.Average <= 0 ||
				r.First.IsZero() || r.Last.Before(r.First) || r.Answered.Before(r.Last) || r.Answered.Sub(r.First) < r.Average {
				t.Errorf("round %d: %+v, want %d bytes", i, r, bytes[r.Bucket])
			}
			if slices.ContainsFunc(told[:i], func(o RoundTimes) bool { return o.Bucket == r.Bucket }) {
				t.Errorf("bucket %d twice", r.Bucket)
			}
		}
		told = nil
	}
}

// Rounds that no result ends by its batch are not watched: nothing would be let go of.
func TestRoundsWithoutResultsAreNotTimed(t *testing.T) {
	for _, c := range []struct {
		consistency, tables string
		watched             bool
	}{
		{schema.ConsistencySync, "", true},
		{schema.ConsistencyAsync, "", true},
		{schema.ConsistencyGrouped, "", false},
		{schema.ConsistencySync, schema.ConsistencyAsync, false},
	} {
		job := smallJob("unwatched", 2, 2)
		job.Consistency, job.TableConsistency = c.consistency, c.tables
		w := newWatch(&ShardConfig{Job: job, Placement: schema.NewPlacement(job, 1)}, func(RoundTimes) {})
		if (w != nil) != c.watched {
			t.Errorf("consistency %q, of tables %q: watched %v, want %v", c.consistency, c.tables, w != nil, c.watched)
		}
	}
}
