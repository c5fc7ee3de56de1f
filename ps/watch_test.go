package ps

import (
	"slices"
	"testing"
	"time"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/shardtest"
)

// Every bucket of every batch is told of once, when its last chunk is answered, with the times and bytes of what was
// taken: a frame that comes again counts for nothing.
func TestRoundsAreTimed(t *testing.T) {
	b := newWorkbench(t, shardtest.New(t, shardtest.SmallJob("watch", 2, 2)), false)
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
					b.stepLock.Lock()
					err := b.step(it)
					b.stepLock.Unlock()
					must(t, err)
					b.end.Flush()
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
			if r.Job != "watch" || r.Batch != batch || r.Bytes != bytes[r.Bucket] || r.Sparse != (int(r.Bucket) == rounds-1) ||
				r.Average <= 0 ||
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

// Each shard tells of the part of a bucket that is on it, when its last chunk there is answered.
func TestRoundsOfABucketOnTwoShards(t *testing.T) {
	job := shardtest.SmallJob("halves", 1, 1)
	job.Parameters, job.Tables = []schema.Parameter{{Name: "w", Shape: []int{3 * job.ChunkBytes / 4},
		Init: job.Parameters[0].Init}}, nil
	place := schema.NewPlacement(job, 2)
	for index, chunks := range []int{2, 1} {
		told := 0
		w := newWatch(&shard.Config{Job: job, Placement: place, Index: index}, func(RoundTimes) { told++ })
		var over []RoundTimes
		for range chunks {
			if w.published(over); told != 0 {
				t.Fatalf("shard %d told of %d rounds before its %d chunks", index, told, chunks)
			}
			f := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindDense, Values: 4})
			f.SetHead(schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Lanes: 1, Node: lane.Node{Count: 1},
				Weight: 1, Chunks: 3})
			it := &item{from: "t0", view: *shardtest.View(t, f.Seal())}
			over = w.stepped(it, schema.All, time.Now(), []shard.Output{{Kind: schema.KindMean}})
		}
		if w.published(over); told != 1 || len(w.open) != 0 {
			t.Errorf("shard %d told of %d rounds and has %d open, want 1 and none", index, told, len(w.open))
		}
	}
}

// Rounds that no result ends by its batch are not watched: nothing would be released.
func TestRoundsWithoutResultsAreNotTimed(t *testing.T) {
	for _, c := range []struct {
		consistency, tables string
		watched             bool
	}{
		{schema.ConsistencySync, "", true},
		{schema.ConsistencyAsync, "", true},
		{schema.ConsistencyGrouped, "", false},
		{schema.ConsistencySync, schema.ConsistencyAsync, true},
	} {
		job := shardtest.SmallJob("unwatched", 2, 2)
		job.Consistency, job.TableConsistency = c.consistency, c.tables
		if c.tables != "" {
			job.Reduce, job.Apply = schema.ReduceTrainers, schema.ApplyMean
		}
		if job.Consistency == schema.ConsistencyGrouped {
			job.Group, job.Tables = 2, nil
		}
		b := newWorkbench(t, shardtest.New(t, job), false)
		b.watch = newWatch(&b.config, func(RoundTimes) {})
		all := b.frames(0, 0)
		for _, it := range all[len(all)-1:] {
			b.watch.arrived(&it)
			b.stepLock.Lock()
			err := b.step(&it)
			b.stepLock.Unlock()
			must(t, err)
		}
		if got := len(b.watch.open) > 0; got != c.watched {
			t.Errorf("consistency %q, of tables %q: watched %v, want %v", c.consistency, c.tables, got, c.watched)
		}
	}
}
