package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// settings is a command's configuration as the commands keep theirs.
type settings struct {
	shards   int
	listen   string
	insecure bool
	deadline time.Duration
	start    time.Duration
	lr       float32
}

func flagsOf(s *settings) *pflag.FlagSet {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.IntVar(&s.shards, "shards", 2, "")
	flags.StringVar(&s.listen, "listen", "127.0.0.1:4222", "")
	flags.BoolVar(&s.insecure, "insecure", false, "")
	flags.DurationVar(&s.deadline, "deadline", 30*time.Second, "")
	flags.DurationVar(&s.start, "start-timeout", time.Hour, "")
	flags.Float32Var(&s.lr, "lr", 20, "")
	flags.Int("replicas", 0, "")
	flags.String("peer", "", "")
	AddFileFlag(flags)
	return flags
}

// nobody is told of no unknown variable.
func nobody(t *testing.T) func(string) {
	return func(text string) { t.Helper(); t.Errorf("told of %q", text) }
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ps.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoadOrder(t *testing.T) {
	path := write(t, "# two of five\nshards: 5\nlisten: 127.0.0.1:9\ndeadline: 2m\ninsecure: true\n")
	var s settings
	flags := flagsOf(&s)
	if err := flags.Parse([]string{"--shards", "3", "--config", path}); err != nil {
		t.Fatal(err)
	}
	if err := Load(flags, nobody(t)); err != nil {
		t.Fatal(err)
	}
	want := settings{shards: 3, listen: "127.0.0.1:9", insecure: true, deadline: 2 * time.Minute, start: time.Hour, lr: 20}
	if s != want {
		t.Errorf("got %+v, want %+v: flag over file over default", s, want)
	}
}

func TestLoadNothing(t *testing.T) {
	for _, text := range []string{"", "# only a comment\n", "---\n", "{}\n"} {
		var s settings
		if err := loadFile(write(t, text), flagsOf(&s), nil); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if s.shards != 2 {
			t.Errorf("%q: shards %d, want the default 2", text, s.shards)
		}
	}
	var s settings
	if err := Load(flagsOf(&s), nobody(t)); err != nil {
		t.Errorf("no --config: %v", err)
	}
}

func TestLoadWrong(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"unknown", "shards: 2\nshard: 2\n", `ps.yaml:2: unknown setting "shard" (did you mean shards?)`},
		{"far", "colour: red\n", `ps.yaml:1: unknown setting "colour" (--help lists them)`},
		{"renamed", "shards: 2\ngather: 1h\n", "ps.yaml:2: gather is called start-timeout now"},
		{"a switch", "standby-peers: true\n", "ps.yaml:1: standby-peers is replicas 1 now"},
		{"two now", "standby: nats://b\n", "ps.yaml:1: standby is replicas 1 and peer URL now"},
		{"underscore", "dead_line: 1s\n", `did you mean deadline?`},
		{"itself", "config: other.yaml\n", `ps.yaml:1: unknown setting "config"`},
		{"twice", "shards: 2\nlr: 1\nshards: 3\n", "ps.yaml:3: shards: already given in line 1"},
		{"type", "lr: 1\nshards: two\n", `ps.yaml:2: shards: "two": want a whole number`},
		{"duration", "deadline: 30\n", `ps.yaml:1: deadline: "30": want a time with its unit`},
		{"empty", "listen: ''\n", "ps.yaml:1: listen: is empty: want a string, or leave it out"},
		{"list", "shards: [1, 2]\n", "ps.yaml:1: shards: want a single value"},
		{"null", "shards:\n", "ps.yaml:1: shards: has no value"},
		{"sequence", "- shards\n", "ps.yaml:1: want a mapping"},
		{"syntax", "shards: 2\n\tlr: 3\n", "ps.yaml: not YAML: "},
		{"all at once", "shards: two\nlr: much\n", `want a whole number; `},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s settings
			err := loadFile(write(t, c.text), flagsOf(&s), nil)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		})
	}
}

// A bad value is reported even where the command line makes it idle: it would bite at the next start.
func TestLoadChecksIdleValues(t *testing.T) {
	path := write(t, "shards: two\n")
	var s settings
	flags := flagsOf(&s)
	if err := flags.Parse([]string{"--shards=3"}); err != nil {
		t.Fatal(err)
	}
	if err := loadFile(path, flags, nil); err == nil {
		t.Error("accepted")
	}
}

func TestLoadNoFile(t *testing.T) {
	var s settings
	err := loadFile(filepath.Join(t.TempDir(), "none.yaml"), flagsOf(&s), nil)
	if err == nil || !strings.Contains(err.Error(), "none.yaml") {
		t.Errorf("got %v", err)
	}
	large := write(t, strings.Repeat("#", fileBytesMax+1))
	if err := loadFile(large, flagsOf(&s), nil); err == nil || !strings.Contains(err.Error(), "want at most") {
		t.Errorf("got %v", err)
	}
}

// Neither a pipe nor aliases of aliases keep a command from starting, or from saying why it does not.
func TestLoadHostileFile(t *testing.T) {
	var s settings
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := loadFile(pipe, flagsOf(&s), nil); err == nil || !strings.Contains(err.Error(), "no program has written") {
		t.Errorf("a pipe: %v", err)
	}
	bomb := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 20 {
		alias := fmt.Sprintf("*a%d", i)
		bomb += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.Join(slices.Repeat([]string{alias}, 10), ", "))
	}
	bomb += "listen: *a20\n"
	if err := loadFile(write(t, bomb), flagsOf(&s), nil); err == nil ||
		!strings.Contains(err.Error(), "listen: want a single value") {
		t.Errorf("aliases of 10^20 values: %v", err)
	}
}

// A file of settings with a password is a secret.
func TestLoadExposedPassword(t *testing.T) {
	for text, want := range map[string]int{"listen: nats://ann:secret@10.0.0.1:4222": 1, "listen: 127.0.0.1:4222": 0} {
		path := write(t, text)
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		var s settings
		flags := flagsOf(&s)
		Addresses(flags, "listen")
		if err := flags.Parse([]string{"--config", path}); err != nil {
			t.Fatal(err)
		}
		var warned []string
		err := Load(flags, func(text string) { warned = append(warned, text) })
		if err != nil || len(warned) != want || want > 0 && !strings.Contains(warned[0], "-rw-r--r--") {
			t.Errorf("%q: %v, warned %q, want %d warnings", text, err, warned, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"a", "", 1}, {"shards", "shard", 1}, {"lr", "rl", 2}, {"kitten", "sitting", 3}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
