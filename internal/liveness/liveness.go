// Package liveness decides who counts as gone: who was silent for too long, where the time does not count in which this
// process did not run and so heard nobody. The coordinator asks it about trainers and shard servers, a shard server
// about its coordinator and trainers, a session about coordinator and servers, and the page about everybody.
//
// It is pure: time comes in with the call. It knows no messages and no connections. Nothing here is safe for concurrent
// use.
package liveness

import (
	"fmt"
	"time"

	"gradbus/internal/planted"
)

// CutMax is how long one whose connections have ended may be silent: time for connections that were broken between two
// who both live to be made again.
const CutMax = 6 * time.Second

// How late a tick must be for a pause of this process: half of the deadline, within these. Processes tick every second,
// or more often.
const (
	pauseMin = 1500 * time.Millisecond
	pauseMax = 5 * time.Second
)

// Silence is how long something has lasted: since somebody was heard of, or since a server is out of reach. The zero
// value does not last.
type Silence struct{ since time.Time }

// Begin has it last from a time on, unless it began later: signs of life may be told out of order.
func (s *Silence) Begin(at time.Time) {
	if at.After(s.since) {
		if planted.Is(planted.TrustDates) {
			at = at.Round(0)
		}
		s.since = at
	}
}

// End has it last no more.
func (s *Silence) End() { s.since = time.Time{} }

// Lasts reports whether it does.
func (s Silence) Lasts() bool { return !s.since.IsZero() }

// Since is when it began, later by what was excused; zero where it does not last.
func (s Silence) Since() time.Time { return s.since }

// For is how long it has lasted; 0 where it does not.
func (s Silence) For(now time.Time) time.Duration {
	if !s.Lasts() {
		return 0
	}
	return max(0, now.Sub(s.since))
}

// Excuse takes a pause that ends now out of all that it has lasted.
func (s *Silence) Excuse(pause time.Duration, now time.Time) {
	if !s.Lasts() {
		return
	}
	if s.since = s.since.Add(pause); s.since.After(now) { // it began within the pause
		s.since = now
	}
}

// Peer is a member whom others depend on. Its Silence begins with each sign of life; before the first it is not lost.
type Peer struct {
	Silence
	connected bool // a connection of it was seen
	cut       bool // and then seen no more
}

// Connection says whether a connection of the peer is there.
func (p *Peer) Connection(there bool) {
	p.cut = p.connected && !there
	p.connected = p.connected || there
}

// Cut reports that the peer had a connection and has none.
func (p *Peer) Cut() bool { return p.cut }

// Lost reports whether the peer was silent for longer than the deadline, or than CutMax where it is cut. why is what to
// append to a sentence that says for how long.
func (p *Peer) Lost(now time.Time, deadline time.Duration) (why string, lost bool) {
	switch silent := p.For(now); {
	case silent > deadline:
		return fmt.Sprintf(" (deadline %s)", deadline), true
	case p.cut && silent > CutMax:
		return ", and its connection is gone", true
	}
	return "", false
}

// Ticks finds when this process did not run: stopped by a signal, by its container, or with its machine.
type Ticks struct{ last time.Time }

// Tick notes a tick, and gives the pause that ends with it: see Pause.
func (t *Ticks) Tick(now time.Time, deadline time.Duration) time.Duration {
	pause := t.Pause(now, deadline)
	t.last = now
	return pause
}

// Pause is how long this process has not run until now, where that is longer than on a busy machine; else 0. Of a job
// with a long deadline a longer time is none.
func (t *Ticks) Pause(now time.Time, deadline time.Duration) time.Duration {
	if since := t.Since(now); since > min(pauseMax, max(pauseMin, deadline/2)) {
		return since
	}
	return 0
}

// Since is how long the last tick is ago; 0 before the first.
func (t *Ticks) Since(now time.Time) time.Duration { return Silence{t.last}.For(now) }

// Rounded shortens a duration for people.
func Rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
