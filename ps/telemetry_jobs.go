package ps

import (
	"cmp"
	"slices"
	"time"

	"gradbus/schema"
)

const (
	// endedShown is for how long, and endedShownMax how many, ended jobs are told of, so that who looks later sees why one
	// ended.
	endedShown    = 5 * time.Minute
	endedShownMax = 16
)

// jobReports is what the control loop knew of the jobs that this ps coordinates, at one time. It is not changed any
// more.
type jobReports struct {
	when    time.Time
	jobs    []schema.JobReport
	refused []schema.RefusedReport
}

// at is what of it still holds at a later time: silences have grown, where the control loop has not looked since.
func (p *jobReports) at(now time.Time) []schema.JobReport {
	since := now.Sub(p.when).Milliseconds()
	if since < 100 {
		return p.jobs
	}
	later := slices.Clone(p.jobs)
	for i := range later {
		j := &later[i]
		if j.Phase == schema.PhaseEnded {
			continue
		}
		j.Members = slices.Clone(j.Members)
		for n := range j.Members {
			if m := &j.Members[n]; m.Host != "" {
				m.SilentMS += since
			}
		}
	}
	return later
}

// report leaves for the reporter what coordinators know. It is called at the end of each tick.
func (l *controlLoop) report(now time.Time) {
	p := &jobReports{when: now, refused: l.refused.lately(now)}
	for _, j := range l.coordinated() {
		if len(p.jobs) == schema.TelemetryJobsMax-endedShownMax {
			break
		}
		p.jobs = append(p.jobs, j.telemetry(now))
	}
	l.shown = slices.DeleteFunc(l.shown, func(j schema.JobReport) bool {
		return l.job(j.Name) != nil || now.Sub(time.UnixMilli(j.EndedMS)) > endedShown
	})
	p.jobs = append(p.jobs, l.shown...)
	l.server.reporter.look(p)
}

// show keeps what is told of a job that has ended.
func (l *controlLoop) show(j *job, now time.Time) {
	p := j.telemetry(now)
	p.EndedMS = now.UnixMilli()
	if len(l.shown) == endedShownMax {
		l.shown = slices.Delete(l.shown, 0, 1)
	}
	l.shown = append(l.shown, p)
}

// telemetry is what is told of the job.
func (j *job) telemetry(now time.Time) schema.JobReport {
	p := j.coordinator.Telemetry(now)
	if p.Durability.Off != "" {
		p.Durability.Off = schema.ClipFailure(cmp.Or(j.notSaved, p.Durability.Off))
	}
	if !j.coordinator.over() {
		p.Standby = j.stoodBy.report(now)
	}
	return p
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
