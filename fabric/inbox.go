package fabric

import "math"

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
