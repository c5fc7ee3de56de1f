package config

import (
	"context"
	"log/slog"
	"slices"
)

// onceHandler hands records on with every key once. Of several values the one nearest to the record counts: what a
// trainer says of itself, rather than what its starter says of it.
type onceHandler struct {
	to    slog.Handler
	attrs []slog.Attr // of With
}

func (h onceHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.to.Enabled(ctx, level)
}

func (h onceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return onceHandler{h.to, mergeAttrs(h.attrs, slices.Values(attrs))}
}

// WithGroup leaves what follows to the other handler: keys of a group are its own.
func (h onceHandler) WithGroup(name string) slog.Handler {
	return h.to.WithAttrs(h.attrs).WithGroup(name)
}

func (h onceHandler) Handle(ctx context.Context, record slog.Record) error {
	once := slog.NewRecord(record.Time, record.Level, record.Message, record.PC)
	once.AddAttrs(mergeAttrs(h.attrs, func(yield func(slog.Attr) bool) { record.Attrs(yield) })...)
	return h.to.Handle(ctx, once)
}

// mergeAttrs is a copy of attributes with others, which replace those of their keys.
func mergeAttrs(attrs []slog.Attr, others func(yield func(slog.Attr) bool)) []slog.Attr {
	all := slices.Clone(attrs)
	for a := range others {
		if i := slices.IndexFunc(all, func(b slog.Attr) bool { return b.Key == a.Key }); i >= 0 {
			all[i] = a
		} else {
			all = append(all, a)
		}
	}
	return all
}
