package ps

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// Tick looks at deadlines, and says again what was not heard. What shards wait for is as of their last report.
func (c *Coordinator) Tick(now time.Time) []Decision {
	if pause := c.ticks.Tick(now, c.config.Deadline); pause > 0 {
		c.excuse(pause, now)
	}
	c.blind.End()
	if c.over() {
		return nil
	}
	if d := c.lostShardServer(now); d != nil {
		return d
	}
	var decisions []Decision
	if c.gathers() {
		decisions = c.freePlaces(now)
		c.noteGrowth(now)
		decisions = append(append(decisions, c.waitNoLonger(now)...), c.findUngathered(now)...)
	} else {
		decisions = c.policy.tick(c, now)
	}
	if c.running() {
		decisions = append(decisions, c.tellStalls(now)...)
	}
	if !c.over() {
		decisions = append(append(append(decisions, c.askCheckpoint(now)...), c.assign()...), c.tickLR()...)
		decisions = append(decisions, c.tickCopies(now)...)
	}
	return decisions
}

// excuse moves every deadline by a time in which nobody could be heard.
func (c *Coordinator) excuse(pause time.Duration, now time.Time) {
	for i := range c.members {
		c.members[i].Excuse(pause, now)
		c.members[i].waitedSince.Excuse(pause, now)
		if v := c.members[i].vacancy; v != nil {
			v.Excuse(pause, now)
			v.toldSince.Excuse(pause, now)
		}
	}
	for i := range c.shardServers {
		c.shardServers[i].Excuse(pause, now)
	}
	for i := range c.newcomers.all {
		c.newcomers.all[i].Excuse(pause, now)
	}
	for i := range c.copies.plan {
		c.copies.plan[i].at = c.copies.plan[i].at.Add(pause)
	}
	c.grew.Excuse(pause, now)
}

// lost says that a trainer was silent for too long, and how to say so.
func (c *Coordinator) lost(now time.Time, i int) (string, bool) {
	m := &c.members[i]
	if m.joiner == "" || m.state == slotDone {
		return "", false
	}
	if m.dead {
		return fmt.Sprintf("trainer %s on %s has ended at batch %d", schema.TrainerMember(i), m.host, c.counted(m.batch)),
			true
	}
	why, lost := m.Lost(now, c.config.Deadline)
	return fmt.Sprintf("trainer %s on %s was last seen %s ago at batch %d%s", schema.TrainerMember(i), m.host,
		rounded(m.For(now)), c.counted(m.batch), why), lost
}

// freePlaces takes the places of trainers that were lost before the start: nobody depends on them yet.
func (c *Coordinator) freePlaces(now time.Time) []Decision {
	var decisions []Decision
	for i := range c.members {
		if text, ok := c.lost(now, i); ok {
			c.members[i].become(slotVacant, member{})
			decisions = append(decisions, Decision{Note: text + "; its place is free again", Who: schema.TrainerMember(i)})
		}
	}
	if decisions != nil {
		c.endIfEmpty()
	}
	return decisions
}

// noteGrowth notes that fewer trainers are missing than ever. Whoever takes a place that was left before is not new, so
// that a job gathers for a bounded time.
func (c *Coordinator) noteGrowth(now time.Time) {
	if missing := c.members.missing(); !c.grew.Lasts() || missing < c.fewest || missing == 0 {
		c.grew.Begin(now)
		c.fewest = missing
	}
}

// findUngathered ends a job that has waited for missing trainers for too long, while nobody new has come.
func (c *Coordinator) findUngathered(now time.Time) []Decision {
	missing := c.members.missing()
	if idle := c.grew.For(now); c.gathers() && c.config.StartTimeout > 0 && idle > c.config.StartTimeout {
		return c.Fail(schema.Coordinator,
			fmt.Sprintf("job %s has waited %s for %d of its %d trainers, and no new one has joined (limit %s): start all of "+
				"them within that time, or raise the server's --start-timeout",
				c.config.Job.Name, rounded(idle), missing, len(c.members), c.config.StartTimeout))
	}
	return nil
}

// findLost notes who was silent for too long, and who is back. Of one whom the others cannot do without, lose says what
// becomes.
func (c *Coordinator) findLost(now time.Time, lose func(i int, text string) []Decision) []Decision {
	var decisions []Decision
	for i := range c.members {
		m, name := &c.members[i], schema.TrainerMember(i)
		text, lost := c.lost(now, i)
		if m.vacancy != nil || lost == m.lost() {
			continue
		}
		if lost {
			m.state.transition(slotLost)
		} else {
			m.state.transition(slotActive)
		}
		switch {
		case !lost:
			decisions = append(decisions,
				Decision{Note: fmt.Sprintf("trainer %s on %s is back at batch %d", name, m.host, c.counted(m.batch)),
					Who: name})
		case c.canDoWithout(m):
			decisions = append(decisions, Decision{Note: text + "; the job goes on without it", Who: name})
			c.endIfEmpty()
		default:
			decisions = append(decisions, lose(i, text)...)
			if c.over() {
				return decisions
			}
		}
	}
	return decisions
}

// failFor ends the job because of a trainer, as its policy says.
func (c *Coordinator) failFor(i int, text string) []Decision {
	who := schema.TrainerMember(i)
	if !c.rewinds() {
		return c.Fail(who, text)
	}
	return c.FailBack(who, text+"; "+c.howOn(who))
}

// canDoWithout reports that the job may go on without a trainer that has just ended: nobody waits for another, or it
// has trained, and what was trained is not lost with it. Where a round needs it after all, findSlow will find out.
func (c *Coordinator) canDoWithout(m *member) bool {
	anybody := c.members.anybody()
	return c.policy.goesOn() && anybody || m.complete && (anybody || slices.ContainsFunc(c.members, completed))
}

// slow notes whether rounds wait for a trainer, and since when; it reports that it is too long.
func (c *Coordinator) slow(now time.Time, i int, waiting []schema.Waiting) (overdue bool) {
	m := &c.members[i]
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
	limit, _ := c.stallLimit(i)
	return waited && (since > limit || m.state == slotDone && since > liveness.CutMax || m.lost())
}

// stallLimit returns how long a live trainer may keep a batch waiting, and the flag of the ps that sets it. The
// deadline applies only if others can take over the trainer's lanes without losing anything: a person may evaluate on
// one trainer, or stop it in a debugger, while its heartbeats continue.
func (c *Coordinator) stallLimit(i int) (limit time.Duration, flag string) {
	if c.policy.replacesSlow() && c.valuesThere() && c.members.others(i) {
		return c.config.Deadline, "--deadline"
	}
	return c.config.StallTimeout, "--stall-timeout"
}

// Trainers are told of a stall after stallFirst, then each time the wait is stallGrowth times as long as at the last
// notice, and at least every stallEvery.
const (
	stallFirst  = 5 * time.Second
	stallGrowth = 6
	stallEvery  = 5 * time.Minute
)

// tellStalls tells all trainers which trainer the earliest open round waits for.
func (c *Coordinator) tellStalls(now time.Time) []Decision {
	var decisions []Decision
	for _, name := range firstWaitedFor(c.waiting()) {
		i, ok := c.members.find(name)
		if !ok || !c.members[i].waitedSince.Lasts() {
			continue
		}
		m := &c.members[i]
		waited := m.waitedSince.For(now)
		if waited < max(stallFirst, min(stallGrowth*m.stallTold, m.stallTold+stallEvery)) {
			continue
		}
		m.stallTold = waited
		limit, _ := c.stallLimit(i)
		decisions = append(decisions, Decision{To: schema.All, Control: schema.Control{Stalled: &schema.Stalled{
			Member: name, Host: m.host, Batch: c.counted(m.waitedBatch), WaitedMS: waited.Milliseconds(),
			LimitMS: limit.Milliseconds()}}})
	}
	return decisions
}

// findSlow runs the policy fail for a trainer that sends heartbeats but keeps others waiting, or that has left or was
// lost too early. Of several it names one that the earliest round waits for, since the others may be waiting for that
// one themselves.
func (c *Coordinator) findSlow(now time.Time, waiting []schema.Waiting) []Decision {
	first, slow := firstWaitedFor(waiting), -1
	for i := range c.members {
		name := schema.TrainerMember(i)
		if !c.slow(now, i, waiting) {
			continue
		}
		if slow < 0 || slices.Contains(first, name) && !slices.Contains(first, schema.TrainerMember(slow)) {
			slow = i
		}
	}
	if slow < 0 {
		return nil
	}
	text := c.sayWaited(now, slow, "batch")
	if m := &c.members[slow]; m.lost() || m.state != slotDone && c.gains() {
		return c.failFor(slow, text)
	}
	return c.Fail(schema.TrainerMember(slow), text) // another run would wait for it, too
}

// gains reports whether another run would begin at a later version than this one did. So a trainer that was slow, or
// seemed to be alive, costs what has not become durable since, and one that is always slow ends the job.
func (c *Coordinator) gains() bool { return c.checkpoints.durable.version > c.first() }

// sayWaited says why it is too late for a trainer that others wait for. What they wait for is named by a word.
func (c *Coordinator) sayWaited(now time.Time, i int, what string) string {
	m := &c.members[i]
	who, needed := fmt.Sprintf("trainer %s on %s", schema.TrainerMember(i), m.host),
		fmt.Sprintf("and %s %d needs its lanes", what, c.counted(m.waitedBatch))
	switch {
	case m.state == slotDone && m.why != "":
		return fmt.Sprintf("%s has left, %s: %s", who, needed, m.why)
	case m.state == slotDone:
		return fmt.Sprintf("%s has left, %s: trainers must run the same number of batches", who, needed)
	case m.lost():
		return fmt.Sprintf("%s was last seen %s ago, %s", who, rounded(m.For(now)), needed)
	}
	limit, flag := c.stallLimit(i)
	return fmt.Sprintf("%s has kept %s %d waiting for %s (limit %s, %s of the ps): it is alive but sends no gradients",
		who, what, c.counted(m.waitedBatch), rounded(m.waitedSince.For(now)), limit, flag)
}

// firstWaitedFor are the trainers that the earliest round of all shards waits for.
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

// before orders what two shards wait for as trainers send it.
func before(w, v *schema.Waiting) bool {
	return cmp.Or(cmp.Compare(w.Batch, v.Batch), cmp.Compare(w.Bucket, v.Bucket), cmp.Compare(w.Chunk, v.Chunk)) < 0
}

// waitedFor says at which batch any shard waits for a trainer; the earliest, should they differ.
func waitedFor(waiting []schema.Waiting, name schema.Member) (batch schema.Batch, ok bool) {
	for _, w := range waiting {
		if slices.Contains(w.Members, name) && (!ok || w.Batch < batch) {
			batch, ok = w.Batch, true
		}
	}
	return batch, ok
}
