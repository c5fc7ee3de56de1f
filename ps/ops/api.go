package ops

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"gradbus/ps/ops/status"
)

// handler is all paths, behind all rules.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/status", s.api(s.status))
	mux.HandleFunc("/api/v1/series", s.api(s.series, "job", "since"))
	mux.HandleFunc("/api/v1/events", s.api(s.events, "since"))
	mux.HandleFunc("/api/v1/gpus", s.api(s.gpus))
	mux.HandleFunc("/api/v1/trainers", s.api(s.trainers, "job"))
	mux.HandleFunc("/api/v1/shards", s.api(s.shards, "job"))
	mux.HandleFunc(resetPath, s.taking(http.HandlerFunc(s.resetBuckets), "job"))
	mux.HandleFunc("/api/v1/stream", s.taking(http.HandlerFunc(s.stream)))
	mux.HandleFunc("/healthz", s.taking(http.HandlerFunc(s.healthz)))
	mux.HandleFunc("/readyz", s.taking(http.HandlerFunc(s.readyz), "verbose"))
	mux.HandleFunc("/login", s.taking(http.HandlerFunc(s.login)))
	if s.config.Metrics != nil {
		mux.HandleFunc(metricsPath, s.taking(s.config.Metrics))
	}
	mux.Handle("/", s.files)
	return s.guarded(s.guard, mux)
}

// Paths with rules of their own: resetPath is the one that changes what others are shown.
const (
	resetPath   = "/api/v1/buckets/reset"
	metricsPath = "/metrics"
)

var (
	readMethods  = []string{http.MethodGet, http.MethodHead}
	loginMethods = []string{http.MethodGet, http.MethodHead, http.MethodPost}
	resetMethods = []string{http.MethodPost}
)

// methods are those that a path takes.
func (s *Server) methods(path string) []string {
	switch {
	case path == "/login" && s.tokens.Load().page != nil:
		return loginMethods
	case path == resetPath:
		return resetMethods
	}
	return readMethods
}

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
		tokens := s.tokens.Load()
		methods, lets := s.methods(r.URL.Path), tokens.lets(r)
		if why := g.check(r, methods, isProbe(r) || lets && isScrape(r)); why != nil {
			if why.status == http.StatusMethodNotAllowed {
				w.Header().Set("Allow", strings.Join(methods, ", "))
			}
			s.refuse(w, why)
			return
		}
		if in := connectionOf(r); lets && in != nil {
			in.enter(admitted)
		}
		if tokens.asks(r.URL.Path) && !lets && !s.isOpen(r) {
			s.deny(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isOpen says of which paths that say nothing which a token protects: an orchestrator's probes, the way in, and the
// files of the page, which are those of every gradbus.
func (s *Server) isOpen(r *http.Request) bool {
	return isProbe(r) || r.URL.Path == "/login" || s.files.byPath[r.URL.Path] != nil
}

// isProbe reports whether a request is answered with ok or not, and nothing else.
func isProbe(r *http.Request) bool {
	return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" && !r.URL.Query().Has("verbose")
}

// isScrape reports whether a request is for the metrics and shows a token as no page of another site can.
func isScrape(r *http.Request) bool {
	_, shown := bearer(r)
	return shown && r.URL.Path == metricsPath
}

// lazy makes the JSON of an answer, which may be long, when it is its turn.
type lazy func() ([]byte, error)

// api answers a path with what give says of the latest status. Its errors are refusals, or why the status cannot be
// asked.
func (s *Server) api(give func(ctx context.Context, view *status.Status, values url.Values) (lazy, error),
	known ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		values, ok := s.parameters(w, r, known...)
		if !ok {
			return
		}
		var t lazy
		err := ErrStarting
		if view := s.hub.Status(); view != nil {
			t, err = give(r.Context(), view, values)
		}
		var why *refusal
		switch {
		case errors.As(err, &why):
			fail(w, why.status, why.text)
		case err != nil:
			w.Header().Set("Retry-After", "1")
			fail(w, http.StatusServiceUnavailable, err.Error())
		default:
			s.answer(w, r, t)
		}
	}
}

// parameters reads those of a request; one that the path does not take, or a second of a kind, is an error that names
// those it does.
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

// status is the whole view.
func (s *Server) status(context.Context, *status.Status, url.Values) (lazy, error) {
	return s.hub.latest.Load().asStatus, nil
}

// answer sends JSON, compressed where that is worth it. A quarter of the processors may make answers at once: what many
// ask for must not keep shards from theirs. Nobody waits here for a client.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, text lazy) {
	select {
	case s.making <- struct{}{}:
	case <-r.Context().Done():
		return
	}
	body, packed, err := s.made(text, acceptsGzip(r) && r.Method != http.MethodHead)
	if why := (*refusal)(nil); errors.As(err, &why) {
		fail(w, why.status, why.text)
		return
	}
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
	send(w, r, http.StatusOK, body)
}

// made makes an answer, and its compressed form where that is worth it, and gives back the place among those who do.
func (s *Server) made(text lazy, compress bool) (body, packed []byte, err error) {
	const worth = 2 << 10 // bytes; below that it is one packet or two in any case
	defer func() { <-s.making }()
	if body, err = text(); err == nil && compress && len(body) > worth {
		packed = gzipped(body, gzip.BestSpeed)
	}
	return body, packed, err
}

// listed is a list and the time that it is of. It is never null, as [] and null are two things to those who read JSON.
func listed[T any](view *status.Status, name string, all []T) (lazy, error) {
	if all == nil {
		all = []T{}
	}
	return func() ([]byte, error) { return json.Marshal(map[string]any{"now_ms": view.NowMS, name: all}) }, nil
}

// gpus are all GPUs of all machines.
func (s *Server) gpus(_ context.Context, view *status.Status, _ url.Values) (lazy, error) {
	return listed(view, "gpus", view.GPUs)
}

// trainers are those of one job, or of all, each with its job.
func (s *Server) trainers(_ context.Context, view *status.Status, values url.Values) (lazy, error) {
	type trainer struct {
		Job string `json:"job"`
		status.Trainer
	}
	return listedOfJobs(view, values, "trainers", func(j *status.Job) (all []trainer) {
		for _, t := range j.Trainers {
			all = append(all, trainer{j.Name, t})
		}
		return all
	})
}

// shards are those of one job, or of all, each with its job.
func (s *Server) shards(_ context.Context, view *status.Status, values url.Values) (lazy, error) {
	type shard struct {
		Job string `json:"job"`
		status.Shard
	}
	return listedOfJobs(view, values, "shards", func(j *status.Job) (all []shard) {
		for _, t := range j.Shards {
			all = append(all, shard{j.Name, t})
		}
		return all
	})
}

// listedOfJobs is the list of what the jobs have that a request is about.
func listedOfJobs[T any](view *status.Status, values url.Values, name string, of func(*status.Job) []T) (lazy, error) {
	var all []T
	found := !values.Has("job")
	for i := range view.Jobs {
		if j := &view.Jobs[i]; !values.Has("job") || j.Name == values.Get("job") {
			found = true
			all = append(all, of(j)...)
		}
	}
	if !found {
		return nil, noJob(view, values, func(j *status.Job) string { return j.Name })
	}
	return listed(view, name, all)
}

// resetBuckets begins anew what is shown of each bucket.
func (s *Server) resetBuckets(w http.ResponseWriter, r *http.Request) {
	view, values := s.hub.Status(), r.URL.Query()
	switch {
	case view == nil:
		w.Header().Set("Retry-After", "1")
		fail(w, http.StatusServiceUnavailable, ErrStarting.Error())
	case s.config.ResetBuckets != nil && s.config.ResetBuckets(values.Get("job")):
		w.WriteHeader(http.StatusNoContent)
	default:
		fail(w, http.StatusNotFound, fmt.Sprintf("no shard of job %q is on this ps", clip(values.Get("job"))))
	}
}

// noJob names those that there are, by what of says of each.
func noJob(view *status.Status, values url.Values, of func(*status.Job) string) error {
	var known []string
	for i := range view.Jobs {
		known = append(known, of(&view.Jobs[i]))
	}
	there := "there is none"
	if len(known) > 0 {
		there = "there are " + strings.Join(known, ", ")
	}
	return &refusal{http.StatusNotFound, fmt.Sprintf("no job %q: %s", clip(values.Get("job")), there)}
}

// series are the curves of a job.
func (s *Server) series(ctx context.Context, view *status.Status, values url.Values) (lazy, error) {
	since, err := strconv.ParseInt(cmp.Or(values.Get("since"), "0"), 10, 64)
	if err != nil {
		return nil,
			&refusal{http.StatusBadRequest, fmt.Sprintf("since %q: want milliseconds since 1970", clip(values.Get("since")))}
	}
	found := false
	answer, err := ask(ctx, s.hub, func(t Tracker) (answer status.Series) {
		answer, found = t.Series(values.Get("job"), since)
		return answer
	})
	if err == nil && !found {
		err = noJob(view, values, func(j *status.Job) string { return j.Series })
	}
	return func() ([]byte, error) { return json.Marshal(answer) }, err
}

// events are those after a serial.
func (s *Server) events(ctx context.Context, view *status.Status, values url.Values) (lazy, error) {
	since, err := strconv.ParseUint(cmp.Or(values.Get("since"), "0"), 10, 64)
	if err != nil {
		return nil,
			&refusal{http.StatusBadRequest, fmt.Sprintf("since %q: want the serial of an event", clip(values.Get("since")))}
	}
	found, err := ask(ctx, s.hub, func(t Tracker) []status.Event { return t.Events(since) })
	if err != nil {
		return nil, err
	}
	return listed(view, "events", found)
}
