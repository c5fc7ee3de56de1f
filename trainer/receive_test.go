package trainer

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/schema"
)

// bareSession is a session without a connection, at batch 17 of run 5, that is given what arrives.
func bareSession(t *testing.T) *membership {
	t.Helper()
	c := Config{Server: "nats://there:1", Backend: testBackend(t)}.withDefaults()
	s, err := newMembership(t.Context(), c, toyJob("bare", 1, 2, schema.ApplyUpdate),
		schema.Joined{Member: "t0", RunID: 5, Generation: 1, LaneCount: 2, Shards: 1, DeadlineMS: 30_000})
	if err != nil {
		t.Fatal(err)
	}
	s.batch.Store(17)
	return s
}

// fullBackend has memory for what is asked for first, and for nothing more.
type fullBackend struct {
	cuda.Backend
	first *cuda.Buffer
}

func (b *fullBackend) Alloc(n int) (_ *cuda.Buffer, err error) {
	if b.first != nil {
		return nil, errors.New("no memory is left")
	}
	b.first, err = b.Backend.Alloc(n)
	return b.first, err
}

// A trainer that has no memory for its replicas of tables gives back that of its parameters' optimizer.
func TestNoMemoryForReplicas(t *testing.T) {
	b := &fullBackend{Backend: testBackend(t)}
	job := toyJob("full", 1, 2, schema.ApplyMean)
	for i := range job.Tables {
		job.Tables[i].Replicated = true
	}
	_, err := newMembership(t.Context(), Config{Server: "nats://there:1", Backend: b}.withDefaults(), job,
		schema.Joined{Member: "t0", RunID: 5, Generation: 1, LaneCount: 2, Shards: 1, DeadlineMS: 30_000})
	if err == nil || !strings.Contains(err.Error(), "no memory is left") || b.first == nil {
		t.Fatalf("%v, and the first memory %v", err, b.first)
	}
	if n := len(b.first.Float32s()); n > 0 {
		t.Errorf("%d values of the optimizer are not freed", n)
	}
}

func arrives(t *testing.T, s *membership, from string, frame []byte, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	m := fabric.NewMessage(fabric.At("bare", from, fabric.KindCtl, "t0").String(), frame)
	if from[0] == 's' {
		s.receiver.receive(m)
	} else {
		s.receiver.receiveControl(m)
	}
}

// Which refusals end a session, and what it then says.
func TestRefusalsThatMatter(t *testing.T) {
	node := lane.Node{Count: 2}
	for _, c := range []struct {
		name   string
		head   schema.Head
		reason schema.Reason
		from   string
		says   []string
	}{
		{"gradient that is not finite", schema.Head{Job: 5, Batch: 17, Bucket: 3, Chunk: 2, Node: node},
			schema.ReasonNonFinite, "s0",
			[]string{"s0", "batch 17 bucket 3 chunk 2 lanes [0,2)", "non_finite", "because"}},
		{"gradient sent again after its batch", schema.Head{Job: 5, Batch: 17, Node: node}, schema.ReasonStaleBatch, "s0",
			nil},
		{"lookup sent again after its batch", schema.Head{Job: 5, Batch: 16}, schema.ReasonStaleBatch, "s0", nil},
		{"reading a version that others have left", schema.Head{Job: 5, Batch: 17}, schema.ReasonStaleBatch, "s0",
			[]string{"stale_batch", "batch 17"}},
		{"repetition", schema.Head{Job: 5, Batch: 17}, schema.ReasonDuplicate, "s0", nil},
		{"unknown job, for which the coordinator is waited for", schema.Head{Job: 5, Batch: 17},
			schema.ReasonJobUnknown, "s0", nil},
		{"of an earlier run", schema.Head{Job: 4, Batch: 17}, schema.ReasonNonFinite, "s0", nil},
		{"from nobody", schema.Head{Job: 5, Batch: 17}, schema.ReasonNonFinite, "s7", nil},
	} {
		s := bareSession(t)
		arrives(t, s, c.from, schema.EncodeRefusal(c.head, c.reason, "because"), nil)
		if c.says == nil {
			if s.Err() != nil {
				t.Errorf("%s: %v", c.name, s.Err())
			}
		} else {
			checkError(t, s.Err(), &Refused{}, c.says...)
		}
		if disowned := s.watch.disowned.Lasts(); disowned != (c.reason == schema.ReasonJobUnknown) {
			t.Errorf("%s: disowned %v", c.name, disowned)
		}
	}
}

// What a stranger sends that is no frame fills no log.
func TestDamagedFramesFillNoLog(t *testing.T) {
	log := &testkit.Text{}
	s := bareSession(t)
	c := s.config
	c.Log = slog.New(slog.NewTextHandler(log, nil))
	s.config = c.withDefaults()
	began := time.Now()
	const frames = 30_000
	m := fabric.NewMessage(fabric.At("bare", "s0", fabric.KindCtl, "t0").String(), []byte("0123456789"))
	for range frames {
		s.receiver.receive(m)
	}
	told, most := strings.Count(log.String(), "frame dropped"), 100+int(time.Since(began)/time.Second)+1
	if s.faults.Load() != frames || told == 0 || told > most {
		t.Errorf("%d lines of %d frames, want at most %d and at least 1", told, s.faults.Load(), most)
	}
}

// The end of the job counts from the coordinator and of this run only.
func TestOnlyTheCoordinatorEndsTheJob(t *testing.T) {
	failed := schema.Control{Ended: &schema.Ended{Member: "t1", Text: "trainer t1 is gone"}}
	s := bareSession(t)
	frame, err := schema.EncodeControl(schema.Head{Job: 4}, failed)
	arrives(t, s, "coordinator", frame, err)
	frame, err = schema.EncodeControl(schema.Head{Job: 5}, failed)
	arrives(t, s, "t1", frame, err)
	if s.Err() != nil {
		t.Fatalf("session ended: %v", s.Err())
	}
	arrives(t, s, "coordinator", frame[:len(frame)-1], nil)
	if s.Err() != nil || s.faults.Load() != 1 {
		t.Fatalf("a cut frame: %v, %d faults, want none and 1", s.Err(), s.faults.Load())
	}
	arrives(t, s, "coordinator", frame, nil)
	checkError(t, s.Err(), ErrJobFailed, "job bare", "trainer t1 is gone")
}

// Once a batch is complete its frames are nobody's any more, whether their acks have come or not.
func TestCompleteBatchFreesItsFrames(t *testing.T) {
	published := 0
	l := &shardLink{member: "s0", marks: make([]uint64, 1),
		outbox: fabric.NewOutbox(fabric.OutboxConfig{Envelope: schema.Envelope{},
			Publish: func(fabric.Subject, fabric.Payload) error { published++; return nil }})}
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindDense, Values: 8})
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	for round := range 3 {
		if err := l.post(posted{subject: fabric.At("bare", "t0", fabric.KindDense, "s0").WithBucket(0, 0),
			frame: fabric.NewPayload(f.Room())}); err != nil {
			t.Fatal(err)
		}
		l.marks[0] = l.posted
		if err := l.received(ctx, 1); err != nil || l.outbox.Pending() != 0 {
			t.Fatalf("round %d: %d frames pending, %v", round, l.outbox.Pending(), err)
		}
		for i := range 10 { // long after any time to send again
			if err := l.outbox.Tick(time.Now().Add(time.Duration(i) * time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if published != 3 {
		t.Errorf("%d frames published, want 3: none again", published)
	}
	// A late ack of the same frames is no fault.
	if err := l.outbox.Ack(fabric.Ack{Cumulative: 2, Window: 1 << 30}); err != nil {
		t.Error(err)
	}
}

func TestSessionEndsWithEitherContext(t *testing.T) {
	s := bareSession(t)
	ctx, stop := s.running(context.Background())
	defer stop()
	s.fail(ErrServerLost)
	<-ctx.Done()
	if context.Cause(ctx) != ErrServerLost {
		t.Errorf("cause %v, want that of the session", context.Cause(ctx))
	}
}

// A lookup or pull of the batch under way that comes so late that others have gone on is no reason to end.
func TestLateRepetitionOfTheBatchUnderWay(t *testing.T) {
	s := bareSession(t)
	s.results.begin(17)
	frame := schema.EncodeRefusal(schema.Head{Job: 5, Batch: 17}, schema.ReasonStaleBatch, "batch 18 is under way")
	arrives(t, s, "s0", frame, nil)
	if s.Err() != nil {
		t.Error(s.Err())
	}
}
