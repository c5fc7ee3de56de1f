package fabric

// Payload is bytes to be sent, with headroom before them and tailroom behind them: a connection writes what its
// protocol puts around them there, so that one write takes all of it from where it lies. It may write there as long
// as it sends, so a Payload goes out on one connection at a time. Where there is too little room it is sent as by
// Send.
type Payload struct {
	memory []byte
	lo, hi int
}

// HeadroomBytes and TailroomBytes are room enough for the words of any message, and for those that fill one with
// 65024 bytes of values up to a read of the server's.
const (
	HeadroomBytes = 512
	TailroomBytes = 2
)

// NewPayload is memory[lo:hi] with the rest of memory as its room.
func NewPayload(memory []byte, lo, hi int) Payload { return Payload{memory, lo, hi} }

// WithoutRoom returns a payload of bytes whose surrounding memory must not be written.
func WithoutRoom(data []byte) Payload { return Payload{data, 0, len(data)} }

// Data is what is sent.
func (p *Payload) Data() []byte { return p.memory[p.lo:p.hi:p.hi] }

// Len is how many bytes are sent.
func (p *Payload) Len() int { return p.hi - p.lo }

// around puts head before the bytes and an end of line behind them, and gives all of it; nil where there is no room.
func (p *Payload) around(head []byte) []byte {
	lo, hi := p.lo-len(head), p.hi+len(crlf)
	if lo < 0 || hi > len(p.memory) {
		return nil
	}
	copy(p.memory[lo:], head)
	copy(p.memory[p.hi:], crlf)
	return p.memory[lo:hi]
}
