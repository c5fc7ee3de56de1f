package ops

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

// Every answer says what a browser may do with it, refusals too.
func TestHeadersOnEveryAnswer(t *testing.T) {
	t.Parallel()
	s := start(t, someMetrics)
	check := func(method, path string, headers ...string) {
		t.Helper()
		answer, _ := s.do(t, method, path, nil, headers...)
		for name, want := range map[string]string{
			"Content-Security-Policy":      "default-src 'none'; script-src 'self'; style-src 'self'",
			"X-Content-Type-Options":       "nosniff",
			"X-Frame-Options":              "DENY",
			"Referrer-Policy":              "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := answer.Header.Get(name); !strings.HasPrefix(got, want) {
				t.Errorf("%s %s: %s is %q, want %q", method, path, name, got, want)
			}
		}
		if strings.Contains(answer.Header.Get("Content-Security-Policy"), "unsafe") ||
			answer.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s: headers %v allow too much", method, path, answer.Header)
		}
	}
	for path := range paths {
		check("GET", path)
		check("HEAD", path)
	}
	check("HEAD", "/api/v1/stream")
	check("GET", "/nothing")
	check("GET", "/api/v1/status?x=1")
	check("POST", "/")
	check("GET", "/", "Host: evil.example")
	check("GET", "/assets")
	check("GET", "//assets/../x")
}

func TestForeignHostsAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) {
		someMetrics(c)
		c.Hosts, c.Machine = []string{"Train.Example.org"}, []string{"box-1.example.org", "box-1", "10.1.2.3"}
	})
	_, port, _ := strings.Cut(s.at(), ":")
	for _, host := range []string{
		"localhost", "LOCALHOST.", "localhost:" + port, "localhost:9999" /* a tunnel */, "127.0.0.1", "127.0.0.1:" + port,
		"[::1]:80", "[::1]",
		"train.example.org", "train.example.org:443", "box-1", "BOX-1:" + port, "box-1.example.org.", "10.1.2.3:8080",
	} {
		if answer, body := s.get(t, "/api/v1/status", "Host: "+host); answer.StatusCode != http.StatusOK {
			t.Errorf("host %q: status %d, %s", host, answer.StatusCode, body)
		}
	}
	for _, host := range []string{
		"evil.example", "localhost.evil.example", "127.0.0.1.evil.example:" + port, "10.0.0.1", "[fe80::1]", "xlocalhost",
		"train.example.org.evil.example", "localhost:80:80", "127.1", "box-1.evil.example", "example.org",
	} {
		for _, path := range []string{"/", "/api/v1/stream", "/metrics", "/readyz?verbose", "/nothing"} {
			answer, body := s.get(t, path, "Host: "+host)
			wantError(t, answer, body, http.StatusForbidden, "host", "--http-host")
		}
		for _, probe := range []string{"/healthz", "/readyz"} { // which an orchestrator asks for by names of its own
			if answer, body := s.get(t, probe, "Host: "+host); answer.StatusCode != http.StatusOK || body != "ok\n" {
				t.Errorf("%s, host %q: status %d, %q", probe, host, answer.StatusCode, body)
			}
		}
	}
	// One that has no host at all.
	if got := ended(t, s.dial(t, "GET /api/v1/status HTTP/1.0\r\n\r\n")); !strings.HasPrefix(got, "HTTP/1.0 403 ") ||
		strings.Contains(got, "now_ms") {
		t.Errorf("no host: %q", got)
	}
}

// Where all addresses are listened at, that which was dialled is one of ours.
func TestHostIsTheAddressDialled(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) { c.Listen, c.Insecure = "0.0.0.0:0", true })
	_, port, _ := strings.Cut(s.URL(), "127.0.0.1:")
	for host, want := range map[string]int{"127.0.0.1": 200, "127.0.0.2": 403, "10.9.8.7": 403, "0.0.0.0": 403} {
		answer, _ := s.get(t, "/api/v1/status", "Host: "+host+":"+strings.Trim(port, "/"))
		if answer.StatusCode != want {
			t.Errorf("host %s: status %d, want %d", host, answer.StatusCode, want)
		}
	}
}

func TestOnlyReadingMethods(t *testing.T) {
	t.Parallel()
	s := start(t, someMetrics)
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"} {
		for path := range paths {
			if method == "CONNECT" {
				continue // takes no path
			}
			answer, body := s.do(t, method, path, nil)
			wantError(t, answer, body, http.StatusMethodNotAllowed, "method "+method, "want GET or HEAD")
			if got := answer.Header.Get("Allow"); got != "GET, HEAD" {
				t.Errorf("%s %s: Allow is %q", method, path, got)
			}
		}
	}
	// Without a token there is no form to send.
	answer, body := s.do(t, "POST", "/login", strings.NewReader("token=x"))
	wantError(t, answer, body, http.StatusMethodNotAllowed)
	if got := s.tracker.series; got != 0 {
		t.Errorf("%d questions reached the tracker", got)
	}
	if n := s.Stats().RequestsRefused; n < 50 {
		t.Errorf("%d requests counted as refused", n)
	}
}

// What net/http would answer by itself, or take for a path of ours.
func TestUnusualRequests(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for request, want := range map[string]string{
		"OPTIONS * HTTP/1.1\r\nHost: localhost":                       "HTTP/1.1 405 ",
		"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443":   "HTTP/1.1 403 ",
		"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443":       "HTTP/1.1 405 ",
		"GET http://evil.example/ HTTP/1.1\r\nHost: localhost":        "HTTP/1.1 403 ", // the first line counts
		"GET http://localhost/healthz HTTP/1.1\r\nHost: evil.example": "HTTP/1.1 200 ",
		"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost": "HTTP/1.1 400 ",
		"GET /healthz HTTP/1.1\r\nHost: local host":                   "HTTP/1.1 400 ",
		"GET /healthz HTTP/1.1":                                       "HTTP/1.1 400 ",
		"GET /healthz HTTP/9.9\r\nHost: localhost":                    "HTTP/1.1 505 ",
		"nonsense": "HTTP/1.1 400 ",
	} {
		got := ended(t, s.dial(t, request+"\r\nConnection: close\r\n\r\n"))
		if !strings.HasPrefix(got, want) {
			t.Errorf("%q: %.300q, want %q", request, got, want)
		}
	}
}

func TestHeadHasNoBody(t *testing.T) {
	t.Parallel()
	s := start(t, someMetrics)
	for path, kind := range paths {
		got, body := s.do(t, "GET", path, nil)
		head, empty := s.do(t, "HEAD", path, nil)
		if got.StatusCode != 200 || head.StatusCode != 200 || got.Header.Get("Content-Type") != kind ||
			head.Header.Get("Content-Type") != kind || body == "" || empty != "" {
			t.Errorf("%s: GET %d %q with %d bytes, HEAD %d %q with %d", path, got.StatusCode, got.Header.Get("Content-Type"),
				len(body), head.StatusCode, head.Header.Get("Content-Type"), len(empty))
		}
	}
}

// Pages of other sites may link here, and nothing else.
func TestOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, c := range []struct {
		site, mode, dest string
		want             int
	}{
		{"", "", "", 200}, // curl, Prometheus
		{"same-origin", "cors", "empty", 200},
		{"none", "navigate", "document", 200},
		{"cross-site", "navigate", "document", 200}, // a link
		{"cross-site", "no-cors", "script", 403},
		{"cross-site", "cors", "empty", 403},
		{"cross-site", "navigate", "iframe", 403},
		{"same-site", "no-cors", "image", 403}, // another port of this machine
	} {
		var headers []string
		for name, value := range map[string]string{"Sec-Fetch-Site": c.site, "Sec-Fetch-Mode": c.mode,
			"Sec-Fetch-Dest": c.dest} {
			if value != "" {
				headers = append(headers, name+": "+value)
			}
		}
		if answer, _ := s.get(t, "/api/v1/status", headers...); answer.StatusCode != c.want {
			t.Errorf("%+v: status %d", c, answer.StatusCode)
		}
	}
}

func TestOversizedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) { c.limits.headerBytesMax, c.limits.formTime = 4<<10, time.Hour })
	large := strings.Repeat("x", 64<<10)
	asked := map[string]net.Conn{}
	for what, request := range map[string]string{
		"address": "GET /" + large + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"query":   "GET /api/v1/series?job=" + large + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"header":  "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + large + "\r\n\r\n",
		"headers": "GET / HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X: 1\r\n", 10<<10) + "\r\n",
	} {
		asked[what] = s.dial(t, request)
	}
	for what, c := range asked {
		// The answer may be overtaken by the reset that what was not read brings about.
		if got := ended(t, c); got != "" && !strings.HasPrefix(got, "HTTP/1.1 431 ") {
			t.Errorf("%s: %q", what, clip(got))
		}
	}
	for _, path := range []string{"/", "/api/v1/status", "/healthz"} {
		answer, body := s.do(t, "GET", path, strings.NewReader("some body"))
		wantError(t, answer, body, http.StatusRequestEntityTooLarge, "body")
	}
	// A body without length, of which the rest never comes, is not waited for.
	c := s.dial(t, "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
	if got := ended(t, c); !strings.HasPrefix(got, "HTTP/1.1 413 ") {
		t.Errorf("chunked body: %q", got)
	}
	if _, body := s.get(t, "/healthz"); body != "ok\n" {
		t.Errorf("afterwards: %q", body)
	}
}

// The limit of a request is where docs/http.md says it is.
func TestHeaderLimit(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	limit := s.limits.headerBytesMax
	for size, want := range map[int]string{limit - 256: "HTTP/1.1 200 ", limit + 256: "HTTP/1.1 431 "} {
		const before, after = "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX: ", "\r\n\r\n"
		if got := ended(t, s.dial(t, before+strings.Repeat("x", size-len(before)-len(after))+after)); !strings.HasPrefix(got,
			want) {
			t.Errorf("%d bytes, at most %d: %q, want %q", size, limit, clip(got), want)
		}
	}
}

// Who sends a request slowly, or nothing, is cut off.
func TestSlowRequestsAreCutOff(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) {
		c.limits.headerTime, c.limits.formTime, c.limits.idleTime = 50*time.Millisecond, 50*time.Millisecond,
			50*time.Millisecond
	})
	for what, sent := range map[string]string{"nothing": "", "half a line": "GET /api",
		"half the headers": "GET / HTTP/1.1\r\nHost: localhost\r\nX: "} {
		if got := ended(t, s.dial(t, sent)); strings.Contains(got, " 200 ") {
			t.Errorf("%s: %q", what, got)
		}
	}
	// One byte now and then does not extend the time.
	c := s.dial(t, "G")
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				if _, err := c.Write([]byte("E")); err != nil {
					return
				}
			}
		}
	}()
	ended(t, c)
	close(stop)
	<-done
	// One that had its answer and asks no more.
	eventually(t, "an answer, and an end", func() bool { // a busy machine may be too slow for the times above
		return strings.Contains(ended(t, s.dial(t, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")), " 200 OK")
	})
	eventually(t, "all connections are gone", func() bool { return s.Stats().Connections == 0 })
}

// Who does not read an answer is cut off.
func TestSlowReadersAreCutOff(t *testing.T) {
	t.Parallel()
	page := somePage()
	page["assets/large.bin"] = &fstest.MapFile{Data: make([]byte, 4<<20)}
	s := start(t, func(c *Config) { c.Page, c.limits.writeTime = page, 100*time.Millisecond })
	// More than the kernel's buffers take.
	s.dial(t, strings.Repeat("GET /assets/large.bin HTTP/1.1\r\nHost: localhost\r\n\r\n", 40))
	eventually(t, "the request began", func() bool { return s.Stats().Connections == 1 })
	eventually(t, "the connection is cut", func() bool { return s.Stats().Connections == 0 })
}
