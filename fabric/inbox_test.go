package fabric

import (
	"math"
	"testing"
)

func TestInboxLiterals(t *testing.T) {
	type step struct {
		sequence  uint64
		fresh, ok bool
		want      Ack
	}
	w := uint64(math.MaxUint64)
	var in Inbox
	for i, s := range []step{
		{0, false, false, Ack{0, [4]uint64{}, w}},
		{1, true, true, Ack{1, [4]uint64{}, w}},
		{1, false, true, Ack{1, [4]uint64{}, w}},
		{3, true, true, Ack{1, [4]uint64{0b10}, w}},
		{4, true, true, Ack{1, [4]uint64{0b110}, w}},
		{4, false, true, Ack{1, [4]uint64{0b110}, w}},
		{257, true, true, Ack{1, [4]uint64{0b110, 0, 0, 1 << 63}, w}},
		{258, false, false, Ack{1, [4]uint64{0b110, 0, 0, 1 << 63}, w}},
		{66, true, true, Ack{1, [4]uint64{0b110, 1, 0, 1 << 63}, w}},
		{2, true, true, Ack{4, [4]uint64{1 << 61, 0, 0, 1 << 60}, w}},
		{math.MaxUint64, false, false, Ack{4, [4]uint64{1 << 61, 0, 0, 1 << 60}, w}},
		{260, true, true, Ack{4, [4]uint64{1 << 61, 0, 0, 1<<60 | 1<<63}, w}},
		{261, false, false, Ack{4, [4]uint64{1 << 61, 0, 0, 1<<60 | 1<<63}, w}},
	} {
		fresh, ok := in.Accept(s.sequence)
		if fresh != s.fresh || ok != s.ok {
			t.Errorf("step %d: Accept(%d) = %v, %v; want %v, %v", i, s.sequence, fresh, ok, s.fresh, s.ok)
		}
		if got := in.Ack(); got != s.want {
			t.Errorf("step %d: Ack after %d = %+v; want %+v", i, s.sequence, got, s.want)
		}
	}
}

func TestInboxCredit(t *testing.T) {
	in := NewInbox(100)
	accept := func(sequence uint64, bytes int, wantFresh, wantOK bool) {
		t.Helper()
		if fresh, ok := in.AcceptBytes(sequence, bytes); fresh != wantFresh || ok != wantOK {
			t.Errorf("AcceptBytes(%d, %d) = %v, %v; want %v, %v", sequence, bytes, fresh, ok, wantFresh, wantOK)
		}
	}
	accept(1, 60, true, true)
	accept(2, 41, false, false) // one byte beyond the budget
	accept(2, 40, true, true)
	accept(3, 1, false, false)
	accept(1, 60, false, true) // a repetition needs no credit
	accept(4, 0, true, true)
	if got, want := in.Ack(), (Ack{2, [4]uint64{0b10}, 100}); got != want {
		t.Errorf("Ack = %+v; want %+v", got, want)
	}
	in.Free(60)
	if got := in.Ack().Window; got != 160 {
		t.Errorf("window after freeing 60 = %d; want 160", got)
	}
	if got := in.HeldBytes(); got != 40 {
		t.Errorf("held %d bytes; want 40", got)
	}
	accept(3, 60, true, true)
	accept(5, 1, false, false)
}

func TestInboxFreeBeyondTakenPanics(t *testing.T) {
	in := NewInbox(100)
	in.AcceptBytes(1, 10)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	in.Free(11)
}

// naiveInbox is the same contract over a set.
type naiveInbox struct {
	seen       map[uint64]bool
	low        uint64 // where to begin counting, for the sake of the test's time
	budget     uint64
	taken, off uint64
}

func (n *naiveInbox) cumulative() uint64 {
	for n.seen[n.low+1] {
		n.low++
	}
	return n.low
}

func (n *naiveInbox) accept(sequence uint64, bytes int) (fresh, ok bool) {
	switch {
	case sequence == 0 || sequence > n.cumulative()+SpanMax:
		return false, false
	case n.seen[sequence]:
		return false, true
	case n.taken-n.off+uint64(bytes) > n.budget:
		return false, false
	}
	n.seen[sequence] = true
	n.taken += uint64(bytes)
	return true, true
}

func TestInboxAgainstNaiveSet(t *testing.T) {
	rng := newRand(t)
	refused := 0
	for range 20 {
		in, naive := NewInbox(1000), &naiveInbox{seen: map[uint64]bool{}, budget: 1000}
		for range 2000 {
			low := naive.cumulative()
			sequence := low + uint64(rng.IntN(300)) // behind, within and beyond the bitmap
			sequence -= min(sequence, uint64(rng.IntN(40)))
			if rng.IntN(3) == 0 {
				sequence = low + 1 // so that it advances
			}
			bytes := rng.IntN(100)
			fresh, ok := in.AcceptBytes(sequence, bytes)
			wantFresh, wantOK := naive.accept(sequence, bytes)
			if fresh != wantFresh || ok != wantOK {
				t.Fatalf("AcceptBytes(%d, %d) = %v, %v; want %v, %v", sequence, bytes, fresh, ok, wantFresh, wantOK)
			}
			if !ok {
				refused++
			}
			if held := int(naive.taken - naive.off); rng.IntN(2) == 0 {
				free := rng.IntN(held + 1)
				in.Free(free)
				naive.off += uint64(free)
			}
			compareAck(t, in.Ack(), naive)
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the test did not reach the bounds")
	}
}

func compareAck(t *testing.T, got Ack, naive *naiveInbox) {
	t.Helper()
	if got.Cumulative != naive.cumulative() || got.Window != naive.off+naive.budget {
		t.Fatalf("Ack %+v; want cumulative %d, window %d", got, naive.cumulative(), naive.off+naive.budget)
	}
	for s := got.Cumulative - min(got.Cumulative, 3); s < got.Cumulative+SpanMax+10; s++ {
		if got.has(s) != (s == 0 || naive.seen[s]) {
			t.Fatalf("Ack %+v has %d: %v", got, s, got.has(s))
		}
	}
}
