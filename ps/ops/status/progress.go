package status

import (
	"fmt"
	"strings"

	"gradbus/schema"
)

// Limits of how long no batch may be completed, in milliseconds, where nobody is to blame.
const (
	stillLeast = 10_000
	stillFirst = 60_000 // for the first batch
	stillTimes = 5      // what a batch takes
)

// progress says that a run does not go on though nobody is known to hold it up.
func (j *ranking) progress(job *Job, r *run) {
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
	f := j.find(CodeNoProgress, "%s", text).about(job.Name, "").from(r.moved).after(byJob+job.Name, byControl).
		before(byJob + job.Name)
	if at := awaited(r); at >= 0 && at < len(job.Shards) {
		f.after(memberToken(job.Name, job.Shards[at].Member), byServer+job.Shards[at].Server)
	}
	r.blocked = true
}

// usualPeriod is what a batch took in the last minutes, in milliseconds: of the slowest trainer; 0 where that is not
// known.
func (j *ranking) usualPeriod(r *run) (ms int64) {
	for _, tr := range r.trainers {
		ms = max(ms, int64(tr.past.period(0)*1000))
	}
	return ms
}

// mostly is what most trainers do.
func (j *ranking) mostly(job *Job, r *run) string {
	by := map[schema.Doing][]string{}
	var most schema.Doing
	for out, tr := range j.speaking(job, r) {
		d := tr.said().Doing
		by[d] = append(by[d], out.Member)
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
	verb, rest, _ := strings.Cut(activities[activityOf(most)].now, " ")
	return strings.TrimSpace(who + " " + agree(verb, len(names)) + " " + strings.ReplaceAll(rest, "<shard>", shard))
}

// awaited is the shard that most trainers wait for at the moment; -1 for none.
func awaited(r *run) int {
	n := map[int]int{}
	best := -1
	for _, tr := range r.trainers {
		if s := tr.said().AwaitedShard; s != nil {
			n[*s]++
			if best < 0 || n[*s] > n[best] || n[*s] == n[best] && *s < best {
				best = *s
			}
		}
	}
	return best
}
