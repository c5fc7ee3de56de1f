package ps

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"gradbus/internal/liveness"
	"gradbus/lane"
	"gradbus/schema"
)

// CoordinatorConfig is what the coordinator of a job is made from. Every field but Gather, WindowBytes,
// Checkpoints, Resume, Returning, ReturnWithin, Doubt and ChunkBytes is needed.
type CoordinatorConfig struct {
	Job          *schema.Job // validated
	RunID        schema.RunID
	Generation   schema.Generation
	ShardServers []ShardServer // of all shards, each once
	Deadline     time.Duration // after which a silent or idle member counts as lost
	Gather       time.Duration // after which a job that waits for trainers ends, where nobody new has joined; 0: never
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
	// Doubt is how many trainers trained in that run, where its ps was only out of reach and may go on with it: more than
	// half of them have to come. 0 is no doubt.
	Doubt int
	// ChunkBytes is what the manifests of trainers have in place of Job's; 0 is Job's, which else trainers are told.
	ChunkBytes int
}

// ShardServer is a ps that has shards of a job.
type ShardServer struct {
	Member schema.Member // p-{id}
	Server schema.DataServer
}

// Coordinator decides who is a member of one job, when it starts and when it ends. It is pure: time comes with every
// call, and what it decides goes out as decisions for its owner to publish. It is not safe for concurrent use.
//
// A job gathers its trainers, runs, and ends: when all have left, or when its policy ends it for one who was lost. An
// ended coordinator decides nothing more.
type Coordinator struct {
	config       CoordinatorConfig
	plan         *schema.Plan
	policy       policy
	phase        Phase
	shards       int // of all shard servers
	members      []member
	shardServers []shardServer
	serial       int               // of what shard servers are told: rises with every change
	generation   schema.Generation // rises when a place is taken from a trainer
	slowest      struct {          // places that were taken because a batch waited for too long
		at    schema.Batch
		times int
	}
	failed      *schema.Failed
	started     time.Time // zero before the start
	ticks       liveness.Ticks
	fewest      int              // missing trainers that there have ever been while the job gathers
	grew        liveness.Silence // since when; before the first Tick it does not last
	blind       liveness.Silence // since nothing can be heard
	standby     standbyAt
	lr          learningRates
	checkpoints checkpointing
	// who left before the start, under the names they joined under; the latest, at most formerMax
	former []schema.Member
}

// formerMax bounds who is remembered of those that left before the start: a job may wait for long.
const formerMax = 256

// Phase is where a job is in its life.
type Phase int

// Phases of a job, in this order.
const (
	Gathering Phase = iota // trainers are missing, or shards are not ready
	Running
	Ended
)

func (p Phase) String() string { return [...]string{"gathering", "running", "ended"}[p] }

// member is the place of one trainer.
type member struct {
	joiner        schema.Member // the name it joined under; empty where the place is free
	host          string
	liveness.Peer // heard of by joins and heartbeats
	batch         schema.Batch
	cluster       bool   // it sends by way of the control cluster
	url           string // of its data server, where trainers reduce among themselves
	left          bool
	why           string // the reason that it left with
	complete      bool   // by its last word it is between two runs, and nothing of its batches is missing
	lost          bool   // in a job that goes on without it
	dead          bool   // its process has ended
	process       string // as of schema.Join

	generation schema.Generation // in which its place was taken last
	by         int               // the trainer who computes its lanes besides its own; -1: itself
	vacancy    *vacancy          // of a place that nobody has; else nil

	waiting     []schema.Waiting // whom its own rounds wait for, where trainers reduce among themselves; at most one
	waited      bool             // rounds wait for it
	waitedBatch schema.Batch
	waitedSince liveness.Silence
}

// Decision is something to publish, to note, or both.
type Decision struct {
	To      schema.Member // where empty, there is nothing to publish
	Control schema.Control
	Note    string        // for the log, where something has changed
	Who     schema.Member // whom the note is about; empty where that is nobody alone
	// Durable, where it is not nil, is the parts of a version that all shards have written.
	Durable []schema.CheckpointPart
	// Record, where it is not nil, is the changes of the learning rates to write into the job's record; LRRecorded is told
	// when that is done.
	Record []schema.LRChange
}

// NewCoordinator makes the coordinator of a job that nobody has joined yet.
func NewCoordinator(config CoordinatorConfig) *Coordinator {
	plan := config.Job.Plan()
	c := &Coordinator{config: config, plan: plan, policy: policyOf(&config), serial: 1, generation: config.Generation,
		members: make([]member, config.Job.Trainers), shardServers: make([]shardServer, len(config.ShardServers))}
	for _, s := range config.ShardServers {
		c.shards += len(s.Server.Shards)
	}
	if config.Resume != nil {
		c.lr.decided = config.Resume.LR
	}
	return c
}

// Phase is where the job is in its life.
func (c *Coordinator) Phase() Phase { return c.phase }

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

// find is the index of the trainer who goes by a name, its member id or the one it joined under.
func (c *Coordinator) find(name schema.Member) (int, bool) {
	for i := range c.members {
		if m := &c.members[i]; m.joiner != "" && (m.joiner == name || schema.TrainerMember(i) == name) {
			return i, true
		}
	}
	return 0, false
}

// Join answers a trainer that wants to take part. A repeated request gets the same answer, brought up to date.
func (c *Coordinator) Join(now time.Time, from schema.Member, j *schema.Join) []Decision {
	if i, ok := c.find(from); ok {
		c.members[i].Begin(now)
		return []Decision{c.joined(i)}
	}
	if j.Run != 0 && j.Run != c.config.RunID && !slices.Contains(c.config.Returning, j.Run) {
		return c.Refuse(from, runOver(c.config.Job.Name))
	}
	if c.phase == Running && c.differs(j) == nil {
		return c.joinRunning(now, from, j)
	}
	if slices.Contains(c.former, from) {
		return nil // said again before it left, and heard late
	}
	i, refused := c.admit(now, j)
	if refused != nil {
		return c.Refuse(from, refused)
	}
	c.members[i] = member{joiner: from, host: j.Host, cluster: j.Data == schema.DataCluster, url: j.URL, by: -1,
		process: j.Process, generation: c.generation}
	c.members[i].Begin(now)
	d := c.joined(i)
	d.Who = schema.TrainerMember(i)
	d.Note = fmt.Sprintf("trainer %s joined from %s, %d missing", d.Who, j.Host, c.missing())
	decisions := []Decision{d}
	if c.members[i].cluster {
		decisions = append(decisions, c.reassign()...)
	}
	return append(decisions, c.start(now)...)
}

// Refuse turns a trainer away that is no member.
func (c *Coordinator) Refuse(from schema.Member, r *schema.Refused) []Decision {
	c.endIfEmpty() // where it was the first, nobody is here
	return []Decision{{To: from, Control: schema.Control{Refused: r}, Note: "join refused: " + r.Text, Who: from}}
}

// admit finds a place for a newcomer, or says why there is none.
func (c *Coordinator) admit(now time.Time, j *schema.Join) (int, *schema.Refused) {
	if refused := c.differs(j); refused != nil {
		return 0, refused
	}
	if j.Resume != (c.config.Resume != nil) && c.config.Returning == nil {
		return 0, c.refuseResume(j.Resume)
	}
	if c.phase != Gathering {
		return 0, c.full()
	}
	if c.plan.Reduces(schema.ByTrainers) && j.URL == "" {
		return 0, &schema.Refused{Reason: "invalid_job", Field: "url", Text: fmt.Sprintf(
			"trainers of job %s reduce among themselves, and this one has no data server: give its url", c.config.Job.Name)}
	}
	if j.Wanted != "" {
		return c.place(now, j.Wanted)
	}
	for i := range c.members {
		if c.members[i].joiner == "" {
			return i, nil
		}
	}
	return 0, &schema.Refused{Reason: "job_full", Text: fmt.Sprintf("job %s has all of its %d trainers", c.config.Job.Name,
		len(c.members))}
}

// differs says in what a newcomer's manifest is another than the job's.
func (c *Coordinator) differs(j *schema.Join) *schema.Refused {
	field, have, want, differs := c.config.Job.WithChunkBytes(cmp.Or(c.config.ChunkBytes,
		c.config.Job.ChunkBytes)).Diff(j.Job)
	if !differs {
		return nil
	}
	return &schema.Refused{Reason: "job_differs", Field: field, Have: have, Want: want,
		Text: fmt.Sprintf("job %s is registered with %s %s, and this trainer has %s", c.config.Job.Name, field, have, want)}
}

// runOver refuses who comes back to a run that is no more.
func runOver(job schema.JobName) *schema.Refused {
	return &schema.Refused{Reason: "job_over",
		Text: fmt.Sprintf("the run of job %s that this trainer was part of has ended", job)}
}

// full refuses who comes too late.
func (c *Coordinator) full() *schema.Refused {
	text := fmt.Sprintf("job %s has started with its %d trainers; choose another name or wait until it has ended",
		c.config.Job.Name, len(c.members))
	if i := slices.IndexFunc(c.members, func(m member) bool { return m.lost }); i >= 0 && c.policy.goesOn() {
		text += fmt.Sprintf(". It goes on without %s, whose place only the process can have that was lost, if it goes on",
			schema.TrainerMember(i))
	}
	return &schema.Refused{Reason: "job_full", Text: text}
}

// place is the place of a member id that a newcomer asks for.
func (c *Coordinator) place(now time.Time, wanted schema.Member) (int, *schema.Refused) {
	number, isTrainer := strings.CutPrefix(string(wanted), "t")
	i, err := strconv.Atoi(number)
	if !isTrainer || err != nil || i < 0 || i >= len(c.members) || schema.TrainerMember(i) != wanted {
		return 0, &schema.Refused{Reason: "invalid_job", Field: "wanted", Want: string(wanted),
			Text: fmt.Sprintf("member %q: the trainers of job %s are t0 to t%d", wanted, c.config.Job.Name, len(c.members)-1)}
	}
	if m := &c.members[i]; m.joiner != "" {
		return 0, &schema.Refused{Reason: "member_taken", Field: "wanted", Want: string(wanted),
			Text: fmt.Sprintf("member %s of job %s is taken by %s, last seen %s ago", wanted, c.config.Job.Name, m.host,
				rounded(m.For(now)))}
	}
	return i, nil
}

func (c *Coordinator) joined(i int) Decision {
	first, count := lane.Share(i, len(c.members), c.config.Job.Lanes)
	chunks := 0
	if c.config.ChunkBytes != 0 {
		chunks = c.config.Job.ChunkBytes
	}
	return Decision{To: c.members[i].joiner, Control: schema.Control{Joined: &schema.Joined{
		Member: schema.TrainerMember(i), RunID: c.config.RunID, Generation: c.members[i].generation, FirstLane: first,
		LaneCount: count,
		Servers:   c.servers(c.members[i].cluster), Shards: c.shards, Missing: c.missing(), Started: c.phase == Running,
		DeadlineMS: c.config.Deadline.Milliseconds(),
		Peers:      c.peers(), WindowBytes: c.config.WindowBytes, ParkedBytes: parkedBytes(c.config.Job),
		ChunkBytes: chunks, LR: c.lr.decided, Version: c.begins(i), Resumed: c.config.Resume.version(),
		Durable: c.config.Checkpoints != nil, Standby: c.standby.url,
	}}}
}

// begins is the version that a trainer begins with.
func (c *Coordinator) begins(i int) schema.Version {
	if c.members[i].generation == c.config.Generation {
		return c.config.Resume.version()
	}
	return c.done()
}

// peers says where all trainers are reached, once they are there, in a job whose trainers reduce among themselves.
func (c *Coordinator) peers() []schema.Peer {
	if !c.plan.Reduces(schema.ByTrainers) || c.phase != Running {
		return nil
	}
	var all []schema.Peer
	for i := range c.members {
		all = append(all, schema.Peer{Member: schema.TrainerMember(i), URL: c.members[i].url})
	}
	return all
}

// missing is the number of trainers that have not joined.
func (c *Coordinator) missing() int {
	n := 0
	for i := range c.members {
		if c.members[i].joiner == "" {
			n++
		}
	}
	return n
}

// start begins the job once nobody and nothing is missing.
func (c *Coordinator) start(now time.Time) []Decision {
	if c.phase != Gathering || !c.ready() || c.missing() > 0 {
		return nil
	}
	return c.begin(now)
}

// begin begins the job.
func (c *Coordinator) begin(now time.Time) []Decision {
	c.phase, c.started = Running, now
	c.checkpoints.since, c.checkpoints.begun = now, schema.Batch(c.first())
	return []Decision{{
		To: schema.All, Control: schema.Control{Start: &schema.Start{RunID: c.config.RunID,
			Batch: schema.Batch(c.config.Resume.version())}},
		Note: fmt.Sprintf("job started, trainers: %d, shards: %d", len(c.members), c.shards),
	}}
}

// Heartbeat notes a sign of life of a trainer, of whose frame h is the head. It reports whether the trainer is a
// member.
func (c *Coordinator) Heartbeat(now time.Time, from schema.Member, h *schema.Head) ([]Decision, bool) {
	i, ok := c.find(from)
	if !ok {
		return nil, false
	}
	if d := c.replaced(i, from, h.Generation); d != nil {
		return d, true
	}
	d, m := c.taken(now, i), &c.members[i]
	m.Begin(now)
	m.batch, m.complete = h.Batch, h.Flags&schema.FlagComplete != 0
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
	i, ok := c.find(from)
	if !ok || c.phase == Running && g < c.members[i].generation {
		return []Decision{{To: from, Control: schema.Control{Left: &schema.Left{}}}} // has left before, or was replaced
	}
	m, name := &c.members[i], schema.TrainerMember(i)
	d := Decision{To: from, Control: schema.Control{Left: &schema.Left{}}, Who: name}
	switch {
	case m.left:
		return []Decision{d}
	case c.phase == Gathering:
		d.Note = fmt.Sprintf("trainer %s left before the start", name)
		if c.former = append(c.former, m.joiner); len(c.former) > formerMax {
			c.former = slices.Delete(c.former, 0, 1)
		}
		*m = member{}
		c.endIfEmpty()
	case l.Reason != "":
		d.Note = fmt.Sprintf("trainer %s left: %s", name, l.Reason)
		// a newcomer that cannot begin gives its place to another one
		if l.HandOver && !m.complete && c.recovers() && (c.others(i) || m.generation > c.config.Generation) {
			d.Note = ""
			text := fmt.Sprintf("trainer %s on %s has left at batch %d: %s", name, m.host, m.batch, l.Reason)
			return append(append([]Decision{d}, c.vacate(now, i, text)...), c.assign()...)
		}
		wasLost := m.lost // and the others went on without it
		m.left, m.why = true, l.Reason
		if wasLost && c.anybody() {
			break
		}
		if c.canDoWithout(m) {
			return append([]Decision{d}, c.goneOn()...)
		}
		return append([]Decision{d},
			c.Fail(name, fmt.Sprintf("trainer %s on %s ended at batch %d: %s", name, m.host, m.batch, l.Reason))...)
	default:
		d.Note = fmt.Sprintf("trainer %s left after %d batches", name, m.batch)
		m.left = true
		return append([]Decision{d}, c.goneOn()...)
	}
	return []Decision{d}
}

// goneOn is what follows where a trainer has left and the others go on.
func (c *Coordinator) goneOn() []Decision {
	c.endIfEmpty()
	if c.policy.excludes() && c.phase != Ended {
		return c.reassign() // no group waits for it
	}
	return nil
}

// endIfEmpty ends a job that nobody is left of.
func (c *Coordinator) endIfEmpty() {
	vacant := func(m member) bool { return m.vacancy != nil }
	inPeace := func(m member) bool { return m.left && m.why == "" }
	if !c.anybody() && (!slices.ContainsFunc(c.members, vacant) || slices.ContainsFunc(c.members, inPeace)) {
		c.phase = Ended
	}
}

// others reports that trainers with a process of their own are there besides one.
func (c *Coordinator) others(than int) bool {
	for i := range c.members {
		if m := &c.members[i]; i != than && m.here() && m.by < 0 {
			return true
		}
	}
	return false
}

// anybody reports that a trainer is there.
func (c *Coordinator) anybody() bool {
	return slices.ContainsFunc(c.members, func(m member) bool { return m.here() })
}

// Fail ends the job and tells every trainer why.
func (c *Coordinator) Fail(who schema.Member, text string) []Decision {
	if c.phase == Ended {
		return nil
	}
	c.phase, c.failed = Ended, &schema.Failed{Member: who, Text: schema.Clip(text)} // with the words of a trainer in it
	return []Decision{{To: schema.All, Control: schema.Control{Failed: c.failed}, Note: "job failed: " + text, Who: who}}
}

// FailServers is Fail where servers of the job are lost: where its versions are durable, or somebody stands by, its
// trainers come back.
func (c *Coordinator) FailServers(who schema.Member, text string) []Decision {
	decisions := c.Fail(who, text)
	if decisions != nil {
		c.failed.Back = c.config.Checkpoints != nil || c.standby.url != ""
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
		job := string(c.config.Job.Name) + "/"
		m.Connection(slices.Contains(names, job+string(m.joiner)) ||
			slices.Contains(names, job+string(schema.TrainerMember(i))))
	}
}

// rounded shortens a duration for people.
func rounded(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}
