package ps

import (
	"fmt"
	"slices"
	"time"

	"gradbus/internal/liveness"
	"gradbus/internal/planted"
	"gradbus/schema"
)

// What becomes of the place of a trainer that is lost, in a job whose trainers can be replaced
// (schema.Job.TakesOver).
//
//  1. The place is vacant. The generation rises, and shards are told: they refuse what its trainer sends from then on,
//     and say how many batches are complete.
//  2. Once all shard servers have said so, the place is given to a newcomer that waits, or to a trainer of the job that
//     computes its lanes besides its own. It begins with the batch under way, of which it sends what is missing.
//  3. A trainer has it when a heartbeat of its generation comes.
//
// A newcomer that finds no vacant place gets one that is computed by another trainer besides its own.

// vacancy is a place that nobody has.
type vacancy struct {
	liveness.Silence               // since when
	why              string        // the trainer that had it has it no more
	newcomer         schema.Member // whom it is kept for, by the name it joins under; empty: nobody
	join             *schema.Join  // what the newcomer has said
	toldSince        liveness.Silence
	declined         []int // who were told in vain
	told             int   // the trainer who was told to take it; -1: nobody
}

// keptFor reports that the place is kept for somebody who asks, perhaps under another name.
func (v *vacancy) keptFor(from schema.Member, j *schema.Join) bool {
	return v != nil && v.newcomer != "" && (v.newcomer == from || j.Key != 0 && v.join.Key == j.Key)
}

// recovering has the places of lost trainers taken over: by each other, or, under schema.PolicyWait, by new processes
// alone.
type recovering struct{ waits bool }

func (recovering) goesOn() bool   { return false }
func (recovering) excludes() bool { return false }

func (r recovering) replacesSlow() bool { return !r.waits }

// tick implements policy.
func (recovering) tick(c *Coordinator, now time.Time) []Decision {
	if !c.recovers() {
		return failing{}.tick(c, now)
	}
	decisions := c.findLost(now, func(i int, text string) []Decision { return c.vacate(now, i, text) })
	if c.over() {
		return decisions
	}
	decisions = append(decisions, c.findWaitedFor(now)...)
	if d := c.findDeserted(now); d != nil {
		return append(decisions, d...)
	}
	return append(decisions, c.offer(now)...)
}

// recovers reports that places may be taken over.
func (c *Coordinator) recovers() bool {
	_, recovers := c.policy.(recovering)
	return recovers && c.valuesThere()
}

// valuesThere reports that all values are there that the job begins with: until then every trainer has a part in them.
func (c *Coordinator) valuesThere() bool {
	return c.members.begun() >= schema.Batch(c.config.Job.StartVersion())
}

// outdated reports that who speaks has a place no more.
func (c *Coordinator) outdated(from schema.Member, g schema.Generation) bool {
	i, ok := c.members.find(from)
	return ok && g < c.members[i].generation
}

// Died is told that the process of a trainer has ended: it is lost without any doubt.
func (c *Coordinator) Died(now time.Time, from schema.Member, generation schema.Generation) []Decision {
	i, ok := c.members.find(from)
	if !ok || c.over() || c.members[i].state == slotDone || c.members[i].vacancy != nil ||
		generation != c.members[i].generation {
		return nil
	}
	m := &c.members[i]
	m.dead = true // which the next tick finds, where others can do without it or the job ends
	text, _ := c.lost(now, i)
	switch {
	case !c.running() || m.complete:
		return nil
	case c.rewinds():
		return c.failFor(i, text)
	case !c.recovers():
		return nil
	}
	return append(c.vacate(now, i, text), c.assign()...)
}

// vacate takes the place of a trainer from it. Shard servers are to be told, by assign.
func (c *Coordinator) vacate(now time.Time, i int, text string) []Decision {
	m, name := &c.members[i], schema.TrainerMember(i)
	c.generation++
	if planted.Is(planted.ReuseGeneration) {
		c.generation = max(c.generation-1, c.config.Generation+1)
	}
	m.become(slotVacant, member{joiner: name, host: m.host, generation: c.generation, batch: m.batch, ended: m.ended,
		by: -1, vacancy: &vacancy{why: text, told: -1}})
	m.vacancy.Begin(now)
	for k := range c.members { // which it was told to take
		if v := c.members[k].vacancy; v != nil && v.told == i {
			v.told = -1
		}
	}
	if p := c.lr.proposal; p != nil && !p.assigned {
		p.taken[i] = false // who takes the place has to take that, too
	}
	note := Decision{Note: fmt.Sprintf("%s; generation %d begins without it", text, c.generation), Who: name}
	c.serial++
	return []Decision{note}
}

// findWaitedFor vacates the places of those who keep others waiting for too long, or that were lost while nobody
// needed them. Who has left in peace cannot be replaced.
func (c *Coordinator) findWaitedFor(now time.Time) []Decision {
	waiting := c.waiting()
	first := firstWaitedFor(waiting)
	for i := range c.members {
		m, name := &c.members[i], schema.TrainerMember(i)
		if !c.slow(now, i, waiting) || m.vacancy != nil {
			continue
		}
		switch text := c.sayWaited(now, i, "batch"); {
		case m.state == slotDone:
			return c.findSlow(now, waiting)
		case m.lost():
			return c.vacate(now, i, text)
		case len(first) == 0 || slices.Contains(first, name):
			if !c.mayBeSlow(m.waitedBatch) {
				return c.tooSlow(name, m.waitedBatch)
			}
			return c.vacate(now, i, text)
		}
	}
	return nil
}

// mayBeSlow counts how often a batch was waited for too long. It reports whether others may do better.
func (c *Coordinator) mayBeSlow(b schema.Batch) bool {
	if c.slowest.at != b {
		c.slowest.at, c.slowest.times = b, 0
	}
	c.slowest.times++
	return c.slowest.times <= 2*len(c.members)
}

// tooSlow ends the job because nobody is fast enough.
func (c *Coordinator) tooSlow(name schema.Member, b schema.Batch) []Decision {
	return c.Fail(name, fmt.Sprintf("no trainer computes batch %d within the deadline of %s: raise the server's "+
		"--deadline", c.counted(b), c.config.Deadline))
}

// goOnSoon is what becomes of a job without trainers whose versions are written down: see resumeWindow.
const goOnSoon = "new ones that come within a minute go on from the newest durable version, if any, later ones with " +
	"--resume"

// findDeserted ends the job where nobody has taken a place for too long.
func (c *Coordinator) findDeserted(now time.Time) []Decision {
	for i := range c.members {
		// where all others are done, nobody needs the place
		if v := c.members[i].vacancy; v != nil && v.For(now) > c.config.Deadline &&
			(c.members[i].waitedSince.Lasts() || !c.members.anybody()) {
			why := fmt.Sprintf("%s; and nobody has taken its place within %s", v.why, rounded(v.For(now)))
			if c.outnumbered() {
				why += fmt.Sprintf(", since less than half of the trainers are here, and the ps that stands by is out of "+
					"reach: the job may go on there, at %s", c.standby.url)
			}
			if !c.members.anybody() && c.config.Checkpoints != nil {
				return c.FailBack(schema.TrainerMember(i), why+"; "+goOnSoon)
			}
			return c.Fail(schema.TrainerMember(i), why)
		}
	}
	return nil
}

// standbyAt is where the job goes on when this ps is lost.
type standbyAt struct {
	url    string // empty: nowhere
	silent bool   // it was not heard lately: trainers that are lost may have gone on there
	// who trained when it was heard last, by the names that they joined under
	with []schema.Member
}

// standsBy notes where the job goes on when this ps is lost, empty where nowhere, and whether that ps was not heard
// lately. It reports whether trainers do not know the place yet.
func (c *Coordinator) standsBy(url string, silent bool) (moved bool) {
	moved = url != c.standby.url
	c.standby.url, c.standby.silent = url, silent
	if !silent {
		c.standby.with = c.members.training()
	}
	return moved
}

// standbySilent notes that whoever stands by is not heard any more.
func (c *Coordinator) standbySilent() { c.standby.silent = true }

// standbyURL returns where the job goes on when this ps is lost; empty: nowhere.
func (c *Coordinator) standbyURL() string { return c.standby.url }

// outnumbered reports that whoever stands by is not heard, and of those who trained when it was heard last less than
// half are here: the others may go on with the job there, and it is not to go on twice.
func (c *Coordinator) outnumbered() bool {
	here := 0
	for _, m := range c.members.training() {
		if slices.Contains(c.standby.with, m) {
			here++
		}
	}
	return c.standby.silent && c.standby.url != "" && 2*here < len(c.standby.with)
}

// offer says to whom vacant places are given, once all shard servers know that they are vacant. What they are to be
// told then is for the caller to send, by assign.
func (c *Coordinator) offer(now time.Time) (decisions []Decision) {
	if c.outnumbered() {
		return nil
	}
	for i := range c.members {
		v := c.members[i].vacancy
		if v == nil || !c.risen(c.members[i].generation) {
			continue
		}
		if v.newcomer != "" {
			decisions = append(decisions, c.seat(now, i)...)
			continue
		}
		if c.policy == (recovering{waits: true}) {
			continue
		}
		if v.told >= 0 && v.toldSince.For(now) > declineAfter { // it cannot, or does nothing now
			decisions = append(decisions, c.decline(now, i)...)
			continue // shards are told first
		}
		if v.told < 0 {
			if v.told = c.members.substitute(v.declined); v.told < 0 { // all were told: they may have been at something else
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
				Control: schema.Control{TakeOver: joined}})
		}
	}
	return decisions
}

// declineAfter is for how long a trainer may not take the place that it is told to, before another one is told.
const declineAfter = 5 * time.Second

// decline takes the place from who was told to take it, and has not: should it do so after all, it comes too late.
func (c *Coordinator) decline(now time.Time, i int) []Decision {
	v, name := c.members[i].vacancy, schema.TrainerMember(i)
	declined, since := append(v.declined, v.told), v.Silence
	decisions := c.vacate(now, i, fmt.Sprintf("%s has not taken the place of %s", schema.TrainerMember(v.told), name))
	n := c.members[i].vacancy
	n.why, n.declined, n.Silence = v.why, declined, since
	return decisions
}

// risen reports that all shard servers go by a generation.
func (c *Coordinator) risen(g schema.Generation) bool {
	return !slices.ContainsFunc(c.shardServers, func(s shardServer) bool { return s.generation < g })
}

// done is how many batches are complete at least.
func (c *Coordinator) done() schema.Version {
	done := c.shardServers[0].done
	for i := range c.shardServers {
		done = min(done, c.shardServers[i].done)
	}
	if planted.Is(planted.SkipBatchUnderWay) {
		done++
	}
	return max(done, c.config.Resume.version())
}

// since is in which generation each place was taken; nil where all were in the first.
func (c *Coordinator) since() (all []schema.Generation) {
	if c.generation == c.config.Generation {
		return nil
	}
	for i := range c.members {
		all = append(all, c.members[i].generation)
	}
	return all
}

// taken notes that the trainer who was told to take a place has it.
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
		schema.TrainerMember(v.told), rounded(v.For(now)))}}
}

// joinRunning finds a place for a newcomer in a job that runs, or says why there is none.
func (c *Coordinator) joinRunning(now time.Time, from schema.Member, j *schema.Join) []Decision {
	switch {
	case c.rewinds():
		return c.joinFewer(now, from, j)
	case !c.recovers():
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
		return c.Refuse(from, c.fullFor(now, j))
	}
	var decisions []Decision
	m := &c.members[at]
	name := schema.TrainerMember(at)
	by := m.by
	if m.vacancy != nil {
		by = m.vacancy.told
	}
	if m.vacancy == nil || by >= 0 { // who computes it, or has begun to, is not to do so any more
		decisions = c.vacate(now, at, fmt.Sprintf("%s computes lanes of %s no more, which a new trainer on %s will",
			schema.TrainerMember(by), name, j.Host))
	}
	if n := m.vacancy.newcomer; n != "" && n != from {
		c.forget(n)
	}
	m.vacancy.newcomer, m.vacancy.join = from, j
	return append(append(decisions, c.offer(now)...), c.assign()...)
}

// joinUntaken gives a newcomer a place that nobody has had in this run, where nobody has needed it.
func (c *Coordinator) joinUntaken(now time.Time, from schema.Member, j *schema.Join) []Decision {
	i := slices.IndexFunc(c.members, func(m member) bool { return m.state == slotLost && m.generation == 0 })
	if i < 0 || c.policy.excludes() {
		return c.Refuse(from, c.full())
	}
	d := c.seatAt(now, i, c.generation, from, j)
	c.members[i].state.transition(slotSyncing)
	d.Note = fmt.Sprintf("trainer %s joined from %s at batch %d", d.Who, j.Host, c.counted(c.resumed()))
	return c.routed(i, d)
}

// fullFor refuses who finds no place, unless one may be free soon: then it asks again.
func (c *Coordinator) fullFor(now time.Time, j *schema.Join) *schema.Refused {
	r := c.full()
	if j.Run != 0 { // others may not have noticed yet that it has lost its place
		r.Reason = schema.RefusedBusy
	}
	for i := range c.members {
		if m := &c.members[i]; m.here() && (m.Cut() || m.For(now) > doubtAfter) {
			r.Reason = schema.RefusedBusy
			r.Text = fmt.Sprintf("job %s has all of its trainers, but %s on %s was last seen %s ago", c.config.Job.Name,
				schema.TrainerMember(i), m.host, rounded(m.For(now)))
		}
	}
	return r
}

// doubtAfter is how long a trainer, of which something is heard each second, is silent before its place may be free
// soon.
const doubtAfter = 2500 * time.Millisecond

// seat gives a vacant place to the newcomer that it is kept for. Where that is gone by now its silence will tell.
func (c *Coordinator) seat(now time.Time, i int) []Decision {
	m, v := &c.members[i], c.members[i].vacancy
	d := c.seatAt(now, i, m.generation, v.newcomer, v.join)
	m.state.transition(slotSyncing)
	d.Note = fmt.Sprintf("trainer %s joined from %s at batch %d, after %s", d.Who, m.host, c.counted(c.done()),
		rounded(v.For(now)))
	if m.cluster {
		c.serial++
	}
	return []Decision{d}
}
