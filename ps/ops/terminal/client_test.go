package terminal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/ps/ops/status"
)

// fakePS answers as a ps does.
type fakePS struct {
	token  string
	asked  atomic.Int64
	notYet int64 // requests for the status that come too early
}

func (f *fakePS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fail := func(status int, text string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, "{\"error\":%q}", text)
	}
	if f.token != "" && r.Header.Get("Authorization") != "Bearer "+f.token {
		fail(http.StatusUnauthorized, "want the token")
		return
	}
	switch r.URL.Path {
	case "/api/v1/status":
		if f.asked.Add(1) <= f.notYet {
			fail(http.StatusServiceUnavailable, "starting")
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		_ = e.Encode(stalled())
	case "/api/v1/events":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"events": events()})
	default:
		fail(http.StatusNotFound, "no such path")
	}
}

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

func client(t *testing.T, c Config) *Client {
	t.Helper()
	client, err := NewClient(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func TestStatus(t *testing.T) {
	t.Parallel()
	at := serve(t, &fakePS{token: "secret", notYet: 2})
	view, raw, err := client(t, Config{URL: at + "/", Token: "secret"}).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if view.Why.Code != "trainer-silent" || len(view.Jobs) != 2 {
		t.Errorf("got %+v", view.Why)
	}
	var again status.Status
	if strings.ContainsAny(string(raw), "\r\n") || json.Unmarshal(raw, &again) != nil {
		t.Errorf("want one line of JSON, got %q", raw)
	}
	got, err := client(t, Config{URL: strings.TrimPrefix(at, "http://"), Token: "secret"}).Events(t.Context(), 0)
	if err != nil || len(got) != 2 {
		t.Errorf("events %v, %v", got, err)
	}
}

// Whatever answers, or does not, is told in one line.
func TestStatusErrors(t *testing.T) {
	t.Parallel()
	answer := func(status int, kind, body string) string {
		return serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}))
	}
	tls := httptest.NewUnstartedServer(&fakePS{})
	tls.Config.ErrorLog = log.New(io.Discard, "", 0) // it complains of what is tested
	tls.StartTLS()
	t.Cleanup(tls.Close)
	silent := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	for _, c := range []struct {
		name   string
		config Config
		is     error
		want   string
	}{
		{"nobody", Config{URL: "http://127.0.0.1:1"}, ErrUnreachable, "connection refused"},
		{"silent", Config{URL: silent, Timeout: 50 * time.Millisecond}, ErrUnreachable, "within 50ms"},
		{"no token", Config{URL: serve(t, &fakePS{token: "x"})}, ErrToken, "--http-token-file"},
		{"wrong token", Config{URL: serve(t, &fakePS{token: "x"}), Token: "y"}, ErrToken, "another one"},
		{"other host", Config{URL: answer(403, "application/json", `{"error":"host \"x\" is none of this server's"}`)},
			ErrOther, "is none of this server's"},
		{"another page", Config{URL: answer(200, "text/html", "<html>")}, ErrNotGradbus, "text/html"},
		{"another 404", Config{URL: answer(404, "text/plain", "404 page not found")}, ErrNotGradbus, "404 Not Found"},
		{"redirect", Config{URL: answer(302, "text/html", "")}, ErrNotGradbus, "302"},
		{"older", Config{URL: answer(404, "application/json", `{"error":"no such path"}`)}, ErrOther, "another version"},
		{"no JSON", Config{URL: answer(200, "application/json", "{")}, ErrNotGradbus, "version"},
		{"other JSON", Config{URL: answer(200, "application/json", `{"status":"up"}`)}, ErrNotGradbus, "names no version"},
		{"other types", Config{URL: answer(200, "application/json", `{"now_ms":"x"}`)}, ErrNotGradbus, "version"},
		{"starting for ever", Config{URL: serve(t, &fakePS{notYet: 1 << 40}), Timeout: 300 * time.Millisecond}, ErrOther,
			"starting"},
		{"TLS", Config{URL: strings.Replace(tls.URL, "https:", "http:", 1)}, nil, "say https://"},
		{"no TLS", Config{URL: strings.Replace(silent, "http:", "https:", 1)}, ErrUnreachable, "say http://"},
		{"own certificate", Config{URL: tls.URL}, ErrUnreachable, "--http-ca"},
		{"NATS", Config{URL: speaks(t, "INFO {}\r\n")}, ErrNotGradbus, "speaks no HTTP"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, _, err := client(t, c.config).Status(t.Context())
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(fmt.Sprint(err), c.want) ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want one line with %q", err, c.want)
			}
		})
	}
}

// speaks is the URL of a server that says something before it is asked.
func speaks(t *testing.T, text string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, text)
			_, _ = conn.Read(make([]byte, 1024))
			conn.Close()
		}
	}()
	t.Cleanup(func() { listener.Close(); <-done })
	return "http://" + listener.Addr().String()
}

func TestNewClientRefuses(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "http://", "ftp://a", "http://a/b", "http://user:secret@a", "http://a?b", "http://[",
		"nats://127.0.0.1:4222"} {
		if _, err := NewClient(Config{URL: url}); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// answered gives every request the same answer.
type answered struct{ *http.Response }

func (a answered) RoundTrip(*http.Request) (*http.Response, error) { return a.Response, nil }

// A redirect is an answer, and is not followed: a token is for the ps that was named.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	other := &fakePS{}
	elsewhere := serve(t, other)
	at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere+r.URL.Path, http.StatusFound)
	}))
	if _, _, err := client(t, Config{URL: at, Token: "secret"}).Status(t.Context()); !errors.Is(err, ErrNotGradbus) ||
		other.asked.Load() != 0 {
		t.Errorf("%v, and the other was asked %d times", err, other.asked.Load())
	}
}

// What a server says beside its status is text of others, too.
func TestStatusLineIsClean(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", `{"error":"x"}`} {
		c := client(t, Config{URL: URLDefault})
		c.http.Transport = answered{&http.Response{StatusCode: http.StatusTeapot, Status: "418 \x1b]0;owned\x07",
			Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}}
		if _, _, err := c.Status(t.Context()); err == nil || clean(err.Error()) != err.Error() {
			t.Errorf("%q reaches the terminal", err)
		}
	}
}
