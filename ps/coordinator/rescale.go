package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// A job that restarts (lossRestart, lossRescale) has no slot that another trainer could take over in the middle of a
// batch. When a trainer is lost the run ends, and the others rejoin a run that begins with the newest durable version.
// Under lossRescale that run has as many slots as there are trainers:
//
//  1. A run that ends says how many trainers are left. The next one has as many slots.
//  2. If a slot is not taken within rejoinWithin, that run ends as well, and the next one has fewer.
//  3. A trainer that joins a full run with fewer slots than the manifest has a version written. Once it is durable the
//     run ends, and the next one has one slot more.

// newcomers are trainers that join while a job runs with fewer trainers than its manifest has.
type newcomers struct {
	all     []newcomer     // no more than there are trainers too few
	version schema.Version // that the next run is to begin with at least
}

// request has a version written that is newer than the newest durable one, unless newcomers or leaving trainers wait
// for one already.
func (k *newcomers) request(leaving []int, checkpoints *checkpointing) {
	if len(k.all) == 0 && len(leaving) == 0 {
		k.version = 1 + max(checkpoints.durable.version, checkpoints.first())
	}
}

// put notes a newcomer that asks for one of the next run's slots, of which room are left.
func (k *newcomers) put(now time.Time, from schema.Member, j *schema.Join, room int) {
	i := slices.IndexFunc(k.all, func(m newcomer) bool { return m.name == from || j.Key != 0 && m.join.Key == j.Key })
	if i < 0 && len(k.all) < room {
		k.all = append(k.all, newcomer{})
		i = len(k.all) - 1
	}
	if i >= 0 {
		k.all[i].name, k.all[i].join = from, j
		k.all[i].Begin(now)
	}
}

// names returns the names under which they ask.
func (k *newcomers) names() (all []schema.Member) {
	for i := range k.all {
		all = append(all, k.all[i].name)
	}
	return all
}

// excuse moves deadlines by a time in which no sender could be heard.
func (k *newcomers) excuse(pause time.Duration, now time.Time) {
	for i := range k.all {
		k.all[i].Excuse(pause, now)
	}
}

// newcomer is a trainer that asks for a slot of the next run.
type newcomer struct {
	name             schema.Member // under which it asks
	join             *schema.Join
	liveness.Silence // since it asked last
}

// newcomerSilentMax is the silence of a newcomer, which repeats its request each second, after which it counts as gone.
const newcomerSilentMax = 4 * time.Second

// restarts reports whether the loss of a trainer restarts the job now.
func (c *Coordinator) restarts() bool {
	return c.onLoss.restarts() && c.config.Checkpoints != nil && c.state == Running
}

// joinNextRun has a version written for a trainer that joins a running job, and refuses it as busy until then.
func (c *Coordinator) joinNextRun(now time.Time, from schema.Member, j *schema.Join) []Decision {
	leaving := c.members.leaving()
	room := c.admission.places() - len(c.members) + len(leaving) // how many more trainers the next run may have
	if room == 0 || c.onLoss != lossRescale {
		return c.Refuse(from, c.admission.fullFor(now, c.members, j))
	}
	if c.plan.Reduces(schema.ByTrainers) {
		if j.URL == "" {
			return c.Refuse(from, c.admission.noURL())
		}
		if refused := c.admission.unreachable(c.members, j); refused != nil {
			return c.Refuse(from, refused)
		}
	}
	if c.config.MemoryFull {
		return c.Refuse(from, &schema.Refused{Reason: schema.RefusedBusy, Text: fmt.Sprintf(
			"job %s goes on with %d of %d trainers: there was no room for more", c.config.Job.Name, len(c.members),
			c.admission.places())})
	}
	c.newcomers.request(leaving, &c.checkpoints)
	c.newcomers.put(now, from, j, room)
	return c.Refuse(from, c.admission.roomSoon(c.members))
}

// Leaving notes that a trainer leaves once a version is durable, and has one written. It may leave at once if no other
// trainer would continue from that version.
func (c *Coordinator) Leaving(from schema.Member) (decisions []Decision) {
	now := schema.Control{Leave: &schema.Leave{}}
	i, ok := c.members.find(from)
	if !ok || c.onLoss != lossRescale || !c.restarts() {
		return []Decision{{To: from, Control: now}}
	}
	c.newcomers.request(c.members.leaving(), &c.checkpoints)
	if m := &c.members[i]; m.here() && m.state != slotDraining {
		m.state.transition(slotDraining)
	}
	if c.members.anyStays() {
		return nil
	}
	for _, i := range c.members.draining() {
		decisions = append(decisions, Decision{To: schema.TrainerMember(i), Control: now})
	}
	return decisions
}

// rescale ends the run for newcomers and for trainers that leave, once a version has become durable since they said so.
func (c *Coordinator) rescale(now time.Time) []Decision {
	k, trains := &c.newcomers, func(m member) bool { return m.here() && !m.complete }
	k.all = slices.DeleteFunc(k.all, func(m newcomer) bool { return m.For(now) > newcomerSilentMax })
	leave := c.members.leaving()
	if len(k.all) == 0 && len(leave) == 0 || !c.restarts() || c.checkpoints.durable.version < k.version ||
		!slices.ContainsFunc(c.members, trains) {
		return nil
	}
	text := ""
	if len(leave) > 0 {
		text = fmt.Sprintf("trainer %s on %s leaves", schema.TrainerMember(leave[0]), c.members[leave[0]].host)
	} else {
		text = "a trainer has come from " + k.all[0].join.Host
	}
	return c.Restart(schema.EndStopped, schema.Coordinator, fmt.Sprintf(
		"%s; all go on from version %d, with %d of %d trainers", text,
		c.checkpoints.durable.version, c.members.here("")+len(k.all), c.admission.places()))
}

const (
	// rejoinMax bounds the time for which trainers that rejoin wait for the others of their run.
	rejoinMax = 10 * time.Second
	// RejoinSoonMax is the wait if as many trainers have rejoined as the run had at its end, or if their ps has ended and
	// a replica takes over: then all rejoin at once.
	RejoinSoonMax = time.Second
)

// gathering is how long a job has waited for trainers.
type gathering struct {
	fewest int              // missing trainers that there have ever been
	grew   liveness.Silence // since when; before the first tick it does not last
}

// note notes how many trainers are missing. A trainer that takes a slot which another one left is not new, so that a
// job gathers for a bounded time.
func (g *gathering) note(now time.Time, missing int) {
	if !g.grew.Lasts() || missing < g.fewest || missing == 0 {
		g.grew.Begin(now)
		g.fewest = missing
	}
}

// rejoinWithin returns how long the trainers of an interrupted run wait for each other, if so many have joined.
func (c *Config) rejoinWithin(joined int) time.Duration {
	within := cmp.Or(c.RejoinWithin, rejoinMax)
	if n := c.TrainersBefore; n > 0 && joined >= n {
		within = RejoinSoonMax
	}
	if c.StartTimeout > 0 {
		within = min(within, c.StartTimeout)
	}
	return within
}

// tickGathering starts a job, or its next run with fewer slots, without the trainers that have not rejoined in time. It
// ends one that has waited for missing trainers for too long, while no new one has joined.
func (c *Coordinator) tickGathering(now time.Time) (decisions []Decision) {
	missing := c.members.missing()
	c.gathering.note(now, missing)
	idle, within := c.gathering.grew.For(now), c.config.rejoinWithin(len(c.members)-missing)
	if c.config.Rejoining != nil && c.members.anyHere() && missing > 0 && idle >= within {
		switch c.onLoss {
		case lossRescale: // the next run has fewer slots
			return c.Restart("", schema.Coordinator, fmt.Sprintf(
				"%d of %d trainers have not come back within %s; the job goes on without them", missing, len(c.members),
				liveness.Rounded(within)))
		case lossContinue, lossExclude, lossTakeOver:
			// every trainer has a part in the values that the job begins with, unless these are durable
			if c.shardServers.ready(c.serial) && c.admission.mayStart(c.members) &&
				c.config.Resume.version() >= c.config.Job.StartVersion() {
				decisions = c.startWithout(now)
			}
		}
	}
	if c.state.Gathers() && c.config.StartTimeout > 0 && idle > c.config.StartTimeout {
		return c.Fail(schema.Coordinator,
			fmt.Sprintf("job %s has waited %s for %d of its %d trainers, and no new one has joined (limit %s): start all of "+
				"them within that time, or raise the server's --start-timeout",
				c.config.Job.Name, liveness.Rounded(idle), missing, len(c.members), c.config.StartTimeout))
	}
	return decisions
}

// startWithout starts the job without the trainers that have not rejoined: others compute their lanes, or none if the
// clock needs none.
func (c *Coordinator) startWithout(now time.Time) (decisions []Decision) {
	for i := range c.members {
		m, name := &c.members[i], schema.TrainerMember(i)
		text := fmt.Sprintf("trainer %s has not come back", name)
		switch {
		case m.joiner != "":
		case c.onLoss != lossTakeOver:
			m.become(slotLost, member{joiner: name, host: "another machine", by: -1, dead: true})
			c.serial++
			decisions = append(decisions, Decision{Note: text + "; the job goes on without it", Who: name})
		default:
			m.host = "another machine"
			decisions = append(decisions, c.vacate(now, i, text)...)
		}
	}
	return append(c.begin(now), decisions...)
}
