// Package coordinator decides about one job: which trainers join, when it starts, which versions are written and
// copied, and what follows when a trainer or a ps is lost. Its owner makes a Coordinator (New), tells it of each event
// with the time (Join, Heartbeat, Report, Tick), and carries out the decisions that come back. It asks no clock, starts
// no goroutine, sends nothing and reads no file.
//
//   - states.go has the states of jobs and slots, slots.go the slots, shard_servers.go the ps that have shards.
//   - coordinator.go has the events: joins, leaves, reports and the end, and what reports have of the job.
//   - loss.go chooses what a lost trainer leads to. takeover.go finds lost and slow trainers, and gives their slots to
//     others. rescale.go gathers the trainers of a restarted job, and chooses how many slots the next run has.
//   - admission.go decides which trainers may join, checkpoints.go which versions are written, lr.go changes of the
//     learning rates, replicas.go which ps have replicas.
//
// The scripts in testdata are the place to begin: change one, run go test -rewrite and look at the difference.
package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gradbus/internal/liveness"
	"gradbus/lane"
	"gradbus/schema"
)

// Config is what the coordinator of a job is made from. Every field but StartTimeout, WindowBytes,
// Checkpoints, Resume, Rejoining, RejoinWithin, TrainersBefore, Voters, RecordDecides, Process, Incarnation, ChunkBytes,
// SlotsMax and MemoryFull is needed.
type Config struct {
	Job          *schema.Job // validated
	RunID        schema.RunID
	Generation   schema.Generation
	ShardServers []ShardServer // of all shards, each once
	Deadline     time.Duration // after which a silent member counts as lost, and a slow one that others can replace
	// StallTimeout bounds the time for which a live trainer may keep a batch waiting when its loss would end or rewind
	// the job.
	StallTimeout time.Duration
	StartTimeout time.Duration // after which a job that waits for trainers ends, where no new one has joined; 0: never
	// WindowBytes bounds the bytes that a trainer may have in flight to one shard at first; 0: not set, and trainers
	// begin with 4 MiB.
	WindowBytes int64
	// ParkedBytes bounds each shard's parked lookups of a trainer.
	ParkedBytes int64
	// Checkpoints is the interval of checkpoints; nil: none.
	Checkpoints *CheckpointPolicy
	// Resume is the version that the job begins with; nil: version 0.
	Resume *ResumeFrom
	// Rejoining are the interrupted runs whose trainers rejoin, the latest first; nil: none.
	Rejoining []schema.RunID
	// RejoinWithin bounds the time for which trainers that rejoin wait for the others; 0: 10 s.
	RejoinWithin time.Duration
	// TrainersBefore is the number of trainers of the interrupted run at its end; 0: not known.
	TrainersBefore int
	// Voters are the trainers of that run, if its ps may still continue it: more than half of them must join before the
	// run starts, and other trainers join after that. Empty: its ps is known to have ended.
	Voters []schema.Voter
	// RecordDecides reports that several ps hold replicas for each other: the job's record decides which of them has it.
	RecordDecides bool
	// Process and Incarnation are of the coordinator's ps, for the ps that have replicas.
	Process     string
	Incarnation uint64
	// ChunkBytes is the chunk size in the manifests of trainers, if it differs from Job's; 0: Job's.
	ChunkBytes int
	// SlotsMax is the number of slots in the manifests of trainers, if Job has fewer; 0: as many.
	SlotsMax int
	// MemoryFull says that there was no memory for more slots than Job has.
	MemoryFull bool
}

// ShardServer is a ps that has shards of a job.
type ShardServer struct {
	Member      schema.Member // p-{id}
	Server      schema.DataServer
	Incarnation uint64 // what it drew at its start; 0: not known
}

// Coordinator decides which trainers are members of one job, when it starts and when it ends. It is pure: time comes
// with every call, and its decisions are return values, which its owner publishes. It is not safe for concurrent use.
//
// A job has its shards made, gathers its trainers, runs, and ends: when all have left, or when its policy ends it
// because of a lost trainer. In the state ending the coordinator decides nothing more.
type Coordinator struct {
	config       Config
	plan         *schema.Plan
	onLoss       lossAction
	state        JobState
	shards       int // of all shard servers
	members      slots
	shardServers shardServers
	serial       int               // of the latest assignment
	assigned     int               // serial that shard servers were told last; Tick repeats it
	generation   schema.Generation // rises when a slot is taken from a trainer
	detector     detector
	ended        schema.End    // how; empty before
	failed       *schema.Ended // why, where not all trainers left in peace
	started      time.Time     // zero before the start
	ticks        liveness.Ticks
	gathering    gathering
	blind        liveness.Silence // since nothing can be heard
	successor    successor
	record       voterRecord
	lr           learningRates
	checkpoints  checkpointing
	newcomers    newcomers
	replicas     replicas
	admission    admission
}

// Decision is something to publish, to note, or both.
type Decision struct {
	To      schema.Member // empty: there is nothing to publish
	Control schema.Control
	Note    string        // for the log; empty: nothing has changed
	Who     schema.Member // the member that the note is about; empty: no single one
	// Written is a version whose parts all shards have written; nil: none. Its outcome goes to Completed.
	Written *Written
	// Record is the changes of the learning rates to write into the job's record; nil: none. Recorded follows.
	Record []schema.LRChange
	// Voters are to be written into the job's record; nil: none. Recorded follows.
	Voters []schema.Voter
	// Later is the time after which BeginReplicas is due; 0: it is not.
	Later time.Duration
}

// New makes the coordinator of a job that no trainer has joined yet.
func New(config Config) *Coordinator {
	plan := config.Job.Plan()
	c := &Coordinator{config: config, plan: plan, onLoss: lossActionOf(config.Job), state: Placing, serial: 1,
		generation: config.Generation, members: make(slots, config.Job.Trainers), lr: learningRates{job: config.Job}}
	for _, s := range config.ShardServers {
		c.shards += len(s.Server.Shards)
		c.shardServers = append(c.shardServers, shardServer{ShardServer: s})
	}
	c.detector = detector{job: config.Job, onLoss: c.onLoss, deadline: config.Deadline, stallTimeout: config.StallTimeout}
	c.admission = admission{config: &c.config, onLoss: c.onLoss}
	c.checkpoints = checkpointing{job: config.Job, policy: config.Checkpoints, resume: config.Resume,
		hosts: config.ShardServers, shards: c.shards}
	c.replicas = replicas{config: &c.config, shards: c.shards}
	if err := CheckReplicas(config.Job); err != nil {
		c.replicas.off = err.Error()
	}
	c.record.decides = config.RecordDecides && c.replicas.off == ""
	if c.shardServers.unheard() < 0 {
		c.state.Transition(Gathering)
	}
	if config.Resume != nil {
		c.lr.decided = config.Resume.LR
	}
	return c
}

// State returns the state of the run.
func (c *Coordinator) State() JobState { return c.state }

// Finish ends a job that is ending. Its last version is on the disk.
func (c *Coordinator) Finish() {
	if c.state == Ending {
		c.state.Transition(Ended)
	}
}

// Outcome is how a run has ended, and what the next one has of it.
type Outcome struct {
	Failed *schema.Ended // why it ended; nil: it has not, or all trainers have completed it
	Began  bool          // it had started
	// LacksQuorum reports that the ps with the replica may continue the job with the trainers that are lost.
	LacksQuorum bool
	Joiners     []schema.Member // names under which trainers joined: of members, and of those that left before the start
	PutOff      []schema.Member // trainers that were refused as busy until the job ended
	// NextTrainers is how many slots the next run has: 0 is as many as the manifest. It is as many as this one if that had
	// not begun and was not given up.
	NextTrainers int
}

// Outcome returns how the run has ended.
func (c *Coordinator) Outcome() Outcome {
	o := Outcome{Failed: c.failed, Began: !c.started.IsZero(), LacksQuorum: c.successor.lacksQuorum(c.members.voters()),
		Joiners: slices.Concat(c.admission.former, c.members.joiners())}
	if c.state.IsOver() && c.failed == nil && o.Began {
		o.PutOff = c.newcomers.names()
	}
	switch {
	case c.onLoss != lossRescale:
	case c.failed == nil && !o.Began && c.config.SlotsMax != 0:
		o.NextTrainers = len(c.members)
	case c.failed != nil && c.failed.Back:
		if n := c.members.here(c.failed.Member); n > 0 {
			o.NextTrainers = min(n+len(c.newcomers.all), c.admission.places())
		}
	}
	return o
}

// start begins the job once all trainers have joined and all shards are ready.
func (c *Coordinator) start(now time.Time) []Decision {
	if !c.state.Gathers() || !c.shardServers.ready(c.serial) || c.members.missing() > 0 || !c.admission.mayStart(c.members) {
		return nil
	}
	return c.begin(now)
}

// begin begins the job.
func (c *Coordinator) begin(now time.Time) []Decision {
	c.state.Transition(Running)
	c.started = now
	c.checkpoints.since, c.checkpoints.begun = now, schema.Batch(c.checkpoints.first())
	for i := range c.members {
		if m := &c.members[i]; m.state == slotJoining && c.config.Resume.version() > 0 {
			m.state.transition(slotSyncing)
		}
	}
	d := Decision{
		To: schema.All, Control: schema.Control{Start: &schema.Start{}},
		Note: fmt.Sprintf("job started, trainers: %d, shards: %d", len(c.members), c.shards),
	}
	if c.replicas.off == "" {
		d.Later = replicateAfter
	}
	return append([]Decision{d}, c.record.note(c.members.voters())...)
}

// Heartbeat notes a sign of life of a trainer, of whose frame h is the head. It reports whether the trainer is a
// member.
func (c *Coordinator) Heartbeat(now time.Time, from schema.Member, h *schema.Head) ([]Decision, bool) {
	i, ok := c.members.find(from)
	if !ok {
		return nil, false
	}
	if d := c.members.replaced(i, from, h.Generation); d != nil {
		return d, true
	}
	d, m := c.members.taken(now, i), &c.members[i]
	m.Begin(now)
	if from == schema.TrainerMember(i) {
		m.key = 0 // it has heard that it has the slot
	}
	// a trainer that has yet to receive what the run begins with says 0
	begun := schema.Batch(c.config.Resume.version())
	if m.state == slotJoining && h.Batch > 0 || m.state == slotSyncing && h.Batch >= max(1, begun) {
		m.state.transition(slotActive)
	}
	m.batch, m.complete = max(h.Batch, begun), h.Flags&schema.FlagComplete != 0
	return d, true
}

// Leave ends a trainer's membership. A reason fails the job for the others, once it runs, unless they do not wait for
// it: in async, or where all batches of the trainer are complete.
func (c *Coordinator) Leave(now time.Time, from schema.Member, g schema.Generation, l *schema.Leave) []Decision {
	i, ok := c.members.find(from)
	if !ok || c.state == Running && g < c.members[i].generation {
		return []Decision{{To: from, Control: schema.Control{Ended: &schema.Ended{End: schema.EndCompleted}}}} // has left before, or was replaced
	}
	m, name := &c.members[i], schema.TrainerMember(i)
	before, at := m.state, c.config.Job.Counted(m.batch)
	d := []Decision{{To: from, Control: schema.Control{Ended: &schema.Ended{End: schema.EndCompleted}}, Who: name}}
	switch {
	case before == slotDone, before == slotVacant:
		return d
	case c.state.Gathers():
		d[0].Note = fmt.Sprintf("trainer %s left before the start", name)
		c.admission.forget(m.joiner)
		m.become(slotVacant, member{})
		c.endIfEmpty()
		return d
	case l.Reason == "":
		d[0].Note = fmt.Sprintf("trainer %s left after %d batches", name, at)
		m.leave("")
	default:
		handsOver := l.HandOver && !m.complete
		m.ended = l.End
		text := fmt.Sprintf("trainer %s on %s has left at batch %d: %s", name, m.host, at, l.Reason)
		// a newcomer that cannot begin gives its slot to another one
		if handsOver && c.detector.replaces(c.members) && (c.members.others(i) || m.generation > c.config.Generation) {
			return c.withAssignment(append(d, c.vacate(now, i, text)...))
		}
		d[0].Note = fmt.Sprintf("trainer %s left: %s", name, l.Reason)
		m.leave(l.Reason)
		switch {
		case before == slotLost && c.members.anyHere(): // and the others went on without it
			return d
		case c.detector.canDoWithout(c.members, m):
		case handsOver && c.members.others(i) && (before != slotDraining || c.members.anyStays()):
			return append(d, c.failFor(i, text)...)
		default:
			return append(d, c.Fail(name, fmt.Sprintf("trainer %s on %s ended at batch %d: %s", name, m.host, at,
				l.Reason))...)
		}
	}
	c.endIfEmpty()
	if c.onLoss == lossExclude {
		c.serial++ // no group waits for it
	}
	return c.withAssignment(d)
}

// endIfEmpty ends a job without trainers.
func (c *Coordinator) endIfEmpty() {
	vacant := func(m member) bool { return m.vacancy != nil }
	if !c.state.IsOver() && !c.members.anyHere() &&
		(!slices.ContainsFunc(c.members, vacant) || slices.ContainsFunc(c.members, completed)) {
		c.state.Transition(Ending)
		c.ended = schema.EndCompleted
		if c.started.IsZero() {
			c.ended = schema.EndStopped
		}
	}
}

// Fail ends the job and tells every trainer why. It is no failure where that trainer was asked to end.
func (c *Coordinator) Fail(who schema.Member, text string) []Decision {
	return c.end(c.members.endBy(who), who, text)
}

// end ends the job and tells every trainer how and why.
func (c *Coordinator) end(how schema.End, who schema.Member, text string) []Decision {
	if c.state.IsOver() {
		return nil
	}
	c.state.Transition(Ending)
	c.ended = how
	c.failed = &schema.Ended{Member: who, Text: schema.Clip(text)} // with the words of a trainer in it
	if how == schema.EndStopped {
		c.failed.End = how
	}
	return []Decision{{To: schema.All, Control: schema.Control{Ended: c.failed}, Note: "job " + string(how) + ": " + text,
		Who: who}}
}

// Restart ends the run and tells every trainer how and why; how is empty where that follows from the member. If versions
// are durable or a replica exists, the trainers rejoin the next run.
func (c *Coordinator) Restart(how schema.End, who schema.Member, text string) []Decision {
	decisions := c.end(cmp.Or(how, c.members.endBy(who)), who, text)
	if decisions != nil {
		c.failed.Back = c.config.Checkpoints != nil || c.successor.url != "" || c.replicas.whole > 0
		if c.failed.Back && c.onLoss.restarts() {
			decisions[0].Note = c.failed.Text
		}
	}
	return decisions
}

// Connections notes which connections the server has open, by name ("job/member", or the name that a trainer joined
// under). A trainer whose connection is gone counts as lost sooner.
func (c *Coordinator) Connections(names []string) {
	open := func(name schema.Member) bool {
		return slices.Contains(names, string(c.config.Job.Name)+"/"+string(name))
	}
	for i := range c.members {
		if m := &c.members[i]; m.joiner != "" {
			m.Connection(open(m.joiner) || open(schema.TrainerMember(i)))
			m.noteLag()
		}
	}
}

// Join answers a trainer that wants to take part. A repeated request gets the same answer, brought up to date.
func (c *Coordinator) Join(now time.Time, from schema.Member, j *schema.Join) []Decision {
	if i, ok := c.members.find(from); ok {
		c.members[i].Begin(now)
		return []Decision{c.joined(i)}
	}
	if slices.Contains(c.admission.former, from) {
		return nil // said again before it left, and heard late
	}
	switch {
	case c.state == Running && j.Run == c.config.RunID && c.members.hasPromised(j):
		return postponed(from, fmt.Sprintf("the trainer on %s has promised the ps at %s to follow it, and can return when its "+
			"slot is free", j.Host, c.successor.url))
	case len(c.config.Voters) > 0 && !IsVoter(c.config.Voters, j.Number) && c.state.Gathers():
		return postponed(from, "more than half of the trainers of the job's last run must join first: its ps may still be "+
			"running")
	}
	if j.Run != 0 && j.Run != c.config.RunID && !slices.Contains(c.config.Rejoining, j.Run) {
		return c.Refuse(from, RunOver(c.config.Job.Name))
	}
	if i, ok := c.members.asking(j); ok {
		generation := c.members[i].generation
		c.admission.forget(c.members[i].joiner)
		c.members[i].become(slotVacant, member{})
		return c.withAssignment(c.seat(now, i, generation, from, j, fmt.Sprintf(
			"trainer %s asked again from %s, and had not heard that it has joined", schema.TrainerMember(i), j.Host)))
	}
	if c.state == Running && c.admission.differs(j) == nil {
		return c.joinRunning(now, from, j)
	}
	i, refused := c.admission.admit(now, c.members, c.state.Gathers(), j)
	if refused != nil {
		return c.Refuse(from, refused)
	}
	decisions := c.seat(now, i, c.generation, from, j, "")
	decisions[0].Note = fmt.Sprintf("trainer %s joined from %s, %d missing", decisions[0].Who, j.Host, c.members.missing())
	return append(c.withAssignment(decisions), c.start(now)...)
}

// postponed has a trainer ask again.
func postponed(from schema.Member, why string) []Decision {
	return []Decision{{To: from, Control: schema.Control{Refused: &schema.Refused{Reason: schema.RefusedBusy,
		Text: schema.Clip(why)}}}}
}

// seat gives a slot to a newcomer in a generation.
func (c *Coordinator) seat(now time.Time, i int, g schema.Generation, who schema.Member, j *schema.Join,
	note string) []Decision {
	m := &c.members[i]
	m.become(slotJoining, member{joiner: who, host: j.Host, cluster: j.Data == schema.DataCluster, url: j.URL,
		by: -1, process: j.Process, key: j.Key, number: j.Number, generation: g})
	m.Begin(now)
	if c.state == Running {
		m.state.transition(slotSyncing)
	}
	if m.cluster {
		c.serial++ // shard servers hear how it is reached
	}
	d := c.joined(i)
	d.Who, d.Note = schema.TrainerMember(i), note
	return []Decision{d}
}

// Refuse refuses a trainer that is no member.
func (c *Coordinator) Refuse(from schema.Member, r *schema.Refused) []Decision {
	c.endIfEmpty() // it may have been the first
	return []Decision{{To: from, Control: schema.Control{Refused: r}, Note: "join refused: " + r.Text, Who: from}}
}

func (c *Coordinator) joined(i int) Decision {
	first, count := lane.Share(i, len(c.members), c.config.Job.Lanes)
	chunks, trainers := 0, 0
	if c.config.ChunkBytes != 0 {
		chunks = c.config.Job.ChunkBytes
	}
	if n := len(c.members); n != c.admission.places() {
		trainers = n
	}
	var peers []string
	if c.plan.Reduces(schema.ByTrainers) && c.state == Running {
		peers = c.members.peers()
	}
	version := c.config.Resume.version()
	if c.members[i].generation != c.config.Generation {
		version = c.shardServers.done(version)
	}
	return Decision{To: c.members[i].joiner, Control: schema.Control{Joined: &schema.Joined{
		Member: schema.TrainerMember(i), RunID: c.config.RunID, Generation: c.members[i].generation, FirstLane: first,
		LaneCount: count,
		Servers:   c.shardServers.dataServers(c.members[i].cluster), Shards: c.shards, Missing: c.members.missing(),
		Started: c.state == Running, DeadlineMS: c.config.Deadline.Milliseconds(),
		Peers: peers, WindowBytes: c.config.WindowBytes, ParkedBytes: c.config.ParkedBytes,
		ChunkBytes: chunks, Trainers: trainers, LR: c.lr.decided,
		Version: version, Resumed: c.config.Resume.version(),
		Durable: c.config.Checkpoints != nil || c.record.decides, Replica: c.successor.url,
	}}}
}

// Assign tells every shard server its shards. It is the first decision of a coordinator. Tick repeats it to those that
// have not carried it out.
func (c *Coordinator) Assign(now time.Time) []Decision {
	for i := range c.shardServers {
		c.shardServers[i].Begin(now)
	}
	return c.withAssignment(nil)
}

// withAssignment adds to decisions the assignment for the shard servers that have not carried it out, if an event has
// changed it, such as how trainers are reached.
func (c *Coordinator) withAssignment(decisions []Decision) []Decision {
	if c.assigned == c.serial || c.state.IsOver() {
		return decisions
	}
	c.assigned = c.serial
	for i := range c.shardServers {
		if c.shardServers[i].serial != c.serial {
			decisions = append(decisions, c.assignTo(i))
		}
	}
	return decisions
}

func (c *Coordinator) assignTo(i int) Decision {
	s := &c.shardServers[i]
	assign := &schema.Assign{Job: c.config.Job, Serial: c.serial, Shards: c.shards, Own: s.Server.Shards,
		Cluster: []schema.Member{}, WindowBytes: c.config.WindowBytes,
		LR: c.lr.assigned(), Checkpoints: c.checkpoints.assigned(), Since: c.members.generations(c.config.Generation),
		Incarnation: s.Incarnation, Made: s.heard}
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
	return Decision{To: s.Member, Control: schema.Control{Assign: assign}}
}

// Report takes what a ps says of its shards, or a trainer of the rounds that it adds up for all. It reports whether the
// sender has any.
func (c *Coordinator) Report(now time.Time, from schema.Member, r *schema.Report) ([]Decision, bool) {
	i := c.shardServers.find(from)
	if i < 0 {
		at, ok := c.members.find(from)
		if ok = ok && c.plan.Reduces(schema.ByTrainers); ok { // it is one owner, so it waits in one batch at most
			c.members[at].waiting = r.Waiting[:min(1, len(r.Waiting))]
		}
		return nil, ok
	}
	s := &c.shardServers[i]
	behind := r.Serial > s.serial && r.Serial < c.serial // it has carried out what is no longer the latest
	s.Begin(now)
	s.heard, s.ready, s.serial, s.waiting, s.writing = true, r.Ready, r.Serial, r.Waiting, r.Writing
	if c.state == Placing && c.shardServers.unheard() < 0 {
		c.state.Transition(Gathering)
	}
	rose := r.Generation > s.generation
	s.generation, s.done = r.Generation, r.Done
	if behind {
		return []Decision{c.assignTo(i)}, true
	}
	decisions := append(c.start(now), c.agreeLR()...)
	if a := c.checkpoints.wrote(r.Parts); a != nil {
		decisions = append(decisions, Decision{Written: c.checkpoints.written(a, c.lr.decided, c.members.here(""))})
	}
	decisions = append(decisions, c.checkpoints.answer(false)...)
	if rose && c.state == Running {
		decisions = append(decisions, c.offer(now)...)
	}
	return c.withAssignment(decisions), true
}

// ShardServerFailed ends the job because a ps, or one of its shards, cannot continue. It reports whether the ps has
// any.
func (c *Coordinator) ShardServerFailed(from schema.Member, f *schema.Ended) ([]Decision, bool) {
	i := c.shardServers.find(from)
	if i < 0 {
		return nil, false
	}
	text := f.Text
	if len(c.shardServers) > 1 {
		text = fmt.Sprintf("%s: %s", c.shardServers[i].name(), f.Text)
	}
	how := cmp.Or(f.End, schema.EndFailed)
	if f.Back {
		return c.Restart(how, f.Member, text), true
	}
	return c.end(how, f.Member, text), true
}

// ShardServerGone ends the job because a ps has no shards of it any more; how says why.
func (c *Coordinator) ShardServerGone(i int, how string) []Decision {
	return c.Restart("", c.shardServers[i].Member, c.shardServers[i].name()+" "+how)
}

// Completed notes that a version has become durable, or why it cannot. A run ends with it if other trainers wait to
// join or to leave, since each later batch would be computed again.
func (c *Coordinator) Completed(now time.Time, w *Written, err error) []Decision {
	c.checkpoints.complete(now, w, err)
	return append(c.checkpoints.answer(err != nil && w.Version == c.checkpoints.wanted), c.rescale(now)...)
}

// Checkpoint takes a trainer's request for a durable version, which is complete on all shards. If no version was written
// before, policy has them written from now on; else it is nil.
func (c *Coordinator) Checkpoint(now time.Time, from schema.Member, r *schema.Checkpoint,
	policy *CheckpointPolicy) []Decision {
	if policy != nil {
		c.config.Checkpoints, c.checkpoints.policy = policy, policy
	}
	if _, ok := c.members.find(from); !ok || c.state != Running {
		return nil
	}
	asked, decisions := c.checkpoints.request(now, from, r.Version)
	if asked {
		c.serial++
	}
	return c.withAssignment(decisions)
}

// Drain requests a last version, as soon as one can be written. It reports whether that is durable, or there is none to
// wait for.
func (c *Coordinator) Drain() (done bool) {
	c.checkpoints.drains = true
	return !c.Trains() || c.checkpoints.drained()
}

// Trains reports whether the job runs and has trainers.
func (c *Coordinator) Trains() bool { return c.state == Running && c.members.anyHere() }

// Progress returns which version the job has reached, and which one would outlast its ps.
func (c *Coordinator) Progress(now time.Time) schema.JobProgress {
	d := schema.JobProgress{Job: c.config.Job.Name, Durable: c.checkpoints.durable.version}
	if c.Replicas(now).Ready {
		d.Kept = c.replicas.whole
	}
	d.Version = max(d.Durable, d.Kept, schema.Version(c.members.begun()), c.config.Resume.version())
	return d
}

// Peers notes which ps are announced.
func (c *Coordinator) Peers(now time.Time, servers []Peer) []Decision {
	c.replicas.setPeers(servers)
	late := c.ticks.Pause(now, c.config.Deadline) > 0 // what has come since is read before the next tick
	if c.state == Running && c.replicas.hasLost(now, servers, late) {
		return c.replicate(c.replicas.choose(now))
	}
	return c.BeginReplicas(now)
}

// BeginReplicas has the shards replicated if it is time and they are not yet.
func (c *Coordinator) BeginReplicas(now time.Time) []Decision {
	if c.state != Running {
		return nil
	}
	return c.replicate(c.replicas.begin(now, c.started))
}

// Kept takes what a ps says that it has of the shards.
func (c *Coordinator) Kept(now time.Time, from schema.Member, said *schema.Kept) []Decision {
	h := c.replicas.find(from, said)
	if c.state != Running || h == nil {
		return nil
	}
	if len(h.from) > 0 { // it has a replica, and does not only send one
		c.successor.heard(said.Serial)
	}
	return c.replicate(c.replicas.heard(now, h, said))
}

// HandOver has the job continue at the ps with the replica, from the version that is sent next. It reports whether that
// version is whole.
func (c *Coordinator) HandOver(now time.Time) (_ []Decision, done bool) {
	return c.replicate(c.replicas.handOver(now), ""), c.replicas.handedOver()
}

// Replicas returns what other ps have of the shards.
func (c *Coordinator) Replicas(now time.Time) ReplicaReport {
	return c.replicas.report(now, c.state == Running)
}

// replicate tells the holders of replicas what is to be if that has changed, and logs a note.
func (c *Coordinator) replicate(tell bool, note string) (decisions []Decision) {
	if tell {
		voters := c.members.voters()
		decisions = c.replicas.keeps(voters, c.lr.decided)
		c.successor.tell(c.replicas.serial, voters)
	}
	if note != "" && decisions == nil {
		return []Decision{{Note: note}}
	}
	if note != "" {
		decisions[0].Note = note
	}
	return decisions
}

// ScaleLR takes a request to change the learning rates.
func (c *Coordinator) ScaleLR(from schema.Member, r *schema.LR) []Decision {
	return c.lr.request(c.state, c.members, from, r)
}

// LRTaken takes a trainer's answer, in a generation, to a proposed change of the learning rates.
func (c *Coordinator) LRTaken(from schema.Member, g schema.Generation, t *schema.LRTaken) []Decision {
	i, ok := c.members.find(from)
	if !ok || g < c.members[i].generation {
		return nil
	}
	return c.withAssignment(append(c.lr.answer(i, from, t), c.agreeLR()...))
}

// agreeLR has a change that every trainer has taken applied by the shard servers, and recorded.
func (c *Coordinator) agreeLR() []Decision {
	tell, decisions := c.lr.agree(c.members, c.shardServers.carriedOut(c.serial))
	if tell {
		c.serial++
	}
	return decisions
}

// Recorded notes what of Decisions is in the job's record: changes of the learning rates, which are decided now, or
// voters.
func (c *Coordinator) Recorded(now time.Time, lr []schema.LRChange, voters []schema.Voter) (decisions []Decision) {
	if voters != nil {
		c.record.written = voters
	}
	if c.state.IsOver() {
		return nil
	}
	if lr != nil {
		decisions = c.lr.recorded(c.members)
	}
	if voters != nil {
		decisions = append(decisions, c.offer(now)...)
	}
	return c.withAssignment(decisions)
}

// Status is the current state of a job.
type Status struct {
	Name      schema.JobName
	RunID     schema.RunID
	State     string // as of jobState
	Batch     schema.Batch
	Members   []MemberStatus // in order of their ids
	Unheard   string         // the first ps with shards that has not reported; empty: all have
	Durable   schema.Version // the newest; 0: none is
	Elsewhere bool           // the ps with the replica is silent, and may continue the job with trainers that are lost here
}

// MemberStatus is the slot of one trainer.
type MemberStatus struct {
	Member     schema.Member
	Host       string // empty: no trainer has the slot
	Batch      schema.Batch
	Seen       time.Time         // when it last gave a sign of life
	State      string            // as of slotState
	Own        bool              // a trainer is there that computes no other slot besides
	Process    string            // that has the slot; empty: none, or it is not known
	Generation schema.Generation // since which it does
}

// Status returns what the job is doing.
func (c *Coordinator) Status() Status {
	s := Status{Name: c.config.Job.Name, RunID: c.config.RunID, State: c.state.String(),
		Durable:   max(c.checkpoints.durable.version, c.config.Resume.version()),
		Elsewhere: c.successor.silent && c.successor.url != ""}
	if i := c.shardServers.unheard(); i >= 0 {
		s.Unheard = c.shardServers[i].name()
	}
	for i := range c.members {
		m := &c.members[i]
		one := MemberStatus{Member: schema.TrainerMember(i), Host: m.host, Batch: m.batch, Seen: m.Since(),
			State: m.state.String(), Own: m.here() && m.by < 0, Generation: m.generation}
		if m.here() {
			one.Process = m.process
		}
		s.Members = append(s.Members, one)
		s.Batch = max(s.Batch, m.batch)
	}
	return s
}

// Telemetry returns what reports have of the job.
func (c *Coordinator) Telemetry(now time.Time) schema.JobReport {
	job := c.config.Job
	p := schema.JobReport{
		Name: job.Name, Workload: job.Workload, RunID: c.config.RunID, Phase: c.state.phase(), Consistency: job.Consistency,
		Apply: job.Apply, Reduce: job.Reduce,
		Trainers: job.Trainers, Shards: c.shards, Lanes: job.Lanes, Ahead: job.Ahead, Parameters: job.Values(),
		End: c.ended, Failed: c.failed,
		Follows:    c.config.Rejoining[:min(len(c.config.Rejoining), schema.TelemetryFollowsMax)],
		Durability: c.checkpoints.report(now, c.state == Running),
		Members:    make([]schema.MemberReport, 0, len(c.members)), Keepers: make([]string, 0, len(c.config.ShardServers)),
	}
	if !c.started.IsZero() {
		p.StartedMS = c.started.UnixMilli()
	}
	first := firstWaitedFor(c.shardServers.waiting(c.members))
	for i := range c.members {
		m := c.detector.report(now, c.members, i)
		m.First = m.Waited && slices.Contains(first, m.Member)
		p.Members, p.Batch = append(p.Members, m), max(p.Batch, m.Batch)
	}
	for _, s := range c.config.ShardServers {
		p.Keepers = append(p.Keepers, s.Server.ID)
	}
	return p
}
