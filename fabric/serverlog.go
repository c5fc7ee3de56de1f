package fabric

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
)

// serverLog passes what the embedded server has to say to slog, from warnings on, as one message: what clients can have
// it say is then limited with that. A reader that is cut off is a
// warning to us, though NATS gives it as a notice.
type serverLog struct {
	log *slog.Logger

	mu    sync.Mutex
	first error // first fatal error; guarded by mu
}

func (l *serverLog) Noticef(format string, v ...any) {
	if strings.Contains(format, "Slow Consumer") {
		l.Warnf(format, v...)
	}
}

func (l *serverLog) Warnf(format string, v ...any) {
	l.log.Warn("nats server", "component", "nats", "text", fmt.Sprintf(format, v...))
}

func (l *serverLog) Errorf(format string, v ...any) {
	l.log.Error("nats server", "component", "nats", "text", fmt.Sprintf(format, v...))
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
