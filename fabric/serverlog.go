package fabric

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"gradbus/internal/loglimit"
)

// serverLog passes what the embedded server has to say to slog, from warnings on, as one message. What clients can have
// it say, with names of theirs, is limited together, apart from what it says itself. A reader that is cut off is a
// warning to us, though NATS gives it as a notice.
type serverLog struct {
	log *slog.Logger

	mu    sync.Mutex
	first error // first fatal error; guarded by mu
}

func (l *serverLog) Noticef(format string, v ...any) {
	if strings.Contains(format, "Slow Consumer") {
		l.say(slog.LevelWarn, "slow consumer", fmt.Sprintf(format, v...))
	}
}

func (l *serverLog) Warnf(format string, v ...any) { l.sayOf(slog.LevelWarn, format, v...) }

func (l *serverLog) Errorf(format string, v ...any) { l.sayOf(slog.LevelError, format, v...) }

// clientMark is in what NATS says of a client, which may have made the format, too.
const clientMark = " - cid:"

func (l *serverLog) sayOf(level slog.Level, format string, v ...any) {
	text, kind := fmt.Sprintf(format, v...), format
	if strings.Contains(text, clientMark) {
		kind = "client"
	}
	l.say(level, kind, text)
}

func (l *serverLog) say(level slog.Level, kind, text string) {
	l.log.Log(loglimit.Apart(context.Background(), kind), level, "nats server", "component", "nats", "text", text)
}

// Fatalf keeps the error for StartServer to return, with what it wraps. NATS calls it and returns; a library does not
// exit.
func (l *serverLog) Fatalf(format string, v ...any) {
	err := fmt.Errorf(format, v...)
	for _, arg := range v {
		if cause, ok := arg.(error); ok {
			err = cause
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		l.first = err
	}
}

func (l *serverLog) fatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

func (l *serverLog) Debugf(string, ...any) {}
func (l *serverLog) Tracef(string, ...any) {}
