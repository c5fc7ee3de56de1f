package ps

import (
	"maps"
	"slices"
	"time"

	"gradbus/schema"
)

const (
	// endedShown is for how long, and endedShownMax how many, ended jobs are told of, so that who looks later sees why one ended.
	endedShown    = 5 * time.Minute
	endedShownMax = 16
)

// jobPulses is what the desk knew of the jobs that this ps coordinates, at one time. It is not changed any more.
type jobPulses struct {
	when    time.Time
	jobs    []schema.JobPulse
	refused []schema.RefusedPulse
}

// at is what of it still holds at a later time: silences have grown, where the desk has not looked since.
func (p *jobPulses) at(now time.Time) []schema.JobPulse {
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

// pulse leaves for the pulser what coordinators know. It is called at the end of each tick.
func (d *desk) pulse(now time.Time) {
	p := &jobPulses{when: now, refused: d.refused.lately(now)}
	for _, name := range slices.Sorted(maps.Keys(d.jobs)) {
		if len(p.jobs) == schema.PulseJobsMax-endedShownMax {
			break
		}
		p.jobs = append(p.jobs, d.jobs[name].coordinator.Pulse(now))
	}
	d.shown = slices.DeleteFunc(d.shown, func(j schema.JobPulse) bool {
		_, again := d.jobs[j.Name]
		return again || now.Sub(time.UnixMilli(j.EndedMS)) > endedShown
	})
	p.jobs = append(p.jobs, d.shown...)
	d.server.pulser.look(p)
}

// show keeps what is told of a job that has ended.
func (d *desk) show(j *job, now time.Time) {
	p := j.coordinator.Pulse(now)
	p.EndedMS = now.UnixMilli()
	if len(d.shown) == endedShownMax {
		d.shown = slices.Delete(d.shown, 0, 1)
	}
	d.shown = append(d.shown, p)
}

// Pulse is what the coordinator knows of its job, for whoever watches.
func (c *Coordinator) Pulse(now time.Time) schema.JobPulse {
	job := c.config.Job
	p := schema.JobPulse{
		Name: job.Name, Workload: job.Workload, RunID: c.config.RunID, Phase: c.phase.String(), Consistency: job.Consistency, Apply: job.Apply, Reduce: job.Reduce,
		Trainers: job.Trainers, Shards: c.shards, Lanes: job.Lanes, Ahead: job.Ahead, Parameters: job.Values(), Failed: c.failed,
		Members: make([]schema.MemberPulse, 0, len(c.members)), Keepers: make([]string, 0, len(c.config.Keepers)),
	}
	if !c.started.IsZero() {
		p.StartedMS = c.started.UnixMilli()
	}
	first := firstWaitedFor(c.waiting())
	for i := range c.members {
		m := c.memberPulse(i, now)
		m.First = m.Waited && slices.Contains(first, m.Member)
		p.Members, p.Batch = append(p.Members, m), max(p.Batch, m.Batch)
	}
	for _, k := range c.config.Keepers {
		p.Keepers = append(p.Keepers, k.Server.ID)
	}
	return p
}

func (c *Coordinator) memberPulse(i int, now time.Time) schema.MemberPulse {
	m := &c.members[i]
	p := schema.MemberPulse{Member: schema.TrainerMember(i), Host: m.host, Batch: m.batch, Left: m.left, Lost: m.lost}
	if m.joiner == "" {
		return p
	}
	p.SilentMS = max(0, now.Sub(m.seen).Milliseconds())
	p.Gone = m.gone && !m.left
	if m.waited {
		p.Waited, p.WaitedBatch, p.WaitedMS = true, m.waitedBatch, max(0, now.Sub(m.waitedSince).Milliseconds())
	}
	return p
}
