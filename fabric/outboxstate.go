package fabric

import "time"

// OutboxState is how a window is at one moment.
type OutboxState struct {
	OutboxStats
	PendingBytes int           // of frames that were sent and not acknowledged
	WindowBytes  int           // that may be on the way: OutboxConfig.BytesMax, or less where the receiver's credit ends before
	Full         bool          // a sender waits for room
	RoundTrip    time.Duration // from a frame's only sending to the ack of it, lately; 0 before the first
}

// State is how the window is now.
func (o *Outbox) State() OutboxState {
	o.mu.Lock()
	defer o.mu.Unlock()
	granted := o.bytes
	if o.credit > o.total {
		granted += int(min(o.credit-o.total, uint64(o.config.BytesMax)))
	}
	return OutboxState{OutboxStats: o.stats, PendingBytes: o.bytes, WindowBytes: min(o.config.BytesMax, granted), Full: o.full, RoundTrip: o.trip.mean}
}

// Received is Ack for an owner that knows without an ack that every frame up to a number has been received. It says nothing about
// round trips.
func (o *Outbox) Received(sequence uint64) error {
	o.mu.Lock()
	if o.trip.sequence <= sequence {
		o.trip.sequence = 0
	}
	o.mu.Unlock()
	return o.Ack(Ack{Cumulative: sequence})
}

// ackTime measures how long acks take: of one frame at a time, from when it was sent to when it is known to have come. A frame that was
// sent again is no measure, since which sending was answered is not known. The clock is read twice for each frame that is
// measured. It is guarded by Outbox.mu.
type ackTime struct {
	sequence uint64 // of the frame that is measured; 0 where none is
	at       time.Time
	mean     time.Duration // of the last ones, the newest counting for a quarter
}

func (r *ackTime) left(sequence uint64) {
	if r.sequence == 0 {
		r.sequence, r.at = sequence, time.Now()
	}
}

func (r *ackTime) forget(sequence uint64) {
	if r.sequence == sequence {
		r.sequence = 0
	}
}

func (r *ackTime) came(sequence uint64) {
	if r.sequence != sequence {
		return
	}
	r.sequence = 0
	trip := max(1, time.Since(r.at))
	if r.mean == 0 {
		r.mean = trip
		return
	}
	r.mean += (trip - r.mean) / 4
}
