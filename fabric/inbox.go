package fabric

import (
	"math"
)

// Inbox is the receiving side of one window: it records which frames of one sender have arrived, and how many more
// bytes the sender may send. It is pure, has no lock and belongs to one goroutine. Its size is fixed (about 64 bytes).
//
// The zero value is ready and grants unlimited credit.
type Inbox struct {
	cumulative uint64
	bitmap     [SpanMax / 64]uint64 // invariant: bit 0 of word 0 is clear
	bytesMax   uint64               // budget; 0: unlimited
	taken      uint64               // bytes of fresh frames so far
	freed      uint64               // bytes that were processed; freed <= taken
}

// NewInbox makes an inbox that grants its sender bytesMax bytes beyond those freed; 0: unlimited. It must be at least
// the sender's first credit (OutboxConfig.BytesMax), and large enough for everything that the receiver cannot process
// before later frames of the same sender have arrived; otherwise both wait forever.
func NewInbox(bytesMax uint64) *Inbox { return &Inbox{bytesMax: bytesMax} }

// Accept marks a frame as received, without counting bytes. See AcceptBytes.
func (in *Inbox) Accept(sequence uint64) (fresh, ok bool) { return in.AcceptBytes(sequence, 0) }

// AcceptBytes marks a frame of a size as received. Call it only for a verified frame: a marked frame is never
// retransmitted.
//
//	fresh  ok
//	true   true   process it, and call Free with the same size when its bytes are no longer held
//	false  true   a repeat: drop it, and send an Ack
//	false  false  beyond the bitmap, beyond the credit, or number 0: drop it, and send an Ack; it will be retransmitted
func (in *Inbox) AcceptBytes(sequence uint64, bytes int) (fresh, ok bool) {
	if sequence == 0 {
		return false, false
	}
	if sequence <= in.cumulative {
		return false, true
	}
	i := sequence - in.cumulative - 1
	if i >= SpanMax {
		return false, false
	}
	word, bit := i/64, uint64(1)<<(i%64)
	if in.bitmap[word]&bit != 0 {
		return false, true
	}
	if uint64(bytes) > in.window()-in.taken {
		return false, false
	}
	in.taken += uint64(bytes)
	in.bitmap[word] |= bit
	for in.bitmap[0]&1 == 1 {
		in.advance()
	}
	return true, true
}

// advance moves the bitmap by one received frame.
func (in *Inbox) advance() {
	in.cumulative++
	last := len(in.bitmap) - 1
	for w := 0; w < last; w++ {
		in.bitmap[w] = in.bitmap[w]>>1 | in.bitmap[w+1]<<63
	}
	in.bitmap[last] >>= 1
}

// Free returns credit for bytes that were accepted and are no longer held. The next Ack carries it.
func (in *Inbox) Free(bytes int) {
	in.freed += uint64(bytes)
	if in.freed > in.taken {
		panic("fabric: inbox freed more bytes than it took")
	}
}

// HeldBytes returns the bytes that were accepted and not yet freed.
func (in *Inbox) HeldBytes() uint64 { return in.taken - in.freed }

// Ack returns the current state, for the sender.
func (in *Inbox) Ack() Ack {
	return Ack{Cumulative: in.cumulative, Bitmap: in.bitmap, Window: in.window()}
}

func (in *Inbox) window() uint64 {
	if in.bytesMax == 0 {
		return math.MaxUint64
	}
	return in.freed + in.bytesMax
}

// Receipt is the receiving side of one window, and decides when to acknowledge. An ack costs about 15 us of processor
// time over all processes, so one is sent for each quarter of the window W, in bytes or in frames (SpanMax), that has
// arrived or been freed. Gaps and repeats are acknowledged at once, and the rest after a delay that the Receipt's owner
// measures. It is pure, has no lock and belongs to one goroutine.
//
// A sender with frames of at most f bytes, at a rate r, whose acks arrive after a round trip t, never stalls while
//
//	r t <= W - W/4 - f        and, in frames a second, r t <= SpanMax - SpanMax/4
//
// When the byte that makes an ack due is sent, fewer than W/4 + f bytes before it are unacknowledged, and r t more are
// sent until the ack arrives: together at most W. With an ack for each frame the bound would be W - f. A sender waits
// for credit only if it is withheld: as soon as it has less than a quarter of a window left, any returned credit makes
// an ack due.
//
// If frames are larger than that, a quarter is not enough: an ack is due as soon as the largest frame may not have room
// or credit. So a delayed ack never makes a sender wait, however large its frames are.
type Receipt struct {
	inbox   *Inbox
	quarter int    // of the sender's window, in bytes
	came    int    // arrived bytes that make an ack due: a quarter, or as many as leave no room for the largest frame
	reserve uint64 // credit below which any returned credit makes an ack due: a quarter, or the largest frame
	frames  int    // frames that arrived since the last ack
	bytes   int    // their bytes
	credit  int    // returned bytes that no ack has carried
	said    uint64 // credit that the sender knows, from its first byte on
	now     bool   // an ack is due at once
	ticks   int    // ticks since the first of frames arrived
}

// NewReceipt makes the receipt of a sender that may have bytesMax bytes held here, and window bytes in flight. Its
// frames have at most frameBytesMax bytes. A larger frame may wait for a Tick here, and for one of its Outbox if it
// waits for credit.
func NewReceipt(bytesMax uint64, window, frameBytesMax int) *Receipt {
	quarter := max(1, window/4)
	return &Receipt{inbox: NewInbox(bytesMax), quarter: quarter, came: min(quarter, max(1, window-frameBytesMax+1)),
		reserve: uint64(max(quarter, frameBytesMax)), said: uint64(window)}
}

// Accept marks a frame as received, as Inbox.AcceptBytes does. narrow says that the sender's window is smaller than it
// was granted: then an ack is due at once.
func (r *Receipt) Accept(sequence uint64, bytes int, narrow bool) (fresh, ok bool) {
	r.frames, r.bytes = r.frames+1, r.bytes+bytes
	fresh, ok = r.inbox.AcceptBytes(sequence, bytes)
	r.now = r.now || !fresh || narrow || r.inbox.cumulative < sequence
	return fresh, ok
}

// Holds sets the bytes of the sender's frames that are held. The others become credit again.
func (r *Receipt) Holds(bytes int64) {
	if back := int(r.inbox.HeldBytes()) - int(bytes); back > 0 {
		r.inbox.Free(back)
		r.credit += back
	}
}

// Known records that the sender knows by other means that its frames have arrived. Gaps are still acknowledged.
func (r *Receipt) Known() {
	if !r.now {
		r.frames, r.bytes, r.ticks = 0, 0, 0
	}
}

// Due reports whether an ack should be sent.
func (r *Receipt) Due() bool {
	short := r.inbox.taken+r.reserve > r.said // of credit
	return r.now || r.bytes >= r.came || r.frames >= SpanMax/4 || r.credit >= r.quarter || short && r.credit > 0
}

// Pending reports whether frames have arrived that were not acknowledged.
func (r *Receipt) Pending() bool { return r.frames > 0 }

// Tick reports whether an ack is due, including for frames that have waited for two ticks. Call it every third of
// AckDelayMax.
func (r *Receipt) Tick() bool {
	if r.frames > 0 {
		r.ticks++
	}
	return r.Due() || r.ticks > 2
}

// Ack returns the ack to send now.
func (r *Receipt) Ack() Ack {
	r.frames, r.bytes, r.ticks, r.credit, r.now = 0, 0, 0, 0, false
	r.said = r.inbox.window()
	return r.inbox.Ack()
}
