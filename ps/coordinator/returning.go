package coordinator

import (
	"cmp"
	"fmt"
	"time"

	"gradbus/internal/liveness"
	"gradbus/schema"
)

// Trainers come back to a job whose run was lost, and wait for each other.

// returnMax is for how long trainers who come back wait for others of their run to do so. Those whose ps has ended come
// at once to the one that stands by.
const (
	returnMax     = 10 * time.Second
	ReturnSoonMax = time.Second
)

// returnWithin is for how long they do. It is not long where as many are here as the run had in the end.
func (c *Coordinator) returnWithin() time.Duration {
	within := cmp.Or(c.config.ReturnWithin, returnMax)
	if n := c.config.Here; n > 0 && len(c.members)-c.members.missing() >= n {
		within = ReturnSoonMax
	}
	if c.config.StartTimeout > 0 {
		within = min(within, c.config.StartTimeout)
	}
	return within
}

// waitNoLonger has a job go on to which not all trainers of the run that was lost have come back.
func (c *Coordinator) waitNoLonger(now time.Time) []Decision {
	within := c.returnWithin()
	switch {
	case !c.Gathers() || c.config.Returning == nil || !c.members.anybody() || c.members.missing() == 0 ||
		c.grew.For(now) < within:
		return nil
	case c.policy == (rewinding{}): // the next run has fewer places
		return c.FailBack(schema.Coordinator, fmt.Sprintf(
			"%d of %d trainers have not come back within %s; the job goes on without them", c.members.missing(), len(c.members),
			liveness.Rounded(within)))
	case c.policy == (recovering{}) || c.policy.goesOn() || c.policy.excludes():
		return c.startWithout(now)
	}
	return nil
}

// startWithout begins a job without some of its trainers, once all else is there: others have their places, or nobody,
// where nobody needs them. A job that begins with values waits for all of them where these were not durable.
func (c *Coordinator) startWithout(now time.Time) (decisions []Decision) {
	if here := len(c.members) - c.members.missing(); !c.ready() || 2*here <= c.config.Doubt {
		return nil
	}
	if c.config.Resume.version() < c.config.Job.StartVersion() {
		return nil // every trainer has a part in the values that the job begins with
	}
	for i := range c.members {
		m, name := &c.members[i], schema.TrainerMember(i)
		text := fmt.Sprintf("trainer %s has not come back", name)
		switch {
		case m.joiner != "":
		case c.policy.goesOn() || c.policy.excludes():
			m.become(slotLost, member{joiner: name, host: "another machine", by: -1, dead: true})
			c.serial++ // shards are told
			decisions = append(decisions, Decision{Note: text + "; the job goes on without it", Who: name})
		default:
			m.host = "another machine"
			decisions = append(decisions, c.vacate(now, i, text)...)
		}
	}
	return append(c.begin(now), decisions...)
}
