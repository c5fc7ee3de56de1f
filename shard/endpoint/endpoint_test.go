package endpoint

import (
	"slices"
	"strings"
	"testing"

	"gradbus/fabric"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// bench is an endpoint of a job's only shard, and what it sends.
type bench struct {
	*Endpoint
	t      *testing.T
	p      *shardtest.Problem
	place  *schema.Placement
	number []schema.Sequence // by trainer
	acks   []schema.Member   // who was sent one
	sent   []shard.Output
	leases shardtest.Leases
}

func newBench(t *testing.T, trainers int, change func(*shard.Config)) *bench {
	t.Helper()
	b := &bench{t: t, p: shardtest.New(t, shardtest.SmallJob("endpoint", trainers, trainers)),
		number: make([]schema.Sequence, trainers)}
	b.place = schema.NewPlacement(b.p.Job, 1)
	config := shard.Config{Job: b.p.Job, Placement: b.place, RunID: shardtest.RunID, Generation: shardtest.Generation,
		Backend:      b.p.Backend,
		Contributors: round.ContributorsOf(b.p.Job), StagedBytesMax: 1 << 30, ParkedBytesMax: 1 << 20}
	if change != nil {
		change(&config)
	}
	var err error
	b.Endpoint, err = New(t.Context(), Config{Shard: config, WindowBytes: 4 << 20,
		Publish: func(o *shard.Output) { b.sent = append(b.sent, *o) },
		Ack:     func(to schema.Member, _ []byte) { b.acks = append(b.acks, to) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close(); b.leases.Check(t, 0) })
	return b
}

// frames are a trainer's contributions to a batch, numbered.
func (b *bench) frames(trainer int, batch schema.Batch) (all []*schema.View) {
	b.t.Helper()
	for _, c := range b.p.Frames(b.t, b.place, shardtest.RunID, batch, lane.Node{First: lane.Lane(trainer), Count: 1}) {
		b.number[trainer]++
		c.Frame.SetSequence(b.number[trainer])
		all = append(all, shardtest.View(b.t, c.Frame.Seal()))
	}
	return all
}

// step steps a frame, and publishes what comes of it.
func (b *bench) step(trainer int, v *schema.View) Taken {
	b.t.Helper()
	h := v.Head()
	b.Flush()
	if !b.Ready(h.Kind, h.Batch) {
		b.t.Fatalf("%v of batch %d: not ready, and nothing waits", h.Kind, h.Batch)
	}
	taken, err := b.Step(schema.TrainerMember(trainer), v, b.leases.Of(nil))
	if err != nil {
		b.t.Fatal(err)
	}
	b.Put(taken.Outputs, nil)
	b.Flush()
	return taken
}

// A sender hears of what is missing or came again at once, the others when a round closes, and of the rest by Tick.
func TestWhoIsAcknowledged(t *testing.T) {
	b := newBench(t, 2, nil)
	want := func(what string, members ...schema.Member) {
		t.Helper()
		if len(b.acks) != len(members) {
			t.Fatalf("%s: acks to %v, want %v", what, b.acks, members)
		}
		for i, m := range members {
			if b.acks[i] != m {
				t.Errorf("%s: acks to %v, want %v", what, b.acks, members)
			}
		}
		b.acks = nil
	}
	own := b.frames(0, 0)
	if taken := b.step(0, own[0]); !taken.Pending || taken.Reason != schema.ReasonOK {
		t.Errorf("%+v: want that an ack is pending", taken)
	}
	want("a frame")
	if taken := b.step(0, own[0]); !taken.Repeat || taken.Reason != schema.ReasonDuplicate || b.Rounds() != 0 {
		t.Errorf("%+v: want a repetition", taken)
	}
	want("a repetition", "t0")
	b.step(0, own[2])
	want("a gap", "t0")
	b.step(0, own[1])
	for ticks := 0; b.Tick(); ticks++ {
		if ticks == 3 {
			t.Fatal("an ack is pending for ever")
		}
	}
	want("a while", "t0")
	other := b.frames(1, 0)
	b.step(1, other[0])
	b.step(1, other[2]) // a gap of t1's alone
	want("another's gap", "t1")
	if b.Acks() != 4 {
		t.Errorf("%d acks are counted, want 4", b.Acks())
	}
}

// Who reads results or rows of a batch may have begun none, and still hears of what it sent.
func TestPullsStandForNoAck(t *testing.T) {
	b := newBench(t, 1, nil)
	for _, v := range b.frames(0, 0) {
		b.step(0, v)
	}
	b.acks = nil
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindPull})
	if err != nil {
		t.Fatal(err)
	}
	f.SetHead(schema.Head{Job: shardtest.RunID, Generation: 1, Batch: 1, Chunks: 1, Lanes: uint16(b.p.Job.Lanes)})
	b.step(0, shardtest.View(t, f.Seal()))
	for b.Tick() {
	}
	if len(b.acks) != 1 {
		t.Errorf("acks to %v, want one to t0", b.acks)
	}
}

// Closing a round gives room back to all who have contributed, and tells them.
func TestRoomComesBackToAll(t *testing.T) {
	b := newBench(t, 2, nil)
	for i := range b.windows {
		b.windows[i].receipt = fabric.NewReceipt(1<<20, 64, 16) // a quarter of which every frame is
	}
	for _, v := range b.frames(0, 0) {
		b.step(0, v)
	}
	held := b.HeldBytes(0)
	b.acks = nil
	for _, v := range b.frames(1, 0) {
		b.step(1, v)
	}
	if held == 0 || b.HeldBytes(0) != 0 || !slices.Contains(b.acks, "t0") {
		t.Errorf("%d bytes of t0 were held, %d are, acks to %v", held, b.HeldBytes(0), b.acks)
	}
}

// What its window has no room for is dropped, or refused where it never fits; what has no number is refused.
func TestWindowRefuses(t *testing.T) {
	b := newBench(t, 1, func(c *shard.Config) { c.StagedBytesMax = 64 })
	own := b.frames(0, 0)
	dense, sparse := own[0], own[len(own)-1]
	if dense.Head().Kind != schema.KindDense || sparse.Head().Kind != schema.KindSparse {
		t.Fatalf("%v and %v", dense.Head().Kind, sparse.Head().Kind)
	}
	if taken := b.step(0, dense); !taken.Dropped || taken.Outputs != nil {
		t.Errorf("%+v: want it dropped", taken)
	}
	if taken := b.step(0, sparse); taken.Dropped || taken.Reason != schema.ReasonOverBudget {
		t.Errorf("%+v: want it refused", taken)
	}
	f := b.p.Frames(t, b.place, shardtest.RunID, 0, lane.Node{Count: 1})[0].Frame
	if taken := b.step(0, shardtest.View(t, f.Seal())); taken.Reason != schema.ReasonMalformed {
		t.Errorf("%+v: want it refused", taken)
	}
	if len(b.sent) != 2 || b.sent[0].Kind != schema.KindRefusal || b.sent[0].To != "t0" ||
		!strings.Contains(b.sent[1].Text, "sequence number") {
		t.Errorf("sent: %+v", b.sent)
	}
}

// A trainer's own contributions have no window, and it is never acknowledged to.
func TestOwnHasNoWindow(t *testing.T) {
	b := newBench(t, 2, func(c *shard.Config) { c.Own = "t0" })
	for trainer := range 2 {
		for _, v := range b.frames(trainer, 0) {
			if trainer == 0 {
				b.step(0, v)
				if taken := b.step(0, v); taken.Repeat {
					t.Error("its own frame has passed a window")
				}
				continue
			}
			b.step(1, v)
		}
	}
	if b.Rounds() == 0 || len(b.acks) > 0 && b.acks[0] == "t0" {
		t.Errorf("%d rounds, acks to %v", b.Rounds(), b.acks)
	}
	for b.Tick() {
	}
	for _, to := range b.acks {
		if to != "t1" {
			t.Errorf("acks to %v", b.acks)
		}
	}
}

// Outputs are published in their order, then what follows them, by whoever is at it.
func TestPutsAreInOrder(t *testing.T) {
	var order []schema.Batch
	o := &outgoing{}
	o.publish = func(p *shard.Output) {
		order = append(order, p.Batch)
		if p.Batch == 1 {
			o.Put([]shard.Output{{Batch: 4}}, nil) // a step meanwhile
			o.Flush()                              // which leaves it to this goroutine
		}
	}
	o.Put([]shard.Output{{Batch: 1}, {Batch: 2}}, func() { order = append(order, 3) })
	o.Put(nil, func() { t.Error("nothing was put") })
	o.Flush()
	if len(order) != 4 || order[0] != 1 || order[1] != 2 || order[2] != 3 || order[3] != 4 || o.Waits() {
		t.Errorf("published in order %v", order)
	}
}

// Where something waits at any time, what is published leaves room for what is put: the queue stays short.
func TestQueueStaysShort(t *testing.T) {
	next, o := schema.Batch(1), &outgoing{}
	o.publish = func(p *shard.Output) {
		if p.Batch+1 != next {
			t.Fatalf("batch %d is published, want %d", p.Batch, next-1)
		}
		if next <= 10*outgoingMax {
			o.Put([]shard.Output{{Batch: next}}, nil)
			next++
		}
	}
	o.Put([]shard.Output{{Batch: 0}}, nil)
	o.Flush()
	if room := cap(o.queue); room > 4*outgoingMax || next != 10*outgoingMax+1 {
		t.Errorf("room for %d outputs, of which one waited at a time", room)
	}
}
