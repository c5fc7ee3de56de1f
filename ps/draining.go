package ps

import (
	"fmt"
	"slices"

	"gradbus/schema"
)

// drainersMax bounds those who are told at the end of a ps that it has ended, as they have asked for.
const drainersMax = 16

// drain records that a client wants this ps to end, and answers with the progress. It refuses if a job would be lost
// that a ps of the same protocol would continue. Others that share the control server do not answer.
func (l *controlLoop) drain(m *message, d *schema.Drain) {
	self := &l.server.registry.self
	mine := d.Server == self.ID || d.Server == "" && l.server.embedsControl()
	if !mine || m.job != schema.TelemetryJob {
		return
	}
	if d.Incarnation != 0 && d.Incarnation != self.Incarnation {
		l.send(m.job, 0, m.from, schema.Control{Draining: &schema.Draining{Server: self.ID, Incarnation: d.Incarnation,
			Ended: true}})
		return
	}
	if job, lost := l.loses(); lost {
		text := fmt.Sprintf("job %s would be lost: no version of it is written (--checkpoint-dir), and it is not handed over "+
			"to the other ps: %s", job, l.foreign.why)
		l.send(m.job, 0, m.from, schema.Control{Refused: &schema.Refused{Reason: "job_lost", Text: schema.Clip(text)}})
		return
	}
	if len(l.drainers) < drainersMax && !slices.Contains(l.drainers, m.from) {
		l.drainers = append(l.drainers, m.from)
	}
	l.server.askedOnce.Do(func() {
		l.server.log.Info("asked to end", "by", m.from)
		close(l.server.asked)
	})
	l.tellDrainer(m.from, false)
}

// tellDrainer reports the progress of this ps's jobs to a client that wanted it to end.
func (l *controlLoop) tellDrainer(to schema.Member, ended bool) {
	self := &l.server.registry.self
	l.send(schema.TelemetryJob, 0, to, schema.Control{Draining: &schema.Draining{Server: self.ID,
		Incarnation: self.Incarnation, Ended: ended, Jobs: l.drainedJobs()}})
}

// drainedJobs returns the progress of the jobs that this ps coordinates.
func (l *controlLoop) drainedJobs() (all []schema.DrainedJob) {
	for _, j := range l.coordinated() {
		d := j.coordinator.Progress(l.server.now())
		if l.stands(j) {
			d.To, d.Kept = l.follower.url, 0
		}
		all = append(all, d)
	}
	return toldOf(all)
}

// tellDrainers tells all of them: before this ps ends, and as it does.
func (l *controlLoop) tellDrainers(ended bool) {
	for _, to := range l.drainers {
		l.tellDrainer(to, ended)
	}
}

// Asked returns a channel that is closed when a client wants this ps to end (ps drain): call Drain and Close then,
// as after an interrupt.
func (s *Server) Asked() <-chan struct{} { return s.asked }
