package ps

import (
	"fmt"
	"slices"
	"time"

	"gradbus/checkpoint"
	"gradbus/schema"
)

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
	return c.makeRoom(now) // each batch from here on would be computed again
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

// durability is what the coordinator tells of its job's checkpoints.
func (c *Coordinator) durability(now time.Time) *schema.DurabilityReport {
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
	if c.running() && !d.late.IsZero() {
		p.LateMS = max(0, now.Sub(d.late).Milliseconds())
	}
	return p
}
