package trainer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"gradbus/schema"
)

// soon is a context that interrupts a wait after some time.
func soon(t *testing.T, after time.Duration) context.Context {
	ctx, stop := context.WithTimeoutCause(t.Context(), after, ErrAgain)
	t.Cleanup(stop)
	return ctx
}

// Calls that are interrupted at once go on when they are made again, and what comes of them is the same. What they wait
// for is not there at first: the other trainer ends a batch only after a call that needs it was interrupted.
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
		b, err := s.Next()
		if err != nil {
			t.Fatal(err)
		}
		insist(b.Wait, begins)
		insist(func(ctx context.Context) error { return s.LookupInto(ctx, []Query{{0, keys, rows, nil}}) }, func() {})
		want, err := s.Lookup(t.Context(), []Query{{Table: 0, Keys: keys}})
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
