package status

import (
	"fmt"
	"math"
	"time"

	"gradbus/schema"
)

// Tick looks at everything anew, and is called once a second; more often does no harm. It finds problems, writes
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
		if p, ok := r.series.newest(); ok && !r.over() && t.visible(r) {
			u.Points[t.seriesKey(r)] = p
		}
	}
	return u
}

// pauseLeast is for how long nobody may have looked before that is taken for a pause of this process.
const pauseLeast = 3_000

// forgive moves what was heard by the time in which this process, or its machine, did not run: nobody could be heard
// then.
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
		if r.said != nil {
			r.saidAt = min(r.saidAt+pause, now)
		}
		r.moved = min(r.moved+pause, now)
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
		if !t.visible(r) {
			continue
		}
		if job == "" {
			job = t.seriesKey(r)
		}
		if t.seriesKey(r) == job {
			return r.series.columns(job, runID(r.key.id), since), true
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
		case r.said == nil:
			if !r.anybody(t.now, goneKept) {
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
	for key, at := range t.rivals {
		if t.now-at > heldFor {
			delete(t.rivals, key)
		}
	}
	t.forgetGPUs()
}

// abandon ends a run that its coordinator does not know any more, or whose coordinator is gone for good.
func (t *Tracker) abandon(r *run) {
	s := t.servers[r.coordinator]
	failed := func(format string, args ...any) {
		r.fate = &schema.Failed{Member: schema.ServerMember(r.coordinator), Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case s == nil || t.now-r.saidAt > goneKept:
		failed("nothing was heard of ps %s, which coordinated it, for %s", r.coordinator, ago(t.now-r.saidAt))
	case s.heard.at() > r.saidAt && s.since > r.saidAt:
		failed("ps %s, which coordinated it, was started again", r.coordinator)
	case s.heard.at() > r.saidAt:
	default:
		return
	}
	r.endedAt = t.now
}

// forgetGPUs drops what nobody speaks of any more: who does not list a GPU that it has listed takes its word back.
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

// anybody reports whether any trainer was heard within some time.
func (r *run) anybody(now, within int64) bool {
	for _, tr := range r.trainers {
		if now-tr.heard.at() <= within {
			return true
		}
	}
	return false
}

// note takes a point of a run, and its loss.
func (t *Tracker) note(r *run) {
	if r.over() {
		return
	}
	p := Point{AtMS: t.now / 1000 * 1000}
	if r.said != nil {
		p.Batch = uint64(r.said.Batch)
	}
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

// pointWindow is what the rates of a point are taken over, in milliseconds: a second alone would show how reports and
// batches happen to fall.
const pointWindow = 3_000

// noteRates takes what trainers and shards do, by their latest reports.
func (t *Tracker) noteRates(r *run, p *Point) {
	var n int
	var samples, sent, received, resent, pending, refused float64
	var shares [phases]float64
	for _, tr := range r.trainers {
		sp, ok := tr.ring.over(pointWindow)
		if !ok || !tr.heard.fresh(t.now) {
			continue
		}
		n++
		samples, sent, received = samples+sp.rate(cSamples), sent+sp.rate(cSent), received+sp.rate(cReceived)
		resent += sp.rate(cResent)
		for i := range shares {
			shares[i] += sp.share(i)
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
	} else if len(r.trainers) > 0 && r.said != nil && r.said.Phase == schema.PhaseRunning {
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

// training reports that a trainer is asked for batches.
func training(said *schema.TrainerReport) bool { return said.Planned > 0 || said.Hosted }

// inRun reports whether any trainer is asked for batches at this moment. Between two runs nothing is slow.
func (r *run) inRun(now int64) bool {
	for _, tr := range r.trainers {
		if said := tr.said(); training(said) && tr.heard.age(now) < 60_000 {
			return true
		}
	}
	return false
}
