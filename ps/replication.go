package ps

import (
	"fmt"
	"slices"
	"time"

	"gradbus/checkpoint"
	"gradbus/internal/liveness"
	"gradbus/internal/process"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// follow takes the word of a ps that holds replicas for this one, or wants to. There is one.
func (l *controlLoop) follow(m *message, f *schema.Follow) *refusal {
	now := l.server.now()
	if !m.from.IsServer() {
		return schema.Refuse(schema.ReasonUnknownSender, "%s wants to hold replicas, and is no ps", m.from)
	}
	why := l.successor.refuses(m.from, l.jobs)
	if l.server.config.grouped() {
		why = "this ps keeps replicas among those of one NATS server: give it no --replicas, or join it with --nats"
	}
	is := l.successor.is
	switch {
	case why != "":
		l.send(schema.TelemetryJob, 0, m.from,
			schema.Control{Refused: &schema.Refused{Reason: "member_taken", Text: why}})
		return nil
	case f.Leaving:
		if is != nil && is.member == m.from {
			l.unfollow("has left")
			l.successor.last = ""
			for _, j := range l.jobs.coordinated() {
				j.coordinator.SetSuccessor("")
			}
		}
		return nil
	case is == nil || is.member != m.from || is.drawn != f.Incarnation:
		l.unfollow("was started anew")
		is = &follower{member: m.from, drawn: f.Incarnation, host: f.Host}
		l.successor.is, l.successor.gone, l.successor.last = is, "", m.from
		l.server.log.Info("replica available", "server", m.from.ServerID(), "host", f.Host, "url", f.URL)
	}
	is.url = f.URL
	is.heard.Begin(now)
	for _, over := range f.Over { // it has gone on with these
		if slices.Contains(is.over, over) {
			continue
		}
		if j := l.jobs.of(over.Job); j != nil && j.run == over.Run {
			l.successor.yielded[over.Job] = yield{now, is.member}
			l.carryOut(j, j.coordinator.Restart("", is.member, "this ps was out of reach, and ps "+is.member.ServerID()+
				", which has the replica, has gone on with the job"))
		}
		l.server.folder.over(over.Job, over.Run, checkpoint.End)
	}
	is.over = f.Over
	for _, j := range l.jobs.coordinated() {
		l.carryOut(j, j.coordinator.Peers(now, peersOf(l.successor.pair(&l.server.registry.self))))
		j.noteReplica(now, &l.successor, false)
	}
	heard := l.jobs.heard(&l.server.registry.self, l.server.primary.awaited(), now)
	l.send(schema.TelemetryJob, 0, m.from, schema.Control{Jobs: heard})
	return nil
}

// unfollow records that no ps holds replicas any more.
func (l *controlLoop) unfollow(why string) {
	is := l.successor.is
	if is == nil {
		return
	}
	l.successor.is, l.successor.gone = nil, is.goneText(why)
	for _, j := range l.jobs.coordinated() {
		j.coordinator.SuccessorSilent()
		l.carryOut(j, j.coordinator.Peers(l.server.now(),
			peersOf(pairOf(&l.server.registry.self, leaseRecord{ID: is.member.ServerID(), Leaving: true}))))
	}
	l.server.log.Warn("replica unavailable", "server", is.member.ServerID(), "host", is.host, "why", why)
	for _, a := range l.shards.jobs {
		a.unmirror()
	}
}

// tellSuccessor says which ps has the replica, and finds out whether it still does. It is called at each tick, when all
// is said again, and when something may have changed.
func (l *controlLoop) tellSuccessor(now time.Time, tick bool) {
	is := l.successor.is
	if is == nil {
		return
	}
	if silent := is.heard.For(now); tick && silent > followedMax {
		l.unfollow(fmt.Sprintf("was last heard %s ago", liveness.Rounded(silent)))
		return
	}
	for name, j := range l.jobs.coordinated() {
		if is.silent(now) { // whether or not its replica still counts
			j.coordinator.SuccessorSilent()
		}
		if !l.successor.mayTake(j, l.server.now()) {
			continue
		}
		was := j.coordinator.SetSuccessor(is.url)
		if was != is.url || tick {
			l.send(name, j.run, schema.All, schema.Control{Start: &schema.Start{Replica: is.url}})
		}
		if was != "" {
			continue
		}
		status := j.coordinator.Status()
		if text := lostTogether(&status, process.HostAndID(), is.host); text != "" {
			l.server.log.Warn("the loss of this host would stop a job", "job", name, "text", text)
		}
	}
}

// handsOver makes the ps with the replica, if there is one, continue a job, and reports whether it has received all of
// it.
func (l *controlLoop) handsOver(j *job) (stands, told bool) {
	if !l.successor.mayTake(j, l.server.now()) || !j.coordinator.Trains() {
		return false, false
	}
	decisions, told := j.coordinator.HandOver(l.server.now())
	l.carryOut(j, decisions)
	return true, told
}

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
		l.send(m.job, 0, m.from, schema.Control{Jobs: &schema.Jobs{Server: self.ID, Incarnation: d.Incarnation,
			Ended: true}})
		return
	}
	if job, lost := l.successor.loses(l.jobs, l.server.now()); lost {
		text := fmt.Sprintf("job %s would be lost: no version of it is written (--checkpoint-dir), and it is not handed over "+
			"to the other ps: %s", job, l.successor.foreign.why)
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
	l.tellDrainers(false, m.from)
}

// tellDrainers reports the progress of this ps's jobs to clients that wanted it to end.
func (l *controlLoop) tellDrainers(ended bool, to ...schema.Member) {
	now, self := l.server.now(), &l.server.registry.self
	var jobs []schema.JobProgress
	for _, j := range l.jobs.coordinated() {
		d := j.coordinator.Progress(now)
		if l.successor.mayTake(j, now) {
			d.To, d.Kept = l.successor.is.url, 0
		}
		jobs = append(jobs, d)
	}
	for _, member := range to {
		l.send(schema.TelemetryJob, 0, member, schema.Control{Jobs: &schema.Jobs{Server: self.ID,
			Incarnation: self.Incarnation, Ended: ended, Jobs: listOf(jobs)}})
	}
}

// tellDrained makes the last versions of all jobs durable if a client waits for that, and notifies it.
func (l *controlLoop) tellDrained() {
	if len(l.waiting) == 0 {
		return
	}
	open := false
	for _, j := range l.jobs.coordinated() {
		drained := j.coordinator.Drain() // also where it is handed over, which may fail
		if waits, done := l.handsOver(j); waits {
			open = open || !done
			continue
		}
		open = open || !drained
	}
	if open {
		return
	}
	l.tellDrainers(false, l.drainers...)
	for _, done := range l.waiting {
		close(done)
	}
	l.waiting = nil
}

// tellKept tells coordinators what has changed of what is kept here.
func (l *controlLoop) tellKept() {
	for _, said := range l.server.replicas.changes() {
		name, run := l.server.replicas.jobOf(said.Run), said.Run
		if a := l.shards.of(name, run); a != nil && a.mirroring != nil {
			said.Missed, said.Begun = schema.Version(a.mirroring.missed.Load()), a.mirroring.begun()
			said.TookMS = time.Duration(a.mirroring.took.Load()).Milliseconds()
			said.Bytes = a.mirroring.bytes.Load()
		}
		if j := l.jobs.of(name); j != nil && j.run == run {
			l.local = append(l.local, localMessage{name, run, l.server.member, schema.Control{Kept: &said}})
			continue
		}
		if !l.server.primary.sayKept(name, &said) {
			l.sendAs(l.server.member, name, run, schema.Coordinator, schema.Control{Kept: &said})
		}
	}
}

// heardKept takes what another ps keeps.
func (l *controlLoop) heardKept(m *message, said *schema.Kept) {
	if schema.ServerMember(said.Server) != m.from {
		l.inbox.forged(m)
		return
	}
	if j := l.jobs[m.job]; j != nil && j.offers.answer(said) {
		l.settleOffers(j)
	}
	if j := l.jobs.of(m.job); j != nil && j.run == said.Run {
		if a := l.shards.of(j.name, j.run); a != nil && a.mirroring != nil { // they have gone on since this ps has said so itself
			said.Begun = max(said.Begun, a.mirroring.begun())
		}
		decisions := j.coordinator.Kept(l.server.now(), m.from, said)
		l.tellSuccessor(l.server.now(), false) // trainers, before others hear that they could go on with the job
		l.carryOut(j, decisions)
	}
}

// coordinatorEnded records that the process of a run's coordinator has ended. No other ps can tell its trainers to
// rejoin.
func (l *controlLoop) coordinatorEnded(run schema.RunID) {
	if l.server.primary.processEnded(run) {
		return
	}
	name, incarnation := l.server.replicas.lost(run)
	if name == "" {
		return
	}
	l.server.registry.gone(incarnation)
	l.shards.release(l.shards.of(name, run))
	if j := l.jobs[name]; j != nil && j.state == coordinator.Ended {
		delete(l.jobs, name)
	}
	const why = "the ps that coordinates the job has ended"
	l.server.log.Warn(why, "job", name)
	failed := &schema.Ended{Member: schema.Coordinator, Text: why, Back: true}
	l.send(name, run, schema.All, schema.Control{Ended: failed})
}

// releaseServers takes it that a run of a job that this ps coordinates is over, for all who have its shards, or keep
// them.
func (l *controlLoop) releaseServers(j *job, failed *schema.Ended) {
	var all []schema.Member
	for i := range j.servers {
		all = append(all, schema.ServerMember(j.servers[i].ID))
	}
	all = append(all, j.coordinator.Replicas(l.server.now()).Members...)
	slices.Sort(all)
	for _, member := range slices.Compact(all) {
		switch {
		case member != l.server.member:
			l.send(j.manifest.Name, j.run, member, endOf(failed))
		default:
			l.server.replicas.ended(j.run, failed != nil && failed.Back)
		}
	}
}

// endOf returns the message that tells the end of a run; nil: all of its trainers have completed it.
func endOf(failed *schema.Ended) schema.Control {
	if failed == nil {
		failed = &schema.Ended{End: schema.EndCompleted}
	}
	return schema.Control{Ended: failed}
}
