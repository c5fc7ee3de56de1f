// Package loglimit limits how often a log repeats a message, so that remote input cannot fill a disk or hide what
// matters. Logger wraps a logger.
//
// Most messages are fixed texts with attributes: see docs/logs.md. Each message, at each level, passes burst times at
// once and then once a second. The next one that passes has the number of suppressed ones in the attribute suppressed.
// Some texts contain remote input, and are unlimited in number. So beyond messagesMax texts, the place in the program
// that logs represents a message: remote input there does not use the quota of other places. Records below INFO always
// pass, because they were requested. Apart is for one text of several places, such as those of a library.
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

// Logger returns a logger whose messages are limited; for nil, one that drops everything. A logger that is already
// limited is returned as it is.
func Logger(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	if _, limited := log.Handler().(handler); limited {
		return log
	}
	return slog.New(handler{log.Handler(), &limits{of: map[message]*quota{}, now: time.Now}})
}

// handler passes messages within the limits, which it shares with the handlers derived from it.
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

// Apart returns a context whose records are limited by their kind, too. Use few kinds for a text.
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

// quota is the remaining use of a message.
type quota struct {
	*rate.Limiter
	missed uint64 // since the last one that passed
}

// allow counts a message of a place in the program, and returns whether it passes, and how many were suppressed before
// it.
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

// forget drops the messages that have their whole burst again, and none of which was suppressed.
func (l *limits) forget(now time.Time) {
	for m, q := range l.of {
		if q.missed == 0 && q.TokensAt(now) >= burst {
			delete(l.of, m)
		}
	}
}
