package status

import (
	"cmp"
	"fmt"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// server is one ps as it is known.
type server struct {
	id    string
	heard heard
	ring  ring
	since int64 // when its life began, by the clock here
	life  int64 // StartedMS of the latest event

	refused map[refusedKey]uint64 // joins that events have reported
}

func (s *server) said() *schema.ServerReport { return s.heard.report.Server }

// trainer is one trainer of a run, from its own reports.
type trainer struct {
	index  int
	member schema.Member
	heard  heard
	ring   ring
	since  loss // of the Tick before
}

// loss is the sum of losses up to some moment, and the batches that they are of.
type loss struct {
	sum, samples float64
	bad          float64
	batches      float64
	known        bool
}

func (tr *trainer) said() *schema.TrainerReport {
	if tr == nil || tr.heard.report == nil {
		return nil
	}
	return tr.heard.report.Trainer
}

// take notes a report.
func (tr *trainer) take(now int64, p *schema.Telemetry) {
	was := tr.ring.n
	tr.ring.add(trainerSample(now, p), tr.heard.anew)
	if tr.ring.n == 1 && was > 0 { // another life
		tr.since = loss{}
	}
}

// where is the machine and process of a trainer, as sentences name it: by its own word, else by its coordinator's.
func (tr *trainer) where(m *schema.MemberReport) string {
	switch {
	case tr != nil && tr.heard.report != nil && tr.heard.report.Host != "":
		return fmt.Sprintf("%s (pid %d)", tr.heard.report.Host, tr.heard.report.PID)
	case m != nil && m.Host != "":
		return m.Host
	}
	return "a machine that is not known"
}

// run is one run of a job as it is known.
type run struct {
	key         runKey
	since       int64 // when it was first heard of
	coordinator string
	said        *schema.JobReport // by the coordinator
	saidAt      int64
	endedAt     int64 // by the clock here; 0 while it is under way
	shards      int
	trainers    map[int]*trainer
	kept        map[int]*shard
	series      series
	fate        *schema.Ended // why it ended, where its coordinator did not say
	next        schema.RunID  // the run that has gone on from it; 0: none
	seen        seen
	shown       int // trainers, as of the latest Tick
	done        uint64
	moved       int64 // when done rose last
	loss        *schema.Real
}

func (r *run) over() bool { return r.endedAt != 0 }

// cause returns why the run has ended; nil where all of its trainers have left in peace, or it has not ended.
func (r *run) cause() *schema.Ended {
	if r.said.Failed != nil {
		return r.said.Failed
	}
	return r.fate
}

// end returns how the run has ended; empty while it has not. One that was handed over goes on for as long as its
// trainers are awaited.
func (r *run) end(now int64) schema.End {
	f := r.cause()
	switch {
	case !r.over():
		return ""
	case r.next != 0, f != nil && f.End == schema.EndStopped && r.awaited(now):
		return schema.EndContinued
	case f != nil:
		return cmp.Or(f.End, schema.EndFailed)
	}
	return cmp.Or(r.said.End, schema.EndCompleted)
}

// awaitedFor is for how long the trainers of an interrupted run are awaited before it counts as ended for good, in
// milliseconds: as long as a ps takes it that they come back.
const awaitedFor = 60_000

// awaited reports that the run was interrupted, and its trainers may come back to go on from it.
func (r *run) awaited(now int64) bool {
	f := r.cause()
	return r.over() && r.next == 0 && f != nil && f.Back && now-r.endedAt < awaitedFor
}

// lostWith reports that a run has failed since a trainer was gone, or silent for ms milliseconds, or that it had lost
// it before.
func (r *run) lostWith(m *schema.MemberReport, ms int64) bool {
	return m.Lost || r.said.Failed != nil && r.said.Failed.Member == m.Member && (m.Gone || m.SilentMS > ms)
}

// member returns the slot of the i-th trainer; nil if the coordinator has not reported it.
func (r *run) member(i int) *schema.MemberReport {
	if i >= len(r.said.Members) {
		return nil
	}
	if k, ok := trainerIndex(r.said.Members[i].Member); !ok || k != i {
		return nil
	}
	return &r.said.Members[i]
}

// missing returns the number of trainers that have not joined.
func (r *run) missing() (n int) {
	if r.over() {
		return 0
	}
	for i := range r.said.Members {
		if m := &r.said.Members[i]; m.Host == "" && !m.Left {
			n++
		}
	}
	return n + max(min(r.said.Trainers, TrainersMax)-len(r.said.Members), 0)
}

// shard is one shard of a run, as the ps that has it says.
type shard struct {
	index  int
	server string
	report *schema.ShardReport
	spoken

	waits      bool // since waitsSince, rounds of waitsBatch
	waitsBatch schema.Batch
	waitsSince int64
	ring       ring
}

// spoken measures the silence of a member that reports at intervals. Times are in milliseconds.
type spoken struct {
	liveness.Silence
	every int64 // until the next word, as the last one says
}

// speak notes a word.
func (s *spoken) speak(now, every int64) {
	s.Begin(time.UnixMilli(now))
	s.every = min(max(every, 100), 60_000)
}

// at returns the time of the last report, moved by the time for which this process has stood still since: it could
// receive nothing then.
func (s *spoken) at() int64 { return s.Since().UnixMilli() }

// age returns the time since the last report.
func (s *spoken) age(now int64) int64 { return s.For(time.UnixMilli(now)).Milliseconds() }

// silentAfter returns the silence after which a member is shown as silent.
func (s *spoken) silentAfter() int64 { return s.every*2 + 900 }

// fresh reports whether a member reports as often as it announced.
func (s *spoken) fresh(now int64) bool { return s.Lasts() && s.age(now) <= s.silentAfter() }

// heard is when a member was last heard, and of which of its lives.
type heard struct {
	spoken
	report *schema.Telemetry
	anew   bool // it was started again, or its counters fell, since the report before
}

// takeOver is after how many milliseconds of silence another life of a member is believed at the latest, however seldom
// it said that it speaks.
const takeOver = 10_000

// take notes a report. A member is believed for as long as it goes on, that is, says what is new in the order in which
// it was said, and so is one that was started since. What is of a life before, or not later in the one that is known,
// is believed only after a silence: it may be a late word, or one of two processes of one name.
func (h *heard) take(now int64, p *schema.Telemetry) bool {
	h.anew = h.report == nil
	if was := h.report; was != nil {
		same := p.StartedMS == was.StartedMS && p.PID == was.PID
		switch {
		case same && p.Serial == was.Serial:
			return false
		case same && p.Serial > was.Serial:
		case p.StartedMS <= was.StartedMS && h.age(now) < min(h.silentAfter(), takeOver):
			return false
		default:
			h.anew = true
		}
	}
	h.report = p
	h.speak(now, p.EveryMS)
	return true
}

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
	cResent
	cCPU
	countersMax
)

const (
	sBytes counter = iota
	sRefused
	sRounds
	sStep
	sPublish
	sCPU
)

// totals are a member's counters at one report.
type totals [countersMax]float64

// sample is the contents of a report, with the time of its arrival and the sender's time.
type sample struct {
	at, clock int64
	totals
}

// rateWindow is the time over which rates are computed, in milliseconds, and ringLen the number of reports in it.
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

// span is the difference between two samples.
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

// rate returns the increase of a counter per second.
func (sp *span) rate(c counter) float64 { return sp.rise(c) / sp.seconds }

func (sp *span) rise(c counter) float64 { return max(sp.to.totals[c]-sp.from.totals[c], 0) }

// share is the part of the time that was spent in a phase.
func (sp *span) share(phase counter) float64 { return min(sp.rate(phase), 1) }

func trainerSample(now int64, p *schema.Telemetry) sample {
	t := p.Trainer
	return sample{at: now, clock: p.NowMS, totals: totals{
		cBatches: float64(t.Batches), cSamples: float64(t.Samples), cLossSum: finite(t.Loss.Sum),
		cLossSamples: float64(t.Loss.Samples),
		cLossBad:     float64(t.Loss.Bad), cKeys: finite(t.KeysSeconds), cLookup: finite(t.LookupSeconds),
		cCompute: finite(t.ComputeSeconds),
		cSend:    finite(t.SendSeconds), cResult: finite(t.ResultSeconds), cSent: float64(t.Traffic.BytesSent),
		cReceived: float64(t.Traffic.BytesReceived), cResent: float64(t.Resent),
		cCPU: finite(t.Process.CPUSeconds),
	}}
}

func serverSample(now int64, p *schema.Telemetry) sample {
	s := p.Server
	return sample{at: now, clock: p.NowMS, totals: totals{
		sBytes:   float64(s.Bytes),
		sRefused: float64(refusedOf(s.Reasons)), sCPU: finite(s.Process.CPUSeconds),
	}}
}

func shardSample(now int64, p *schema.Telemetry, h *schema.ShardReport) sample {
	return sample{at: now, clock: p.NowMS, totals: totals{
		sBytes: float64(h.Bytes), sRounds: float64(h.Rounds), sStep: finite(h.StepSeconds),
		sPublish: finite(h.PublishSeconds),
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

// shownTextBytesMax bounds a text that the status repeats each second.
const shownTextBytesMax = 256

// isListed reports whether a ps is in the registry, or was within ten minutes. Any client could have invented others.
func (t *Tracker) isListed(id string) bool {
	if t.config.Registered == nil || id == t.config.Server {
		return true
	}
	if _, ok := t.listed[id]; !ok {
		t.list()
	}
	_, ok := t.listed[id]
	return ok
}

// list reads the registry.
func (t *Tracker) list() {
	if t.config.Registered == nil {
		return
	}
	for _, id := range t.config.Registered() {
		if _, ok := t.listed[id]; ok || len(t.listed) < 2*ServersMax {
			t.listed[id] = t.now
		}
	}
	for id, at := range t.listed {
		if t.now-at > goneKept {
			delete(t.listed, id)
		}
	}
}

// brief cuts a text for the status.
func brief(text string) string {
	if len(text) <= shownTextBytesMax {
		return text
	}
	return schema.Clip(text[:shownTextBytesMax]) + "..."
}
