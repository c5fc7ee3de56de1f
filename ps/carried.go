package ps

import (
	"slices"
	"time"

	"gradbus/schema"
)

// carriedRun is a run that trainers come back from with all that the job has. The registry tells it to other ps.
type carriedRun struct {
	Server      string         `json:"server"` // the ps where it has ended, which takes it up as long as it is there
	Incarnation uint64         `json:"incarnation,string"`
	Runs        []schema.RunID `json:"runs"`     // it, and those that it went on from; the newest first, at most carriedMax
	Here        int            `json:"here"`     // trainers that were there when it ended
	Trainers    int            `json:"trainers"` // that will come; 0: not known
	Least       int            `json:"least"`    // as many have to
	// ByHand is that no run is known, and all trainers resume: from the version in a folder of theirs that was written
	// last.
	ByHand bool `json:"by_hand,omitempty"`
	// Same are runs that had the same versions up to one: nobody has completed a batch of those that followed the first.
	Same     []schema.RunID `json:"same,omitempty"`
	SameUpTo schema.Version `json:"same_up_to,omitempty"`
	// that a trainer had begun: with nobody's version there is something to lose
	Begun   schema.Batch      `json:"begun"`
	LR      []schema.LRChange `json:"lr,omitempty"`
	EndedMS int64             `json:"ended_ms"` // since 1970; 0: nobody has seen the end

	// of those who were there: the names of their connections, and their processes, of which those of this machine are
	// seen to end
	connections, processes []string
	newcomer               string // host of the one for whom it has ended; empty: for nobody
	barred, why            string // host of one that others did not reach, and why; empty: nobody's
	slowest                slowest
}

// leastOf is how many trainers have to come back to a job before it goes on, where none of them is known.
func leastOf(job *schema.Job) int {
	if job.Policy == schema.PolicyWait {
		return job.Trainers
	}
	return 1
}

// carriedMax bounds the earlier runs that a trainer may come back from.
const carriedMax = 16

// goesOnWithin is for how long a run that trainers come back from is taken up by whoever joins: about as long as they
// try to (trainer.Config.ReconnectTimeout).
const goesOnWithin = 30 * time.Second

// takenUp reports that whoever joins now takes the run up. Clocks of two machines may differ.
func (k *carriedRun) takenUp(now time.Time) bool {
	return now.Sub(time.UnixMilli(k.EndedMS)).Abs() < goesOnWithin
}

// noteEnd notes that the run of a job has ended here, and gives what the registry keeps of it.
func (l *controlLoop) noteEnd(j *job) endedRun {
	ended := endedRun{RunID: j.run, Joiners: j.coordinator.Joiners(), Next: j.coordinator.regather.next}
	if k := ended.Next; k != nil {
		k.Server, k.Incarnation = l.server.registry.self.ID, l.server.registry.self.Incarnation
		k.EndedMS = l.server.now().UnixMilli()
	}
	return ended
}

// takesUp reports that a job goes on from a run that a trainer comes back from, of which this ps, which was started a
// short while ago, knows nothing.
func (l *controlLoop) takesUp(j *job, m *message, request *schema.Join) bool {
	c := j.coordinator
	_, regathers := c.policy.(regathering)
	inMemory := request.Run != 0 && request.Run != j.run && request.Has > 0 && !c.over()
	inFolder := request.Run == 0 && request.Saved != nil && request.Saved.Lost && c.gathers() &&
		l.lastEnded(j.manifest.Name) == nil
	return regathers && (inMemory || inFolder) && c.config.Carried == nil && c.differs(request) == nil &&
		l.over(m, request.Run) == nil && l.server.now().Sub(l.server.started) < backMax
}

// carriedFrom is the run that a job goes on from with what its trainers have; nil: none.
func (l *controlLoop) carriedFrom(c *acquisition) *carriedRun {
	k := l.carriedBefore(c)
	if k == nil && c.job.Carried() && c.resume && c.back == 0 {
		return &carriedRun{ByHand: true, Trainers: c.job.Trainers, Least: c.job.Trainers}
	}
	return k
}

// carriedBefore is one that has ended here, or at another ps that is there no more. Where nobody knows anything of it,
// it is any that a trainer comes back from, or has a version of that was lost.
func (l *controlLoop) carriedBefore(c *acquisition) *carriedRun {
	if !c.job.CarriesOn() {
		return nil
	}
	newest := true
	for i := len(l.history) - 1; i >= 0; i-- {
		e := &l.history[i]
		switch {
		case e.name != c.job.Name:
			continue
		case newest && e.failed == nil: // it has come to its end
			return nil
		case e.next != nil && c.back == 0 && e.next.takenUp(l.server.now()),
			e.next != nil && slices.Contains(e.next.Runs, c.back):
			return e.next
		case e.run == c.back, c.back == 0:
			return nil
		}
		newest = false
	}
	if k := c.goesOn; k != nil && (slices.Contains(k.Runs, c.back) || c.back == 0 && k.takenUp(l.server.now())) {
		return k
	}
	if v := c.saved; c.back == 0 && !c.resume && v != nil && v.Lost && (c.record == nil || len(c.record.Ended) == 0) &&
		l.server.now().Sub(l.server.started) < backMax {
		return &carriedRun{Runs: []schema.RunID{v.Run}, Least: leastOf(c.job), Begun: schema.Batch(v.Version) + 1}
	}
	over := func(e endedRun) bool { return e.RunID == c.back }
	if c.back == 0 || !c.resume || c.record != nil && slices.ContainsFunc(c.record.Ended, over) && c.goesOn == nil {
		return nil
	}
	return &carriedRun{Runs: []schema.RunID{c.back}, Least: leastOf(c.job)}
}
