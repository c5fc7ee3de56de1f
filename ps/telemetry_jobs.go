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
