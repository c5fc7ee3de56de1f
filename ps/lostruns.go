package ps

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"gradbus/checkpoint"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// A run whose versions are written down leaves a note in the folder until it ends. With the note, a ps that is started
// again tells trainers that come back to such a run from those that begin a job anew. It names the lost runs, too, that
// the run goes on from: not all trainers have heard of it when its ps is lost again.

// resumeWindow is how long after a restart a join to an interrupted job counts as a rejoin.
const resumeWindow = time.Minute

// lostRuns is when runs have ended here that are to go on, by their jobs.
type lostRuns struct {
	mu sync.Mutex // a leaf
	at map[schema.JobName]time.Time
}

func (r *lostRuns) note(name schema.JobName, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.at, func(_ schema.JobName, at time.Time) bool { return now.Sub(at) > resumeWindow })
	if r.at == nil {
		r.at = map[schema.JobName]time.Time{}
	}
	r.at[name] = now
}

// forget is told that it is not to go on.
func (r *lostRuns) forget(name schema.JobName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.at, name)
}

// lately reports that one of a job has.
func (r *lostRuns) lately(name schema.JobName, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, ended := r.at[name]
	return ended && now.Sub(at) <= resumeWindow
}

// coming is what a job that is registered goes on from.
type coming struct {
	resume   bool           // from the newest durable version
	lost     []schema.RunID // the runs that were lost, to which trainers come back; nil: none
	since    uint64         // the first of its name's runs whose versions are its own; 0: all are
	trainers int            // of the latest that was lost, where one of them comes back; 0: it is not known
	asked    bool           // somebody has asked for that, and it is not only assumed
}

// comesBack finds out whether a job goes on from a run that was lost. refused says that a run is over that somebody
// wants to come back to.
func (s *Server) comesBack(c *acquisition) (from coming, refused *schema.Refused) {
	from = coming{resume: c.resume && c.back == 0, asked: c.resume}
	var lost checkpoint.Lost
	if dir := s.config.Checkpoints.Dir; dir != "" {
		var err error
		if lost, err = checkpoint.Running(dir, c.job.Name); err != nil {
			s.log.Error("a run of the job that was lost is not known", "job", c.job.Name, "err", err)
			// one that begins anew would take the place of what is there
			if c.back != 0 && c.resume || s.mayHaveLost(c.job, &lost) {
				return from, unreadable(err)
			}
		}
	}
	running := len(lost.Runs) > 0
	switch {
	case c.back != 0 && (!slices.Contains(lost.Runs, c.back) || !c.resume):
		return from, coordinator.RunOver(c.job.Name)
	case c.back != 0:
		from.resume, from.lost, from.since = true, lost.Runs, lost.Since
	case !running || !s.mayHaveLost(c.job, &lost):
		return from, nil
	case from.resume: // from the newest of all, as was asked
		from.lost = lost.Runs
	default:
		from = coming{resume: true, lost: lost.Runs, since: lost.Since}
	}
	if c.back != 0 { // else all may be new, and come in their own time
		from.trainers = lost.Trainers
	}
	s.log.Info("job goes on that was lost", "job", c.job.Name, "run_id",
		strconv.FormatUint(uint64(lost.Runs[0]), 10))
	return from, nil
}

// mayHaveLost reports that a run of a job, if one was under way when the ps before this one ended, or has ended just
// now and is to go on, is gone back to by whoever joins it. That it has ended another ps may have noted, in the same
// folder.
func (s *Server) mayHaveLost(job *schema.Job, lost *checkpoint.Lost) bool {
	now := s.now()
	lately := s.lostRuns.lately(job.Name, now) || !s.byItself() && now.Sub(lost.At).Abs() <= resumeWindow
	return job.Policy != schema.PolicyFail && (now.Sub(s.started) <= resumeWindow || lately)
}

// unreadable refuses who comes back to a run of which the disk cannot tell now. They ask again, unless it never will.
func unreadable(err error) *schema.Refused {
	r := &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(err.Error())}
	if errors.Is(err, checkpoint.ErrDamaged) {
		r.Reason = "invalid_job"
	}
	return r
}

// lookForLost finds what is on the disk of a job, and notes that a run of it begins.
func (s *Server) lookForLost(c *acquisition) (found saved, refused *schema.Refused) {
	if c.kept != nil {
		found, ok, refused := s.lookForKept(c)
		if ok {
			s.noteRun(c, &found)
		}
		if ok || refused != nil {
			return found, refused
		}
	}
	from, refused := s.comesBack(c)
	if refused != nil {
		return found, refused
	}
	found, refused = s.lookForSaved(c.job, &from)
	if refused == nil && found.back != nil {
		refused = s.lacksOthers(c, found.resume)
	}
	if refused == nil {
		s.noteRun(c, &found)
	}
	return found, refused
}

// lacksOthers refuses who comes back to a run that had more shards than the ps have that are there, while this one has
// just been started and the others may find it any moment: they ask again.
func (s *Server) lacksOthers(c *acquisition, from *checkpoint.Manifest) *schema.Refused {
	if s.byItself() || from == nil || s.now().Sub(s.started) > 2*s.registry.renewEvery() {
		return nil
	}
	there := 0
	for i := range c.servers {
		there += c.servers[i].Shards
	}
	if there >= from.Shards {
		return nil
	}
	return &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(fmt.Sprintf(
		"job %s was on %d shards, the ps that are there have %d: others are awaited for a while after the start of this one",
		c.job.Name, from.Shards, there))}
}

// byItself reports that no other ps can share jobs with this one.
func (s *Server) byItself() bool { return s.config.NATS == "" && s.config.ControlToken == "" }

// isAlone reports that no other ps is there: it cannot be, or has not been announced by now.
func (s *Server) isAlone() bool {
	return s.byItself() || s.registry.alone.Load() && s.now().Sub(s.started) > 2*s.registry.renewEvery()
}

// noteRun notes that a run begins, where its versions are written down.
func (s *Server) noteRun(c *acquisition, found *saved) {
	if found.epoch == 0 {
		return
	}
	s.noting.Lock()
	defer s.noting.Unlock()
	err := checkpoint.Begin(s.config.Checkpoints.Dir, c.job.Name, c.record.RunID, found.since, c.job.Trainers,
		found.back...)
	if err != nil {
		s.log.Error("a ps that is started again will not know of the job", "job", c.job.Name, "err", err)
	}
}

// numberRun finds the number of a run that begins with what this ps has.
func (s *Server) numberRun(job *schema.Job, found *saved) {
	dir := s.config.Checkpoints.Dir
	if dir == "" {
		found.not = errNoFolder.Error()
		return
	}
	var err error
	if found.epoch, err = checkpoint.NextEpoch(dir, job.Name); err != nil { // a broken disk stops no training
		s.log.Error("no version of the job is written down", "job", job.Name, "err", err)
		found.not = err.Error()
	}
	found.since = found.epoch
}

// otherSettings reports that a run was lost of which the job is another with the same name, although nobody has asked
// to go on with it: then it begins anew.
func (s *Server) otherSettings(job *schema.Job, from *coming, err error) bool {
	if from.asked || !errors.Is(err, checkpoint.ErrOther) {
		return false
	}
	s.log.Warn("job begins anew: its settings are others than those of the run that was lost", "job", job.Name, "err", err)
	return true
}

// runEnded notes that a run of a job has ended, unless it is to go on.
func (l *controlLoop) runEnded(j *job) {
	failed := j.coordinator.Failed()
	switch {
	case !j.coordinator.WritesVersions():
		return
	case failed != nil && failed.Back:
		l.server.lostRuns.note(j.manifest.Name, l.server.now())
		if !l.server.byItself() {
			l.runOver(j.manifest.Name, j.run, checkpoint.Leave)
		}
		return
	}
	note := checkpoint.End
	if !j.coordinator.HasStarted() {
		note = checkpoint.Abandon
	}
	l.runOver(j.manifest.Name, j.run, note)
}

// runOver notes that a run has ended, by checkpoint.End, by checkpoint.Abandon where it had not begun, or by
// checkpoint.Leave where it is to go on.
func (l *controlLoop) runOver(name schema.JobName, run schema.RunID,
	note func(dir string, job schema.JobName, run schema.RunID) error) {
	s := l.server
	if s.config.Checkpoints.Dir == "" {
		return
	}
	s.releasing.Go(func() {
		s.noting.Lock()
		defer s.noting.Unlock()
		if err := note(s.config.Checkpoints.Dir, name, run); err != nil {
			s.log.Warn("the end of the job is not noted", "job", name, "err", err)
		}
	})
}
