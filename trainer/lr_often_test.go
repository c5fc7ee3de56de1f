package trainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"gradbus/schema"
)

// Rates that are changed over and over while batches go on: weights are those of a job that was told each change before
// its batch.
func TestScaleLROverAndOver(t *testing.T) {
	const batches = 150
	for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		config, job := testConfig(t, startServer(t, 3)), toyJob("often", 2, 4, apply)
		changes, want := changedOften(t, config, job, batches)
		if len(changes) < 3 {
			t.Fatalf("%s: %d changes in %d batches", apply, len(changes), batches)
		}
		sessions := joinAll(t, config, job)
		var errs [2]error
		var all sync.WaitGroup
		for i, s := range sessions {
			all.Go(func() {
				done := schema.Batch(0)
				for _, c := range changes {
					errs[i] = errors.Join(errs[i], s.Run(testContext(t), sameToy(t, job), uint64(c.From-done), nil))
					_, err := s.ScaleLR(testContext(t), c.From, c.Scale)
					errs[i], done = errors.Join(errs[i], err), c.From
				}
				errs[i] = errors.Join(errs[i], s.Run(testContext(t), sameToy(t, job), uint64(batches-done), nil))
			})
		}
		all.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sameDigest(t, sessions)); got != want {
			t.Errorf("%s, %d changes: weights %s, want %s", apply, len(changes), got, want)
		}
		for _, s := range sessions {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// sameToy has samples in every batch, so that a Run may be of any one.
func sameToy(t *testing.T, job *schema.Job) *toy {
	m := newToy(t, job)
	m.same = true
	return m
}

// changedOften runs a job whose rates somebody else changes all the time, and gives what was decided and the weights.
func changedOften(t *testing.T, config Config, job *schema.Job, batches uint64) (changes []schema.LRChange,
	digest string) {
	sessions := joinAll(t, config, job)
	ctx, stop := context.WithCancel(testContext(t))
	var asking sync.WaitGroup
	asking.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := ScaleLR(ctx, config, job.Name, 0, []float32{0.25, 0.5, 2}[i%3], false); err != nil && ctx.Err() == nil {
				t.Error(err)
				return
			}
		}
	})
	for _, err := range runAll(testContext(t), sessions, sameToy(t, job), batches) {
		if err != nil {
			t.Fatal(err)
		}
	}
	stop()
	asking.Wait()
	digest = fmt.Sprintf("%x", sameDigest(t, sessions))
	lr := sessions[0].lr
	lr.mu.Lock()
	decided := slices.Clone(lr.decided)
	lr.mu.Unlock()
	for _, c := range decided {
		if uint64(c.From) < batches {
			changes = append(changes, c)
		}
	}
	for _, s := range sessions {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return changes, digest
}
