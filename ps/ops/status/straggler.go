package status

import (
	"cmp"
	"fmt"
	"slices"
)

// blameAwaited is for a trainer that shards wait for more than they did, and much more than for any other, though its
// own time has not grown, or is not known: it does not run all the time, or what it sends is late.
func (j *ranking) blameAwaited(job *Job, r *run, but string) (blame, bool) {
	type share struct {
		out      *Trainer
		tr       *trainer
		now, was float64
	}
	var all []share
	for out, tr := range j.speaking(job, r) {
		now, was := tr.past.since(max(r.pace.onset, j.s.NowMS-lately)), r.pace.culprits.trainers[tr.index]
		all = append(all,
			share{out, tr, ratio(now.done[hAwaited], now.done[hLooks]), ratio(was.done[hAwaited], was.done[hLooks])})
	}
	if len(all) < 2 {
		return blame{}, false
	}
	slices.SortStableFunc(all, func(a, b share) int { return cmp.Compare(b.now, a.now) })
	first := all[0]
	if first.now < 0.35 || first.now < all[1].now+0.25 || first.now < 1.3*first.was {
		return blame{}, false
	}
	out, tr := first.out, first.tr
	others := 0.0 // longest round trip
	for _, s := range all[1:] {
		others = max(others, float64(s.out.RoundTripSeconds))
	}
	b := blame{
		text: fmt.Sprintf("batches wait for trainer %s on %s %s of the time, %s before%s", out.Member, tr.where(nil),
			percent(first.now), percent(first.was), but),
		action: fmt.Sprintf("Look at %s: whether the process gets processor time, what else runs there, and at the "+
			"network to it.", out.Host),
		causes:  []string{paceToken(job.Name, out.Member)},
		follows: []string{memberToken(job.Name, out.Member), byHost + out.Host},
	}
	again, trip := tr.sentAgain(), float64(out.RoundTripSeconds)
	if others > 0 && trip >= farTimes*others && trip >= others+farBy {
		b.text += fmt.Sprintf("; what it sends takes %s to be acknowledged, that of others %s", lasting(trip),
			lasting(others))
	}
	if again >= resentShare {
		b.text += fmt.Sprintf("; it sends %s of its gradients again", percent(min(again, 1)))
		b.action = fmt.Sprintf("Look at the network between %s and the shards: what %s sends comes late, or not at all.",
			out.Host, out.Member)
	}
	return b, true
}

// A trainer is far away whose round trips take so many times as long as those of all others, and so many seconds
// longer: acks are put off by up to 30 ms, and by more on a busy machine.
const (
	farTimes = 4
	farBy    = 0.05
)

// sentAgain is the share of its gradient frames that a trainer has lately sent again.
func (tr *trainer) sentAgain() float64 {
	sp, ok := tr.ring.over(rateWindow)
	if !ok {
		return 0
	}
	return ratio(sp.rise(cResent), sp.rise(cFrames))
}

// onlyHost is the machine on which all of a job runs; empty where there are several.
func (j *ranking) onlyHost(job *Job) (host string) {
	several := false
	on := func(other string) {
		several = several || host != "" && host != other
		host = other
	}
	for i := range job.Trainers {
		if out := &job.Trainers[i]; out.State != stateFree && out.State != stateLeft {
			on(out.Host)
		}
	}
	for i := range job.Shards {
		if s := j.t.servers[job.Shards[i].Server]; s != nil {
			on(s.heard.report.Host)
		}
	}
	if several {
		return ""
	}
	return host
}
