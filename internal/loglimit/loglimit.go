// Package loglimit bounds how often a log repeats a message, so that what others send to a program cannot fill its
// disk or bury what matters.
//
// Most messages are fixed texts, and what varies is in attributes: see docs/logs.md. Each, at each level, passes burst
// times at once and then once a second. The next that passes says in the attribute suppressed how many did not. Some
// texts have words of others in them, of which there is no end. So beyond messagesMax texts the place in the program
// that logs stands for a message: what others make up there takes nothing from other places. Records below INFO pass
// always: they are asked for. Apart is for one text that stands for several places, such as those of a library.
//
// The package knows log/slog. It must not know what is logged.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	burst       = 100         // as many trainers join at once, each with a line of its own
	every       = time.Second // between two of a message that has used up its burst
	messagesMax = 1024        // texts that are known at once; others share what the place that logs them has
)

// Logger gives a logger whose messages are limited; nil becomes one that drops everything. A logger that is limited
// already is given back as it is.
func Logger(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	if _, limited := log.Handler().(handler); limited {
		return log
	}
	return slog.New(handler{log.Handler(), &limits{of: map[message]*quota{}, now: time.Now}})
}

// handler passes what is within the limits, which it shares with the handlers made of it.
type handler struct {
	slog.Handler
	limits *limits
}

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		missed, pass := h.limits.allow(message{level: r.Level, text: r.Message, kind: kindOf(ctx)}, r.PC)
		if !pass {
			return nil
		}
		if missed > 0 {
			return slog.New(h.Handler).With("suppressed", missed).Handler().Handle(ctx, r)
		}
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.limits}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.limits}
}

type message struct {
	level slog.Level
	text  string  // empty where it is one of too many
	kind  string  // of Apart; empty likewise
	place uintptr // in the program, of all of these that it logs; else 0
}

// kindKey finds the kind in a record's context.
type kindKey struct{}

// Apart gives a context whose records are limited by their kind, too. There are to be few kinds of a text.
func Apart(ctx context.Context, kind string) context.Context {
	return context.WithValue(ctx, kindKey{}, kind)
}

func kindOf(ctx context.Context) string {
	kind, _ := ctx.Value(kindKey{}).(string)
	return kind
}

// limits counts messages. It is safe for concurrent use.
type limits struct {
	now func() time.Time

	mu sync.Mutex // guards the rest
	of map[message]*quota
}

// quota is what a message may still use.
type quota struct {
	*rate.Limiter
	missed uint64 // since the last that passed
}

// allow counts a message that a place in the program logs, and tells whether it passes, and how many before it did not.
func (l *limits) allow(m message, place uintptr) (missed uint64, pass bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	q := l.of[m]
	if q == nil {
		if len(l.of) >= messagesMax {
			l.forget(now)
		}
		if len(l.of) >= messagesMax {
			m.text, m.kind, m.place = "", "", place
		}
		if q = l.of[m]; q == nil {
			q = &quota{Limiter: rate.NewLimiter(rate.Every(every), burst)}
			l.of[m] = q
		}
	}
	if !q.AllowN(now, 1) {
		q.missed++
		return 0, false
	}
	missed, q.missed = q.missed, 0
	return missed, true
}

// forget drops the messages that have their whole burst again, and of which none was suppressed.
func (l *limits) forget(now time.Time) {
	for m, q := range l.of {
		if q.missed == 0 && q.TokensAt(now) >= burst {
			delete(l.of, m)
		}
	}
}
