package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// detector finds lost trainers, and slow ones that rounds wait for.
type detector struct {
	job          *schema.Job
	onLoss       lossAction
	deadline     time.Duration
	stallTimeout time.Duration

	vacatedAt schema.Batch // the batch for which slots were vacated last, since it was waited for too long
	vacated   int          // how many of them
}

// gainsByVacating counts a slot that is vacated because a batch is waited for too long. It reports whether another
// trainer may do better.
func (d *detector) gainsByVacating(b schema.Batch, trainers int) bool {
	if d.vacatedAt != b {
		d.vacatedAt, d.vacated = b, 0
	}
	d.vacated++
	return d.vacated <= 2*trainers
}

// slowest returns a trainer that a round waits for too long and that nothing was done about; -1: none. Of several it is
// one that the earliest round waits for, since the others may be waiting for that one themselves.
func (d *detector) slowest(now time.Time, members slots, waiting []schema.Waiting) int {
	first, slowest := firstWaitedFor(waiting), -1
	for i := range members {
		if !d.slow(now, members, i, waiting) || members[i].vacancy != nil || d.excludes(members) && !members[i].here() {
			continue
		}
		if slowest < 0 || slices.Contains(first, schema.TrainerMember(i)) &&
			!slices.Contains(first, schema.TrainerMember(slowest)) {
			slowest = i
		}
	}
	return slowest
}

// hasValues reports whether all values that the job begins with are stored. Until then every trainer has a part of
// them.
func (d *detector) hasValues(members slots) bool {
	return members.begun() >= schema.Batch(d.job.StartVersion())
}

// replaces reports whether lanes of a lost trainer may be taken over now, in place.
func (d *detector) replaces(members slots) bool {
	return (d.onLoss == lossTakeOver || d.onLoss == lossAwait) && d.hasValues(members)
}

// excludes reports whether groups are made without a lost trainer now.
func (d *detector) excludes(members slots) bool {
	return d.onLoss == lossExclude && d.hasValues(members)
}

// lost reports whether a trainer has ended or was silent for too long, and describes it.
func (d *detector) lost(now time.Time, members slots, i int) (string, bool) {
	m := &members[i]
	if m.joiner == "" || m.state == slotDone {
		return "", false
	}
	if m.dead {
		return fmt.Sprintf("trainer %s on %s has ended at batch %d", schema.TrainerMember(i), m.host, d.job.Counted(m.batch)),
			true
	}
	why, lost := m.Lost(now, d.deadline)
	return fmt.Sprintf("trainer %s on %s was last seen %s ago at batch %d%s", schema.TrainerMember(i), m.host,
		liveness.Rounded(m.For(now)), d.job.Counted(m.batch), why), lost
}

// canDoWithout reports whether the job may continue without a trainer that has just ended: no trainer waits for
// another, or it has completed its batches and their result is not lost with it. If a round needs it after all, slow
// finds it.
func (d *detector) canDoWithout(members slots, m *member) bool {
	anyHere := members.anyHere()
	return d.onLoss == lossContinue && anyHere || m.complete && (anyHere || slices.ContainsFunc(members, completed))
}

// slow notes whether rounds wait for a trainer, and since when. It reports whether they wait for too long.
func (d *detector) slow(now time.Time, members slots, i int, waiting []schema.Waiting) (overdue bool) {
	m := &members[i]
	at, waited := waitedFor(waiting, schema.TrainerMember(i))
	if !waited {
		m.waitedSince.End()
	} else if !m.waitedSince.Lasts() || m.waitedBatch != at {
		m.waitedSince.Begin(now)
		m.stallTold = 0
	}
	m.waitedBatch = at
	m.noteLag()
	since := m.waitedSince.For(now)
	limit, _ := d.limit(members, i)
	return waited && (since > limit || m.state == slotDone && since > liveness.CutMax || m.lost())
}

// limit returns how long a live trainer may keep a batch waiting, and the flag of the ps that sets it. The
// deadline applies only if others can take over the trainer's lanes without losing anything: a person may evaluate on
// one trainer, or stop it in a debugger, while its heartbeats continue.
func (d *detector) limit(members slots, i int) (limit time.Duration, flag string) {
	if (d.onLoss == lossExclude || d.onLoss == lossTakeOver) && d.hasValues(members) && members.others(i) {
		return d.deadline, "--deadline"
	}
	return d.stallTimeout, "--stall-timeout"
}

// Trainers are told of a stall after stallFirst, then each time the wait is stallGrowth times as long as at the last
// notice, and at least every stallEvery.
const (
	stallFirst  = 5 * time.Second
	stallGrowth = 6
	stallEvery  = 5 * time.Minute
)

// tellStalls tells all trainers which trainer the earliest open round waits for.
func (d *detector) tellStalls(now time.Time, members slots, waiting []schema.Waiting) []Decision {
	var decisions []Decision
	for _, name := range firstWaitedFor(waiting) {
		i, ok := members.find(name)
		if !ok || !members[i].waitedSince.Lasts() {
			continue
		}
		m := &members[i]
		waited := m.waitedSince.For(now)
		if waited < max(stallFirst, min(stallGrowth*m.stallTold, m.stallTold+stallEvery)) {
			continue
		}
		m.stallTold = waited
		limit, _ := d.limit(members, i)
		decisions = append(decisions, Decision{To: schema.All, Control: schema.Control{Stalled: &schema.Stalled{
			Member: name, Host: m.host, Batch: d.job.Counted(m.waitedBatch), WaitedMS: waited.Milliseconds(),
			LimitMS: limit.Milliseconds()}}})
	}
	return decisions
}

// describe says why a trainer that rounds wait for is too late.
func (d *detector) describe(now time.Time, members slots, i int) string {
	m, what := &members[i], "batch"
	if d.excludes(members) {
		what = "update"
	}
	who, needed := fmt.Sprintf("trainer %s on %s", schema.TrainerMember(i), m.host),
		fmt.Sprintf("and %s %d needs its lanes", what, d.job.Counted(m.waitedBatch))
	switch {
	case m.state == slotDone && m.why != "":
		return fmt.Sprintf("%s has left, %s: %s", who, needed, m.why)
	case m.state == slotDone:
		return fmt.Sprintf("%s has left, %s: trainers must run the same number of batches", who, needed)
	case m.lost():
		return fmt.Sprintf("%s was last seen %s ago, %s", who, liveness.Rounded(m.For(now)), needed)
	}
	limit, flag := d.limit(members, i)
	return fmt.Sprintf("%s has kept %s %d waiting for %s (limit %s, %s of the ps): it is alive but sends no gradients",
		who, what, d.job.Counted(m.waitedBatch), liveness.Rounded(m.waitedSince.For(now)), limit, flag)
}

// report returns what reports have of a slot.
func (d *detector) report(now time.Time, members slots, i int) schema.MemberReport {
	m := &members[i]
	handedOver := m.vacancy != nil && m.ended == schema.EndStopped // its trainer was asked to end
	p := schema.MemberReport{Member: schema.TrainerMember(i), Host: m.host, Batch: m.batch,
		Left: m.state == slotDone || handedOver, Lost: m.lost() && !handedOver}
	if m.joiner == "" {
		return p
	}
	p.SilentMS = m.For(now).Milliseconds()
	p.Gone = m.Cut() && m.state != slotDone
	if m.waitedSince.Lasts() {
		limit, _ := d.limit(members, i)
		p.Waited, p.WaitedBatch, p.WaitedMS = true, m.waitedBatch, m.waitedSince.For(now).Milliseconds()
		p.LimitMS = limit.Milliseconds()
	}
	return p
}

// firstWaitedFor returns the trainers that the earliest round of all shards waits for.
func firstWaitedFor(waiting []schema.Waiting) []schema.Member {
	var first *schema.Waiting
	for i := range waiting {
		if w := &waiting[i]; len(w.First) > 0 && (first == nil || before(w, first)) {
			first = w
		}
	}
	if first == nil {
		return nil
	}
	return first.First
}

// before orders the rounds that two shards wait for as trainers send them.
func before(w, v *schema.Waiting) bool {
	return cmp.Or(cmp.Compare(w.Batch, v.Batch), cmp.Compare(w.Bucket, v.Bucket), cmp.Compare(w.Chunk, v.Chunk)) < 0
}

// waitedFor returns the earliest batch at which a shard waits for a trainer.
func waitedFor(waiting []schema.Waiting, name schema.Member) (batch schema.Batch, ok bool) {
	for _, w := range waiting {
		if slices.Contains(w.Members, name) && (!ok || w.Batch < batch) {
			batch, ok = w.Batch, true
		}
	}
	return batch, ok
}
