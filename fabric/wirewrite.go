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
	readBytes  = 64 << 10
	padMaxByte = 1 << 10
	// joinBytesMax is the size up to which a message is copied together for one write, where the connection has no
	// vectors: to a reader in process each write is a read.
	joinBytesMax = readBytes
)

var crlf = []byte("\r\n")

const padding = "                                                                "

// wireWriter writes what a client sends. Safe for concurrent use.
type wireWriter struct {
	// writes counts the beginnings and ends of writes: odd while one is in progress. Who sees the same odd number for too
	// long knows that the socket is full.
	writes atomic.Uint64

	mu      sync.Mutex // held while writing
	conn    net.Conn   // nil while there is none
	vectors bool       // conn takes vectors: one system call, no copy
	text    []byte     // scratch: "subject bytes CRLF"
	join    []byte     // scratch of joinBytesMax where there are no vectors, else of what head and small messages need
	parts   [3][]byte
	buffers net.Buffers
}

// use makes a connection the one that is written to; nil is none.
func (w *wireWriter) use(conn net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn = conn
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
	if err != nil {
		w.abandon()
	}
	return err
}

// tryRaw is raw, unless a write is in progress: false.
func (w *wireWriter) tryRaw(text string) bool {
	if !w.mu.TryLock() {
		return false
	}
	defer w.mu.Unlock()
	_ = w.rawLocked(text) // the reader finds the connection cut
	return true
}

// abandon cuts a connection that failed in the middle of a word. Its reader does the rest.
func (w *wireWriter) abandon() {
	w.conn.Close()
	w.conn = nil
}

// message writes one message and returns when data may be reused.
func (w *wireWriter) message(s *Subject, data []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn == nil {
		return errReconnecting
	}
	w.text = s.Append(w.text[:0])
	w.text = append(w.text, ' ')
	w.text = strconv.AppendInt(w.text, int64(len(data)), 10)
	w.text = append(w.text, crlf...)
	head := append(w.join[:0], "PUB "...)
	for pad := padBytes(len("PUB ") + len(w.text) + len(data) + len(crlf)); pad > 0; {
		n := min(pad, len(padding))
		head = append(head, padding[:n]...)
		pad -= n
	}
	head = append(head, w.text...)
	w.writes.Add(1)
	err := w.write(head, data)
	w.writes.Add(1)
	w.join = head[:0]
	if err != nil {
		w.abandon()
	}
	return err
}

func (w *wireWriter) write(head, data []byte) error {
	switch {
	case w.vectors:
		w.parts = [3][]byte{head, data, crlf}
		w.buffers = w.parts[:]
		_, err := w.buffers.WriteTo(w.conn)
		w.parts[1] = nil
		return err
	case len(head)+len(data)+len(crlf) <= joinBytesMax:
		_, err := w.conn.Write(append(append(head, data...), crlf...))
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
		if n <= full && full-n <= padMaxByte {
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
