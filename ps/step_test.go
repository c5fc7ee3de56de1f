package ps

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// workbench is a worker of one shard, with the heads of what it sends kept.
type workbench struct {
	*worker
	t        *testing.T
	p        *shardtest.Problem
	place    *schema.Placement
	sequence []schema.Sequence // by trainer
	requests schema.Sequence
	leases   shardtest.Leases
	told     chan error

	sentMu sync.Mutex
	heads  []schema.Head
	acks   map[string]schema.Ack // the latest, by trainer
	acked  int

	publishing func(schema.Head) // called before what is sent is looked at; nil for nothing
}

// newWorkbench makes a worker. Its goroutine runs where run is set, until the test ends.
func newWorkbench(t *testing.T, p *shardtest.Problem, run bool) *workbench {
	t.Helper()
	b := &workbench{t: t, p: p, place: schema.NewPlacement(p.Job, 1), sequence: make([]schema.Sequence, p.Job.Trainers),
		told: make(chan error, 2), acks: map[string]schema.Ack{}}
	config := shard.Config{Job: p.Job, Placement: b.place, RunID: shardtest.RunID, Generation: generationFirst,
		Backend:      p.Backend,
		Contributors: round.ContributorsOf(p.Job), StagedBytesMax: 1 << 30, ParkedBytesMax: 1 << 20}
	s := &Server{log: slog.New(slog.DiscardHandler)}
	b.worker = newWorker(s, config, 4<<20, s.log, b.keep, func(err error) { b.told <- err })
	if !run {
		must(t, b.build(t.Context()))
		t.Cleanup(b.end.Close)
		return b
	}
	ctx, cancel := context.WithCancel(context.Background())
	go b.run(ctx)
	t.Cleanup(func() { cancel(); <-b.done; b.leases.Check(t, 0) })
	must(t, <-b.told)
	return b
}

// keep takes what the worker sends.
func (b *workbench) keep(_ schema.Member, at fabric.Subject, p fabric.Payload) {
	frame := p.Data()
	v, err := schema.Verify(frame, schema.Limits{})
	if err != nil {
		b.t.Errorf("%v: %v", at, err)
		return
	}
	if b.publishing != nil {
		head := v.Head()
		b.publishing(head)
		if v, err = schema.Verify(frame, schema.Limits{}); err != nil || v.Head() != head {
			b.t.Errorf("%v was written to while it was sent: %+v was %+v, %v", at, v.Head(), head, err)
		}
	}
	b.sentMu.Lock()
	defer b.sentMu.Unlock()
	b.heads = append(b.heads, v.Head())
	if a, ok := v.Ack(); ok {
		b.acks[at.To], b.acked = a, b.acked+1
	}
}

// sent counts what was sent of a kind.
func (b *workbench) sent(kind schema.Kind) (n int) {
	return b.sentOf(kind, func(schema.Bucket) bool { return true })
}

// sentOf counts what was sent of a kind, of some buckets.
func (b *workbench) sentOf(kind schema.Kind, of func(schema.Bucket) bool) (n int) {
	b.sentMu.Lock()
	defer b.sentMu.Unlock()
	for _, h := range b.heads {
		if h.Kind == kind && of(h.Bucket) {
			n++
		}
	}
	return n
}

// frames are a trainer's contributions to a batch, numbered, in the order in which they are sent.
func (b *workbench) frames(trainer int, batch schema.Batch) (items []item) {
	b.t.Helper()
	for _, c := range b.p.Frames(b.t, b.place, shardtest.RunID, batch, lane.Node{First: lane.Lane(trainer), Count: 1}) {
		b.sequence[trainer]++
		c.Frame.SetSequence(b.sequence[trainer])
		items = append(items, b.item(trainer, c.Frame))
	}
	return items
}

func (b *workbench) item(trainer int, f *schema.Frame) item {
	b.t.Helper()
	v := shardtest.View(b.t, f.Seal())
	return item{from: schema.TrainerMember(trainer), view: *v, payload: b.leases.Of(v.Bytes())}
}

func (b *workbench) lookup(batch schema.Batch) item {
	b.t.Helper()
	f := shardtest.LookupFrame(b.t, b.p.Job, shardtest.RunID, batch, [][]uint64{{1, 2}})
	b.requests++
	f.SetSequence(b.requests)
	return b.item(0, f)
}

func (b *workbench) deliver(it item) {
	b.t.Helper()
	if !b.worker.deliver(&it) {
		b.t.Error("a frame was dropped")
	}
}

// until polls for something that must come.
func (b *workbench) until(what string, there func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(patience); !there(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("no %s", what)
		}
	}
}

// Contributions come from one goroutine, lookups of the next batch from others, and the worker's own takes part: all
// rounds close, every lookup is answered, whether or not it had to wait, everybody hears that everything has arrived,
// and every payload is released.
func TestSteps(t *testing.T) {
	p := shardtest.New(t, shardtest.SmallJob("steps", 3, 3))
	b := newWorkbench(t, p, true)
	rounds := 0 // without the sparse one, which answers to lookups may tell of
	for _, bucket := range b.place.Buckets {
		rounds += b.place.Chunks(bucket.ID)
	}
	const batches, lookups = 20, 200
	for batch := range schema.Batch(batches) {
		var asks []item
		for range lookups {
			asks = append(asks, b.lookup(batch+1))
		}
		var all []item
		for trainer := range p.Job.Trainers {
			all = append(all, b.frames(trainer, batch)...)
		}
		var wait sync.WaitGroup
		for i := range 2 {
			wait.Go(func() {
				for _, it := range asks[i*lookups/2 : (i+1)*lookups/2] {
					b.deliver(it)
				}
			})
		}
		for _, it := range all {
			b.deliver(it)
		}
		wait.Wait()
		b.until("result", func() bool { return b.sentOf(schema.KindMean, b.place.IsDense) == rounds*int(batch+1) })
		b.until("answer", func() bool { return b.sent(schema.KindRows) == lookups*int(batch+1) })
	}
	if n := b.sent(schema.KindRefusal); n > 0 {
		t.Errorf("%d refusals", n)
	}
	for trainer, sequence := range b.sequence {
		b.until("last ack", func() bool {
			b.sentMu.Lock()
			defer b.sentMu.Unlock()
			return b.acks[string(schema.TrainerMember(trainer))].Cumulative == uint64(sequence)
		})
	}
}

// begun returns the batch of the last step while another goroutine steps.
func TestBegunWithoutStepLock(t *testing.T) {
	b := newWorkbench(t, shardtest.New(t, shardtest.SmallJob("begun", 1, 1)), false)
	for batch := range schema.Batch(2) {
		for _, it := range b.frames(0, batch) {
			b.deliver(it)
		}
		must(t, b.drain(t.Context()))
	}
	b.stepLock.Lock()
	defer b.stepLock.Unlock()
	m := &replicaSender{a: &assignment{own: []int{0}, workers: []*worker{b.worker}}}
	if have, want := m.begun(), b.end.Batch(); have != want || want == 0 {
		t.Errorf("batch %d has begun, want %d", have, want)
	}
}

// Whatever waits, lookups go first, and contributions keep their order: what comes behind a sparse one that was queued
// is queued too.
func TestAsksGoFirst(t *testing.T) {
	p := shardtest.New(t, shardtest.SmallJob("order", 2, 2))
	b := newWorkbench(t, p, false)
	own := b.frames(0, 0) // of which the last ones are sparse
	b.stepLock.Lock()     // somebody steps
	b.deliver(own[len(own)-1])
	b.stepLock.Unlock()
	for _, it := range slices.Backward(own[:len(own)-1]) {
		b.deliver(it) // so the sparse ones come first
	}
	if n := b.sent(schema.KindAck); n > 0 {
		t.Errorf("%d acks: contributions were stepped past a sparse one that waits", n)
	}
	other := b.frames(1, 0)
	b.stepLock.Lock() // somebody steps
	for _, it := range other {
		b.deliver(it)
	}
	b.deliver(b.lookup(0))
	b.stepLock.Unlock()
	must(t, b.drain(t.Context()))
	if b.heads[0].Kind != schema.KindRows {
		t.Errorf("%v was sent first: want the answer to the lookup", b.heads[0].Kind)
	}
	// The first of trainer 0 that was stepped is the last of its numbers, so there was a gap at once.
	if b.heads[1].Kind != schema.KindAck {
		t.Errorf("%v was sent second: want an ack that tells of the gap", b.heads[1].Kind)
	}
	if b.sent(schema.KindMean) == 0 || b.end.StagedBytes() != 0 {
		t.Errorf("%d results, %d bytes are held", b.sent(schema.KindMean), b.end.StagedBytes())
	}
	b.leases.Check(t, 0)
	b.deliver(b.lookup(1)) // nobody steps and nothing waits: at once
	if n := b.sent(schema.KindRows); n != 2 {
		t.Errorf("%d answers to 2 lookups", n)
	}
}

// The goroutine that receives steps whatever the job's only trainer sends, if that is in this process.
func TestStepHereOfTheOnlyTrainer(t *testing.T) {
	job := shardtest.SmallJob("alone", 1, 1)
	for i := range job.Tables {
		job.Tables[i].Dim = 2048
	}
	b := newWorkbench(t, shardtest.New(t, job), false)
	b.alone = true
	large := false
	for batch := range schema.Batch(4) {
		for _, it := range b.frames(0, batch) {
			large = large || it.view.Head().Kind == schema.KindSparse && len(it.view.Bytes()) > sparseHereBytes
			b.deliver(it)
		}
		if done := b.end.Done(); done != schema.Version(batch)+1 {
			t.Fatalf("version %d behind batch %d", done, batch)
		}
	}
	if !large {
		t.Errorf("no contribution of rows has more than %d bytes", sparseHereBytes)
	}
	b.leases.Check(t, 0)
}

// An ack stands for several frames, but what is missing or comes again is said at once, and what is left after a
// moment.
func TestAcksAreFew(t *testing.T) {
	job := shardtest.SmallJob("acks", 2, 2)
	job.Tables = nil
	job.Parameters = []schema.Parameter{{Name: "w", Shape: []int{100, schema.ChunkBytesMin / 4},
		Init: schema.Init{Kind: schema.InitZeros}}}
	p := shardtest.New(t, job)
	b := newWorkbench(t, p, true)
	own := b.frames(0, 1) // refused, as early: received all the same, and nothing closes
	b.deliver(own[0])
	b.until("ack after a pause", func() bool { return b.sent(schema.KindAck) == 1 })
	b.deliver(own[2])
	b.until("ack of a gap", func() bool { return b.sent(schema.KindAck) >= 2 })
	b.deliver(own[1])
	again := own[1]
	again.payload = b.leases.Of(nil)
	b.deliver(again)
	b.until("ack of a repetition", func() bool {
		b.sentMu.Lock()
		defer b.sentMu.Unlock()
		return b.acked >= 3 && b.acks["t0"].Cumulative == 3
	})
	b.sentMu.Lock()
	before := b.acked
	b.sentMu.Unlock()
	for _, it := range own[3:] {
		b.deliver(it)
	}
	b.until("last ack", func() bool {
		b.sentMu.Lock()
		defer b.sentMu.Unlock()
		return b.acks["t0"].Cumulative == 100
	})
	b.sentMu.Lock()
	defer b.sentMu.Unlock()
	if n := b.acked - before; n < 2 {
		t.Errorf("%d acks of 97 frames: a sender may have 256 under way, and wants one for 64", n)
	}
}

// fragile panics.
type fragile struct{ cuda.Backend }

func (fragile) FirstNonFinite(cuda.Vector) int { panic("broken") }

// A shard that breaks where a frame is received ends its job by the worker's goroutine, as one that breaks there does.
func TestStepHereFails(t *testing.T) {
	p := shardtest.New(t, shardtest.SmallJob("fails", 2, 2))
	p.Backend = fragile{p.Backend}
	b := newWorkbench(t, p, true)
	own := b.frames(0, 0)
	b.deliver(own[0])
	select {
	case err := <-b.told:
		if err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("got %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the failure is not told")
	}
	<-b.done
	if b.worker.deliver(&own[1]) {
		t.Error("a frame was taken by a shard that has failed")
	}
	b.leases.All = b.leases.All[1:2] // of what broke it nobody can tell
}
