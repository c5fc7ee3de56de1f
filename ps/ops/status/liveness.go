package status

import (
	"slices"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// spoken is since when somebody has been silent who speaks every so often. Times are in milliseconds.
type spoken struct {
	liveness.Silence
	every int64 // until the next word, as the last one says
}

// speak notes a word.
func (s *spoken) speak(now, every int64) {
	s.Begin(time.UnixMilli(now))
	s.every = min(max(every, 100), 60_000)
}

// at is when the last word was, but for the time in which this process stood still since: nobody could be heard then.
func (s *spoken) at() int64 { return s.Since().UnixMilli() }

// age is how long ago that was.
func (s *spoken) age(now int64) int64 { return s.For(time.UnixMilli(now)).Milliseconds() }

// silentAfter is for how long somebody may say nothing before that is told.
func (s *spoken) silentAfter() int64 { return s.every*2 + 900 }

// fresh reports whether somebody speaks as often as they say.
func (s *spoken) fresh(now int64) bool { return s.Lasts() && s.age(now) <= s.silentAfter() }

// heard is when a member was last heard, and of which of its lives.
type heard struct {
	spoken
	report *schema.Telemetry
	bytes  int   // that remembering it takes
	came   int64 // when, by the clock here
	first  int64
	anew   bool // it was started again, or its counters fell, since the report before

	leaps [8]saying // those that were believed though nothing led to them, the latest ones
	leapt int
}

// takeOver is after how many milliseconds of silence another life of a member is believed at the latest, however seldom
// it said that it speaks.
const takeOver = 10_000

// take notes a report. Who speaks is believed for as long as he goes on, that is, says what is new in the order in
// which it was said, and so is who was started since. What is of a life before, not later in the one that is known, or
// far ahead in it, is believed only after a silence: it may be a late word, or one of two processes of one name. What
// was believed so is not believed again: it is a report that somebody repeats, and holds the place of nobody who goes
// on.
func (h *heard) take(now int64, p *schema.Telemetry) bool {
	said := saying{p.StartedMS, p.PID, p.Serial}
	h.anew = h.report == nil
	if was := h.report; was != nil {
		same := p.StartedMS == was.StartedMS && p.PID == was.PID
		switch {
		case same && p.Serial == was.Serial, slices.Contains(h.leaps[:], said):
			return false
		case same && p.Serial > was.Serial && p.Serial-was.Serial <= h.ahead(now):
		case p.StartedMS <= was.StartedMS && h.age(now) < min(h.silentAfter(), takeOver):
			return false
		default:
			h.anew = !same || p.Serial < was.Serial
			h.leap(said)
		}
	} else {
		h.leap(said)
	}
	if h.first == 0 {
		h.first = now
	}
	h.report, h.came = p, now
	h.speak(now, p.EveryMS)
	return true
}

// saying tells reports of a member apart.
type saying struct {
	started int64
	pid     int
	serial  uint64
}

func (h *heard) leap(s saying) {
	h.leaps[h.leapt%len(h.leaps)] = s
	h.leapt++
}

// ahead is by how much serials may have risen since the last report: by twice as many as are due, and some that wait
// for each other.
func (h *heard) ahead(now int64) uint64 { return 16 + 2*uint64(max(now-h.came, 0)/h.every) }
