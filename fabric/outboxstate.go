package fabric

import "time"

// OutboxState is how a window is at one moment.
type OutboxState struct {
	OutboxStats
	PendingBytes int // of frames that were sent and not acknowledged
	// that may be on the way: OutboxConfig.BytesMax, or less where the receiver's credit ends before
	WindowBytes int
	full        bool          // a sender waits for room
	RoundTrip   time.Duration // from a frame's only sending until it is known to have come, lately; 0 before the first
}

// State is how the window is now.
func (o *Outbox) State() OutboxState {
	o.mu.Lock()
	defer o.mu.Unlock()
	granted := o.bytes
	if o.credit > o.total {
		granted += int(min(o.credit-o.total, uint64(o.config.BytesMax)))
	}
	return OutboxState{OutboxStats: o.stats, PendingBytes: o.bytes, WindowBytes: min(o.config.BytesMax, granted),
		full: o.full, RoundTrip: o.trips.Mean()}
}

// Received is Ack for an owner that knows without an ack that every frame up to a number has been received.
func (o *Outbox) Received(sequence uint64) error { return o.Ack(Ack{Cumulative: sequence}) }

// Expect says how long a round trip to the receiver's server takes: the first guess, until an ack was measured.
func (o *Outbox) Expect(trip time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.trips.Expect(trip)
}

// Usual is the time within which an answer from the receiver comes that is not put off: see RoundTrips.
func (o *Outbox) Usual() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.trips.usual()
}
