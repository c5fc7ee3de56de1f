package fabric

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// serverLogsPerSecond bounds what the server's clients can make it say.
const serverLogsPerSecond = 10

// serverLog passes what the embedded server has to say to slog, from warnings on. A reader that is cut off is a
// warning to us, though NATS gives it as a notice.
type serverLog struct {
	log   *slog.Logger
	limit Limiter

	mu    sync.Mutex
	first error // first fatal error; guarded by mu
}

func (l *serverLog) Noticef(format string, v ...any) {
	if strings.Contains(format, "Slow Consumer") {
		l.Warnf(format, v...)
	}
}

func (l *serverLog) Warnf(format string, v ...any) {
	if l.limit.Allow(time.Now()) {
		l.log.Warn(fmt.Sprintf(format, v...), "component", "nats")
	}
}
func (l *serverLog) Errorf(format string, v ...any) {
	if l.limit.Allow(time.Now()) {
		l.log.Error(fmt.Sprintf(format, v...), "component", "nats")
	}
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
