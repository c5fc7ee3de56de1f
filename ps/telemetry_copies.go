package ps

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"gradbus/schema"
)

// keptSilentMax is how long a ps that keeps shards may be silent before what it keeps counts for nothing. It is asked
// each second.
const keptSilentMax = followedMax

// notePeers notes what several ps keep of the job's shards.
func (s *stoodBy) notePeers(now time.Time, c *Coordinator) {
	k := &c.copies
	s.known, s.peers, s.gone = true, true, ""
	if s.off = whyNotKept(c.config.Job); s.off == "" && !c.running() {
		s.off = "it has not started"
	}
	if s.off == "" && len(k.plan) == 0 {
		s.gone, s.failure = c.tooFew(), ""
	}
	s.has(now, k.whole, k.failure(now), k.ready(now))
	if s.version > 0 {
		s.at = k.wholeAt
	}
	s.kept, s.bytes, s.took = k.reports(), k.told(), k.took()
}

// ready reports that all shards are kept at two ps, with one version.
func (k *copies) ready(now time.Time) bool { return k.whole > 0 && k.failure(now) == "" }

// failure says which of those who keep shards cannot, and why; empty: all can, or nobody is to.
func (k *copies) failure(now time.Time) string {
	for i := range k.plan {
		p := &k.plan[i]
		if p.said.Failure != "" {
			return schema.ClipFailure(fmt.Sprintf("ps %s: %s", p.is.ID, p.said.Failure))
		}
		if silent := now.Sub(p.at); silent > keptSilentMax {
			return fmt.Sprintf("ps %s has not said for %v what it keeps", p.is.ID, silent.Round(time.Second))
		}
	}
	return ""
}

// reports are what each of them keeps.
func (k *copies) reports() (all []schema.KeptReport) {
	for i := range k.plan[:min(len(k.plan), schema.TelemetryKeptMax)] {
		p := &k.plan[i]
		r := schema.KeptReport{Server: p.is.ID, Ready: p.said.Ready, Version: max(p.said.Version, p.said.Next),
			Failure: p.said.Failure}
		for _, d := range p.from {
			r.Of = append(r.Of, d.ID)
		}
		all = append(all, r)
	}
	return all
}

// told is how many bytes were told to those who keep shards.
func (k *copies) told() uint64 {
	n := k.bytes
	for i := range k.plan {
		n += k.plan[i].said.Bytes
	}
	return n
}

// took is how long telling the last version took.
func (k *copies) took() (took time.Duration) {
	for i := range k.plan {
		took = max(took, time.Duration(k.plan[i].said.TookMS)*time.Millisecond)
	}
	return took
}

// report is what a ps tells of the shards that it keeps for others; there says that the control server is.
func (k *keeper) report(there bool) *schema.StandsByReport {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := &schema.StandsByReport{Peers: true, Reached: there}
	all := map[schema.JobName]schema.HeldReport{}
	for _, id := range slices.Sorted(maps.Keys(k.runs)) {
		h := k.held(k.runs[id])
		if before, has := all[h.Job]; len(h.Of) > 0 && (!has || before.Lost != "") { // of two runs the one that goes on
			all[h.Job] = h
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if len(p.Jobs) < schema.TelemetryJobsMax {
			p.Jobs = append(p.Jobs, all[name])
		}
	}
	return p
}

// held is what is kept of a run for others; of nobody where its shards have begun with it. mu is held.
func (k *keeper) held(r *keptRun) schema.HeldReport {
	h := schema.HeldReport{Job: r.job.Name, RunID: r.run, Failure: r.failure}
	if r.taken {
		return h
	}
	for _, d := range r.told.From {
		if d.ID != k.server.ID() {
			h.Of = append(h.Of, d.ID)
		}
	}
	if r.state != nil && r.failure == "" {
		h.Version = max(r.state.Version(), r.state.Whole())
	}
	if r.over.Lasts() {
		h.Lost = "its run has ended, and its trainers are awaited"
	}
	return h
}
