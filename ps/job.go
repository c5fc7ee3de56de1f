package ps

import (
	"time"

	"gradbus/schema"
)

// generationFirst is the generation of every job: policy fail ends a job rather than change its membership.
const generationFirst schema.Generation = 1

// job is a job that this ps coordinates. The desk runs its coordinator.
type job struct {
	manifest    *schema.Job
	run         schema.RunID
	coordinator *Coordinator
	registered  time.Time
	servers     []announcement // that keep its shards, in the coordinator's order
	ended       []endedRun     // earlier runs of the name, whose trainers' joins come too late
}

func newJob(s *Server, c claim, window int64) *job {
	j := &job{manifest: c.job, run: c.record.RunID, registered: time.Now(), servers: c.servers, ended: c.record.Ended}
	config := CoordinatorConfig{Job: c.job, RunID: j.run, Generation: generationFirst, Deadline: s.config.Deadline, Gather: s.config.Gather, WindowBytes: window}
	if !c.job.OnShards() { // its trainers do everything among themselves: there is nothing to keep
		j.servers, c.record.Servers = nil, nil
	}
	for _, d := range c.record.Servers {
		config.Keepers = append(config.Keepers, Keeper{Member: schema.ServerMember(d.ID), Server: d})
	}
	j.coordinator = NewCoordinator(config)
	return j
}
