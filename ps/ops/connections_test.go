package ops

import (
	"io"
	"net"
	"strings"
	"testing"
)

// Connections that ask nothing keep nobody out: the oldest of them makes room.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	const most = 8
	s := start(t, func(c *Config) { c.limits.connectionsMax = most })
	s.client.CloseIdleConnections()
	eventually(t, "no connection", func() bool { return s.Stats().Connections == 0 })
	var idle []net.Conn
	for range most {
		idle = append(idle, s.dial(t, "GET / HTTP/1.1\r\nHost: loc"))
		eventually(t, "it is taken", func() bool { return s.Stats().Connections == len(idle) })
	}
	for range 3 * most {
		c := s.dial(t, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		if got := ended(t, c); !strings.HasSuffix(got, "ok\n") {
			t.Fatalf("answer %q", got)
		}
	}
	ended(t, idle[0]) // the oldest
	if n := s.Stats(); n.ConnectionsRefused == 0 || n.Connections > most {
		t.Errorf("%+v", n)
	}
	// The youngest was never in the way.
	if _, err := io.WriteString(idle[most-1], "alhost\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := ended(t, idle[most-1]); !strings.Contains(got, " 200 OK") {
		t.Errorf("the youngest was answered %q", got)
	}
}

// Where all that are open are being answered, the next one finds no room, and those stay.
func TestBusyConnectionsStay(t *testing.T) {
	t.Parallel()
	const most = 3
	s := start(t, func(c *Config) { c.limits.connectionsMax = most })
	s.client.CloseIdleConnections()
	var busy []*events
	for range most {
		busy = append(busy, s.open(t))
	}
	eventually(t, "no more than streams", func() bool { return s.Stats().Connections == most })
	if got := ended(t, s.dial(t, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")); got != "" {
		t.Errorf("answer %q", got)
	}
	for _, e := range busy {
		e.next(t)
	}
	busy[0].close()
	eventually(t, "there is room", func() bool { return s.Stats().Connections < most })
	if _, body := s.get(t, "/healthz"); body != "ok\n" {
		t.Errorf("answer %q", body)
	}
}
