package ops

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"gradbus/internal/testkit"
	"gradbus/ps/ops/status"
	"gradbus/schema"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fake is a Tracker that counts what it is asked, and shows what the test put in.
type fake struct {
	mu                   sync.Mutex
	takes, ticks, series int
	status               status.Status
	urgent               func(*schema.Telemetry) bool
	changed              bool
	latest               time.Time   // that it was called with
	fell                 bool        // a time was before the one before
	fail                 atomic.Bool // panics
}

func (f *fake) Take(now time.Time, _ schema.JobName, _ schema.Member, p *schema.Telemetry) {
	f.check()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.takes++
	f.saw(now)
	f.changed = f.changed || f.urgent != nil && f.urgent(p)
}

// at is the latest time that it was called with.
func (f *fake) at() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.latest
}

func (f *fake) saw(now time.Time) {
	f.fell = f.fell || now.Before(f.latest)
	f.latest = now
}

func (f *fake) Changed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changed
}

func (f *fake) Tick(now time.Time) status.Update {
	f.check()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ticks++
	f.saw(now)
	f.changed = false
	view := f.status
	view.Serial, view.NowMS = uint64(f.ticks), now.UnixMilli()
	return status.Update{Status: view, Points: map[string]status.Point{}, Events: []status.Event{}}
}

func (f *fake) Series(job string, since int64) (status.Series, bool) {
	f.check()
	if job != "" && job != "packages" {
		return status.Series{}, false
	}
	return status.Series{Job: "packages", AtMS: []int64{since + 1}}, true
}

func (f *fake) Events(since uint64) []status.Event {
	f.check()
	return []status.Event{{Serial: since + 1, Text: "something happened"}}
}

func (f *fake) check() {
	if f.fail.Load() {
		panic("planted")
	}
}

// two jobs, trainers, shards and GPUs in all.
func someStatus() status.Status {
	return status.Status{
		Server: "p1", Version: "test",
		Why: status.Why{Level: status.OK, Text: "all is well"},
		Jobs: []status.Job{
			{Name: "packages", Series: "packages", Trainers: []status.Trainer{{Member: "t0"}, {Member: "t1"}},
				Shards: []status.Shard{{Member: "s0"}}},
			{Name: "mnist", Series: "mnist", Trainers: []status.Trainer{{Member: "t0", Host: "b"}},
				Shards: []status.Shard{{Member: "s0"}, {Member: "s1"}}},
		},
		GPUs: []status.GPU{{Host: "a"}},
	}
}

// somePage is a page of three files.
func somePage() fstest.MapFS {
	return fstest.MapFS{
		"index.html":    {Data: []byte("<!doctype html><title>page</title>")},
		"assets/app.js": {Data: []byte("// " + strings.Repeat("export const x = 1;\n", 200))},
		"assets/a.svg":  {Data: []byte("<svg/>")},
	}
}

// site is a running Server with its Hub and a fake Tracker.
type site struct {
	*Server
	tracker *fake
	hub     *Hub
	log     *testkit.Text
	client  *http.Client
	hasty   bool // requests have so little time here that one may be cut off on a busy machine, and is sent again
}

// start serves at a free port, with what change made of the configuration, until the test ends.
func start(t *testing.T, change func(*Config)) *site {
	t.Helper()
	s := &site{tracker: &fake{status: someStatus()}, log: &testkit.Text{}}
	log := slog.New(slog.NewTextHandler(s.log, nil))
	s.hub = NewHub(log)
	t.Cleanup(s.hub.Close)
	s.hub.Start("p-p1", s.tracker)
	config := Config{Listen: "127.0.0.1:0", Hub: s.hub, Page: somePage(), Log: log}
	if change != nil {
		change(&config)
	}
	var err error
	if s.Server, err = Start(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.hasty = config.limits.formTime != 0 && config.limits.formTime < time.Second
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	s.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	eventually(t, "a first view", func() bool { return s.hub.Status() != nil })
	return s
}

// tick makes the next view now.
func (s *site) tick(*testing.T) { s.hub.tick(time.Now()) }

// at is the address of the server, without scheme.
func (s *site) at() string { return s.conns.Addr().String() }

// do sends a request with headers given as "Name: value", and reads the answer. A Host header is the request's host.
func (s *site) do(t *testing.T, method, path string, body io.Reader, headers ...string) (*http.Response, string) {
	t.Helper()
	var sent []byte
	if body != nil {
		var err error
		if sent, err = io.ReadAll(body); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(patience); ; {
		var again io.Reader
		if body != nil {
			again = bytes.NewReader(sent)
		}
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL()+strings.TrimPrefix(path, "/"), again)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			if name == "Host" {
				r.Host = value
			}
			r.Header.Set(name, value)
		}
		answer, text, err := fetch(s.client, r)
		if err == nil {
			return answer, text
		}
		if !s.hasty || time.Now().After(deadline) {
			t.Fatalf("%s %s: %v", method, path, err)
		}
	}
}

// fetch sends a request and reads the answer.
func fetch(client *http.Client, r *http.Request) (*http.Response, string, error) {
	answer, err := client.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return answer, string(text), err
}

func (s *site) get(t *testing.T, path string, headers ...string) (*http.Response, string) {
	t.Helper()
	return s.do(t, "GET", path, nil, headers...)
}

// wantError checks that an answer is an error of the API with a status, whose text has these parts.
func wantError(t *testing.T, answer *http.Response, body string, status int, parts ...string) {
	t.Helper()
	var e struct{ Error string }
	if answer.StatusCode != status {
		t.Errorf("status %d, want %d: %s", answer.StatusCode, status, body)
	}
	if err := json.Unmarshal([]byte(body), &e); err != nil || e.Error == "" {
		t.Errorf("body %q is no error: %v", body, err)
	}
	for _, part := range parts {
		if !strings.Contains(e.Error, part) {
			t.Errorf("error %q: want %q in it", e.Error, part)
		}
	}
}

// dial opens a connection, and sends text on it.
func (s *site) dial(t *testing.T, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.at())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_, _ = io.WriteString(c, text) // the other side may have ended it by now
	return c
}

// ended waits until the other side has closed a connection, and returns what it had sent.
func ended(t *testing.T, c net.Conn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Fatalf("the connection is still open; it said %q", got)
	}
	return string(got)
}

// patience bounds every wait for what must come. It is reached only by what never does.
const patience = 3 * time.Minute

// eventually polls.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// paths is every path that answers, with the Content-Type of its answer.
var paths = map[string]string{
	"/":                           "text/html; charset=utf-8",
	"/assets/app.js":              "text/javascript; charset=utf-8",
	"/assets/a.svg":               "image/svg+xml",
	"/api/v1/status":              "application/json; charset=utf-8",
	"/api/v1/series?job=packages": "application/json; charset=utf-8",
	"/api/v1/events":              "application/json; charset=utf-8",
	"/healthz":                    "text/plain; charset=utf-8",
	"/readyz":                     "text/plain; charset=utf-8",
	"/readyz?verbose":             "text/plain; charset=utf-8",
	"/metrics":                    "text/plain",
}

// someMetrics stands for the metrics' handler.
func someMetrics(c *Config) {
	c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprintln(w, "gradbus_up 1")
	})
}

func TestStartNeedsWhatItIsGiven(t *testing.T) {
	t.Parallel()
	_, err := Start(context.Background(), Config{Listen: "nonsense"})
	if err == nil || !strings.Contains(err.Error(), `http "nonsense": want host:port`) ||
		!strings.Contains(err.Error(), "no hub") {
		t.Errorf("error %v", err)
	}
}
