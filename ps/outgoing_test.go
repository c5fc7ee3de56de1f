package ps

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// stall makes the first result that is sent wait, until the function it gives is called.
func (b *workbench) stall() (began chan struct{}, end func()) {
	began, ended := make(chan struct{}), make(chan struct{})
	var first, last sync.Once
	b.publishing = func(h schema.Head) {
		if h.Kind == schema.KindMean {
			first.Do(func() { close(began); <-ended })
		}
	}
	end = func() { last.Do(func() { close(ended) }) }
	b.t.Cleanup(end)
	return began, end
}

// counts is how many rounds have closed, and how many lookups were stepped; zeros while the shard is being stepped.
func (b *workbench) counts() (rounds, lookups uint64) {
	if !b.stepLock.TryLock() {
		return 0, 0
	}
	defer b.stepLock.Unlock()
	return b.end.Rounds(), b.tally.lookups
}

// While a result is sent, and that takes its time, the shard is stepped: further rounds close, and lookups are
// answered. What comes of it is sent afterwards, in the order of the steps.
func TestStepsGoOnWhileAResultIsSent(t *testing.T) {
	p := shardtest.New(t, shardtest.SmallJob("outgoing", 2, 2))
	b := newWorkbench(t, p, true)
	began, end := b.stall()
	all := uint64(1) // the sparse round
	for _, bucket := range b.place.Buckets {
		all += uint64(b.place.Chunks(bucket.ID))
	}
	for _, it := range b.frames(0, 0) {
		b.deliver(it)
	}
	own := b.frames(1, 0)
	var sender sync.WaitGroup
	sender.Go(func() { b.deliver(own[0]) }) // closes the round of a chunk
	<-began
	for _, it := range own[1:] {
		b.deliver(it)
	}
	b.deliver(b.lookup(1))
	b.until("step beside a result that is sent", func() bool {
		rounds, lookups := b.counts()
		return rounds == all && lookups == 1
	})
	if n := b.sent(schema.KindMean) + b.sent(schema.KindRows); n != 0 {
		t.Errorf("%d frames were sent before the first result", n)
	}
	end()
	sender.Wait()
	b.until("answer", func() bool { return b.sent(schema.KindRows) == 1 && b.sent(schema.KindMean) == int(all) })
	b.sentMu.Lock()
	defer b.sentMu.Unlock()
	var order, want []string
	for _, h := range b.heads {
		if h.Kind == schema.KindMean && h.Bucket != b.place.SparseBucket(0) {
			order = append(order, fmt.Sprintf("bucket %d chunk %d", h.Bucket, h.Chunk))
		}
	}
	for _, it := range own {
		if h := it.view.Head(); h.Kind == schema.KindDense {
			want = append(want, fmt.Sprintf("bucket %d chunk %d", h.Bucket, h.Chunk))
		}
	}
	if !slices.Equal(order, want) {
		t.Errorf("results were sent of %q, want %q", order, want)
	}
}

// Nothing is published with the step lock held: not what answers lookups that waited either, though their answers share
// a frame.
func TestNothingIsPublishedUnderTheStepLock(t *testing.T) {
	p := shardtest.New(t, shardtest.SmallJob("unlocked", 1, 1))
	b := newWorkbench(t, p, false)
	b.publishing = func(h schema.Head) {
		if h.Kind == schema.KindAck {
			return // the lock is its own
		}
		if !b.stepLock.TryLock() {
			t.Errorf("%v of batch %d is published, and the step lock is held", h.Kind, h.Batch)
			return
		}
		b.stepLock.Unlock()
	}
	const lookups = 5
	b.stepLock.Lock()
	for range lookups {
		b.deliver(b.lookup(0))
	}
	for _, it := range b.frames(0, 0) {
		b.deliver(it)
	}
	b.stepLock.Unlock()
	must(t, b.drain(t.Context()))
	if rows, results := b.sent(schema.KindRows), b.sent(schema.KindMean); rows != lookups || results == 0 {
		t.Errorf("%d answers and %d results were sent, want %d answers", rows, results, lookups)
	}
}

// A step that would write to a frame that is being sent waits for that: the result of a batch lies in the frame of the
// batch two before, and all answers in one.
func TestStepsWaitForTheirFrames(t *testing.T) {
	p := shardtest.New(t, shardtest.SmallJob("frames", 1, 1))
	b := newWorkbench(t, p, false)
	began, end := b.stall()
	var sender sync.WaitGroup
	sender.Go(func() { b.deliver(b.frames(0, 0)[0]) })
	<-began
	ready := func(kind schema.Kind, batch schema.Batch) bool {
		b.stepLock.Lock()
		defer b.stepLock.Unlock()
		return b.end.Ready(kind, batch)
	}
	for _, kind := range []schema.Kind{schema.KindDense, schema.KindSparse, schema.KindLookup, schema.KindPull} {
		for batch, want := range []bool{true, true, false, false} {
			if got := ready(kind, schema.Batch(batch)); got != want {
				t.Errorf("%v of batch %d may be stepped while a result of batch 0 is sent: %v, want %v", kind, batch, got, want)
			}
		}
	}
	b.deliver(b.lookup(0))
	for kind, want := range map[schema.Kind]bool{
		schema.KindDense: true, schema.KindSparse: true, schema.KindLookup: false, schema.KindPull: false,
	} {
		if got := ready(kind, 0); got != want {
			t.Errorf("%v may be stepped while an answer waits: %v, want %v", kind, got, want)
		}
	}
	end()
	sender.Wait()
	if !ready(schema.KindDense, 2) || b.sent(schema.KindRows) != 1 {
		t.Error("what was sent is still waited for")
	}
}

// Trainers that never wait for results, and a network that is slower than the shard: no frame changes while it is sent,
// which the race detector sees too. Each mode has its own frames to write to.
func TestFramesStayWhileTheyAreSent(t *testing.T) {
	for name, change := range map[string]func(*schema.Job){
		"sync":    func(*schema.Job) {},
		"bounded": func(j *schema.Job) { j.Consistency, j.Ahead = schema.ConsistencyBounded, 2 },
		"async":   func(j *schema.Job) { j.Consistency = schema.ConsistencyAsync },
		"grouped": func(j *schema.Job) { j.Consistency, j.Group, j.Tables = schema.ConsistencyGrouped, 2, nil },
	} {
		t.Run(name, func(t *testing.T) {
			job := shardtest.SmallJob("stay", 2, 2)
			change(job)
			b := newWorkbench(t, shardtest.New(t, job), true)
			b.publishing = func(h schema.Head) {
				for range 10 {
					runtime.Gosched()
				}
			}
			rounds := uint64(min(1, len(job.Tables)))
			for _, bucket := range b.place.Buckets {
				rounds += uint64(b.place.Chunks(bucket.ID))
			}
			if name == "async" {
				rounds *= 2
			}
			for batch := range schema.Batch(30) {
				var senders sync.WaitGroup
				for trainer := range 2 {
					all := b.frames(trainer, batch)
					if len(job.Tables) > 0 {
						f := shardtest.LookupFrame(t, job, shardtest.RunID, batch+1, [][]uint64{{1, 2}})
						ask := b.item(trainer, f)
						senders.Go(func() { b.deliver(ask) })
					}
					senders.Go(func() {
						for _, it := range all {
							b.deliver(it)
						}
					})
				}
				senders.Wait()
				b.until("end of all rounds", func() bool {
					closed, lookups := b.counts()
					return closed == rounds*uint64(batch+1) && lookups == uint64(2*min(1, len(job.Tables)))*uint64(batch+1)
				})
			}
			b.until("end of sending", func() bool { return !b.end.Waits() })
			if n := b.sent(schema.KindRefusal); n > 0 {
				t.Errorf("%d refusals", n)
			}
		})
	}
}
