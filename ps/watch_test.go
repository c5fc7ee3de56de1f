package ps

import (
	"slices"
	"testing"
	"time"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// Every bucket of every batch is told of once, when its last chunk is answered, with the times and bytes of what was
// taken. Repeats count for nothing. Only sums at the close leave nothing to be added before.
func TestRoundsAreTimed(t *testing.T) {
	for _, sum := range []string{schema.SumFused, schema.SumClose} {
		job := shardtest.SmallJob("watch", 4, 4)
		job.Apply, job.Sum = schema.ApplyMean, sum
		must(t, job.Validate())
		b := newWorkbench(t, shardtest.New(t, job), false)
		var told []RoundTimes
		b.watch.tell = func(r RoundTimes) { told = append(told, r) }
		arrived := time.Now()
		for batch := range schema.Batch(2) { // one lane alone has samples in the second
			bytes, weight := map[schema.Bucket]int64{}, 0.0
			rounds := len(b.place.Buckets) + 1 // the sparse one
			for trainer := range 4 {
				for _, it := range b.frames(trainer, batch) {
					bytes[it.view.Head().Bucket] += int64(len(it.view.Bytes()))
					weight += it.view.Head().Weight
					again := item{from: it.from, view: it.view}
					for _, it := range []*item{&it, &again} {
						arrived = arrived.Add(time.Second)
						b.stepWatched(it, arrived)
					}
				}
				if trainer < 3 && len(told) != 0 {
					t.Fatalf("told of %v before the last trainer", told)
				}
			}
			if len(told) != rounds || len(b.watch.open) != 0 {
				t.Fatalf("batch %d: told %d times, %d open, want %d rounds", batch, len(told), len(b.watch.open), rounds)
			}
			for i, r := range told {
				if r.Job != "watch" || r.Batch != batch || r.Bytes != bytes[r.Bucket] || r.Sparse != (int(r.Bucket) == rounds-1) ||
					(r.Average > 0) != (weight > 0) || (r.OnArrival > 0) != (batch == 0 && sum == schema.SumFused) ||
					r.First.IsZero() || r.FirstGradient.Before(r.First) || r.Straggler() < time.Second {
					t.Errorf("%s: round %d: %+v, want %d bytes", sum, i, r, bytes[r.Bucket])
				}
				if slices.ContainsFunc(told[:i], func(o RoundTimes) bool { return o.Bucket == r.Bucket }) {
					t.Errorf("bucket %d twice", r.Bucket)
				}
			}
			told = nil
		}
	}
}

// stepWatched steps a frame that arrived at some time, and publishes what comes of it.
func (b *workbench) stepWatched(it *item, at time.Time) {
	b.t.Helper()
	it.came = at
	b.stepLock.Lock()
	err := b.step(it)
	b.stepLock.Unlock()
	must(b.t, err)
	b.end.Flush()
}

// A gradient is there when its last frame is: what is sent before and between does not make a trainer late. One trainer
// has no straggler.
func TestStragglerIsBetweenGradients(t *testing.T) {
	for trainers, want := range []time.Duration{1: 0, 2: 3 * time.Second} {
		if trainers == 0 {
			continue
		}
		job := shardtest.SmallJob("late", trainers, trainers)
		job.Parameters, job.Tables = []schema.Parameter{{Name: "w", Shape: []int{3 * job.ChunkBytes / 4},
			Init: job.Parameters[0].Init}}, nil
		b := newWorkbench(t, shardtest.New(t, job), false)
		var told []RoundTimes
		b.watch.tell = func(r RoundTimes) { told = append(told, r) }
		began := time.Now()
		var all [2][]item
		for trainer := range trainers {
			all[trainer] = b.frames(trainer, 0)
		}
		for i := range all[0] { // t0's at 10, 20, 30 s and so on, t1's 3 s after each
			for trainer := range trainers {
				b.stepWatched(&all[trainer][i], began.Add(time.Duration(10*i+10+3*trainer)*time.Second))
			}
		}
		if len(told) != 1 || told[0].Straggler() != want || len(all[0]) < 3 ||
			told[0].FirstGradient.Sub(told[0].First) != time.Duration(10*len(all[0])-10)*time.Second {
			t.Errorf("%d trainers: told of %+v, want a straggler of %v", trainers, told, want)
		}
	}
}

// What the backend spends in a step goes to the rounds that it was for: before the first close to the frame's own.
func TestSpentIsDealtToRounds(t *testing.T) {
	job := shardtest.SmallJob("spent", 1, 1)
	job.Consistency, job.Ahead, job.Tables = schema.ConsistencyBounded, 1, nil
	timed := &timedBackend{}
	w := newWatch(&shard.Config{Job: job, Placement: schema.NewPlacement(job, 1),
		Contributors: round.ContributorsOf(job)}, timed, nil)
	step := func(batch schema.Batch, closes ...schema.Batch) (over []RoundTimes) {
		f := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindDense, Values: 4})
		f.SetHead(schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Lanes: 1, Node: lane.Node{Count: 1},
			Weight: 1, Chunks: schema.Chunk(w.chunks[0]), Batch: batch})
		before := w.begin()
		timed.spent += 5 // adding up
		var outputs []shard.Output
		for _, b := range closes {
			w.closing(schema.All, b, 0)
			timed.spent += time.Duration(100 * (b + 1)) // dividing
			for range w.chunks[0] {
				outputs = append(outputs, shard.Output{Kind: schema.KindMean, Batch: b})
			}
		}
		return w.stepped(&item{from: "t0", view: *shardtest.View(t, f.Seal())}, 0, schema.All, before, outputs)
	}
	over := append(step(1), step(0, 0, 1)...)
	if len(over) != 2 || over[0].Batch != 0 || over[0].OnArrival != 5 || over[0].Average != 100 ||
		over[1].Batch != 1 || over[1].OnArrival != 5 || over[1].Average != 200 {
		t.Errorf("told of %+v", over)
	}
	step(2)
	step(4) // in its place, which nothing ended
	key := w.key(4, 0, schema.All)
	if len(w.open) != 1 || w.open[key].Batch != 4 || w.closed(nil, key, 2) != nil || w.open[key].left != w.chunks[0] {
		t.Errorf("%d rounds are open, want that of batch 4", len(w.open))
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
		w := newWatch(&shard.Config{Job: job, Placement: place, Index: index, Contributors: round.ContributorsOf(job)},
			&timedBackend{}, func(RoundTimes) { told++ })
		var over []RoundTimes
		for range chunks {
			if w.published(over); told != 0 {
				t.Fatalf("shard %d told of %d rounds before its %d chunks", index, told, chunks)
			}
			f := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindDense, Values: 4})
			f.SetHead(schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Lanes: 1, Node: lane.Node{Count: 1},
				Weight: 1, Chunks: 3})
			it := &item{from: "t0", view: *shardtest.View(t, f.Seal())}
			over = w.stepped(it, 0, schema.All, 0, []shard.Output{{Kind: schema.KindMean}})
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
		all := b.frames(0, 0)
		for _, it := range all[len(all)-1:] {
			b.stepWatched(&it, time.Now())
		}
		if got := len(b.watch.open) > 0; got != c.watched {
			t.Errorf("consistency %q, of tables %q: watched %v, want %v", c.consistency, c.tables, got, c.watched)
		}
	}
}

// A report has what the rounds of a bucket came to.
func TestBucketsAreSummedUp(t *testing.T) {
	var s bucketTimes
	s.begin([]schema.Bucket{3, 4}, 7)
	began := time.Now()
	at := func(second int) time.Time { return began.Add(time.Duration(second) * time.Second) }
	round := func(bucket schema.Bucket, first, last, answered int) {
		s.add(&RoundTimes{Bucket: bucket, First: at(first), FirstGradient: at(first), LastGradient: at(last),
			Answered: at(answered), OnArrival: 2 * time.Second, Average: time.Second})
	}
	round(4, 0, 3, 5)
	round(4, 10, 11, 12)
	round(7, 0, 0, 1)
	round(9, 0, 0, 1) // none of the first
	want := []schema.BucketReport{{Bucket: 4, Rounds: 2, StragglerSeconds: 4, StragglerMaxSeconds: 3, BatchSeconds: 7,
		BatchMaxSeconds: 5, ArrivalSeconds: 4, AverageSeconds: 2, StragglerMinSeconds: 1, StragglerSquaredSeconds: 10,
		BatchMinSeconds: 2, BatchSquaredSeconds: 29, AverageMinSeconds: 1, AverageMaxSeconds: 1, AverageSquaredSeconds: 2},
		{Bucket: 7, Sparse: true, Rounds: 1, BatchSeconds: 1, BatchMaxSeconds: 1, ArrivalSeconds: 2, AverageSeconds: 1,
			BatchMinSeconds: 1, BatchSquaredSeconds: 1, AverageMinSeconds: 1, AverageMaxSeconds: 1, AverageSquaredSeconds: 1}}
	if got := s.report(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// However many buckets a shard has, it tells of some of them, its rows among these.
func TestBucketsAreBounded(t *testing.T) {
	var s bucketTimes
	dense := make([]schema.Bucket, 1000)
	for i := range dense {
		dense[i] = schema.Bucket(i)
	}
	s.begin(dense, 1000)
	n := len(s.of)
	if n != schema.TelemetryBucketsMax || s.of[n-1].Bucket != 1000 || s.of[n-2].Bucket != schema.Bucket(n-2) {
		t.Errorf("%d buckets", n)
	}
}
