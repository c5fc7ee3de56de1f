package fabric

import "time"

// overdue picks the frame to send again where nothing was heard: the newest that there is credit for, since its ack
// condemns all that left before it and did not arrive; every other time the oldest, in case the receiver can take no
// other. Called with mu held.
func (o *Outbox) overdue() []uint64 {
	o.probes++
	if o.probes%2 == 1 {
		for n := o.next - 1; n >= o.first; n-- {
			if s := &o.slots[n%SpanMax]; s.used && !s.acked && s.busy == 0 && s.end <= o.credit {
				return o.mark(1, func(other *slot) bool { return other == s })
			}
		}
	}
	return o.mark(1, every)
}

// Tick tells the window what time it is; call it some ten times a second or more. Where nothing was acknowledged for
// the timeout, one frame is sent again, whose ack shows what else is missing. Where a sender waits for credit and
// nothing is on the way, the ack that granted it may be lost, and one frame may go beyond it: its ack tells. A call
// that comes much later than it would have had something to do leaves that to the next one, since acks may have waited
// as it has.
func (o *Outbox) Tick(now time.Time) error {
	o.mu.Lock()
	if o.next == o.first && !o.starved || o.err != nil {
		o.due = time.Time{}
		o.mu.Unlock()
		return nil
	}
	if o.due.IsZero() {
		o.due, o.again = now.Add(o.trips.Timeout()), false
	}
	late := now.Sub(o.due)
	if late < 0 || late > tickLate && !o.again {
		o.again = late >= 0 // acks may wait to be read, as this call did
		o.mu.Unlock()
		return nil
	}
	o.trips.Late()
	o.due, o.again = now.Add(o.trips.Timeout()), false
	var overdue []uint64
	if o.next > o.first {
		o.suspect = o.order
		overdue = o.overdue()
	} else {
		o.probe = true
		o.wake()
	}
	o.mu.Unlock()
	return o.repeat(overdue, &o.stats.Timeout)
}

// recover picks what else to send again when a frame was answered that was sent again since nothing was heard: of all
// that was on the way then twice as many as have arrived, the oldest first, as a TCP does that starts slowly. A window
// that was lost whole, with what was sent again of it, is through after eight round trips. Where one arrives that was
// sent once, the frames were late and not lost, and none is sent twice. Called with mu held.
func (o *Outbox) recover(told *news) []uint64 {
	if o.suspect == 0 || !told.progress {
		return nil
	}
	var picked []uint64
	if !told.original {
		picked = o.mark(2*told.frames, func(s *slot) bool { return s.order <= o.suspect && s.end <= o.credit })
	}
	if len(picked) == 0 {
		o.suspect = 0
	}
	return picked
}
