package coordinator

import (
	"fmt"
	"slices"
	"time"

	"gradbus/internal/liveness"
	"gradbus/internal/planted"
	"gradbus/schema"
)

// What follows for the slot of a lost trainer, in a job whose trainers can be replaced
// (schema.Job.TakesOver).
//
//  1. The slot is vacant. The generation rises, and an assignment tells the shards: they refuse frames of its trainer
//     from then on, and report how many batches are complete.
//  2. Once all shard servers have reported, the slot is given to a newcomer that waits, or to a trainer of the job,
//     which computes its lanes besides its own. That trainer begins with the batch under way, and sends what is missing
//     of it.
//  3. A trainer has the slot when a heartbeat of its generation comes.
//
// A newcomer that finds no vacant slot gets one whose lanes another trainer computes besides its own.

// Died notes that the process of a trainer has ended: the trainer is lost without doubt.
func (c *Coordinator) Died(now time.Time, from schema.Member, generation schema.Generation) []Decision {
	i, ok := c.members.find(from)
	if !ok || c.state.IsOver() || c.members[i].state == slotDone || c.members[i].vacancy != nil ||
		generation != c.members[i].generation {
		return nil
	}
	m := &c.members[i]
	m.dead = true // the next tick finds it, if others can do without it or the job ends
	if c.state != Running || m.complete || !c.restarts() && !c.detector.replaces(c.members) {
		return nil
	}
	text, _ := c.detector.lost(now, c.members, i)
	return c.withAssignment(c.lose(now, i, text))
}

// lose decides what follows for the slot of a lost or slow trainer. While values are missing that the job begins with,
// every trainer has a part in them, and each loss ends the job.
func (c *Coordinator) lose(now time.Time, i int, text string) []Decision {
	switch m := &c.members[i]; {
	case c.detector.replaces(c.members):
		return c.vacate(now, i, text)
	case c.detector.excludes(c.members):
		if m.state != slotLost {
			m.state.transition(slotLost)
		}
		if c.members.anyHere() {
			c.serial++
			return []Decision{{Note: text + "; the job goes on without it", Who: schema.TrainerMember(i)}}
		}
	}
	return c.failFor(i, text)
}

// failFor ends the job because of a trainer, as its policy says.
func (c *Coordinator) failFor(i int, text string) []Decision {
	who := schema.TrainerMember(i)
	n := c.members.here(who)
	switch {
	case !c.restarts():
		return c.Fail(who, text)
	case c.onLoss == lossRescale && n > 0:
		text += fmt.Sprintf("; the job goes back to the newest durable version, with %d of %d trainers", n,
			c.admission.places())
	default:
		text += "; the others come back, and with a new one go on from the newest durable version"
	}
	return c.Restart("", who, text)
}

// findLost notes which trainers were silent for too long, and which are back, and decides what follows.
func (c *Coordinator) findLost(now time.Time) (decisions []Decision) {
	for i := range c.members {
		m, name := &c.members[i], schema.TrainerMember(i)
		text, lost := c.detector.lost(now, c.members, i)
		if m.vacancy != nil || lost == m.lost() || m.lost() && c.detector.excludes(c.members) {
			continue
		}
		if !lost {
			m.state.transition(slotActive)
			decisions = append(decisions, Decision{Note: fmt.Sprintf("trainer %s on %s is back at batch %d", name, m.host,
				c.config.Job.Counted(m.batch)), Who: name})
			continue
		}
		m.state.transition(slotLost)
		switch {
		case c.state.Gathers(): // no other trainer depends on it yet
			m.become(slotVacant, member{})
			decisions = append(decisions, Decision{Note: text + "; its place is free again", Who: name})
			c.endIfEmpty()
		case !c.detector.excludes(c.members) && c.detector.canDoWithout(c.members, m):
			decisions = append(decisions, Decision{Note: text + "; the job goes on without it", Who: name})
			c.endIfEmpty()
		default:
			decisions = append(decisions, c.lose(now, i, text)...)
		}
		if c.state.IsOver() {
			return decisions
		}
	}
	return decisions
}

// findSlow finds a trainer that sends heartbeats but keeps others waiting, or that has left or was lost before all
// rounds that need it were closed, and decides what follows. A trainer that has completed the job cannot be replaced.
func (c *Coordinator) findSlow(now time.Time, waiting []schema.Waiting) []Decision {
	i := c.detector.slowest(now, c.members, waiting)
	if i < 0 {
		return nil
	}
	m, name, text := &c.members[i], schema.TrainerMember(i), c.detector.describe(now, c.members, i)
	switch first := firstWaitedFor(waiting); {
	case c.detector.replaces(c.members) && m.here():
		if len(first) > 0 && !slices.Contains(first, name) {
			return nil // it may be waiting for that one itself
		}
		if b := m.waitedBatch; !c.detector.gainsByVacating(b, len(c.members)) {
			return c.Fail(name, fmt.Sprintf("no trainer computes batch %d within the deadline of %s: raise the server's "+
				"--deadline", c.config.Job.Counted(b), c.config.Deadline))
		}
		return c.lose(now, i, text)
	case c.detector.replaces(c.members) && m.lost(), c.detector.excludes(c.members):
		return c.lose(now, i, text)
	case m.lost(), m.here() && c.checkpoints.gains():
		// A live trainer restarts the job only if the next run begins at a later version, so one that is always slow ends it.
		return c.failFor(i, text)
	}
	return c.Fail(name, text) // another run would wait for it, too
}

// vacate takes the slot of a trainer from it. The caller tells shard servers.
func (c *Coordinator) vacate(now time.Time, i int, text string) []Decision {
	m, name := &c.members[i], schema.TrainerMember(i)
	c.generation++
	if planted.Is(planted.ReuseGeneration) {
		c.generation = max(c.generation-1, c.config.Generation+1)
	}
	m.become(slotVacant, member{joiner: name, host: m.host, generation: c.generation, batch: m.batch, ended: m.ended,
		by: -1, vacancy: &vacancy{why: text, told: -1}})
	m.vacancy.Begin(now)
	for k := range c.members { // it takes over no other slot
		if v := c.members[k].vacancy; v != nil && v.told == i {
			v.told = -1
		}
	}
	c.lr.vacated(i)
	note := Decision{Note: fmt.Sprintf("%s; generation %d begins without it", text, c.generation), Who: name}
	c.serial++
	if c.state == Running {
		return append([]Decision{note}, c.record.note(c.members.voters())...)
	}
	return []Decision{note}
}

// goOnSoon describes what a job without trainers waits for if its versions are written: see resumeWindow.
const goOnSoon = "new ones that come within a minute go on from the newest durable version, if any, later ones with " +
	"--resume"

// offer gives vacant slots to trainers, once all shard servers know that they are vacant. The caller tells shard
// servers what has changed.
func (c *Coordinator) offer(now time.Time) (decisions []Decision) {
	if c.successor.lacksQuorum(c.members.voters()) {
		return nil
	}
	for i := range c.members {
		v := c.members[i].vacancy
		switch {
		case v == nil || !c.shardServers.risen(c.members[i].generation) || !c.record.mayReassign(i):
		case v.newcomer != "": // if it is gone by now, its silence shows it
			note := fmt.Sprintf("trainer %s joined from %s at batch %d, after %s", schema.TrainerMember(i), v.join.Host,
				c.config.Job.Counted(c.shardServers.done(c.config.Resume.version())), liveness.Rounded(v.For(now)))
			decisions = append(decisions, c.seat(now, i, c.members[i].generation, v.newcomer, v.join, note)...)
		case c.onLoss == lossAwait:
		case v.told >= 0 && v.toldSince.For(now) > declineAfter: // it cannot, or does nothing now
			decisions = append(decisions, c.vacate(now, i, fmt.Sprintf("%s has not taken the place of %s",
				schema.TrainerMember(v.told), schema.TrainerMember(i)))...) // the shards hear of it first
			next := c.members[i].vacancy
			next.why, next.declined, next.Silence = v.why, append(v.declined, v.told), v.Silence
		default:
			if v.told < 0 && c.members.choose(now, i) && c.members[v.told].cluster {
				c.members[i].cluster = true
				c.serial++
			}
			if v.told >= 0 {
				decisions = append(decisions, Decision{To: schema.TrainerMember(v.told), Control: c.joined(i).Control})
			}
		}
	}
	return decisions
}

// declineAfter is the time for which a trainer may not take over a slot that it was asked to, before another one is
// asked.
const declineAfter = 5 * time.Second

// joinRunning finds a slot for a newcomer in a running job, or refuses it.
func (c *Coordinator) joinRunning(now time.Time, from schema.Member, j *schema.Join) []Decision {
	switch {
	case c.restarts():
		return c.joinNextRun(now, from, j)
	case !c.detector.replaces(c.members): // a slot that no trainer has had in this run, if no round has needed it
		i := slices.IndexFunc(c.members, func(m member) bool { return m.state == slotLost && m.generation == 0 })
		if i < 0 || c.onLoss == lossExclude {
			return c.Refuse(from, c.admission.full(c.members))
		}
		return c.withAssignment(c.seat(now, i, c.generation, from, j, fmt.Sprintf("trainer %s joined from %s at batch %d",
			schema.TrainerMember(i), j.Host, c.config.Job.Counted(c.config.Resume.version()))))
	}
	i := c.members.slotFor(from, j)
	if i < 0 {
		return c.Refuse(from, c.admission.fullFor(now, c.members, j))
	}
	var decisions []Decision
	m := &c.members[i]
	by := m.by
	if m.vacancy != nil {
		by = m.vacancy.told
	}
	if m.vacancy == nil || by >= 0 { // the trainer that computes its lanes, or has begun to, stops
		decisions = c.vacate(now, i, fmt.Sprintf("%s computes lanes of %s no more, which a new trainer on %s will",
			schema.TrainerMember(by), schema.TrainerMember(i), j.Host))
	}
	if n := m.vacancy.newcomer; n != "" && n != from {
		c.admission.forget(n)
	}
	m.vacancy.newcomer, m.vacancy.join = from, j
	return c.withAssignment(append(decisions, c.offer(now)...))
}

// TickEvery is the time between two calls of Tick.
const TickEvery = time.Second

// Tick checks deadlines, and repeats what was not heard. What shards wait for is as of their last report.
func (c *Coordinator) Tick(now time.Time) []Decision {
	if pause := c.ticks.Tick(now, c.config.Deadline); pause > 0 {
		c.excuse(pause, now)
	}
	c.blind.End()
	if c.state.IsOver() {
		return nil
	}
	if i, why := c.shardServers.lost(now, c.config.Deadline); i >= 0 {
		return c.ShardServerGone(i, why)
	}
	decisions := c.findLost(now)
	if c.state.Gathers() {
		decisions = append(decisions, c.tickGathering(now)...)
	} else {
		decisions = append(decisions, c.tickRunning(now)...)
	}
	if c.state.IsOver() {
		return decisions
	}
	c.assigned = 0 // what a ps has not carried out is said again
	decisions = c.withAssignment(decisions)
	decisions = append(append(decisions, c.lr.remind()...), c.agreeLR()...)
	if c.state == Running {
		decisions = append(decisions, c.replicate(c.replicas.tick(now, c.started))...)
		decisions = append(decisions, c.record.note(c.members.voters())...)
	}
	return c.withAssignment(decisions)
}

// tickRunning checks deadlines of a running job, and requests a further version if one is due. The assignments that
// follow name it.
func (c *Coordinator) tickRunning(now time.Time) (decisions []Decision) {
	waiting := c.shardServers.waiting(c.members)
	if !c.state.IsOver() && c.onLoss != lossContinue {
		decisions = c.findSlow(now, waiting)
	}
	if !c.state.IsOver() && c.detector.replaces(c.members) {
		i, why := c.members.abandoned(now, c.config.Deadline)
		switch {
		case c.successor.lacksQuorum(c.members.voters()): // the job waits until it is known where it continues
		case i >= 0 && !c.members.anyHere() && c.config.Checkpoints != nil:
			decisions = append(decisions, c.Restart("", schema.TrainerMember(i), why+"; "+goOnSoon)...)
		case i >= 0:
			decisions = append(decisions, c.Fail(schema.TrainerMember(i), why)...)
		default:
			decisions = append(decisions, c.offer(now)...)
		}
	}
	if !c.state.IsOver() && c.onLoss == lossRescale {
		decisions = append(decisions, c.rescale(now)...)
	}
	if c.state.IsOver() {
		return decisions
	}
	decisions = append(decisions, c.detector.tellStalls(now, c.members, waiting)...)
	wanted := len(c.newcomers.all)+len(c.members.leaving()) > 0 && c.checkpoints.durable.version < c.newcomers.version
	asked, notes := c.checkpoints.tick(now, c.members, c.shardServers.isWriting(), wanted)
	if asked {
		c.serial++
	}
	return append(decisions, notes...)
}

// Blind is called in place of Tick while the control server is out of reach, so that no trainer can be heard: no clock
// runs but that of the blindness. After the deadline the job ends.
func (c *Coordinator) Blind(now time.Time, server string) []Decision {
	since := c.ticks.Since(now)
	if !c.blind.Lasts() {
		c.blind.Begin(now.Add(-since))
	}
	c.excuse(since, now)
	c.ticks.Tick(now, c.config.Deadline)
	if gone := c.blind.For(now); gone > c.config.Deadline {
		return c.Restart("", schema.Coordinator,
			fmt.Sprintf("the control server at %s has been out of reach of the coordinator for %s (deadline %s)", server,
				liveness.Rounded(gone), c.config.Deadline))
	}
	return nil
}

// excuse moves every deadline by a time in which no member could be heard.
func (c *Coordinator) excuse(pause time.Duration, now time.Time) {
	c.members.excuse(pause, now)
	for i := range c.shardServers {
		c.shardServers[i].Excuse(pause, now)
	}
	c.newcomers.excuse(pause, now)
	c.replicas.excuse(pause)
	c.gathering.grew.Excuse(pause, now)
}
