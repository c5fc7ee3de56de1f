package status

import (
	"cmp"
	"math"
	"slices"

	"gradbus/schema"
)

// Limits of what may be lost, refused or sent again, over the last ten seconds.
const (
	refusedRate    = 1.0 // frames a second
	resentRate     = 2.0 // frames a second
	resentShare    = 0.1 // of those that are sent: on a busy machine some acks are late, and nothing is slower for it
	droppedRate    = 1.0 // messages a second
	reconnectsMany = 3   // within reconnectsTime
	reconnectsTime = 300_000
	// what is lost within this time is one loss: a trainer that was stopped loses all of its connections
	reconnectsApart = 10_000
	reconnectsNoted = 4
)

// serverTraffic finds what a ps refuses and loses.
func (j *ranking) serverTraffic(v *Server, s *server, about func(*finding)) {
	sp, ok := s.ring.over(rateWindow)
	if !ok {
		return
	}
	if rate := sp.rate(sRefused); rate >= refusedRate {
		about(j.find(CodeRefusals, "ps %s on %s refuses %s frames/s: %s", v.ID, v.Host, count(rate), s.reasonsOver(&sp)))
	}
	if rate := sp.rate(sDropped); rate >= droppedRate {
		about(j.find(CodeDropped, "ps %s on %s drops %s frames/s, for which its shards have no room; they are sent again",
			v.ID, v.Host, count(rate)))
	}
	if n := sp.rise(sSlowReaders); n > 0 {
		about(j.find(CodeSlowReaders, "ps %s on %s has cut off %s that did not read in time", v.ID, v.Host,
			plural(int(min(n, 1e9)), "connection")))
	}
}

// reasonsOver names what frames were refused for, most first.
func (s *server) reasonsOver(sp *span) string {
	type part struct {
		reason string
		n      uint64
	}
	var all []part
	was := s.reasonsAt(sp.from)
	for reason, n := range s.said().Reasons {
		if isRefusal(reason) && n > was[reason] {
			all = append(all, part{reason, n - was[reason]})
		}
	}
	slices.SortFunc(all, func(a, b part) int { return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(a.reason, b.reason)) })
	var names []string
	for _, p := range all {
		names = append(names, schema.Clip(p.reason))
	}
	return list(names)
}

// reasonsAt is what had been refused at a sample of the ring.
func (s *server) reasonsAt(at *sample) map[string]uint64 {
	for i := range s.ring.kept {
		if &s.ring.kept[i] == at {
			return s.reasons[i]
		}
	}
	return nil
}

// trainerTraffic finds what a trainer sends again and loses.
func (j *ranking) trainerTraffic(job *Job, tr *trainer, who string, about func(*finding)) {
	sp, ok := tr.ring.over(rateWindow)
	if !ok {
		return
	}
	if rate, sent := sp.rate(cResent), sp.rate(cFrames); rate >= resentRate && rate >= resentShare*sent {
		f := j.find(CodeResends, "%s sends %s frames/s again, %s of its gradients", who, count(rate),
			percent(min(ratio(rate, sent), 1)))
		if l := tr.worstLink(); l != nil {
			shard := string(schema.ShardMember(l.Shard))
			f.Text += "; most to shard " + shard
			f.after(memberToken(job.Name, shard))
		}
		about(f)
	}
	if rate := sp.rate(cDropped); rate >= droppedRate {
		about(j.find(CodeDropped, "%s loses %s messages/s that it reads too slowly", who, count(rate)))
	}
	if n := tr.reconnectsSince(j.s.NowMS - reconnectsTime); n >= reconnectsMany {
		about(j.find(CodeReconnects, "%s has lost connections again and again: %d in all", who, tr.said().Traffic.Reconnects))
	}
}

// worstLink is the way on which most was sent again; nil where nothing was.
func (tr *trainer) worstLink() (worst *schema.LinkReport) {
	links := tr.said().Links
	for i := range links {
		if l := &links[i]; l.Resent > 0 && (worst == nil || l.Resent > worst.Resent) {
			worst = l
		}
	}
	return worst
}

// noteReconnects remembers when a trainer has connected anew, however many of its connections.
func (tr *trainer) noteReconnects(now int64) {
	from, to := tr.ring.back(1), tr.ring.last()
	if from == nil || to.totals[cReconnects] <= from.totals[cReconnects] {
		return
	}
	if n := len(tr.reconnects); n > 0 && now-tr.reconnects[n-1] < reconnectsApart {
		return
	}
	tr.reconnects = append(tr.reconnects, now)
	if extra := len(tr.reconnects) - reconnectsNoted; extra > 0 {
		tr.reconnects = slices.Delete(tr.reconnects, 0, extra)
	}
}

func (tr *trainer) reconnectsSince(at int64) (n int) {
	for _, t := range tr.reconnects {
		if t >= at {
			n++
		}
	}
	return n
}

// learns finds losses and gradients that are not finite.
func (j *ranking) learns(job *Job, r *run) {
	var bad []string
	what := 0.0
	for out, tr := range j.speaking(job, r) {
		if tr.said().Batches == 0 {
			continue
		}
		if last := float64(tr.said().Loss.Last); math.IsNaN(last) || math.IsInf(last, 0) {
			bad, what = append(bad, out.Member), last
		} else if sp, ok := tr.ring.over(rateWindow); ok && sp.rise(cLossBad) > 0 {
			bad, what = append(bad, out.Member), math.NaN()
		}
	}
	if len(bad) > 0 {
		j.find(CodeLossBad, "the loss of %s is %s on %s, at batch %d", job.Name, figure(what), list(bad), job.Batch).
			about(job.Name, "").also = bad
	} else if n := job.GradientNorm; n != nil && (math.IsNaN(float64(*n)) || math.IsInf(float64(*n), 0)) {
		j.find(CodeLossBad, "the gradient norm of %s is %s, at batch %d", job.Name, figure(float64(*n)), job.Batch).
			about(job.Name, "")
	}
}
