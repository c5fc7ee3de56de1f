package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// hold trains a toy as a program does that holds its batches. early says whether keys are named before the results of
// the batch before are there.
func hold(ctx context.Context, s *Session, m *toy, batches int, early bool) error {
	for range batches {
		b, err := s.Next()
		if err == nil && !early {
			err = b.Wait(ctx)
		}
		if err == nil {
			err = fillHeld(ctx, b, m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fillHeld computes a batch from its keys to its Commit.
func fillHeld(ctx context.Context, b *Batch, m *toy) error {
	for _, l := range b.Lanes() {
		n, keys := m.Keys(b.Number(), l, make([][]uint64, 2))
		b.Samples(l, n)
		for table, all := range keys {
			half := len(all) / 2
			b.Keys(l, schema.Table(table), all[:half]...)
			b.Keys(l, schema.Table(table), all[half:]...)
		}
	}
	if err := b.Fetch(ctx); err != nil {
		return err
	}
	for _, l := range b.Lanes() {
		step, err := b.Lane(l)
		if err != nil {
			return err
		}
		loss := 0.0
		if step.Samples > 0 {
			if loss, err = m.Lane(step); err != nil {
				return err
			}
		}
		if err := step.End(loss); err != nil {
			return err
		}
	}
	return b.Commit(ctx)
}

// What a program does with the batches that it holds has the bits of Run, whoever applies and however early keys are
// named.
func TestHeldBatchesHaveTheBitsOfRun(t *testing.T) {
	t.Parallel()
	const lanes, batches = 6, 7
	want, _ := toyOutcome(t, lanes, batches)
	server := startServer(t, 2)
	for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		for _, early := range []bool{false, true} {
			for _, trainers := range []int{1, 2} {
				job := toyJob(fmt.Sprintf("held-%s-%v-%d", apply, early, trainers), trainers, lanes, apply)
				sessions := joinAll(t, testConfig(t, server), job)
				var all sync.WaitGroup
				for i, s := range sessions {
					all.Go(func() {
						err := hold(testContext(t), s, newToy(t, job), batches, early)
						digest, err2 := s.Digest(testContext(t)) // waits for what was committed
						if err = errors.Join(err, err2); err != nil || digest != want {
							t.Errorf("%s: trainer %d: weights %x, want %x: %v", job.Name, i, digest[:6], want[:6], err)
						}
						if err := s.Close(); err != nil { // what Finish does, too
							t.Errorf("%s: trainer %d leaves: %v", job.Name, i, err)
						}
					})
				}
				all.Wait()
			}
		}
	}
}

// pairs is one batch of a job with a table of 10 rows of 2 and a parameter of 2: two lanes, of which the second has no
// samples.
func pairs(t *testing.T, s *Session) *Batch {
	t.Helper()
	b, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	b.Samples(0, 2)
	b.Keys(0, 0, 7, 3)
	b.Keys(0, 0, 7)
	return b
}

func pairsJob(name string) *schema.Job {
	return &schema.Job{Name: schema.JobName(name), Lanes: 2, Optimizer: schema.Optimizer{LR: 2},
		Parameters: []schema.Parameter{{Name: "p", Shape: []int{2}, Init: schema.Zeros()}},
		Tables:     []schema.TableSpec{{Name: "t", Rows: 10, Dim: 2, Init: schema.Zeros()}}}
}

func oneSession(t *testing.T, job *schema.Job) *Session {
	t.Helper()
	return joinAll(t, testConfig(t, startServer(t, 1)), job.WithDefaults())[0]
}

// Gradients of rows may come in parts, in any order; what comes of them is read at the version that they made.
func TestGradientsInParts(t *testing.T) {
	t.Parallel()
	s := oneSession(t, pairsJob("parts"))
	ctx := testContext(t)
	b := pairs(t, s)
	if err := b.Fetch(ctx); err != nil {
		t.Fatal(err)
	}
	step, err := b.Lane(0)
	if err != nil {
		t.Fatal(err)
	}
	if ids := step.IDs(0); !slices.Equal(ids, []int64{1, 0, 1}) {
		t.Errorf("ids %v", ids)
	}
	step.AddRowGrad(0, []int64{1, 0}, []float32{1, 2, 10, 20})
	step.AddRowGrad(0, []int64{1}, []float32{3, 4})
	copy(step.Grad("p"), []float32{1.5, 2.5})
	if err := errors.Join(step.End(1), b.Commit(ctx)); err != nil {
		t.Fatal(err)
	}
	rows, err := s.Lookup(ctx, []Query{{Table: 0, Keys: []uint64{3, 7, 0}}})
	if err != nil || s.Version() != 1 {
		t.Fatalf("version %d, %v: want 1", s.Version(), err)
	}
	if want := []float32{-10, -20, -4, -6, 0, 0}; !slices.Equal(rows[0], want) { // 2 * sum/2
		t.Errorf("rows %v, want %v", rows[0], want)
	}
	if p := s.Param("p"); !slices.Equal(p, []float32{-1.5, -2.5}) {
		t.Errorf("parameter %v", p)
	}
	b = pairs(t, s)
	if err := b.Fetch(ctx); err != nil {
		t.Fatal(err)
	}
	step, _ = b.Lane(0)
	step.RowGrad(0, []int64{0}, []float32{1, 1})
	step.AddRowGrad(0, []int64{0}, []float32{1, 1})
	checkError(t, step.End(0), ErrWorkload, "batch 1 lane 0", "gradient of table 0 is given twice for one lane")
	if s.Err() == nil {
		t.Error("the session goes on with half a batch")
	}
}

// Calls out of order change nothing: the batch goes on, and comes to its end.
func TestCallsOutOfOrder(t *testing.T) {
	t.Parallel()
	s := oneSession(t, pairsJob("order"))
	ctx := testContext(t)
	b := pairs(t, s)
	_, err := b.Lane(0)
	checkError(t, err, ErrOrder, "Lane: batch 0: its keys are being named")
	checkError(t, b.Commit(ctx), ErrOrder, "Commit: batch 0: its keys are being named")
	if err := b.Fetch(ctx); err != nil {
		t.Fatal(err)
	}
	checkError(t, b.Fetch(ctx), ErrOrder, "Fetch: batch 0: it was fetched")
	checkError(t, b.Wait(ctx), ErrOrder, "Wait: batch 0: it was fetched")
	_, err = s.Next()
	checkError(t, err, ErrOrder, "Next: batch 0 is under way, it was fetched")
	checkError(t, s.Run(ctx, &toy{}, 1, nil), ErrOrder, "want Finish before it")
	checkError(t, s.Finish(ctx), ErrOrder, "want its Commit before, or Abort")
	checkError(t, b.Commit(ctx), ErrOrder, "lane 0, which has 2 samples, was not computed")
	_, err = b.Lane(2)
	checkError(t, err, ErrOrder, "lane 2: this trainer computes lanes [0 1] of batch 0")
	step, err := b.Lane(0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Lane(1)
	checkError(t, err, ErrOrder, "lane 0, which has not ended")
	if err := step.End(0); err != nil {
		t.Fatal(err)
	}
	checkError(t, step.End(0), ErrOrder, "lane 0 of batch 0 has ended")
	_, err = b.Lane(0)
	checkError(t, err, ErrOrder, "lane 0 of batch 0 follows lane 0")
	absent, err := b.Lane(1)
	if err != nil || absent.Samples != 0 || absent.End(0) != nil {
		t.Errorf("a lane without samples: %+v, %v", absent, err)
	}
	if err := b.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	checkError(t, b.Commit(ctx), ErrOrder, "Commit: batch 0: it was committed")
	next := pairs(t, s)
	checkError(t, b.Fetch(ctx), ErrOrder, "batch 0 is not the one that Next gave last")
	if err := next.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if next.Number() != 1 || s.Version() != 1 {
		t.Errorf("batch %d at version %d, want 1 at 1", next.Number(), s.Version())
	}
	if err := s.Close(); err == nil {
		t.Error("Close says nothing of a batch that is under way")
	}
}

// A batch whose results are there before its Commit is not complete for the program: a wait leaves the version and the
// parameters that it is computed on.
func TestWaitStopsBeforeTheBatchUnderWay(t *testing.T) {
	t.Parallel()
	job := pairsJob("under-way")
	job.Tables = nil // whose gradients leave with the Commit alone
	s, ctx := oneSession(t, job), testContext(t)
	b, err := s.Next()
	if err != nil {
		t.Fatal(err)
	}
	b.Samples(0, 1)
	if err := b.Fetch(ctx); err != nil {
		t.Fatal(err)
	}
	step, err := b.Lane(0)
	if err != nil {
		t.Fatal(err)
	}
	copy(step.Grad("p"), []float32{1, 2})
	if err := step.End(0); err != nil {
		t.Fatal(err)
	}
	poll(t, "the results of batch 0", func() bool { return get(s.exchange, (*exchange.Exchange).Completed) == 1 })
	if _, err := s.Wait(ctx); s.Version() != 0 || err != nil || !slices.Equal(s.Param("p"), []float32{0, 0}) {
		t.Errorf("before the Commit: version %d with %v, %v; want 0 with zeros", s.Version(), s.Param("p"), err)
	}
	if err := b.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Wait(ctx); s.Version() != 1 || err != nil || !slices.Equal(s.Param("p"), []float32{-2, -4}) {
		t.Errorf("after the Commit: version %d with %v, %v; want 1 with -2, -4", s.Version(), s.Param("p"), err)
	}
}

// A batch that was given back names nothing of the one that comes in its place, nor of those behind the end of its run.
func TestBatchThatWasGivenBack(t *testing.T) {
	t.Parallel()
	s, ctx := oneSession(t, pairsJob("earlier")), testContext(t)
	b := pairs(t, s)
	if err := b.Fetch(ctx); err != nil {
		t.Fatal(err)
	}
	step, err := b.Lane(0)
	if err == nil {
		err = errors.Join(step.End(0), b.Commit(ctx))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []func(context.Context) error{func(context.Context) error { return nil }, s.Finish} {
		earlier := pairs(t, s)
		if err := errors.Join(earlier.GiveBack(), end(ctx)); err != nil {
			t.Fatal(err)
		}
		b = pairs(t, s)
		want := len(s.compute.tables.used[0])
		earlier.Samples(1, 4)
		earlier.Keys(0, 0, 9)
		if got := len(s.compute.tables.used[0]); got != want || want != 3 || s.compute.samples[1] != 0 {
			t.Errorf("batch %d has %d keys and %v samples, want 3 keys and none of lane 1", b.Number(), got, s.compute.samples)
		}
		if err := b.GiveBack(); err != nil {
			t.Fatal(err)
		}
	}
}

// What a batch does not have is said once, at the call that needs it, and ends the session.
func TestWhatABatchDoesNotHave(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		name func(b *Batch)
		says string
	}{
		{func(b *Batch) { b.Keys(0, 3, 1) }, "table 3: the job has 1 tables"},
		{func(b *Batch) { b.Keys(5, 0, 1) }, "lane 5: this trainer computes lanes [0 1] of batch 0"},
		{func(b *Batch) { b.Keys(1, 0, 1) }, "lane 1: 0 samples with 1 keys of table \"t\""},
		{func(b *Batch) { b.Samples(1, 1); b.Keys(1, 0, 1); b.Keys(0, 0, 1) },
			"keys of lane 0 of table 0 follow those of lane 1"},
		{func(b *Batch) { b.Samples(1, -1) }, "lane 1: -1 samples"},
		{func(b *Batch) { b.Keys(0, 0, 10) }, `table "t": id 10 is outside [0, 10)`},
		{func(b *Batch) { b.Bags(0, 0, []int64{0, 3}) }, "bags of table 0: its pooling is not in the manifest"},
	} {
		s := oneSession(t, pairsJob(fmt.Sprintf("lacks-%d", i)))
		b := pairs(t, s)
		c.name(b)
		checkError(t, b.Fetch(testContext(t)), ErrWorkload, "batch 0", c.says)
		if _, err := s.Next(); !errors.Is(err, ErrWorkload) {
			t.Errorf("%s: the session goes on: %v", c.says, err)
		}
	}
	s := oneSession(t, pairsJob("late"))
	b := pairs(t, s)
	if err := b.Fetch(testContext(t)); err != nil {
		t.Fatal(err)
	}
	b.Keys(0, 0, 1)
	step, _ := b.Lane(0)
	if err := step.End(0); err != nil {
		t.Fatal(err)
	}
	checkError(t, b.Commit(testContext(t)), ErrWorkload, "Keys for lane 0: batch 0: it was fetched")
}

// Bags that a program names are pooled, wherever the table is placed.
func TestHeldBags(t *testing.T) {
	t.Parallel()
	server := startServer(t, 2)
	for _, placement := range []string{schema.PlacementRows, schema.PlacementColumns, schema.PlacementTables} {
		job := pairsJob("bags-" + placement)
		job.Tables[0].Placement, job.Tables[0].Pooling, job.Tables[0].Init = placement, schema.PoolingMean, schema.Normal(1)
		s := joinAll(t, testConfig(t, server), job.WithDefaults())[0]
		ctx := testContext(t)
		before, err := s.Lookup(ctx, []Query{{Table: 0, Keys: []uint64{3, 7}}})
		if err != nil {
			t.Fatal(err)
		}
		b := pairs(t, s)
		b.Bags(0, 0, []int64{0, 2, 3}) // {7, 3}, {7}
		if err := b.Fetch(ctx); err != nil {
			t.Fatal(err)
		}
		step, _ := b.Lane(0)
		r := before[0]
		if p, want := step.Pooled(0), []float32{(r[0] + r[2]) / 2, (r[1] + r[3]) / 2, r[2], r[3]}; !slices.Equal(p, want) {
			t.Errorf("%s: pooled %v, want %v", placement, p, want)
		}
		step.PooledGrad(0, []float32{4, 4, 1, 1})
		if err := errors.Join(step.End(0), b.Commit(ctx)); err != nil {
			t.Fatal(err)
		}
		after, err := s.Lookup(ctx, []Query{{Table: 0, Keys: []uint64{3, 7}}})
		if err != nil {
			t.Fatal(err)
		}
		if want := []float32{r[0] - 2, r[1] - 2, r[2] - 3, r[3] - 3}; !slices.Equal(after[0], want) {
			t.Errorf("%s: rows %v, want %v", placement, after[0], want)
		}
	}
}
