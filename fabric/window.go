package fabric

// SpanMax is how far a sender may run ahead of the oldest frame that was not acknowledged: what an Ack's bitmap covers.
const SpanMax = 256

// Envelope reads and writes the sequence number inside a frame. It is all that this package is told of frames.
type Envelope interface {
	// Sequence is the number within a frame, false where the bytes are no frame.
	Sequence(frame []byte) (uint64, bool)
	// SetSequence writes the number into a frame that the caller built.
	SetSequence(frame []byte, sequence uint64)
}

// Ack tells a sender what has arrived and how much more may come. Acks may be lost, repeated and reordered; each stands
// alone, and an older one changes nothing.
type Ack struct {
	// Cumulative: every sequence number up to and including this one has arrived.
	Cumulative uint64
	// Bitmap: bit i%64 of word i/64 says that Cumulative+1+i has arrived. Bit 0 of word 0 is never set.
	Bitmap [SpanMax / 64]uint64
	// Window is the credit: how many bytes of frames, counted from the sender's first frame and each frame once, the
	// sender may have sent. It never falls. What was received but not yet worked off still counts against it.
	Window uint64
}

// has reports whether the sequence number is among the received.
func (a *Ack) has(sequence uint64) bool {
	if sequence <= a.Cumulative {
		return true
	}
	i := sequence - a.Cumulative - 1
	return i < SpanMax && a.Bitmap[i/64]>>(i%64)&1 == 1
}
