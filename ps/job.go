package ps

import (
	"slices"
	"time"

	"gradbus/internal/process"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// generationFirst is the generation that every job begins with. One more begins with each place that is taken from a
// trainer.
const generationFirst schema.Generation = 1

// job is a run of a job from the first join on. Once this ps has acquired it the control loop runs its coordinator.
type job struct {
	name      schema.JobName
	state     coordinator.JobState // up to placing; what follows the coordinator knows
	since     time.Time            // when it came to acquiring, locating or placing
	waiting   []*message           // joins, until the job gathers trainers
	offers    *offerRequest        // of locating: what other ps are asked; nil: nothing
	elsewhere time.Time            // of ended: until when the job counts as another ps's
	writing   chan struct{}        // closed when the version that it completed last is on the disk; nil: none is written

	// What follows is there from placing on.
	manifest      *schema.Job
	run           schema.RunID
	coordinator   *coordinator.Coordinator
	servers       []leaseRecord // that have its shards, in the coordinator's order
	watching      []watching    // by trainer
	serving       []watching    // by server
	notSaved      string        // why no version of it is written; empty: they are
	replicaStatus replicaStatus // what is told of which ps has the replica
	ended         []endedRun    // earlier runs of the name, whose trainers' joins come too late
}

// move changes the state of a job before it gathers trainers.
func (j *job) move(to coordinator.JobState, now time.Time) {
	j.state.Transition(to)
	j.since = now
}

// place makes the coordinator of a job that this ps has acquired. fitted is its manifest with the chunks that there is
// room for. voters are as in coordinator.Config.
func (j *job) place(s *Server, c acquisition, found *located, fitted *schema.Job, window int64,
	voters []schema.Voter) {
	j.move(coordinator.Placing, s.now())
	j.manifest, j.run, j.servers, j.ended = fitted, c.record.RunID, c.servers, c.record.Ended
	j.watching, j.replicaStatus = make([]watching, fitted.Trainers), replicaStatus{was: found.fromReplica()}
	if found.not != nil {
		j.notSaved = found.not.Error()
	}
	config := coordinator.Config{Job: fitted, RunID: j.run, Generation: generationFirst,
		Deadline: s.config.Deadline, StallTimeout: s.config.StallTimeout, StartTimeout: s.config.StartTimeout,
		WindowBytes: window, ParkedBytes: parkedBytes(fitted), Checkpoints: found.policy(&s.config),
		Resume: found.resumeFrom(), Rejoining: found.runs, Voters: voters,
		RecordDecides: s.config.grouped(), Process: s.process, Incarnation: s.registry.self.Incarnation,
		TrainersBefore: found.here, SlotsMax: c.left.places, MemoryFull: c.left.cramped}
	if s.primary != nil && found.fromReplica() && voters == nil {
		config.RejoinWithin = coordinator.RejoinSoonMax
	}
	if fitted != c.job {
		config.ChunkBytes = c.job.ChunkBytes
		s.log.Info("smaller chunks than the manifest's, so that a message of every trainer fits", "job", c.job.Name,
			"chunk_bytes", fitted.ChunkBytes, "wanted", c.job.ChunkBytes)
	}
	if !c.job.NeedsShards() { // its trainers do everything among themselves: there are no shards
		j.servers, c.record.Servers = nil, nil
	}
	for i, d := range c.record.Servers {
		config.ShardServers = append(config.ShardServers, coordinator.ShardServer{Member: schema.ServerMember(d.ID),
			Server: d, Incarnation: c.servers[i].Incarnation})
	}
	j.coordinator = coordinator.New(config)
	j.coordinator.Peers(s.now(), peersOf(c.peers))
}

// isClosed reports whether a channel is closed, or nil.
func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return c == nil
	}
}

// noteWritten ends a job that is ending, once the version that it completed last is on the disk.
func (j *job) noteWritten() {
	if isClosed(j.writing) {
		j.coordinator.Finish()
	}
}

// findReplaced returns which ps of the job has lost its shards, and how: it has ended, or was started again; -1: none
// has. own is the id of this one.
func (j *job) findReplaced(announced []leaseRecord, own string) (i int, how string) {
	for i := range j.servers {
		for _, there := range announced {
			switch {
			case there.ID == own || there.ID != j.servers[i].ID:
			case there.Incarnation != j.servers[i].Incarnation:
				return i, "was started anew on " + there.Host + " and has lost its shards"
			case there.Leaving:
				return i, "has ended"
			}
		}
	}
	return -1, ""
}

// endedMax bounds the number of remembered ended jobs, so that a trainer that missed the end learns of it with its next
// message.
const endedMax = 64

// endedJob is the remembered part of an ended run of a job.
type endedJob struct {
	name    schema.JobName
	run     schema.RunID
	joiners []schema.Member
	failed  *schema.Ended // nil where all trainers left
	places  int           // of the next run, where that may have fewer than the manifest; 0: as many

	manifest *schema.Job     // of the run
	late     []schema.Member // who was put off until there would be a place, by the names they ask under
	gone     []schema.Member // who has left since, and does not come back
	cramped  bool            // there is no room for more
	writing  chan struct{}   // as of job
}

// endedJobs are the runs that have ended lately, the latest last.
type endedJobs []endedJob

// remember adds a run that has ended. The oldest one whose last version is written makes way for it.
func (e *endedJobs) remember(j *job, o *coordinator.Outcome) {
	if len(*e) == endedMax {
		i := max(0, slices.IndexFunc(*e, func(e endedJob) bool { return isClosed(e.writing) }))
		*e = slices.Delete(*e, i, i+1)
	}
	*e = append(*e, endedJob{name: j.manifest.Name, run: j.run, joiners: o.Joiners, failed: o.Failed,
		places: o.NextTrainers, manifest: j.manifest, late: o.PutOff, writing: j.writing})
}

// last returns the run of a name that has ended last, of those that a condition holds for; nil: none is remembered.
func (e endedJobs) last(name schema.JobName, is func(*endedJob) bool) *endedJob {
	for i := len(e) - 1; i >= 0; i-- {
		if e[i].name == name && (is == nil || is(&e[i])) {
			return &e[i]
		}
	}
	return nil
}

// writing returns what is closed when the last version of the earlier runs of a name is on the disk; nil: none was
// written.
func (e endedJobs) writing(name schema.JobName) chan struct{} {
	if last := e.last(name, func(e *endedJob) bool { return e.writing != nil }); last != nil {
		return last.writing
	}
	return nil
}

// find returns the run that a message speaks of: by its run id, or by the trainer that wants to join; nil: none.
func (e endedJobs) find(m *message, run schema.RunID) *endedJob {
	return e.last(m.job, func(e *endedJob) bool {
		return run != 0 && e.run == run || run == 0 && slices.Contains(e.joiners, m.from)
	})
}

// comesLate reports whether the sender of a join was put off until its job had come to its end.
func (e endedJobs) comesLate(m *message) bool {
	return e.last(m.job, func(e *endedJob) bool { return slices.Contains(e.late, m.from) }) != nil
}

// trainersLeft is the known state of the trainers of a job that rewinds, when it is registered.
type trainersLeft struct {
	places  int  // that their manifest has, where the job is to have as many as are left; else 0
	cramped bool // there was no room for more than are left
}

// withTrainersLeft returns the manifest of a job with as many trainers as were left of the run that has just ended
// here.
func (e endedJobs) withTrainersLeft(job *schema.Job) (*schema.Job, trainersLeft) {
	last := e.last(job.Name, nil)
	if last == nil || last.places == 0 || !job.Rewinds() ||
		job.Policy != schema.PolicyRecover {
		return job, trainersLeft{}
	}
	if _, _, _, differs := last.manifest.WithTrainers(job.Trainers).WithChunkBytes(job.ChunkBytes).Diff(job); differs {
		return job, trainersLeft{} // another job of the same name begins
	}
	return job.WithTrainers(min(last.places, job.Trainers)), trainersLeft{job.Trainers, last.cramped}
}

// noRoomForMore notes that there is no room for a job which goes back. Where the run before had fewer trainers, the
// next one has as many. It reports whether it is worth to ask again.
func (e endedJobs) noRoomForMore(job *schema.Job) bool {
	last := e.last(job.Name, nil)
	if last == nil || job.Trainers != last.places || last.places <= last.manifest.Trainers {
		return false
	}
	last.places, last.cramped = last.manifest.Trainers, true
	return true
}

// leftSince notes that a trainer has left a run which was to go on with it. It returns the run if that was the last one:
// then it does not.
func (e endedJobs) leftSince(m *message, run schema.RunID, leave *schema.Leave) *endedJob {
	of := e.find(m, run)
	if of == nil || of.places == 0 || !leave.HandOver || slices.Contains(of.gone, m.from) {
		return nil
	}
	of.gone = append(of.gone, m.from)
	if of.places--; of.places > 0 {
		return nil
	}
	return of
}

// processWatcher watches processes of this machine: their end is seen at once, and without a doubt. Those of trainers
// are watched, and those of ps with shards of a job of which several ps have replicas. Of others silence tells.
type processWatcher struct {
	self   string // this process, which is not watched
	deaths chan death
	done   <-chan struct{} // closed when deaths are not read any more
}

// death says that the process of a trainer has ended.
type death struct {
	job        *job
	member     schema.Member
	generation schema.Generation
	process    string
	server     int // among those of the job, of which one has ended in place of a trainer; -1: none
}

func newProcessWatcher(self string, done <-chan struct{}) *processWatcher {
	return &processWatcher{self: self, deaths: make(chan death), done: done}
}

// decide returns what follows from the end of the process.
func (d *death) decide(now time.Time) []coordinator.Decision {
	if d.server >= 0 {
		return d.job.coordinator.ShardServerGone(d.server, "has ended")
	}
	return d.job.coordinator.Died(now, d.member, d.generation)
}

// watchServers watches the processes of the ps that have shards of a job.
func (p *processWatcher) watchServers(j *job) {
	j.serving = make([]watching, len(j.servers))
	for i := range j.servers {
		p.watch(&j.serving[i], death{job: j, process: j.servers[i].Process, server: i})
	}
}

// watchTrainers watches the processes of those who have places now, and no others.
func (p *processWatcher) watchTrainers(j *job) {
	for i, m := range j.coordinator.Status().Members {
		p.watch(&j.watching[i], death{j, m.Member, m.Generation, m.Process, -1})
	}
}

// watch watches a process in the place of another one.
func (p *processWatcher) watch(w *watching, d death) {
	if w.process == d.process && w.generation == d.generation {
		return
	}
	w.stop()
	*w = watching{process: d.process, generation: d.generation}
	if d.process == "" || d.process == p.self { // which ends with this one
		return
	}
	stop, err := process.Watch(d.process, func() {
		select {
		case p.deaths <- d:
		case <-p.done:
		}
	})
	if err == nil { // else it is elsewhere
		w.end = stop
	}
}

// watching is the process of a place that is watched.
type watching struct {
	process    string
	generation schema.Generation
	end        func() // nil where there is none
}

func (w *watching) stop() {
	if w.end != nil {
		w.end()
	}
}
