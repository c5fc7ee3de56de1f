package config

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func logOf(t *testing.T, args ...string) (*Log, error) {
	t.Helper()
	var l Log
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	l.Add(flags)
	return &l, flags.Parse(args)
}

func TestLogger(t *testing.T) {
	for _, c := range []struct {
		name, want string
		args       []string
	}{
		{"no terminal", `"level":"WARN","msg":"trainer lost","member":"t1"}`, nil},
		{"text", `level=WARN msg="trainer lost" member=t1`, []string{"--log-format", "text"}},
		{"json", `"level":"WARN","msg":"trainer lost","member":"t1"}`, []string{"--log-format", "json"}},
		{"least level", `"level":"WARN"`, []string{"--log-level", "warn"}},
		{"above", "", []string{"--log-level", "error"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := logOf(t, c.args...)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			log, err := l.Logger(&out)
			if err != nil {
				t.Fatal(err)
			}
			log.Debug("not told")
			log.Warn("trainer lost", "member", "t1")
			if got := out.String(); !strings.Contains(got, c.want) || (c.want == "") != (got == "") ||
				strings.Contains(got, "not told") {
				t.Errorf("logged %q, want %q in it", got, c.want)
			}
		})
	}
}

func TestLoggerRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		`log-format "xml": want auto, text, json`:            {"--log-format", "xml"},
		`log-level "loud": want debug, info, warn or error`:  {"--log-level", "loud"},
		`log-level "": want debug, info, warn or error`:      {"--log-level", ""},
		`log-level "DEBUG": want debug, info, warn or error`: {"--log-level", "DEBUG"},
	} {
		l, err := logOf(t, args...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Logger(os.Stderr); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", args, err, want)
		}
	}
}

// What another process logs comes out in our form, what is no log is told apart, and what is too quiet is dropped.
func TestRelay(t *testing.T) {
	var child, out bytes.Buffer
	other, err := (&Log{Format: LogJSON, Level: "debug"}).Logger(&child)
	if err != nil {
		t.Fatal(err)
	}
	other.Warn("server lost", "server", "s1", "after", 3)
	other.Info("backend chosen")
	relay := Relay{To: slog.NewJSONHandler(&out, nil).WithAttrs([]slog.Attr{slog.String("member", "t1")}),
		Least: slog.LevelWarn}
	for line := range bytes.Lines(child.Bytes()) {
		if !relay.Line(line) {
			t.Errorf("%s: not known as a log line", line)
		}
	}
	for _, line := range []string{"trainer: no server", "panic: x", `{"waiting":2}`, `[1]`, "", `{"msg":3}`,
		`{"level":"LOUD","msg":"x"}`} {
		if relay.Line([]byte(line)) {
			t.Errorf("%q: taken for a log line", line)
		}
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	if got["msg"] != "server lost" || got["level"] != "WARN" || got["member"] != "t1" || got["server"] != "s1" ||
		got["after"] != 3.0 || got["time"] == nil {
		t.Errorf("relayed %v", got)
	}
}

// A key is in a record once, with the value nearest to it, whatever the loggers on the way have added: of a spawned
// trainer, too, whose record says itself of whom it is.
func TestLoggerGivesKeysOnce(t *testing.T) {
	var child, out bytes.Buffer
	trainer, err := (&Log{Format: LogJSON, Level: "info"}).Logger(&child)
	if err != nil {
		t.Fatal(err)
	}
	starter, err := (&Log{Format: LogJSON, Level: "info"}).Logger(&out)
	if err != nil {
		t.Fatal(err)
	}
	trainer.With("job", "demo", "member", "t9").With("member", "t5").Warn("server lost", "job", "films", "member", "t0")
	relay := Relay{To: starter.With("member", "t1").Handler(), Least: slog.LevelWarn}
	if !relay.Line(child.Bytes()) {
		t.Errorf("%s: not known as a log line", child.Bytes())
	}
	for _, text := range []string{child.String(), out.String()} {
		if strings.Count(text, `"member"`) != 1 || strings.Count(text, `"job"`) != 1 ||
			!strings.Contains(text, `"member":"t0"`) || !strings.Contains(text, `"job":"films"`) {
			t.Errorf("%s: want member t0 of films, once", text)
		}
	}
	out.Reset()
	if starter.WithGroup("of").Info("x", "member", 1); !strings.Contains(out.String(), `"of":{"member":1}`) {
		t.Errorf("%s: want a group", out.String())
	}
}

func TestIsTerminal(t *testing.T) {
	if isTerminal(new(bytes.Buffer)) || isTerminal(nil) {
		t.Error("a buffer is no terminal")
	}
}
