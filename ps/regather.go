package ps

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"net/url"
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
//     of the lanes and of what is added up. All are at the newest version that most of them have; the others get that
//     from these. Versions that trainers have differ by one at most, so two batches are computed again at most.
//
// So nothing that a lost trainer has added up is missed: what was not complete is added up anew.

// regathering has the trainers of a job come together anew. Where it waits, it does so for as many as there were.
type regathering struct{ waits bool }

func (regathering) goesOn() bool         { return false }
func (regathering) excludes() bool       { return false }
func (r regathering) replacesSlow() bool { return !r.waits }

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
	brings           brings
	liveness.Silence           // since it asked last
	first            time.Time // when it came
}

// brings is what a trainer has of a run: versions from least to newest, or none. What it has in memory goes before what
// is in its folder.
type brings struct {
	run           schema.RunID
	newest, least schema.Version
	saved         int64 // when the version in its folder was written, milliseconds since 1970; 0: it is in memory
}

// bringsOf is what one has that counts in this run.
func (c *Coordinator) bringsOf(j *schema.Join) brings {
	k, v := c.config.Carried, j.Saved
	if j.Has > 0 || v == nil || !k.ByHand && !slices.Contains(k.Runs, v.Run) && !slices.Contains(k.Same, v.Run) {
		return brings{run: j.Run, newest: j.Has, least: cmp.Or(j.Least, j.Has)}
	}
	return brings{run: v.Run, newest: v.Version, least: v.Version, saved: max(1, v.CreatedMS)}
}

// is reports that one asks who has come, perhaps under another name.
func (k *comer) is(from schema.Member, j *schema.Join) bool {
	return k.name == from || j.Key != 0 && k.join.Key == j.Key
}

// was is the number of the place that it had in the run before; that of nobody's where it had none.
func (k *comer) was() int {
	number, _ := strings.CutPrefix(string(k.join.Was), "t")
	if i, err := strconv.Atoi(number); err == nil {
		return i
	}
	return math.MaxInt
}

// has reports whether one has a version, of a run.
func (c *Coordinator) has(k *comer, v schema.Version, run schema.RunID) bool {
	same := func(r schema.RunID) bool {
		return v <= c.config.Carried.SameUpTo && slices.Contains(c.config.Carried.Same, r)
	}
	b := &k.brings
	return v > 0 && (b.run == run || same(b.run) && same(run)) && v <= b.newest && v >= b.least
}

// regathers reports that trainers come together anew when one is lost.
func (c *Coordinator) regathers() bool {
	_, is := c.policy.(regathering)
	return is && c.valuesThere()
}

// awaits reports that the run awaits those who come back.
func (c *Coordinator) awaits() bool { return c.config.Carried != nil && c.gathers() }

// tick implements policy.
func (regathering) tick(c *Coordinator, now time.Time) []Decision {
	if !c.regathers() {
		return failing{}.tick(c, now)
	}
	decisions := c.findLost(now, func(i int, _ string) []Decision { return c.goOnWithout(now, i) })
	if c.over() {
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
		case m.state == slotDone:
			return append(decisions, c.findSlow(now, waiting)...)
		case c.receivesAll(m): // however long that takes
		case !m.lost() && len(first) > 0 && !slices.Contains(first, name):
		case !c.mayBeSlow(m.waitedBatch):
			return append(decisions, c.tooSlow(name, m.waitedBatch)...)
		default:
			c.lose(i)
			return append(decisions, c.goOn(schema.EndFailed, name, text, false)...)
		}
	}
	return decisions
}

// receivesAll reports whether a trainer gets all of the job from others.
func (c *Coordinator) receivesAll(m *member) bool {
	return m.state == slotSyncing && c.config.Carried != nil
}

// lose notes that a trainer is lost.
func (c *Coordinator) lose(i int) {
	if m := &c.members[i]; m.here() {
		m.state.transition(slotLost)
	}
}

// goOnWithout ends the run because of a trainer that is lost.
func (c *Coordinator) goOnWithout(now time.Time, i int) []Decision {
	text, _ := c.lost(now, i)
	c.lose(i)
	return c.goOn(schema.EndFailed, schema.TrainerMember(i), text, false)
}

// handOver ends the run because a trainer has left, and may come back: then it could not reach another one.
func (c *Coordinator) handOver(i int, l *schema.Leave, text string) []Decision {
	m, name := &c.members[i], schema.TrainerMember(i)
	m.leave(l.Reason)
	if !l.Back {
		return c.goOn(c.endBy(name), name, text, false)
	}
	decisions := c.goOn(schema.EndFailed, name, text, true)
	next, before := c.regather.next, c.config.Carried
	lacks, ok := c.find(l.Lacks)
	if next == nil || before == nil || before.newcomer == "" || c.begun() > schema.Batch(c.resumed()) || !ok ||
		c.members[lacks].host != before.newcomer {
		return decisions
	}
	next.barred, next.why = before.newcomer, l.Reason // without which the run before went well
	if c.members[lacks].here() {
		next.Here, next.Trainers = next.Here-1, max(1, next.Trainers-1)
	}
	return decisions
}

// goOn ends the run, which goes on in another with those who are here, and one more where one comes. Where nobody is,
// it does when one of those comes back who are lost.
func (c *Coordinator) goOn(how schema.End, who schema.Member, text string, comes bool) []Decision {
	next, done := &carriedRun{Least: 1, Begun: c.begun(), LR: c.lr.decided, slowest: c.slowest}, false
	for i := range c.members {
		m := &c.members[i]
		if m.here() && !m.complete {
			next.Here++
			next.processes = append(next.processes, m.process)
			next.connections = append(next.connections, c.connectionOf(schema.TrainerMember(i)))
		}
		done = done || m.complete || completed(*m)
	}
	if comes {
		next.Here++
	}
	if c.over() || next.Here == 0 && done {
		return c.end(how, who, text)
	}
	waits := c.policy.(regathering).waits
	then := fmt.Sprintf("the job goes on with %d of %d trainers", next.Here, c.config.Job.Trainers)
	switch {
	case next.Here == 0:
		then = "the job goes on when a trainer comes back that has the parameters"
	case waits && next.Here < len(c.members):
		then = fmt.Sprintf("the job goes on when there are %d trainers again", len(c.members))
	}
	decisions := c.end(how, who, text+"; "+then)
	decisions[0].Note = c.failed.Text
	c.failed.Back = true
	if next.Trainers = next.Here; next.Here == 0 || waits {
		next.Trainers = max(next.Here, len(c.members))
	}
	if waits {
		next.Least = len(c.members)
	}
	next.Runs = []schema.RunID{c.config.RunID}
	if before := c.config.Carried; before != nil {
		if c.begun() <= schema.Batch(c.resumed()) { // nobody has anything of this run alone
			next.Runs, next.SameUpTo = nil, c.resumed()
			next.Same = append([]schema.RunID{c.config.RunID, before.Runs[0]}, before.Same...)
		}
		next.Runs = append(next.Runs, before.Runs...)
		next.Runs = next.Runs[:min(len(next.Runs), carriedMax)]
		if next.Runs[0] != c.config.RunID { // but come back from it
			next.Runs = slices.Insert(next.Runs, 0, c.config.RunID)
		}
	}
	c.regather.next = next
	return decisions
}

// joinCarried has the run end for a newcomer, which finds a place in the next one, or says why there is none.
func (c *Coordinator) joinCarried(now time.Time, from schema.Member, j *schema.Join) []Decision {
	if refused := c.barred(j); refused != nil {
		return c.Refuse(from, refused)
	}
	if i, ok := c.find(j.Was); ok && j.Run == c.config.RunID && j.Process != "" && c.members[i].process == j.Process {
		c.lose(i) // its session has ended, though nobody has heard of it
		return c.goOn(schema.EndFailed, j.Was, fmt.Sprintf("trainer %s on %s comes back", j.Was, j.Host), true)
	}
	vacant := func(m member) bool { return m.lost() && !m.complete }
	trains := func(m member) bool { return m.here() && !m.complete }
	if len(c.members) == c.config.Job.Trainers && !slices.ContainsFunc(c.members, vacant) ||
		!slices.ContainsFunc(c.members, trains) { // who has come to the end needs nobody
		return c.Refuse(from, c.fullFor(now, j))
	}
	if refused := c.unreachable(j); refused != nil {
		return c.Refuse(from, refused)
	}
	decisions := c.goOn(schema.EndStopped, from, "a trainer has come from "+j.Host, true)
	if c.regather.next.newcomer = j.Host; c.config.Carried != nil {
		c.regather.next.barred, c.regather.next.why = c.config.Carried.barred, c.config.Carried.why
	}
	return decisions
}

// barred refuses a trainer that others have not reached a moment ago.
func (c *Coordinator) barred(j *schema.Join) *schema.Refused {
	k := c.config.Carried
	if k == nil || k.barred == "" || k.barred != j.Host {
		return nil
	}
	return &schema.Refused{Reason: "invalid_job", Field: "url", Want: j.URL, Text: schema.Clip(fmt.Sprintf(
		"the others have not reached the data server of this trainer at %s: %s", j.URL, k.why))}
}

// unreachable refuses a newcomer on another machine than a member where one of them listens on its own machine alone.
func (c *Coordinator) unreachable(j *schema.Join) *schema.Refused {
	machine := func(process string) string {
		boot, _, _ := strings.Cut(process, "/")
		return boot
	}
	for i := range c.members {
		m := &c.members[i]
		if !m.here() || m.process == "" || j.Process == "" || machine(m.process) == machine(j.Process) {
			continue
		}
		for _, one := range []struct{ url, host string }{{j.URL, j.Host}, {m.url, m.host}} {
			if u, err := url.Parse(one.url); err != nil || !net.ParseIP(u.Hostname()).IsLoopback() {
				continue
			}
			return &schema.Refused{Reason: "invalid_job", Field: "url", Want: j.URL, Text: fmt.Sprintf(
				"the trainer on %s listens to others at %s, which leads to it on its own machine alone, and there are others on "+
					"other machines: give all of them a token (--token-file), or say where to listen (--data-host)", one.host,
				one.url)}
		}
	}
	return nil
}

// goOnFrom has the run, which has begun from nothing, end for a trainer that comes back from one that was lost with the
// ps before this one. Both runs have the same manifest, so what either has at a version is the same.
func (c *Coordinator) goOnFrom(from schema.Member, j *schema.Join) []Decision {
	version, run := j.Has, j.Run
	if v := j.Saved; version == 0 {
		version, run = v.Version, v.Run
	}
	decisions := c.goOn(schema.EndStopped, from, fmt.Sprintf(
		"a trainer has come back from %s with version %d of a run that was lost", j.Host, version), true)
	c.regather.next.Runs = append(c.regather.next.Runs, run)
	c.regather.next.Trainers = c.config.Job.Trainers
	return decisions
}

// come notes a trainer that has come back, or anew. It is answered when the run begins.
func (c *Coordinator) come(now time.Time, from schema.Member, j *schema.Join) []Decision {
	refused := cmp.Or(c.differs(j), c.barred(j))
	switch {
	case refused != nil:
	case j.URL == "":
		refused = c.noURL()
	case c.config.Carried.ByHand && !j.Resume:
		refused = c.refuseResume(false)
	}
	if refused != nil {
		return c.Refuse(from, refused)
	}
	var decisions []Decision
	known := cmp.Or(c.config.Carried.Trainers, c.config.Job.Trainers)
	all := &c.regather.comers
	i := slices.IndexFunc(*all, func(k comer) bool { return k.is(from, j) })
	if i < 0 {
		if len(*all) == c.config.Job.Trainers {
			return c.Refuse(from, c.fullFor(now, j))
		}
		*all = append(*all, comer{first: now})
		i = len(*all) - 1
		c.grew.Begin(now)
		decisions = []Decision{{Who: from, Note: fmt.Sprintf("trainer on %s has come, with version %d, %d of %d", j.Host,
			c.bringsOf(j).newest, len(*all), known)}}
	}
	k := &(*all)[i]
	k.name, k.join, k.brings = from, j, c.bringsOf(j)
	k.Begin(now)
	switch {
	case len(*all) < known:
	case !c.lacksAll():
		decisions = append(decisions, c.gathered(now)...)
	case c.config.Carried.ByHand:
		decisions = append(decisions, c.turnAwayComers(c.nothingSaved())...)
	}
	return decisions
}

// nothingSaved says that a job cannot be resumed.
func (c *Coordinator) nothingSaved() string {
	return fmt.Sprintf("job %s cannot be resumed: none of its trainers has a durable version of it in its "+
		"--checkpoint-dir: start it without --resume", c.config.Job.Name)
}

// newestHere is the newest version that one of those who have come has, and of which run: the newest, of several. Where
// nobody knows which run went on from which, what is in memory goes first, and then what was written last.
func (c *Coordinator) newestHere() (newest schema.Version, run schema.RunID) {
	age := func(r schema.RunID) int { return slices.Index(c.config.Carried.Runs, r) }
	var last int64
	for i := range c.regather.comers {
		b, at := &c.regather.comers[i].brings, int64(0)
		if c.config.Carried.ByHand || c.config.Carried.EndedMS == 0 {
			if at = b.saved; at == 0 { // it is in memory
				at = math.MaxInt64
			}
		}
		newer := b.newest > newest || b.newest == newest && age(b.run) < age(run)
		if b.newest > 0 && (at > last || at == last && newer) {
			newest, run, last = b.newest, b.run, at
		}
	}
	return newest, run
}

// common is the version that the run begins with: the newest, or the one before it where more of those who have come
// have that. To compute a batch again takes less than to get all of the job from others.
func (c *Coordinator) common() (schema.Version, schema.RunID) {
	newest, run := c.newestHere()
	if newest < 2 || newest <= c.config.Job.StartVersion() || c.holders(newest-1, run) <= c.holders(newest, run) {
		return newest, run
	}
	return newest - 1, run
}

// holders is how many have a version.
func (c *Coordinator) holders(v schema.Version, run schema.RunID) (n int) {
	for i := range c.regather.comers {
		if c.has(&c.regather.comers[i], v, run) {
			n++
		}
	}
	return n
}

// lacksAll reports that nobody has come who has anything of what the run before had. What came of the first batch can
// be had again.
func (c *Coordinator) lacksAll() bool {
	start := c.config.Job.StartVersion()
	newest, _ := c.newestHere()
	return (c.config.Carried.ByHand || c.config.Carried.Begun > schema.Batch(start)+1) && newest <= start
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
	} else if k.EndedMS != 0 { // seen by a ps: they come at once
		within = returnSoonMax
	}
	if !c.grew.Lasts() {
		c.grew.Begin(now)
	}
	enough, waited := here >= max(1, k.Least) && !c.lacksAll(), c.grew.For(now)
	switch {
	case k.ByHand: // whoever starts them says how many there are
		if c.config.StartTimeout > 0 && waited > c.config.StartTimeout {
			return c.turnAwayComers(fmt.Sprintf("trainers that have come within %s: %d, want %d", c.config.StartTimeout, here,
				k.Least))
		}
	case enough && waited >= min(within, c.config.Deadline):
		return c.gathered(now)
	case waited > c.config.Deadline && c.lacksAll():
		return c.turnAwayComers("no trainer is left that had the parameters: start the job again")
	case waited > c.config.Deadline:
		return c.turnAwayComers(fmt.Sprintf("trainers that have come back within %s: %d, want %d",
			rounded(c.config.Deadline), here, max(1, k.Least)))
	}
	for i := range c.regather.comers {
		m := &c.regather.comers[i]
		if now.Sub(m.first) < busyAfter {
			continue
		}
		decisions = append(decisions, Decision{To: m.name, Control: schema.Control{Refused: &schema.Refused{
			Reason: schema.RefusedBusy, Text: fmt.Sprintf("trainers that have come: %d; others are awaited", here)}}})
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
	if k.Trainers > max(1, k.Least) {
		k.Trainers--
	}
	if len(c.regather.comers) >= max(1, k.Trainers) && !c.lacksAll() {
		return c.gathered(now)
	}
	return nil
}

// connectionOf names the connection of a trainer, which goes by its member id or the name that it joined under.
func (c *Coordinator) connectionOf(name schema.Member) string {
	return string(c.config.Job.Name) + "/" + string(name)
}

// noteWorking looks for those who were there and have not come: while the program is at work a session that has ended
// keeps its connections. Where these cannot be seen they are taken to be at work.
func (c *Coordinator) noteWorking(open []string) {
	k := c.config.Carried
	seen := func(name string) bool { return slices.Contains(open, name) }
	c.regather.working = slices.ContainsFunc(k.connections, seen) ||
		(c.config.Unseen || len(k.connections) == 0) && k.Here > len(c.regather.comers)
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
	var run schema.RunID
	r.version, run = c.common()
	if c.config.Carried.ByHand && run != 0 {
		c.config.Carried.Runs = []schema.RunID{run}
	}
	c.lr.decided = c.config.Carried.LR
	for i := range r.comers {
		k := &r.comers[i]
		counts := k.brings.newest > 0 && (k.brings.saved == 0 || c.has(k, r.version, run))
		if counts && len(c.config.Carried.LR) == 0 && len(k.join.LR) > len(c.lr.decided) { // nobody else knows
			c.lr.decided = k.join.LR
		}
	}
	c.members = make([]member, len(r.comers))
	for i, k := range r.comers {
		c.seatAt(now, i, c.generation, k.name, k.join)
		c.members[i].batch = schema.Batch(r.version)
		has := c.has(&k, r.version, run)
		if has {
			r.holders = append(r.holders, schema.TrainerMember(i))
		}
		if r.version > 0 && (!has || k.brings.saved > 0) { // it is at work before it can begin
			c.members[i].state.transition(slotSyncing)
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
