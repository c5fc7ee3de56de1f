package coordinator

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"gradbus/internal/liveness"
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

func (rewinding) replacesSlow() bool { return false }

// tick implements policy.
func (rewinding) tick(c *Coordinator, now time.Time) []Decision {
	decisions := failing{}.tick(c, now)
	if c.IsOver() {
		return decisions
	}
	return append(decisions, c.makeRoom(now)...)
}

// newcomers are trainers that come while a job runs with fewer trainers than its manifest has.
type newcomers struct {
	all     []newcomer     // no more than there are trainers too few
	version schema.Version // that the next run is to begin with at least
}

// newcomer is a trainer that asks for a slot of the next run.
type newcomer struct {
	name             schema.Member // under which it asks
	join             *schema.Join
	liveness.Silence // since it asked last
}

// newcomerSilentMax is how long a newcomer, which asks each second, may be silent before it counts as gone.
const newcomerSilentMax = 4 * time.Second

// rewinds reports that the others come back when a trainer is lost, to go on from the newest durable version.
func (c *Coordinator) rewinds() bool {
	return c.goesBack() && c.config.Checkpoints != nil && c.IsRunning()
}

// goesBack reports that the job is one of those.
func (c *Coordinator) goesBack() bool {
	_, goesBack := c.policy.(rewinding)
	return goesBack
}

// places is how many trainers the manifest of those who join has.
func (c *Coordinator) places() int { return cmp.Or(c.config.Places, c.config.Job.Trainers) }

// NextTrainers returns how many slots the next run has: 0 is as many as the manifest. It is as many as this one, where
// that had not begun and was not given up.
func (c *Coordinator) NextTrainers() int {
	switch {
	case c.policy != (rewinding{}):
		return 0
	case c.failed == nil && !c.HasStarted() && c.config.Places != 0:
		return len(c.members)
	case c.failed == nil || !c.failed.Back:
		return 0
	}
	n := c.members.here(c.failed.Member)
	if n > 0 {
		n += len(c.newcomers.all)
	}
	return min(n, c.places())
}

// howOn says how a job that goes back goes on without a trainer.
func (c *Coordinator) howOn(without schema.Member) string {
	if n := c.members.here(without); c.policy == (rewinding{}) && n > 0 {
		return fmt.Sprintf("the job goes back to the newest durable version, with %d of %d trainers", n, c.places())
	}
	return "the others come back, and with a new one go on from the newest durable version"
}

// joinFewer has a version written for a trainer that comes while a job runs, and puts it off until then.
func (c *Coordinator) joinFewer(now time.Time, from schema.Member, j *schema.Join) []Decision {
	if c.room() == 0 || c.policy != (rewinding{}) {
		return c.Refuse(from, c.fullFor(now, j))
	}
	if c.plan.Reduces(schema.ByTrainers) {
		if j.URL == "" {
			return c.Refuse(from, c.noURL())
		}
		if refused := c.unreachable(j); refused != nil {
			return c.Refuse(from, refused)
		}
	}
	k := &c.newcomers
	if c.config.Cramped {
		return c.Refuse(from, &schema.Refused{Reason: schema.RefusedBusy, Text: fmt.Sprintf(
			"job %s goes on with %d of %d trainers: there was no room for more", c.config.Job.Name, len(c.members),
			c.places())})
	}
	c.wantVersion()
	i := slices.IndexFunc(k.all, func(m newcomer) bool { return m.name == from || j.Key != 0 && m.join.Key == j.Key })
	if i < 0 && len(k.all) < c.room() {
		k.all = append(k.all, newcomer{})
		i = len(k.all) - 1
	}
	if i >= 0 {
		k.all[i].name, k.all[i].join = from, j
		k.all[i].Begin(now)
	}
	return c.Refuse(from, c.roomSoon())
}

// unreachable refuses a newcomer on another machine than a member where one of them listens on its own machine alone.
func (c *Coordinator) unreachable(j *schema.Join) *schema.Refused {
	machine := func(process string) string {
		boot, _, _ := strings.Cut(process, "/")
		return boot
	}
	for i := range c.members {
		m := &c.members[i]
		if !m.here() || m.process == "" || j.Process == "" || machine(m.process) == machine(j.Process) {
			continue
		}
		for _, one := range []struct{ url, host string }{{j.URL, j.Host}, {m.url, m.host}} {
			u, err := url.Parse(one.url)
			if err != nil {
				continue
			}
			if host, err := netip.ParseAddr(u.Hostname()); err != nil || !host.IsLoopback() {
				continue
			}
			return &schema.Refused{Reason: "invalid_job", Field: "url", Want: j.URL, Text: fmt.Sprintf(
				"the trainer on %s listens to others at %s, which leads to it on its own machine alone, and there are others on "+
					"other machines: give all of them a token (--token-file), or say where to listen (--data-host)", one.host,
				one.url)}
		}
	}
	return nil
}

// wantVersion has a version written that is newer than the newest, unless one is written by that.
func (c *Coordinator) wantVersion() {
	if len(c.newcomers.all) == 0 && len(c.leavers()) == 0 {
		c.newcomers.version = 1 + max(c.checkpoints.durable.version, c.first())
	}
}

// leavers are the trainers that wait for a version to leave; none where nobody stays.
func (c *Coordinator) leavers() []int {
	if !c.members.anyStays() {
		return nil
	}
	return c.members.draining()
}

// room is how many more trainers the next run may have: those that this one has too few, and those that leave.
func (c *Coordinator) room() int { return c.places() - len(c.members) + len(c.leavers()) }

// Leaving takes the word of a trainer that leaves once a version is durable, and has one written. It may leave at once
// where nobody would go on from that.
func (c *Coordinator) Leaving(from schema.Member) (decisions []Decision) {
	now := schema.Control{Leaving: &schema.Leaving{Now: true}}
	i, ok := c.members.find(from)
	if !ok || c.policy != (rewinding{}) || !c.rewinds() {
		return []Decision{{To: from, Control: now}}
	}
	c.wantVersion()
	if m := &c.members[i]; m.here() && m.state != slotDraining {
		m.state.transition(slotDraining)
	}
	if c.members.anyStays() {
		return nil
	}
	for _, i := range c.members.draining() {
		decisions = append(decisions, Decision{To: schema.TrainerMember(i), Control: now})
	}
	return decisions
}

// roomSoon puts a trainer off for which the next run has a place.
func (c *Coordinator) roomSoon() *schema.Refused {
	return &schema.Refused{Reason: schema.RefusedBusy, Text: fmt.Sprintf(
		"job %s goes on with %d of %d trainers; there is a place once a version of it is durable", c.config.Job.Name,
		c.members.here(""), c.places())}
}

// makeRoom ends the run for newcomers, and for those who leave, once a version has become durable since they said so.
func (c *Coordinator) makeRoom(now time.Time) []Decision {
	k, trains := &c.newcomers, func(m member) bool { return m.here() && !m.complete }
	k.all = slices.DeleteFunc(k.all, func(m newcomer) bool { return m.For(now) > newcomerSilentMax })
	leavers := c.leavers()
	if len(k.all) == 0 && len(leavers) == 0 || !c.rewinds() || c.checkpoints.durable.version < k.version ||
		!slices.ContainsFunc(c.members, trains) {
		return nil
	}
	text := ""
	if len(leavers) > 0 {
		text = fmt.Sprintf("trainer %s on %s leaves", schema.TrainerMember(leavers[0]), c.members[leavers[0]].host)
	} else {
		text = "a trainer has come from " + k.all[0].join.Host
	}
	return c.EndBack(schema.EndStopped, schema.Coordinator, fmt.Sprintf(
		"%s; all go on from version %d, with %d of %d trainers", text,
		c.checkpoints.durable.version, c.members.here("")+len(k.all), c.places()))
}

// wantsVersion reports that a version is to be written for newcomers or for those who leave, where none is being
// written.
func (c *Coordinator) wantsVersion() bool {
	return (len(c.newcomers.all) > 0 || len(c.leavers()) > 0) && c.checkpoints.durable.version < c.newcomers.version
}

// PutOff returns those who were put off until a place would be free, where the job has come to its end.
func (c *Coordinator) PutOff() (all []schema.Member) {
	if !c.IsOver() || c.failed != nil || !c.HasStarted() {
		return nil
	}
	for i := range c.newcomers.all {
		all = append(all, c.newcomers.all[i].name)
	}
	return all
}
