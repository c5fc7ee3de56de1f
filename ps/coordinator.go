package ps

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// CoordinatorConfig is what the coordinator of a job is made from. Every field but StartTimeout, WindowBytes,
// Checkpoints, Resume, Returning, ReturnWithin, Here, Doubt, Copies, Process, Incarnation, ChunkBytes, Places and
// Cramped is needed.
type CoordinatorConfig struct {
	Job          *schema.Job // validated
	RunID        schema.RunID
	Generation   schema.Generation
	ShardServers []ShardServer // of all shards, each once
	Deadline     time.Duration // after which a silent member counts as lost, and a slow one that others can replace
	// StallTimeout is how long a live trainer may keep a batch waiting when its loss would end or rewind the job.
	StallTimeout time.Duration
	StartTimeout time.Duration // after which a job that waits for trainers ends, where no new one has joined; 0: never
	// WindowBytes is what a trainer may have under way to one shard at first; 0 says nothing, and trainers begin with 4
	// MiB.
	WindowBytes int64
	// Checkpoints is how often versions are written down; nil: never.
	Checkpoints *CheckpointPolicy
	// Resume is the version that the job begins with; nil: version 0.
	Resume *ResumeFrom
	// Returning are the runs that were lost and that trainers come back from; nil is none. Those who do not are not waited
	// for for long, where others may have their places.
	Returning []schema.RunID
	// ReturnWithin is for how long trainers who come back wait for the others; 0 is 10 s.
	ReturnWithin time.Duration
	// Here is how many trainers there were in the end of the run that they come back from; 0: nobody knows.
	Here int
	// Doubt is how many trainers trained in that run, where its ps was only out of reach and may go on with it: more than
	// half of them have to come. 0 is no doubt.
	Doubt int
	// Copies has other ps keep what the shards have, where they may: see Peers.
	Copies bool
	// Process and Incarnation are of the coordinator's ps, for those who keep shards.
	Process     string
	Incarnation uint64
	// ChunkBytes is what the manifests of trainers have in place of Job's; 0 is Job's, which else trainers are told.
	ChunkBytes int
	// Places is how many trainers the manifests of trainers have, where Job has fewer, since there are no more; 0 is as
	// many.
	Places int
	// Cramped is that there was no room for more.
	Cramped bool
}

// ShardServer is a ps that has shards of a job.
type ShardServer struct {
	Member      schema.Member // p-{id}
	Server      schema.DataServer
	Incarnation uint64 // what it drew at its start; 0: not known
}

// Coordinator decides who is a member of one job, when it starts and when it ends. It is pure: time comes with every
// call, and what it decides goes out as decisions for its owner to publish. It is not safe for concurrent use.
//
// A job has its shards made, gathers its trainers, runs, and ends: when all have left, or when its policy ends it for
// one who was lost. In the state ending it decides nothing more.
type Coordinator struct {
	config       CoordinatorConfig
	plan         *schema.Plan
	policy       policy
	state        jobState
	shards       int // of all shard servers
	members      slots
	shardServers []shardServer
	serial       int               // of what shard servers are told: rises with every change
	generation   schema.Generation // rises when a place is taken from a trainer
	slowest      slowest
	ended        schema.End     // how; empty before
	failed       *schema.Failed // why, where not all trainers left in peace
	started      time.Time      // zero before the start
	ticks        liveness.Ticks
	fewest       int              // missing trainers that there have ever been while the job gathers
	grew         liveness.Silence // since when; before the first Tick it does not last
	blind        liveness.Silence // since nothing can be heard
	standby      standbyAt
	lr           learningRates
	checkpoints  checkpointing
	newcomers    newcomers
	copies       copies
	// who left before the start, under the names they joined under; the latest, at most formerMax
	former []schema.Member
}

// slowest counts places that were taken because a batch waited for too long.
type slowest struct {
	at    schema.Batch
	times int
}

// formerMax bounds who is remembered of those that left before the start: a job may wait for long.
const formerMax = 256

// Decision is something to publish, to note, or both.
type Decision struct {
	To      schema.Member // where empty, there is nothing to publish
	Control schema.Control
	Note    string        // for the log, where something has changed
	Who     schema.Member // whom the note is about; empty where that is nobody alone
	// Written, where it is not nil, is a version whose parts all shards have written. Completed is told what became of it.
	Written *Written
	// Record, where it is not nil, is the changes of the learning rates to write into the job's record; LRRecorded is told
	// when that is done.
	Record []schema.LRChange
	// Later is the time after which BeginCopies is to be called; 0 is that it is not.
	Later time.Duration
}

// NewCoordinator makes the coordinator of a job that nobody has joined yet.
func NewCoordinator(config CoordinatorConfig) *Coordinator {
	plan := config.Job.Plan()
	c := &Coordinator{config: config, plan: plan, policy: policyOf(&config), state: jobPlacing, serial: 1,
		generation: config.Generation, members: make(slots, config.Job.Trainers),
		shardServers: make([]shardServer, len(config.ShardServers))}
	for _, s := range config.ShardServers {
		c.shards += len(s.Server.Shards)
	}
	c.heardShards()
	if config.Resume != nil {
		c.lr.decided = config.Resume.LR
	}
	return c
}

// placing reports whether not every ps that is to make shards has answered.
func (c *Coordinator) placing() bool { return c.state == jobPlacing }

// gathers reports whether the job has yet to start.
func (c *Coordinator) gathers() bool { return c.placing() || c.state == jobGathering }

// hasStarted reports whether the job has started, and may have ended since.
func (c *Coordinator) hasStarted() bool { return !c.started.IsZero() }

// running reports whether the job has started and goes on.
func (c *Coordinator) running() bool { return c.state == jobRunning }

// over reports whether the end of the job is decided.
func (c *Coordinator) over() bool { return c.state >= jobEnding }

// finish ends a job that is ending. Its last version is on the disk.
func (c *Coordinator) finish() {
	if c.state == jobEnding {
		c.state.transition(jobEnded)
	}
}

// heardShards has the job gather trainers once every ps with shards of it has answered.
func (c *Coordinator) heardShards() {
	if c.placing() && c.unheard() < 0 {
		c.state.transition(jobGathering)
	}
}

// counted is a batch as people count: see schema.Job.Counted.
func (c *Coordinator) counted(b schema.Batch) schema.Batch { return c.config.Job.Counted(b) }

// Failed says why the job ended; nil while it has not, or where all trainers left in peace.
func (c *Coordinator) Failed() *schema.Failed { return c.failed }

// Joiners are the names under which trainers joined, of those who are members and those who left before the start.
func (c *Coordinator) Joiners() []schema.Member {
	all := slices.Clone(c.former)
	for i := range c.members {
		if name := c.members[i].joiner; name != "" {
			all = append(all, name)
		}
	}
	return all
}

// processOf returns the process that has a slot, and the generation since which it does; empty where none has.
func (c *Coordinator) processOf(i int) (process string, _ schema.Generation) {
	m := &c.members[i]
	if m.here() {
		process = m.process
	}
	return process, m.generation
}

// start begins the job once nobody and nothing is missing.
func (c *Coordinator) start(now time.Time) []Decision {
	if !c.gathers() || !c.ready() || c.members.missing() > 0 {
		return nil
	}
	return c.begin(now)
}

// begin begins the job.
func (c *Coordinator) begin(now time.Time) []Decision {
	c.state.transition(jobRunning)
	c.started = now
	c.checkpoints.since, c.checkpoints.begun = now, schema.Batch(c.first())
	for i := range c.members {
		if m := &c.members[i]; m.state == slotJoining && c.resumed() > 0 {
			m.state.transition(slotSyncing)
		}
	}
	d := Decision{
		To: schema.All, Control: schema.Control{Start: &schema.Start{RunID: c.config.RunID,
			Batch: schema.Batch(c.resumed())}},
		Note: fmt.Sprintf("job started, trainers: %d, shards: %d", len(c.members), c.shards),
	}
	if whyNotKept(c.config.Job) == "" {
		d.Later = copiesAfter
	}
	return []Decision{d}
}

// Heartbeat notes a sign of life of a trainer, of whose frame h is the head. It reports whether the trainer is a
// member.
func (c *Coordinator) Heartbeat(now time.Time, from schema.Member, h *schema.Head) ([]Decision, bool) {
	i, ok := c.members.find(from)
	if !ok {
		return nil, false
	}
	if d := c.replaced(i, from, h.Generation); d != nil {
		return d, true
	}
	d, m := c.taken(now, i), &c.members[i]
	m.Begin(now)
	if from == schema.TrainerMember(i) {
		m.key = 0 // it has heard that it has the place
	}
	// a trainer that has yet to receive what the run begins with says 0
	if m.state == slotJoining && h.Batch > 0 || m.state == slotSyncing && h.Batch >= max(1, schema.Batch(c.resumed())) {
		m.state.transition(slotActive)
	}
	m.batch, m.complete = max(h.Batch, schema.Batch(c.resumed())), h.Flags&schema.FlagComplete != 0
	return d, true
}

// replaced tells who has a place no more that it is another's.
func (c *Coordinator) replaced(i int, from schema.Member, g schema.Generation) []Decision {
	if g >= c.members[i].generation {
		return nil
	}
	return []Decision{{To: from, Control: schema.Control{Refused: &schema.Refused{Reason: schema.RefusedReplaced,
		Have: strconv.Itoa(int(c.members[i].generation)), Want: strconv.Itoa(int(g)),
		Text: fmt.Sprintf("the place of %s was taken from generation %d of the job and is in generation %d: join anew", from,
			g, c.members[i].generation)}}}}
}

// Leave ends a trainer's membership. A reason fails the job for the others, once it runs, unless they do not wait for
// it: in async, or where all batches of the trainer are complete.
func (c *Coordinator) Leave(now time.Time, from schema.Member, g schema.Generation, l *schema.Leave) []Decision {
	i, ok := c.members.find(from)
	if !ok || c.running() && g < c.members[i].generation {
		return []Decision{{To: from, Control: schema.Control{Left: &schema.Left{}}}} // has left before, or was replaced
	}
	m, name := &c.members[i], schema.TrainerMember(i)
	d := Decision{To: from, Control: schema.Control{Left: &schema.Left{}}, Who: name}
	switch {
	case m.state == slotDone, m.state == slotVacant:
		return []Decision{d}
	case c.gathers():
		d.Note = fmt.Sprintf("trainer %s left before the start", name)
		c.forget(m.joiner)
		m.become(slotVacant, member{})
		c.endIfEmpty()
	case l.Reason != "":
		d.Note = fmt.Sprintf("trainer %s left: %s", name, l.Reason)
		handsOver := l.HandOver && !m.complete
		m.ended = l.End
		text := fmt.Sprintf("trainer %s on %s has left at batch %d: %s", name, m.host, c.counted(m.batch), l.Reason)
		// a newcomer that cannot begin gives its place to another one
		if handsOver && c.recovers() && (c.members.others(i) || m.generation > c.config.Generation) {
			d.Note = ""
			return append(append([]Decision{d}, c.vacate(now, i, text)...), c.assign()...)
		}
		before := m.state
		m.leave(l.Reason)
		if before == slotLost && // and the others went on without it
			c.members.anybody() {
			break
		}
		switch {
		case c.canDoWithout(m):
			return append([]Decision{d}, c.goneOn()...)
		case handsOver && c.members.others(i) && (before != slotDraining || c.members.anyStays()):
			return append([]Decision{d}, c.failFor(i, text)...)
		}
		return append([]Decision{d},
			c.Fail(name, fmt.Sprintf("trainer %s on %s ended at batch %d: %s", name, m.host, c.counted(m.batch),
				l.Reason))...)
	default:
		d.Note = fmt.Sprintf("trainer %s left after %d batches", name, c.counted(m.batch))
		m.leave("")
		return append([]Decision{d}, c.goneOn()...)
	}
	return []Decision{d}
}

// goneOn is what follows where a trainer has left and the others go on.
func (c *Coordinator) goneOn() []Decision {
	c.endIfEmpty()
	if c.policy.excludes() && !c.over() {
		return c.reassign() // no group waits for it
	}
	return nil
}

// endIfEmpty ends a job that nobody is left of.
func (c *Coordinator) endIfEmpty() {
	vacant := func(m member) bool { return m.vacancy != nil }
	if !c.over() && !c.members.anybody() &&
		(!slices.ContainsFunc(c.members, vacant) || slices.ContainsFunc(c.members, completed)) {
		c.state.transition(jobEnding)
		c.ended = schema.EndCompleted
		if !c.hasStarted() {
			c.ended = schema.EndStopped
		}
	}
}

// Fail ends the job and tells every trainer why. It is no failure where that trainer was asked to end.
func (c *Coordinator) Fail(who schema.Member, text string) []Decision {
	return c.end(c.endBy(who), who, text)
}

// endBy returns how a job ends because of a member. If the job had lost another trainer for good, a supervisor may
// have ended the rest because of that.
func (c *Coordinator) endBy(who schema.Member) schema.End {
	lost := func(m member) bool { return m.state == slotLost && m.ended == "" }
	if i, ok := c.members.find(who); ok && c.members[i].ended != "" && !slices.ContainsFunc(c.members, lost) {
		return c.members[i].ended
	}
	return schema.EndFailed
}

// end ends the job and tells every trainer how and why.
func (c *Coordinator) end(how schema.End, who schema.Member, text string) []Decision {
	if c.over() {
		return nil
	}
	c.state.transition(jobEnding)
	c.ended = how
	c.failed = &schema.Failed{Member: who, Text: schema.Clip(text)} // with the words of a trainer in it
	if how == schema.EndStopped {
		c.failed.End = how
	}
	return []Decision{{To: schema.All, Control: schema.Control{Failed: c.failed}, Note: "job " + string(how) + ": " + text,
		Who: who}}
}

// FailBack is Fail where the job may go on: where its versions are durable, or somebody stands by, its trainers come
// back.
func (c *Coordinator) FailBack(who schema.Member, text string) []Decision {
	return c.endBack(c.endBy(who), who, text)
}

// endBack is end where the job may go on: see FailBack.
func (c *Coordinator) endBack(how schema.End, who schema.Member, text string) []Decision {
	decisions := c.end(how, who, text)
	if decisions != nil {
		c.failed.Back = c.config.Checkpoints != nil || c.standby.url != "" || c.copies.whole > 0
		if c.failed.Back && c.goesBack() {
			decisions[0].Note = c.failed.Text
		}
	}
	return decisions
}

// Connections says which connections the server has open, by name ("job/member", or the name a trainer joined under).
// A trainer whose connection was there and is gone counts as lost sooner.
func (c *Coordinator) Connections(names []string) {
	for i := range c.members {
		m := &c.members[i]
		if m.joiner == "" {
			continue
		}
		m.Connection(slices.Contains(names, c.connectionOf(m.joiner)) ||
			slices.Contains(names, c.connectionOf(schema.TrainerMember(i))))
		m.noteLag()
	}
}

// connectionOf names the connection of a trainer, which goes by its member id or the name that it joined under.
func (c *Coordinator) connectionOf(name schema.Member) string {
	return string(c.config.Job.Name) + "/" + string(name)
}

// rounded shortens a duration for people.
func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
