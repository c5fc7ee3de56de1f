package update

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"gradbus/bench/harness"
	"gradbus/ps"
)

// stamped is a line of the log: the time of day and what happened.
func stamped(text string) string { return time.Now().Format("15:04:05") + " " + text }

// updates is a slog.Handler that says what a server does of a grouped job.
type updates struct{ member *harness.Member }

// Enabled implements slog.Handler.
func (h updates) Enabled(_ context.Context, level slog.Level) bool { return level == slog.LevelDebug }

// WithAttrs implements slog.Handler.
func (h updates) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup implements slog.Handler.
func (h updates) WithGroup(string) slog.Handler { return h }

// Handle implements slog.Handler.
func (h updates) Handle(_ context.Context, r slog.Record) error {
	number := map[string]int64{}
	r.Attrs(func(a slog.Attr) bool {
		if a.Value.Kind() == slog.KindInt64 {
			number[a.Key] = a.Value.Int64()
		}
		return true
	})
	switch r.Message {
	case ps.LogParked:
		return h.member.Say(stamped(fmt.Sprintf("PS got %d/%d updates", number["parked"], number["group"])))
	case ps.LogUpdated:
		return h.member.Say(stamped("PS updated model"))
	}
	return nil
}

// serverRole is a parameter server that says what it does.
func serverRole(ctx context.Context, m *harness.Member) (any, error) {
	var s harness.ServerSettings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	return harness.Serve(ctx, m, s, func(o *ps.Options) { o.Log = slog.New(updates{m}) })
}
