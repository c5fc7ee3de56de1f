package overview

import (
	"fmt"

	"gradbus/schema"
)

// Limits of how long no batch may be completed, in milliseconds, where nobody is to blame.
const (
	stillLeast = 10_000
	stillFirst = 60_000 // for the first batch
	stillTimes = 5      // what a batch takes
)

// progress says that a run does not go on though nobody is known to hold it up.
func (j *judgement) progress(job *Job, r *run) {
	now, done := j.s.NowMS, job.Batch
	for _, tr := range r.trainers {
		done += tr.said().Batches
	}
	if done != r.done || r.moved == 0 || !r.inRun(now) || job.Phase != schema.PhaseRunning {
		r.done, r.moved = done, now
		return
	}
	limit := int64(stillFirst)
	if period := j.usualPeriod(r); period > 0 {
		limit = max(stillLeast, stillTimes*period)
	}
	still := now - r.moved
	if r.blocked || still < limit {
		return
	}
	text := fmt.Sprintf("%s has completed no batch for %s", job.Name, ago(still))
	if what := j.mostly(job, r); what != "" {
		text += ": " + what
	}
	f := find(CodeNoProgress, "", text, "")
	f.Job, f.SinceMS = job.Name, r.moved
	f.follows = []string{byJob + job.Name, byControl}
	if at := awaited(r); at >= 0 && at < len(job.Shards) {
		f.follows = append(f.follows, memberToken(job.Name, job.Shards[at].Member), byServer+job.Shards[at].Server)
	}
	f.causes = []string{byJob + job.Name}
	r.blocked = true
	j.add(f)
}

// usualPeriod is what a batch takes in the last hour, in milliseconds: of the slowest trainer; 0 where that is not known.
func (j *judgement) usualPeriod(r *run) (ms int64) {
	for _, tr := range r.trainers {
		total := tr.past.since(0)
		if w, ok := total.each(); ok {
			ms = max(ms, int64(w.wall*1000))
		}
	}
	return ms
}

// mostly is what most trainers do.
func (j *judgement) mostly(job *Job, r *run) string {
	by := map[schema.Doing][]string{}
	var most schema.Doing
	for i := range job.Trainers {
		tr := r.trainers[i]
		if tr == nil || !tr.heard.fresh(j.s.NowMS) {
			continue
		}
		d := tr.said().Doing
		by[d] = append(by[d], job.Trainers[i].Member)
		if len(by[d]) > len(by[most]) {
			most = d
		}
	}
	names := by[most]
	if len(names) == 0 {
		return ""
	}
	who := list(names)
	if len(names) == len(job.Trainers) && len(names) > 2 {
		who = "all trainers"
	}
	shard := "their shards"
	if at := awaited(r); at >= 0 && at < len(job.Shards) {
		shard = fmt.Sprintf("shard %s on ps %s", job.Shards[at].Member, job.Shards[at].Server)
	}
	verb := func(one, several string) string {
		if len(names) == 1 {
			return who + " " + one
		}
		return who + " " + several
	}
	switch most {
	case schema.DoingKeys:
		return verb("prepares keys", "prepare keys")
	case schema.DoingLookup:
		return verb("waits", "wait") + " for rows of " + shard
	case schema.DoingCompute:
		return verb("computes", "compute")
	case schema.DoingSend:
		return verb("sends", "send") + " to " + shard
	case schema.DoingResult:
		return verb("waits", "wait") + " for results of " + shard
	case schema.DoingJoining:
		return verb("joins", "join")
	}
	return verb("is", "are") + " outside of training"
}
