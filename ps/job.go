package ps

import (
	"time"

	"gradbus/schema"
)

// generationFirst is the generation that every job begins with. One more begins with each place that is taken from a
// trainer.
const generationFirst schema.Generation = 1

// job is a job that this ps coordinates. The control loop runs its coordinator.
type job struct {
	manifest    *schema.Job
	run         schema.RunID
	coordinator *Coordinator
	registered  time.Time
	servers     []leaseRecord // that have its shards, in the coordinator's order
	watching    []watching    // by trainer
	serving     []watching    // by server
	standing    *standing     // what its shards begin with, until they do; nil: nothing that this ps has
	notSaved    string        // why no version of it is written
	stoodBy     stoodBy       // what is told of who stands by
	ended       []endedRun    // earlier runs of the name, whose trainers' joins come too late
}

// newJob makes a job that this ps has acquired. fitted is its manifest with the chunks that there is room for.
func newJob(s *Server, c acquisition, found *saved, fitted *schema.Job, window int64) *job {
	j := &job{manifest: fitted, run: c.record.RunID, registered: time.Now(), servers: c.servers, ended: c.record.Ended,
		watching: make([]watching, fitted.Trainers), notSaved: found.not, standing: found.standing,
		stoodBy: stoodBy{was: found.standing != nil || found.kept != nil}}
	config := CoordinatorConfig{Job: fitted, RunID: j.run, Generation: generationFirst,
		Deadline: s.config.Deadline, StallTimeout: s.config.StallTimeout, StartTimeout: s.config.StartTimeout,
		WindowBytes: window, Checkpoints: found.policy(&s.config),
		Resume: found.from(), Returning: found.back, Doubt: found.doubt(), Carried: found.carried, Unseen: !s.embedsControl(),
		Copies: s.keeper != nil, Process: s.process, Incarnation: s.registry.self.Incarnation,
		Here: found.here, Places: c.left.places, Cramped: c.left.cramped}
	if found.standing != nil && found.standing.ended {
		config.ReturnWithin = returnSoonMax
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
		config.ShardServers = append(config.ShardServers, ShardServer{Member: schema.ServerMember(d.ID), Server: d,
			Incarnation: c.servers[i].Incarnation})
	}
	j.coordinator = NewCoordinator(config)
	j.coordinator.Peers(s.now(), c.peers)
	return j
}
