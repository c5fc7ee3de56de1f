package ps

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gradbus/schema"
)

// Jobs that go back (schema.Job.Rewinds) have no place that another trainer could take over in the middle of a batch.
// When a trainer is lost the run ends, and the others come back to one that begins with the newest durable version.
// Under schema.PolicyRecover that has as many places as there are trainers:
//
//  1. A run that ends says how many are left. The next one has as many places.
//  2. Where some of these are not taken for a while, that run ends as well, and the next one has fewer.
//  3. Whoever comes when all places of a run are taken, though the manifest has more, has a version written. Once it is
//     durable the run ends, and the next one has one place more.

// rewinding has the trainers of a job that goes back come together anew. Where it waits, it does so for as many as the
// manifest has.
type rewinding struct{ waits bool }

func (rewinding) goesOn() bool   { return false }
func (rewinding) excludes() bool { return false }

// tick implements policy.
func (rewinding) tick(c *Coordinator, now time.Time) []Decision {
	decisions := failing{}.tick(c, now)
	if c.phase == Ended {
		return decisions
	}
	return append(decisions, c.makeRoom(now)...)
}

// newcomers are trainers that come while a job runs with fewer trainers than its manifest has.
type newcomers struct {
	all     []comer        // no more than there are trainers too few
	version schema.Version // that the next run is to begin with at least
}

// rewinds reports that the others come back when a trainer is lost, to go on from the newest durable version.
func (c *Coordinator) rewinds() bool {
	_, rewinds := c.policy.(rewinding)
	return rewinds && c.config.Checkpoints != nil && c.phase == Running
}

// places is how many trainers the manifest of those who join has.
func (c *Coordinator) places() int { return cmp.Or(c.config.Places, c.config.Job.Trainers) }

// goesBackWithFewer reports whether a job goes back with as many trainers as there are.
func goesBackWithFewer(job *schema.Job) bool {
	return job.Rewinds() && job.Policy == schema.PolicyRecover
}

// left is how many places the next run has: 0 is as many as the manifest.
func (c *Coordinator) left() int {
	if c.policy != (rewinding{}) || c.failed == nil || !c.failed.Back {
		return 0
	}
	n := c.here(c.failed.Member)
	if n > 0 {
		n += len(c.newcomers.all)
	}
	return min(n, c.places())
}

// here is how many trainers are there besides one.
func (c *Coordinator) here(besides schema.Member) (n int) {
	for i := range c.members {
		if m := &c.members[i]; m.here() && !m.dead && schema.TrainerMember(i) != besides {
			n++
		}
	}
	return n
}

// howOn says how a job that goes back goes on without a trainer.
func (c *Coordinator) howOn(without schema.Member) string {
	if n := c.here(without); c.policy == (rewinding{}) && n > 0 {
		return fmt.Sprintf("the job goes back to the newest durable version, with %d of %d trainers", n, c.places())
	}
	return "the others come back, and with a new one go on from the newest durable version"
}

// beginWithFewer ends a run that waits for trainers of the one before that do not come back.
func (c *Coordinator) beginWithFewer(now time.Time) []Decision {
	returns := c.phase == Gathering && c.config.Returning != nil && c.policy == (rewinding{})
	if !returns || !c.anybody() || c.missing() == 0 || c.grew.For(now) < returnMax {
		return nil
	}
	text := fmt.Sprintf("%d of %d trainers have not come back within %s; the job goes on without them", c.missing(),
		len(c.members), rounded(returnMax))
	return c.FailBack(schema.Coordinator, text)
}

// joinFewer has a version written for a trainer that comes while a job runs, and puts it off until then.
func (c *Coordinator) joinFewer(now time.Time, from schema.Member, j *schema.Join) []Decision {
	if len(c.members) == c.places() || c.policy != (rewinding{}) {
		return c.Refuse(from, c.fullFor(now, j))
	}
	k := &c.newcomers
	if len(k.all) == 0 {
		k.version = 1 + max(c.checkpoints.durable.version, c.first())
	}
	i := slices.IndexFunc(k.all, func(m comer) bool { return m.is(from, j) })
	if i < 0 && len(k.all) < c.places()-len(c.members) {
		k.all = append(k.all, comer{})
		i = len(k.all) - 1
	}
	if i >= 0 {
		k.all[i].name, k.all[i].join = from, j
		k.all[i].Begin(now)
	}
	return c.Refuse(from, c.roomSoon())
}

// roomSoon puts a trainer off for which the next run has a place.
func (c *Coordinator) roomSoon() *schema.Refused {
	return &schema.Refused{Reason: schema.RefusedBusy, Text: fmt.Sprintf(
		"job %s goes on with %d of %d trainers; there is a place once a version of it is durable", c.config.Job.Name,
		len(c.members), c.places())}
}

// makeRoom ends the run for newcomers, once a version has become durable since they came.
func (c *Coordinator) makeRoom(now time.Time) []Decision {
	k, trains := &c.newcomers, func(m member) bool { return m.here() && !m.complete }
	k.all = slices.DeleteFunc(k.all, func(m comer) bool { return m.For(now) > comerSilentMax })
	if len(k.all) == 0 || !c.rewinds() || c.checkpoints.durable.version < k.version ||
		!slices.ContainsFunc(c.members, trains) {
		return nil
	}
	text := fmt.Sprintf("a trainer has come from %s; all go on from version %d, with %d of %d trainers",
		k.all[0].join.Host, c.checkpoints.durable.version, len(c.members)+len(k.all), c.places())
	return c.FailBack(schema.Coordinator, text)
}

// wantsVersion reports that a version is to be written now, for newcomers, and none is being written.
func (c *Coordinator) wantsVersion() bool {
	k := &c.newcomers
	return len(k.all) > 0 && !slices.ContainsFunc(c.checkpoints.asked,
		func(a askedVersion) bool { return a.version >= k.version && !a.failed })
}

// withTrainersLeft is the manifest of a job with as many trainers as were left of the run that has just ended here, and
// how many it has, where these are more.
func (l *controlLoop) withTrainersLeft(job *schema.Job) (fewer *schema.Job, places int) {
	i := len(l.ended) - 1
	for i >= 0 && l.ended[i].name != job.Name {
		i--
	}
	if i < 0 || l.ended[i].places == 0 || !goesBackWithFewer(job) || !l.server.lostRuns.lately(job.Name, l.server.now()) {
		return job, 0
	}
	n := min(l.ended[i].places, job.Trainers)
	return job.WithTrainers(n), job.Trainers
}
