package ps

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// stuckBackend does not come back from an allocation of one size, which stands for anything long that nothing cuts
// short.
type stuckBackend struct {
	cuda.Backend
	size    int
	once    sync.Once
	entered chan struct{} // closed when it is stuck
	free    chan struct{} // closed to let it go on
}

func newStuckBackend(t testing.TB, size int) *stuckBackend {
	t.Helper()
	b, err := cuda.Open(cuda.Options{Name: "go"})
	must(t, err)
	return &stuckBackend{Backend: b, size: size, entered: make(chan struct{}), free: make(chan struct{})}
}

func (b *stuckBackend) Alloc(n int) (*cuda.Buffer, error) {
	if n == b.size {
		b.once.Do(func() {
			close(b.entered)
			<-b.free
		})
	}
	return b.Backend.Alloc(n)
}

func (b *stuckBackend) isStuck(t testing.TB) {
	t.Helper()
	select {
	case <-b.entered:
	case <-time.After(patience):
		t.Fatal("no shard was made")
	}
}

// wideMomentum is how many values a shard of wideJob allocates for its optimizer at once: of two versions.
const wideMomentum = 2 * 64 * 8192

// wideJob has dense chunks of 8192 values, unlike smallJob.
func wideJob(name string, trainers int) *schema.Job {
	job := shardtest.SmallJob(name, trainers, 2)
	job.ChunkBytes, job.Tables = 32<<10, nil
	job.Parameters = []schema.Parameter{{Name: "wide", Shape: []int{64, 8192},
		Init: schema.Init{Kind: schema.InitNormal, Scale: 1}}}
	return job
}

// A job that ends while its shard is at something long holds up nobody: the jobs beside it go on and others are
// registered, while what it was promised stays promised until it is free. Its name is then free for what had to wait
// for that.
func TestEndingWaitsForNoShard(t *testing.T) {
	backend := newStuckBackend(t, wideMomentum)
	large := wideJob("large", 2)
	beside := shardtest.New(t, shardtest.SmallJob("beside", 1, 1))
	config := Config{}
	config.MemoryBytesMax = JobBytes(config, large, 1) + 2*JobBytes(config, beside.Job, 1)
	s, err := Start(context.Background(), config, Options{Backend: backend})
	must(t, err)
	t.Cleanup(s.Close)
	let := sync.OnceFunc(func() { close(backend.free) })
	t.Cleanup(let)
	other := gather(t, s, beside, "j-beside")[0]
	m := newMiniTrainer(t, s, shardtest.New(t, large), "j-large")
	m.join()
	backend.isStuck(t)
	m.leave("")
	for b := range schema.Batch(3) {
		other.batch(b)
		other.control2(schema.Control{Join: &schema.Join{Job: beside.Job, Host: "test"}})
		if c := other.answer(); c.Joined == nil {
			t.Fatalf("%+v, want an answer of the coordinator beside", c)
		}
	}
	third := gather(t, s, shardtest.New(t, shardtest.SmallJob("third", 1, 1)), "j-third")[0]
	if got, want := s.Stats().Memory, config.MemoryBytesMax; got != want {
		t.Errorf("%d bytes are promised while a shard has not ended, want %d", got, want)
	}
	again := newMiniTrainer(t, s, shardtest.New(t, wideJob("large", 1)), "j-again")
	again.control2(schema.Control{Join: &schema.Join{Job: again.p.Job, Host: "test"}})
	if r := again.answer().Refused; r == nil || r.Reason != schema.RefusedBusy || !strings.Contains(r.Text, "large") {
		t.Fatalf("%+v, want that the memory is not free yet", r)
	}
	let()
	eventually(t, "what the job had is free", func() bool { return s.Stats().Memory < config.MemoryBytesMax })
	again.join()
	again.start()
	again.leave("")
	third.leave("")
	other.leave("")
	eventually(t, "all memory is free", func() bool { return s.Stats().Memory == 0 })
}

// Close waits for a shard that is at something long, and leaves nothing promised.
func TestCloseWaitsForShards(t *testing.T) {
	backend := newStuckBackend(t, wideMomentum)
	s, err := Start(context.Background(), Config{}, Options{Backend: backend})
	must(t, err)
	m := newMiniTrainer(t, s, shardtest.New(t, wideJob("large", 2)), "j-a")
	m.join()
	late := newMiniTrainer(t, s, shardtest.New(t, wideJob("large", 2)), "j-b")
	backend.isStuck(t)
	closed := make(chan struct{})
	go func() {
		s.Close()
		close(closed)
	}()
	// the control loop has ended though the shard has not
	for _, told := range []*miniTrainer{m, late} {
		if f := told.failure(); !strings.Contains(f.Text, "shutting down") {
			t.Errorf("told %+v", f)
		}
	}
	<-s.loop.done
	// A join that comes too late is not refused for good: another ps, or the next process at this address, may admit it.
	s.loop.sendAway(&message{job: "large", from: "j-b", control: &schema.Control{Join: &schema.Join{Job: late.p.Job}}})
	if r := late.answer().Refused; r == nil || r.Reason != schema.RefusedBusy {
		t.Errorf("a late join is answered with %+v, want that the trainer asks again", r)
	}
	select {
	case <-closed:
		t.Error("closed while a shard has not ended")
	default:
	}
	close(backend.free)
	<-closed
	if got := s.Stats().Memory; got != 0 {
		t.Errorf("%d bytes are promised by a server that is closed", got)
	}
}

// Whoever draws values looks again and again whether they are still wanted.
func TestMakingEndsWithItsContext(t *testing.T) {
	filler, err := philox.NewFiller(philox.Uniform, 1, 1, "w")
	must(t, err)
	ctx, to := &shardtest.Fading{Context: context.Background()}, make([]float32, 3*philox.DrawPiece)
	ctx.Looks.Store(2)
	if err := filler.Draw(ctx, to, 0); err == nil || to[2*philox.DrawPiece-1] == 0 || to[2*philox.DrawPiece] != 0 {
		t.Errorf("%v: drawn beyond, or not up to, the end of the context", err)
	}
}
