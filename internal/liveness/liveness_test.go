package liveness

import (
	"testing"
	"time"
)

var start = time.Unix(1000, 0)

func at(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }

func TestSilence(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*Silence)
		want time.Duration // at second 100
		none bool
	}{
		{"never", func(*Silence) {}, 0, true},
		{"a sign", func(s *Silence) { s.Begin(at(70)) }, 30 * time.Second, false},
		{"another sign", func(s *Silence) { s.Begin(at(70)); s.Begin(at(90)) }, 10 * time.Second, false},
		{"signs out of order", func(s *Silence) { s.Begin(at(90)); s.Begin(at(70)) }, 10 * time.Second, false},
		{"a sign of a clock that is ahead", func(s *Silence) { s.Begin(at(101)) }, 0, false},
		{"ended", func(s *Silence) { s.Begin(at(70)); s.End() }, 0, true},
		{"begun anew", func(s *Silence) { s.Begin(at(70)); s.End(); s.Begin(at(60)) }, 40 * time.Second, false},
		{"a pause", func(s *Silence) { s.Begin(at(70)); s.Excuse(20*time.Second, at(95)) }, 10 * time.Second, false},
		{"a sign within a pause", func(s *Silence) { s.Begin(at(90)); s.Excuse(20*time.Second, at(95)) },
			5 * time.Second, false},
		{"a pause of nothing", func(s *Silence) { s.Excuse(20*time.Second, at(95)) }, 0, true},
	} {
		var s Silence
		c.do(&s)
		if got := s.For(at(100)); got != c.want || s.Lasts() == c.none || s.Lasts() != !s.Since().IsZero() {
			t.Errorf("%s: %v, lasts %v since %v; want %v", c.name, got, s.Lasts(), s.Since(), c.want)
		}
	}
}

func TestPeerIsLost(t *testing.T) {
	const deadline = 30 * time.Second
	seen := func(p *Peer) { p.Begin(at(0)); p.Connection(true) }
	for _, c := range []struct {
		name string
		do   func(*Peer)
		now  float64
		why  string // empty: it is not lost
	}{
		{"never heard of", func(*Peer) {}, 1e6, ""},
		{"at the deadline", seen, 30, ""},
		{"beyond the deadline", seen, 30.5, " (deadline 30s)"},
		{"heard again", func(p *Peer) { seen(p); p.Begin(at(20)) }, 50, ""},
		{"just cut", func(p *Peer) { seen(p); p.Connection(false) }, 6, ""},
		{"cut for long", func(p *Peer) { seen(p); p.Connection(false) }, 6.5, ", and its connection is gone"},
		{"cut and silent beyond the deadline", func(p *Peer) { seen(p); p.Connection(false) }, 31, " (deadline 30s)"},
		{"cut and heard", func(p *Peer) { seen(p); p.Connection(false); p.Begin(at(5)) }, 10, ""},
		{"cut and back", func(p *Peer) { seen(p); p.Connection(false); p.Connection(true) }, 10, ""},
		{"never connected", func(p *Peer) { p.Begin(at(0)); p.Connection(false) }, 10, ""},
		{"excused", func(p *Peer) { seen(p); p.Excuse(50*time.Second, at(51)) }, 80, ""},
		{"excused, and silent all the same", func(p *Peer) { seen(p); p.Excuse(50*time.Second, at(51)) }, 80.5,
			" (deadline 30s)"},
	} {
		var p Peer
		c.do(&p)
		if why, lost := p.Lost(at(c.now), deadline); why != c.why || lost != (c.why != "") {
			t.Errorf("%s: %v, %q, want %q", c.name, lost, why, c.why)
		}
	}
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		deadline time.Duration
		late     float64 // seconds since the tick before
		pause    bool
	}{
		{30 * time.Second, 1, false}, {30 * time.Second, 5, false}, {30 * time.Second, 5.1, true},
		{4 * time.Second, 2, false}, {4 * time.Second, 2.1, true},
		{time.Second, 1.5, false}, {time.Second, 1.6, true}, {time.Second, 0.9, false},
	} {
		var ticks Ticks
		if first := ticks.Tick(at(0), c.deadline); first != 0 {
			t.Errorf("the first tick ends a pause of %v", first)
		}
		want := time.Duration(0)
		if c.pause {
			want = at(c.late).Sub(at(0))
		}
		seen := ticks.Pause(at(c.late), c.deadline) // by who looks before the tick
		if got := ticks.Tick(at(c.late), c.deadline); got != want || seen != want {
			t.Errorf("a tick after %v s, deadline %v: a pause of %v, before the tick of %v; want %v", c.late, c.deadline,
				got, seen, want)
		}
		if again := ticks.Tick(at(c.late+1), c.deadline); again != 0 || ticks.Since(at(c.late+3)) != 2*time.Second {
			t.Errorf("the tick after a pause ends one of %v", again)
		}
	}
}
