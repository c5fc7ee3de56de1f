package ps

import (
	"slices"
	"time"

	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// readKeep takes the word of a coordinator that shards are to be kept.
func (l *controlLoop) readKeep(name schema.JobName, run schema.RunID, keep *schema.Keep) {
	a := l.assignments[name]
	if a != nil && a.run != run {
		a = nil
	}
	l.server.keeper.keep(name, run, keep, a)
	l.server.freeBytes.Store(l.freeBytes(l.held()))
	l.tellKept()
}

// tellKept tells coordinators what has changed of what is kept here.
func (l *controlLoop) tellKept() {
	for _, said := range l.server.keeper.changes() {
		name, run := l.server.keeper.jobOf(said.Run), said.Run
		if a := l.assignments[name]; a != nil && a.run == run && a.mirroring != nil {
			said.Missed, said.Begun = schema.Version(a.mirroring.missed.Load()), a.mirroring.begun()
			said.TookMS = time.Duration(a.mirroring.took.Load()).Milliseconds()
			said.Bytes = a.mirroring.bytes.Load()
		}
		if j := l.job(name); j != nil && j.run == run {
			l.local = append(l.local, localMessage{name, run, l.server.member, schema.Control{Kept: &said}})
			continue
		}
		if !l.server.standby.sayKept(name, &said) {
			l.sendAs(l.server.member, name, run, schema.Coordinator, schema.Control{Kept: &said})
		}
	}
}

// heardKept takes what another ps keeps.
func (l *controlLoop) heardKept(m *message, said *schema.Kept) {
	if schema.ServerMember(said.Server) != m.from {
		l.forged(m)
		return
	}
	l.receiveOffer(l.jobs[m.job], said)
	if j := l.job(m.job); j != nil && j.run == said.Run {
		if a := l.shardsOf(j); a != nil && a.mirroring != nil { // they have gone on since this ps has said so itself
			said.Begun = max(said.Begun, a.mirroring.begun())
		}
		decisions := j.coordinator.Kept(l.server.now(), m.from, said)
		l.tellStandby(l.server.now(), false) // trainers, before others hear that they could go on with the job
		l.carryOut(j, decisions)
	}
}

// coordinatorEnded takes it that the process of a run's coordinator has ended. Nobody else can tell its trainers that
// they are to come back.
func (l *controlLoop) coordinatorEnded(run schema.RunID) {
	if l.server.standby.processEnded(run) {
		return
	}
	name, incarnation := l.server.keeper.lost(run)
	if name == "" {
		return
	}
	l.server.registry.gone(incarnation)
	if a := l.assignments[name]; a != nil && a.run == run {
		l.release(a)
	}
	if j := l.jobs[name]; j != nil && j.state == coordinator.Ended {
		delete(l.jobs, name)
	}
	const why = "the ps that coordinates the job has ended"
	l.server.log.Warn(why, "job", name)
	failed := &schema.Failed{Member: schema.Coordinator, Text: why, Back: true}
	l.send(name, run, schema.All, schema.Control{Failed: failed})
}

// answerKept says what this ps keeps of a run.
func (l *controlLoop) answerKept(m *message, query *schema.Query) {
	said := l.server.keeper.kept(query.Run)
	l.sendAs(l.server.member, m.job, said.Run, schema.Coordinator, schema.Control{Kept: &said})
}

// releaseServers takes it that a run of a job that this ps coordinates is over, for all who have its shards, or keep
// them.
func (l *controlLoop) releaseServers(j *job) {
	var all []schema.Member
	for i := range j.servers {
		all = append(all, schema.ServerMember(j.servers[i].ID))
	}
	all = append(all, j.coordinator.Keepers()...)
	slices.Sort(all)
	failed := j.coordinator.Failed()
	for _, member := range slices.Compact(all) {
		switch {
		case member != l.server.member:
			l.send(j.manifest.Name, j.run, member, endOf(failed))
		default:
			l.server.keeper.ended(j.run, failed != nil && failed.Back)
		}
	}
}

// endOf returns the message that tells the end of a run.
func endOf(failed *schema.Failed) schema.Control {
	if failed != nil {
		return schema.Control{Failed: failed}
	}
	return schema.Control{Left: &schema.Left{}}
}
