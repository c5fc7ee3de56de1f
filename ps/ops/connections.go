package ops

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// connections is a listener that bounds the connections that are open. When there are too many, one that waits for a
// request makes room for the next, the oldest first: so those who hold connections open and send nothing, or a byte now
// and then, keep nobody out.
type connections struct {
	net.Listener
	max     int
	refused atomic.Uint64 // connections ended to make room, or for want of it

	mu   sync.Mutex // guards the rest; nothing is waited for under it
	open map[*connection]struct{}
}

// connection is one of them.
type connection struct {
	net.Conn
	of    *connections
	since time.Time // that it has been as it is
	busy  bool      // a request is being answered
}

func bounded(l net.Listener, most int) *connections {
	return &connections{Listener: l, max: most, open: map[*connection]struct{}{}}
}

// Accept waits for a connection that there is room for.
func (c *connections) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if in := c.admit(conn); in != nil {
			return in, nil
		}
	}
}

// admit returns nil where conn was closed for want of room.
func (c *connections) admit(conn net.Conn) net.Conn {
	in := &connection{Conn: conn, of: c, since: time.Now()}
	var ended net.Conn
	c.mu.Lock()
	if len(c.open) >= c.max {
		if oldest := c.oldestWaiting(); oldest != nil {
			delete(c.open, oldest)
			ended = oldest.Conn
		} else {
			ended, in = conn, nil
		}
	}
	if in != nil {
		c.open[in] = struct{}{}
	}
	c.mu.Unlock()
	if ended != nil {
		c.refused.Add(1)
		ended.Close()
	}
	if in == nil {
		return nil // not in, which would not be a nil interface
	}
	return in
}

func (c *connections) oldestWaiting() *connection {
	var waiting []*connection
	for in := range c.open {
		if !in.busy {
			waiting = append(waiting, in)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	return slices.MinFunc(waiting,
		func(a, b *connection) int { return cmp.Compare(a.since.UnixNano(), b.since.UnixNano()) })
}

// changed is http.Server.ConnState. A connection becomes active when the headers of a request are there, not before.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	in := plainOf(conn)
	if in == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	in.busy, in.since = state == http.StateActive, time.Now()
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

// narrow bounds what the kernel buffers of a stream.
func (in *connection) narrow() {
	if tcp, ok := in.Conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBufferBytes) // a wish; a kernel that refuses it buffers more
	}
}
