package config

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"gradbus/internal/loglimit"
)

// Forms of a log.
const (
	logAuto = "auto" // text on a terminal, JSON elsewhere
	LogText = "text" // key=value, for people
	LogJSON = "json" // one object a line, for what collects logs
)

// Log is the logging configuration of a command.
type Log struct {
	Format string // logAuto, LogText or LogJSON
	Level  string // debug, info, warn or error

	least *slog.LevelVar // of the log that is open; nil before
}

// Add gives a command the flags --log-format and --log-level.
func (l *Log) Add(flags *pflag.FlagSet) {
	flags.StringVar(&l.Format, "log-format", logAuto,
		"`FORMAT`: text, json, or auto (text on a terminal, JSON elsewhere)")
	flags.StringVar(&l.Level, "log-level", "info",
		"`LEVEL`: lowest level that is logged: debug, info, warn or error")
}

// Args are the flags for a process of ours whose log this one reads, or hands on as it is.
func (l *Log) Args(format string) []string {
	return []string{"--log-format", format, "--log-level", l.Level}
}

// Logger opens a log, in which no message repeats without bound. Keys of records are named as the labels of metrics
// are: job, member, shard, server, gpu, reason.
func (l *Log) Logger(to io.Writer) (*slog.Logger, error) {
	least, err := l.leastLevel()
	if err != nil {
		return nil, err
	}
	l.least = new(slog.LevelVar)
	l.least.Set(least)
	o := slog.HandlerOptions{Level: l.least}
	format := l.Format
	if format == logAuto {
		if format = LogJSON; isTerminal(to) {
			format = LogText
		}
	}
	switch format {
	case LogText:
		return loglimit.Logger(slog.New(onceHandler{to: slog.NewTextHandler(to, &o)})), nil
	case LogJSON:
		return loglimit.Logger(slog.New(onceHandler{to: slog.NewJSONHandler(to, &o)})), nil
	}
	return nil, fmt.Errorf("log-format %q: want %s", l.Format, strings.Join([]string{logAuto, LogText, LogJSON}, ", "))
}

// Reload gives the log that is open the level that the flag has by now, and reports whether that is another one.
func (l *Log) Reload() (changed bool, err error) {
	least, err := l.leastLevel()
	if err == nil && least != l.least.Level() {
		changed = true
		l.least.Set(least)
	}
	return changed, err
}

// leastLevel is the level that the flag names.
func (l *Log) leastLevel() (slog.Level, error) {
	switch l.Level {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("log-level %q: want debug, info, warn or error", l.Level)
}

// isTerminal tells whether what is written is seen by a person at a terminal.
func isTerminal(to any) bool {
	file, ok := to.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// Relay hands on what another process of ours logs as JSON, in the form that this one logs in.
type Relay struct {
	To    slog.Handler
	Least slog.Level // what is below is dropped: of what all say alike at their start, one is enough
}

// Line takes a line, and tells whether it was one of a log.
func (r Relay) Line(line []byte) bool {
	var known struct {
		Time  time.Time  `json:"time"`
		Level slog.Level `json:"level"`
		Text  *string    `json:"msg"`
	}
	fields := map[string]any{}
	if json.Unmarshal(line, &known) != nil || known.Text == nil || json.Unmarshal(line, &fields) != nil {
		return false
	}
	if known.Level < r.Least || !r.To.Enabled(context.Background(), known.Level) {
		return true
	}
	record := slog.NewRecord(known.Time, known.Level, *known.Text, 0)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if key != slog.TimeKey && key != slog.LevelKey && key != slog.MessageKey {
			record.AddAttrs(slog.Any(key, fields[key]))
		}
	}
	_ = r.To.Handle(context.Background(), record) // a log that cannot be written to is no reason to stop
	return true
}

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
