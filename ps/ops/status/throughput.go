package status

import (
	"math"
	"slices"

	"gradbus/schema"
)

// pace is how fast a run goes, in samples per second, and how fast it usually does. Only seconds count in which
// trainers were asked for batches and were heard of.
type pace struct {
	seconds [paceKept]second // a ring; the newest at (n-1) % paceKept
	n       int
	first   int64 // the first second, or since when another rate is usual

	minute  stretch   // under way
	minutes []float64 // means of the last hour, ascending in time; at most 60

	slow     bool
	much     bool    // so slow that it is critical
	onset    int64   // since when
	usually  float64 // what was typical then
	begun    int64   // when that was found
	early    bool    // that is what it had in its first minutes
	culprits usual   // what was usual for members then
}

const paceKept = 600

type second struct {
	at   int64
	rate float32
}

// stretch is the mean over some time.
type stretch struct {
	at  int64
	sum float64
	n   int
}

// usual is what members did for each batch, or round, before it became slow.
type usual struct {
	trainers map[int]work
	shards   map[int]work
}

// Limits of what is slow.
const (
	slowBelow    = 0.7  // of what is typical, over slowWindow: it is slow
	quickBelow   = 0.45 // or over quickWindow
	slowUntil    = 0.85 // and is no more, over endWindow
	muchBelow    = 0.25 // it is critical
	muchUntil    = 0.35
	slowWindow   = 30_000
	quickWindow  = 8_000
	endWindow    = 15_000
	slowForgiven = 2 * 3600_000 // after so long it is what is typical
	typicalLeast = 3            // minutes
)

// add takes a second.
func (p *pace) add(now int64, samples *schema.Real, counts bool) {
	if samples == nil || !counts {
		return
	}
	f := finite(*samples)
	if p.n == 0 {
		p.first = now
	}
	p.seconds[p.n%paceKept] = second{now, float32(f)}
	p.n++
	if p.slow { // what is typical does not become slow
		return
	}
	if at := now / 60_000; at != p.minute.at {
		if p.minute.n >= 20 {
			p.minutes = append(p.minutes, p.minute.sum/float64(p.minute.n))
			if len(p.minutes) > 60 {
				p.minutes = slices.Delete(p.minutes, 0, 1)
			}
		}
		p.minute = stretch{at: at}
	}
	p.minute.sum += f
	p.minute.n++
}

// typical is the median of the last hour's minutes; 0 while there are less than three.
func (p *pace) typical() float64 {
	switch {
	case p.slow:
		return p.usually
	case len(p.minutes) < typicalLeast:
		return 0
	}
	return median(p.minutes)
}

// over is the mean of the last ms milliseconds in which the run was under way; ok is false where that is less than half
// of them.
func (p *pace) over(now, ms int64) (rate float64, ok bool) {
	n := 0
	for k := range min(p.n, paceKept) {
		s := &p.seconds[(p.n-1-k)%paceKept]
		if now-s.at >= ms {
			break
		}
		rate += float64(s.rate)
		n++
	}
	if int64(n)*2000 < ms {
		return 0, false
	}
	return rate / float64(n), true
}

// fell finds since when the rate has been below a limit, by the mean of every three seconds that follow each other,
// going back.
func (p *pace) fell(now int64, limit float64) int64 {
	since, sum := now, 0.0
	back := func(k int) *second { return &p.seconds[(p.n-1-k)%paceKept] }
	for k := range min(p.n, paceKept) {
		if sum += float64(back(k).rate); k < 2 {
			continue
		}
		if sum >= 3*limit {
			break
		}
		since = back(k - 1).at
		sum -= float64(back(k - 2).rate)
	}
	return since
}

// look decides whether the run is slow. period is what a batch usually takes, in milliseconds: of long ones more time
// is looked at. whole says that all who began are still at it: before it is known what is typical, fewer are no
// slowdown.
func (p *pace) look(now, period int64, whole bool) (rate float64, found bool) {
	window := min(max(slowWindow, 5*period), 300_000)
	typical := p.typical()
	rate, ok := p.over(now, window)
	if typical <= 0 && ok && whole {
		return p.lookEarly(now, period)
	}
	if typical <= 0 || !ok {
		p.slow = p.slow && p.n > 0 && now-p.seconds[(p.n-1)%paceKept].at < 60_000
		return rate, false
	}
	if p.slow {
		return p.lookSlow(now, period, rate)
	}
	quick, known := p.over(now, quickWindow)
	quickly := known && 5*period <= quickWindow && quick < quickBelow*typical
	if quickly {
		rate = quick
	}
	if quickly || rate < slowBelow*typical {
		p.slow, p.usually, p.begun, p.early = true, typical, now, false
		p.onset = p.fell(now, (typical+rate)/2)
		p.culprits = usual{}
		return p.lookSlow(now, period, rate)
	}
	return rate, false
}

// lookSlow is look for a run that is slow: rate is that since it is, or of the last slowWindow.
func (p *pace) lookSlow(now, period int64, rate float64) (float64, bool) {
	if r, ok := p.over(now, min(max(now-p.onset, endWindow/3, 3*period), max(slowWindow, 5*period))); ok {
		rate = r
	}
	lately, ok := p.over(now, max(endWindow, 5*period))
	forgiven := now-p.begun > slowForgiven || p.early && now-p.begun > earlyForgiven
	if ok && lately >= slowUntil*p.usually || forgiven {
		p.slow, p.much = false, false
		p.minute = stretch{}
		if forgiven { // this is how fast it goes now
			p.minutes, p.first = p.minutes[:0], now
		}
		return rate, false
	}
	if p.much = rate < muchBelow*p.usually || p.much && rate < muchUntil*p.usually; ok && !p.much {
		p.much = lately < muchBelow*p.usually
	}
	return rate, true
}

// Limits of what is slow in the first minutes of a run, before it is known what is typical. What a run begins with says
// little: programs are compiled, files come from memory at first, or must be read into it, and a stop of some seconds
// is a large part of the time there is. So a run has a rate only where most seconds of half a minute had about the
// same, and is slow where nearly all of the time since is far below that: quantiles, which stops and bursts of a few
// seconds do not move, as they would a mean.
const (
	earlySkipped  = 20_000   // of the beginning
	earlyHeld     = 30_000   // makes a rate: its lower quartile
	earlySteady   = 1.8      // times that is its upper quartile at most
	earlyWindow   = 20_000   // has to be slow, but for a fifth of it
	earlyBelow    = 0.55     // of the rate, where all of it was equal; of more as much less as its quartiles differ
	earlyPeriod   = 2_000    // a batch that takes longer is not timed by seconds
	earlyForgiven = 1800_000 // after so long it is what is typical
)

// lookEarly decides whether a run is slow of which nothing is typical yet.
func (p *pace) lookEarly(now, period int64) (rate float64, found bool) {
	rate, _ = p.over(now, earlyWindow)
	before := now - earlyWindow
	if period > earlyPeriod || p.n == 0 || before-earlyHeld < p.first+earlySkipped {
		return rate, false
	}
	held, lately := p.between(before-earlyHeld, before), p.between(before, now)
	if len(held) < earlyHeld/1000*3/4 || len(lately) < earlyWindow/1000*3/4 {
		return rate, false
	}
	least, most := held[len(held)/4], held[len(held)*3/4]
	if most > earlySteady*least || lately[len(lately)*8/10] >= earlyBelow*least*least/most {
		return rate, false
	}
	p.slow, p.usually, p.begun, p.early = true, held[len(held)/2], now, true
	p.onset = p.fell(now, (p.usually+rate)/2)
	p.culprits = usual{}
	return p.lookSlow(now, period, rate)
}

// between are the seconds after a moment and up to another, the slowest first.
func (p *pace) between(from, until int64) []float64 {
	all := make([]float64, 0, (until-from)/1000)
	for k := range min(p.n, paceKept) {
		s := &p.seconds[(p.n-1-k)%paceKept]
		if s.at <= from {
			break
		}
		if s.at <= until {
			all = append(all, float64(s.rate))
		}
	}
	slices.Sort(all)
	return all
}

// median of some numbers, which stay as they are; 0 of none.
func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	s := slices.Clone(all)
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return s[n/2-1] + (s[n/2]-s[n/2-1])/2
	}
	return s[len(s)/2]
}

// ratio is a/b, 0 where b is none.
func ratio(a, b float64) float64 {
	if b <= 0 || math.IsNaN(a) {
		return 0
	}
	return a / b
}
