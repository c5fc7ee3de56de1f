package suite

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// program is a shell script in place of psbench: it answers to the name of a system.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "psbench")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func system(name string, args ...string) System {
	return System{Name: name, Shows: "what " + name + " shows", Args: append([]string{name}, args...),
		Figures: []figure{{"rate", "rounds/s"}, {"loss", "loss"}}}
}

// Systems that fail, print too much, or leave a figure out are named; those after them run all the same.
func TestRun(t *testing.T) {
	path := program(t, `
case "$1" in
good) echo "{\"rate\": 1234.5, \"loss\": 0.25, \"args\": \"$*\"}" ;;
bad) echo "psbench: t1: the disk is full" >&2; exit 1 ;;
chatty) echo one; echo two ;;
prose) echo hello ;;
poor) echo '{"rate": 1}' ;;
idle) echo '{"rate": 0, "loss": 1}' ;;
esac`)
	var progress, out bytes.Buffer
	s := Suite{Path: path, More: []string{"--more"}, Progress: &progress,
		Systems: []System{system("good", "--batches", "3"), system("bad"), system("chatty"), system("prose"), system("poor"),
			system("idle"), system("good")}}
	all, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wants := []string{"", "bad: t1: the disk is full", "chatty: printed 2 lines, want one of JSON", "prose: not JSON: ",
		"poor: no number loss in what it printed",
		"idle: rate is 0, want it above 0", ""}
	for i, o := range all {
		if o.OK != (wants[i] == "") || !strings.HasPrefix(o.Error, wants[i]) || o.Seconds <= 0 {
			t.Errorf("%s: %+v, want %q", o.Name, o, wants[i])
		}
	}
	if got := string(all[0].Result); !strings.Contains(got, `"args": "good --batches 3 --more --json"`) {
		t.Errorf("arguments in %s", got)
	}
	if err := Failed(all); err == nil ||
		!strings.HasPrefix(err.Error(), "5 of 7 systems failed: bad: t1: the disk is full; chatty: ") {
		t.Errorf("got %v", err)
	}
	if err := Failed(all[:1]); err != nil {
		t.Errorf("one that worked: %v", err)
	}
	if err := Print(&out, all); err != nil {
		t.Fatal(err)
	}
	table := strings.Split(out.String(), "\n")
	if len(table) != 9 || !strings.Contains(table[1], "1234 rounds/s") || !strings.HasSuffix(table[1], "yes") ||
		!strings.HasSuffix(table[2], "no") {
		t.Errorf("table\n%s", out.String())
	}
	if want := "1 of 7: psbench good --batches 3\n"; !strings.HasPrefix(progress.String(), want) {
		t.Errorf("progress %q", progress.String())
	}
}

func TestRunInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	s := Suite{Path: program(t, "exec sleep 600"), Progress: io.Discard, Systems: []System{system("long"), system("next")}}
	all, err := s.Run(ctx)
	if !errors.Is(err, context.Canceled) || len(all) != 0 {
		t.Errorf("%v, %v", all, err)
	}
}

// The four of the reference are there, and the other benchmarks, each by its own name.
func TestSystems(t *testing.T) {
	var names []string
	for _, s := range Systems() {
		names = append(names, s.Name)
		if s.Args[0] != s.Name || len(s.Figures) == 0 || s.Shows == "" {
			t.Errorf("%+v", s)
		}
	}
	if got := strings.Join(names, " "); got != "update average hybrid hosted packages fabric kernels" {
		t.Error(got)
	}
}
