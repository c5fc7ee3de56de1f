package fabric

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Message is one delivery. Data belongs to the receiver, which may write to it, until Release; a receiver that never
// calls Release keeps Data. Over a data connection, Data begins at a multiple of 64 in memory.
type Message struct {
	Data []byte

	subject Subject
	text    string // set if it is not a valid subject
	parsed  bool
	lease   *Lease // nil: Data has no other user

	borrowedFrom *Buffers // set if Data belongs to the publisher during the call; Keep takes a buffer from it
}

// Keep makes Data the receiver's own. That is always so except on a connection with Config.Direct, where Data ends with
// the call of the handler unless Keep has copied it.
func (m *Message) Keep() {
	if m.borrowedFrom == nil {
		return
	}
	m.lease = m.borrowedFrom.get(len(m.Data))
	m.Data, m.borrowedFrom = m.lease.room[:copy(m.lease.room, m.Data)], nil
}

// NewMessage returns a message with a subject's text, as if it had arrived.
func NewMessage(subject string, data []byte) Message {
	m := Message{Data: data}
	var err error
	if m.subject, err = ParseSubject(subject); err != nil {
		m.text = subject
		return m
	}
	m.parsed = true
	return m
}

// Parse returns the subject, without allocating if it is valid.
func (m *Message) Parse() (Subject, error) {
	if m.parsed {
		return m.subject, nil
	}
	return ParseSubject(m.text)
}

// Module returns the name of the module that the message is to or from; false if there is none.
func (m *Message) Module() (name string, is bool) {
	s, err := m.Parse()
	return s.Name, err == nil && s.Kind == KindModule
}

// Text returns the subject's text, with one allocation.
func (m *Message) Text() string {
	if m.parsed {
		return m.subject.String()
	}
	return m.text
}

// Release releases the lease.
func (m *Message) Release() { m.lease.Release() }

// Lease returns the right to Data apart from the message, to be passed on without an allocation. It may be nil, whose
// Release does nothing.
func (m *Message) Lease() *Lease { return m.lease }

// tokenTable has one string for each token that a line has seen, so that subjects are read without allocating. It is
// bounded, since an unauthenticated client may invent tokens: a full table is cleared.
type tokenTable map[string]string

const tokenTableMax = 4096

func (t tokenTable) keep(token string) string {
	if kept, ok := t[token]; ok {
		return kept
	}
	if len(t) >= tokenTableMax {
		clear(t)
	}
	kept := string([]byte(token))
	t[kept] = kept
	return kept
}

// keepSubject replaces a subject's tokens by strings that outlive the text they were read from.
func (t tokenTable) keepSubject(s *Subject) {
	s.Job, s.From, s.Kind, s.To = t.keep(s.Job), t.keep(s.From), t.keep(s.Kind), t.keep(s.To)
	if s.Name != "" {
		s.Name = t.keep(s.Name)
	}
}

// Payload is bytes to send, with unused room before and after them, where a connection writes the framing of its
// protocol, so that one write sends everything from where it lies. It may write there while it sends, so a Payload is
// sent on one connection at a time. Without enough room it is sent as by Send.
type Payload struct {
	memory []byte
	lo, hi int
}

// HeadroomBytes and TailroomBytes are enough for the framing of any message, including the padding of a message with
// 65024 bytes of values to a full read of the server.
const (
	HeadroomBytes = 512
	TailroomBytes = 2
)

// NewPayload returns memory[lo:hi] with the rest of memory as its room.
func NewPayload(memory []byte, lo, hi int) Payload { return Payload{memory, lo, hi} }

// WithoutRoom returns a payload of bytes whose surrounding memory must not be written.
func WithoutRoom(data []byte) Payload { return Payload{data, 0, len(data)} }

// Data returns the bytes to send.
func (p *Payload) Data() []byte { return p.memory[p.lo:p.hi:p.hi] }

// Len returns the number of bytes to send.
func (p *Payload) Len() int { return p.hi - p.lo }

// around writes head before the bytes and an end of line after them, and returns everything; nil if there is no room.
func (p *Payload) around(head []byte) []byte {
	lo, hi := p.lo-len(head), p.hi+len(crlf)
	if lo < 0 || hi > len(p.memory) {
		return nil
	}
	copy(p.memory[lo:], head)
	copy(p.memory[p.hi:], crlf)
	return p.memory[lo:hi]
}

const (
	// leaseAlign is the alignment of a message's first byte: that of a frame's values, so that what begins at a multiple
	// of 64 within a frame does so in memory.
	leaseAlign = 64
	// Buffers come in sizes with sixteen steps to each doubling, from 1 KiB, so that none is more than 1/16 too large.
	leaseBytesMin   = 1 << 10
	leaseStepsShift = 4
	leaseSizes      = (payloadBytesMaxMaxShift + 1 - 10) << leaseStepsShift
	// payloadBytesMaxMax bounds what is allocated for one message, whatever the server claims.
	payloadBytesMaxMaxShift = 26
	payloadBytesMaxMax      = 1 << payloadBytesMaxMaxShift
	// FreeBytesMaxDefault bounds the buffers that wait to be used again: those of four windows of the default size, twice.
	FreeBytesMaxDefault = 32 << 20
)

// Lease is a receiver's right to the bytes of one message. A nil Lease is a right to bytes without another user.
type Lease struct {
	pool *Buffers // nil: not to be used again
	room []byte
	size int // index of its size
	free atomic.Bool
}

// Release gives the bytes back; from then on they may be overwritten at any time. It may be called from any goroutine,
// at most once: a second call panics where it can be told, which is until the buffer is used again. Who never calls it
// keeps the bytes, until nothing refers to them.
func (l *Lease) Release() {
	if l == nil {
		return
	}
	if l.free.Swap(true) {
		panic("fabric: a lease was released twice")
	}
	l.pool.put(l)
}

// Buffers are those that messages are read into. Released ones wait to be used again, at most bytesMax bytes of them.
// They are safe for concurrent use, and connections may share them (Config.Buffers).
type Buffers struct {
	bytesMax int

	mu    sync.Mutex // a leaf
	bytes int
	idle  [leaseSizes][]*Lease // by size; the last released is the first used, while it is in the cache
}

// NewBuffers makes buffers of which at most bytesMax bytes wait to be used again.
func NewBuffers(bytesMax int) *Buffers { return &Buffers{bytesMax: bytesMax} }

// leaseSize is the index and the bytes of the smallest buffer that holds n bytes, 0 < n <= 2 payloadBytesMaxMax.
func leaseSize(n int) (index, bytes int) {
	if n <= leaseBytesMin {
		return 0, leaseBytesMin
	}
	shift := bits.Len(uint(n-1)) - 1 // base < n <= 2 base
	base := 1 << shift
	step := base >> leaseStepsShift
	steps := (n - base + step - 1) / step
	return (shift-10)<<leaseStepsShift + steps, base + steps*step
}

// get leases a buffer of at least n bytes, whose first is aligned. What is in it is undefined.
func (p *Buffers) get(n int) *Lease {
	index, bytes := leaseSize(n)
	p.mu.Lock()
	if k := len(p.idle[index]); k > 0 {
		l := p.idle[index][k-1]
		p.idle[index][k-1] = nil
		p.idle[index] = p.idle[index][:k-1]
		p.bytes -= len(l.room)
		p.mu.Unlock()
		l.free.Store(false)
		return l
	}
	p.mu.Unlock()
	return &Lease{pool: p, room: alignedBytes(bytes), size: index}
}

// put takes a buffer back, and leaves those of other sizes to the collector where there are too many: what a job that
// has ended used is not kept for ever.
func (p *Buffers) put(l *Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := 0; i < leaseSizes && p.bytes+len(l.room) > p.bytesMax; i++ {
		if i != l.size && len(p.idle[i]) > 0 {
			p.bytes -= len(p.idle[i]) * len(p.idle[i][0].room)
			p.idle[i] = nil
		}
	}
	if p.bytes+len(l.room) > p.bytesMax {
		return
	}
	p.bytes += len(l.room)
	p.idle[l.size] = append(p.idle[l.size], l)
}

// idleBytes returns the size of free buffers.
func (p *Buffers) idleBytes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

// alignedBytes makes n zeroed bytes. The runtime aligns the sizes of leases by itself; who relies on it says so.
func alignedBytes(n int) []byte {
	b := make([]byte, n)
	if uintptr(unsafe.Pointer(unsafe.SliceData(b)))%leaseAlign == 0 {
		return b
	}
	b = make([]byte, n+leaseAlign)
	past := int(uintptr(unsafe.Pointer(unsafe.SliceData(b))) % leaseAlign)
	return b[leaseAlign-past:][:n:n]
}
