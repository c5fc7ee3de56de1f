package fabric

import (
	"math"
)

// Inbox is the receiving side of one window: which frames of one sender have arrived, and how many bytes more the
// sender may send. It is pure, has no lock and belongs to one goroutine. Its size is fixed (about 64 bytes).
//
// The zero value is ready and grants unlimited credit.
type Inbox struct {
	cumulative uint64
	bitmap     [SpanMax / 64]uint64 // invariant: bit 0 of word 0 is clear
	bytesMax   uint64               // budget; 0 is unlimited
	taken      uint64               // bytes of fresh frames so far
	freed      uint64               // of these, worked off; freed <= taken
}

// NewInbox makes an inbox that grants its sender bytesMax bytes beyond what was freed; 0 is unlimited. It must be at
// least the sender's first credit (OutboxConfig.BytesMax), and large enough for whatever the receiver cannot work off
// before later frames of the same sender have come: otherwise both wait for ever.
func NewInbox(bytesMax uint64) *Inbox { return &Inbox{bytesMax: bytesMax} }

// Accept marks a frame as received, without counting bytes. See AcceptBytes.
func (in *Inbox) Accept(sequence uint64) (fresh, ok bool) { return in.AcceptBytes(sequence, 0) }

// AcceptBytes marks a frame of the given size as received. Call it only for a frame that was verified: what is marked
// is never sent again.
//
//	fresh  ok
//	true   true   work it, and call Free with the same size when its bytes are no longer held
//	false  true   a repetition: drop it, and send an Ack
//	false  false  beyond the bitmap, beyond the credit, or number 0: drop it, and send an Ack; it will be sent again
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

// advance moves the bitmap on by one received frame.
func (in *Inbox) advance() {
	in.cumulative++
	last := len(in.bitmap) - 1
	for w := 0; w < last; w++ {
		in.bitmap[w] = in.bitmap[w]>>1 | in.bitmap[w+1]<<63
	}
	in.bitmap[last] >>= 1
}

// Free gives credit back for bytes that were accepted and are no longer held. The next Ack carries it.
func (in *Inbox) Free(bytes int) {
	in.freed += uint64(bytes)
	if in.freed > in.taken {
		panic("fabric: inbox freed more bytes than it took")
	}
}

// HeldBytes is what was accepted and not yet freed.
func (in *Inbox) HeldBytes() uint64 { return in.taken - in.freed }

// Ack is the present state, to be sent to the sender.
func (in *Inbox) Ack() Ack {
	return Ack{Cumulative: in.cumulative, Bitmap: in.bitmap, Window: in.window()}
}

func (in *Inbox) window() uint64 {
	if in.bytesMax == 0 {
		return math.MaxUint64
	}
	return in.freed + in.bytesMax
}

// Receipt is the receiving side of one window, and when its sender is to hear of it. An ack costs some 15 us of
// processor time over all processes, so it stands for a quarter of the window W, in bytes or in frames (SpanMax): of
// what came, or of what is held no more. What is missing, or came again, is said at once, and the rest after a delay
// that the Receipt's owner measures. It is pure, has no lock and belongs to one goroutine.
//
// A sender with frames of at most f bytes, at a rate r, whose acks arrive after a round trip t, never stalls while
//
//	r t <= W - W/4 - f        and, in frames a second, r t <= SpanMax - SpanMax/4
//
// When the byte that makes an ack due is sent, less than W/4 + f bytes before it are not acknowledged by the ack of
// before, and until the ack is there r t more have left: together at most W. With an ack for each frame the bound would
// be W - f. A sender waits for credit only where it is held: as soon as it has less than a quarter of a window left,
// whatever is given back makes an ack due.
//
// Where frames are larger than that a quarter is not enough: an ack is due as soon as the largest may lack room or
// credit. So an ack that is not due never keeps a sender waiting, however large its frames are.
type Receipt struct {
	inbox   *Inbox
	quarter int    // of the sender's window, in bytes
	came    int    // bytes that came which make an ack due: a quarter, or as many as leave no room for the largest frame
	reserve uint64 // credit below which any more of it makes an ack due: a quarter, or the largest frame
	frames  int    // that came since the last ack
	bytes   int    // of these
	credit  int    // bytes given back that no ack has carried
	said    uint64 // the credit that the sender knows of, from its first byte on
	now     bool   // an ack is due at once
	ticks   int    // since the first of frames came
}

// NewReceipt makes the receipt of a sender that may have bytesMax bytes held here, and window bytes on their way
// before it hears of more. Its frames have at most frameBytesMax: what it sends beyond that may wait for a Tick, and
// for one of its Outbox where it waits for credit.
func NewReceipt(bytesMax uint64, window, frameBytesMax int) *Receipt {
	quarter := max(1, window/4)
	return &Receipt{inbox: NewInbox(bytesMax), quarter: quarter, came: min(quarter, max(1, window-frameBytesMax+1)),
		reserve: uint64(max(quarter, frameBytesMax)), said: uint64(window)}
}

// Accept marks a frame as received, as Inbox.AcceptBytes does. narrow says that the sender's window is less than it was
// granted: then an ack is due at once.
func (r *Receipt) Accept(sequence uint64, bytes int, narrow bool) (fresh, ok bool) {
	r.frames, r.bytes = r.frames+1, r.bytes+bytes
	fresh, ok = r.inbox.AcceptBytes(sequence, bytes)
	r.now = r.now || !fresh || narrow || r.inbox.cumulative < sequence
	return fresh, ok
}

// Holds says how many bytes of the sender's frames are held. The others are its credit again.
func (r *Receipt) Holds(bytes int64) {
	if back := int(r.inbox.HeldBytes()) - int(bytes); back > 0 {
		r.inbox.Free(back)
		r.credit += back
	}
}

// Known says that the sender knows by other means that what it sent has come. Of what is missing it still hears.
func (r *Receipt) Known() {
	if !r.now {
		r.frames, r.bytes, r.ticks = 0, 0, 0
	}
}

// Due reports whether an ack is worth a message.
func (r *Receipt) Due() bool {
	short := r.inbox.taken+r.reserve > r.said // of credit
	return r.now || r.bytes >= r.came || r.frames >= SpanMax/4 || r.credit >= r.quarter || short && r.credit > 0
}

// Pending reports whether frames have come of which the sender has not heard.
func (r *Receipt) Pending() bool { return r.frames > 0 }

// Tick reports whether an ack is due, also of what has waited for two ticks. It is called every third of AckDelayMax.
func (r *Receipt) Tick() bool {
	if r.frames > 0 {
		r.ticks++
	}
	return r.Due() || r.ticks > 2
}

// Ack is what to tell the sender now.
func (r *Receipt) Ack() Ack {
	r.frames, r.bytes, r.ticks, r.credit, r.now = 0, 0, 0, 0, false
	r.said = r.inbox.window()
	return r.inbox.Ack()
}
