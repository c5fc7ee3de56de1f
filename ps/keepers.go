package ps

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gradbus/schema"
)

// keeper is what a coordinator knows of a ps that keeps shards of its job.
type keeper struct {
	seen    time.Time // its last report; zero before the first Tick
	heard   bool      // it has reported
	ready   bool      // version 0 is in place on its shards
	serial  int       // of the last assignment that it has carried out
	waiting []Waiting // what its shards waited for when it last reported
}

// Assign tells every ps which shards to keep. It is the first that a coordinator has to say, and said again, by Tick, to those
// who have not carried it out.
func (c *Coordinator) Assign(now time.Time) []Decision {
	for i := range c.keepers {
		c.keepers[i].seen = now
	}
	return c.assign()
}

// reassign tells every ps what has changed: how trainers are reached.
func (c *Coordinator) reassign() []Decision {
	c.serial++
	return c.assign()
}

// assign is what those are to be told who have not carried out the latest.
func (c *Coordinator) assign() (decisions []Decision) {
	for i := range c.keepers {
		if c.keepers[i].serial != c.serial {
			decisions = append(decisions, c.assignTo(i))
		}
	}
	return decisions
}

func (c *Coordinator) assignTo(i int) Decision {
	a := &schema.Assign{Job: c.config.Job, Serial: c.serial, Shards: c.shards, Own: c.config.Keepers[i].Server.Shards, Cluster: []schema.Member{},
		DeadlineMS: c.config.Deadline.Milliseconds(), LR: c.lrAssigned()}
	for m := range c.members {
		if c.members[m].cluster {
			a.Cluster = append(a.Cluster, schema.TrainerMember(m))
		}
		if c.grouped() && (c.members[m].left || c.members[m].lost) {
			a.Gone = append(a.Gone, schema.TrainerMember(m))
		}
	}
	return Decision{To: c.config.Keepers[i].Member, Control: schema.Control{Assign: a}}
}

// unheard is the first ps that has not been heard of yet; -1 where all have.
func (c *Coordinator) unheard() int {
	return slices.IndexFunc(c.keepers, func(k keeper) bool { return !k.heard })
}

// Report takes what a ps says of its shards, or a trainer of its segment. It reports whether the sender keeps any.
func (c *Coordinator) Report(now time.Time, from schema.Member, r *schema.Report) ([]Decision, bool) {
	i := c.keeperOf(from)
	if i < 0 {
		return nil, c.reportOfSegment(from, r)
	}
	k := &c.keepers[i]
	behind := r.Serial > k.serial && r.Serial < c.serial // it has carried out what is no longer the latest
	k.seen, k.heard, k.ready, k.serial, k.waiting = now, true, r.Ready, r.Serial, reported(k.waiting, r.Waiting)
	if behind {
		return []Decision{c.assignTo(i)}, true
	}
	return append(c.start(now), c.agreeLR()...), true
}

// reported puts what a report says of waiting in place of what the last one said.
func reported(last []Waiting, now []schema.Waiting) []Waiting {
	last = last[:0]
	for _, w := range now {
		last = append(last, Waiting{Batch: w.Batch, Bucket: w.Bucket, Chunk: w.Chunk, Members: w.Members, First: w.First})
	}
	return last
}

// reportOfSegment takes what a trainer says of the segment that it adds up for all. A segment is one owner, so it waits in one
// batch at most.
func (c *Coordinator) reportOfSegment(from schema.Member, r *schema.Report) bool {
	i, ok := c.find(from)
	if !ok || !c.plan.Reduces(schema.ByTrainers) {
		return false
	}
	c.members[i].waiting = reported(c.members[i].waiting, r.Waiting[:min(1, len(r.Waiting))])
	return true
}

// KeeperFailed ends the job because a ps, or one of its shards, cannot go on. It reports whether the ps keeps any.
func (c *Coordinator) KeeperFailed(from schema.Member, f *schema.Failed) ([]Decision, bool) {
	i := c.keeperOf(from)
	if i < 0 {
		return nil, false
	}
	text := f.Text
	if len(c.keepers) > 1 {
		text = fmt.Sprintf("%s: %s", c.keeperName(i), f.Text)
	}
	return c.Fail(f.Member, text), true
}

// KeeperGone ends the job because a ps keeps nothing any more, how says why.
func (c *Coordinator) KeeperGone(i int, how string) []Decision {
	return c.Fail(c.config.Keepers[i].Member, c.keeperName(i)+" "+how)
}

func (c *Coordinator) keeperOf(from schema.Member) int {
	return slices.IndexFunc(c.config.Keepers, func(k Keeper) bool { return k.Member == from })
}

// keeperName names a ps for people.
func (c *Coordinator) keeperName(i int) string {
	d := &c.config.Keepers[i].Server
	names := make([]string, len(d.Shards))
	for n, shard := range d.Shards {
		names[n] = string(schema.ShardMember(shard))
	}
	at := ""
	if d.URL != "" {
		at = " at " + d.URL
	}
	return fmt.Sprintf("ps %s%s with shards %s", d.ID, at, strings.Join(names, " "))
}

// ready reports whether all shards are, and all ps know how to reach every trainer.
func (c *Coordinator) ready() bool {
	for i := range c.keepers {
		if k := &c.keepers[i]; !k.ready || k.serial != c.serial {
			return false
		}
	}
	return true
}

// servers is where a trainer finds the shards: nothing where all of them are on the server that carries control, or where
// the trainer reaches all of them by way of that.
func (c *Coordinator) servers(cluster bool) (all []schema.DataServer) {
	if cluster || len(c.config.Keepers) == 1 && c.config.Keepers[0].Server.URL == "" {
		return nil
	}
	for _, k := range c.config.Keepers {
		all = append(all, k.Server)
	}
	return all
}

// waiting is what all shards, and the segments of trainers, waited for when they were last heard of.
func (c *Coordinator) waiting() (all []Waiting) {
	for i := range c.members {
		all = append(all, c.members[i].waiting...)
	}
	for i := range c.keepers {
		all = append(all, c.keepers[i].waiting...)
	}
	return all
}

// lostKeeper ends the job because of a ps that was silent for too long.
func (c *Coordinator) lostKeeper(now time.Time) []Decision {
	for i := range c.keepers {
		if silent := now.Sub(c.keepers[i].seen); silent > c.config.Deadline {
			return c.Fail(c.config.Keepers[i].Member, fmt.Sprintf("%s was last heard %s ago (deadline %s)", c.keeperName(i), rounded(silent), c.config.Deadline))
		}
	}
	return nil
}

// Blind is called in place of Tick while the control server is out of reach, so that nobody can be heard: no clock runs but
// that of the blindness. After the deadline the job ends.
func (c *Coordinator) Blind(now time.Time, server string) []Decision {
	if c.blind.IsZero() {
		c.blind = now
		if !c.ticked.IsZero() {
			c.blind = c.ticked
		}
	}
	c.forgive(now.Sub(c.ticked), now)
	c.ticked = now
	if gone := now.Sub(c.blind); gone > c.config.Deadline {
		return c.Fail(schema.Coordinator, fmt.Sprintf("the control server at %s has been out of reach of the coordinator for %s (deadline %s)", server, rounded(gone), c.config.Deadline))
	}
	return nil
}
