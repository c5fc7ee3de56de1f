package ops

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"
)

// fields reads an object of JSON.
func fields(t *testing.T, body string) map[string]json.RawMessage {
	t.Helper()
	var all map[string]json.RawMessage
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	return all
}

func TestAPI(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, c := range []struct {
		path, field, want string // the field holds it
		count             int    // of elements, where it is a list
	}{
		{"/api/v1/status", "server", `"p1"`, 0},
		{"/api/v1/status", "why", `"all is well"`, 0},
		{"/api/v1/status", "jobs", `"name":"packages"`, 2},
		{"/api/v1/series?job=packages&since=41", "at_ms", `42`, 1},
		{"/api/v1/series", "job", `"packages"`, 0},
		{"/api/v1/events?since=6", "events", `"serial":7`, 1},
		{"/api/v1/events", "events", `"serial":1`, 1},
	} {
		answer, body := s.get(t, c.path)
		if answer.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d, %s", c.path, answer.StatusCode, body)
			continue
		}
		got := string(fields(t, body)[c.field])
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %s is %s, want %s in it", c.path, c.field, got, c.want)
		}
		var list []json.RawMessage
		if c.count > 0 && (json.Unmarshal([]byte(got), &list) != nil || len(list) != c.count) {
			t.Errorf("%s: %s has %d elements, want %d", c.path, c.field, len(list), c.count)
		}
		if _, timed := fields(t, body)["now_ms"]; !timed && c.field != "at_ms" && c.field != "job" {
			t.Errorf("%s: no now_ms", c.path)
		}
	}
}

// What is wrong with a request is said, and what would be right.
func TestAPIErrors(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for _, c := range []struct {
		path   string
		status int
		parts  []string
	}{
		{"/api/v1/stream?x=1", 400, []string{`parameter "x"`, "none"}},
		{"/healthz?x=1", 400, []string{`parameter "x"`, "none"}},
		{"/readyz?verbos", 400, []string{`parameter "verbos"`, "want verbose"}},
		{"/api/v1/status?job=packages", 400, []string{`parameter "job"`, "none"}},
		{"/api/v1/series?jobs=packages", 400, []string{`parameter "jobs"`, "want job"}},
		{"/api/v1/series?job=a&job=b", 400, []string{`parameter "job"`, "once"}},
		{"/api/v1/series?since=-x", 400, []string{`since "-x"`, "milliseconds"}},
		{"/api/v1/events?since=-1", 400, []string{`since "-1"`, "serial"}},
		{"/api/v1/series?job=nope", 404, []string{`no job "nope"`, "packages, mnist"}},
		{"/api/v1/series?%zz", 400, []string{"name=value"}},
		{"/api/v1/nope", 404, []string{`"/api/v1/nope"`, "/api/v1/"}},
		{"/metrics", 404, []string{"/metrics"}},
		{"/login", 404, []string{"no token"}},
		{"/" + strings.Repeat("a", 1000), 404, []string{"aaa..."}},
	} {
		answer, body := s.get(t, c.path)
		wantError(t, answer, body, c.status, c.parts...)
	}
	s.tracker.mu.Lock()
	s.tracker.status.Jobs = nil
	s.tracker.mu.Unlock()
	s.tick(t)
	answer, body := s.get(t, "/api/v1/series?job=nope")
	wantError(t, answer, body, 404, "there is none")
}

// Before the first view everything says so, and the probes answer.
func TestAPIBeforeTheStart(t *testing.T) {
	t.Parallel()
	h := NewHub(nil)
	s, err := Start(t.Context(), Config{Listen: "127.0.0.1:0", Hub: h, Alive: func() time.Time { return time.Time{} },
		Checks: func() []Check { return []Check{{Name: "server", OK: false, Text: "starting"}} }})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	defer s.Close()
	site := &site{Server: s, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	for _, path := range []string{"status", "series", "events"} {
		answer, body := site.get(t, "/api/v1/"+path)
		wantError(t, answer, body, http.StatusServiceUnavailable, "starts")
	}
	if answer, _ := site.get(t, "/healthz"); answer.StatusCode != 200 {
		t.Errorf("healthz: %d", answer.StatusCode)
	}
	if answer, body := site.get(t, "/readyz?verbose"); answer.StatusCode != 503 ||
		!strings.Contains(body, "failed  server: starting\n") || !strings.Contains(body, "ok      control-loop: starting\n") {
		t.Errorf("readyz: %d %q", answer.StatusCode, body)
	}
	if _, body := site.get(t, "/"); !strings.Contains(body, "This ps has no page") {
		t.Errorf("page %q", body)
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()
	var at = time.Now()
	var checks []Check
	s := start(t, func(c *Config) {
		c.Alive = func() time.Time { return at }
		c.Checks = func() []Check { return checks }
	})
	probe := func(path string, status int, parts ...string) {
		t.Helper()
		answer, body := s.get(t, path)
		if answer.StatusCode != status {
			t.Errorf("%s: status %d, want %d", path, answer.StatusCode, status)
		}
		for _, p := range parts {
			if !strings.Contains(body, p) {
				t.Errorf("%s: %q, want %q in it", path, body, p)
			}
		}
	}
	probe("/healthz", 200, "ok\n")
	probe("/readyz", 200, "ok\n")
	checks = []Check{{"nats", true, "connected"}, {"disk", false, "full:\nno byte left"}}
	probe("/healthz", 200, "ok\n") // a full disk is no reason to restart
	probe("/readyz", 503, "not ready: /readyz?verbose says why")
	probe("/readyz?verbose", 503, "ok      nats: connected\n", "failed  disk: full: no byte left\n", "ok      status: ",
		"ok      control-loop: turns\n")
	checks = nil
	at = time.Now().Add(-time.Minute)
	probe("/healthz", 503, "the control loop has stood still for 1m0", "want at most 10s")
	probe("/readyz?verbose", 503, "failed  control-loop: the control loop has stood still")
	// The control loop alone matters to healthz: with a Tracker that fails it is well.
	at = time.Now()
	s.tracker.fail.Store(true)
	probe("/healthz", 200, "ok\n")
}
