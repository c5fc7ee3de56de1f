package ps

import (
	"fmt"
	"time"

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
// and a later one is asked for.
type checkpointing struct {
	at      schema.Version                // asked for last; 0: none was
	since   time.Time                     // when it was, or the job started
	begun   schema.Batch                  // of the furthest trainer, at the last tick
	parts   map[int]schema.CheckpointPart // of that version, by shard
	durable bool                          // all of them are there
}

// askCheckpoint asks for a further version where it is time: the assignments that follow name it. It is called at each
// tick.
func (c *Coordinator) askCheckpoint(now time.Time) {
	p, k := c.config.Checkpoints, &c.checkpoints
	if p == nil || c.phase != Running {
		return
	}
	begun := c.begun()
	pace := begun - min(begun, k.begun) // in the time between two ticks
	k.begun = begun
	if k.at > schema.Version(begun) {
		return // it is to come
	}
	byTime := p.Every > 0 && now.Sub(k.since) >= p.Every
	if !byTime && (p.Batches == 0 || schema.Version(begun) < max(k.at, c.first())+p.Batches) {
		return
	}
	// What is known of trainers is up to two ticks old.
	k.since, k.at = now, schema.Version(begun+3*pace+2)
	k.parts, k.durable = map[int]schema.CheckpointPart{}, false
	c.serial++
}

// first is the version that the job has begun with.
func (c *Coordinator) first() schema.Version {
	return max(c.config.Resume.version(), c.config.Job.StartVersion())
}

// checkpointsAssigned is what shard servers are told.
func (c *Coordinator) checkpointsAssigned() *schema.Checkpoints {
	if c.config.Checkpoints == nil {
		return nil
	}
	return &schema.Checkpoints{Epoch: c.config.Checkpoints.Epoch, At: c.checkpoints.at}
}

// partsWritten takes what shards have written. With the last part of the version that was asked for it is durable.
func (c *Coordinator) partsWritten(parts []schema.CheckpointPart) []Decision {
	k := &c.checkpoints
	if k.at == 0 || k.durable {
		return nil
	}
	for _, p := range parts {
		if p.Version == k.at && p.Shard >= 0 && p.Shard < c.shards {
			k.parts[p.Shard] = p
		}
	}
	if k.durable = len(k.parts) == c.shards; !k.durable {
		return nil
	}
	var all []schema.CheckpointPart
	for i := range c.shards {
		all = append(all, k.parts[i])
	}
	return []Decision{{Durable: all}}
}

// refuseResume turns a trainer away that wants to resume where the others do not, or the other way round.
func (c *Coordinator) refuseResume(wanted bool) *schema.Refused {
	r := &schema.Refused{Reason: "job_differs", Field: "resume", Have: fmt.Sprint(!wanted), Want: fmt.Sprint(wanted)}
	r.Text = fmt.Sprintf("job %s begins at version 0, and this trainer resumes: want all trainers to resume, or none",
		c.config.Job.Name)
	if !wanted {
		r.Text = fmt.Sprintf("job %s is resumed at version %d, and this trainer does not resume: want all trainers to "+
			"resume, or none", c.config.Job.Name, c.config.Resume.Version)
	}
	return r
}
