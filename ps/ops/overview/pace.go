package overview

import (
	"slices"

	"gradbus/schema"
)

// pace is how fast a run goes, in samples per second, and how fast it usually does.
type pace struct {
	ten     stretch    // under way
	tens    [6]float64 // of the last minute, the newest at (n-1)%6
	n       int
	minutes []float64 // of the last hour, ascending in time; at most 60
	minute  stretch
}

// stretch is the mean over some time in which the run was under way.
type stretch struct {
	at  int64
	sum float64
	n   int
}

// add takes a second; only those count in which trainers were asked for batches.
func (p *pace) add(now int64, samples *schema.Real, inRun bool) {
	if samples == nil || !inRun {
		return
	}
	f := finite(*samples)
	if at := now / 10_000; at != p.ten.at && p.ten.n > 0 {
		p.tens[p.n%len(p.tens)] = p.ten.sum / float64(p.ten.n)
		p.n++
		p.ten = stretch{}
	}
	if at := now / 60_000; at != p.minute.at && p.minute.n > 0 {
		p.minutes = append(p.minutes, p.minute.sum/float64(p.minute.n))
		if len(p.minutes) > 60 {
			p.minutes = slices.Delete(p.minutes, 0, 1)
		}
		p.minute = stretch{}
	}
	p.ten = stretch{now / 10_000, p.ten.sum + f, p.ten.n + 1}
	p.minute = stretch{now / 60_000, p.minute.sum + f, p.minute.n + 1}
}

// typical is the median of the last hour's minutes; 0 while there are less than three.
func (p *pace) typical() float64 {
	if len(p.minutes) < 3 {
		return 0
	}
	return median(p.minutes)
}

// median of some numbers, which stay as they are.
func median(all []float64) float64 {
	if len(all) == 0 {
		return 0
	}
	s := slices.Clone(all)
	slices.Sort(s)
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// history is what a member did in the minutes past.
type history struct{}

func (h *history) add(*sample) {}
func (h *history) broken()     {}
