package overview

import (
	"slices"

	"gradbus/schema"
)

// heard is when a member was last heard, and of which of its lives.
type heard struct {
	pulse *schema.Pulse
	bytes int   // that remembering it takes
	came  int64 // when, by the clock here
	at    int64 // the same, but for the time in which this process stood still since: nobody could be heard then
	first int64
	every int64 // until the next, as it says
	anew  bool  // it was started again, or its counters fell, since the pulse before

	leaps [8]saying // those that were believed though nothing led to them, the latest ones
	leapt int
}

// takeOver is after how many milliseconds of silence another life of a member is believed at the latest, however seldom it said that it speaks.
const takeOver = 10_000

// take notes a pulse. Who speaks is believed for as long as he goes on, that is, says what is new in the order in which it was said, and so
// is who was started since. What is of a life before, not later in the one that is known, or far ahead in it, is believed only after a
// silence: it may be a late word, or one of two processes of one name. What was believed so is not believed again: it is a report that
// somebody repeats, and holds the place of nobody who goes on.
func (h *heard) take(now int64, p *schema.Pulse) bool {
	said := saying{p.StartedMS, p.PID, p.Serial}
	h.anew = h.pulse == nil
	if was := h.pulse; was != nil {
		same := p.StartedMS == was.StartedMS && p.PID == was.PID
		switch {
		case same && p.Serial == was.Serial, slices.Contains(h.leaps[:], said):
			return false
		case same && p.Serial > was.Serial && p.Serial-was.Serial <= h.ahead(now):
		case p.StartedMS <= was.StartedMS && now-h.at < min(h.silentAfter(), takeOver):
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
	h.pulse, h.at, h.came = p, now, now
	h.every = min(max(p.EveryMS, 100), 60_000)
	return true
}

// saying tells pulses of a member apart.
type saying struct {
	started int64
	pid     int
	serial  uint64
}

func (h *heard) leap(s saying) {
	h.leaps[h.leapt%len(h.leaps)] = s
	h.leapt++
}

// ahead is by how much serials may have risen since the last pulse: by twice as many as are due, and some that wait for each other.
func (h *heard) ahead(now int64) uint64 { return 16 + 2*uint64(max(now-h.came, 0)/h.every) }

// silentAfter is for how long a member may say nothing before that is told, in milliseconds.
func (h *heard) silentAfter() int64 { return h.every*2 + 900 }

// age is how long ago it was heard.
func (h *heard) age(now int64) int64 { return max(now-h.at, 0) }

// fresh says that the member speaks as often as it says.
func (h *heard) fresh(now int64) bool { return h.pulse != nil && h.age(now) <= h.silentAfter() }
