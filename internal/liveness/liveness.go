// Package liveness decides which members are lost because they were silent for too long. Time during which this process
// did not run does not count, because it received nothing. The coordinator uses it for trainers and shard servers, a
// shard server for its coordinator and trainers, a session for coordinator and servers, and the page for all members.
//
// It is pure: time is an argument. It knows no messages and no connections. It is not safe for concurrent use.
package liveness

import (
	"fmt"
	"time"

	"gradbus/internal/planted"
)

// CutMax bounds the silence of a member whose connections have ended: enough to restore connections that were cut
// between two live processes.
const CutMax = 6 * time.Second

// Bounds of the delay of a tick that shows a pause of this process: half of the deadline, within these. Processes tick
// at least every second.
const (
	pauseMin = 1500 * time.Millisecond
	pauseMax = 5 * time.Second
)

// Silence measures how long something lasts: the time since a member was heard, or since a server is unreachable. The
// zero value does not last.
type Silence struct{ since time.Time }

// Begin starts the silence at a time, unless it began later: signs of life may be reported out of order.
func (s *Silence) Begin(at time.Time) {
	if at.After(s.since) {
		if planted.Is(planted.TrustDates) {
			at = at.Round(0)
		}
		s.since = at
	}
}

// End ends the silence.
func (s *Silence) End() { s.since = time.Time{} }

// Lasts reports whether the silence lasts.
func (s Silence) Lasts() bool { return !s.since.IsZero() }

// Since returns its beginning, later by excused pauses; zero if it does not last.
func (s Silence) Since() time.Time { return s.since }

// For returns its duration; 0 if it does not last.
func (s Silence) For(now time.Time) time.Duration {
	if !s.Lasts() {
		return 0
	}
	return max(0, now.Sub(s.since))
}

// Excuse subtracts a pause that ends now.
func (s *Silence) Excuse(pause time.Duration, now time.Time) {
	if !s.Lasts() {
		return
	}
	if s.since = s.since.Add(pause); s.since.After(now) { // it began within the pause
		s.since = now
	}
}

// Peer is a member that others depend on. Its Silence begins with each sign of life; before the first it is not lost.
type Peer struct {
	Silence
	connected bool // a connection was seen
	cut       bool // and has ended
}

// Connection records whether the peer has a connection.
func (p *Peer) Connection(there bool) {
	p.cut = p.connected && !there
	p.connected = p.connected || there
}

// Cut reports whether the peer had a connection and has none.
func (p *Peer) Cut() bool { return p.cut }

// Lost reports whether the peer was silent for longer than the deadline, or than CutMax if it is cut. why is appended
// to a sentence with the duration.
func (p *Peer) Lost(now time.Time, deadline time.Duration) (why string, lost bool) {
	switch silent := p.For(now); {
	case silent > deadline:
		return fmt.Sprintf(" (deadline %s)", deadline), true
	case p.cut && silent > CutMax:
		return ", and its connection is gone", true
	}
	return "", false
}

// Ticks detects pauses of this process: stopped by a signal, by its container, or with its machine.
type Ticks struct{ last time.Time }

// Tick records a tick, and returns the pause that ends with it: see Pause.
func (t *Ticks) Tick(now time.Time, deadline time.Duration) time.Duration {
	pause := t.Pause(now, deadline)
	t.last = now
	return pause
}

// Pause returns how long this process has not run until now, if that is longer than on a busy machine; else 0. With a
// long deadline only a longer time counts.
func (t *Ticks) Pause(now time.Time, deadline time.Duration) time.Duration {
	if since := t.Since(now); since > min(pauseMax, max(pauseMin, deadline/2)) {
		return since
	}
	return 0
}

// Since returns the time since the last tick; 0 before the first.
func (t *Ticks) Since(now time.Time) time.Duration { return Silence{t.last}.For(now) }

// Rounded shortens a duration for people.
func Rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
