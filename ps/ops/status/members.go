package status

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// server is one ps as it is known.
type server struct {
	id     string
	report *schema.Telemetry
	heard  heard
	ring   ring
	since  int64 // when its life began, by the clock here
	life   int64 // StartedMS that events have told of

	refused map[refusedKey]uint64 // joins that events have told of

	reasons [ringLen]map[string]uint64 // of the samples in ring
}

func (s *server) said() *schema.ServerReport { return s.report.Server }

// trainer is one trainer of a run as it tells of itself.
type trainer struct {
	index  int
	member schema.Member
	heard  heard
	ring   ring
	since  loss // of the Tick before
	past   stretches
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

// take notes a report; counts says that the trainer waited for nobody who is missing since the one before.
func (tr *trainer) take(now int64, p *schema.Telemetry, counts bool) {
	was := tr.ring.n
	tr.ring.add(trainerSample(now, p), tr.heard.anew)
	if tr.ring.n == 1 && was > 0 { // another life
		tr.since = loss{}
	}
	tr.remember(counts && training(p.Trainer))
}

// handedIn says that a trainer has sent its part of a batch just now, and waits for the others'.
func (tr *trainer) handedIn() bool {
	said := tr.said()
	return said.Doing == schema.DoingResult && said.DoingMS < tr.heard.every
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
	said        *schema.JobReport // by the coordinator; nil before
	saidAt      int64
	endedAt     int64 // by the clock here; 0 while it is under way
	shards      int
	trainers    map[int]*trainer
	kept        map[int]*shard
	series      series
	fate        *schema.Failed // why it ended, where its coordinator did not say
	next        schema.RunID   // the run that has gone on from it; 0: none
	seen        seen
	shown       int  // trainers, as of the latest Tick
	blocked     bool // a batch waits for somebody, as of the latest look
	done        uint64
	moved       int64 // when done rose last
	loss        *schema.Real
}

func (r *run) over() bool { return r.endedAt != 0 }

// cause returns why the run has ended; nil where all of its trainers have left in peace, or it has not ended.
func (r *run) cause() *schema.Failed {
	if r.said != nil && r.said.Failed != nil {
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
	case r.said != nil:
		return cmp.Or(r.said.End, schema.EndCompleted)
	}
	return schema.EndCompleted
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

// member is the place of the i-th trainer, nil where the coordinator has not told of it.
func (r *run) member(i int) *schema.MemberReport {
	if r.said == nil || i >= len(r.said.Members) {
		return nil
	}
	if k, ok := trainerIndex(r.said.Members[i].Member); !ok || k != i {
		return nil
	}
	return &r.said.Members[i]
}

// places is the number of trainers to show.
func (r *run) places() int { return min(r.shown, r.numbered()) }

// numbered is the number of trainers that there are.
func (r *run) numbered() int {
	if r.said != nil {
		return min(len(r.said.Members), TrainersMax)
	}
	n := 0
	for i := range r.trainers {
		n = max(n, i+1)
	}
	return min(n, unknownTrainersMax)
}

// missing is how many trainers have not joined.
func (r *run) missing() (n int) {
	if r.said == nil || r.over() {
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
	sFrames counter = iota
	sBytes
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
		cReceived: float64(t.Traffic.BytesReceived), cResent: float64(t.Resent),
		cCPU: finite(t.Process.CPUSeconds),
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
		sFrames: float64(s.Frames), sBytes: float64(s.Bytes),
		sRefused: float64(refusedOf(s.Reasons)), sCPU: finite(s.Process.CPUSeconds),
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

// Bounds in bytes of what is remembered of reports. One within the first two is taken whatever others say, since who
// says them is bounded in number. Larger ones share what the last two give, ps and trainers apart: no trainer can crowd
// out a ps.
const (
	serverBytes       = 64 << 10
	trainerBytes      = 8 << 10
	trainerBytesMax   = 64 << 10 // of one trainer: one with 256 shards and eight GPUs takes half of that
	serversBytesMax   = 32 << 20
	TrainersBytesMax  = 32 << 20
	shownTextBytesMax = 256 // of a text that the status repeats each second
)

// unlistedMax bounds the ps that are not in the registry and are told of: by their names alone, and only once they have
// spoken for a while, since one that has just begun is there a moment before it is announced.
const (
	unlistedMax   = 8
	unlistedAfter = 10_000
)

// spoke is from when until when somebody was heard.
type spoke struct{ first, last int64 }

// isListed reports whether a ps is in the registry, or was ten minutes ago: who is not may be anybody's invention.
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

// list looks who is in the registry.
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

// noteUnlisted notes a ps that is not in the registry. Nothing else of what it says is taken.
func (t *Tracker) noteUnlisted(id string) {
	switch s := t.unlisted[id]; {
	case s != nil:
		s.last = t.now
	case len(t.unlisted) < unlistedMax:
		t.unlisted[id] = &spoke{t.now, t.now}
	}
}

// unlisted finds ps that are not in the registry, and forgets those that are silent or announced.
func (j *ranking) unlisted() {
	t := j.t
	var names []string
	for _, id := range sortedKeys(t.unlisted) {
		s := t.unlisted[id]
		switch {
		case t.now-s.last > heldFor || t.isListed(id):
			delete(t.unlisted, id)
		case s.last-s.first >= unlistedAfter:
			names = append(names, id)
		}
	}
	if len(names) > 0 {
		j.find(CodeTooMany, "%s: reports are heard that are not of any ps in the registry, and nothing of them is shown",
			list(names)).
			do("Look for their sender: any client that may publish on the control server can send them. If it is a ps of yours, its log " +
				"says why it " +
				"cannot announce itself.")
	}
}

// budget bounds the bytes of large reports of ps, or of trainers: of those with more than least, at most most together.
type budget struct{ least, most, bytes int }

// fits reports whether there is room for a report in place of a member's latest, in bytes.
func (b *budget) fits(was, bytes int) bool {
	return bytes <= b.least || b.bytes-b.large(was)+bytes <= b.most
}

// swap counts a report in place of a member's latest.
func (b *budget) swap(was, bytes int) { b.bytes += b.large(bytes) - b.large(was) }

func (b *budget) large(bytes int) int {
	if bytes <= b.least {
		return 0
	}
	return bytes
}

// weigh counts what is remembered anew: who was forgotten since the last time still counts until then.
func (t *Tracker) weigh() {
	t.ofServers, t.ofTrainers = budget{least: serverBytes, most: serversBytesMax},
		budget{least: trainerBytes, most: TrainersBytesMax}
	for _, s := range t.servers {
		t.ofServers.swap(0, s.heard.bytes)
	}
	for _, r := range t.runs {
		for _, tr := range r.trainers {
			t.ofTrainers.swap(0, tr.heard.bytes)
		}
	}
}

// serverReportBytes is what remembering a report of a ps takes: of its refusals the latest are.
func serverReportBytes(p *schema.Telemetry) int {
	n := p.MemoryBytes()
	for reason := range p.Server.Reasons {
		n += (ringLen - 1) * (len(reason) + 48)
	}
	return n
}

// brief cuts a text for the status.
func brief(text string) string {
	if len(text) <= shownTextBytesMax {
		return text
	}
	return schema.Clip(text[:shownTextBytesMax]) + "..."
}
