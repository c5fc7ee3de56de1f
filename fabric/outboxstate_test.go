package fabric

import (
	"testing"
	"testing/synctest"
	"time"
)

// What a window says of itself: how much is on the way, how much may be, and how long the last acks took.
func TestOutboxState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newRecorder(OutboxConfig{BytesMax: 1000})
		want := func(what string, s OutboxState) {
			t.Helper()
			if got := o.State(); got != s {
				t.Errorf("%s: %+v, want %+v", what, got, s)
			}
		}
		ack := func(a Ack) {
			t.Helper()
			if err := o.Ack(a); err != nil {
				t.Fatal(err)
			}
		}
		want("empty", OutboxState{WindowBytes: 1000})
		o.send(t, 3, 200)
		want("three sent", OutboxState{OutboxStats: OutboxStats{Frames: 3}, PendingBytes: 600, WindowBytes: 1000})
		time.Sleep(8 * time.Millisecond)
		ack(Ack{Cumulative: 2})
		want("two came", OutboxState{OutboxStats: OutboxStats{Frames: 3}, PendingBytes: 200, WindowBytes: 600,
			RoundTrip: 8 * time.Millisecond})
		ack(Ack{Cumulative: 3, Window: 1600})
		want("and the third, and credit", OutboxState{OutboxStats: OutboxStats{Frames: 3}, WindowBytes: 1000,
			RoundTrip: 8 * time.Millisecond})

		o.send(t, 1, 200) // the next measure; the newest counts for an eighth
		time.Sleep(16 * time.Millisecond)
		ack(Ack{Cumulative: 4})
		want("a longer one", OutboxState{OutboxStats: OutboxStats{Frames: 4}, WindowBytes: 800,
			RoundTrip: 9 * time.Millisecond})

		o.send(t, 1, 200) // sent again: which sending was answered is not known
		if err := o.ResendAll(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		ack(Ack{Cumulative: 5})
		want("no measure", OutboxState{OutboxStats: OutboxStats{Frames: 5, Back: 1}, WindowBytes: 600,
			RoundTrip: 9 * time.Millisecond})
		o.send(t, 1, 200) // known to have come without an ack
		time.Sleep(9 * time.Millisecond)
		if err := o.Received(6); err != nil {
			t.Fatal(err)
		}
		want("one that no ack told", OutboxState{OutboxStats: OutboxStats{Frames: 6, Back: 1}, WindowBytes: 400,
			RoundTrip: 9 * time.Millisecond})

		done := make(chan struct{})
		go func() {
			defer close(done)
			o.send(t, 3, 200)
		}()
		synctest.Wait()
		want("no credit left for the third", OutboxState{OutboxStats: OutboxStats{Frames: 8, Back: 1}, PendingBytes: 400,
			WindowBytes: 400, full: true, RoundTrip: 9 * time.Millisecond})
		ack(Ack{Cumulative: 7, Window: 5000})
		<-done
		if s := o.State(); s.full || s.PendingBytes != 400 {
			t.Errorf("with credit: %+v", s)
		}
	})
}
