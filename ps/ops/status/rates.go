package status

import (
	"math"

	"gradbus/schema"
)

// counter is the index of one total of a member in its samples.
type counter int

// Totals of trainers; those of ps and shards are below.
const (
	cBatches counter = iota
	cSamples
	cLossSum
	cLossSamples
	cLossBad
	cKeys // the five phases stay together
	cLookup
	cCompute
	cSend
	cResult
	cSent
	cReceived
	cFrames
	cResent
	cRepeated // lookups and pulls that were asked for again
	cDropped
	cReconnects
	cCPU
	countersMax
)

const (
	sFrames counter = iota
	sBytes
	sDropped
	sSlowReaders
	sRefused
	sRounds
	sStep
	sPublish
	sApply
	sLookups
	sVersion
	sCPU
)

// totals are a member's counters at one report.
type totals [countersMax]float64

// sample is what a report said, with when it came and when it was made, by the clock there.
type sample struct {
	at, clock int64
	totals
	adjusted [phases]float64 // the totals of phases, with the time of the phase under way
}

// rateWindow is what rates are taken over, in milliseconds, and ringLen how many reports that takes.
const (
	rateWindow = 10_000
	ringLen    = 12
)

// ring has the latest samples of a member's life. Its first is the oldest that is kept.
type ring struct {
	n    int // taken, in all
	kept [ringLen]sample
}

// add takes a sample. anew, or a counter that fell, begins a life: what was before does not count.
func (r *ring) add(s sample, anew bool) {
	if r.n > 0 && !anew {
		last := &r.kept[(r.n-1)%ringLen].totals
		for i := range last {
			if s.totals[i] < last[i] && counter(i) != cLossSum {
				anew = true
			}
		}
	}
	if anew {
		r.n = 0
	}
	r.kept[r.n%ringLen] = s
	r.n++
}

// last is the newest sample, nil before the first; and back the one k before it.
func (r *ring) last() *sample { return r.back(0) }

func (r *ring) back(k int) *sample {
	if k >= min(r.n, ringLen) {
		return nil
	}
	return &r.kept[(r.n-1-k)%ringLen]
}

// span is what happened between two samples.
type span struct {
	from, to *sample
	seconds  float64
}

// elapsed is the time between two reports of one member in seconds: by its own clock, which knows nothing of delays on
// the way, unless that clock was set in between.
func elapsed(a, b *sample) float64 {
	there, here := b.clock-a.clock, b.at-a.at
	if off := there - here; there <= 0 || off > 5_000+here/4 || off < -5_000-here/4 {
		there = here
	}
	return float64(there) / 1000
}

// over is the span of the last ms milliseconds, ok false where less than two reports are known of it.
func (r *ring) over(ms int64) (sp span, ok bool) {
	to := r.last()
	for k := 1; k < min(r.n, ringLen); k++ {
		from := r.back(k)
		s := elapsed(from, to)
		if s*1000 > float64(ms)+500 && sp.from != nil {
			break
		}
		sp = span{from, to, s}
	}
	return sp, sp.from != nil && sp.seconds > 0.05
}

// rate is how much a counter rose, per second.
func (sp *span) rate(c counter) float64 { return sp.rise(c) / sp.seconds }

func (sp *span) rise(c counter) float64 { return max(sp.to.totals[c]-sp.from.totals[c], 0) }

// share is the part of the time that was spent in the p-th phase.
func (sp *span) share(p int) float64 {
	return min(max(sp.to.adjusted[p]-sp.from.adjusted[p], 0)/sp.seconds, 1)
}

func trainerSample(now int64, p *schema.Telemetry) sample {
	t := p.Trainer
	s := sample{at: now, clock: p.NowMS, totals: totals{
		cBatches: float64(t.Batches), cSamples: float64(t.Samples), cLossSum: finite(t.Loss.Sum),
		cLossSamples: float64(t.Loss.Samples),
		cLossBad:     float64(t.Loss.Bad), cKeys: finite(t.KeysSeconds), cLookup: finite(t.LookupSeconds),
		cCompute: finite(t.ComputeSeconds),
		cSend:    finite(t.SendSeconds), cResult: finite(t.ResultSeconds), cSent: float64(t.Traffic.BytesSent),
		cReceived: float64(t.Traffic.BytesReceived), cFrames: float64(t.GradientFrames), cResent: float64(t.Resent),
		cRepeated: float64(t.LookupsRepeated) + float64(t.Pulls), cDropped: float64(t.Traffic.Dropped),
		cReconnects: float64(t.Traffic.Reconnects), cCPU: finite(t.Process.CPUSeconds),
	}}
	copy(s.adjusted[:], s.totals[cKeys:])
	if i := activityOf(t.Doing); i < phases {
		s.adjusted[i] += float64(max(t.DoingMS, 0)) / 1000
	}
	return s
}

func serverSample(now int64, p *schema.Telemetry) sample {
	s := p.Server
	return sample{at: now, clock: p.NowMS, totals: totals{
		sFrames: float64(s.Frames), sBytes: float64(s.Bytes), sDropped: float64(s.Dropped),
		sSlowReaders: float64(s.SlowReaders),
		sRefused:     float64(refusedOf(s.Reasons)), sCPU: finite(s.Process.CPUSeconds),
	}}
}

func shardSample(now int64, p *schema.Telemetry, h *schema.ShardReport) sample {
	return sample{at: now, clock: p.NowMS, totals: totals{
		sFrames: float64(h.Frames), sBytes: float64(h.Bytes), sRounds: float64(h.Rounds), sStep: finite(h.StepSeconds),
		sPublish: finite(h.PublishSeconds), sApply: finite(h.ApplySeconds), sLookups: float64(h.Lookups),
		sVersion: float64(h.Version),
	}}
}

// refusedOf adds up what was refused: a repetition is none, and neither is what was late, which a repetition is too.
func refusedOf(reasons map[string]uint64) (n uint64) {
	for reason, k := range reasons {
		if isRefusal(reason) {
			n += k
		}
	}
	return n
}

func isRefusal(reason string) bool {
	return reason != schema.ReasonOK.String() && reason != schema.ReasonDuplicate.String() &&
		reason != schema.ReasonStaleBatch.String()
}

// stretches are the batches of a trainer in its last two minutes, by ten seconds: rings of samples are too short for
// batches that take longer.
type stretches struct {
	kept [stretchesKept]stretch // a ring by time
}

// stretch is what a trainer did in ten seconds.
type stretch struct {
	at            int64 // milliseconds, of its beginning
	wall, batches float64
}

const (
	stretchLength = 10_000
	stretchesKept = 12
)

// add takes what was done up to a moment.
func (s *stretches) add(at int64, wall, batches float64) {
	begin := at / stretchLength * stretchLength
	to := &s.kept[begin/stretchLength%stretchesKept]
	if to.at != begin {
		*to = stretch{at: begin}
	}
	to.wall += wall
	to.batches += batches
}

// period is how long a batch took since a moment, in seconds; 0 where none was completed.
func (s *stretches) period(since int64) float64 {
	var wall, batches float64
	for _, k := range s.kept {
		if k.at >= since {
			wall, batches = wall+k.wall, batches+k.batches
		}
	}
	return ratio(wall, batches)
}

// remember notes the latest report of a trainer. Between runs nothing counts.
func (tr *trainer) remember(inRun bool) {
	from, to := tr.ring.back(1), tr.ring.last()
	if from == nil || !inRun || to.at-from.at > tr.heard.silentAfter() {
		return // it was stopped: that is told of elsewhere, and is not how long a batch takes
	}
	tr.past.add(to.at, elapsed(from, to), to.totals[cBatches]-from.totals[cBatches])
}

// ratio is a/b, 0 where b is none.
func ratio(a, b float64) float64 {
	if b <= 0 || math.IsNaN(a) {
		return 0
	}
	return a / b
}
