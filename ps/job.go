package ps

import (
	"time"

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
	manifest    *schema.Job
	run         schema.RunID
	coordinator *coordinator.Coordinator
	servers     []leaseRecord // that have its shards, in the coordinator's order
	watching    []watching    // by trainer
	serving     []watching    // by server
	notSaved    string        // why no version of it is written
	stoodBy     stoodBy       // what is told of who stands by
	ended       []endedRun    // earlier runs of the name, whose trainers' joins come too late
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
	j.watching, j.stoodBy = make([]watching, fitted.Trainers), stoodBy{was: found.fromReplica()}
	if found.not != nil {
		j.notSaved = found.not.Error()
	}
	config := coordinator.Config{Job: fitted, RunID: j.run, Generation: generationFirst,
		Deadline: s.config.Deadline, StallTimeout: s.config.StallTimeout, StartTimeout: s.config.StartTimeout,
		WindowBytes: window, ParkedBytes: parkedBytes(fitted), Checkpoints: found.policy(&s.config),
		Resume: found.resumeFrom(), Rejoining: found.runs, Voters: voters,
		RecordDecides: s.config.grouped(), Process: s.process, Incarnation: s.registry.self.Incarnation,
		TrainersBefore: found.here, SlotsMax: c.left.places, MemoryFull: c.left.cramped}
	if s.standby != nil && found.fromReplica() && voters == nil {
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
