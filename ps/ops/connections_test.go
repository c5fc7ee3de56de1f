package ops

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"gradbus/internal/certificate/certtest"
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
	if n := s.Stats(); n.ConnectionsEnded == 0 || n.Connections > most {
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

// patient configures a server that ends no connection for its time, and that answers X-Endless without an end.
func patient(t *testing.T, config *Config, most int, secure bool) {
	config.Token = someToken
	config.Metrics = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for part := make([]byte, 64<<10); r.Header.Get("X-Endless") != ""; {
			if _, err := w.Write(part); err != nil {
				return
			}
		}
	})
	config.limits = limits{connectionsMax: most, streamsMax: most, headerTime: time.Hour, formTime: time.Hour,
		writeTime: time.Hour, idleTime: time.Hour, streamTime: time.Hour}
	if secure {
		pair := certtest.NewAuthority(t).Issue(t, "127.0.0.1")
		config.CertFile, config.KeyFile = pair.CertFile, pair.KeyFile
	}
}

// Clients that hold connections open in whatever way keep neither probes nor the page from those that come after them.
func TestProbesAreAnsweredBesideSlowClients(t *testing.T) {
	t.Parallel()
	const most = 24
	get := func(path string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nX-Endless: 1\r\nAuthorization: Bearer " + someToken +
			"\r\n\r\n"
	}
	form := "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
	for what, c := range map[string]struct {
		send   string
		secure bool
		asked  uint64 // requests that have come when all clients are slow
	}{
		"nothing":                {"", false, 0},
		"half the headers":       {"GET / HTTP/1.1\r\nHost: loc", false, 0},
		"half a form":            {form + "Content-Length: 100\r\n\r\ntoken=", false, most},
		"chunks of a form":       {form + "Transfer-Encoding: chunked\r\n\r\n5\r\ntoken\r\n", false, most},
		"idle after an answer":   {get("/healthz"), false, most},
		"an answer not taken":    {get("/metrics"), false, most},
		"a stream not taken":     {get("/api/v1/stream"), false, most},
		"no handshake":           {"", true, 0},
		"half a handshake":       {"\x16\x03\x01", true, 0},
		"a form without the end": {form + "Content-Length: 8192\r\n\r\n" + strings.Repeat("x", 4000), false, most},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := start(t, func(config *Config) { patient(t, config, most, c.secure) })
			if c.secure {
				s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
			}
			for range most {
				client := s.dial(t, "")
				if err := client.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(client, c.send) // the other side may have ended it by now
			}
			eventually(t, "all connections are taken", func() bool {
				n := s.Stats()
				return n.Connections == most && n.Requests >= c.asked
			})
			s.client.Transport.(*http.Transport).DisableKeepAlives = true
			for range 2 {
				for _, path := range []string{"/healthz", "/readyz", "/metrics", "/"} {
					if answer, body := s.get(t, path, "Authorization: Bearer "+someToken); answer.StatusCode != http.StatusOK {
						t.Errorf("%s: status %d, %s", path, answer.StatusCode, body)
					}
				}
			}
			if n := s.Stats(); n.Connections > most || n.ConnectionsEnded == 0 {
				t.Errorf("%+v", n)
			}
		})
	}
}

// Room is made by the phase first and the time in it second; who has shown the token stays longer than who has not.
func TestOrderInWhichConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	const most = 8
	at := time.Unix(1e9, 0)
	c := bounded(nil, most)
	var all []*connection
	for i, p := range []phase{streaming, admitted, answering, waiting, streaming, admitted, answering, waiting} {
		all = append(all, &connection{of: c, phase: p, since: at.Add(time.Duration(i) * time.Second)})
		if last := c.admit(all[i]); last != nil {
			t.Fatalf("connection %d ends another though there is room", i)
		}
	}
	for _, want := range []int{3, 7, 2, 6, 1, 5, 0, 4} {
		if last := c.admit(&connection{of: c, phase: streaming, since: at.Add(time.Hour)}); last != all[want] {
			t.Errorf("connection %d is to make room; another does: %+v", want, last)
		}
	}
}

// A form that does not come is given up, and its connection with it.
func TestSlowFormsAreGivenUp(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) {
		withToken(c)
		c.limits.headerTime, c.limits.formTime = time.Hour, 50*time.Millisecond
	})
	got := ended(t, s.dial(t, "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"+
		"Content-Type: application/x-www-form-urlencoded\r\n\r\ntoken="))
	if !strings.HasPrefix(got, "HTTP/1.1 400 ") || !strings.Contains(got, "within 50ms") {
		t.Errorf("answer %q", got)
	}
}
