package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// shardServer is what a coordinator knows of a shard server of its job.
type shardServer struct {
	liveness.Peer                  // heard of by reports
	heard         bool             // it has reported
	ready         bool             // version 0 is in place on its shards
	serial        int              // of the last assignment that it has carried out
	waiting       []schema.Waiting // what its shards waited for when it last reported
	writing       bool             // a shard was at a checkpoint then

	generation schema.Generation // that its shards go by; 0: the first
	done       schema.Version    // batches that were complete on them when they began to
}

// Assign tells every shard server its shards. It is the first that a coordinator has to say, and said again, by Tick,
// to those who have not carried it out.
func (c *Coordinator) Assign(now time.Time) []Decision {
	for i := range c.shardServers {
		c.shardServers[i].Begin(now)
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
	for i := range c.shardServers {
		if c.shardServers[i].serial != c.serial {
			decisions = append(decisions, c.assignTo(i))
		}
	}
	return decisions
}

func (c *Coordinator) assignTo(i int) Decision {
	assign := &schema.Assign{Job: c.config.Job, Serial: c.serial, Shards: c.shards,
		Own: c.config.ShardServers[i].Server.Shards, Cluster: []schema.Member{},
		DeadlineMS: c.config.Deadline.Milliseconds(), WindowBytes: c.config.WindowBytes, LR: c.lr.assigned(),
		Checkpoints: c.checkpointsAssigned(), Since: c.since(), Incarnation: c.config.ShardServers[i].Incarnation,
		Made: c.shardServers[i].heard}
	if c.config.Resume != nil {
		assign.Resume = c.config.Resume.ID
	}
	for m := range c.members {
		if c.members[m].cluster {
			assign.Cluster = append(assign.Cluster, schema.TrainerMember(m))
		}
		if c.onLoss == lossExclude && (c.members[m].state == slotDone || c.members[m].lost()) {
			assign.Gone = append(assign.Gone, schema.TrainerMember(m))
		}
	}
	return Decision{To: c.config.ShardServers[i].Member, Control: schema.Control{Assign: assign}}
}

// unheard is the first ps that has not been heard of yet; -1 where all have.
func (c *Coordinator) unheard() int {
	return slices.IndexFunc(c.shardServers, func(s shardServer) bool { return !s.heard })
}

// UnheardServer names the first ps that has not been heard of yet.
func (c *Coordinator) UnheardServer() string { return c.shardServerName(c.unheard()) }

// Report takes what a ps says of its shards, or a trainer of the rounds that it adds up. It reports whether the
// sender has any.
func (c *Coordinator) Report(now time.Time, from schema.Member, r *schema.Report) ([]Decision, bool) {
	i := c.shardServerOf(from)
	if i < 0 {
		return nil, c.reportOfTrainer(from, r)
	}
	s := &c.shardServers[i]
	behind := r.Serial > s.serial && r.Serial < c.serial // it has carried out what is no longer the latest
	s.Begin(now)
	s.heard, s.ready, s.serial, s.waiting, s.writing = true, r.Ready, r.Serial, r.Waiting, r.Writing
	c.heardShards()
	rose := r.Generation > s.generation
	s.generation, s.done = r.Generation, r.Done
	if behind {
		return []Decision{c.assignTo(i)}, true
	}
	decisions := append(append(c.start(now), c.agreeLR()...), c.partsWritten(r.Parts)...)
	if rose && c.IsRunning() {
		before := c.serial
		decisions = append(decisions, c.offer(now)...)
		if c.serial != before {
			decisions = append(decisions, c.assign()...)
		}
	}
	return decisions, true
}

// reportOfTrainer takes what a trainer says of the rounds that it adds up for all. It is one owner, so it waits in one
// batch at most.
func (c *Coordinator) reportOfTrainer(from schema.Member, r *schema.Report) bool {
	i, ok := c.members.find(from)
	if !ok || !c.plan.Reduces(schema.ByTrainers) {
		return false
	}
	c.members[i].waiting = r.Waiting[:min(1, len(r.Waiting))]
	return true
}

// ShardServerFailed ends the job because a ps, or one of its shards, cannot go on. It reports whether the ps has any.
func (c *Coordinator) ShardServerFailed(from schema.Member, f *schema.Failed) ([]Decision, bool) {
	i := c.shardServerOf(from)
	if i < 0 {
		return nil, false
	}
	text := f.Text
	if len(c.shardServers) > 1 {
		text = fmt.Sprintf("%s: %s", c.shardServerName(i), f.Text)
	}
	how := cmp.Or(f.End, schema.EndFailed)
	if f.Back {
		return c.EndBack(how, f.Member, text), true
	}
	return c.end(how, f.Member, text), true
}

// ShardServerGone ends the job because a ps has no shards of it any more; how says why.
func (c *Coordinator) ShardServerGone(i int, how string) []Decision {
	return c.FailBack(c.config.ShardServers[i].Member, c.shardServerName(i)+" "+how)
}

func (c *Coordinator) shardServerOf(from schema.Member) int {
	return slices.IndexFunc(c.config.ShardServers, func(s ShardServer) bool { return s.Member == from })
}

// shardServerName names a ps for people.
func (c *Coordinator) shardServerName(i int) string {
	d := &c.config.ShardServers[i].Server
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
	for i := range c.shardServers {
		if s := &c.shardServers[i]; !s.ready || s.serial != c.serial {
			return false
		}
	}
	return true
}

// servers is where a trainer finds the shards: nothing where all of them are on the server that carries control, or
// where the trainer reaches all of them by way of that.
func (c *Coordinator) servers(cluster bool) (all []schema.DataServer) {
	if cluster || len(c.config.ShardServers) == 1 && c.config.ShardServers[0].Server.URL == "" {
		return nil
	}
	for _, s := range c.config.ShardServers {
		all = append(all, s.Server)
	}
	return all
}

// waiting is what all shards, and trainers that reduce, waited for when they were last heard of.
func (c *Coordinator) waiting() (all []schema.Waiting) {
	for i := range c.members {
		all = append(all, c.members[i].waiting...)
	}
	for i := range c.shardServers {
		all = append(all, c.shardServers[i].waiting...)
	}
	return all
}

// lostShardServer ends the job because of a ps that was silent for too long.
func (c *Coordinator) lostShardServer(now time.Time) []Decision {
	for i := range c.shardServers {
		s := &c.shardServers[i]
		if why, lost := s.Lost(now, c.config.Deadline); lost {
			return c.FailBack(c.config.ShardServers[i].Member,
				fmt.Sprintf("%s was last heard %s ago%s", c.shardServerName(i), liveness.Rounded(s.For(now)), why))
		}
	}
	return nil
}

// Blind is called in place of Tick while the control server is out of reach, so that nobody can be heard: no clock
// runs but that of the blindness. After the deadline the job ends.
func (c *Coordinator) Blind(now time.Time, server string) []Decision {
	since := c.ticks.Since(now)
	if !c.blind.Lasts() {
		c.blind.Begin(now.Add(-since))
	}
	c.excuse(since, now)
	c.ticks.Tick(now, c.config.Deadline)
	if gone := c.blind.For(now); gone > c.config.Deadline {
		return c.FailBack(schema.Coordinator,
			fmt.Sprintf("the control server at %s has been out of reach of the coordinator for %s (deadline %s)", server,
				liveness.Rounded(gone), c.config.Deadline))
	}
	return nil
}
