package ps

import (
	"slices"
	"time"

	"gradbus/schema"
)

// Status is what a job is doing.
type Status struct {
	Name    schema.JobName
	RunID   schema.RunID
	State   string // as of jobState
	Batch   schema.Batch
	Members []MemberStatus // in order of their ids
}

// MemberStatus is the slot of one trainer.
type MemberStatus struct {
	Member schema.Member
	Host   string // empty where no trainer has the slot
	Batch  schema.Batch
	Seen   time.Time // when it last gave a sign of life
	State  string    // as of slotState
}

// Status returns what the job is doing.
func (c *Coordinator) Status() Status {
	s := Status{Name: c.config.Job.Name, RunID: c.config.RunID, State: c.state.String()}
	for i, m := range c.members {
		s.Members = append(s.Members, MemberStatus{schema.TrainerMember(i), m.host, m.batch, m.Since(), m.state.String()})
		s.Batch = max(s.Batch, m.batch)
	}
	return s
}

// Telemetry is what the coordinator knows of its job, for whoever watches.
func (c *Coordinator) Telemetry(now time.Time) schema.JobReport {
	job := c.config.Job
	p := schema.JobReport{
		Name: job.Name, Workload: job.Workload, RunID: c.config.RunID, Phase: c.phase(), Consistency: job.Consistency,
		Apply: job.Apply, Reduce: job.Reduce,
		Trainers: job.Trainers, Shards: c.shards, Lanes: job.Lanes, Ahead: job.Ahead, Parameters: job.Values(),
		End: c.ended, Failed: c.failed,
		Follows:    c.config.Returning[:min(len(c.config.Returning), schema.TelemetryFollowsMax)],
		Durability: c.durability(now),
		Members:    make([]schema.MemberReport, 0, len(c.members)), Keepers: make([]string, 0, len(c.config.ShardServers)),
	}
	if c.hasStarted() {
		p.StartedMS = c.started.UnixMilli()
	}
	first := firstWaitedFor(c.waiting())
	for i := range c.members {
		m := c.memberReport(i, now)
		m.First = m.Waited && slices.Contains(first, m.Member)
		p.Members, p.Batch = append(p.Members, m), max(p.Batch, m.Batch)
	}
	for _, s := range c.config.ShardServers {
		p.Keepers = append(p.Keepers, s.Server.ID)
	}
	return p
}

// begun returns the number of batches that the furthest trainer had begun at its last heartbeat.
func (c *Coordinator) begun() schema.Batch { return c.members.begun() }

// training returns the trainers that have a slot, by the names that they joined under.
func (c *Coordinator) training() []schema.Member { return c.members.training() }

// phase is what reports tell of the job's state: for their readers shards and trainers are missing alike.
func (c *Coordinator) phase() string {
	switch {
	case c.gathers():
		return schema.PhaseGathering
	case c.running():
		return schema.PhaseRunning
	}
	return schema.PhaseEnded
}

// handedOver reports that the trainer was asked to end, and its place waits to be taken.
func (m *member) handedOver() bool { return m.vacancy != nil && m.ended == schema.EndStopped }

func (c *Coordinator) memberReport(i int, now time.Time) schema.MemberReport {
	m := &c.members[i]
	p := schema.MemberReport{Member: schema.TrainerMember(i), Host: m.host, Batch: m.batch,
		Left: m.state == slotDone || m.handedOver(), Lost: m.lost() && !m.handedOver()}
	if m.joiner == "" {
		return p
	}
	p.SilentMS = m.For(now).Milliseconds()
	p.Gone = m.Cut() && m.state != slotDone
	if m.waitedSince.Lasts() {
		limit, _ := c.stallLimit(i)
		p.Waited, p.WaitedBatch, p.WaitedMS = true, m.waitedBatch, m.waitedSince.For(now).Milliseconds()
		p.LimitMS = limit.Milliseconds()
	}
	return p
}
