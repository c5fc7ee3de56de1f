package coordinator

import (
	"time"

	"gradbus/schema"
)

// policy is what a coordinator does about trainers of a running job that are lost, keep others waiting, or end early.
// It follows from whose rounds they take part in. Nothing else of the coordinator asks for that.
type policy interface {
	// tick looks for the lost and the slow.
	tick(c *Coordinator, now time.Time) []Decision
	// goesOn says that nobody waits for a trainer that has ended, and that one who was lost may come back.
	goesOn() bool
	// excludes says that shards are told who has ended, and go on without them for good.
	excludes() bool
	// replacesSlow reports whether the job goes on, and loses nothing, when it gives up a live trainer that keeps others
	// waiting.
	replacesSlow() bool
}

// policyOf is the policy of a job.
func policyOf(config *Config) policy {
	switch p := config.Job.Policy; p {
	case schema.PolicyRecover, schema.PolicyWait:
		waits := p == schema.PolicyWait
		if config.Job.Rewinds() {
			return rewinding{waits}
		}
		return recovering{waits}
	}
	switch config.Job.Plan().Clock {
	case schema.ClockEach:
		return goingOn{}
	case schema.ClockGrouped:
		return excluding{}
	}
	return failing{}
}

// failing ends the job, naming the trainer, since the others' rounds wait for its lanes.
type failing struct{}

// tick implements policy.
func (failing) tick(c *Coordinator, now time.Time) []Decision {
	decisions := c.findLost(now, c.failFor)
	if c.IsOver() {
		return decisions
	}
	return append(decisions, c.findSlow(now, c.waiting())...)
}

func (failing) goesOn() bool       { return false }
func (failing) excludes() bool     { return false }
func (failing) replacesSlow() bool { return false }

// goingOn names the trainer, and the job goes on while anybody is there: each has rounds of its own.
type goingOn struct{}

// tick implements policy.
func (goingOn) tick(c *Coordinator, now time.Time) []Decision { return c.findLost(now, c.failFor) }

func (goingOn) goesOn() bool       { return true }
func (goingOn) excludes() bool     { return false }
func (goingOn) replacesSlow() bool { return false }

// excluding names the trainer, and groups are made without it from then on. Nobody comes back: the others' updates
// have been made without it. The job fails when nobody else is there, or before all values are there that it begins
// with.
type excluding struct{}

// tick implements policy: it notes who was lost, or has kept a group waiting for too long, and tells the shards.
func (excluding) tick(c *Coordinator, now time.Time) []Decision {
	if !c.valuesThere() {
		return failing{}.tick(c, now)
	}
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

func (excluding) goesOn() bool       { return false }
func (excluding) excludes() bool     { return true }
func (excluding) replacesSlow() bool { return true }
