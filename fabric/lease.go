package fabric

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"
)

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

// idleBytes is what waits to be used again.
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
