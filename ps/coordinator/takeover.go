package coordinator

import (
	"fmt"
	"slices"
	"strings"
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

// waits reports whether a lost trainer is replaced only by a new process.
func (c *Coordinator) waits() bool { return c.config.Job.Policy == schema.PolicyWait }

// takesOver reports whether lanes of a lost trainer may be taken over now.
func (c *Coordinator) takesOver() bool {
	return c.onLoss == lossTakeOver && c.detector.hasValues(c.members)
}

// findLostAndSlow looks for trainers of a running job that are lost or keep others waiting, and does what follows.
// While values are missing that the job begins with, every trainer has a part in them, and each loss ends the job.
func (c *Coordinator) findLostAndSlow(now time.Time) []Decision {
	switch {
	case c.onLoss == lossContinue:
		return c.findLost(now, c.failFor)
	case c.onLoss == lossExclude && c.detector.hasValues(c.members):
		return c.excludeLost(now)
	case c.takesOver():
		return c.replaceLost(now)
	}
	decisions := c.findLost(now, c.failFor)
	if !c.IsOver() {
		decisions = append(decisions, c.findSlow(now, c.waiting())...)
	}
	if !c.IsOver() && c.onLoss == lossRestart {
		decisions = append(decisions, c.rescale(now)...)
	}
	return decisions
}

// excludeLost notes trainers that are lost, or have kept a group waiting for too long, and tells the shards. The job
// fails when no other trainer is left.
func (c *Coordinator) excludeLost(now time.Time) []Decision {
	var decisions []Decision
	waiting := c.waiting()
	for i := range c.members {
		m, name := &c.members[i], schema.TrainerMember(i)
		if m.state == slotDone || m.lost() {
			continue
		}
		text, lost := c.detector.lost(now, c.members, i)
		if c.detector.slow(now, c.members, i, waiting) && !lost {
			lost, text = true, c.detector.describe(now, c.members, i, "update")
		}
		if !lost {
			continue
		}
		m.state.transition(slotLost)
		if !c.members.anybody() {
			return append(decisions, c.Fail(name, text)...)
		}
		decisions = append(decisions, Decision{Note: text + "; the job goes on without it", Who: name})
	}
	if decisions != nil {
		c.serial++ // Tick tells the shards
	}
	return decisions
}

// vacancy is what a vacant slot has.
type vacancy struct {
	liveness.Silence               // since when
	why              string        // why its trainer has lost it
	newcomer         schema.Member // for which the slot is kept, by the name it joins under; empty: none
	join             *schema.Join  // of the newcomer
	toldSince        liveness.Silence
	declined         []int // trainers that were asked to take it over and have not
	told             int   // the trainer that was asked to take it over; -1: none
}

// keptFor reports whether the slot is kept for a newcomer, perhaps under another name.
func (v *vacancy) keptFor(from schema.Member, j *schema.Join) bool {
	return v != nil && v.newcomer != "" && (v.newcomer == from || j.Key != 0 && v.join.Key == j.Key)
}

// replaceLost has the slots of lost and slow trainers taken over: by each other, or, under schema.PolicyWait, by new
// processes alone.
func (c *Coordinator) replaceLost(now time.Time) []Decision {
	decisions := c.findLost(now, func(i int, text string) []Decision { return c.vacate(now, i, text) })
	if c.IsOver() {
		return decisions
	}
	decisions = append(decisions, c.findWaitedFor(now)...)
	if d := c.findAbandoned(now); d != nil {
		return append(decisions, d...)
	}
	return append(decisions, c.offer(now)...)
}

// Outdated reports whether a sender has lost its slot.
func (c *Coordinator) Outdated(from schema.Member, g schema.Generation) bool {
	i, ok := c.members.find(from)
	return ok && g < c.members[i].generation
}

// Died notes that the process of a trainer has ended: the trainer is lost without doubt.
func (c *Coordinator) Died(now time.Time, from schema.Member, generation schema.Generation) []Decision {
	i, ok := c.members.find(from)
	if !ok || c.IsOver() || c.members[i].state == slotDone || c.members[i].vacancy != nil ||
		generation != c.members[i].generation {
		return nil
	}
	m := &c.members[i]
	m.dead = true // the next tick finds it, if others can do without it or the job ends
	text, _ := c.detector.lost(now, c.members, i)
	switch {
	case !c.IsRunning() || m.complete:
		return nil
	case c.restarts():
		return c.failFor(i, text)
	case !c.takesOver():
		return nil
	}
	return append(c.vacate(now, i, text), c.assign()...)
}

// vacate takes the slot of a trainer from it. The caller tells shard servers, by assign.
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
	if c.IsRunning() {
		return append([]Decision{note}, c.record.note(c.members.voters())...)
	}
	return []Decision{note}
}

// findWaitedFor vacates the slots of trainers that keep others waiting for too long, or that were lost while no round
// needed them. A trainer that has completed the job cannot be replaced.
func (c *Coordinator) findWaitedFor(now time.Time) []Decision {
	waiting := c.waiting()
	first := firstWaitedFor(waiting)
	for i := range c.members {
		m, name := &c.members[i], schema.TrainerMember(i)
		if !c.detector.slow(now, c.members, i, waiting) || m.vacancy != nil {
			continue
		}
		switch text := c.detector.describe(now, c.members, i, "batch"); {
		case m.state == slotDone:
			return c.findSlow(now, waiting)
		case m.lost():
			return c.vacate(now, i, text)
		case len(first) == 0 || slices.Contains(first, name):
			if b := m.waitedBatch; !c.detector.gainsByVacating(b, len(c.members)) {
				return c.Fail(name, fmt.Sprintf("no trainer computes batch %d within the deadline of %s: raise the server's "+
					"--deadline", c.config.Job.Counted(b), c.config.Deadline))
			}
			return c.vacate(now, i, text)
		}
	}
	return nil
}

// goOnSoon is what becomes of a job without trainers whose versions are written down: see resumeWindow.
const goOnSoon = "new ones that come within a minute go on from the newest durable version, if any, later ones with " +
	"--resume"

// findAbandoned ends the job if a slot that a round needs was vacant for too long. A job that may have continued with
// the lost trainers elsewhere waits until that is known.
func (c *Coordinator) findAbandoned(now time.Time) []Decision {
	if c.Outnumbered() {
		return nil
	}
	for i := range c.members {
		// if all others are done, no round needs the slot
		if v := c.members[i].vacancy; v != nil && v.For(now) > c.config.Deadline &&
			(c.members[i].waitedSince.Lasts() || !c.members.anybody()) {
			why := fmt.Sprintf("%s; and nobody has taken its place within %s", v.why, liveness.Rounded(v.For(now)))
			if !c.members.anybody() && c.config.Checkpoints != nil {
				return c.FailBack(schema.TrainerMember(i), why+"; "+goOnSoon)
			}
			return c.Fail(schema.TrainerMember(i), why)
		}
	}
	return nil
}

// StandsBy notes the URL at which the job continues when this ps is lost. It reports whether trainers do not know the
// URL yet.
func (c *Coordinator) StandsBy(url string) (moved bool) {
	moved = url != c.standby.url
	c.standby.url = url
	return moved
}

// StandsNoMore notes that no other ps continues the job: the one that could have has left, or an operator says that it
// has ended.
func (c *Coordinator) StandsNoMore() { c.standby = standbyAt{} }

// StandbySilent notes that the ps with the replica is not heard any more. It may continue the job from now on, until it
// confirms that it has heard this one again.
func (c *Coordinator) StandbySilent() { c.standby.becomesSilent(c.replicas.serial) }

// TrainersOn returns how many trainers of the job are on the host of a process, as schema.Join names both, and how many
// there are.
func (c *Coordinator) TrainersOn(process string) (there, all int) {
	name, _, _ := strings.Cut(process, " (")
	for i := range c.members {
		if m := &c.members[i]; m.here() && m.by < 0 {
			all++
			if host, _, _ := strings.Cut(m.host, " ("); host == name {
				there++
			}
		}
	}
	return there, all
}

// StandbyURL returns where the job continues when this ps is lost; empty: at no other ps.
func (c *Coordinator) StandbyURL() string { return c.standby.url }

// Outnumbered reports whether the replica's ps is not heard and fewer than half of the voters that it may know are
// here: the others may continue the job there.
func (c *Coordinator) Outnumbered() bool {
	return c.standby.silent && c.standby.url != "" && c.standby.lacksQuorum(c.members.voters())
}

// offer gives vacant slots to trainers, once all shard servers know that they are vacant. The caller tells shard
// servers what has changed, by assign.
func (c *Coordinator) offer(now time.Time) (decisions []Decision) {
	if c.Outnumbered() {
		return nil
	}
	for i := range c.members {
		v := c.members[i].vacancy
		if v == nil || !c.shardServers.risen(c.members[i].generation) || !c.record.mayReassign(i) {
			continue
		}
		if v.newcomer != "" {
			decisions = append(decisions, c.seat(now, i)...)
			continue
		}
		if c.waits() {
			continue
		}
		if v.told >= 0 && v.toldSince.For(now) > declineAfter { // it cannot, or does nothing now
			decisions = append(decisions, c.decline(now, i)...)
			continue // the shards hear of it first
		}
		if v.told < 0 {
			if v.told = c.members.substitute(v.declined); v.told < 0 { // all were asked: they may have been busy
				v.declined = nil
				v.told = c.members.substitute(nil)
			}
			v.toldSince.Begin(now)
			if v.told >= 0 && c.members[v.told].cluster {
				c.members[i].cluster = true
				c.serial++
			}
		}
		if v.told >= 0 {
			joined := c.joined(i).Control.Joined
			decisions = append(decisions, Decision{To: schema.TrainerMember(v.told),
				Control: schema.Control{Joined: joined}})
		}
	}
	return decisions
}

// declineAfter is how long a trainer may leave a slot that it was asked to take over, before another one is asked.
const declineAfter = 5 * time.Second

// decline takes a slot from the trainer that was asked to take it over and has not: it is too late for that then.
func (c *Coordinator) decline(now time.Time, i int) []Decision {
	v, name := c.members[i].vacancy, schema.TrainerMember(i)
	declined, since := append(v.declined, v.told), v.Silence
	decisions := c.vacate(now, i, fmt.Sprintf("%s has not taken the place of %s", schema.TrainerMember(v.told), name))
	n := c.members[i].vacancy
	n.why, n.declined, n.Silence = v.why, declined, since
	return decisions
}

// done returns how many batches are complete at least.
func (c *Coordinator) done() schema.Version {
	return max(c.shardServers.done(), c.config.Resume.version())
}

// taken notes that the trainer that was asked to take over a slot has it.
func (c *Coordinator) taken(now time.Time, i int) []Decision {
	m, name := &c.members[i], schema.TrainerMember(i)
	v := m.vacancy
	if v == nil || v.told < 0 {
		return nil
	}
	by := &c.members[v.told]
	m.become(slotJoining, member{joiner: name, host: by.host, process: by.process, generation: m.generation, by: v.told,
		batch: m.batch, cluster: m.cluster})
	m.Begin(now)
	return []Decision{{Who: name, Note: fmt.Sprintf("lanes of %s are computed by %s, after %s", name,
		schema.TrainerMember(v.told), liveness.Rounded(v.For(now)))}}
}

// joinRunning finds a slot for a newcomer in a running job, or refuses it.
func (c *Coordinator) joinRunning(now time.Time, from schema.Member, j *schema.Join) []Decision {
	switch {
	case c.restarts():
		return c.joinNextRun(now, from, j)
	case !c.takesOver():
		return c.joinUntaken(now, from, j)
	}
	at, kept := -1, func(i int) bool { return c.members[i].vacancy.keptFor(from, j) }
	for i := range c.members {
		m := &c.members[i]
		free := m.vacancy != nil && (m.vacancy.newcomer == "" || kept(i)) || m.here() && m.by >= 0
		if !free || j.Wanted != "" && j.Wanted != schema.TrainerMember(i) {
			continue
		}
		if at < 0 || kept(i) || !kept(at) && m.vacancy != nil && c.members[at].vacancy == nil {
			at = i
		}
	}
	if at < 0 {
		return c.Refuse(from, c.admission.fullFor(now, c.members, j))
	}
	var decisions []Decision
	m := &c.members[at]
	name := schema.TrainerMember(at)
	by := m.by
	if m.vacancy != nil {
		by = m.vacancy.told
	}
	if m.vacancy == nil || by >= 0 { // the trainer that computes its lanes, or has begun to, stops
		decisions = c.vacate(now, at, fmt.Sprintf("%s computes lanes of %s no more, which a new trainer on %s will",
			schema.TrainerMember(by), name, j.Host))
	}
	if n := m.vacancy.newcomer; n != "" && n != from {
		c.admission.forget(n)
	}
	m.vacancy.newcomer, m.vacancy.join = from, j
	return append(append(decisions, c.offer(now)...), c.assign()...)
}

// joinUntaken gives a newcomer a slot that no trainer has had in this run, if no round has needed it.
func (c *Coordinator) joinUntaken(now time.Time, from schema.Member, j *schema.Join) []Decision {
	i := slices.IndexFunc(c.members, func(m member) bool { return m.state == slotLost && m.generation == 0 })
	if i < 0 || c.onLoss == lossExclude {
		return c.Refuse(from, c.admission.full(c.members))
	}
	d := c.seatAt(now, i, c.generation, from, j)
	c.members[i].state.transition(slotSyncing)
	d.Note = fmt.Sprintf("trainer %s joined from %s at batch %d", d.Who, j.Host,
		c.config.Job.Counted(c.config.Resume.version()))
	return c.routed(i, d)
}

// seat gives a vacant slot to the newcomer that it is kept for. If that is gone by now, its silence shows it.
func (c *Coordinator) seat(now time.Time, i int) []Decision {
	m, v := &c.members[i], c.members[i].vacancy
	d := c.seatAt(now, i, m.generation, v.newcomer, v.join)
	m.state.transition(slotSyncing)
	d.Note = fmt.Sprintf("trainer %s joined from %s at batch %d, after %s", d.Who, m.host, c.config.Job.Counted(c.done()),
		liveness.Rounded(v.For(now)))
	if m.cluster {
		c.serial++
	}
	return []Decision{d}
}

// TickEvery is the time between two calls of Tick.
const TickEvery = time.Second

// Tick checks deadlines, and repeats what was not heard. What shards wait for is as of their last report.
func (c *Coordinator) Tick(now time.Time) []Decision {
	if pause := c.ticks.Tick(now, c.config.Deadline); pause > 0 {
		c.excuse(pause, now)
	}
	c.blind.End()
	if c.IsOver() {
		return nil
	}
	if i, why := c.shardServers.lost(now, c.config.Deadline); i >= 0 {
		return c.ShardServerGone(i, why)
	}
	var decisions []Decision
	if c.Gathers() {
		decisions = c.freePlaces(now)
		c.noteGrowth(now)
		decisions = append(append(decisions, c.giveUpMissing(now)...), c.findUngathered(now)...)
	} else {
		decisions = c.findLostAndSlow(now)
	}
	if c.IsRunning() {
		decisions = append(decisions, c.detector.tellStalls(now, c.members, c.waiting())...)
	}
	if !c.IsOver() {
		decisions = append(append(decisions, c.askCheckpoint(now)...), c.assign()...)
		decisions = append(append(decisions, c.lr.remind()...), c.agreeLR()...)
		if c.IsRunning() {
			decisions = append(decisions, c.replicate(c.replicas.tick(now, c.started))...)
			decisions = append(decisions, c.record.note(c.members.voters())...)
		}
	}
	return decisions
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

// excuse moves every deadline by a time in which no member could be heard.
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
	c.replicas.excuse(pause)
	c.grew.Excuse(pause, now)
}

// freePlaces vacates the slots of trainers that were lost before the start: no other trainer depends on them yet.
func (c *Coordinator) freePlaces(now time.Time) []Decision {
	var decisions []Decision
	for i := range c.members {
		if text, ok := c.detector.lost(now, c.members, i); ok {
			c.members[i].become(slotVacant, member{})
			decisions = append(decisions, Decision{Note: text + "; its place is free again", Who: schema.TrainerMember(i)})
		}
	}
	if decisions != nil {
		c.endIfEmpty()
	}
	return decisions
}

// noteGrowth notes that fewer trainers are missing than ever. A trainer that takes a slot which another one left is not
// new, so that a job gathers for a bounded time.
func (c *Coordinator) noteGrowth(now time.Time) {
	if missing := c.members.missing(); !c.grew.Lasts() || missing < c.fewest || missing == 0 {
		c.grew.Begin(now)
		c.fewest = missing
	}
}

// findUngathered ends a job that has waited for missing trainers for too long, while no new one has joined.
func (c *Coordinator) findUngathered(now time.Time) []Decision {
	missing := c.members.missing()
	if idle := c.grew.For(now); c.Gathers() && c.config.StartTimeout > 0 && idle > c.config.StartTimeout {
		return c.Fail(schema.Coordinator,
			fmt.Sprintf("job %s has waited %s for %d of its %d trainers, and no new one has joined (limit %s): start all of "+
				"them within that time, or raise the server's --start-timeout",
				c.config.Job.Name, liveness.Rounded(idle), missing, len(c.members), c.config.StartTimeout))
	}
	return nil
}

// findLost notes which trainers were silent for too long, and which are back. It calls lose for a trainer that the
// others cannot do without.
func (c *Coordinator) findLost(now time.Time, lose func(i int, text string) []Decision) []Decision {
	var decisions []Decision
	for i := range c.members {
		m, name := &c.members[i], schema.TrainerMember(i)
		text, lost := c.detector.lost(now, c.members, i)
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
				Decision{Note: fmt.Sprintf("trainer %s on %s is back at batch %d", name, m.host, c.config.Job.Counted(m.batch)),
					Who: name})
		case c.detector.canDoWithout(c.members, m):
			decisions = append(decisions, Decision{Note: text + "; the job goes on without it", Who: name})
			c.endIfEmpty()
		default:
			decisions = append(decisions, lose(i, text)...)
			if c.IsOver() {
				return decisions
			}
		}
	}
	return decisions
}

// failFor ends the job because of a trainer, as its policy says.
func (c *Coordinator) failFor(i int, text string) []Decision {
	who := schema.TrainerMember(i)
	if !c.restarts() {
		return c.Fail(who, text)
	}
	return c.FailBack(who, text+"; "+c.sayRestart(who))
}

// findSlow runs the policy fail for a trainer that sends heartbeats but keeps others waiting, or that has left or was
// lost too early.
func (c *Coordinator) findSlow(now time.Time, waiting []schema.Waiting) []Decision {
	i := c.detector.slowest(now, c.members, waiting)
	if i < 0 {
		return nil
	}
	text := c.detector.describe(now, c.members, i, "batch")
	// A live trainer restarts the job only if the next run begins at a later version, so one that is always slow ends it.
	if m := &c.members[i]; m.lost() || m.state != slotDone && c.checkpoints.gains() {
		return c.failFor(i, text)
	}
	return c.Fail(schema.TrainerMember(i), text) // another run would wait for it, too
}
