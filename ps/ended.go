package ps

import (
	"slices"

	"gradbus/checkpoint"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// endedMax bounds the number of remembered ended jobs, so that a trainer that missed the end learns of it with its next
// message.
const endedMax = 64

// endedJob is the remembered part of an ended run of a job.
type endedJob struct {
	name    schema.JobName
	run     schema.RunID
	joiners []schema.Member
	failed  *schema.Failed // nil where all trainers left
	places  int            // of the next run, where that may have fewer than the manifest; 0: as many

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

// leftSince notes that a trainer has left a run which was to go on with it. Where that is the last one, it does not.
func (l *controlLoop) leftSince(m *message, run schema.RunID, leave *schema.Leave) {
	e := l.history.find(m, run)
	if e == nil || e.places == 0 || !leave.HandOver || slices.Contains(e.gone, m.from) || l.job(m.job) != nil {
		return
	}
	e.gone = append(e.gone, m.from)
	if e.places--; e.places == 0 {
		l.server.interrupted.forget(e.name)
		l.runOver(e.name, e.run, checkpoint.End)
	}
}
