package ops

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gradbus/ps/ops/status"
)

// handler is all paths, behind all rules.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/status", s.api(s.status))
	mux.HandleFunc("/api/v1/series", s.api(s.series, "job", "since"))
	mux.HandleFunc("/api/v1/events", s.api(s.events, "since"))
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

const metricsPath = "/metrics"

var (
	readMethods  = []string{http.MethodGet, http.MethodHead}
	loginMethods = []string{http.MethodPost}
)

// methods returns the methods that a path accepts.
func (s *Server) methods(path string) []string {
	if path == "/login" && s.tokens.Load().page != nil {
		return loginMethods
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

// api answers a path with the JSON of what give returns for the latest status; a []byte is JSON already. Its errors are
// refusals, or say why the status cannot be read.
func (s *Server) api(give func(view *view, values url.Values) (any, error), known ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		values, ok := s.parameters(w, r, known...)
		if !ok {
			return
		}
		var given any
		err := ErrStarting
		if view := s.hub.latest.Load(); view.made() {
			given, err = give(view, values)
		}
		body, ready := given.([]byte)
		var broken error
		if err == nil && !ready {
			body, broken = json.Marshal(given)
		}
		var why *refusal
		switch {
		case errors.As(err, &why):
			fail(w, why.status, why.text)
		case err != nil:
			w.Header().Set("Retry-After", "1")
			fail(w, http.StatusServiceUnavailable, err.Error())
		case broken != nil:
			s.faults.Add(1)
			s.log.Error("answer not written", "path", r.URL.Path, "err", broken)
			fail(w, http.StatusInternalServerError, "the answer cannot be written: see the log of the ps")
		default:
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			send(w, r, http.StatusOK, body)
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

// taking refuses parameters that a path does not know.
func (s *Server) taking(next http.Handler, known ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, ok := s.parameters(w, r, known...); ok {
			next.ServeHTTP(w, r)
		}
	}
}

// status is the whole view.
func (s *Server) status(view *view, _ url.Values) (any, error) { return view.status() }

// noJob names the series that there are.
func noJob(view *view, values url.Values) error {
	var known []string
	for i := range view.update.Status.Jobs {
		known = append(known, view.update.Status.Jobs[i].Series)
	}
	there := "there is none"
	if len(known) > 0 {
		there = "there are " + strings.Join(known, ", ")
	}
	return &refusal{http.StatusNotFound, fmt.Sprintf("no job %q: %s", clip(values.Get("job")), there)}
}

// series are the curves of a job.
func (s *Server) series(view *view, values url.Values) (any, error) {
	since, err := strconv.ParseInt(cmp.Or(values.Get("since"), "0"), 10, 64)
	if err != nil {
		return nil,
			&refusal{http.StatusBadRequest, fmt.Sprintf("since %q: want milliseconds since 1970", clip(values.Get("since")))}
	}
	found := false
	answer, err := query(s.hub, func(t Tracker) (answer status.Series) {
		answer, found = t.Series(values.Get("job"), since)
		return answer
	})
	if err == nil && !found {
		err = noJob(view, values)
	}
	return answer, err
}

// events are those after a serial.
func (s *Server) events(view *view, values url.Values) (any, error) {
	since, err := strconv.ParseUint(cmp.Or(values.Get("since"), "0"), 10, 64)
	if err != nil {
		return nil,
			&refusal{http.StatusBadRequest, fmt.Sprintf("since %q: want the serial of an event", clip(values.Get("since")))}
	}
	found, err := query(s.hub, func(t Tracker) []status.Event { return t.Events(since) })
	return map[string]any{"now_ms": view.update.Status.NowMS, "events": append([]status.Event{}, found...)}, err // never null
}

// hello begins a stream: how soon a browser that lost it should ask for another, in milliseconds.
const hello = "retry: 1000\n\n"

var errNoRoom = &refusal{http.StatusServiceUnavailable,
	"too many streams are open: close a page that shows this ps, or ask /api/v1/status now and then"}

// stream sends an update once a second, and at once when the first problem on the page changes. Its clients share every
// update. A slow client receives the newest update when it has read the last, and is cut off when that takes longer
// than streamTime; it delays no other client and holds at most one update, the one being sent.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if s.streams.Add(1) > int64(s.limits.streamsMax) {
		s.streams.Add(-1)
		h.Set("Retry-After", "10")
		s.refuse(w, errNoRoom)
		return
	}
	defer s.streams.Add(-1)
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no") // for a proxy that would wait for more
	if r.Method == http.MethodHead {
		return
	}
	if in := connectionOf(r); in != nil {
		in.enter(streaming)
		defer in.enter(answering)
		in.narrow()
	}
	out := http.NewResponseController(w)
	send := func(part []byte) error {
		if err := out.SetWriteDeadline(time.Now().Add(s.limits.streamTime)); err != nil {
			return err
		}
		if _, err := w.Write(part); err != nil {
			return err
		}
		return out.Flush()
	}
	if send([]byte(hello)) == nil {
		s.follow(r, send)
	}
}

// follow sends updates until the client or the process ends.
func (s *Server) follow(r *http.Request, send func([]byte) error) {
	for last := uint64(0); ; {
		v := s.hub.latest.Load()
		if v.made() {
			event, err := v.event()
			if err != nil {
				s.faults.Add(1)
				s.log.Error("update not sent", "err", err)
				return
			}
			if send(event) != nil {
				return
			}
			if serial := v.update.Status.Serial; last > 0 && serial > last+1 {
				s.missed.Add(serial - last - 1)
			}
			last = v.update.Status.Serial
		}
		select {
		case <-v.newer:
		case <-r.Context().Done():
			return
		case <-s.stop:
			return
		case <-s.hub.stop:
			return
		}
	}
}

// healthz reports whether the control loop turns, and nothing else: an orchestrator must not restart a ps because a GPU
// is missing.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	if _, err := s.alive(); err != nil {
		text(w, r, http.StatusServiceUnavailable, err.Error()+"\n")
		return
	}
	text(w, r, http.StatusOK, "ok\n")
}

func (s *Server) alive() (string, error) {
	if s.config.Alive == nil {
		return "not watched", nil
	}
	at := s.config.Alive()
	if at.IsZero() {
		return "starting", nil
	}
	if still := time.Since(at); still > s.limits.aliveTime {
		return "", fmt.Errorf("the control loop has stood still for %s, want at most %s", still.Round(100*time.Millisecond),
			s.limits.aliveTime)
	}
	return "turns", nil
}

// readyz says whether the ps can do its work, and with ?verbose what holds, a line each.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	checks := s.checks()
	status, all := http.StatusOK, "ok\n"
	var lines strings.Builder
	for _, c := range checks {
		mark := "ok    "
		if !c.OK {
			mark = "failed"
			status, all = http.StatusServiceUnavailable, "not ready: /readyz?verbose says why\n"
		}
		fmt.Fprintf(&lines, "%s  %s: %s\n", mark, c.Name, strings.ReplaceAll(c.Text, "\n", " "))
	}
	if r.URL.Query().Has("verbose") {
		all = lines.String()
	}
	text(w, r, status, all)
}

// checks are ours and the ps's.
func (s *Server) checks() []Check {
	said, err := s.alive()
	loop := Check{Name: "control-loop", OK: err == nil, Text: said}
	if err != nil {
		loop.Text = err.Error()
	}
	view := Check{Name: "status", Text: ErrStarting.Error()}
	if age, ok := s.hub.age(time.Now()); ok {
		view.OK = age < s.limits.aliveTime
		view.Text = fmt.Sprintf("%s old", age.Round(10*time.Millisecond))
	}
	checks := []Check{loop, view}
	if s.config.Checks != nil {
		checks = append(checks, s.config.Checks()...)
	}
	return checks
}

func text(w http.ResponseWriter, r *http.Request, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	send(w, r, status, []byte(body))
}

// files are the page: read once, and served from memory by their whole path alone. There is no folder
// to list, and no path leads out.
type files struct{ byPath map[string]*file }

type file struct {
	kind, tag string // Content-Type; hash of the content
	text      []byte
}

// placeholder stands where there is no page.
const placeholder = `<!doctype html><html lang="en"><meta charset="utf-8"><title>gradbus</title><p>This ps has no page. See <a href="/api/v1/status">/api/v1/status</a>.</p></html>`

// load reads all files of the page.
func load(from fs.FS) (*files, error) {
	all := &files{byPath: map[string]*file{}}
	if from == nil {
		all.byPath["/"] = newFile("index.html", []byte(placeholder))
		return all, nil
	}
	err := fs.WalkDir(from, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		at := "/" + name
		if name == "index.html" {
			at = "/"
		}
		all.byPath[at] = newFile(name, data)
		return nil
	})
	if err == nil && all.byPath["/"] == nil {
		err = fmt.Errorf("no index.html")
	}
	if err != nil {
		return nil, fmt.Errorf("files of the page: %w", err)
	}
	return all, nil
}

func newFile(name string, data []byte) *file {
	sum := sha256.Sum256(data)
	return &file{kind: kindOf(name), tag: `"` + hex.EncodeToString(sum[:12]) + `"`, text: data}
}

// kindOf is the Content-Type of a file by its name; the system's table, which differs between machines, is not asked.
func kindOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	case ".txt", "":
		return "text/plain; charset=utf-8"
	}
	return "application/octet-stream"
}

// ServeHTTP answers with a file. It is asked for again each time, by its hash: a changed program never meets an old
// page.
func (f *files) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	found := f.byPath[r.URL.Path]
	if found == nil {
		fail(w, http.StatusNotFound, fmt.Sprintf("no %q here: the page is at /, the API below /api/v1/", clip(r.URL.Path)))
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", found.tag)
	h.Set("Content-Type", found.kind)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(found.text))
}

// send writes a whole body.
func send(w http.ResponseWriter, r *http.Request, status int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client is gone where this fails
	}
}

// runbooksPage is the page of the runbooks, in the dress of the page. Like the page's own files it is that of every
// gradbus, and no token is asked for it: links in alerts lead here.
func runbooksPage(text string) *file {
	return newFile("runbooks.html", []byte(`<!doctype html><html lang="en"><head><meta charset="utf-8">`+
		`<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="dark light">`+
		`<title>Runbooks – gradbus</title><link rel="icon" href="data:,"><link rel="stylesheet" href="assets/page.css">`+
		`<script src="assets/theme.js"></script></head><body><header class="top"><p class="home"><a href="./">gradbus</a></p>`+
		`</header><main class="leaf">`+markdown(text)+"</main></body></html>\n"))
}

// markdown is the HTML of what runbooks hold: headings, paragraphs and lists. A heading of the second level is an
// anchor.
func markdown(text string) string {
	var b strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		block = strings.TrimSpace(block)
		marks := len(block) - len(strings.TrimLeft(block, "#"))
		heading := strings.TrimSpace(block[marks:])
		switch {
		case block == "":
		case marks == 2:
			fmt.Fprintf(&b, `<h2 id="%s">%s</h2>`, html.EscapeString(heading), inline(heading))
		case marks > 0:
			fmt.Fprintf(&b, "<h%d>%s</h%d>", marks, inline(heading), marks)
		case strings.HasPrefix(block, "- "):
			b.WriteString("<ul>")
			for item := range strings.SplitSeq("\n"+block, "\n- ") {
				if item = strings.TrimSpace(item); item != "" {
					b.WriteString("<li>" + inline(item) + "</li>")
				}
			}
			b.WriteString("</ul>")
		default:
			b.WriteString("<p>" + inline(block) + "</p>")
		}
	}
	return b.String()
}

var inlined = regexp.MustCompile("`([^`]+)`" + `|\[([^\]]+)\]\((#[a-z0-9-]+)\)`)

// inline is a line of text with its `code`, and links to other runbooks; all else is shown as it stands.
func inline(text string) string {
	var b strings.Builder
	at := 0
	for _, m := range inlined.FindAllStringSubmatchIndex(text, -1) {
		b.WriteString(html.EscapeString(text[at:m[0]]))
		if m[2] >= 0 {
			b.WriteString("<code>" + html.EscapeString(text[m[2]:m[3]]) + "</code>")
		} else {
			fmt.Fprintf(&b, `<a href="%s">%s</a>`, text[m[6]:m[7]], html.EscapeString(text[m[4]:m[5]]))
		}
		at = m[1]
	}
	b.WriteString(html.EscapeString(text[at:]))
	return b.String()
}
