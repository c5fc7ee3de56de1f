package ps

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"gradbus/cuda"
	"gradbus/internal/testkit"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// badBackend fails or panics on the next dense sum when told to, and remembers what it allocated.
type badBackend struct {
	cuda.Backend

	mu      sync.Mutex
	fails   func() error
	buffers []*cuda.Buffer
}

func newBadBackend(t testing.TB) *badBackend {
	t.Helper()
	b, err := cuda.Open(cuda.Options{Name: "go"})
	must(t, err)
	return &badBackend{Backend: b}
}

func (b *badBackend) failing() error {
	b.mu.Lock()
	fails := b.fails
	b.mu.Unlock()
	if fails != nil {
		return fails()
	}
	return nil
}

func (b *badBackend) Average(a cuda.Average) error {
	if err := b.failing(); err != nil {
		return err
	}
	return b.Backend.Average(a)
}

func (b *badBackend) AverageApply(a cuda.AverageApply) error {
	if err := b.failing(); err != nil {
		return err
	}
	return b.Backend.AverageApply(a)
}

func (b *badBackend) Alloc(n int) (*cuda.Buffer, error) {
	if n > 1<<30 {
		return nil, cuda.ErrMemory
	}
	buffer, err := b.Backend.Alloc(n)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buffers = append(b.buffers, buffer)
	return buffer, err
}

// held is how many buffers were allocated and how many of them are not free.
func (b *badBackend) held() (allocated, held int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, buffer := range b.buffers {
		if buffer.Float32s() != nil {
			held++
		}
	}
	return len(b.buffers), held
}

// A shard that fails, or that finds its own state broken, ends its job with what happened; the server and the job
// beside it go on, and the memory of the ended one is free.
func TestShardFailureEndsItsJobAlone(t *testing.T) {
	for name, fails := range map[string]func() error{
		"device failed":        func() error { return fmt.Errorf("average: %w", cuda.ErrDevice) },
		"internal error: torn": func() error { panic("torn") },
	} {
		t.Run(name, func(t *testing.T) {
			backend := newBadBackend(t)
			s, err := Start(context.Background(), Config{Shards: 1}, Options{Backend: backend})
			must(t, err)
			defer s.Close()
			healthy := shardtest.New(t, shardtest.SmallJob("healthy", 1, 2))
			beside := gather(t, s, healthy, "j-c")[0]
			_, before := backend.held()
			trainers := gather(t, s, shardtest.New(t, shardtest.SmallJob("ill", 2, 2)), "j-a", "j-b")
			backend.mu.Lock()
			backend.fails = fails
			backend.mu.Unlock()
			for _, m := range trainers {
				for _, c := range m.p.Frames(t, m.place, m.joined.RunID, 0, lane.Node{First: m.joined.FirstLane, Count: 1}) {
					m.send(kindToken(c.Kind), c.Shard, schema.Head{Batch: 0, Bucket: c.Bucket}, c.Frame)
				}
			}
			for _, m := range trainers {
				if f := m.failure(); f.Member != "s0" || !strings.Contains(f.Text, name) {
					t.Errorf("told %+v, want s0 and %q", f, name)
				}
			}
			backend.mu.Lock()
			backend.fails = nil
			backend.mu.Unlock()
			eventually(t, "the job is freed", func() bool {
				return len(s.Stats().Jobs) == 1 && s.Stats().Memory == JobBytes(s.config, healthy.Job, 1)
			})
			if allocated, held := backend.held(); held != before || allocated == before {
				t.Errorf("%d of %d buffers are held, want %d", held, allocated, before)
			}
			beside.batch(0)
			beside.leave("")
			s.Close()
			if _, held := backend.held(); held != 0 {
				t.Errorf("%d buffers are still held", held)
			}
		})
	}
}

// A trainer that is alive but sends no gradients is named, by what the shards say of their open rounds.
func TestSlowTrainerIsNamed(t *testing.T) { testkit.Waits(t, slowTrainerIsNamed) }

func slowTrainerIsNamed(t *testing.T) {
	s := startServer(t, Config{Shards: 2, Deadline: shortDeadline, StallTimeout: shortDeadline})
	trainers, _ := gatherBeating(t, s, shardtest.New(t, shardtest.SmallJob("slow", 2, 2)), "j-a", "j-b")
	m := trainers[0]
	for _, c := range m.p.Frames(t, m.place, m.joined.RunID, 0, lane.Node{First: 0, Count: 1}) {
		m.send(kindToken(c.Kind), c.Shard, schema.Head{Batch: 0, Bucket: c.Bucket}, c.Frame)
	}
	if f := m.failure(); f.Member != "t1" || !strings.Contains(f.Text, "has kept batch 0 waiting") {
		t.Errorf("told %+v", f)
	}
}

// A job whose memory is not to be had ends at once, and says why.
func TestJobWithoutMemory(t *testing.T) {
	s, err := Start(context.Background(), Config{Shards: 1, MemoryBytesMax: memoryBytesLimit},
		Options{Backend: newBadBackend(t)})
	must(t, err)
	defer s.Close()
	p := shardtest.New(t, shardtest.SmallJob("vast", 1, 1))
	p.Job.Tables[0].Rows, p.Job.Tables[0].Dim = 1<<20, schema.DimMax
	m := newMiniTrainer(t, s, p, "j-a")
	m.control2(schema.Control{Join: &schema.Join{Job: p.Job}})
	if f := m.failure(); f.Member != "s0" || !strings.Contains(f.Text, `table "words"`) ||
		!strings.Contains(f.Text, "out of memory") {
		t.Errorf("told %+v", f)
	}
}

func TestQueueIsBounded(t *testing.T) {
	q := newQueue(64 << 20)
	big := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindDense, Values: 4 << 20})
	big.SetHead(schema.Head{Node: lane.Root(1), Lanes: 1, Weight: 1, Chunks: 1})
	v := shardtest.View(t, big.Seal())
	taken := 0
	for q.put(item{from: "t0", view: *v, payload: nil}) {
		taken++
	}
	if taken != 15 { // 15 frames of 4 MiB and a head fit 64 MiB
		t.Errorf("took %d frames of 4 MiB", taken)
	}
	<-q.wake
	items := q.swap(nil)
	if len(items) != taken || !q.put(item{from: "t0", view: *v, payload: nil}) {
		t.Errorf("gave %d items of %d, or takes none afterwards", len(items), taken)
	}
	items = q.swap(items)
	if len(items) != 1 || items[0].from != "t0" {
		t.Errorf("gave %d items, want the one put last", len(items))
	}
	q.close()
	if q.put(item{from: "t0", view: *v, payload: nil}) {
		t.Error("takes frames after close")
	}
}
