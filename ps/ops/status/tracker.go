package status

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gradbus/schema"
)

// Bounds of what a Tracker keeps, whatever it is told. What is beyond them is not shown, and a problem says so.
const (
	JobsMax     = 64   // runs: those under way, and those that ended lately; half of them of one other ps
	ServersMax  = 256  // ps
	TrainersMax = 4096 // of one run, and of all
	ShardsMax   = 4096 // of one run, and of all
	GPUsMax     = 1024
	gpusPerReport,
	disksPerReport = 64, 32
	reportsBytesMax = 64 << 20 // latest reports of all members, as frames
)

// How long things are kept, in milliseconds.
const (
	endedKept = 10 * 60_000 // a run that has ended
	goneKept  = 10 * 60_000 // a ps, or a GPU, of which nothing is heard
	heldFor   = 10_000      // a run stays with the ps that coordinates it for so long after its last word
)

// Config describes the ps that answers.
type Config struct {
	Server  string // id of the ps that answers
	URL     string // where trainers join jobs: its own, or that of the control server
	Version string // of gradbus

	// Words puts commands in texts, ./bin/trainer packages, as they run where this ps was started; nil leaves them.
	Words func(string) string

	// Registered are the ids of the ps in the registry, as of a moment ago; nothing of any other is shown. It is called by
	// the Tracker's caller's goroutine, and must not block. nil is where there is none: all are taken to be in it.
	Registered func() []string
}

// Tracker makes the view of all jobs out of reports. It is not safe for concurrent use, and reads no clock: the caller
// passes the time. Times may stand still, and must not fall: silent members would not be found until they have caught
// up.
type Tracker struct {
	config    Config
	serial    uint64
	now       int64 // milliseconds; of the latest call
	ticked    int64 // of the latest Tick
	told      uint64
	changed   bool
	servers   map[string]*server
	ended     map[string]int64 // ps whose last report has come: when they were started
	runs      map[runKey]*run
	gpus      map[gpuKey]*gpu
	incidents incidents
	log       eventLog
	refused   limits

	listed map[string]int64 // ps in the registry, when they were there last
	bytes  int              // of the latest reports of all members
}

// limits counts what was beyond a bound, since the last Tick and before.
type limits struct {
	what string
	at   int64
}

type runKey struct {
	name schema.JobName
	id   schema.RunID
}

// New is a Tracker that knows nothing.
func New(c Config) *Tracker {
	t := &Tracker{config: c, servers: map[string]*server{}, ended: map[string]int64{},
		runs: map[runKey]*run{}, gpus: map[gpuKey]*gpu{},
		incidents: newIncidents(), listed: map[string]int64{}}
	return t
}

// Take is given a report as it was heard: of which job, from whom (both out of the subject, never out of the body) and
// when. The Tracker keeps p, which must not change afterwards. What does not fit the subject is ignored.
func (t *Tracker) Take(now time.Time, job schema.JobName, from schema.Member, p *schema.Telemetry) {
	t.advance(now)
	switch id, isServer := strings.CutPrefix(string(from), "p-"); {
	case p == nil || (p.Trainer == nil) == (p.Server == nil):
	case isServer && p.Server != nil && id != "":
		t.changed = t.takeServer(id, p) || t.changed
	case !isServer && p.Trainer != nil:
		if i, ok := trainerIndex(from); ok {
			t.changed = t.takeTrainer(job, i, p) || t.changed
		}
	}
}

// Changed reports whether a report since the last Tick has said something that is worth a Tick at once: a GPU is worse
// than it was, a trainer's connection is gone, a job has begun or ended.
func (t *Tracker) Changed() bool { return t.changed }

// advance notes the time of a call. A clock that was set back stands still until it has caught up.
func (t *Tracker) advance(now time.Time) {
	t.now = max(t.now, now.UnixMilli())
}

// trainerIndex is the i of ti.
func trainerIndex(m schema.Member) (int, bool) {
	digits, ok := strings.CutPrefix(string(m), "t")
	if !ok || digits == "" || digits[0] == '0' && digits != "0" {
		return 0, false
	}
	i, err := strconv.Atoi(digits)
	return i, err == nil && i >= 0 && i < TrainersMax
}

func (t *Tracker) takeServer(id string, p *schema.Telemetry) (urgent bool) {
	if !t.isListed(id) {
		return false
	}
	if at, ok := t.ended[id]; ok && p.StartedMS <= at {
		return false // a late word
	}
	s := t.servers[id]
	if s == nil {
		if len(t.servers) >= ServersMax {
			t.beyond("ps")
			return false
		}
		s = &server{id: id}
	}
	was := s.heard.report
	if !t.hear(&s.heard, p) {
		return false
	}
	t.servers[id] = s
	if s.heard.anew {
		s.since = t.now
	}
	s.ring.add(serverSample(t.now, p), s.heard.anew)
	defer t.takeShards(s, p)
	urgent = was != nil && p.Server.ControlLost && !was.Server.ControlLost
	for i := range p.Server.Jobs {
		urgent = t.takeJob(s, &p.Server.Jobs[i]) || urgent
	}
	if p.Server.State == schema.ServerEnded {
		t.endServer(s)
		return true
	}
	return t.takeGPUs(p, "", "p-"+id, p.Server.GPUs) || urgent
}

// takeJob notes what a coordinator says of a run, unless another ps coordinates it.
func (t *Tracker) takeJob(s *server, j *schema.JobReport) (urgent bool) {
	if j.Name == "" {
		return false
	}
	r := t.runs[runKey{j.Name, j.RunID}]
	if j.Phase != schema.PhaseEnded && r == nil {
		t.continueIn(j)
	}
	if other := t.holder(j); other != nil && other.coordinator != s.id {
		return false
	}
	if r == nil {
		if j.Phase == schema.PhaseEnded && (s.heard.report.NowMS-j.EndedMS > endedKept || len(t.runs) >= JobsMax) {
			return false // it is forgotten, or would take the place of another, which then took it back, each second
		}
		if s.id != t.config.Server && t.runsOf(s.id) >= JobsMax/2 {
			t.beyond("jobs")
			return false
		}
		if r = t.addRun(j.Name, j.RunID, s.id == t.config.Server); r == nil {
			return false
		}
	}
	was, said := r.said, *j // a copy: the run may outlive the rest of the report
	r.coordinator, r.said, r.saidAt = s.id, &said, t.now
	r.shards = min(max(j.Shards, 0), ShardsMax)
	for i := range r.trainers {
		if i >= len(j.Members) {
			delete(r.trainers, i) // it was never one
		}
	}
	if j.Phase == schema.PhaseEnded && r.endedAt == 0 {
		r.endedAt = t.now
	}
	if was == nil {
		return false
	}
	for i := range j.Members {
		if i < len(was.Members) && (j.Members[i].Gone && !was.Members[i].Gone || j.Members[i].Lost && !was.Members[i].Lost) {
			urgent = true
		}
	}
	return urgent || j.Phase != was.Phase
}

// continueIn ends the runs that a new run says it goes on from.
func (t *Tracker) continueIn(j *schema.JobReport) {
	for _, id := range j.Follows {
		if r := t.runs[runKey{j.Name, id}]; r != nil {
			r.next = j.RunID
			if !r.over() {
				r.endedAt = t.now
			}
		}
	}
}

// endServer forgets a ps that has said that it ends: it is not missed, and no job waits for it.
func (t *Tracker) endServer(s *server) {
	handedOver := []string{}
	for _, r := range t.sortedRuns() {
		if r.coordinator != s.id {
			continue
		}
		if !r.over() {
			r.endedAt = t.now
			r.fate = &schema.Ended{Member: schema.ServerMember(s.id), End: schema.EndStopped, Back: true,
				Text: fmt.Sprintf("ps %s, which coordinated it, was asked to end", s.id)}
		}
		if t.now-r.endedAt < awaitedFor && r.end(t.now) == schema.EndContinued {
			handedOver = append(handedOver, string(r.key.name))
		}
	}
	text := fmt.Sprintf("ps %s on %s has ended as it was asked to", s.id, s.heard.report.Host)
	if len(handedOver) > 0 {
		text += ", and has handed over " + list(handedOver)
	}
	t.event(Info, eventServerLeft, Event{Member: "p-" + s.id}, "%s", text)
	if len(t.ended) < ServersMax {
		t.ended[s.id] = s.heard.report.StartedMS
	}
	delete(t.servers, s.id)
}

// holder returns the run in progress of that name with a coordinating ps that still reports; nil if any ps may claim
// the name.
func (t *Tracker) holder(j *schema.JobReport) *run {
	for k, r := range t.runs {
		if k.name != j.Name || r.over() && k.id != j.RunID {
			continue
		}
		s := t.servers[r.coordinator]
		if s != nil && t.now-s.heard.at() <= heldFor && t.now-r.saidAt <= heldFor {
			return r
		}
	}
	return nil
}

// addRun makes room for a run; nil where there is none. The run that ended first makes way, and else one of another ps
// for one of the ps that answers.
func (t *Tracker) addRun(name schema.JobName, id schema.RunID, own bool) *run {
	if len(t.runs) >= JobsMax {
		var least *run
		for _, r := range t.runs {
			switch {
			case !r.over() && (!own || t.own(r)):
			case least == nil, r.over() && (!least.over() || r.endedAt < least.endedAt):
				least = r
			}
		}
		if least == nil || !least.over() {
			t.beyond("jobs")
		}
		if least == nil {
			return nil
		}
		delete(t.runs, least.key)
	}
	r := &run{key: runKey{name, id}, since: t.now, trainers: map[int]*trainer{}}
	t.runs[r.key] = r
	return r
}

// takeTrainer notes a trainer's report, in a run that a ps has reported.
func (t *Tracker) takeTrainer(job schema.JobName, i int, p *schema.Telemetry) (urgent bool) {
	r := t.runs[runKey{job, p.Trainer.RunID}]
	if r == nil || i >= min(len(r.said.Members), TrainersMax) {
		return false
	}
	tr := r.trainers[i]
	if tr == nil {
		if t.total(r, func(r *run) int { return len(r.trainers) }) >= TrainersMax {
			t.beyond("trainers")
			return false
		}
		tr = &trainer{index: i, member: schema.TrainerMember(i)}
	}
	if !t.hear(&tr.heard, p) {
		return false
	}
	r.trainers[i] = tr
	tr.take(t.now, p)
	return t.takeGPUs(p, string(job)+"/"+string(tr.member), "", p.Trainer.GPUs)
}

// hear notes a report, where there is room for it and it is not a late one.
func (t *Tracker) hear(h *heard, p *schema.Telemetry) bool {
	was := 0
	if h.report != nil {
		was = h.report.FrameBytes
	}
	if t.bytes-was+p.FrameBytes > reportsBytesMax {
		t.beyond("large reports")
		return false
	}
	if !h.take(t.now, p) {
		return false
	}
	t.bytes += p.FrameBytes - was
	return true
}

// weigh counts the latest reports again: those that were forgotten are counted until then.
func (t *Tracker) weigh() {
	t.bytes = 0
	for _, s := range t.servers {
		t.bytes += s.heard.report.FrameBytes
	}
	for _, r := range t.runs {
		for _, tr := range r.trainers {
			t.bytes += tr.heard.report.FrameBytes
		}
	}
}

// runsOf is the number of runs that a ps coordinates.
func (t *Tracker) runsOf(server string) (n int) {
	for _, r := range t.runs {
		if r.coordinator == server {
			n++
		}
	}
	return n
}

// own reports whether the ps that answers coordinates a run.
func (t *Tracker) own(r *run) bool { return r.coordinator == t.config.Server }

// total adds up what the runs have that are, or are not, of the ps that answers, as a run is: others take no room from
// it.
func (t *Tracker) total(of *run, have func(*run) int) (n int) {
	for _, r := range t.runs {
		if t.own(r) == t.own(of) {
			n += have(r)
		}
	}
	return n
}

// allot says how many trainers of each run are shown: TrainersMax of all, those of the ps that answers first.
func (t *Tracker) allot() {
	left := TrainersMax
	runs := t.sortedRuns()
	slices.SortStableFunc(runs, func(a, b *run) int { return oneIf(t.own(b)) - oneIf(t.own(a)) })
	for _, r := range runs {
		all := min(len(r.said.Members), TrainersMax)
		if r.shown = min(all, left); r.shown < all {
			t.beyond("trainers")
		}
		left -= r.shown
	}
}

func (t *Tracker) beyond(what string) { t.refused = limits{what, t.now} }

// finite is x, or 0 where that is NaN or infinite.
func finite(x schema.Real) float64 {
	if f := float64(x); !math.IsNaN(f) && !math.IsInf(f, 0) {
		return f
	}
	return 0
}

// Tick examines everything again, and is called once a second; more often does no harm. It finds problems, writes
// events, takes a point for the series, and forgets what is over for long. What it returns is never changed afterwards.
func (t *Tracker) Tick(now time.Time) Update {
	t.forgive(now.UnixMilli())
	t.advance(now)
	second := t.ticked == 0 || t.now/1000 != t.ticked/1000
	t.list()
	t.forget()
	t.weigh()
	t.allot()
	for _, r := range t.runs {
		if second {
			t.note(r)
		}
	}
	s := t.build()
	t.rank(s)
	t.ticked, t.changed = t.now, false
	u := Update{Status: *s, Points: map[string]Point{}, Events: t.log.since(t.told)}
	t.told = t.log.serial
	for _, r := range t.runs {
		if p, ok := r.series.newest(); ok && !r.over() {
			u.Points[t.seriesKey(r)] = p
		}
	}
	return u
}

// pauseLeast is the time without a call after which the process counts as paused.
const pauseLeast = 3_000

// forgive moves the times of reports by the time for which this process, or its machine, did not run: it could receive
// nothing then.
func (t *Tracker) forgive(now int64) {
	pause := now - t.ticked - 1_000
	if t.ticked == 0 || pause < pauseLeast-1_000 {
		return
	}
	length, end := time.Duration(pause)*time.Millisecond, time.UnixMilli(now)
	for _, s := range t.servers {
		s.heard.Excuse(length, end)
	}
	for _, r := range t.runs {
		r.saidAt, r.moved = min(r.saidAt+pause, now), min(r.moved+pause, now)
		for _, tr := range r.trainers {
			tr.heard.Excuse(length, end)
		}
		for _, k := range r.kept {
			k.Excuse(length, end)
		}
	}
	for _, g := range t.gpus {
		for _, by := range g.reports {
			by.Excuse(length, end)
		}
	}
}

// Series are the columns of a job, by Job.Series, of the times after since (milliseconds since 1970; 0 for all). "" is
// the first of Status.Jobs. ok is false where there is no such job.
func (t *Tracker) Series(job string, since int64) (s Series, ok bool) {
	for _, r := range t.sortedRuns() {
		if job == "" {
			job = t.seriesKey(r)
		}
		if t.seriesKey(r) == job {
			return r.series.after(job, runID(r.key.id), since), true
		}
	}
	return Series{}, false
}

// forget drops what is over for long.
func (t *Tracker) forget() {
	for key, r := range t.runs {
		switch {
		case r.over():
			if t.now-r.endedAt > endedKept {
				delete(t.runs, key)
			}
		default:
			t.abandon(r)
		}
	}
	for id, s := range t.servers {
		if t.now-s.heard.at() > goneKept {
			delete(t.servers, id)
		}
	}
	for id, at := range t.ended {
		if t.now-at > goneKept { // it has not come back
			delete(t.ended, id)
		}
	}
	t.forgetGPUs()
}

// abandon ends a run that its coordinator does not know any more, or whose coordinator is gone for good.
func (t *Tracker) abandon(r *run) {
	s := t.servers[r.coordinator]
	failed := func(format string, args ...any) {
		r.fate = &schema.Ended{Member: schema.ServerMember(r.coordinator), Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case s == nil || t.now-r.saidAt > goneKept:
		failed("nothing was heard of ps %s, which coordinated it, for %s", r.coordinator, Ago(t.now-r.saidAt))
	case s.heard.at() > r.saidAt && s.since > r.saidAt:
		failed("ps %s, which coordinated it, was started again", r.coordinator)
	case s.heard.at() > r.saidAt:
	default:
		return
	}
	r.endedAt = t.now
}

// forgetGPUs drops GPUs that no member reports any more: a member that no longer lists a GPU withdraws its report.
func (t *Tracker) forgetGPUs() {
	latest := map[string]int64{}
	for id, s := range t.servers {
		latest["p-"+id] = s.heard.at()
	}
	for key, r := range t.runs {
		for _, tr := range r.trainers {
			if !r.over() {
				latest[string(key.name)+"/"+string(tr.member)] = tr.heard.at()
			}
		}
	}
	for key, g := range t.gpus {
		for who, r := range g.reports {
			if at, ok := latest[who]; !ok || at > r.at() || r.age(t.now) > goneKept {
				delete(g.reports, who)
			}
		}
		if len(g.reports) == 0 {
			delete(t.gpus, key)
		}
	}
}

// note takes a point of a run, and its loss.
func (t *Tracker) note(r *run) {
	if r.over() {
		return
	}
	p := Point{AtMS: t.now / 1000 * 1000, Batch: uint64(r.said.Batch)}
	t.noteLoss(r, &p)
	t.noteRates(r, &p)
	r.series.add(p)
}

// noteLoss takes the mean loss, and the mean gradient norm, of what was trained on since the Tick before.
func (t *Tracker) noteLoss(r *run, p *Point) {
	var sum, samples, bad, norm float64
	var norms int
	for _, tr := range r.trainers {
		last, said := tr.ring.last(), tr.said()
		p.Batch = max(p.Batch, uint64(said.Batch))
		if tr.since.known {
			sum += last.totals[cLossSum] - tr.since.sum
			samples += last.totals[cLossSamples] - tr.since.samples
			bad += last.totals[cLossBad] - tr.since.bad
		}
		// A trainer repeats its latest norm for as long as it completes no batch.
		completed := tr.since.known && last.totals[cBatches] > tr.since.batches
		tr.since = loss{last.totals[cLossSum], last.totals[cLossSamples], last.totals[cLossBad], last.totals[cBatches], true}
		if said.GradientNorm != nil && completed && tr.heard.fresh(t.now) {
			norm, norms = norm+float64(*said.GradientNorm), norms+1
		}
	}
	// a loss that is not a number is the job's, whatever the others have: else the last good one would stand there for
	// ever
	switch {
	case bad > 0:
		p.Loss = real(math.NaN())
	case samples > 0:
		p.Loss = real(sum / samples)
	}
	if p.Loss != nil {
		r.loss = p.Loss
	}
	if norms > 0 {
		p.Norm = real(norm / float64(norms))
	}
}

func real(f float64) *schema.Real {
	r := schema.Real(f)
	return &r
}

// pointWindow is the time over which the rates of a point are computed, in milliseconds: a single second would show how
// reports and batches happen to fall.
const pointWindow = 3_000

// noteRates takes what trainers and shards do, by their latest reports.
func (t *Tracker) noteRates(r *run, p *Point) {
	var n int
	var samples, sent, received, resent, pending, refused float64
	var shares [phases]float64 // in the order of counters
	for _, tr := range r.trainers {
		sp, ok := tr.ring.over(pointWindow)
		if !ok || !tr.heard.fresh(t.now) {
			continue
		}
		n++
		samples, sent, received = samples+sp.rate(cSamples), sent+sp.rate(cSent), received+sp.rate(cReceived)
		resent += sp.rate(cResent)
		for i := range shares {
			shares[i] += sp.share(cKeys + counter(i))
		}
		for _, l := range tr.said().Links {
			pending += float64(l.PendingBytes)
		}
	}
	if n > 0 {
		p.Samples, p.Sent, p.Received, p.Resent, p.Pending = real(samples), real(sent), real(received), real(resent),
			real(pending)
		for i, to := range []**schema.Real{&p.Keys, &p.Lookup, &p.Compute, &p.Send, &p.Result} {
			*to = real(shares[i] / float64(n))
		}
	} else if len(r.trainers) > 0 && r.said.Phase == schema.PhaseRunning {
		p.Samples = real(0)
	}
	heardOf := false
	for _, s := range t.servers {
		if sp, ok := s.ring.over(pointWindow); ok && s.heard.fresh(t.now) && r.keptBy(s.id) {
			refused, heardOf = refused+sp.rate(sRefused), true
		}
	}
	if heardOf {
		p.Refused = real(refused)
	}
}

// keptBy reports whether a ps has to do with a run.
func (r *run) keptBy(server string) bool {
	if r.coordinator == server {
		return true
	}
	for _, k := range r.kept {
		if k.server == server {
			return true
		}
	}
	return false
}
