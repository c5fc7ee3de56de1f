package coordinator

import (
	"fmt"
	"slices"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/planted"
	"gradbus/schema"
)

// CheckpointPolicy is how often the versions of a job are written down. A further one is asked for when either has gone
// by since the last was.
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

// checkpointing is what a coordinator knows of the versions that are written down. It names a version that no trainer
// seems to have begun; every shard copies it when its own batch of that number begins, and reports what it has written.
// With the parts of all shards the version is durable. Where a shard has heard too late there is none of that version,
// and a later one is asked for. Where shards copy moments (schema.Job.Moments), each copies what it has when it hears,
// under the number of batches that every trainer has begun.
type checkpointing struct {
	asked   []askedVersion // oldest first, at most askedMax: what may yet be durable
	since   time.Time      // when the last was asked for, or the job started
	begun   schema.Batch   // of the furthest trainer, at the last tick
	durable durability
	drains  bool              // this ps is to end
	last    schema.Version    // that was asked for since; 0: none
	growth  checkpoint.Growth // of the newest durable version
}

// askedVersion is a version that shards write.
type askedVersion struct {
	version schema.Version
	at      time.Time                     // when it was asked for
	parts   map[int]schema.CheckpointPart // by shard
	since   schema.Version                // what was touched since this one is told; 0: everything
	growth  checkpoint.Growth             // of that version
	failed  bool                          // and was counted
	// increment is that the rest is not written.
	increment bool
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

// askCheckpoint asks for a further version where it is time and no shard is still at one: the assignments that follow
// name it. It is called at each tick.
func (c *Coordinator) askCheckpoint(now time.Time) []Decision {
	p, k := c.config.Checkpoints, &c.checkpoints
	if p == nil || !c.IsRunning() {
		return nil
	}
	begun := max(c.members.begun(), schema.Batch(c.first())) // a trainer that gets its first version says 0
	moments := c.plan.Moments()
	if moments { // by that of one who stands still it does not wait for ever
		begun = min(begun, max(c.members.leastBegun(), schema.Batch(max(k.at(), c.first()))+1))
	}
	pace := begun - min(begun, k.begun) // in the time between two ticks
	k.begun = begun
	c.noteLate(now, begun)
	writing := slices.ContainsFunc(c.shardServers, func(s shardServer) bool { return s.writing })
	if k.at() > schema.Version(begun) || writing || moments && max(k.at(), c.first()) >= schema.Version(begun) {
		return nil
	}
	byTime := p.Every > 0 && now.Sub(k.since) >= p.Every || k.drains && k.last == 0 || c.wantsVersion()
	if !byTime && (p.Batches == 0 || schema.Version(begun) < max(k.at(), c.first())+p.Batches) {
		return nil
	}
	var decisions []Decision
	if last := len(k.asked) - 1; last >= 0 && len(k.asked[last].parts) < c.shards {
		a := &k.asked[last]
		decisions = []Decision{{Note: fmt.Sprintf("version %d is not durable: %d of %d shards have written it", a.version,
			len(a.parts), c.shards)}}
	}
	// What is known of trainers is up to two ticks old.
	k.since = now
	next := begun + 3*pace + 2 + schema.Batch(c.config.Job.Ahead)
	if planted.Is(planted.AskLateVersion) {
		next = begun - min(begun, 1)
	}
	if moments {
		next = begun // what trainers that are further have done since is done once more where the job is resumed
	}
	a := askedVersion{version: schema.Version(next), at: now, parts: map[int]schema.CheckpointPart{}, growth: k.growth}
	if !c.config.Job.Moments() {
		a.since, a.increment = k.base()
	}
	k.asked = append(k.asked, a)
	if k.drains && k.last == 0 {
		k.last = k.at()
	}
	c.giveUp(len(k.asked) - AskedMax)
	c.serial++
	return decisions
}

// WritesVersions reports whether versions of the job are written down.
func (c *Coordinator) WritesVersions() bool { return c.config.Checkpoints != nil }

// Drain asks for a last version to be durable, as soon as one can be.
func (c *Coordinator) Drain() { c.checkpoints.drains = true }

// Drained reports that it is, or that there is nothing to wait for.
func (c *Coordinator) Drained() bool {
	k := &c.checkpoints
	return !c.WritesVersions() || !c.IsRunning() || !c.members.anybody() ||
		k.drains && k.last > 0 && k.durable.version >= k.last
}

// Progress returns how far the job is, and which version of it would outlast its ps.
func (c *Coordinator) Progress(now time.Time) schema.DrainedJob {
	d := schema.DrainedJob{Job: c.config.Job.Name, Durable: c.checkpoints.durable.version}
	if c.copies.ready(now) {
		d.Kept = c.copies.whole
	}
	d.Version = max(d.Durable, d.Kept, schema.Version(c.members.begun()), c.resumed())
	return d
}

// resumed is the version that was on disk, on another ps, or with trainers when the run began; 0: none was.
func (c *Coordinator) resumed() schema.Version {
	return c.config.Resume.version()
}

// first is the version that the job has begun with.
func (c *Coordinator) first() schema.Version {
	return max(c.resumed(), c.config.Job.StartVersion())
}

// checkpointsAssigned is what shard servers are told.
func (c *Coordinator) checkpointsAssigned() *schema.Checkpoints {
	if c.config.Checkpoints == nil {
		return nil
	}
	told := &schema.Checkpoints{Epoch: c.config.Checkpoints.Epoch, At: c.checkpoints.at()}
	if told.At > 0 {
		a := &c.checkpoints.asked[len(c.checkpoints.asked)-1]
		told.Since, told.Increment = a.since, a.increment
	}
	return told
}

// partsWritten takes what shards have written. With the last part of a version that was asked for it is durable, and
// those before it are no longer waited for.
func (c *Coordinator) partsWritten(parts []schema.CheckpointPart) []Decision {
	k := &c.checkpoints
	for i := len(k.asked) - 1; i >= 0; i-- {
		a := &k.asked[i]
		before := len(a.parts)
		for _, p := range parts {
			switch {
			case p.Version != a.version || p.Shard < 0 || p.Shard >= c.shards:
			case p.Failure != "":
				k.durable.fail(a, fmt.Sprintf("%s: %s", c.whereShard(p.Shard), p.Failure))
			default:
				a.parts[p.Shard] = p
			}
		}
		if len(a.parts) < c.shards || before == c.shards {
			continue
		}
		c.giveUp(i)
		return []Decision{{Written: c.written(&k.asked[0])}}
	}
	return nil
}

// written returns the version whose parts have all come.
func (c *Coordinator) written(a *askedVersion) *Written {
	w := &Written{Epoch: c.config.Checkpoints.Epoch, Version: a.version, LR: c.lr.decided,
		Trainers: c.members.here(""), asked: a.at}
	touched := int64(0)
	for shard := range c.shards {
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

// base is the version since which it is told what was touched, and whether nothing else is written.
func (k *checkpointing) base() (since schema.Version, increment bool) {
	return k.durable.version, k.durable.version > 0 && k.growth.GoesOn()
}

// refuseResume turns a trainer away that wants to resume where the others do not, or the other way round.
func (c *Coordinator) refuseResume(wanted bool) *schema.Refused {
	r := &schema.Refused{Reason: "job_differs", Field: "resume", Have: fmt.Sprint(!wanted), Want: fmt.Sprint(wanted)}
	r.Text = fmt.Sprintf("job %s begins at version 0, and this trainer resumes", c.config.Job.Name)
	switch {
	case !wanted && c.config.Resume != nil:
		r.Text = fmt.Sprintf("job %s is resumed at version %d, and this trainer does not resume", c.config.Job.Name,
			c.config.Resume.Version)
	case !wanted:
		r.Text = fmt.Sprintf("job %s is resumed, and this trainer does not resume", c.config.Job.Name)
	}
	r.Text += ": want all trainers to resume, or none"
	return r
}

// durability is what a coordinator tells of versions that are durable, and of those that were to be and are not.
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

// Completed notes that a version has become durable, or why it cannot. A run that others wait to join, or to leave,
// ends with it.
func (c *Coordinator) Completed(now time.Time, w *Written, err error) []Decision {
	d := &c.checkpoints.durable
	if err != nil {
		d.fail(&askedVersion{version: w.Version}, err.Error())
		c.checkpoints.growth = checkpoint.Growth{} // what it goes on from may be gone
	} else if w.Version > d.version {
		d.version, d.at, d.bytes, d.took = w.Version, now, w.bytes, now.Sub(w.asked)
		d.failure, d.late = "", time.Time{}
		c.checkpoints.growth = w.growth
	}
	return c.rescale(now) // each batch from here on would be computed again
}

// Durable is the newest version of the job that is on disk; 0: none is.
func (c *Coordinator) Durable() schema.Version {
	return max(c.checkpoints.durable.version, c.config.Resume.version())
}

// noteLate notes since when trainers are past a version that was asked for and is not durable.
func (c *Coordinator) noteLate(now time.Time, begun schema.Batch) {
	k := &c.checkpoints
	if k.durable.late.IsZero() && slices.ContainsFunc(k.asked, func(a askedVersion) bool {
		return a.version > k.durable.version && schema.Version(begun) > a.version
	}) {
		k.durable.late = now
	}
}

// giveUp forgets the oldest n versions that were asked for: what has not become durable of them will not.
func (c *Coordinator) giveUp(n int) {
	k := &c.checkpoints
	for i := range max(0, n) {
		if a := &k.asked[i]; len(a.parts) < c.shards {
			k.durable.fail(a, c.missingPart(a))
		}
	}
	k.asked = k.asked[max(0, n):]
}

// missingPart says which of the shards has not written a version.
func (c *Coordinator) missingPart(a *askedVersion) string {
	first := -1
	for shard := range c.shards {
		if _, ok := a.parts[shard]; !ok {
			first = shard
			break
		}
	}
	return fmt.Sprintf("%d of %d shards have written it, and not %s", len(a.parts), c.shards, c.whereShard(first))
}

// whereShard names a shard and its ps.
func (c *Coordinator) whereShard(shard int) string {
	for _, s := range c.config.ShardServers {
		if slices.Contains(s.Server.Shards, shard) {
			return fmt.Sprintf("shard %s on ps %s", schema.ShardMember(shard), s.Server.ID)
		}
	}
	return fmt.Sprintf("shard %s", schema.ShardMember(shard))
}

// Durability is what the coordinator tells of its job's checkpoints.
func (c *Coordinator) Durability(now time.Time) *schema.DurabilityReport {
	policy, d := c.config.Checkpoints, &c.checkpoints.durable
	if policy == nil {
		return &schema.DurabilityReport{Off: "no version of the job is written"}
	}
	p := &schema.DurabilityReport{EveryMS: policy.Every.Milliseconds(), EveryBatches: schema.Batch(policy.Batches),
		Version: d.version, Bytes: d.bytes, TookSeconds: schema.Real(d.took.Seconds()), Failures: d.failures,
		Failure: d.failure}
	switch from := c.config.Resume; {
	case d.version > 0:
		p.DurableMS = d.at.UnixMilli()
	case from != nil && !from.Durable.IsZero():
		p.Version, p.Bytes, p.DurableMS = from.Version, from.Bytes, max(0, from.Durable.UnixMilli())
	}
	if c.IsRunning() && !d.late.IsZero() {
		p.LateMS = max(0, now.Sub(d.late).Milliseconds())
	}
	return p
}
