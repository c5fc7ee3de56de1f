package ps

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/liveness"
	"gradbus/internal/process"
	"gradbus/schema"
)

// A ps that stands by follows this one: it says so some times a second (Follow). Coordinators here have it keep what the
// shards of their jobs have (Keep), and trainers are told where it is (Standby).

// followedMax is the silence of a standby after which it does not count any more.
const followedMax = 5 * time.Second

// follower is the ps that stands by for this one.
type follower struct {
	member schema.Member
	url    string
	host   string
	drawn  uint64 // at its start
	heard  liveness.Silence
	over   []schema.OverRun // that were noted
}

// foreignPeer is a ps that would stand by for this one, and reads another protocol. Nothing is handed over to it.
type foreignPeer struct {
	why string    // empty: there has been none
	at  time.Time // it was heard last
}

// noteForeign notes that a message was refused which reads another protocol, if it is that of a ps that would stand by.
func (l *controlLoop) noteForeign(m *message, err error) {
	if m.name == "follow" && m.from.IsServer() && schema.ReasonOf(err) == schema.ReasonUnknownVersion {
		l.foreign = foreignPeer{schema.Refusing(err).Detail, l.server.now()}
	}
}

// loses names a job that would be lost with this ps, since the other one reads another protocol, and no version of the
// job is written; ok is false if there is none.
func (l *controlLoop) loses() (job schema.JobName, ok bool) {
	if l.foreign.why == "" || l.server.now().Sub(l.foreign.at) > followedMax {
		return "", false
	}
	for name, j := range l.coordinated() {
		if c := j.coordinator; c.Trains() && !c.WritesVersions() && !l.stands(j) {
			return name, true
		}
	}
	return "", false
}

// follow takes the word of a ps that stands by, or wants to. There is one.
func (l *controlLoop) follow(m *message, f *schema.Follow) *refusal {
	now := l.server.now()
	if !m.from.IsServer() {
		return schema.Refuse(schema.ReasonUnknownSender, "%s wants to stand by, and is no ps", m.from)
	}
	is := l.follower
	switch {
	case l.server.config.grouped():
		l.send(schema.TelemetryJob, 0, m.from, schema.Control{Refused: &schema.Refused{Reason: "member_taken",
			Text: "this ps keeps replicas among those of one NATS server: give it no --replicas, or join it with --nats"}})
		return nil
	case is != nil && is.member != m.from: // a tick finds out whether it is there no more
		l.send(schema.TelemetryJob, 0, m.from, schema.Control{Refused: &schema.Refused{Reason: "member_taken",
			Text: fmt.Sprintf("ps %s on %s stands by already", is.member.ServerID(), is.host)}})
		return nil
	case f.Leaving:
		if is != nil && is.member == m.from {
			l.unfollow("has left")
			for _, j := range l.coordinated() {
				j.coordinator.StandsNoMore()
			}
		}
		return nil
	case is == nil || is.member != m.from || is.drawn != f.Incarnation:
		l.unfollow("was started anew")
		is = &follower{member: m.from, drawn: f.Incarnation, host: f.Host}
		l.follower, l.gone = is, ""
		l.server.log.Info("a ps stands by", "server", m.from.ServerID(), "host", f.Host, "url", f.URL)
	}
	is.url = f.URL
	is.heard.Begin(now)
	for _, over := range f.Over {
		l.goneOn(over)
	}
	is.over = f.Over
	for _, j := range l.coordinated() {
		l.carryOut(j, j.coordinator.Peers(now, peersOf(l.keepers(nil))))
	}
	l.noteStandby(now)
	l.send(schema.TelemetryJob, 0, m.from, schema.Control{Heard: l.heard()})
	return nil
}

// heard returns the answer to a standby.
func (l *controlLoop) heard() *schema.Heard {
	heard := &schema.Heard{Incarnation: l.server.registry.self.Incarnation}
	var others []schema.JobName
	for name, j := range l.coordinated() {
		if len(j.coordinator.Replicas(l.server.now()).Members) > 0 {
			heard.Jobs = append(heard.Jobs, name) // first, since a job that is not named is dropped there
		} else {
			others = append(others, name)
		}
	}
	if b := l.server.standby; b != nil {
		others = append(b.awaited(), others...)
	}
	heard.Jobs = append(heard.Jobs, others...)
	heard.Jobs = toldOf(heard.Jobs)
	return heard
}

// toldOf cuts a list of jobs to what a message may have: a longer one would be refused whole.
func toldOf[T any](jobs []T) []T { return jobs[:min(len(jobs), schema.FollowMax)] }

// goneOn ends a run that the ps which stands by has gone on with.
func (l *controlLoop) goneOn(over schema.OverRun) {
	if slices.Contains(l.follower.over, over) {
		return
	}
	if j := l.job(over.Job); j != nil && j.run == over.Run {
		l.yielded[over.Job] = l.server.now()
		l.carryOut(j, j.coordinator.Restart("", l.follower.member,
			"this ps was out of reach, and ps "+l.follower.member.ServerID()+", which stood by, has gone on with the job"))
	}
	l.runOver(over.Job, over.Run, checkpoint.End)
}

// unfollow records that there is no standby any more.
func (l *controlLoop) unfollow(why string) {
	is := l.follower
	if is == nil {
		return
	}
	l.follower, l.gone = nil, is.goneText(why)
	for _, j := range l.coordinated() {
		j.coordinator.StandbySilent()
		l.carryOut(j, j.coordinator.Peers(l.server.now(),
			peersOf(l.pair(leaseRecord{ID: is.member.ServerID(), Leaving: true}))))
	}
	l.server.log.Warn("no ps stands by", "server", is.member.ServerID(), "host", is.host, "why", why)
	for _, a := range l.assignments {
		a.unmirror()
	}
}

func (a *assignment) unmirror() {
	if a.mirroring != nil {
		a.mirroring.stop()
		a.mirroring = nil
	}
}

// tellSoon has the control loop look at what it is to tell of what is kept, and who stands by.
func (l *controlLoop) tellSoon() {
	nudge(l.mirrored)
}

// tellStandby says who stands by, and finds out whether it still does. It is called at each tick, when all is said
// again, and when something may have changed.
func (l *controlLoop) tellStandby(now time.Time, tick bool) {
	is := l.follower
	if is == nil {
		return
	}
	if silent := is.heard.For(now); tick && silent > followedMax {
		l.unfollow(fmt.Sprintf("was last heard %s ago", liveness.Rounded(silent)))
		return
	}
	for name, j := range l.coordinated() {
		if is.silent(now) { // whether or not its replica still counts
			j.coordinator.StandbySilent()
		}
		if !l.stands(j) {
			continue
		}
		was := j.coordinator.StandsBy(is.url)
		if was != is.url || tick {
			l.send(name, j.run, schema.All, schema.Control{Standby: &schema.Standby{URL: is.url}})
		}
		if text := j.lostTogether(process.HostAndID(), is.host); was == "" && text != "" {
			l.server.log.Warn("the loss of this host would stop a job", "job", name, "text", text)
		}
	}
}

// lostTogether says what follows if this host is lost with the trainers on it: empty if a majority of the trainers is left
// to continue the job at the ps that stands by, or if that sees the end of this process itself.
func (j *job) lostTogether(host, standby string) string {
	name, _, _ := strings.Cut(host, " (")
	if other, _, _ := strings.Cut(standby, " ("); other == name {
		return ""
	}
	here, all := j.coordinator.TrainersOn(host)
	if 2*(all-here) > all {
		return ""
	}
	return fmt.Sprintf("%d of its %d trainers are on %s, as its ps is: without them it waits for %s takeover %s", here, all,
		name, process.Invoked("ps"), j.name)
}

// stands reports whether the ps that follows this one could go on with a job.
func (l *controlLoop) stands(j *job) bool {
	r := j.coordinator.Replicas(l.server.now())
	return l.follower != nil && r.Ready && slices.Contains(r.Members, l.follower.member)
}

// keepers are the ps that may keep what shards have, of those that are announced: those that say so, or this one with
// the one that follows it.
func (l *controlLoop) keepers(servers []leaseRecord) []leaseRecord {
	if l.server.config.grouped() {
		return servers
	}
	if l.follower == nil {
		return nil
	}
	return l.pair(leaseRecord{ID: l.follower.member.ServerID(), Incarnation: l.follower.drawn, Stands: true})
}

// pair is this ps and another one.
func (l *controlLoop) pair(other leaseRecord) []leaseRecord {
	return []leaseRecord{{ID: l.server.ID(), Incarnation: l.server.registry.self.Incarnation, Stands: true}, other}
}

// silent reports whether it was not heard lately.
func (f *follower) silent(now time.Time) bool { return f.heard.For(now) > 2*followEvery+tickEvery }

// shardsOf is the shards here of a job that this ps coordinates; nil: there are none.
func (l *controlLoop) shardsOf(j *job) *assignment {
	if a := l.assignments[j.manifest.Name]; a != nil && a.run == j.run {
		return a
	}
	return nil
}

// handsOver makes the standby, if there is one, continue a job, and reports whether it has received all of it.
func (l *controlLoop) handsOver(j *job) (stands, told bool) {
	if !l.stands(j) || !j.coordinator.Trains() {
		return false, false
	}
	decisions, told := j.coordinator.HandOver(l.server.now())
	l.carryOut(j, decisions)
	return true, told
}
