package fabric

import (
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// A NATS server reads 64 KiB at a time. A message that lies whole in one read is passed on from there; any other is
	// first put together in memory that is allocated for it. So messages a little smaller than 64 or 32 KiB are filled
	// up with spaces, which the protocol allows between words: then one, or two, fill a read, and the next begins with
	// the next. It saves a copy, the clearing and the collection of each byte (docs/memory.md, Copies).
	readBytes   = 64 << 10
	padBytesMax = 1 << 10
	// fillEvery is how many bytes at least go between two fillings: if messages of other sizes have misaligned the stream,
	// one without a subscriber realigns it, at a cost of half of readBytes on average.
	fillEvery = 1 << 20
	// joinBytesMax is the size up to which a message without headroom is copied together for one write, where the
	// connection has no vectors: to a reader in process each write is a read.
	joinBytesMax = readBytes
	// smallBytesMax is the payload up to which a copy is cheaper than two vectors more.
	smallBytesMax = 2 << 10
)

var crlf = []byte("\r\n")

const padding = "                                                                "

// wireWriter writes what a client sends. Safe for concurrent use.
type wireWriter struct {
	// writes counts the beginnings and ends of writes: odd while one is in progress. Who sees the same odd number for
	// too long knows that the socket is full.
	writes atomic.Uint64

	mu      sync.Mutex // held while writing
	conn    net.Conn   // nil while there is none
	vectors bool       // conn takes vectors: one system call, no copy
	text    []byte     // scratch: "subject bytes CRLF"
	join    []byte     // scratch of joinBytesMax where there are no vectors, else of what head and small messages need
	parts   [3][]byte
	buffers net.Buffers
	phase   int // bytes written since the last that filled a read
	since   int // bytes written since the last filling
	// payloadMax is what the server takes.
	payloadMax int
}

// nothing is what fillings are made of.
var nothing [readBytes]byte

// use makes a connection, whose server takes so much in a message, the one that is written to; nil is none.
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

// raw writes words other than messages. ErrLost-like: errReconnecting where there is no connection.
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

// abandon cuts a connection that failed in the middle of a word. Its reader does the rest.
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

// compose writes one message, and before it a filling where that is of use and allowed.
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

// phrase makes "subject bytes CRLF" in text.
func (w *wireWriter) phrase(s *Subject, bytes int) {
	w.text = s.append(w.text[:0])
	w.text = append(w.text, ' ')
	w.text = strconv.AppendInt(w.text, int64(bytes), 10)
	w.text = append(w.text, crlf...)
}

// put writes a message whose phrase is in text, with so many spaces more than needed.
func (w *wireWriter) put(pad int, p *Payload) error {
	head := append(w.join[:0], "PUB "...)
	for left := pad; left > 0; {
		n := min(left, len(padding))
		head = append(head, padding[:n]...)
		left -= n
	}
	head = append(head, w.text...)
	w.step(len(head) + p.Len() + len(crlf))
	w.join = head[:0] // with the room that it has now
	w.writes.Add(1)
	defer w.writes.Add(1)
	return w.write(head, p)
}

// step counts what is written.
func (w *wireWriter) step(bytes int) {
	w.phase = (w.phase + bytes) % readBytes
	w.since += bytes
}

// fill realigns the stream with the server's reads by a message of the same sender without a subscriber.
func (w *wireWriter) fill(s *Subject) error {
	to := Subject{Job: s.Job, From: s.From, Kind: KindFill, To: "nobody"}
	w.phrase(&to, readBytes) // five digits; of fewer, spaces take the place
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
	// One full read first, then the rest as it lies.
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

// padBytes is by how much a message of n bytes in all is filled up.
func padBytes(n int) int {
	for _, full := range [...]int{readBytes, readBytes / 2} {
		if n <= full && full-n <= padBytesMax {
			return full - n
		}
	}
	return 0
}

// subscribeText asks for a pattern.
func subscribeText(pattern string, sid uint64) string {
	return "SUB " + pattern + " " + strconv.FormatUint(sid, 10) + "\r\n"
}

// oneLine makes a server's text fit for a log or an error.
func oneLine(text []byte) string { return clip(strings.ToValidUTF8(string(text), "?")) }
