package trainer

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// viewOf seals and verifies a frame as it would arrive.
func viewOf(t *testing.T, l schema.Layout, h schema.Head, fill func(*schema.Frame)) *schema.View {
	t.Helper()
	f, err := schema.NewFrame(l)
	if err != nil {
		t.Fatal(err)
	}
	f.SetHead(h)
	if fill != nil {
		fill(f)
	}
	v, err := schema.Verify(f.Seal(), schema.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return &v
}

// rowsOf is an answer with rows of two values; each value of a row is its key plus the given amount.
func rowsOf(t *testing.T, h schema.Head, plus float32, keys ...uint64) *schema.View {
	t.Helper()
	return viewOf(t, schema.Layout{Kind: schema.KindRows, Values: 8 * len(keys), Keys: len(keys), Sections: 1}, h,
		func(f *schema.Frame) {
			f.SetSection(0, schema.Section{Dim: 2, Count: uint64(len(keys))})
			copy(f.Keys(), keys)
			for i := range f.Float32s() {
				f.Float32s()[i] = float32(keys[i/2]) + plus
			}
		})
}

// testExchange is an exchange for requests alone.
func testExchange() *exchanging {
	return newExchanging(exchange.Config{Open: 1, Askers: int(askers), RetryAfter: time.Second})
}

// Answers out of order, twice, late, from the wrong shard and to other requests: rows are placed once and whole.
func TestLookupsTake(t *testing.T) {
	tables := newTables([]schema.TableSpec{{Name: "t", Rows: 100, Dim: 2}}, 1)
	l := newLookups(newRouting([]int{2}, 2, 1024, func(_ int, key uint64) int { return int(key % 2) }), tables, nil,
		testExchange(), rowsOfBatch)
	tables.used[0] = []uint64{7, 4, 6, 4, 9}
	if err := tables.find(); err != nil {
		t.Fatal(err)
	}
	if err := l.build(schema.Head{Job: 1, Batch: 5, Lanes: 1}); err != nil {
		t.Fatal(err)
	}
	head := func(b schema.Batch, chunk schema.Chunk) schema.Head {
		return schema.Head{Job: 1, Batch: b, Chunk: chunk, Chunks: 2, Sequence: l.first + schema.Sequence(chunk)}
	}
	before := head(5, 0)
	before.Sequence--
	take := func(what string, shard int, v *schema.View, wrong string) {
		t.Helper()
		_, err := l.exchanging.take(rowsOfBatch, shard, v, 0, 1)
		if (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v, want %q", what, err, wrong)
		}
	}
	narrow := viewOf(t, schema.Layout{Kind: schema.KindRows, Values: 8, Keys: 2, Sections: 1}, head(5, 0),
		func(f *schema.Frame) {
			f.SetSection(0, schema.Section{Dim: 1, Count: 2})
			copy(f.Keys(), []uint64{4, 6})
		})
	take("before the start", 0, rowsOf(t, head(5, 0), 99, 4, 6), "")
	l.begin(0, true)
	take("to the request before", 0, rowsOf(t, before, 99, 4, 6), "")
	take("without a number", 0, rowsOf(t, schema.Head{Job: 1, Batch: 5, Chunks: 2}, 99, 4, 6), "")
	take("of the batch before", 0, rowsOf(t, head(4, 0), 99, 4, 6), "want those of batch 5")
	take("from another shard", 1, rowsOf(t, head(5, 0), 99, 4, 6), "")
	take("to another request", 0, rowsOf(t, head(5, 1), 99, 4, 6), "")
	take("of other keys", 0, rowsOf(t, head(5, 0), 99, 4, 8), "of other keys")
	take("of another width", 0, narrow, "sections")
	if open := l.x.Open(rowsOfBatch); open != 2 {
		t.Fatalf("%d requests are open, want 2", open)
	}
	l.x.Await(rowsOfBatch, 0)
	take("the second", 1, rowsOf(t, head(5, 1), 0, 7, 9), "")
	take("the second again", 1, rowsOf(t, head(5, 1), 99, 7, 9), "")
	select {
	case <-l.wake:
		t.Fatal("ready with a request open")
	default:
	}
	if again := l.x.Tick(time.Hour).Requests; !slices.Equal(again, []int{0}) || l.requests[0].shard != 0 {
		t.Errorf("requests %v are sent again, want the first, to shard 0", again)
	}
	take("the first", 0, rowsOf(t, head(5, 0), 0, 4, 6), "")
	<-l.wake
	take("the first, late", 0, rowsOf(t, head(5, 0), 99, 4, 6), "")
	if want := []float32{4, 4, 6, 6, 7, 7, 9, 9}; !slices.Equal(tables.rows[0], want) {
		t.Errorf("rows are %v, want %v", tables.rows[0], want)
	}
}

func TestLookupsOfNothingAreReady(t *testing.T) {
	tables := newTables(nil, 1)
	l := newLookups(newRouting(nil, 2, 1024, nil), tables, nil, testExchange(), rowsOfBatch)
	if err := l.build(schema.Head{}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also where the first was never waited for
		l.begin(0, true)
	}
	l.x.Await(rowsOfBatch, 0)
	if !l.x.Tick(0).Done {
		t.Error("something is waited for")
	}
}

// resultsOf takes results of a job of one shard.
func resultsOf(t *testing.T, job *schema.Job) (*results, *parameters) {
	t.Helper()
	place := schema.NewPlacement(job, 1)
	flat, err := newFlatSpace(job, place)
	if err != nil {
		t.Fatal(err)
	}
	params, err := newParameters(t.Context(), job, testBackend(t), flat, nil)
	if err != nil {
		t.Fatal(err)
	}
	return newResults(flat, params, job, rowOwners(place), time.Second), params
}

// Results out of order, twice, late, and wrong: each round counts once, and a wrong one is an error.
func TestResultsTake(t *testing.T) {
	r, params := resultsOf(t, toyJob("results", 1, 1, schema.ApplyUpdate))
	before := slices.Clone(params.values[0])
	mean := func(b schema.Batch, chunk schema.Chunk, offset uint64, n int, weight float64, value float32) *schema.View {
		return viewOf(t, schema.Layout{Kind: schema.KindMean, Values: 4 * n},
			schema.Head{Batch: b, Chunk: chunk, Chunks: 2, Offset: offset, Weight: weight},
			func(f *schema.Frame) {
				for i := range f.Float32s() {
					f.Float32s()[i] = value
				}
			})
	}
	closed := viewOf(t, schema.Layout{Kind: schema.KindMean},
		schema.Head{Batch: 4, Bucket: 1, Chunks: 1, Weight: 3, Lanes: 1}, nil)
	var lost []exchange.Pull
	take := func(what string, shard int, v *schema.View, open int, wrong string) {
		t.Helper()
		more, err := r.take(shard, false, v.Head().Batch, v)
		lost = append(lost, more...)
		if (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: %v, want %q", what, err, wrong)
		}
		if got := r.x.Missing(4); got != open {
			t.Errorf("%s: %d rounds are open, want %d", what, got, open)
		}
	}
	take("before the start", 0, mean(0, 0, 0, 1024, 3, 9), 0, "")
	r.begin(4)
	take("late", 0, mean(3, 0, 0, 1024, 3, 9), 3, "")
	take("second chunk", 0, mean(4, 1, 1024, 516, 3, 2), 2, "")
	take("second chunk again", 0, mean(4, 1, 1024, 516, 3, 9), 2, "")
	take("other weight", 0, mean(4, 0, 0, 1024, 2, 9), 2, "over 2 samples")
	take("other shard", 1, mean(4, 0, 0, 1024, 3, 9), 2, "no such round there")
	take("sparse round", 0, closed, 1, "")
	take("sparse round again", 0, closed, 1, "")
	if first := []exchange.Pull{{Batch: 4}}; !slices.Equal(lost, first) {
		t.Errorf("rounds %v were asked for, want the first, once", lost)
	}
	r.x.AwaitResults(4, 0, 0)
	if of := r.x.Tick(time.Hour).Pulls; of != nil {
		t.Errorf("after results came: ask for %v", of)
	}
	if of := r.x.Tick(2 * time.Hour).Pulls; !slices.Equal(of, lost) {
		t.Errorf("after nothing came: ask for %v", of)
	}
	take("first chunk", 0, mean(4, 0, 0, 1024, 3, 1), 0, "")
	<-r.wake
	if !sameBits(params.values[0], before) {
		t.Error("results have changed the version that the batch is computed on")
	}
	if weight, version := r.x.Outcome(4); weight != 3 || version != 5 || r.x.Completed() != 5 {
		t.Errorf("version %d is complete, %d over %v samples", r.x.Completed(), version, weight)
	}
	params.commit(5)
	for i, v := range params.values[1] {
		if want := float32(1 + i/1024); v != want {
			t.Fatalf("value %d is %v, want %v", i, v, want)
		}
	}
	r.begin(5)
	take("wrong length", 0, mean(5, 0, 0, 1023, 3, 9), 3, "1023 values at element 0: want 1024")
}
