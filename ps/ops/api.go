package ops

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"gradbus/ps/ops/overview"
)

// handler is all paths, behind all rules.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/status", s.status)
	mux.HandleFunc("/api/v1/series", s.series)
	mux.HandleFunc("/api/v1/events", s.events)
	mux.HandleFunc("/api/v1/gpus", s.gpus)
	mux.HandleFunc("/api/v1/trainers", s.trainers)
	mux.HandleFunc("/api/v1/shards", s.shards)
	mux.HandleFunc("/api/v1/stream", s.taking(http.HandlerFunc(s.stream)))
	mux.HandleFunc("/healthz", s.taking(http.HandlerFunc(s.healthz)))
	mux.HandleFunc("/readyz", s.taking(http.HandlerFunc(s.readyz), "verbose"))
	mux.HandleFunc("/login", s.taking(http.HandlerFunc(s.login)))
	if s.config.Metrics != nil {
		mux.HandleFunc("/metrics", s.taking(s.config.Metrics))
	}
	mux.Handle("/", s.files)
	return s.guarded(s.guard, mux)
}

var (
	readMethods  = []string{http.MethodGet, http.MethodHead}
	loginMethods = []string{http.MethodGet, http.MethodHead, http.MethodPost}
)

// guarded puts the rules before a handler, and lets Close wait for it.
func (s *Server) guarded(g *guard, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		headers(w.Header())
		if !s.enter() {
			s.refuse(w, &refusal{http.StatusServiceUnavailable, errEnding.Error()})
			return
		}
		defer s.requests.Done()
		methods := readMethods
		if r.URL.Path == "/login" && s.token != nil {
			methods = loginMethods
		}
		if why := g.check(r, methods); why != nil {
			if why.status == http.StatusMethodNotAllowed {
				w.Header().Set("Allow", strings.Join(methods, ", "))
			}
			s.refuse(w, why)
			return
		}
		if s.token != nil && !s.isOpen(r) && !s.token.lets(r) {
			s.deny(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isOpen says of which paths that say nothing which a token protects: an orchestrator's probes, the way in, and the files of the
// page, which are those of every gradbus.
func (s *Server) isOpen(r *http.Request) bool {
	switch r.URL.Path {
	case "/healthz", "/login":
		return true
	case "/readyz":
		return !r.URL.Query().Has("verbose")
	}
	return s.files.byPath[r.URL.Path] != nil
}

// look is the latest status; nil where the answer has been given.
func (s *Server) look(w http.ResponseWriter, r *http.Request, parameters ...string) (*overview.Status, url.Values) {
	values, ok := s.parameters(w, r, parameters...)
	if !ok {
		return nil, nil
	}
	status := s.hub.Status()
	if status == nil {
		unavailable(w, ErrStarting)
	}
	return status, values
}

// parameters reads those of a request; one that the path does not take, or a second of a kind, is an error that names those it does.
func (s *Server) parameters(w http.ResponseWriter, r *http.Request, known ...string) (url.Values, bool) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		fail(w, http.StatusBadRequest, "the part after ? is not as it should be: name=value&name=value")
		return nil, false
	}
	for name, given := range values {
		if !slices.Contains(known, name) || len(given) > 1 {
			want := "none"
			if len(known) > 0 {
				want = strings.Join(known, ", ") + ", each once"
			}
			fail(w, http.StatusBadRequest, fmt.Sprintf("parameter %q: want %s", clip(name), want))
			return nil, false
		}
	}
	return values, true
}

// taking has a path refuse parameters but those that it knows.
func (s *Server) taking(next http.Handler, known ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, ok := s.parameters(w, r, known...); ok {
			next.ServeHTTP(w, r)
		}
	}
}

func unavailable(w http.ResponseWriter, err error) {
	w.Header().Set("Retry-After", "1")
	fail(w, http.StatusServiceUnavailable, err.Error())
}

// status is the whole view.
func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	if status, _ := s.look(w, r); status == nil {
		return
	}
	s.answer(w, r, s.hub.latest.Load().asStatus)
}

// answerWith sends a value as JSON.
func (s *Server) answerWith(w http.ResponseWriter, r *http.Request, v any) {
	s.answer(w, r, func() ([]byte, error) { return json.Marshal(v) })
}

// answer sends JSON, compressed where that is worth it.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, text func() ([]byte, error)) {
	const worth = 2 << 10 // bytes; below that it is one packet or two in any case
	compress := acceptsGzip(r) && r.Method != http.MethodHead
	body, packed, err := s.made(r.Context(), func() (body, packed []byte, err error) {
		if body, err = text(); err == nil && compress && len(body) > worth {
			packed = gzipped(body, gzip.BestSpeed)
		}
		return body, packed, err
	})
	if err != nil {
		s.faults.Add(1)
		s.log.Error("an answer cannot be written", "path", r.URL.Path, "err", err)
		fail(w, http.StatusInternalServerError, "the answer cannot be written: see the log of the ps")
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Vary", "Accept-Encoding")
	if packed != nil {
		h.Set("Content-Encoding", "gzip")
		body = packed
	}
	send(w, r, body)
}

// made has an answer made. A quarter of the processors may do that at once: what many ask for must not keep shards from
// theirs. Nobody waits here for a client.
func (s *Server) made(ctx context.Context, body func() (body, packed []byte, err error)) ([]byte, []byte, error) {
	select {
	case s.making <- struct{}{}:
		defer func() { <-s.making }()
		return body()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
}

// gpus are all GPUs of all machines.
func (s *Server) gpus(w http.ResponseWriter, r *http.Request) {
	if status, _ := s.look(w, r); status != nil {
		s.answerWith(w, r, struct {
			NowMS int64          `json:"now_ms"`
			GPUs  []overview.GPU `json:"gpus"`
		}{status.NowMS, list(status.GPUs)})
	}
}

// list is never nil, as [] and null are two things to those who read JSON.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// trainerOf and shardOf say which job one is of, as a list may hold those of several.
type (
	trainerOf struct {
		Job string `json:"job"`
		overview.Trainer
	}
	shardOf struct {
		Job string `json:"job"`
		overview.Shard
	}
)

// trainers are those of one job, or of all.
func (s *Server) trainers(w http.ResponseWriter, r *http.Request) {
	status, jobs := s.jobs(w, r)
	if status == nil {
		return
	}
	all := []trainerOf{}
	for _, j := range jobs {
		for _, t := range j.Trainers {
			all = append(all, trainerOf{j.Name, t})
		}
	}
	s.answerWith(w, r, struct {
		NowMS    int64       `json:"now_ms"`
		Trainers []trainerOf `json:"trainers"`
	}{status.NowMS, all})
}

// shards are those of one job, or of all.
func (s *Server) shards(w http.ResponseWriter, r *http.Request) {
	status, jobs := s.jobs(w, r)
	if status == nil {
		return
	}
	all := []shardOf{}
	for _, j := range jobs {
		for _, shard := range j.Shards {
			all = append(all, shardOf{j.Name, shard})
		}
	}
	s.answerWith(w, r, struct {
		NowMS  int64     `json:"now_ms"`
		Shards []shardOf `json:"shards"`
	}{status.NowMS, all})
}

// jobs are those that a request is about; a nil status says that the answer has been given.
func (s *Server) jobs(w http.ResponseWriter, r *http.Request) (*overview.Status, []overview.Job) {
	status, values := s.look(w, r, "job")
	if status == nil || !values.Has("job") {
		if status == nil {
			return nil, nil
		}
		return status, status.Jobs
	}
	var found []overview.Job
	for _, j := range status.Jobs {
		if j.Name == values.Get("job") {
			found = append(found, j)
		}
	}
	if len(found) == 0 {
		noJob(w, values.Get("job"), status, func(j *overview.Job) string { return j.Name })
		return nil, nil
	}
	return status, found
}

// noJob names those that there are, by what of says of each.
func noJob(w http.ResponseWriter, name string, status *overview.Status, of func(*overview.Job) string) {
	var known []string
	for i := range status.Jobs {
		known = append(known, of(&status.Jobs[i]))
	}
	there := "there is none"
	if len(known) > 0 {
		there = "there are " + strings.Join(known, ", ")
	}
	fail(w, http.StatusNotFound, fmt.Sprintf("no job %q: %s", clip(name), there))
}

// series are the curves of a job.
func (s *Server) series(w http.ResponseWriter, r *http.Request) {
	status, values := s.look(w, r, "job", "since")
	if status == nil {
		return
	}
	var since int64
	if text := values.Get("since"); text != "" {
		var err error
		if since, err = strconv.ParseInt(text, 10, 64); err != nil {
			fail(w, http.StatusBadRequest, fmt.Sprintf("since %q: want milliseconds since 1970", clip(text)))
			return
		}
	}
	type found struct {
		overview.Series
		ok bool
	}
	answer, err := ask(r.Context(), s.hub, func(t Tracker) (f found) {
		f.Series, f.ok = t.Series(values.Get("job"), since)
		return f
	})
	switch {
	case err != nil:
		unavailable(w, err)
	case !answer.ok:
		noJob(w, values.Get("job"), status, func(j *overview.Job) string { return j.Series })
	default:
		s.answerWith(w, r, answer.Series)
	}
}

// events are those after a serial.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	status, values := s.look(w, r, "since")
	if status == nil {
		return
	}
	var since uint64
	if text := values.Get("since"); text != "" {
		var err error
		if since, err = strconv.ParseUint(text, 10, 64); err != nil {
			fail(w, http.StatusBadRequest, fmt.Sprintf("since %q: want the serial of an event", clip(text)))
			return
		}
	}
	found, err := ask(r.Context(), s.hub, func(t Tracker) []overview.Event { return t.Events(since) })
	if err != nil {
		unavailable(w, err)
		return
	}
	s.answerWith(w, r, struct {
		NowMS  int64            `json:"now_ms"`
		Events []overview.Event `json:"events"`
	}{status.NowMS, list(found)})
}
