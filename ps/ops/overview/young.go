package overview

import "slices"

// Limits of what is slow in the first minutes of a run, before it is known what is typical. What a run begins with says little: programs
// are compiled, files come from memory at first, or must be read into it, and a stop of some seconds is a large part of the time there is.
// So a run has a rate only where most seconds of half a minute had about the same, and is slow where nearly all of the time since is far
// below that: quantiles, which stops and bursts of a few seconds do not move, as they would a mean.
const (
	youngSkipped  = 20_000   // of the beginning
	youngHeld     = 30_000   // makes a rate: its lower quartile
	youngSteady   = 1.8      // times that is its upper quartile at most
	youngWindow   = 20_000   // has to be slow, but for a fifth of it
	youngBelow    = 0.55     // of the rate, where all of it was equal; of more as much less as its quartiles differ
	youngPeriod   = 2_000    // a batch that takes longer is not timed by seconds
	youngForgiven = 1800_000 // after so long it is what is typical
)

// lookYoung decides whether a run is slow of which nothing is typical yet.
func (p *pace) lookYoung(now, period int64) (rate float64, found bool) {
	rate, _ = p.over(now, youngWindow)
	before := now - youngWindow
	if period > youngPeriod || p.n == 0 || before-youngHeld < p.first+youngSkipped {
		return rate, false
	}
	held, lately := p.between(before-youngHeld, before), p.between(before, now)
	if len(held) < youngHeld/1000*3/4 || len(lately) < youngWindow/1000*3/4 {
		return rate, false
	}
	least, most := held[len(held)/4], held[len(held)*3/4]
	if most > youngSteady*least || lately[len(lately)*8/10] >= youngBelow*least*least/most {
		return rate, false
	}
	p.slow, p.usually, p.begun, p.young = true, held[len(held)/2], now, true
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
