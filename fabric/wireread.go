package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

const (
	// lineBytesMax bounds a line of the protocol: an INFO that lists a large cluster is the longest.
	lineBytesMax = 32 << 10
	// peekBytes is read at a time where a line is expected: enough for several small messages, and little enough that
	// the first bytes of a large one, which are then copied, do not count.
	peekBytes = 4 << 10
	// smallBytes is the size up to which messages are read together with the line before them, where the last one was not
	// larger: a copy of as much costs less than another read, which between goroutines of one process is two switches.
	smallBytes = 16 << 10
	// beyondBytesMax is read beyond the end of a large message, so that the next line needs no read of its own.
	beyondBytesMax = 512
	// emptyReadsMax bounds reads that bring nothing.
	emptyReadsMax = 100
)

// errProtocol: the server sent what is not NATS. The connection is unusable.
var errProtocol = errors.New("not the NATS protocol")

// wireOp is what a server says.
type wireOp int

const (
	opNone wireOp = iota // +OK, or an empty line
	opMsg
	opPing
	opPong
	opInfo
	opErr
)

// wireEvent is one word of the server's. Its bytes are those of the reader, until the next is read.
type wireEvent struct {
	op      wireOp
	text    []byte // of opInfo, opErr
	subject []byte // of opMsg
	sid     uint64
	data    []byte // the caller's, with the lease
	lease   *Lease
}

// wireReader reads what a NATS server sends to a client. Payloads are read from the connection right into leased,
// aligned buffers, but for the first bytes that came with the line before them. It allocates nothing but leases, and
// none for a length that was not checked. It belongs to one goroutine; after an error it is of no more use.
type wireReader struct {
	source     io.Reader
	pool       *Buffers
	payloadMax int
	ahead      []byte // lines are read into the first lineBytesMax
	lo, hi     int    // ahead[lo:hi] was read and not looked at
	peek       int    // how much to read where a line is expected
}

func newWireReader(source io.Reader, pool *Buffers) *wireReader {
	return &wireReader{source: source, pool: pool, payloadMax: payloadBytesMaxMax, peek: peekBytes,
		ahead: make([]byte, lineBytesMax+beyondBytesMax)}
}

// next reads one word.
func (r *wireReader) next(e *wireEvent) error {
	line, err := r.line()
	if err != nil {
		return err
	}
	*e = wireEvent{}
	verb, rest, _ := bytes.Cut(line, []byte(" "))
	switch {
	case isVerb(verb, "MSG"):
		return r.message(rest, e)
	case isVerb(verb, "PING"):
		e.op = opPing
	case isVerb(verb, "PONG"):
		e.op = opPong
	case isVerb(verb, "INFO"):
		e.op, e.text = opInfo, rest
	case isVerb(verb, "-ERR"):
		e.op, e.text = opErr, bytes.Trim(rest, " '")
	case isVerb(verb, "+OK"), len(line) == 0:
	default:
		return fmt.Errorf("%w: a line that begins with %q", errProtocol, clip(string(verb)))
	}
	return nil
}

// isVerb compares without regard to case, as NATS does.
func isVerb(got []byte, want string) bool {
	if len(got) != len(want) {
		return false
	}
	for i := range got {
		c := got[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		if c != want[i] {
			return false
		}
	}
	return true
}

// line gives the next line without its end.
func (r *wireReader) line() ([]byte, error) {
	if r.lo > lineBytesMax/2 { // so that there is always room behind a line
		r.compact()
	}
	for seen := r.lo; ; {
		if i := bytes.IndexByte(r.ahead[seen:r.hi], '\n'); i >= 0 {
			line := r.ahead[r.lo : seen+i]
			r.lo = seen + i + 1
			return bytes.TrimSuffix(line, []byte("\r")), nil
		}
		r.compact()
		if r.hi >= lineBytesMax {
			return nil, fmt.Errorf("%w: a line of more than %d bytes", errProtocol, lineBytesMax)
		}
		seen = r.hi
		n, err := r.read(r.ahead[r.hi:min(r.hi+r.peek, lineBytesMax)])
		if err != nil {
			return nil, err
		}
		r.hi += n
	}
}

func (r *wireReader) compact() {
	r.hi = copy(r.ahead, r.ahead[r.lo:r.hi])
	r.lo = 0
}

// read reads at least one byte.
func (r *wireReader) read(into []byte) (int, error) {
	for range emptyReadsMax {
		n, err := r.source.Read(into)
		if n > 0 {
			return n, nil // an error comes again
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, io.ErrNoProgress
}

// message reads "subject sid [reply] bytes" and the payload behind it.
func (r *wireReader) message(line []byte, e *wireEvent) error {
	var fields [4][]byte
	n := 0
	for len(line) > 0 {
		field, rest, _ := bytes.Cut(line, []byte(" "))
		line = rest
		if len(field) == 0 {
			continue
		}
		if n == len(fields) {
			return fmt.Errorf("%w: a message with more than 4 fields", errProtocol)
		}
		fields[n] = field
		n++
	}
	if n < 3 {
		return fmt.Errorf("%w: a message with %d fields", errProtocol, n)
	}
	sid, okSid := decimalBytes(fields[1], 1<<63)
	size, okSize := decimalBytes(fields[n-1], uint64(r.payloadMax))
	if !okSid || !okSize {
		return fmt.Errorf("%w: a message to subscription %q of %q bytes: want at most %d", errProtocol,
			clip(string(fields[1])), clip(string(fields[n-1])), r.payloadMax)
	}
	e.op, e.sid, e.subject = opMsg, sid, fields[0]
	return r.payload(int(size), e)
}

// payload reads a message's bytes and its end. The line before it stays where it is.
func (r *wireReader) payload(size int, e *wireEvent) error {
	if r.peek = peekBytes; size <= smallBytes {
		r.peek += size
	}
	lease := r.pool.get(size + 2)
	room := lease.room[:min(len(lease.room), size+2+beyondBytesMax)]
	n := copy(room[:size+2], r.ahead[r.lo:r.hi])
	r.lo += n
	for n < size+2 {
		got, err := r.read(room[n:])
		if err != nil {
			lease.Release()
			return err
		}
		n += got
	}
	if room[size] != '\r' || room[size+1] != '\n' {
		lease.Release()
		return fmt.Errorf("%w: a message that does not end after %d bytes", errProtocol, size)
	}
	if n > size+2 { // all that was ahead is used up; the line with the subject lies before it
		r.lo = r.hi
		r.hi += copy(r.ahead[r.hi:], room[size+2:n])
	}
	e.data, e.lease = room[:size:size], lease
	return nil
}

// decimalBytes is decimal for bytes that are not kept. Leading zeros are taken.
func decimalBytes(text []byte, limit uint64) (uint64, bool) {
	if len(text) == 0 {
		return 0, false
	}
	var n uint64
	for _, c := range text {
		d := uint64(c - '0')
		if d > 9 || n > (limit-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}
