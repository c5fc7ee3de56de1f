package status

import (
	"fmt"
	"slices"
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
	blocked := false // a batch waits for a member that another problem names
	for i := range job.Trainers {
		j.trainer(job, r, i)
		state := job.Trainers[i].State
		blocked = blocked || state == stateLate || state == stateSilent && needed(job)
	}
	for i := range job.Shards {
		j.shard(job, r, i)
	}
	for i := range job.Shards {
		blocked = blocked || r.kept[i] != nil && !r.kept[i].fresh(j.s.NowMS)
	}
	j.progress(job, r, blocked)
	j.durability(job)
	j.replica(job)
	j.replicas(job)
	j.learns(job, r)
	if job.Phase == schema.PhaseGathering && job.Missing > 0 && j.s.NowMS-r.since >= missingAfter {
		j.find(codeMissing, "%s", j.missingText(job)).about(job.Name, "").from(r.since).do(j.missingAction(job))
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
	f := j.find(codeJobFailed, "%s", failedText(job, j.s.NowMS)).about(job.Name, job.EndBy).from(job.EndedMS)
	if r.awaited(j.s.NowMS) {
		f.Text = fmt.Sprintf("%s was interrupted %s ago at batch %d, and its trainers are awaited: %s", job.Name,
			Ago(j.s.NowMS-job.EndedMS), job.Batch, schema.Clip(job.EndReason))
		f.at(Warning).do("Wait until they have rejoined, a minute at most; then look at the log of each.")
		return
	}
	id, ofServer := strings.CutPrefix(job.EndBy, "p-")
	who := ""
	if i, ok := trainerIndex(schema.Member(job.EndBy)); ok && i < len(job.Trainers) {
		who = job.EndBy + " on " + job.Trainers[i].Host
	} else if ofServer {
		who = "ps " + id
	}
	if lost := lostBefore(job, r); lost != nil { // in a job that went on without it
		who = lost.Member + " on " + lost.Host
		f.Text += fmt.Sprintf("; trainer %s was lost before", who)
	}
	if who != "" {
		f.Action = fmt.Sprintf("Look at the log of %s, and at the kernel's log there for out of memory; then "+
			"start the job again.", who)
	}
}

// lostBefore returns a trainer that was lost before the one with which the job failed; nil if there is none.
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
	about := func(f *finding) { f.about(job.Name, out.Member) }
	who := fmt.Sprintf("trainer %s on %s", out.Member, tr.where(m))
	switch out.State {
	case stateSilent:
		j.silentTrainer(job, r, out, m, who, about)
	case stateLost:
		about(j.find(CodeTrainerLost, "%s continues without %s, last seen %s ago", job.Name, who, Ago(out.AgeMS)).
			from(j.s.NowMS - out.AgeMS))
	case stateLeft:
		if m != nil && m.Waited && m.First && m.WaitedMS >= 1000 {
			about(j.find(CodeLeftEarly, "%s has left, and batch %d needs its lanes", who, m.WaitedBatch).
				from(j.s.NowMS - out.HeldMS))
		}
	case stateLate:
		about(j.find(CodeHeldUp, "batch %d waits %s for %s, %s", m.WaitedBatch, Ago(out.HeldMS), who, doing(tr)).
			at(heldLevel(m, out.HeldMS)).from(j.s.NowMS - out.HeldMS))
	}
	if tr != nil {
		j.mismatched(who, &tr.said().Verification, about)
	}
}

// silentTrainer says that a trainer is not heard of: what waits for it, and when the job will give it up.
func (j *ranking) silentTrainer(job *Job, r *run, out *Trainer, m *schema.MemberReport, who string,
	about func(*finding)) {
	code, how := CodeSilent, ""
	if m != nil && m.Gone {
		code, how = codeTrainerGone, " and its connection is gone"
	}
	level := Warning
	if needed(job) {
		level = Critical
	}
	text := fmt.Sprintf("%s was last seen %s ago%s", who, Ago(out.AgeMS), how)
	// another trainer's gradient may do as well
	if m != nil && m.Waited && out.HeldMS > 0 && (needed(job) || out.HeldMS >= 1000) {
		text = fmt.Sprintf("batch %d waits %s for %s, last seen %s ago%s", m.WaitedBatch, Ago(out.HeldMS), who,
			Ago(out.AgeMS), how)
	}
	action := ""
	if s := j.t.servers[r.coordinator]; s != nil && needed(job) && job.Phase == schema.PhaseRunning {
		deadline := int64(finite(s.said().Deadline) * 1000)
		if leftMS := deadline - out.AgeMS; leftMS > 0 && code == CodeSilent {
			_, c := rank(code)
			action = fmt.Sprintf("%s Without a word from it for %s more it counts as lost.", c.Action, Ago(leftMS))
		}
	}
	about(j.find(code, "%s", text).at(level).do(action).from(j.s.NowMS - out.AgeMS))
}

// lateAfter is how long others may wait for a trainer before that is a problem, in milliseconds: a third of the
// deadline.
func (t *Tracker) lateAfter(r *run) int64 {
	const least, unknown = 2_000, 10_000
	if s := t.servers[r.coordinator]; s != nil && finite(s.said().Deadline) > 0 {
		return max(least, int64(finite(s.said().Deadline)*1000/3))
	}
	return unknown
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
	about := func(f *finding) { f.about(job.Name, out.Member) }
	k := r.kept[i]
	switch {
	case k == nil:
		if job.Phase == schema.PhaseRunning {
			about(j.find(codeShardSilent, "no ps tells of shard %s of %s", out.Member, job.Name))
		}
	case !k.fresh(j.s.NowMS):
		about(j.find(codeShardSilent, "shard %s of %s was last told of %s ago by ps %s", out.Member, job.Name, Ago(out.AgeMS),
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
	for _, m := range sortedKeys(job.Replicas.Digests) {
		d := job.Replicas.Digests[m]
		groups[d] = append(groups[d], m)
	}
	var parts, members []string
	for _, d := range sortedKeys(groups) {
		parts, members = append(parts, fmt.Sprintf("%s of %s", d, list(groups[d]))), append(members, groups[d]...)
	}
	j.find(CodeReplicas, "replicas of %s differ at version %d: %s", job.Name, job.Replicas.Version,
		strings.Join(parts[:min(len(parts), 4)], ", ")).about(job.Name, "").also = members
}

// stillAfter is from when on it is told that no batch is completed, in milliseconds, where no member is known to be the
// cause.
const stillAfter = 120_000

// progress says that a run does not go on though no member is known to hold it up.
func (j *ranking) progress(job *Job, r *run, blocked bool) {
	now, done, asked := j.s.NowMS, job.Batch, false
	for _, tr := range r.trainers {
		said := tr.said()
		done += said.Batches
		asked = asked || (said.Planned > 0 || said.Hosted) && tr.heard.age(now) < stillAfter
	}
	if done != r.done || r.moved == 0 || !asked || job.Phase != schema.PhaseRunning {
		r.done, r.moved = done, now
		return
	}
	if still := now - r.moved; still >= stillAfter && !blocked {
		j.find(codeNoProgress, "%s has completed no batch for %s", job.Name, Ago(still)).about(job.Name, "").from(r.moved)
	}
}

// phases is the number of a trainer's phases: keys, lookup, compute, send, result.
const phases = 5

// activities are the texts for what a trainer has done for some time. The map is never written to.
var activities = map[schema.Doing]string{
	schema.DoingKeys:    "been preparing its keys for <time>",
	schema.DoingLookup:  "waited <time> for rows of <shard>",
	schema.DoingCompute: "computed for <time>",
	schema.DoingSend:    "been sending to <shard> for <time>",
	schema.DoingResult:  "waited <time> for results of <shard>",
	schema.DoingJoining: "been joining for <time>",
	schema.DoingOther:   "been outside of training for <time>",
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
	return "which has " + strings.NewReplacer("<time>", Ago(said.DoingMS), "<shard>",
		shard).Replace(activities[said.Doing])
}

// localServer is where a trainer looks for a ps when it is not told.
const localServer = "nats://127.0.0.1:4222"

// command returns the command line that starts a trainer.
func (j *ranking) command(workload string, flags ...string) string {
	if workload == "" {
		workload = "packages"
	}
	parts := append([]string{"./bin/trainer", workload}, flags...)
	if url := j.t.config.URL; url != "" && url != localServer {
		parts = append(parts, "--server", url)
	}
	return strings.Join(parts, " ")
}

// noJob is the sentence where there is nothing to show.
func (j *ranking) noJob() Why {
	start := j.command("")
	for i := range j.s.Jobs {
		if job := &j.s.Jobs[i]; job.Phase == schema.PhaseEnded {
			if job.End == schema.EndContinued {
				return Why{Level: Info, Job: job.Name, Text: j.endedText(job)}
			}
			return Why{Level: Info, Job: job.Name, Action: start,
				Text: "No job runs; " + j.endedText(job)}
		}
	}
	return Why{Level: Info, Text: "No job. Start one: " + start, Action: start}
}

// missing names the places of a job that are free, by its coordinator.
func missing(job *Job, r *run) []string {
	var names []string
	for i := range job.Trainers {
		if m := r.member(i); m != nil && m.Host == "" && !m.Left {
			names = append(names, job.Trainers[i].Member)
		}
	}
	return names
}

func (j *ranking) missingText(job *Job) string {
	r := j.jobs[job.Name+"."+job.RunID]
	n := max(len(job.Trainers), min(r.said.Trainers, TrainersMax))
	return fmt.Sprintf("%s waits %s for %d of %s to join: %s", job.Name, Ago(j.s.NowMS-r.since), job.Missing,
		plural(n, "trainer"), list(missing(job, r)))
}

func (j *ranking) missingAction(job *Job) string {
	flags := []string{"--trainers", fmt.Sprint(len(job.Trainers)), "--lanes", fmt.Sprint(job.Lanes)}
	if job.Workload != "" && job.Name != job.Workload {
		flags = append([]string{"--job", job.Name}, flags...)
	}
	how := "Start it"
	if job.Missing > 1 {
		how = fmt.Sprintf("Start %d times", job.Missing)
	}
	return how + ", with the settings of the others: " + j.command(job.Workload, flags...)
}

// gatheringWhy is the sentence of a job that has not begun.
func (j *ranking) gatheringWhy(job *Job) Why {
	if job.Missing == 0 {
		return Why{Level: Info, Job: job.Name,
			Text: fmt.Sprintf("%s begins: all trainers have joined, shards get ready.", job.Name)}
	}
	return Why{Level: Info, Job: job.Name, Text: j.missingText(job) + ".", Action: j.missingAction(job)}
}

// A version is late after lateIntervals of those between two, and no sooner than after lateLeast: it is named seconds
// before trainers reach it, and has to be written.
const (
	lateIntervals = 3
	lateLeast     = 15_000
)

// UseCheckpoints is the use of a disk, in reports, for the folder of checkpoints.
const UseCheckpoints = "checkpoints"

// durabilityOf returns the coordinator's report on checkpoints of a run, with the age of the newest by the local clock.
func (t *Tracker) durabilityOf(r *run) *Durability {
	said, by := r.said.Durability, (*heard)(nil)
	if s := t.servers[r.coordinator]; s != nil {
		by = &s.heard
	}
	if said == nil {
		return nil
	}
	d := &Durability{DurabilityReport: *said}
	d.EveryMS, d.LateMS = min(d.EveryMS, msMax), min(d.LateMS, msMax)
	if d.Version > 0 {
		d.AgeMS = t.now - r.saidAt
		if by != nil && said.DurableMS > 0 {
			d.AgeMS = min(max(t.now-hereMS(said.DurableMS, by), 0), 10*msMax)
		}
	}
	return d
}

// durability says that versions do not become durable in time.
func (j *ranking) durability(job *Job) {
	d := job.Durability
	if d == nil || d.Off != "" || job.Phase != schema.PhaseRunning || d.LateMS <= lateLimit(job) {
		return
	}
	text := fmt.Sprintf("no version of %s is durable, and one has been due for %s", job.Name, Ago(d.LateMS))
	if d.Version > 0 {
		text = fmt.Sprintf("no version of %s has become durable since version %d, %s ago, and one has been due for %s",
			job.Name, d.Version, Ago(d.AgeMS), Ago(d.LateMS))
	}
	if d.Failure != "" {
		text += ": " + gist(d.Failure)
	}
	j.find(codeNotDurable, "%s", text).about(job.Name, "").from(j.s.NowMS - d.LateMS)
}

// gist is a failure without what lies between where it was and what was wrong with which file.
func gist(failure string) string {
	parts := strings.Split(failure, ": ")
	if len(parts) > 4 {
		parts = slices.Concat(parts[:2], parts[len(parts)-2:])
	}
	return strings.Join(parts, ": ")
}

// lateLimit is from when on a version is late, in milliseconds.
func lateLimit(job *Job) int64 {
	interval := float64(job.Durability.EveryMS)
	if interval == 0 && job.BatchesPerSecond > 0 {
		interval = float64(job.Durability.EveryBatches) / float64(job.BatchesPerSecond) * 1000
	}
	return int64(min(max(lateIntervals*interval, lateLeast), msMax))
}

const (
	// replicaGrace is for how long a job may be without a replica, in milliseconds: a ps that is started again, as in a
	// rolling restart, is back by then, and has been told all of a job that is not large.
	replicaGrace = 30_000
	// replicaLate is for how long trainers may be past the version that another ps has, in milliseconds, before that is
	// told of; where telling takes long, three times that.
	replicaLate = 60_000
)

// Replica is the coordinator's report on which ps holds the replica of a job, with the age of the version by the local
// clock.
type Replica struct {
	schema.ReplicaReport
	AgeMS int64 `json:"age_ms"` // since the version is whole there
}

// replicaOf returns the replica of a run; nil if its coordinator reports none.
func (t *Tracker) replicaOf(r *run) *Replica {
	if r.said.Replica == nil || r.over() {
		return nil
	}
	b := &Replica{ReplicaReport: *r.said.Replica}
	b.UnreadyMS, b.LateMS = min(b.UnreadyMS, msMax), min(b.LateMS, msMax)
	if b.Version > 0 {
		b.AgeMS = t.now - r.saidAt
		if s := t.servers[r.coordinator]; s != nil && b.ToldMS > 0 {
			b.AgeMS = min(max(t.now-hereMS(b.ToldMS, &s.heard), 0), 10*msMax)
		}
	}
	return b
}

// primaryOf returns a ps's report on the one for which it holds replicas, which a silent ps does not reach.
func primaryOf(h *heard, said *schema.PrimaryReport, now int64) *schema.PrimaryReport {
	if said == nil {
		return nil
	}
	b := *said
	b.Reached, b.SilentMS = b.Reached && h.fresh(now), min(b.SilentMS, msMax)
	return &b
}

func names(members []schema.Member) (all []string) {
	for _, m := range members[:min(len(members), TrainersMax)] {
		all = append(all, string(m))
	}
	return all
}

// replica finds that a job could not continue on another ps though it was to, or only with a version that is much older
// than usual.
func (j *ranking) replica(job *Job) {
	b := job.Replica
	if b == nil || b.Off != "" || job.Phase != schema.PhaseRunning {
		return
	}
	var text, action string
	since := b.UnreadyMS
	switch late := max(replicaLate, int64(min(3000*finite(b.TookSeconds), msMax))); {
	case b.UnreadyMS > replicaGrace:
		text = fmt.Sprintf("no other ps has held a whole replica of %s for %s", job.Name, Ago(since))
	case b.LateMS > late:
		since = b.LateMS
		text = fmt.Sprintf("no other ps has held a newer replica of %s than version %d for %s", job.Name, b.Version, Ago(since))
		action = "Look at the load of the ps that hold it, and at the network between them."
	default:
		return
	}
	if b.Server != "" {
		text += ", though ps " + b.Server + " is there"
	}
	if b.Failure != "" {
		text += ": " + gist(b.Failure)
	} else if behind := b.behind(); len(behind) > 0 {
		text += ": ps " + list(behind) + " lags"
	}
	j.find(CodeNoReplica, "%s", text).about(job.Name, "").from(j.s.NowMS - since).do(action)
}

// behind returns the ps whose part of the replica is older than that of another.
func (b *Replica) behind() (ids []string) {
	newest := b.Version
	for _, k := range b.Kept {
		newest = max(newest, k.Version)
	}
	for _, k := range b.Kept {
		if !k.Ready || k.Version < newest {
			ids = append(ids, k.Server)
		}
	}
	return ids
}

// primaries says that a ps cannot hold replicas as it was told to. Of several that do for each other their jobs say so.
func (j *ranking) primaries(v *Server, about func(*finding)) {
	b := v.Primary
	for i := 0; b != nil && i < len(b.Jobs); i++ {
		if h := &b.Jobs[i]; len(h.Missing) > 0 {
			j.find(codeMajority, "%s waits at ps %s for more than half of its trainers; not joined: %s", h.Job, v.ID,
				list(names(h.Missing))).about(string(h.Job), "p-"+v.ID)
		}
	}
	switch {
	case b == nil || b.Peers:
	case b.Refused != "":
		about(j.find(CodePrimaryUnreached, "ps %s may not hold replicas for the ps at %s: %s", v.ID, b.URL,
			gist(b.Refused)))
	case !b.Reached && b.SilentMS == 0:
		about(j.find(CodePrimaryUnreached, "ps %s has not reached the ps at %s, for which it is to hold replicas", v.ID,
			b.URL))
	case !b.Reached:
		about(j.find(CodePrimaryUnreached, "ps %s has heard nothing for %s of the ps at %s, for which it holds replicas",
			v.ID, Ago(b.SilentMS), b.URL))
	}
}
