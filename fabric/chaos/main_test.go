package chaos

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"gradbus/fabric/fabrictest"
)

func TestMain(m *testing.M) { fabrictest.Main(m) }

const patience = 3 * time.Minute // of every wait for what must come

// ends is a proxy with a raw socket on either side of it.
type ends struct {
	t              *testing.T
	proxy          *Proxy
	listener       net.Listener
	member, server net.Conn
}

func newEnds(t *testing.T, seed uint64, rules ...Rule) *ends {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	proxy, err := Start(Config{Server: "nats://" + listener.Addr().String(), Seed: seed, Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	e := &ends{t: t, proxy: proxy, listener: listener}
	e.connect()
	return e
}

// connect opens one more connection through the proxy.
func (e *ends) connect() {
	e.t.Helper()
	member, err := net.Dial("tcp", e.proxy.listener.Addr().String())
	if err != nil {
		e.t.Fatal(err)
	}
	server, err := e.listener.Accept()
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { member.Close(); server.Close() })
	for _, c := range []net.Conn{member, server} {
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			e.t.Fatal(err)
		}
	}
	e.member, e.server = member, server
}

// pass writes into one end and reads as many bytes from the other.
func (e *ends) pass(d Direction, in string, want int) []byte {
	e.t.Helper()
	from, to := e.member, e.server
	if d == FromServer {
		from, to = e.server, e.member
	}
	if in != "" { // a write would wait for another one that is under way
		if _, err := io.WriteString(from, in); err != nil {
			e.t.Fatal(err)
		}
	}
	got := make([]byte, want)
	if n, err := io.ReadFull(to, got); err != nil {
		e.t.Fatalf("%d of %d bytes, %q: %v", n, want, got[:n], err)
	}
	return got
}

// frames reads n frames off the server's end.
func (e *ends) frames(n int) [][]byte {
	e.t.Helper()
	in := newReader(bufio.NewReader(e.server))
	var all [][]byte
	for range n {
		f, err := in.next()
		if err != nil {
			e.t.Fatalf("after %d frames of %d: %v", len(all), n, err)
		}
		all = append(all, bytes.Clone(f.raw))
	}
	return all
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(time.Millisecond) // the pause between two looks
	}
}

func dialRaw(at string) (net.Conn, error) {
	c, err := net.Dial("tcp", at)
	if err == nil {
		err = c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}
