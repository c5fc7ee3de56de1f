package coordinator

import (
	"time"

	"gradbus/schema"
)

// lossAction is what follows when a trainer of a running job is lost, keeps others waiting, or ends early. It follows
// from the plan's capability, the job's policy and its clock.
type lossAction int

const (
	// lossEnd: the job ends and names the trainer, since rounds wait for its lanes.
	lossEnd lossAction = iota
	// lossTakeOver: in place, other trainers or a new process compute its lanes.
	lossTakeOver
	// lossRestart: the run ends, and the others rejoin the next one.
	lossRestart
	// lossContinue: each trainer has rounds of its own. The others continue, and a newcomer may have the slot.
	lossContinue
	// lossExclude: groups are made without the trainer, and its slot stays lost.
	lossExclude
)

// lossActionOf returns what a job does about a lost trainer.
func lossActionOf(job *schema.Job) lossAction {
	switch recovers := job.Policy == schema.PolicyRecover || job.Policy == schema.PolicyWait; {
	case recovers && job.Rewinds():
		return lossRestart
	case recovers:
		return lossTakeOver
	case job.Plan().Clock == schema.ClockEach:
		return lossContinue
	case job.Plan().Clock == schema.ClockGrouped:
		return lossExclude
	}
	return lossEnd
}

// waits reports whether a lost trainer is replaced only by a new process.
func (c *Coordinator) waits() bool { return c.config.Job.Policy == schema.PolicyWait }

// takesOver reports whether lanes of a lost trainer may be taken over now.
func (c *Coordinator) takesOver() bool { return c.onLoss == lossTakeOver && c.valuesThere() }

// replacesSlow reports whether the job loses nothing when it gives up a live trainer that keeps others waiting.
func (c *Coordinator) replacesSlow() bool {
	return c.onLoss == lossExclude || c.onLoss == lossTakeOver && !c.waits()
}

// findLostAndSlow looks for trainers of a running job that are lost or keep others waiting, and does what follows. While
// values are missing that the job begins with, every trainer has a part in them, and each loss ends the job.
func (c *Coordinator) findLostAndSlow(now time.Time) []Decision {
	switch {
	case c.onLoss == lossContinue:
		return c.findLost(now, c.failFor)
	case c.onLoss == lossExclude && c.valuesThere():
		return c.excludeLost(now)
	case c.takesOver():
		return c.replaceLost(now)
	}
	decisions := c.findLost(now, c.failFor)
	if !c.IsOver() {
		decisions = append(decisions, c.findSlow(now, c.waiting())...)
	}
	if !c.IsOver() && c.onLoss == lossRestart {
		decisions = append(decisions, c.rescale(now)...)
	}
	return decisions
}

// excludeLost notes trainers that are lost, or have kept a group waiting for too long, and tells the shards. The job
// fails when no other trainer is left.
func (c *Coordinator) excludeLost(now time.Time) []Decision {
	var decisions []Decision
	waiting := c.waiting()
	for i := range c.members {
		m, name := &c.members[i], schema.TrainerMember(i)
		if m.state == slotDone || m.lost() {
			continue
		}
		text, lost := c.lost(now, i)
		if c.slow(now, i, waiting) && !lost {
			lost, text = true, c.sayWaited(now, i, "update")
		}
		if !lost {
			continue
		}
		m.state.transition(slotLost)
		if !c.members.anybody() {
			return append(decisions, c.Fail(name, text)...)
		}
		decisions = append(decisions, Decision{Note: text + "; the job goes on without it", Who: name})
	}
	if decisions != nil {
		c.serial++ // the shards are told by Tick
	}
	return decisions
}
