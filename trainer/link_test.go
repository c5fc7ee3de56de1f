package trainer

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"gradbus/fabric"
	"gradbus/schema"
)

// fakeShard counts what arrives for a shard, and acknowledges it where it is to.
type fakeShard struct {
	t      *testing.T
	conn   *fabric.Conn
	member schema.Member

	mu     sync.Mutex
	inbox  *fabric.Inbox
	frames []string // in the order of their numbers, as they came
	acks   bool
}

func newFakeShard(t *testing.T, bus *fabric.Bus, url string, member schema.Member, acks bool) *fakeShard {
	t.Helper()
	conn, err := fabric.Dial(t.Context(), fabric.Config{Bus: bus, URL: url, Name: "bare/" + string(member)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	f := &fakeShard{t: t, conn: conn, member: member, inbox: fabric.NewInbox(0), acks: acks}
	if err := conn.Subscribe(fabric.Pattern("bare", "t0", fabric.Any, string(member), true), f.take); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fakeShard) take(m fabric.Message) {
	defer m.Release()
	v, err := schema.Verify(m.Data, schema.Limits{})
	if err != nil {
		f.t.Error(err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h := v.Head()
	if h.Flags != schema.FlagNarrow {
		f.t.Errorf("flags %b of %v: want narrow, since the window is", h.Flags, h.Kind)
	}
	if fresh, _ := f.inbox.Accept(uint64(h.Sequence)); fresh {
		f.frames = append(f.frames, fmt.Sprintf("%d: bucket %d chunk %d %v", h.Sequence, h.Bucket, h.Chunk, h.Node))
	}
	f.answer()
}

// answer acknowledges what has arrived. The caller has the lock.
func (f *fakeShard) answer() {
	if !f.acks {
		return
	}
	ack, err := schema.NewFrame(schema.Layout{Kind: schema.KindAck})
	if err == nil {
		ack.SetHead(schema.Head{Job: 5, Generation: 1, Lanes: 2})
		ack.SetAck(schema.Ack(f.inbox.Ack()))
		err = f.conn.Send(fabric.At("bare", string(f.member), fabric.KindAck, "t0"), ack.Seal())
	}
	if err != nil {
		f.t.Error(err)
	}
}

func (f *fakeShard) arrived() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.frames)
}

// A shard that acknowledges nothing holds up neither the backward pass nor what goes to others, and what is for it
// leaves in order once there is room.
func TestFullWindowHoldsUpNothingElse(t *testing.T) {
	s, bus := lonelySession(t)
	want := make([]int, 2) // frames for each shard, the last with its rows
	for _, r := range s.flat.rounds {
		want[r.owner]++
	}
	for i := range want {
		if want[i]++; want[i] < 3 {
			t.Fatalf("%d frames for shard %d: want more than a window has room for", want[i], i)
		}
	}
	dead := s.flat.rounds[0].owner // all that follows waits behind its first chunk, or does not
	shards := make([]*fakeShard, 2)
	for i := range shards {
		shards[i] = newFakeShard(t, bus, s.config.Server, schema.ShardMember(i), i != dead)
	}
	commitOne(t, s)
	poll(t, "all that is for the other shard", func() bool { return len(shards[1-dead].arrived()) == want[1-dead] })
	if got := shards[dead].arrived(); len(got) == want[dead] {
		t.Errorf("%v went to %s, and its window has room for few", got, shards[dead].member)
	}
	shards[dead].mu.Lock()
	shards[dead].acks = true
	shards[dead].answer()
	shards[dead].mu.Unlock()
	poll(t, "the rest", func() bool { return len(shards[dead].arrived()) == want[dead] })
	if got := shards[dead].arrived(); !slices.IsSortedFunc(got, func(a, b string) int {
		var i, j int
		_, _ = fmt.Sscan(a, &i)
		_, _ = fmt.Sscan(b, &j)
		return i - j
	}) {
		t.Errorf("%s got %v: want the order in which they were posted", shards[dead].member, got)
	}
	if err := s.Err(); err != nil {
		t.Error(err)
	}
}

// lonelySession is a session whose windows have room for one large frame, at a server that nobody else is at.
func lonelySession(t *testing.T) (*membership, *fabric.Bus) {
	t.Helper()
	bus, ctx := fabric.NewBus(), testContext(t)
	server, err := fabric.StartServer(fabric.ServerConfig{Bus: bus})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	job := toyJob("bare", 1, 2, schema.ApplyUpdate)
	job.FirstBucketBytes, job.BucketBytes = schema.ChunkBytesMin, schema.ChunkBytesMin
	for i := range 6 {
		p := job.Parameters[0]
		p.Name = fmt.Sprint("more", i)
		job.Parameters = append(job.Parameters, p)
	}
	const window = schema.ChunkBytesMin + 1<<10
	c := Config{Server: server.URL(), Bus: bus, Backend: testBackend(t), WindowBytes: window}.withDefaults()
	s, err := newMembership(ctx, c, job,
		schema.Joined{Member: "t0", RunID: 5, Generation: 1, LaneCount: 2, Shards: 2, DeadlineMS: 30_000})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.connectServer(ctx, s.servers[0]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s, bus
}

// commitOne computes a batch of one sample.
func commitOne(t *testing.T, s *membership) {
	t.Helper()
	ctx := testContext(t)
	b, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	b.Samples(0, 1)
	if err := b.SkipFetch(ctx); err != nil {
		t.Fatal(err)
	}
	step, err := b.Lane(0)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range slices.Backward(s.job.Parameters) {
		step.Grad(p.Name)[0] = float32(i)
		step.Done(p.Name)
	}
	if err := step.End(0); err != nil {
		t.Fatal(err)
	}
	if err := b.Commit(ctx); err != nil {
		t.Fatal(err)
	}
}
