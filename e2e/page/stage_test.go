package page

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"mime"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/ps/ops/page"
	"gradbus/ps/ops/status"
	"gradbus/ps/ops/status/statustest"
)

// policy is what the server of the page allows it; package ops has the same.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// stage serves the page over a job that is played. Its clock is that of the play: it moves by a second with each step.
type stage struct {
	*httptest.Server
	token string // that the API wants; empty for none

	mu      sync.Mutex
	cluster *statustest.Cluster
	others  []*statustest.Cluster // whose jobs are seen, too
	tracker *status.Tracker
	latest  status.Update
	told    chan struct{}                  // closed with each step
	refuse  int                            // status that the API answers instead
	edits   map[string]func(string) string // files that are served with a fault
}

// open serves a cluster that has run for some seconds.
func open(t testing.TB, o statustest.Options, seconds int, change func(*statustest.Cluster)) *stage {
	s := &stage{cluster: statustest.NewCluster(o), told: make(chan struct{})}
	if change != nil {
		change(s.cluster)
	}
	s.tracker = s.cluster.NewTracker()
	s.Server = httptest.NewServer(s.handler())
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	s.step(max(seconds, 1))
	return s
}

// step lets seconds pass, and tells the pages of the last.
func (s *stage) step(seconds int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []status.Event
	for range seconds {
		s.noise()
		for _, c := range s.others {
			for _, h := range c.Second() {
				s.tracker.Take(s.cluster.Now, h.Job, h.From, h.Telemetry)
			}
		}
		s.latest = s.cluster.Play(s.tracker, 1)
		events = append(events, s.latest.Events...)
	}
	s.latest.Events = events
	close(s.told)
	s.told = make(chan struct{})
}

// with changes the cluster between steps.
func (s *stage) with(change func(*statustest.Cluster)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.cluster)
}

// noise gives the losses of trainers a scatter as real ones have, the same in every run.
func (s *stage) noise() {
	if len(s.latest.Status.Jobs) == 0 {
		return
	}
	batch := float64(s.latest.Status.Jobs[0].Batch)
	for i, t := range s.cluster.Trainers {
		if math.IsNaN(t.Loss) {
			continue
		}
		x := float64(s.cluster.Now.Unix()%100000) + 0.37*float64(i)
		scatter := math.Mod(math.Abs(math.Sin(x*12.9898)*43758.5453), 1) + math.Mod(math.Abs(math.Sin(x*78.233)*12543.123),
			1) - 1
		t.Loss = s.cluster.LossAt(batch) * (1 + 0.12*scatter)
		t.Norm = (0.4 + 1.6*math.Exp(-batch/2500)) * (1 + 0.25*scatter)
	}
}

func (s *stage) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", s.file)
	mux.HandleFunc("GET /api/v1/stream", s.stream)
	mux.HandleFunc("GET /api/v1/status", func(w http.ResponseWriter, r *http.Request) { answer(w, s.update().Status) })
	mux.HandleFunc("GET /api/v1/events", func(w http.ResponseWriter, r *http.Request) {
		since, _ := strconv.ParseUint(r.FormValue("since"), 10, 64)
		s.mu.Lock()
		events := s.tracker.Events(since)
		s.mu.Unlock()
		answer(w, map[string]any{"events": events})
	})
	mux.HandleFunc("GET /api/v1/series", func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		series, ok := s.tracker.Series(r.FormValue("job"), 0)
		s.mu.Unlock()
		if !ok {
			fail(w, http.StatusNotFound, "no job "+r.FormValue("job"))
			return
		}
		answer(w, series)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Cache-Control", "no-store")
		s.mu.Lock()
		refuse := s.refuse
		s.mu.Unlock()
		api := len(r.URL.Path) > 4 && r.URL.Path[:5] == "/api/"
		switch {
		case api && refuse != 0:
			fail(w, refuse, "as the test wants it")
		case r.Method == http.MethodPost && r.URL.Path == "/login":
			s.login(w, r)
		case api && s.token != "" && !s.known(r):
			fail(w, http.StatusUnauthorized, "a token is wanted: send Authorization: Bearer TOKEN")
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// login gives a cookie for the token, as the server does.
func (s *stage) login(w http.ResponseWriter, r *http.Request) {
	if r.PostFormValue("token") != s.token {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: "stage", Value: "known", Path: "/", HttpOnly: true,
		SameSite: http.SameSiteStrictMode})
	w.WriteHeader(http.StatusNoContent)
}

func (s *stage) known(r *http.Request) bool {
	cookie, err := r.Cookie("stage")
	return err == nil && cookie.Value == "known"
}

// file serves a file of the page, with its fault where it is to have one.
func (s *stage) file(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	if name == "" {
		name = "index.html"
	}
	s.mu.Lock()
	edit := s.edits[name]
	s.mu.Unlock()
	if edit == nil {
		http.FileServerFS(page.Files).ServeHTTP(w, r)
		return
	}
	data, err := page.Files.ReadFile(name)
	if err != nil {
		fail(w, http.StatusNotFound, err.Error())
		return
	}
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	_, _ = io.WriteString(w, edit(string(data)))
}

// again tells the pages what they know already.
func (s *stage) again() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest.Events = nil
	close(s.told)
	s.told = make(chan struct{})
}

func (s *stage) update() status.Update {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

// stream tells of each step, and between them that it is alive.
func (s *stage) stream(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	for {
		s.mu.Lock()
		u, told := s.latest, s.told
		s.mu.Unlock()
		data, err := json.Marshal(u)
		if err != nil {
			panic(err)
		}
		fmt.Fprintf(w, "event: update\nid: %d\ndata: %s\n\n", u.Status.Serial, data)
		for waiting := true; waiting; {
			w.(http.Flusher).Flush()
			select {
			case <-told:
				waiting = false
			case <-time.After(time.Second):
				fmt.Fprint(w, ": still here\n\n")
			case <-r.Context().Done():
				return
			}
		}
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func fail(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	fmt.Fprintf(w, "{\"error\":%q}\n", text)
}

// run steps once a second until the context ends.
func (s *stage) run(ctx context.Context) {
	for every := time.NewTicker(time.Second); ; {
		select {
		case <-every.C:
			s.step(1)
		case <-ctx.Done():
			every.Stop()
			return
		}
	}
}
