package ops

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// events is a client of the stream.
type events struct {
	answer *http.Response
	lines  *bufio.Reader
	close  func()
}

// open opens a stream, with headers as do takes them, and reads how it begins.
func (s *site) open(t *testing.T, headers ...string) *events {
	t.Helper()
	var answer *http.Response
	for deadline := time.Now().Add(patience); answer == nil; {
		r, err := http.NewRequestWithContext(t.Context(), "GET", s.URL()+"api/v1/stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		if answer, err = s.client.Do(r); err != nil && (!s.hasty || time.Now().After(deadline)) {
			t.Fatal(err)
		}
	}
	e := &events{answer: answer, close: func() { answer.Body.Close() }}
	t.Cleanup(e.close)
	if answer.StatusCode != http.StatusOK {
		return e
	}
	e.lines = bufio.NewReader(answer.Body)
	if got := e.block(t); got != "retry: 1000" {
		t.Fatalf("the stream begins with %q", got)
	}
	return e
}

// block reads lines up to an empty one.
func (e *events) block(t *testing.T) string {
	t.Helper()
	var lines []string
	for {
		line, err := e.lines.ReadString('\n')
		if err != nil {
			t.Fatalf("after %q: %v", lines, err)
		}
		if line == "\n" {
			return strings.Join(lines, "\n")
		}
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
}

// next reads one update.
func (e *events) next(t *testing.T) status.Update {
	t.Helper()
	var serial uint64
	lines := strings.Split(e.block(t), "\n")
	if len(lines) != 3 || lines[1] != "event: update" || !strings.HasPrefix(lines[2], "data: {") {
		t.Fatalf("event %q", lines)
	}
	if _, err := fmt.Sscanf(lines[0], "id: %d", &serial); err != nil {
		t.Fatalf("event %q: %v", lines, err)
	}
	var u status.Update
	if err := json.Unmarshal([]byte(lines[2][len("data: "):]), &u); err != nil {
		t.Fatal(err)
	}
	if u.Status.Serial != serial {
		t.Fatalf("id %d of an update with serial %d", serial, u.Status.Serial)
	}
	return u
}

// Updates come one after the other, the first at once.
func TestStreamSendsUpdates(t *testing.T) {
	t.Parallel()
	// Shorter than the stream lasts: times of a request do not end it.
	s := start(t, func(c *Config) {
		c.limits.formTime, c.limits.writeTime, c.limits.idleTime = 300*time.Millisecond, 300*time.Millisecond,
			300*time.Millisecond
	})
	plain, other := s.open(t), s.open(t, "Accept-Encoding: br, gzip")
	if got := plain.answer.Header; got.Get("Content-Type") != "text/event-stream; charset=utf-8" ||
		got.Get("Cache-Control") != "no-store" || got.Get("Content-Encoding") != "" {
		t.Errorf("headers %v", got)
	}
	for _, e := range []*events{plain, other} {
		first := e.next(t)
		if len(first.Status.Jobs) != 2 || first.Status.Why.Text != "all is well" {
			t.Errorf("update %+v", first)
		}
		for serial := first.Status.Serial; serial < first.Status.Serial+1; {
			if got := e.next(t).Status.Serial; got <= serial {
				t.Fatalf("serial %d after %d", got, serial)
			} else {
				serial = got
			}
		}
	}
	eventually(t, "two streams", func() bool { return s.Stats().Streams == 2 })
	plain.close()
	eventually(t, "one stream", func() bool { return s.Stats().Streams == 1 })
}

// A report that matters makes an update of its own, and a storm of them no storm of updates.
func TestStreamSendsUrgentUpdatesAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	s.tracker.mu.Lock()
	s.tracker.urgent = func(p *schema.Telemetry) bool { return p.Serial > 0 }
	s.tracker.mu.Unlock()
	e := s.open(t)
	e.next(t)
	from := time.Now()
	const updates = 10
	for serial := uint64(1); serial <= updates; serial++ {
		s.hub.Take("", "p-p1", &schema.Telemetry{Serial: serial})
		e.next(t)
	}
	// That each came soon TestHubTicks shows, by a clock of its own; here, that they are bounded.
	if took := time.Since(from); took < (updates-2)*tickSoonest/2 {
		t.Errorf("%d updates in %s: a storm of reports is not bounded", updates, took)
	}
}

// The stream is bounded, and says so in words.
func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *Config) { c.limits.streamsMax = 2 })
	first, _ := s.open(t), s.open(t)
	answer, body := s.get(t, "/api/v1/stream")
	wantError(t, answer, body, http.StatusServiceUnavailable, "too many streams", "/api/v1/status")
	if answer.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	first.close()
	eventually(t, "there is room", func() bool { return s.Stats().Streams == 1 })
	s.open(t).next(t)
}

// The end of the process, or of the status, ends streams at once.
func TestEndEndsStreams(t *testing.T) {
	t.Parallel()
	for what, end := range map[string]func(*site){"server": func(s *site) { s.Close() },
		"hub": func(s *site) { s.hub.Close() }} {
		s := start(t, nil)
		var all []*events
		for range 5 {
			all = append(all, s.open(t))
		}
		s.dial(t, "GET / HTTP/1.1\r\n") // a request that never comes holds nothing up
		end(s)
		for _, e := range all {
			if _, err := io.ReadAll(e.lines); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		eventually(t, "no stream", func() bool { return s.Stats().Streams == 0 })
	}
}
