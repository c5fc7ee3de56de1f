package fabric

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// lineBytesMax bounds a line of the protocol; an INFO that lists a large cluster is the longest.
	lineBytesMax = 32 << 10
	// peekBytes is the size of a read where a line is expected: enough for several small messages, and little enough
	// that copying the first bytes of a large one costs little.
	peekBytes = 4 << 10
	// smallBytes is the size up to which messages are read together with the line before them, if the last one was not
	// larger: copying that much costs less than another read, which is two context switches within a process.
	smallBytes = 16 << 10
	// beyondBytesMax is read beyond the end of a large message, so that the next line needs no read of its own.
	beyondBytesMax = 512
	// emptyReadsMax bounds consecutive reads without data.
	emptyReadsMax = 100
)

// errProtocol reports that the server does not speak NATS. The connection is unusable.
var errProtocol = errors.New("not the NATS protocol")

// wireOp is an operation that a server sends.
type wireOp int

const (
	opNone wireOp = iota // +OK, or an empty line
	opMsg
	opPing
	opPong
	opInfo
	opErr
)

// wireEvent is one operation of the server. Its bytes belong to the reader, until the next one is read.
type wireEvent struct {
	op      wireOp
	text    []byte // of opInfo, opErr
	subject []byte // of opMsg
	sid     uint64
	data    []byte // the caller's, with the lease
	lease   *Lease
}

// wireReader reads the operations of a NATS server. Payloads are read from the connection right into leased, aligned
// buffers, except the first bytes that came with the line before them. It allocates nothing but leases, and none for an
// unchecked length. It belongs to one goroutine, and is unusable after an error.
type wireReader struct {
	source     io.Reader
	pool       *Buffers
	payloadMax int
	ahead      []byte // lines are read into the first lineBytesMax
	lo, hi     int    // ahead[lo:hi] was read and not parsed
	peek       int    // size of a read where a line is expected
}

func newWireReader(source io.Reader, pool *Buffers) *wireReader {
	return &wireReader{source: source, pool: pool, payloadMax: payloadBytesMaxMax, peek: peekBytes,
		ahead: make([]byte, lineBytesMax+beyondBytesMax)}
}

// next reads one operation.
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

// line returns the next line without its end.
func (r *wireReader) line() ([]byte, error) {
	if r.lo > lineBytesMax/2 { // so that there is always room after a line
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
			return n, nil // the error is returned again
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, io.ErrNoProgress
}

// message reads "subject sid [reply] bytes" and the payload after it.
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

// payload reads a message's bytes and its end. The line before it stays in place.
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
	if n > size+2 { // everything read ahead is used; the line with the subject is before it
		r.lo = r.hi
		r.hi += copy(r.ahead[r.hi:], room[size+2:n])
	}
	e.data, e.lease = room[:size:size], lease
	return nil
}

// decimalBytes is decimal for bytes that are not kept. Leading zeros are accepted.
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

const (
	// A NATS server reads 64 KiB at a time. It passes on a message that one read contains completely; it first
	// assembles any other in newly allocated memory. So messages slightly smaller than 64 or 32 KiB are padded with
	// spaces, which the protocol allows between words: then one or two messages fill a read, and the next one begins
	// with the next read. That saves a copy, the clearing and the collection of each byte (docs/memory.md, Copies).
	readBytes   = 64 << 10
	padBytesMax = 1 << 10
	// fillEvery is the least number of bytes between two fillings: if messages of other sizes have misaligned the
	// stream, a message without a subscriber realigns it, at a cost of half of readBytes on average.
	fillEvery = 1 << 20
	// joinBytesMax is the size up to which a message without headroom is copied together for one write, if the
	// connection has no vectors: each write is a read for a reader in process.
	joinBytesMax = readBytes
	// smallBytesMax is the payload up to which a copy is cheaper than two more vectors.
	smallBytesMax = 2 << 10
)

var crlf = []byte("\r\n")

const padding = "                                                                "

// wireWriter writes the operations of a client. Safe for concurrent use.
type wireWriter struct {
	// writes counts the beginnings and ends of writes: odd while one is in progress. If it stays the same odd number
	// for too long, the socket is full.
	writes atomic.Uint64

	mu      sync.Mutex // held while writing
	conn    net.Conn   // nil: not connected
	vectors bool       // conn takes vectors: one system call, no copy
	text    []byte     // scratch: "subject bytes CRLF"
	join    []byte     // scratch of joinBytesMax without vectors, else of the head and of small messages
	parts   [3][]byte
	buffers net.Buffers
	phase   int // bytes written since the last message that filled a read
	since   int // bytes written since the last filling
	// payloadMax is the largest payload that the server accepts.
	payloadMax int
}

// nothing is the contents of fillings.
var nothing [readBytes]byte

// use sets the connection, whose server accepts payloads up to payloadMax; nil: none.
func (w *wireWriter) use(conn net.Conn, payloadMax int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.payloadMax = payloadMax
	w.conn, w.phase, w.since = conn, 0, 0
	_, w.vectors = conn.(*net.TCPConn)
	if conn != nil && !w.vectors && cap(w.join) < joinBytesMax {
		w.join = make([]byte, 0, joinBytesMax)
	}
}

// raw writes operations other than messages. It returns errReconnecting if there is no connection.
func (w *wireWriter) raw(text string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rawLocked(text)
}

func (w *wireWriter) rawLocked(text string) error {
	if w.conn == nil {
		return errReconnecting
	}
	w.writes.Add(1)
	_, err := w.conn.Write([]byte(text))
	w.writes.Add(1)
	w.step(len(text))
	if err != nil {
		w.abandon()
	}
	return err
}

// abandon cuts a connection that failed within an operation. Its reader handles the rest.
func (w *wireWriter) abandon() {
	w.conn.Close()
	w.conn = nil
}

// message writes one message and returns when the bytes and their room may be reused.
func (w *wireWriter) message(s *Subject, p Payload) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == nil {
		return errReconnecting
	}
	err := w.compose(s, &p)
	if err != nil {
		w.abandon()
	}
	return err
}

// compose writes one message, after a filling if that is useful and allowed.
func (w *wireWriter) compose(s *Subject, p *Payload) error {
	w.phrase(s, p.Len())
	bare := len("PUB ") + len(w.text) + p.Len() + len(crlf)
	pad := padBytes(bare)
	if w.vectors && w.phase > 0 && w.since >= fillEvery && (bare+pad)%(readBytes/2) == 0 {
		if err := w.fill(s); err != nil {
			return err
		}
		w.phrase(s, p.Len())
	}
	return w.put(pad, p)
}

// phrase writes "subject bytes CRLF" to text.
func (w *wireWriter) phrase(s *Subject, bytes int) {
	w.text = s.append(w.text[:0])
	w.text = append(w.text, ' ')
	w.text = strconv.AppendInt(w.text, int64(bytes), 10)
	w.text = append(w.text, crlf...)
}

// put writes a message whose phrase is in text, with pad extra spaces.
func (w *wireWriter) put(pad int, p *Payload) error {
	head := append(w.join[:0], "PUB "...)
	for left := pad; left > 0; {
		n := min(left, len(padding))
		head = append(head, padding[:n]...)
		left -= n
	}
	head = append(head, w.text...)
	w.step(len(head) + p.Len() + len(crlf))
	w.join = head[:0] // with its present room
	w.writes.Add(1)
	defer w.writes.Add(1)
	return w.write(head, p)
}

// step counts written bytes.
func (w *wireWriter) step(bytes int) {
	w.phase = (w.phase + bytes) % readBytes
	w.since += bytes
}

// fill realigns the stream with the server's reads by a message of the same sender without a subscriber.
func (w *wireWriter) fill(s *Subject) error {
	to := Subject{Job: s.Job, From: s.From, Kind: KindFill, To: "nobody"}
	w.phrase(&to, readBytes) // five digits; spaces replace missing ones
	bare := len("PUB ") + len(w.text) + len(crlf)
	size := readBytes - w.phase - bare
	if size < 0 {
		size += readBytes
	}
	w.since = 0
	if size > w.payloadMax {
		return nil
	}
	w.phrase(&to, size)
	filling := WithoutRoom(nothing[:size])
	return w.put(bare-len("PUB ")-len(w.text)-len(crlf), &filling)
}

func (w *wireWriter) write(head []byte, p *Payload) error {
	data := p.Data()
	if whole := p.around(head); whole != nil {
		_, err := w.conn.Write(whole)
		return err
	}
	switch {
	case w.vectors && len(data) > smallBytesMax:
		w.parts = [3][]byte{head, data, crlf}
		w.buffers = w.parts[:]
		_, err := w.buffers.WriteTo(w.conn)
		w.parts[1] = nil
		return err
	case len(head)+len(data)+len(crlf) <= joinBytesMax:
		whole := append(append(head, data...), crlf...)
		w.join = whole[:0]
		_, err := w.conn.Write(whole)
		return err
	}
	// One full read first, then the rest from where it lies.
	first := joinBytesMax - len(head)
	first = min(first, len(data))
	if _, err := w.conn.Write(append(head, data[:first]...)); err != nil {
		return err
	}
	if _, err := w.conn.Write(data[first:]); err != nil {
		return err
	}
	_, err := w.conn.Write(crlf)
	return err
}

// padBytes returns the padding of a message of n bytes in all.
func padBytes(n int) int {
	for _, full := range [...]int{readBytes, readBytes / 2} {
		if n <= full && full-n <= padBytesMax {
			return full - n
		}
	}
	return 0
}

// subscribeText returns the text that subscribes to a pattern.
func subscribeText(pattern string, sid uint64) string {
	return "SUB " + pattern + " " + strconv.FormatUint(sid, 10) + "\r\n"
}

// oneLine makes a server's text fit for a log or an error.
func oneLine(text []byte) string { return clip(strings.ToValidUTF8(string(text), "?")) }
