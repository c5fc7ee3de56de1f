package module

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// bench is a set that hosts one module of 1500 values to 2, whose inputs of one sample take two frames; what it sends
// stays.
type bench struct {
	*Set
	t      *testing.T
	job    *schema.Job
	d      *hosted
	clock  testkit.Clock
	leases shardtest.Leases

	mu   sync.Mutex
	sent []schema.View
	to   []string
}

func testJob() *schema.Job {
	return &schema.Job{Name: "hosted", Workload: "w", Trainers: 2, Lanes: 4, Consistency: schema.ConsistencyAsync,
		Apply:  schema.ApplyUpdate,
		Policy: schema.PolicyFail, ChunkBytes: schema.ChunkBytesMin,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.5},
		Modules: []schema.ModuleSpec{{Name: "m", Seed: 7, In: []int{1500}, Samples: 3, Contexts: 2,
			Module: `[{"linear":{"in":1500,"out":2}}]`}}}
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := newClosedBench(t, testJob())
	must(t, b.Open())
	return b
}

// newClosedBench is one that takes no requests yet.
func newClosedBench(t *testing.T, job *schema.Job) *bench {
	t.Helper()
	b := &bench{t: t, job: job}
	must(t, b.job.Validate())
	backend, err := cuda.Open(cuda.Options{Name: "go"})
	must(t, err)
	dense := &Dense{}
	b.Set = New(Config{
		Shard: shard.Config{Job: b.job, Placement: schema.NewPlacement(b.job, 1), RunID: shardtest.RunID, Generation: 1,
			Backend:      backend,
			Contributors: round.ContributorsOf(b.job)},
		Dense: dense, Log: slog.New(slog.DiscardHandler), Now: b.clock.Now, Send: b.keep, Note: b.note,
		Fail: func(err error) { t.Errorf("the job must end: %v", err) },
	})
	must(t, b.Build(context.Background()))
	b.d = b.all()[0]
	t.Cleanup(func() {
		b.Close()
		dense.Close()
		b.leases.Check(t, 0)
		b.invariants(0)
	})
	return b
}

// patience is that of every wait for what must come.
const patience = 2 * time.Minute

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// invariants wants as many contexts as told, and everything else to follow from them.
func (b *bench) invariants(contexts int) {
	b.t.Helper()
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	held, pins := make([]int, len(b.d.held)), 0
	for _, c := range b.d.contexts {
		held[c.contributor]++
		if c.version == b.d.newest {
			pins++
		}
	}
	if len(b.d.contexts) != contexts || !slices.Equal(held, b.d.held) || b.d.newest.readers != 1+pins {
		b.t.Errorf("%d contexts, want %d; of trainers %v, counted %v; the newest version is pinned %d times, want %d",
			len(b.d.contexts), contexts, held, b.d.held, b.d.newest.readers, 1+pins)
	}
}

func (b *bench) keep(to schema.Member, name string, frame []byte) {
	v, err := schema.Verify(bytes.Clone(frame), schema.Limits{})
	if err != nil {
		b.t.Errorf("to %s from %s: %v", to, name, err)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent, b.to = append(b.sent, v), append(b.to, string(to)+" "+name)
}

// note wants the words of a refusal, and none of anything else.
func (b *bench) note(from schema.Member, reason schema.Reason, text string) {
	if (reason == schema.ReasonOK) != (text == "") {
		b.t.Errorf("%s: %v with %q", from, reason, text)
	}
}

// request makes the frames of a request.
func (b *bench) request(trainer int, kind schema.Kind, h schema.Head, contexts []uint64,
	tensor []float32) (items []Frame) {
	b.t.Helper()
	h.Job, h.Generation, h.Lanes = shardtest.RunID, 1, uint16(b.job.Lanes)
	place := b.config.Placement
	chunks := place.TensorChunks(len(tensor))
	for c := range chunks {
		offset, count := place.TensorRange(len(tensor), c)
		f, err := schema.NewFrame(schema.Layout{Kind: kind, Values: 4 * count, Keys: len(contexts)})
		must(b.t, err)
		if kind != schema.KindWeights {
			h.Chunk, h.Chunks, h.Offset = schema.Chunk(c), schema.Chunk(chunks), uint64(offset)
		}
		f.SetHead(h)
		copy(f.Keys(), contexts)
		copy(f.Float32s(), tensor[offset:offset+count])
		items = append(items, b.item(trainer, f.Seal()))
	}
	return items
}

func (b *bench) item(trainer int, frame []byte) Frame {
	b.t.Helper()
	room := make([]byte, len(frame)+64) // as aligned as a received one
	for skip := range 64 {
		if v, err := schema.Verify(append(room[skip:skip], frame...), schema.Limits{}); err == nil && !v.Copied() {
			return Frame{From: schema.TrainerMember(trainer), View: v}
		}
	}
	b.t.Fatal("the frame does not verify")
	return Frame{}
}

func (b *bench) deliver(items ...Frame) {
	for _, it := range items {
		it.Payload = b.leases.Of(it.View.Bytes())
		b.Deliver(&it, "m")
	}
}

// answer waits for n frames in all, and gives the last.
func (b *bench) answer(n int) *schema.View {
	b.t.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		b.mu.Lock()
		if len(b.sent) >= n {
			defer b.mu.Unlock()
			if len(b.sent) > n {
				b.t.Fatalf("%d frames were sent, want %d: %v", len(b.sent), n, b.to)
			}
			return &b.sent[n-1]
		}
		b.mu.Unlock()
		if time.Now().After(until) {
			b.t.Fatalf("%d frames were sent, want %d", len(b.sent), n)
		}
	}
}

// refused waits for the n-th frame, a refusal with this reason and words.
func (b *bench) refused(n int, reason schema.Reason, words string) {
	b.t.Helper()
	v := b.answer(n)
	r, err := schema.DecodeRefusal(v)
	if err != nil || r.Reason != reason.String() || !strings.Contains(r.Text, words) {
		b.t.Errorf("frame %d: %+v, %v, want %v with %q", n, r, err, reason, words)
	}
}

func laneOf(trainer int) lane.Node { return lane.Node{First: lane.Lane(2 * trainer), Count: 1} }

func (b *bench) forward(trainer int, number schema.Sequence, x []float32) []Frame {
	return b.request(trainer, schema.KindForward,
		schema.Head{Sequence: number, Node: laneOf(trainer), Weight: float64(len(x) / 1500)}, nil, x)
}

// randomInput is n samples.
func randomInput(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n*1500)
	for i := range x {
		x[i] = r.Float32() - 0.5
	}
	return x
}

// local is what the module makes of samples with its first parameters.
func (b *bench) local(x []float32) []float32 {
	b.t.Helper()
	net, err := nn.NewNet(b.d.module, []int{1500}, b.d.env)
	must(b.t, err)
	params, err := nn.Initial(b.d.module, 7)
	must(b.t, err)
	y, err := net.Forward(params, x, nn.Mode{})
	must(b.t, err)
	return y
}

// A request that comes again is done once, and answered with the same bytes; an older one is stale.
func TestRequestsCountOnce(t *testing.T) {
	b := newBench(t)
	x := randomInput(1, 2)
	b.deliver(b.forward(0, 1, x)...)
	first := b.answer(1)
	if got := first.Float32s(); !slices.Equal(got, b.local(x)) || first.Head().Batch != 0 || first.Head().Sequence != 1 ||
		len(first.Keys()) != 1 {
		t.Errorf("forward: %v of head %+v", got, first.Head())
	}
	b.deliver(b.forward(0, 1, x)...) // three frames, of which the first asks again
	if again := b.answer(2); !bytes.Equal(again.Bytes(), first.Bytes()) {
		t.Error("the answer to a repetition differs")
	}
	b.invariants(1)
	step := func() []Frame {
		return b.request(0, schema.KindBackward, schema.Head{Sequence: 2, Weight: 2, Flags: schema.FlagStep}, first.Keys(),
			[]float32{1, 2, 3, 4})
	}
	b.deliver(step()...)
	b.deliver(step()...)
	b.deliver(step()...)
	done := b.answer(b.settled(3))
	if done.Head().Batch != 1 || len(done.Values()) != 0 {
		t.Errorf("step: version %d", done.Head().Batch)
	}
	n := len(b.sent)
	b.deliver(step()...)
	b.answer(n + 1)
	if v := b.d.newestNumber(); v != 1 {
		t.Errorf("version %d: a repeated step was done again", v)
	}
	b.invariants(0)
	b.deliver(b.forward(0, 1, x)[0])
	b.refused(n+2, schema.ReasonStaleBatch, "request 2 has come")
}

// settled waits until no request is being processed and at least n frames were sent; it returns their number.
func (b *bench) settled(n int) int {
	b.t.Helper()
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(time.Millisecond) {
		busy := false
		for i := range b.d.slots {
			s := &b.d.slots[i]
			s.mu.Lock()
			busy = busy || s.working
			s.mu.Unlock()
		}
		b.mu.Lock()
		sent := len(b.sent)
		b.mu.Unlock()
		if !busy && sent >= min(n, 1) {
			return sent
		}
	}
	b.t.Fatal("requests are worked on for ever")
	return 0
}

// Chunks come in any order and more than once; what does not fit the others is refused.
func TestChunksInAnyOrder(t *testing.T) {
	b := newBench(t)
	x := randomInput(2, 3)
	items := b.forward(1, 5, x)
	if len(items) != 5 {
		t.Fatalf("%d chunks", len(items))
	}
	other := b.request(1, schema.KindForward, schema.Head{Sequence: 5, Batch: 9, Node: laneOf(1), Weight: 3}, nil, x)
	b.deliver(items[4], items[1])
	b.deliver(other[2])
	b.refused(1, schema.ReasonWrongChunk, "differs from its others")
	b.deliver(items[2], items[0], b.forward(1, 5, x)[2], items[3])
	if got := b.answer(2).Float32s(); !slices.Equal(got, b.local(x)) {
		t.Errorf("%v, want %v", got, b.local(x))
	}
	// A request that is given up makes room for the next.
	b.deliver(b.forward(1, 6, x)[:3]...)
	b.deliver(b.forward(1, 7, x[:1500])...)
	if got := b.answer(3).Float32s(); !slices.Equal(got, b.local(x[:1500])) {
		t.Errorf("%v, want %v", got, b.local(x[:1500]))
	}
	b.deliver(b.forward(0, 1, x)[:2]...)
	if n := b.d.expire(0, "the test says so"); n != 0 {
		t.Errorf("%d contexts expired", n)
	}
	b.invariants(2)
}

// What is wrong with a request is said under its number, and changes nothing.
func TestRefusesRequests(t *testing.T) {
	b := newBench(t)
	b.deliver(b.forward(1, 1, randomInput(3, 1))...)
	context := b.answer(1).Keys()[0]
	n, number := 1, schema.Sequence(1)
	for _, c := range []struct {
		name   string
		kind   schema.Kind
		head   schema.Head
		keys   []uint64
		tensor []float32
		reason schema.Reason
		words  string
	}{
		{"not finite", schema.KindForward, schema.Head{Node: laneOf(1), Weight: 1}, nil,
			append(randomInput(4, 1)[:1499], float32(math.NaN())), schema.ReasonNonFinite, "value 1499"},
		{"another's lane", schema.KindForward, schema.Head{Node: laneOf(0), Weight: 1}, nil, randomInput(4, 1),
			schema.ReasonWrongSender, "has [2,4)"},
		{"two lanes", schema.KindForward, schema.Head{Node: lane.Node{First: 2, Count: 2}, Weight: 1}, nil, randomInput(4, 1),
			schema.ReasonWrongSender, "want one of"},
		{"no such context", schema.KindBackward, schema.Head{}, []uint64{99}, []float32{1, 2}, schema.ReasonUnknownContext,
			"context 99"},
		{"short gradient", schema.KindBackward, schema.Head{}, []uint64{context}, []float32{1}, schema.ReasonWrongShape,
			"want 2, 2 for each of 1 samples"},
		{"long gradient", schema.KindBackward, schema.Head{}, []uint64{context}, make([]float32, 1025),
			schema.ReasonWrongChunk, "its largest output has 1"},
		{"no weight", schema.KindBackward, schema.Head{Flags: schema.FlagStep}, []uint64{context}, []float32{1, 2},
			schema.ReasonWrongWeight, "number of samples"},
		{"step without backward", schema.KindStep, schema.Head{Weight: 1}, []uint64{context}, nil,
			schema.ReasonUnknownContext, "no backward pass"},
		{"step of one that is not there", schema.KindStep, schema.Head{Weight: 1}, []uint64{context, 77}, nil,
			schema.ReasonUnknownContext, "context 77"},
		{"weights beyond", schema.KindWeights, schema.Head{Chunk: 3}, nil, nil, schema.ReasonWrongChunk, "they have 3"},
		{"gradients of nothing", schema.KindWeights, schema.Head{Flags: schema.FlagGradients}, nil, nil,
			schema.ReasonUnknownContext, "no context"},
		{"gradients before backward", schema.KindWeights, schema.Head{Flags: schema.FlagGradients}, []uint64{context}, nil,
			schema.ReasonUnknownContext, "has no gradients"},
		{"an answer", schema.KindOutput, schema.Head{}, nil, nil, schema.ReasonUnknownKind, "output"},
	} {
		number++
		c.head.Sequence = number
		if c.kind == schema.KindOutput {
			c.head.Sequence = 1
		}
		items := b.request(1, c.kind, c.head, c.keys, c.tensor)
		b.deliver(items[0])
		if c.name == "not finite" {
			b.deliver(items[1:]...)
		}
		n++
		t.Log(c.name)
		b.refused(n, c.reason, c.words)
		if v := b.answer(n); b.to[n-1] != "t1 m" || v.Head().Sequence != c.head.Sequence {
			t.Errorf("%s: refused on %s under %d", c.name, b.to[n-1], v.Head().Sequence)
		}
	}
	stranger := b.request(1, schema.KindWeights, schema.Head{Sequence: 100}, nil, nil)[0]
	stranger.From = "t9"
	b.deliver(stranger)
	b.refused(n+1, schema.ReasonUnknownSender, "t9")
	wrong := b.request(1, schema.KindWeights, schema.Head{Sequence: 100}, nil, nil)[0]
	b.Deliver(&wrong, "x")
	b.refused(n+2, schema.ReasonUnknownModule, `module 0 is "m"`)
	b.invariants(1)
	if v := b.d.newestNumber(); v != 0 {
		t.Errorf("version %d", v)
	}
}

// A newer request replaces one that waits for a processor: the older one is undone without an answer.
func TestNewerRequestWins(t *testing.T) {
	b := newBench(t)
	for range cap(b.computing) {
		b.computing <- struct{}{}
	}
	x := randomInput(5, 1)
	b.deliver(b.forward(0, 1, x)...)
	b.deliver(b.forward(0, 2, x)...)
	b.deliver(b.forward(0, 3, x)...)
	for range cap(b.computing) {
		<-b.computing
	}
	if v := b.answer(1); v.Head().Sequence != 3 {
		t.Errorf("request %d is answered, want 3", v.Head().Sequence)
	}
	b.settled(1)
	b.invariants(1)
}

// Requests of two trainers in any order, and trainers that are lost in between: contexts, pins and payloads always add
// up, which the end of the bench checks.
func TestInvariantsHold(t *testing.T) {
	const seed, requests = 4, 400
	r := rand.New(rand.NewPCG(seed, seed))
	b := newBench(t)
	number := make([]schema.Sequence, 2)
	kinds := []schema.Kind{schema.KindForward, schema.KindForward, schema.KindBackward, schema.KindBackward,
		schema.KindStep, schema.KindWeights}
	for range requests {
		trainer := r.IntN(2)
		if r.IntN(4) > 0 {
			number[trainer]++
		}
		h := schema.Head{Sequence: max(1, number[trainer]), Weight: float64(r.IntN(2))}
		var keys []uint64
		var tensor []float32
		switch kind := kinds[r.IntN(len(kinds))]; kind {
		case schema.KindForward:
			n := 1 + r.IntN(3)
			h.Node, h.Weight = laneOf(trainer), float64(n)
			if r.IntN(3) == 0 {
				h.Flags = schema.FlagEvaluate
			}
			items := b.request(trainer, kind, h, nil, randomInput(r.Uint64(), n))
			r.Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
			b.deliver(items...)
		default:
			id, samples := b.anyContext(r)
			keys = []uint64{id}
			if kind == schema.KindBackward {
				tensor = make([]float32, 2*max(1, samples))
				h.Flags = uint32(r.IntN(4)) << 3 // input, step
			}
			if kind == schema.KindWeights {
				h.Weight = 0
				if r.IntN(3) == 0 {
					keys = nil
				}
			}
			b.deliver(b.request(trainer, kind, h, keys, tensor)...)
		}
		switch r.IntN(20) {
		case 0:
			b.Expire(trainer, "chance")
		case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12:
			b.settled(0)
		}
	}
	b.settled(0)
	b.d.mu.Lock()
	n := len(b.d.contexts)
	b.d.mu.Unlock()
	b.invariants(n)
	t.Logf("%d frames were sent, version %d", len(b.sent), b.d.newestNumber())
	if b.d.newestNumber() == 0 {
		t.Error("no step was done")
	}
}

// anyContext returns an existing context with its samples, or sometimes a context that does not exist.
func (b *bench) anyContext(r *rand.Rand) (id uint64, samples int) {
	b.d.mu.Lock()
	defer b.d.mu.Unlock()
	ids := slices.Sorted(maps.Keys(b.d.contexts))
	if len(ids) == 0 || r.IntN(8) == 0 {
		return 1 + r.Uint64N(b.d.last+1), 1
	}
	id = ids[r.IntN(len(ids))]
	if c := b.d.contexts[id]; !c.busy {
		return id, c.samples
	}
	return id, 1 // a request is at work with it, perhaps the one that opens it
}

// The time of a trainer's last request is that of the monotonic clock.
func TestHeardIsMonotonic(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		b := newBench(t)
		if at := b.Heard(0); !at.IsZero() {
			t.Errorf("heard at %v", at)
		}
		b.deliver(b.forward(0, 1, randomInput(1, 1))...)
		b.clock.Jump(by)
		if silent := b.clock.Now().Sub(b.Heard(0)); silent < 0 || silent > time.Minute {
			t.Errorf("set by %s: heard %s ago", by, silent)
		}
		b.answer(1)
	}
}
