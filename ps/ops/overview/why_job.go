package overview

import (
	"fmt"
	"strings"

	"gradbus/schema"
)

// job finds what is wrong with a run.
func (j *judgement) job(job *Job, r *run) {
	if r == nil {
		return
	}
	if r.over() {
		j.ended(job, r)
		return
	}
	if r.said == nil {
		level := Level("")
		if j.t.config.Announced != nil {
			level = Warning // none of those who could coordinate it does: it may be anybody's invention
		}
		f := find(CodeCoordinator, level, fmt.Sprintf("%s trains, and no ps that is heard of coordinates it", job.Name), "")
		f.Job, f.causes = job.Name, []string{byJob + job.Name}
		f.follows = []string{byControl}
		if j.add(f); level == Warning {
			return
		}
	}
	r.blocked = false
	for i := range job.Trainers {
		j.trainer(job, r, i)
		state := job.Trainers[i].State
		r.blocked = r.blocked || state == stateLate || state == stateSilent && needed(job)
	}
	for i := range job.Shards {
		j.shard(job, r, i)
	}
	for i := range job.Shards {
		r.blocked = r.blocked || r.kept[i] != nil && job.Shards[i].AgeMS > 2*r.kept[i].every+900
	}
	j.progress(job, r)
	j.replicas(job)
	j.slow(job, r)
	j.load(job, r)
	j.learns(job, r)
	if job.Phase == schema.PhaseGathering && job.Missing > 0 && j.s.NowMS-r.since >= missingAfter {
		f := find(CodeMissing, "", j.missingText(job), j.missingAction(job))
		f.Job, f.SinceMS = job.Name, r.since
		f.follows = []string{byJob + job.Name, byControl}
		j.add(f)
	}
}

// missingAfter is for how long a job may wait for trainers before that is a warning.
const missingAfter = 60_000

// ended says that a run has failed, unless a later one of its name is under way or has ended well.
func (j *judgement) ended(job *Job, r *run) {
	if job.Failed == "" || j.t.latest(r.key.name) != r {
		return
	}
	f := find(CodeJobFailed, "", failedText(job, j.s.NowMS), "")
	f.Job, f.Member, f.SinceMS, f.brief = job.Name, job.FailedBy, job.EndedMS, job.Name+" has failed"
	on := ""
	if i, ok := trainerIndex(schema.Member(job.FailedBy)); ok && i < len(job.Trainers) {
		on = job.Trainers[i].Host
	}
	lookWhy := func(who, on string) string {
		return fmt.Sprintf("Look why %s ended or went silent: its log on %s, and the kernel's there for out of memory. Then start the job again.", who, on)
	}
	id, ofServer := strings.CutPrefix(job.FailedBy, "p-")
	lost := lostBefore(job, r)
	switch {
	case lost != nil: // in a job that went on without it, and what came of that
		f.Text += fmt.Sprintf("; trainer %s on %s was lost before", lost.Member, lost.Host)
		f.Action = lookWhy(lost.Member, lost.Host)
	case byHand(job.Failed):
		f.Level, f.Action = Warning, fmt.Sprintf("It was told to end. If nobody meant that, look who ended %s, and start the job again.", job.FailedBy)
	case ofServer:
		f.Action = fmt.Sprintf("Look at ps %s and its machine; start it again if it has ended, and then the job.", id)
		f.causes = []string{byServer + id}
	case strings.Contains(job.Failed, schema.ReasonNonFinite.String()):
		f.Action = "Start it from an earlier model with a smaller learning rate; look at the data of that batch."
	case on != "" && strings.Contains(job.Failed, "last seen"):
		f.Action = lookWhy(job.FailedBy, on)
	case on != "":
		f.Action = fmt.Sprintf("Mend the cause, of which the log of %s on %s may say more, and start the job again.", job.FailedBy, on)
	}
	f.follows = []string{memberToken(job.Name, job.FailedBy), byJob + job.Name, byControl}
	j.add(f)
}

// lostBefore is a trainer that was lost before the one with which the job failed; nil where there is none.
func lostBefore(job *Job, r *run) *Trainer {
	for i := range job.Trainers {
		if m := r.member(i); m != nil && m.Lost && job.Trainers[i].Member != job.FailedBy {
			return &job.Trainers[i]
		}
	}
	return nil
}

// byHand reports that a job failed since a trainer was told to end: by Ctrl-C, kill, or who started it.
func byHand(failed string) bool {
	return strings.HasSuffix(failed, "interrupted") || strings.HasSuffix(failed, " signal received")
}

// needed reports that others wait for every trainer of the job.
func needed(job *Job) bool { return schema.ClockOf(job.Consistency) == schema.ClockBounded }

// trainer finds what is wrong with a trainer.
func (j *judgement) trainer(job *Job, r *run, i int) {
	out, tr, m := &job.Trainers[i], r.trainers[i], r.member(i)
	about := func(f finding) {
		f.Job, f.Member = job.Name, out.Member
		f.follows = append(f.follows, memberToken(job.Name, out.Member), byJob+job.Name, byHost+out.Host, byControl)
		f.causes = append(f.causes, memberToken(job.Name, out.Member))
		if out.HeldMS > 0 || needed(job) && out.State == stateSilent {
			f.causes = append(f.causes, byJob+job.Name)
		}
		j.add(f)
	}
	who := fmt.Sprintf("trainer %s on %s", out.Member, tr.where(m))
	switch out.State {
	case stateSilent:
		j.silentTrainer(job, r, out, m, who, about)
	case stateLost:
		f := find(CodeTrainerLost, "", fmt.Sprintf("%s goes on without %s, last seen %s ago", job.Name, who, ago(out.AgeMS)), "")
		f.SinceMS = j.s.NowMS - out.AgeMS
		about(f)
	case stateLeft:
		if m != nil && m.Waited && m.First && m.WaitedMS >= 1000 {
			f := find(CodeLeftEarly, "", fmt.Sprintf("%s has left, and batch %d needs its lanes", who, m.WaitedBatch), "")
			f.SinceMS = j.s.NowMS - out.HeldMS
			about(f)
		}
	case stateLate:
		f := find(CodeHeldUp, j.heldLevel(r, out.HeldMS), fmt.Sprintf("batch %d waits %s for %s, %s", m.WaitedBatch, ago(out.HeldMS), who, doing(tr)), "")
		f.brief = fmt.Sprintf("batch %d waits %s for %s", m.WaitedBatch, ago(out.HeldMS), out.Member)
		f.SinceMS = j.s.NowMS - out.HeldMS
		if out.Shard != nil {
			f.brief = "" // it waits for others itself
			f.follows = append(f.follows, memberToken(job.Name, string(schema.ShardMember(*out.Shard))))
		}
		about(f)
	}
	if tr != nil {
		mismatched(who, &tr.said().Verification, about)
	}
	if tr != nil && out.State != stateSilent {
		j.trainerTraffic(job, tr, who, about)
	}
}

// silentTrainer says that a trainer is not heard of: what waits for it, and when the job will give it up.
func (j *judgement) silentTrainer(job *Job, r *run, out *Trainer, m *schema.MemberPulse, who string, about func(finding)) {
	code, how := CodeSilent, ""
	if m != nil && m.Gone {
		code, how = CodeTrainerGone, " and its connection is gone"
	}
	level := Warning
	if needed(job) {
		level = Critical
	}
	text := fmt.Sprintf("%s was last seen %s ago%s", who, ago(out.AgeMS), how)
	brief := ""
	if m != nil && m.Waited && out.HeldMS > 0 && (needed(job) || out.HeldMS >= 1000) { // another trainer's gradient may do as well
		brief = fmt.Sprintf("batch %d waits %s for %s", m.WaitedBatch, ago(out.HeldMS), out.Member)
		text = fmt.Sprintf("batch %d waits %s for %s, last seen %s ago%s", m.WaitedBatch, ago(out.HeldMS), who, ago(out.AgeMS), how)
	}
	action := ""
	if s := j.t.servers[r.coordinator]; s != nil && needed(job) && job.Phase == schema.PhaseRunning {
		deadline := int64(finite(s.said().Deadline) * 1000)
		if leftMS := deadline - out.AgeMS; leftMS > 0 && code == CodeSilent {
			_, c := rank(code)
			action = fmt.Sprintf("%s Without a word from it the job fails in %s.", c.Action, ago(leftMS))
		}
	}
	f := find(code, level, text, action)
	f.brief, f.SinceMS = brief, j.s.NowMS-out.AgeMS
	about(f)
}

// lateAfter is for how long others may wait for a trainer before that is told of, in milliseconds: five times what a batch takes, 2 s at
// least, and a third of the deadline at most.
func (t *Tracker) lateAfter(r *run) int64 {
	const least = 2_000
	late := int64(least)
	for _, tr := range r.trainers {
		if sp, ok := tr.ring.over(rateWindow); ok && sp.rise(cBatches) > 0 {
			late = max(late, int64(5000*sp.seconds/sp.rise(cBatches)))
		}
	}
	if s := t.servers[r.coordinator]; s != nil {
		if deadline := int64(finite(s.said().Deadline) * 1000); deadline > 0 {
			late = max(least, min(late, deadline/3))
		}
	}
	return late
}

// heldLevel is critical once half of the deadline is over.
func (j *judgement) heldLevel(r *run, heldMS int64) Level {
	if s := j.t.servers[r.coordinator]; s != nil && float64(heldMS) < finite(s.said().Deadline)*500 {
		return Warning
	}
	return Critical
}

// doing says what a trainer does at the moment.
func doing(tr *trainer) string {
	said := tr.said()
	if said == nil {
		return "which is alive and sends no gradients"
	}
	shard := "a shard"
	if said.AwaitedShard != nil {
		shard = fmt.Sprintf("shard s%d", *said.AwaitedShard)
	}
	for_ := ago(said.DoingMS)
	switch said.Doing {
	case schema.DoingKeys:
		return "which has been preparing its keys for " + for_
	case schema.DoingLookup:
		return fmt.Sprintf("which has waited %s for rows of %s", for_, shard)
	case schema.DoingCompute:
		return "which has computed for " + for_
	case schema.DoingSend:
		return fmt.Sprintf("which has been sending to %s for %s", shard, for_)
	case schema.DoingResult:
		return fmt.Sprintf("which has waited %s for results of %s", for_, shard)
	case schema.DoingJoining:
		return "which has been joining for " + for_
	}
	return "which has been outside of training for " + for_
}

// shard finds what is wrong with a shard.
func (j *judgement) shard(job *Job, r *run, i int) {
	out := &job.Shards[i]
	about := func(f finding) {
		f.Job, f.Member = job.Name, out.Member
		f.follows = append(f.follows, byServer+out.Server, byControl, byJob+job.Name)
		f.causes = append(f.causes, memberToken(job.Name, out.Member))
		j.add(f)
	}
	k := r.kept[i]
	switch {
	case k == nil:
		if job.Phase == schema.PhaseRunning {
			about(find(CodeShardSilent, "", fmt.Sprintf("no ps tells of shard %s of %s", out.Member, job.Name), ""))
		}
	case out.AgeMS > 2*k.every+900:
		f := find(CodeShardSilent, "", fmt.Sprintf("shard %s of %s was last told of %s ago by ps %s", out.Member, job.Name, ago(out.AgeMS), out.Server), "")
		f.SinceMS = j.s.NowMS - out.AgeMS
		about(f)
	case !out.Ready && (job.Phase == schema.PhaseRunning || job.Missing == 0):
		about(find(CodeShardUnready, "", fmt.Sprintf("shard %s of %s on ps %s is not ready", out.Member, job.Name, out.Server), ""))
	}
}

// replicas says that trainers differ.
func (j *judgement) replicas(job *Job) {
	if job.Replicas == nil || job.Replicas.Equal {
		return
	}
	groups := map[string][]string{}
	for i := range job.Trainers {
		m := job.Trainers[i].Member
		if d, ok := job.Replicas.Digests[m]; ok {
			groups[d] = append(groups[d], m)
		}
	}
	var parts, odd []string
	most := 0
	for _, members := range groups {
		most = max(most, len(members))
	}
	for _, d := range sortedKeys(groups) {
		parts = append(parts, fmt.Sprintf("%s of %s", d, list(groups[d])))
		if 2*most <= len(job.Replicas.Digests) || len(groups[d]) < most { // without a majority any of them may be the one that is wrong
			odd = append(odd, groups[d]...)
		}
	}
	f := find(CodeReplicas, "", fmt.Sprintf("replicas of %s differ at version %d: %s", job.Name, job.Replicas.Version, strings.Join(parts[:min(len(parts), 4)], ", ")), "")
	if 2*most > len(job.Replicas.Digests) {
		f.Action = fmt.Sprintf("Stop the job: its results are not those of the data. Start it again from its last good model, without the machine of %s.", list(odd))
	}
	f.Job, f.also = job.Name, odd
	j.add(f)
}
