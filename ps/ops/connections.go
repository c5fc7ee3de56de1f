package ops

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// connections is a listener that bounds the connections that are open, and never turns a new one away: one more ends
// the one that costs its client least, by its phase, and of equals the one that has been in it longest. So a probe is
// answered however many clients send requests, forms or handshakes slowly, or do not take their answers.
type connections struct {
	net.Listener
	max   int
	ended atomic.Uint64 // connections, to make room

	mu   sync.Mutex // guards the rest; nothing is waited for under it
	open map[*connection]struct{}
}

// phase is what a connection is used for, in the order in which connections make room.
type phase uint8

const (
	waiting   phase = iota // for a request: idle, in the handshake of TLS, or amid headers
	answering              // a request without the token: its form is read, or its answer is taken
	admitted               // a request with the token
	streaming              // updates; streamsMax keeps these far below the bound of connections
)

// connection is one of them.
type connection struct {
	net.Conn
	of    *connections
	phase phase
	since time.Time // that it has been in its phase
}

func bounded(l net.Listener, most int) *connections {
	return &connections{Listener: l, max: most, open: map[*connection]struct{}{}}
}

// Accept waits for a connection, and makes room for it.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	in := &connection{Conn: conn, of: c, since: time.Now()}
	if last := c.admit(in); last != nil {
		c.ended.Add(1)
		last.Conn.Close()
	}
	return in, nil
}

// admit returns the connection that has to end for a new one; nil where there is room.
func (c *connections) admit(in *connection) (last *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= c.max {
		for each := range c.open {
			if last == nil || cmp.Or(cmp.Compare(each.phase, last.phase), each.since.Compare(last.since)) < 0 {
				last = each
			}
		}
		delete(c.open, last)
	}
	c.open[in] = struct{}{}
	return last
}

// changed is http.Server.ConnState. A connection becomes active when the headers of a request are there, not before.
func changed(conn net.Conn, state http.ConnState) {
	in := plainOf(conn)
	switch {
	case in == nil:
	case state == http.StateActive:
		in.enter(answering)
	default:
		in.enter(waiting)
	}
}

// enter begins a phase.
func (in *connection) enter(p phase) {
	in.of.mu.Lock()
	defer in.of.mu.Unlock()
	in.phase, in.since = p, time.Now()
}

// Close ends the connection and gives its place back.
func (in *connection) Close() error {
	in.of.mu.Lock()
	delete(in.of.open, in)
	in.of.mu.Unlock()
	return in.Conn.Close()
}

func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// plainOf is the connection under TLS, or itself.
func plainOf(conn net.Conn) *connection {
	if over, ok := conn.(*tls.Conn); ok {
		conn = over.NetConn()
	}
	in, _ := conn.(*connection)
	return in
}

// sendBufferBytes is what the kernel may keep of a stream for a client that does not read: a few updates. Linux doubles
// it. It is memory of the machine, not of the process.
const sendBufferBytes = 32 << 10

// connectionOf is that of a request; nil where it came by none of ours.
func connectionOf(r *http.Request) *connection {
	in, _ := r.Context().Value(connKey{}).(*connection)
	return in
}

// narrow bounds what the kernel buffers of a stream.
func (in *connection) narrow() {
	if tcp, ok := in.Conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBufferBytes) // a wish; a kernel that refuses it buffers more
	}
}
