package loglimit

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// limited gives a logger with a clock that stands, and what it has written.
func limited(now *time.Time) (*slog.Logger, *bytes.Buffer) {
	var out bytes.Buffer
	log := Logger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	log.Handler().(handler).limits.now = func() time.Time { return *now }
	return log, &out
}

// A message that is repeated passes as often as the limit says; the next one says how many did not.
func TestRepeatsAreSuppressedAndCounted(t *testing.T) {
	now := time.Unix(1, 0)
	log, out := limited(&now)
	for n := range 30_000 {
		log.Warn("frame dropped", "n", n)
	}
	if got := strings.Count(out.String(), "\n"); got != burst {
		t.Errorf("%d lines of 30,000, want %d", got, burst)
	}
	out.Reset()
	log.With("job", "j").WithGroup("g").Warn("frame dropped") // the same message, by a logger that was made of it
	if out.Len() > 0 {
		t.Errorf("beyond the limit: %s", out)
	}
	log.Error("job failed", "job", "j") // another one, and of another level
	log.Error("frame dropped")
	if got := strings.Count(out.String(), "\n"); got != 2 || strings.Contains(out.String(), "suppressed") {
		t.Errorf("others: %s", out)
	}
	out.Reset()
	now = now.Add(every)
	log.Warn("frame dropped")
	log.Warn("frame dropped")
	if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "suppressed=29901") {
		t.Errorf("a second later: %s", got)
	}
	out.Reset()
	now = now.Add(2 * burst * every)
	for range 2 * burst {
		log.Warn("frame dropped")
	}
	if got := out.String(); strings.Count(got, "\n") != burst || strings.Count(got, "suppressed") != 1 {
		t.Errorf("much later: %d lines", strings.Count(got, "\n"))
	}
	out.Reset()
	for range 2 * burst {
		log.Debug("asked for")
	}
	if got := strings.Count(out.String(), "\n"); got != 2*burst {
		t.Errorf("%d lines of DEBUG, want all", got)
	}
}

// Records of one message are limited apart by their kind.
func TestApart(t *testing.T) {
	now := time.Unix(1, 0)
	log, out := limited(&now)
	for range 2 * burst {
		log.WarnContext(Apart(t.Context(), "client"), "nats server")
	}
	log.WarnContext(Apart(t.Context(), "own"), "nats server")
	if got := strings.Count(out.String(), "\n"); got != burst+1 {
		t.Errorf("%d lines, want %d", got, burst+1)
	}
}

// Messages without end take bounded memory and a bounded number of lines, and none that was known loses its place.
func TestMessagesWithoutEnd(t *testing.T) {
	now := time.Unix(1, 0)
	log, out := limited(&now)
	log.Error("job failed")
	for n := range 20 * messagesMax {
		log.Info(fmt.Sprintf("message %d", n))
	}
	if got := strings.Count(out.String(), "\n"); got > messagesMax+burst {
		t.Errorf("%d lines, want at most %d", got, messagesMax+burst)
	}
	if got := len(log.Handler().(handler).limits.of); got > messagesMax+1 { // and the place
		t.Errorf("%d messages are known, want at most %d", got, messagesMax+1)
	}
	out.Reset()
	log.Error("job failed")
	if !strings.Contains(out.String(), "job failed") {
		t.Error("a message that was known before is suppressed")
	}
	for n := range 3 {
		log.Info(fmt.Sprintf("another %d", n))
	}
	if !strings.Contains(out.String(), "another 2") {
		t.Error("what one place has made up suppresses what another logs")
	}
	now = now.Add(2 * burst * every)
	out.Reset()
	log.Info("new")
	if !strings.Contains(out.String(), "msg=new") || len(log.Handler().(handler).limits.of) > 2 {
		t.Errorf("much later: %s", out)
	}
}

// A logger is limited once, and one that is not there drops everything.
func TestLogger(t *testing.T) {
	Logger(nil).Error("dropped")
	log := Logger(slog.New(slog.DiscardHandler))
	if Logger(log) != log || Logger(log.With("a", 1)).Handler().(handler).limits != log.Handler().(handler).limits {
		t.Error("limited twice")
	}
}
