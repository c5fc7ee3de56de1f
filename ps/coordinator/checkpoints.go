package coordinator

import (
	"fmt"
	"slices"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/planted"
	"gradbus/schema"
)

// CheckpointPolicy is the interval of checkpoints. A version is requested when either interval has passed since the
// last one. Without an interval only trainers request versions, and each is written whole.
type CheckpointPolicy struct {
	Epoch   uint64         // of this run among those of the job's name
	Every   time.Duration  // 0: by batches alone
	Batches schema.Version // 0: by time alone
}

// ResumeFrom is the checkpoint that a job begins with.
type ResumeFrom struct {
	ID      string
	Version schema.Version
	LR      []schema.LRChange // changes of the learning rates that were decided
	Bytes   int64             // of its parts
	Durable time.Time         // when it became that
}

// version is 0 of nil.
func (r *ResumeFrom) version() schema.Version {
	if r == nil {
		return 0
	}
	return r.Version
}

// checkpointing decides which versions of a job are written, and knows which of them are durable. It requests a version
// that no trainer seems to have begun. Each shard copies it when its own batch of that number begins, and reports the
// part that it has written. With the parts of all shards the version is durable. A shard that hears of the request too
// late writes no part of that version, and a later one is requested. Fuzzy checkpoints (schema.Plan.Moments) are copied
// when a shard hears of the request, under the number of batches that every trainer has begun.
type checkpointing struct {
	job    *schema.Job
	policy *CheckpointPolicy // nil: no version is written
	resume *ResumeFrom       // nil: the job begins with version 0
	hosts  []ShardServer
	shards int // of all hosts

	asked   []askedVersion // oldest first, at most askedMax: what may yet be durable
	since   time.Time      // when the last was asked for, or the job started
	begun   schema.Batch   // of the furthest trainer, at the last tick
	durable durability
	drains  bool              // this ps is to end
	last    schema.Version    // that was asked for since; 0: none
	wanted  schema.Version    // by waiting; 0: none
	waiting []schema.Member   // trainers that begin no batch before a version is durable
	growth  checkpoint.Growth // of the newest durable version
}

// askedVersion is a version that shards write.
type askedVersion struct {
	version schema.Version
	at      time.Time                     // when it was asked for
	parts   map[int]schema.CheckpointPart // by shard
	since   schema.Version                // what was touched since this one is reported; 0: everything
	growth  checkpoint.Growth             // of that version
	failed  bool                          // and was counted
	// increment is set if only changes are written.
	increment bool
	complete  bool // on all shards, when it was asked for
}

// AskedMax bounds the versions that are waited for. A shard that has written so many later ones removes its part of one
// before them.
const AskedMax = 2

// at is the version that was asked for last; 0: none was.
func (k *checkpointing) at() schema.Version {
	if len(k.asked) == 0 {
		return 0
	}
	return k.asked[len(k.asked)-1].version
}

// tick requests a further version if one is due and no shard is writing. Assignments name it. members are the slots of
// the job, writing reports that a shard is writing, and wanted that newcomers or leaving trainers wait for a version.
func (k *checkpointing) tick(now time.Time, members slots, writing, wanted bool) (asked bool, _ []Decision) {
	p := k.policy
	if p == nil {
		return false, nil
	}
	begun := max(members.begun(), schema.Batch(k.first())) // a trainer that gets its first version says 0
	newest, moments := max(k.at(), k.first()), k.job.Plan().Moments()
	if moments { // a trainer that stands still holds it up by one batch at most
		begun = min(begun, max(members.leastBegun(), schema.Batch(newest)+1))
	}
	pace := begun - min(begun, k.begun) // in the time between two ticks
	k.begun = begun
	k.noteLate(now, begun)
	if k.at() > schema.Version(begun) || writing || moments && newest >= schema.Version(begun) {
		return false, nil
	}
	byTime := p.Every > 0 && now.Sub(k.since) >= p.Every || k.drains && k.last == 0 || wanted
	if !byTime && (p.Batches == 0 || schema.Version(begun) < newest+p.Batches) {
		return false, nil
	}
	var decisions []Decision
	if last := len(k.asked) - 1; last >= 0 && len(k.asked[last].parts) < k.shards {
		a := &k.asked[last]
		decisions = []Decision{{Note: fmt.Sprintf("version %d is not durable: %d of %d shards have written it", a.version,
			len(a.parts), k.shards)}}
	}
	// What is known of trainers is up to two ticks old.
	k.since = now
	next := begun + 3*pace + 2 + schema.Batch(k.job.Ahead)
	if planted.Is(planted.AskLateVersion) {
		next = begun - min(begun, 1)
	}
	if moments {
		next = begun // what trainers that are further have done since is done once more where the job is resumed
	}
	a := askedVersion{version: schema.Version(next), at: now, parts: map[int]schema.CheckpointPart{}, growth: k.growth}
	if !k.job.Moments() {
		a.since, a.increment = k.base()
	}
	k.asked = append(k.asked, a)
	if k.drains && k.last == 0 {
		k.last = k.at()
	}
	k.giveUp(len(k.asked) - AskedMax)
	return true, decisions
}

// request takes a trainer's request for a version that is complete on all shards. It replaces later versions, which no
// trainer has begun. Assignments name it.
func (k *checkpointing) request(now time.Time, from schema.Member, v schema.Version) (asked bool, _ []Decision) {
	if v <= k.durable.version || v <= k.resume.version() && !k.resume.Durable.IsZero() {
		return false, []Decision{{To: from, Control: schema.Control{Checkpoint: &schema.Checkpoint{Version: v}}}}
	}
	if !slices.Contains(k.waiting, from) {
		k.waiting = append(k.waiting, from)
	}
	if v <= k.wanted {
		return false, nil
	}
	k.wanted, k.since = v, now
	k.asked = slices.DeleteFunc(k.asked, func(a askedVersion) bool { return a.version >= v })
	a := askedVersion{version: v, at: now, parts: map[int]schema.CheckpointPart{}, growth: k.growth, complete: true}
	a.since, a.increment = k.base()
	k.asked = append(k.asked, a)
	k.giveUp(len(k.asked) - AskedMax)
	return true, nil
}

// answer tells the trainers that wait for a version what has become of it.
func (k *checkpointing) answer(failed bool) (decisions []Decision) {
	failed = failed || slices.ContainsFunc(k.asked, func(a askedVersion) bool { return a.version == k.wanted && a.failed })
	durable := k.durable.version >= k.wanted
	if k.wanted == 0 || !durable && !failed {
		return nil
	}
	for _, to := range k.waiting {
		d := Decision{To: to, Control: schema.Control{Checkpoint: &schema.Checkpoint{Version: k.wanted}}}
		if !durable {
			d = refuseCheckpoint(to, k.durable.failure)
		}
		decisions = append(decisions, d)
	}
	k.wanted, k.waiting = 0, nil
	return decisions
}

func refuseCheckpoint(to schema.Member, text string) Decision {
	return Decision{To: to, Control: schema.Control{Refused: &schema.Refused{Reason: schema.RefusedCheckpoint,
		Text: schema.Clip(text)}}}
}

// drained reports whether the last version is durable, or none is written.
func (k *checkpointing) drained() bool {
	return k.policy == nil || k.drains && k.last > 0 && k.durable.version >= k.last
}

// first returns the version that the job has begun with.
func (k *checkpointing) first() schema.Version { return max(k.resume.version(), k.job.StartVersion()) }

// gains reports whether another run would begin at a later version than this one.
func (k *checkpointing) gains() bool { return k.durable.version > k.first() }

// assigned returns what assignments say of checkpoints.
func (k *checkpointing) assigned() *schema.Checkpoints {
	if k.policy == nil {
		return nil
	}
	told := &schema.Checkpoints{Epoch: k.policy.Epoch, At: k.at()}
	if told.At > 0 {
		a := &k.asked[len(k.asked)-1]
		told.Since, told.Increment, told.Complete = a.since, a.increment, a.complete
	}
	return told
}

// wrote notes the parts that shards have written. It returns the version whose last part is among them; nil: none.
// Older versions are no longer waited for then.
func (k *checkpointing) wrote(parts []schema.CheckpointPart) *askedVersion {
	for i := len(k.asked) - 1; i >= 0; i-- {
		a := &k.asked[i]
		before := len(a.parts)
		for _, p := range parts {
			switch {
			case p.Version != a.version || p.Shard < 0 || p.Shard >= k.shards:
			case p.Failure != "":
				k.durable.fail(a, fmt.Sprintf("%s: %s", k.where(p.Shard), p.Failure))
			default:
				a.parts[p.Shard] = p
			}
		}
		if len(a.parts) < k.shards || before == k.shards {
			continue
		}
		k.giveUp(i)
		return &k.asked[0]
	}
	return nil
}

// written returns a version with the parts of all shards. lr are the changes of the learning rates decided by then.
func (k *checkpointing) written(a *askedVersion, lr []schema.LRChange, trainers int) *Written {
	w := &Written{Epoch: k.policy.Epoch, Version: a.version, LR: lr, Trainers: trainers, asked: a.at}
	touched := int64(0)
	for shard := range k.shards {
		p := a.parts[shard]
		w.Parts = append(w.Parts, p)
		w.bytes += p.Bytes
		touched += p.Touched
	}
	if a.increment {
		w.Base = a.since
	}
	if a.since == 0 {
		touched = 0 // since when is not known, so it is all
	}
	w.growth = a.growth.With(a.increment, w.bytes, touched)
	return w
}

// base returns the version since which touched rows are reported, and whether nothing else is written.
func (k *checkpointing) base() (since schema.Version, increment bool) {
	if k.policy.Every == 0 && k.policy.Batches == 0 {
		return 0, false // shards do not record which rows are touched
	}
	return k.durable.version, k.durable.version > 0 && k.growth.GoesOn()
}

// durability is the coordinator's report on durable versions, and on those that failed to become durable.
type durability struct {
	version schema.Version // the newest; 0: none of this run
	at      time.Time
	bytes   int64
	took    time.Duration

	failures uint64
	failure  string    // the last; empty since a version became durable
	late     time.Time // since when trainers are past a version that is not durable; zero: they are not
}

// fail counts a version that does not become durable, once.
func (d *durability) fail(a *askedVersion, text string) {
	if a.failed {
		return
	}
	a.failed = true
	d.failures++
	d.failure = schema.ClipFailure(fmt.Sprintf("version %d: %s", a.version, text))
}

// Written is a version whose parts all shards have written.
type Written struct {
	Epoch    uint64 // of the run
	Version  schema.Version
	Base     schema.Version          // of which it has the changes; 0: it has everything
	Parts    []schema.CheckpointPart // by shard
	LR       []schema.LRChange
	Trainers int // that took part

	asked  time.Time
	bytes  int64
	growth checkpoint.Growth // of the version, where it becomes durable
}

// complete notes that a version is durable, or why it cannot be.
func (k *checkpointing) complete(now time.Time, w *Written, err error) {
	d := &k.durable
	if err != nil {
		d.fail(&askedVersion{version: w.Version}, err.Error())
		k.growth = checkpoint.Growth{} // the version that an increment would be based on may be gone
	} else if w.Version > d.version {
		d.version, d.at, d.bytes, d.took = w.Version, now, w.bytes, now.Sub(w.asked)
		d.failure, d.late = "", time.Time{}
		k.growth = w.growth
	}
}

// noteLate notes since when trainers are past a version that was requested and is not durable.
func (k *checkpointing) noteLate(now time.Time, begun schema.Batch) {
	if k.durable.late.IsZero() && slices.ContainsFunc(k.asked, func(a askedVersion) bool {
		return a.version > k.durable.version && schema.Version(begun) > a.version
	}) {
		k.durable.late = now
	}
}

// giveUp forgets the oldest n requested versions. Those of them that are not durable never will be.
func (k *checkpointing) giveUp(n int) {
	for i := range max(0, n) {
		if a := &k.asked[i]; len(a.parts) < k.shards {
			missing := 0
			for _, ok := a.parts[missing]; ok; _, ok = a.parts[missing] {
				missing++
			}
			k.durable.fail(a, fmt.Sprintf("%d of %d shards have written it, and not %s", len(a.parts), k.shards,
				k.where(missing)))
		}
	}
	k.asked = k.asked[max(0, n):]
}

// where names a shard and its ps.
func (k *checkpointing) where(shard int) string {
	at := ""
	for _, s := range k.hosts {
		if slices.Contains(s.Server.Shards, shard) {
			at = " on ps " + s.Server.ID
		}
	}
	return fmt.Sprintf("shard %s%s", schema.ShardMember(shard), at)
}

// report returns what reports have of the job's checkpoints.
func (k *checkpointing) report(now time.Time, running bool) *schema.DurabilityReport {
	policy, d := k.policy, &k.durable
	if policy == nil {
		return &schema.DurabilityReport{Off: "no version of the job is written"}
	}
	p := &schema.DurabilityReport{EveryMS: policy.Every.Milliseconds(), EveryBatches: schema.Batch(policy.Batches),
		Version: d.version, Bytes: d.bytes, TookSeconds: schema.Real(d.took.Seconds()), Failures: d.failures,
		Failure: d.failure}
	switch from := k.resume; {
	case d.version > 0:
		p.DurableMS = d.at.UnixMilli()
	case from != nil && !from.Durable.IsZero():
		p.Version, p.Bytes, p.DurableMS = from.Version, from.Bytes, max(0, from.Durable.UnixMilli())
	}
	if running && !d.late.IsZero() {
		p.LateMS = max(0, now.Sub(d.late).Milliseconds())
	}
	return p
}
