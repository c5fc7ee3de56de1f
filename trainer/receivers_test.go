package trainer

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"gradbus/cuda"
	"gradbus/schema"
)

// meeting lets nobody out before two are inside.
type meeting struct {
	mu     sync.Mutex
	inside int
	both   chan struct{}
}

func newMeeting() *meeting { return &meeting{both: make(chan struct{})} }

func (m *meeting) enter(t *testing.T) {
	m.mu.Lock()
	if m.inside++; m.inside == 2 {
		close(m.both)
	}
	m.mu.Unlock()
	select {
	case <-m.both:
	case <-time.After(20 * time.Second):
		t.Error("nobody else came in: one receiver waits for another")
	}
}

// meetingBackend steps dense values when two want it to.
type meetingBackend struct {
	cuda.Backend
	t  *testing.T
	at *meeting
}

func (b meetingBackend) ApplyDense(a cuda.ApplyDense) error {
	b.at.enter(b.t)
	return b.Backend.ApplyDense(a)
}

// testResults is what the results of a job build, alone.
func testResults(t *testing.T, backend cuda.Backend, job *schema.Job, shards int) *results {
	t.Helper()
	if err := job.Validate(); err != nil {
		t.Fatal(err)
	}
	place := schema.NewPlacement(job, shards)
	flat, err := newFlatSpace(job, place)
	if err != nil {
		t.Fatal(err)
	}
	params, err := newParameters(t.Context(), job, backend, flat, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(params.state.Close)
	r := newResults(flat, params, job, rowOwners(place), time.Second)
	if r.replicas, err = newReplicas(t.Context(), job, backend, nil, false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.replicas.close)
	if r.clipped = newClipped(job, params); r.clipped != nil {
		r.clipped.replicas = r.replicas
	}
	return r
}

// meanOf is the mean gradient of a dense chunk, the same in all runs.
func meanOf(t *testing.T, r *results, b schema.Batch, chunk int) *schema.View {
	t.Helper()
	at, round := r.flat.chunks[chunk], &r.flat.rounds[chunk]
	h := schema.Head{Batch: b, Bucket: round.bucket, Chunk: round.chunk, Chunks: round.chunks, Offset: round.offset,
		Weight: 4}
	random := rand.New(rand.NewPCG(uint64(b), uint64(chunk)))
	return viewOf(t, schema.Layout{Kind: schema.KindMean, Values: 4 * (at.hi - at.lo)}, h, func(f *schema.Frame) {
		for i := range f.Float32s() {
			f.Float32s()[i] = random.Float32() - 0.5
		}
	})
}

// Two receivers step two chunks at once: neither waits until the other has stepped its own.
func TestTwoReceiversApplyResultsAtOnce(t *testing.T) {
	r := testResults(t, meetingBackend{testBackend(t), t, newMeeting()}, toyJob("results", 1, 1, schema.ApplyMean), 2)
	r.begin(0)
	var receivers sync.WaitGroup
	for chunk := range 2 {
		v := meanOf(t, r, 0, chunk)
		receivers.Go(func() {
			if _, err := r.take(r.flat.rounds[chunk].owner, false, 0, v); err != nil {
				t.Error(err)
			}
		})
	}
	receivers.Wait()
	if taken := r.x.Counts().Taken; taken != 2 {
		t.Errorf("%d results are in place, want 2", taken)
	}
}

// Two receivers place rows at once, and who takes the memory away waits for both.
func TestTwoReceiversPlaceRowsAtOnce(t *testing.T) {
	tables := newTables([]schema.TableSpec{{Name: "t", Rows: 100, Dim: 2}}, 1)
	odd := func(_ int, key uint64) int { return int(key % 2) }
	l := newLookups(newRouting([]int{2}, 2, 1024, odd), tables, nil, testExchange(), rowsOfBatch)
	tables.used[0] = []uint64{7, 4, 6, 9}
	if err := tables.find(); err != nil {
		t.Fatal(err)
	}
	if err := l.build(schema.Head{Job: 1, Batch: 5, Lanes: 1}); err != nil {
		t.Fatal(err)
	}
	both, closing := newMeeting(), make(chan struct{})
	l.over = func(int, *schema.Head) error { // within an answer's placing
		both.enter(t)
		<-closing
		return nil
	}
	l.begin(0, true)
	var receivers sync.WaitGroup
	for shard, keys := range [][]uint64{{4, 6}, {7, 9}} {
		h := schema.Head{Job: 1, Batch: 5, Chunk: schema.Chunk(shard), Chunks: 2, Sequence: l.first + schema.Sequence(shard)}
		v := rowsOf(t, h, 0, keys...)
		receivers.Go(func() {
			if _, err := l.exchanging.take(rowsOfBatch, shard, v, 0, 1); err != nil {
				t.Error(err)
			}
		})
	}
	<-both.both
	closed := make(chan struct{})
	go func() {
		l.close(rowsOfBatch)
		close(closed)
	}()
	poll(t, "no more answers are taken", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.x.Open(rowsOfBatch) == 0
	})
	select {
	case <-closed:
		t.Error("closed while rows are being placed")
	default:
	}
	close(closing)
	<-closed
	receivers.Wait()
	if want := []float32{4, 4, 6, 6, 7, 7, 9, 9}; !slices.Equal(tables.rows[0], want) {
		t.Errorf("rows are %v, want %v", tables.rows[0], want)
	}
}

// Results that several receivers bring at once, each more than once, make the bits of results that come one after the
// other: steps, steps that wait for the norm of all, and rows that every trainer keeps.
func TestReceiversAgreeOnBits(t *testing.T) {
	clipped := func(j *schema.Job) { j.Optimizer.Clip = &schema.Clipping{Kind: schema.ClipGlobal, Max: 0.5} }
	for name, change := range map[string]func(*schema.Job){"steps": func(*schema.Job) {}, "clipped": clipped} {
		run := func(receivers int) string {
			job := toyJob("results", 1, 1, schema.ApplyMean)
			change(job)
			for i := range job.Tables {
				job.Tables[i].Replicated = true
			}
			return takeAll(t, testResults(t, testBackend(t), job, 2), receivers)
		}
		if one, many := run(1), run(4); one != many {
			t.Errorf("%s: four receivers make\n%s\none makes\n%s", name, many, one)
		}
	}
}

// takeAll brings the results of some batches to as many receivers, and says what they have made.
func takeAll(t *testing.T, r *results, receivers int) string {
	t.Helper()
	const batches = 6
	ahead := schema.Batch(len(r.times) - 1)
	for b := schema.Batch(0); b < batches; b += ahead + 1 {
		var all []func()
		for open := b; open <= b+ahead; open++ {
			r.begin(open)
		}
		for chunk := range r.flat.chunks {
			var views []*schema.View
			for open := b; open <= b+ahead; open++ {
				views = append(views, meanOf(t, r, open, chunk))
			}
			bring := func() {
				for i, v := range views { // of one owner in order, so that none is asked for again
					if _, err := r.take(r.flat.rounds[chunk].owner, false, b+schema.Batch(i), v); err != nil {
						t.Error(err)
					}
				}
			}
			all = append(all, bring, bring, bring)
		}
		for _, at := range r.sparse {
			for open := b; open <= b+ahead; open++ {
				v := meanRows(t, r, open, at)
				all = append(all, func() {
					if _, err := r.take(at.owner, false, open, v); err != nil {
						t.Error(err)
					}
				})
			}
		}
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		var working sync.WaitGroup
		next := make(chan func(), len(all))
		for _, do := range all {
			next <- do
		}
		close(next)
		for range receivers {
			working.Go(func() {
				for do := range next {
					do()
				}
			})
		}
		working.Wait()
		for again := 0; r.x.Completed() < b+ahead+1; again++ { // of a batch that overtook the one before it
			if again > int(ahead) {
				t.Fatalf("version %d is complete, want %d", r.x.Completed(), b+ahead+1)
			}
			for _, do := range all {
				do()
			}
		}
		for open := b; open <= b+ahead; open++ {
			r.params.commit(open + 1)
			r.replicas.commit(4)
		}
	}
	said := fmt.Sprintln(r.params.state)
	for _, values := range r.params.values {
		said += fmt.Sprintf("%x\n", sha256.Sum256(fmt.Append(nil, values)))
	}
	for _, table := range r.replicas.tables {
		said += fmt.Sprintln(table)
	}
	return said
}

// meanRows is a result over rows: of every replicated table those keys that the owner adds up, or none.
func meanRows(t *testing.T, r *results, b schema.Batch, at rowOwner) *schema.View {
	t.Helper()
	h := schema.Head{Batch: b, Bucket: at.bucket, Chunks: 1, Weight: 4, Lanes: 1}
	l := schema.Layout{Kind: schema.KindMean}
	var sections []schema.Section
	var keys []uint64
	for i, spec := range r.replicas.specs {
		if r.replicas.tables[i] == nil {
			continue
		}
		before := len(keys)
		for key := range spec.Rows {
			if r.flat.place.OwnerOfKey(schema.Table(i), key) == at.owner && key%3 == uint64(b)%3 {
				keys = append(keys, key)
				l.Values += 4 * spec.Dim
			}
		}
		sections = append(sections,
			schema.Section{Table: schema.Table(i), Dim: uint32(spec.Dim), Count: uint64(len(keys) - before)})
	}
	l.Keys, l.Sections = len(keys), len(sections)
	random := rand.New(rand.NewPCG(uint64(b), uint64(at.owner)))
	return viewOf(t, l, h, func(f *schema.Frame) {
		copy(f.Keys(), keys)
		copy(f.Sections(), sections)
		for i := range f.Float32s() {
			f.Float32s()[i] = random.Float32() - 0.5
		}
	})
}
