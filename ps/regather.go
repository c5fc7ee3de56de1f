package ps

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// What becomes of a job whose trainers have all of it (schema.Job.Carried) when one of them is lost, or one more comes:
//
//  1. The run ends, and its trainers come back with what they have (Failed.Back).
//  2. The next run of the name awaits them. Each says which version it has.
//  3. It begins when all have come, or nobody has for a while: with as many trainers as there are. Each has its share
//     of the lanes and of what is added up, at the newest version that any of them has. The others get that from it.
//     Versions that trainers have differ by one at most, so one batch is computed again at most.
//
// So nothing that a lost trainer has added up is missed: what was not complete is added up anew.

// regathering has the trainers of a job come together anew. Where it waits, it does so for as many as there were.
type regathering struct{ waits bool }

func (regathering) goesOn() bool   { return false }
func (regathering) excludes() bool { return false }

// carriedRun is a run that trainers come back from with all that the job has.
type carriedRun struct {
	runs     []schema.RunID // it, and those that it went on from; the newest first, at most carriedMax
	here     int            // trainers that were there when it ended
	trainers int            // that will come; 0: not known
	least    int            // as many have to
	// of those who were there: the names of their connections, and their processes, of which those of this machine are
	// seen to end
	connections, processes []string
	begun                  schema.Batch // that a trainer had begun: with nobody's version there was something to lose
	lr                     []schema.LRChange
	slowest                slowest
	ended                  time.Time
}

// carriedMax bounds the earlier runs that a trainer may come back from.
const carriedMax = 16

// regather is what a coordinator knows of trainers that come together anew.
type regather struct {
	comers  []comer         // in the order in which they came
	working bool            // one who was there is connected and has not come: it is at work yet
	version schema.Version  // that the run begins with
	holders []schema.Member // who have it
	next    *carriedRun     // this run, where it has ended and goes on in another
}

// comer is a trainer that has come.
type comer struct {
	name             schema.Member // under which it asks
	join             *schema.Join
	liveness.Silence           // since it asked last
	first            time.Time // when it came
}

// was is the number of the place that it had in the run before; that of nobody's where it had none.
func (k *comer) was() int {
	number, _ := strings.CutPrefix(string(k.join.Was), "t")
	if i, err := strconv.Atoi(number); err == nil {
		return i
	}
	return math.MaxInt
}

// regathers reports that trainers come together anew when one is lost.
func (c *Coordinator) regathers() bool {
	_, is := c.policy.(regathering)
	return is && c.valuesThere()
}

// awaits reports that the run awaits those who come back.
func (c *Coordinator) awaits() bool { return c.config.Carried != nil && c.phase == Gathering }

// tick implements policy.
func (regathering) tick(c *Coordinator, now time.Time) []Decision {
	if !c.regathers() {
		return failing{}.tick(c, now)
	}
	decisions := c.findLost(now, func(i int, _ string) []Decision { return c.goOnWithout(now, i) })
	if c.phase == Ended {
		return decisions
	}
	waiting := c.waiting()
	first := firstWaitedFor(waiting)
	for i := range c.members {
		m, name := &c.members[i], schema.TrainerMember(i)
		if !c.slow(now, i, waiting) {
			continue
		}
		switch text := c.sayWaited(now, i, "batch"); {
		case m.left:
			return append(decisions, c.findSlow(now, waiting)...)
		case !m.lost && len(first) > 0 && !slices.Contains(first, name):
		case !c.mayBeSlow(m.waitedBatch):
			return append(decisions, c.tooSlow(name, m.waitedBatch)...)
		default:
			m.lost = true
			return append(decisions, c.goOn(name, text, 0)...)
		}
	}
	return decisions
}

// goOnWithout ends the run because of a trainer that is lost.
func (c *Coordinator) goOnWithout(now time.Time, i int) []Decision {
	text, _ := c.lost(now, i)
	c.members[i].lost = true
	return c.goOn(schema.TrainerMember(i), text, 0)
}

// goOn ends the run, which goes on in another with those who are here, and so many more. Where nobody is, it does when
// one of those comes back who are lost.
func (c *Coordinator) goOn(who schema.Member, text string, more int) []Decision {
	here, done, most := more, false, schema.Batch(0)
	var processes, connections []string
	for i := range c.members {
		m := &c.members[i]
		if most = max(most, m.batch); m.here() && !m.complete {
			here++
			processes = append(processes, m.process)
			connections = append(connections, c.connectionOf(i))
		}
		done = done || m.complete || m.left && m.why == ""
	}
	if c.phase == Ended || here == 0 && done {
		return c.Fail(who, text)
	}
	waits := c.policy.(regathering).waits
	how := fmt.Sprintf("the job goes on with %d of %d trainers", here, c.config.Job.Trainers)
	switch {
	case here == 0:
		how = "the job goes on when a trainer comes back that has the parameters"
	case waits && here < len(c.members):
		how = fmt.Sprintf("the job goes on when there are %d trainers again", len(c.members))
	}
	decisions := c.Fail(who, text+"; "+how)
	decisions[0].Note = c.failed.Text
	c.failed.Back = true
	next := &carriedRun{runs: []schema.RunID{c.config.RunID}, here: here, trainers: here, least: 1, begun: most,
		processes: processes, connections: connections, lr: c.lr.decided, slowest: c.slowest}
	if here == 0 || waits {
		next.trainers = max(here, len(c.members))
	}
	if waits {
		next.least = len(c.members)
	}
	if before := c.config.Carried; before != nil {
		next.runs = append(next.runs, before.runs[:min(len(before.runs), carriedMax-1)]...)
	}
	c.regather.next = next
	return decisions
}

// joinCarried has the run end for a newcomer, which finds a place in the next one, or says why there is none.
func (c *Coordinator) joinCarried(now time.Time, from schema.Member, j *schema.Join) []Decision {
	vacant := func(m member) bool { return m.lost && !m.complete }
	trains := func(m member) bool { return m.here() && !m.complete }
	if len(c.members) == c.config.Job.Trainers && !slices.ContainsFunc(c.members, vacant) ||
		!slices.ContainsFunc(c.members, trains) { // who has come to the end needs nobody
		return c.Refuse(from, c.fullFor(now, j))
	}
	return c.goOn(from, "a trainer has come from "+j.Host, 1)
}

// goOnFrom has the run, which has begun from nothing, end for a trainer that comes back from one that was lost with the
// ps before this one. Both runs have the same manifest, so what either has at a version is the same.
func (c *Coordinator) goOnFrom(from schema.Member, j *schema.Join) []Decision {
	decisions := c.goOn(from, fmt.Sprintf("a trainer has come back from %s with version %d of a run that was lost", j.Host,
		j.Has), 1)
	c.regather.next.runs = append(c.regather.next.runs, j.Run)
	c.regather.next.trainers = c.config.Job.Trainers
	return decisions
}

// come notes a trainer that has come back, or anew. It is answered when the run begins.
func (c *Coordinator) come(now time.Time, from schema.Member, j *schema.Join) []Decision {
	if refused := c.differs(j); refused != nil {
		return c.Refuse(from, refused)
	}
	if j.URL == "" {
		return c.Refuse(from, c.noURL())
	}
	all := &c.regather.comers
	same := func(k comer) bool { return k.name == from || j.Key != 0 && k.join.Key == j.Key }
	i := slices.IndexFunc(*all, same)
	if i < 0 {
		if len(*all) == c.config.Job.Trainers {
			return c.Refuse(from, c.fullFor(now, j))
		}
		*all = append(*all, comer{first: now})
		i = len(*all) - 1
		c.grew.Begin(now)
	}
	k := &(*all)[i]
	k.name, k.join = from, j
	k.Begin(now)
	known := c.config.Carried.trainers
	if len(*all) >= cmp.Or(known, c.config.Job.Trainers) && !c.lacksAll() {
		return c.gathered(now)
	}
	return nil
}

// newestHere is the newest version that one of those who have come has.
func (c *Coordinator) newestHere() (newest schema.Version) {
	for _, k := range c.regather.comers {
		newest = max(newest, k.join.Has)
	}
	return newest
}

// lacksAll reports that nobody has come who has anything of what the run before had.
func (c *Coordinator) lacksAll() bool {
	start := c.config.Job.StartVersion()
	return c.config.Carried.begun > schema.Batch(start) && c.newestHere() <= start
}

// comerSilentMax is for how long one who has come may not ask again, which it does each second, before it is gone.
const comerSilentMax = 4 * time.Second

// awaitComers begins the run where nobody else has come for a while. Those who wait for long are told so.
func (c *Coordinator) awaitComers(now time.Time) (decisions []Decision) {
	k := c.config.Carried
	c.regather.comers = slices.DeleteFunc(c.regather.comers, func(m comer) bool { return m.For(now) > comerSilentMax })
	here, within := len(c.regather.comers), returnMax
	if r := &c.regather; r.working {
		within = c.config.Deadline
	} else if !k.ended.IsZero() { // here: they come at once
		within = returnSoonMax
	}
	if !c.grew.Lasts() {
		c.grew.Begin(now)
	}
	switch {
	case here >= max(1, k.least) && c.grew.For(now) >= within && !c.lacksAll():
		return c.gathered(now)
	case c.grew.For(now) > c.config.Deadline && c.lacksAll():
		return c.turnAwayComers("no trainer is left that had the parameters: start the job again")
	case c.grew.For(now) > c.config.Deadline:
		return c.turnAwayComers(fmt.Sprintf("trainers that have come back within %s: %d, want %d",
			rounded(c.config.Deadline), here, max(1, k.least)))
	}
	for i := range c.regather.comers {
		m := &c.regather.comers[i]
		if now.Sub(m.first) < busyAfter {
			continue
		}
		decisions = append(decisions, Decision{To: m.name, Control: schema.Control{Refused: &schema.Refused{
			Reason: schema.RefusedBusy, Text: fmt.Sprintf("trainers that have come back: %d; others are awaited", here)}}})
	}
	return decisions
}

// died takes the end of a process: of a member, or of one that was to come back.
func (c *Coordinator) died(now time.Time, d *death) []Decision {
	if d.member != "" || !c.awaits() {
		return c.Died(now, d.member, d.generation)
	}
	k := c.config.Carried
	c.regather.comers = slices.DeleteFunc(c.regather.comers, func(m comer) bool { return m.join.Process == d.process })
	if k.trainers > max(1, k.least) {
		k.trainers--
	}
	if len(c.regather.comers) >= max(1, k.trainers) && !c.lacksAll() {
		return c.gathered(now)
	}
	return nil
}

// connectionOf names the connection of a member, under its member id.
func (c *Coordinator) connectionOf(i int) string {
	return string(c.config.Job.Name) + "/" + string(schema.TrainerMember(i))
}

// noteWorking looks for those who were there and have not come: while the program is at work a session that has ended
// keeps its connections.
func (r *regather) noteWorking(k *carriedRun, open []string) {
	r.working = slices.ContainsFunc(k.connections, func(name string) bool { return slices.Contains(open, name) })
}

// turnAwayComers ends the job, and tells those who have come why.
func (c *Coordinator) turnAwayComers(text string) []Decision {
	decisions := c.Fail(schema.Coordinator, text)
	for _, k := range c.regather.comers {
		decisions = append(decisions, Decision{To: k.name, Control: schema.Control{Refused: &schema.Refused{
			Reason: schema.RefusedOver, Text: text}}})
	}
	return decisions
}

// gathered begins the run with those who have come: those who were in the run before it in the same order, then the
// others.
func (c *Coordinator) gathered(now time.Time) []Decision {
	r := &c.regather
	slices.SortStableFunc(r.comers, func(a, b comer) int { return cmp.Compare(a.was(), b.was()) })
	r.version = c.newestHere()
	for _, k := range r.comers {
		if len(k.join.LR) > len(c.lr.decided) {
			c.lr.decided = k.join.LR
		}
	}
	if lr := c.config.Carried.lr; len(lr) > len(c.lr.decided) {
		c.lr.decided = lr
	}
	c.members = make([]member, len(r.comers))
	for i, k := range r.comers {
		c.seatAt(now, i, c.generation, k.name, k.join)
		c.members[i].batch = schema.Batch(r.version)
		if k.join.Has == r.version && r.version > 0 {
			r.holders = append(r.holders, schema.TrainerMember(i))
		}
	}
	decisions := c.begin(now)
	if r.version > 0 {
		decisions[0].Note = fmt.Sprintf("job goes on at batch %d, trainers: %d, of which %d have all of it", r.version,
			len(c.members), len(r.holders))
	}
	for i := range c.members {
		decisions = append(decisions, c.joined(i))
	}
	r.comers = nil
	return decisions
}

// takesUp reports that a job goes on from a run that a trainer comes back from, of which this ps, which was started a
// short while ago, knows nothing.
func (l *controlLoop) takesUp(j *job, m *message, request *schema.Join) bool {
	c := j.coordinator
	_, regathers := c.policy.(regathering)
	return regathers && request.Run != 0 && request.Run != j.run && request.Has > 0 && c.config.Carried == nil &&
		c.phase != Ended && c.differs(request) == nil && l.over(m, request.Run) == nil &&
		l.server.now().Sub(l.server.started) < backMax
}

// goesOnWithin is for how long a run that trainers come back from is taken up by whoever joins: about as long as they
// try to (trainer.Config.BackWithin).
const goesOnWithin = 30 * time.Second

// carriedFrom is the run that a job goes on from with what its trainers have; nil: none. It is one that has ended here,
// or, where this ps knows nothing of it, any that a trainer comes back from.
func (l *controlLoop) carriedFrom(c *acquisition) *carriedRun {
	if !c.job.Carried() || c.job.Policy == schema.PolicyFail {
		return nil
	}
	for i := len(l.ended) - 1; i >= 0; i-- {
		e := &l.ended[i]
		switch {
		case e.name != c.job.Name:
		case e.next != nil && c.back == 0 && l.server.now().Sub(e.next.ended) < goesOnWithin,
			e.next != nil && slices.Contains(e.next.runs, c.back):
			return e.next
		case e.run == c.back, c.back == 0:
			return nil
		}
	}
	if c.back == 0 || !c.resume {
		return nil
	}
	return &carriedRun{runs: []schema.RunID{c.back}, least: 1}
}
