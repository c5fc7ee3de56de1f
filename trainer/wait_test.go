package trainer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gradbus/schema"
)

// soon is a context that interrupts a wait after some time.
func soon(t *testing.T, after time.Duration) context.Context {
	ctx, stop := context.WithTimeoutCause(t.Context(), after, ErrAgain)
	t.Cleanup(stop)
	return ctx
}

// What is late is asked for when it is due, however often the wait for it is interrupted.
func TestInterruptedWaitAsksInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Session{config: Config{RetryAfter: time.Second}, retry: time.NewTimer(time.Hour), back: make(chan struct{}, 1)}
		ready, began := make(chan struct{}, 1), time.Now()
		var asked []time.Duration
		again := func(bool) (bool, error) {
			asked = append(asked, time.Since(began).Round(time.Millisecond))
			return false, nil
		}
		for time.Since(began) < 4*time.Second {
			if err := s.wait(soon(t, 30*time.Millisecond), ready, time.Second, again); !errors.Is(err, ErrAgain) {
				t.Fatal(err)
			}
		}
		if len(asked) != 2 || asked[0] != time.Second || asked[1] != 3*time.Second {
			t.Errorf("asked after %v, want after 1s and 3s", asked)
		}
		ready <- struct{}{}
		if err := s.wait(t.Context(), ready, time.Second, again); err != nil {
			t.Error(err)
		}
	})
}

// Calls that are interrupted at once go on when they are made again, and what comes of them is the same. What they wait for is not there at
// first: the other trainer ends a batch only after a call that needs it was interrupted.
func TestInterruptedCallsGoOn(t *testing.T) {
	t.Parallel()
	job := toyJob("interrupted", 2, 4, schema.ApplyUpdate)
	sessions := joinAll(t, testConfig(t, startServer(t, 2)), job)
	s, other, m := sessions[0], sessions[1], newToy(t, job)
	begin := make(chan struct{})
	var theirs sync.WaitGroup
	theirs.Go(func() {
		for range begin {
			pullToZero(t, other, m, false)
		}
		if err := other.Finish(testContext(t)); err != nil {
			t.Error(err)
		}
	})
	interruptions := 0
	insist := func(call func(context.Context) error, interrupted func()) {
		t.Helper()
		for {
			switch err := call(soon(t, 0)); {
			case errors.Is(err, ErrAgain):
				interruptions++
				interrupted()
				interrupted = func() {}
			case err != nil:
				t.Fatal(err)
			default:
				return
			}
		}
	}
	rows := make([]float32, toyWords*toyWordDim)
	keys := make([]uint64, toyWords)
	for i := range keys {
		keys[i] = uint64(i)
	}
	for batch := range 4 {
		begins := func() {
			if batch > 0 {
				begin <- struct{}{}
			}
		}
		var b *Batch
		insist(func(ctx context.Context) (err error) { b, err = s.Next(ctx); return err }, begins)
		insist(func(ctx context.Context) error { return s.LookupInto(ctx, []RowsInto{{0, keys, rows, nil}}) }, func() {})
		want, err := s.Lookup(t.Context(), []TableKeys{{0, keys}})
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range want[0] {
			if rows[i] != v {
				t.Fatalf("batch %d: value %d is %v, want %v", b.Number(), i, rows[i], v)
			}
		}
		if err := b.GiveBack(); err != nil {
			t.Fatal(err)
		}
		pullToZero(t, s, m, true)
	}
	insist(s.Finish, func() { begin <- struct{}{}; close(begin) })
	theirs.Wait()
	if interruptions < 4 {
		t.Errorf("%d calls were interrupted, want at least the waits for 4 batches", interruptions)
	}
}
