package terminal

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"gradbus/internal/testkit"
	"gradbus/ps/ops/status"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// glass is what a terminal was sent.
type glass struct{ testkit.Text }

func (g *glass) await(t *testing.T, text string) {
	t.Helper()
	g.awaitAfter(t, 0, text)
}

// awaitAfter waits until the terminal was sent a text behind what it had at first.
func (g *glass) awaitAfter(t *testing.T, at int, text string) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !strings.Contains(ansi.Strip(g.String()[at:]),
		text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %q in what was sent:\n%s", text, ansi.Strip(g.String()[at:]))
		}
	}
}

// TestTop drives a whole program: what it shows at first, what a stream brings, keys, a ps that goes, and the end.
func TestTop(t *testing.T) {
	updates := make(chan status.Update, 1)
	at := serve(t, &fakePS{updates: updates})
	in, keys := io.Pipe()
	defer in.Close()
	out := new(glass)
	ended := make(chan error, 1)
	go func() {
		ended <- Top(t.Context(), TopConfig{Client: client(t, Config{URL: at, Timeout: time.Minute}), In: in, Out: out,
			Width: 80, Height: 24})
	}()
	out.await(t, "waits 18 s for trainer t2")
	u := status.Update{Status: *running(2)}
	u.Events = []status.Event{{Serial: 3, AtMS: now, Level: status.OK, Text: "trainer t2 is back"}}
	updates <- u
	out.await(t, "trains at 48.2k")
	out.await(t, "t2 is back")
	press := func(text string) { // to a program that may have ended
		t.Helper()
		done := make(chan struct{})
		go func() { _, _ = keys.Write([]byte(text)); close(done) }()
		select {
		case <-done:
		case err := <-ended:
			t.Fatalf("ended too early: %v", err)
		}
	}
	before := len(out.String())
	press(strings.Repeat("v", int(viewsEnd)-1))
	out.awaitAfter(t, before, "event") // of the view's name: what did not change on the way there is not sent again
	close(updates)
	out.await(t, "STALE")
	go func() { _, _ = keys.Write([]byte("q")) }() // of which it may end before it has read all there is
	if err := <-ended; err != nil {
		t.Errorf("ended with %v", err)
	}
	if raw := out.String(); !strings.Contains(raw, "\x1b[?1049h") || !strings.Contains(raw, "\x1b[?1049l") {
		t.Error("the screen that was there before was not kept and given back")
	}
}

// What ends the process ends the program, and the terminal is as it was.
func TestTopCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	in, keys := io.Pipe()
	defer keys.Close()
	out := new(glass)
	ended := make(chan error, 1)
	at := serve(t, &fakePS{})
	go func() {
		ended <- Top(ctx, TopConfig{Client: client(t, Config{URL: at}), In: in, Out: out, Width: 80, Height: 24})
	}()
	out.await(t, "waits 18 s")
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	if !strings.Contains(out.String(), "\x1b[?1049l") {
		t.Error("the screen was not given back")
	}
}

func TestTopUnreachable(t *testing.T) {
	err := Top(t.Context(), TopConfig{Client: client(t, Config{URL: "http://127.0.0.1:1"})})
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v", err)
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	m := &model{screen: Screen{Width: 80, Height: 24}, view: stalled(), events: events(), at: time.Now()}
	press := func(keys ...string) {
		for _, k := range keys {
			m.key(k)
		}
	}
	press("j")
	if m.screen.Job != "digits" {
		t.Errorf("job %q, want digits", m.screen.Job)
	}
	press("j")
	if m.screen.Job != "packages" {
		t.Errorf("job %q, want packages", m.screen.Job)
	}
	press("J", "s")
	if m.screen.Job != "digits" || m.screen.Order != ByName {
		t.Errorf("job %q, order %s", m.screen.Job, m.screen.Order)
	}
	press("down") // nothing to scroll
	if m.screen.Scroll != 0 {
		t.Errorf("scrolled by %d", m.screen.Scroll)
	}
	m.view = running(64)
	press("v", "down", "down", "up")
	if m.screen.View != ViewTrainers || m.screen.Scroll != 1 {
		t.Errorf("view %s, scrolled by %d, want trainers by 1", m.screen.View, m.screen.Scroll)
	}
	press("up", "up", "up")
	if m.screen.Scroll != 0 {
		t.Errorf("scrolled by %d", m.screen.Scroll)
	}
	press("V", "s", "s")
	if m.screen.View != ViewAll || m.screen.Order != ByLag {
		t.Errorf("view %s, order %s", m.screen.View, m.screen.Order)
	}
	m.view = idle()
	press("j", "J") // no job
	if m.key("q") == nil || m.key("ctrl+c") == nil {
		t.Error("q does not quit")
	}
	m.Update(tea.WindowSizeMsg{Width: 40, Height: 10})
	if m.screen.Width != 40 || m.screen.Height != 10 {
		t.Errorf("not resized: %d x %d", m.screen.Width, m.screen.Height)
	}
}

// A job that was started again has an earlier run beside it, which j passes over no other job for.
func TestKeysPassEarlierRuns(t *testing.T) {
	t.Parallel()
	s := stalled()
	earlier := s.Jobs[0]
	earlier.Series, earlier.Phase = "packages.16", "ended"
	s.Jobs = append(s.Jobs, earlier)
	m := &model{view: s}
	for _, key := range []string{"j", "J"} {
		seen := map[*status.Job]bool{}
		for range s.Jobs {
			m.key(key)
			seen[jobOf(s, m.screen.Job)] = true
		}
		if len(seen) != 3 {
			t.Errorf("%s leads to %d of 3 jobs", key, len(seen))
		}
	}
}

// Events of updates that did not come are asked for: after a gap, after a stream that was lost, after a restart of the
// ps.
func TestMissedEvents(t *testing.T) {
	t.Parallel()
	var sent []tea.Msg
	f := &follower{client: client(t, Config{URL: serve(t, &fakePS{})}), send: func(m tea.Msg) { sent = append(sent, m) },
		serial: 6}
	for _, c := range []struct {
		serial uint64
		events int
	}{{6, 0}, {7, 0}, {8, 0}, {10, 2}, {11, 0}, {3, 2}} {
		u := &status.Update{}
		u.Status.Serial = c.serial
		f.take(t.Context(), u)
		if got := sent[len(sent)-1].(updated); len(got.Events) != c.events {
			t.Errorf("update %d: %d events, want %d", c.serial, len(got.Events), c.events)
		}
	}
	if f.event != 2 {
		t.Errorf("the newest event is %d, want 2", f.event)
	}
}

// Events are kept once, in order, and not for ever.
func TestKeepEvents(t *testing.T) {
	t.Parallel()
	m := &model{}
	for round := range uint64(3) {
		var es []status.Event
		for i := range uint64(400) {
			es = append(es, status.Event{Serial: round*200 + i + 1})
		}
		m.keep(es)
	}
	if len(m.events) != eventsKept || m.events[0].Serial != 301 || m.events[len(m.events)-1].Serial != 800 {
		t.Errorf("%d events, %d to %d", len(m.events), m.events[0].Serial, m.events[len(m.events)-1].Serial)
	}
}
