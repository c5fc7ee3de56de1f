package fabric

import "testing"

// An ack is due for a quarter of the window, in what came or in what is held no more, and for 64 frames; at once for
// what is missing or came again, and for any credit where the sender has little left; of what little came at the third
// tick.
func TestReceiptsAreDue(t *testing.T) {
	const quarter = 1000
	for _, c := range []struct {
		name string
		do   func(r *Receipt)
		due  bool
	}{
		{"nothing", func(*Receipt) {}, false},
		{"a frame", func(r *Receipt) { r.Accept(1, 10, false) }, false},
		{"less than a quarter", func(r *Receipt) { r.Accept(1, quarter-1, false) }, false},
		{"a quarter", func(r *Receipt) { r.Accept(1, quarter, false) }, true},
		{"63 frames", func(r *Receipt) { accept(r, 63) }, false},
		{"64 frames", func(r *Receipt) { accept(r, 64) }, true},
		{"a frame of a narrow window", func(r *Receipt) { r.Accept(1, 10, true) }, true},
		{"a gap", func(r *Receipt) { r.Accept(2, 1, false) }, true},
		{"a repetition", func(r *Receipt) { r.Accept(1, 1, false); r.Ack(); r.Accept(1, 1, false) }, true},
		{"beyond the credit", func(r *Receipt) { r.Accept(1, 5*quarter, false) }, true},
		{"credit", func(r *Receipt) { r.Accept(1, quarter, false); r.Ack(); r.Holds(0) }, true},
		{"held", func(r *Receipt) { r.Accept(1, quarter, false); r.Ack(); r.Holds(1) }, false},
		{"credit, with a quarter left", func(r *Receipt) { r.Accept(1, 3*quarter, false); r.Ack(); r.Holds(3*quarter - 1) },
			false},
		{"credit, with less left", func(r *Receipt) { r.Accept(1, 3*quarter+1, false); r.Ack(); r.Holds(3 * quarter) }, true},
		{"no credit, with less left", func(r *Receipt) { r.Accept(1, 3*quarter+1, false); r.Ack(); r.Holds(3*quarter + 1) },
			false},
		{"known", func(r *Receipt) { accept(r, 64); r.Known() }, false},
		{"a gap that is known of", func(r *Receipt) { r.Accept(2, 1, false); r.Known() }, true},
		{"said", func(r *Receipt) { accept(r, 80); r.Ack() }, false},
		{"one tick", func(r *Receipt) { r.Accept(1, 1, false); r.Tick() }, false},
	} {
		r := NewReceipt(4*quarter, 4*quarter, quarter)
		if c.do(r); r.Due() != c.due {
			t.Errorf("%s: due %v, want %v", c.name, r.Due(), c.due)
		}
	}
	r := NewReceipt(4*quarter, 4*quarter, quarter)
	r.Accept(1, 1, false)
	if first, second, third := r.Tick(), r.Tick(), r.Tick(); first || second || !third || !r.Pending() {
		t.Errorf("due at the first tick %v, at the second %v, at the third %v", first, second, third)
	}
	if a := r.Ack(); a.Cumulative != 1 || r.Tick() || r.Pending() {
		t.Errorf("%+v, and something is left to be said", a)
	}
}

func accept(r *Receipt, frames uint64) {
	for i := range frames {
		r.Accept(i+1, 1, false)
	}
}

// stalls sends frames of a size at a rate of one a tick, over a way that takes as many ticks there and back, and counts
// the ticks at which the window is full. Nothing is held by the receiver.
func stalls(window, frame, trip int) (stalls, acks int) {
	type word struct {
		at  int
		ack Ack
	}
	r := NewReceipt(uint64(2*window), window, frame)
	var left []int // when each frame that has not arrived has left
	var words []word
	next, known := uint64(0), Ack{Window: uint64(window)}
	for now := range 5000 {
		for len(words) > 0 && words[0].at <= now {
			known, words = words[0].ack, words[1:]
		}
		under := next - known.Cumulative
		if (under+1)*uint64(frame) > uint64(window) || under == SpanMax || (next+1)*uint64(frame) > known.Window {
			stalls++
		} else {
			next++
			left = append(left, now)
		}
		for len(left) > 0 && left[0]+trip/2 <= now {
			left = left[1:]
			r.Accept(next-uint64(len(left)), frame, false)
			if r.Holds(0); r.Due() {
				words = append(words, word{now + trip - trip/2, r.Ack()})
				acks++
			}
		}
	}
	return stalls, acks
}

// A sender never stalls while round trips are as short as the formula says, and does where they are longer.
func TestReceiptsComeInTime(t *testing.T) {
	for _, c := range []struct{ window, frame, frames int }{ // frames of a window that may be under way for a round trip
		{4 << 20, 256 << 10, 16 - 4 - 1},
		{4 << 20, 64 << 10, 64 - 16 - 1},
		{1 << 20, 256 << 10, 4 - 1 - 1},
		{4 << 20, 1 << 10, SpanMax - SpanMax/4},
	} {
		n, acks := stalls(c.window, c.frame, c.frames)
		if most := 5000 / min(c.window/4/c.frame, SpanMax/4); n > 0 || acks > most {
			t.Errorf("window %d, frames of %d: %d stalls and %d acks with round trips of %d frames, want none and at most %d",
				c.window, c.frame, n, acks, c.frames, most)
		}
		if n, _ := stalls(c.window, c.frame, c.frames+3); n == 0 {
			t.Errorf("window %d, frames of %d: no stall with round trips of %d frames", c.window, c.frame, c.frames+3)
		}
	}
}

// A sender that has sent all that may be held, to rounds which wait for others, goes on with each round that closes:
// what is given back is said at once where it has little left.
func TestReceiptsGiveCreditInTime(t *testing.T) {
	const window, share, frame = 4000, 8000, 400
	r, credit, sent, held := NewReceipt(share, window, frame), uint64(window), uint64(0), int64(0)
	for round := range 100 {
		for ; held < share; sent, held = sent+frame, held+frame {
			if sent+frame > credit {
				t.Fatalf("round %d: %d bytes were sent of %d that the sender knows of, and %d are held", round, sent, credit, held)
			}
			if fresh, _ := r.Accept(sent/frame+1, frame, false); !fresh {
				t.Fatal("not taken")
			}
			if r.Holds(held + frame); r.Due() {
				credit = r.Ack().Window
			}
		}
		held -= frame
		if r.Holds(held); r.Due() {
			credit = r.Ack().Window
		}
	}
}

// An ack that is not due would not let its sender go on, however large frames are to the window: nobody waits for a
// tick. Frames are there as soon as they have left, and are held for a while.
func TestReceiptsKeepNobodyWaiting(t *testing.T) {
	const window = 4000
	rng := newRand(t)
	for _, most := range []int{8, 400, 1000, 1001, 1500, 2000, 3001, 4000, 5000} {
		share := uint64(2*max(window, most) + rng.IntN(window))
		r, o := NewReceipt(share, window, most), newRecorder(OutboxConfig{BytesMax: window})
		var held []int // frames' bytes
		holds := func() {
			total := int64(0)
			for _, bytes := range held {
				total += int64(bytes)
			}
			if r.Holds(total); r.Due() {
				if err := o.Ack(r.Ack()); err != nil {
					t.Fatal(err)
				}
			}
		}
		for n := uint64(1); n <= 2000; n++ {
			bytes := max(8, most-rng.IntN(most)*rng.IntN(2))
			for {
				sent, err := o.TrySend(someSubject, WithoutRoom(make([]byte, bytes)))
				if err != nil {
					t.Fatal(err)
				}
				if sent {
					break
				}
				if o.total+uint64(bytes) <= r.inbox.window() {
					t.Fatalf("frames of at most %d: %d bytes wait for an ack that is not due: %+v, %+v", most, bytes, *r, o.State())
				}
				held = held[1:] // the round of the oldest closes
				holds()
			}
			if fresh, _ := r.Accept(n, bytes, false); !fresh {
				t.Fatalf("frames of at most %d: frame %d was not taken", most, n)
			}
			held = append(held, bytes)
			holds()
			for len(held) > 0 && rng.IntN(3) == 0 {
				held = held[1:]
				holds()
			}
		}
	}
}
