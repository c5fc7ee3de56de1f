package ops

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// healthz says whether the control loop turns, and asks nothing else: what restarts a ps must not do so for want of a
// GPU.
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
