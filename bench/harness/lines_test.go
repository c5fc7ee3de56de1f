package harness

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func handleOf(name string) *Handle { return &Handle{Name: name} }

// Lines come out in the order of their times, a repeat of a shared stream once, and none before a stream that is open
// could bring an earlier one.
func TestLines(t *testing.T) {
	var l lines
	a, b := handleOf("a"), handleOf("b")
	for _, h := range []*Handle{a, b} {
		l.feed(h, h.Name, 0, "")
		l.feed(h, "server", 0, "")
	}
	step := func(from *Handle, stream string, at int64, text string, want ...string) {
		t.Helper()
		l.feed(from, stream, at, text)
		if got := l.ready(); !slices.Equal(got, want) {
			t.Errorf("%s at %d: %q came out, want %q", text, at, got, want)
		}
	}
	step(a, "a", 10, "a sends")
	step(b, "b", 12, "b sends")
	step(b, "server", 11, "got 1", "a sends")
	step(a, "server", 11, "got 1")
	step(a, "server", 13, "got 2") // a's own next line may be of 11
	step(a, "a", 20, "a has it", "got 1", "b sends")
	step(b, "server", 13, "got 2")
	step(b, "server", 15, "made")
	step(a, "server", 14, "got 3") // which b has not heard
	step(b, "b", 19, "b has it", "got 2", "got 3", "made")
	step(a, "server", 14, "got 3")
	b.ended = true
	l.end(b)
	if got := l.ready(); got != nil { // the server may have something before 19 yet
		t.Errorf("%q came out", got)
	}
	a.ended = true
	l.end(a)
	if got := l.ready(); !slices.Equal(got, []string{"b has it", "a has it"}) {
		t.Errorf("at the end %q came out", got)
	}
}

// Members as they run: what they say comes out by its times, with one who tells of a third.
func TestLinesOfMembers(t *testing.T) {
	const members, events = 4, 50
	var out bytes.Buffer
	begin := time.Unix(1e9, 0)
	c := &Harness{InProcess: true, Out: &out, Roles: map[string]Role{"speaker": func(ctx context.Context,
		m *Member) (any, error) {
		own := int(m.Name[0] - '0')
		if err := m.Feed("", "told"); err != nil {
			return nil, err
		}
		if err := m.Wait(ctx); err != nil {
			return nil, err
		}
		for i := range events {
			at := begin.Add(time.Duration(i*members+own) * time.Second)
			if err := m.SayAt("", at, fmt.Sprintf("line %04d", i*members+own)); err != nil {
				return nil, err
			}
			if rand.IntN(3) > 0 {
				continue
			}
			if err := m.SayAt("told", begin.Add(time.Duration(i*members)*time.Second-1), fmt.Sprintf("line %04d!",
				i*members-1)); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var specs []Spec
	for i := range members {
		specs = append(specs, Spec{Role: "speaker", Name: fmt.Sprint(i)})
	}
	all, err := c.Start(ctx, specs...)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Go(ctx, all...); err != nil {
		t.Fatal(err)
	}
	for _, h := range all {
		if err := h.Result(ctx, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	said := strings.Split(strings.TrimSpace(out.String()), "\n")
	own := 0
	for _, line := range said {
		if !strings.HasSuffix(line, "!") {
			own++
		}
	}
	if !slices.IsSorted(said) || own != members*events || len(slices.Compact(said)) != len(said) {
		t.Errorf("%d own lines of %d, sorted: %v\n%s", own, members*events, slices.IsSorted(said), out.String())
	}
}
