package status

import (
	"fmt"
	"strings"

	"gradbus/schema"
)

// job finds what is wrong with a run.
func (j *ranking) job(job *Job, r *run) {
	if r == nil {
		return
	}
	if r.over() {
		j.ended(job, r)
		return
	}
	if r.said == nil {
		level := Level("")
		if j.t.config.Registered != nil {
			level = Warning // none of those who could coordinate it does: it may be anybody's invention
		}
		j.find(CodeCoordinator, "%s trains, and no ps that is heard of coordinates it", job.Name).
			about(job.Name, "").at(level).before(byJob + job.Name).after(byControl)
		if level == Warning {
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
		r.blocked = r.blocked || r.kept[i] != nil && !r.kept[i].fresh(j.s.NowMS)
	}
	j.progress(job, r)
	j.durability(job, r)
	j.standby(job, r)
	j.replicas(job)
	j.learns(job, r)
	if job.Phase == schema.PhaseGathering && job.Missing > 0 && j.s.NowMS-r.since >= missingAfter {
		j.find(CodeMissing, "%s", j.missingText(job)).about(job.Name, "").from(r.since).do(j.missingAction(job)).
			after(byJob+job.Name, byControl)
	}
}

// missingAfter is for how long a job may wait for trainers before that is a warning.
const missingAfter = 60_000

// ended says that a run has failed, unless a later one of its name is under way or has ended well. One whose trainers
// may come back is not lost yet.
func (j *ranking) ended(job *Job, r *run) {
	if job.End != schema.EndFailed || j.t.latest(r.key.name) != r {
		return
	}
	f := j.find(CodeJobFailed, "%s", failedText(job, j.s.NowMS)).about(job.Name, job.EndBy).from(job.EndedMS).
		after(memberToken(job.Name, job.EndBy), byJob+job.Name, byControl)
	f.brief = job.Name + " has failed"
	if r.awaited(j.s.NowMS) {
		f.Text = fmt.Sprintf("%s was interrupted %s ago at batch %d, and its trainers are awaited: %s", job.Name,
			ago(j.s.NowMS-job.EndedMS), job.Batch, schema.Clip(job.EndReason))
		f.brief = job.Name + " awaits its trainers"
		f.at(Warning).do("Wait until they have come back, a minute at most; then look at the log of each.")
		return
	}
	on := ""
	if i, ok := trainerIndex(schema.Member(job.EndBy)); ok && i < len(job.Trainers) {
		on = job.Trainers[i].Host
	}
	lookWhy := func(who, on string) string {
		return fmt.Sprintf("Look why %s ended or went silent: its log on %s, and the kernel's there for out of memory. Then "+
			"start the job again.", who, on)
	}
	id, ofServer := strings.CutPrefix(job.EndBy, "p-")
	lost := lostBefore(job, r)
	switch {
	case lost != nil: // in a job that went on without it, and what came of that
		f.Text += fmt.Sprintf("; trainer %s on %s was lost before", lost.Member, lost.Host)
		f.Action = lookWhy(lost.Member, lost.Host)
	case ofServer:
		f.Action = fmt.Sprintf("Look at ps %s and its machine; start it again if it has ended, and then the job.", id)
		f.before(byServer + id)
	case strings.Contains(job.EndReason, schema.ReasonNonFinite.String()):
		f.Action = "Start it from an earlier model with a smaller learning rate; look at the data of that batch."
	case on != "" && strings.Contains(job.EndReason, "last seen"):
		f.Action = lookWhy(job.EndBy, on)
	case on != "":
		f.Action = fmt.Sprintf("Mend the cause, of which the log of %s on %s may say more, and start the job again.",
			job.EndBy, on)
	}
}

// lostBefore is a trainer that was lost before the one with which the job failed; nil where there is none.
func lostBefore(job *Job, r *run) *Trainer {
	for i := range job.Trainers {
		if m := r.member(i); m != nil && m.Lost && job.Trainers[i].Member != job.EndBy {
			return &job.Trainers[i]
		}
	}
	return nil
}

// needed reports that others wait for every trainer of the job.
func needed(job *Job) bool { return schema.ClockOf(job.Consistency).Common() }

// trainer finds what is wrong with a trainer.
func (j *ranking) trainer(job *Job, r *run, i int) {
	out, tr, m := &job.Trainers[i], r.trainers[i], r.member(i)
	about := func(f *finding) {
		token := memberToken(job.Name, out.Member)
		f.about(job.Name, out.Member).after(token, byJob+job.Name, byHost+out.Host, byControl).before(token)
		if out.HeldMS > 0 || needed(job) && out.State == stateSilent {
			f.before(byJob + job.Name)
		}
	}
	who := fmt.Sprintf("trainer %s on %s", out.Member, tr.where(m))
	switch out.State {
	case stateSilent:
		j.silentTrainer(job, r, out, m, who, about)
	case stateLost:
		about(j.find(CodeTrainerLost, "%s goes on without %s, last seen %s ago", job.Name, who, ago(out.AgeMS)).
			from(j.s.NowMS - out.AgeMS))
	case stateLeft:
		if m != nil && m.Waited && m.First && m.WaitedMS >= 1000 {
			about(j.find(CodeLeftEarly, "%s has left, and batch %d needs its lanes", who, m.WaitedBatch).
				from(j.s.NowMS - out.HeldMS))
		}
	case stateLate:
		f := j.find(CodeHeldUp, "batch %d waits %s for %s, %s", m.WaitedBatch, ago(out.HeldMS), who, doing(tr)).
			at(heldLevel(m, out.HeldMS)).from(j.s.NowMS - out.HeldMS)
		f.brief = fmt.Sprintf("batch %d waits %s for %s", m.WaitedBatch, ago(out.HeldMS), out.Member)
		if out.Shard != nil {
			f.brief = "" // it waits for others itself
			f.after(memberToken(job.Name, string(schema.ShardMember(*out.Shard))))
		}
		about(f)
	}
	if tr != nil {
		j.mismatched(who, &tr.said().Verification, about)
	}
	if tr != nil && out.State != stateSilent {
		j.trainerTraffic(job, tr, who, about)
	}
}

// silentTrainer says that a trainer is not heard of: what waits for it, and when the job will give it up.
func (j *ranking) silentTrainer(job *Job, r *run, out *Trainer, m *schema.MemberReport, who string,
	about func(*finding)) {
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
	// another trainer's gradient may do as well
	if m != nil && m.Waited && out.HeldMS > 0 && (needed(job) || out.HeldMS >= 1000) {
		brief = fmt.Sprintf("batch %d waits %s for %s", m.WaitedBatch, ago(out.HeldMS), out.Member)
		text = fmt.Sprintf("batch %d waits %s for %s, last seen %s ago%s", m.WaitedBatch, ago(out.HeldMS), who,
			ago(out.AgeMS), how)
	}
	action := ""
	if s := j.t.servers[r.coordinator]; s != nil && needed(job) && job.Phase == schema.PhaseRunning {
		deadline := int64(finite(s.said().Deadline) * 1000)
		if leftMS := deadline - out.AgeMS; leftMS > 0 && code == CodeSilent {
			_, c := rank(code)
			action = fmt.Sprintf("%s Without a word from it for %s more it counts as lost.", c.Action, ago(leftMS))
		}
	}
	f := j.find(code, "%s", text).at(level).do(action).from(j.s.NowMS - out.AgeMS)
	f.brief = brief
	about(f)
}

// lateAfter is for how long others may wait for a trainer before that is told of, in milliseconds: five times what a
// batch takes, 2 s at least, and a third of the deadline at most.
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

// heldLevel returns critical once half of the time is over that the coordinator allows a live trainer.
func heldLevel(m *schema.MemberReport, heldMS int64) Level {
	if heldMS < m.LimitMS/2 {
		return Warning
	}
	return Critical
}

// shard finds what is wrong with a shard.
func (j *ranking) shard(job *Job, r *run, i int) {
	out := &job.Shards[i]
	about := func(f *finding) {
		f.about(job.Name, out.Member).after(byServer+out.Server, byControl, byJob+job.Name).
			before(memberToken(job.Name, out.Member))
	}
	k := r.kept[i]
	switch {
	case k == nil:
		if job.Phase == schema.PhaseRunning {
			about(j.find(CodeShardSilent, "no ps tells of shard %s of %s", out.Member, job.Name))
		}
	case !k.fresh(j.s.NowMS):
		about(j.find(CodeShardSilent, "shard %s of %s was last told of %s ago by ps %s", out.Member, job.Name, ago(out.AgeMS),
			out.Server).from(j.s.NowMS - out.AgeMS))
	case !out.Ready && (job.Phase == schema.PhaseRunning || job.Missing == 0):
		about(j.find(CodeShardUnready, "shard %s of %s on ps %s is not ready", out.Member, job.Name, out.Server))
	}
}

// replicas says that trainers differ.
func (j *ranking) replicas(job *Job) {
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
		// without a majority any of them may be the one that is wrong
		if 2*most <= len(job.Replicas.Digests) || len(groups[d]) < most {
			odd = append(odd, groups[d]...)
		}
	}
	f := j.find(CodeReplicas, "replicas of %s differ at version %d: %s", job.Name, job.Replicas.Version,
		strings.Join(parts[:min(len(parts), 4)], ", ")).
		about(job.Name, "")
	if 2*most > len(job.Replicas.Digests) {
		f.Action = fmt.Sprintf("Stop the job: its results are not those of the data. Start it again from its last good "+
			"model, without the machine of %s.", list(odd))
	}
	f.also = odd
}
