package ps

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"gradbus/checkpoint"
	"gradbus/fabric"
	"gradbus/internal/liveness"
	"gradbus/internal/process"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

// joinsMax bounds the joins that wait until it is known who coordinates their job. They are repeated each second.
const joinsMax = 256

// join takes a trainer's wish to take part to the job's coordinator. A job without a coordinator, as far as this ps
// knows, is acquired: the registry decides which ps it is.
func (l *controlLoop) join(m *message, request *schema.Join) {
	if e := l.history.find(m, 0); e != nil { // a late repetition of a join that led to a job which has ended
		_ = l.answerEnded(m, e.run) // e is known, so it does not refuse
		return
	}
	if l.history.comesLate(m) {
		l.send(m.job, 0, m.from, schema.Control{Refused: &schema.Refused{Reason: schema.RefusedOver,
			Text: fmt.Sprintf("job %s has ended, and had no place for this trainer before", m.job)}})
		return
	}
	j := l.job(m.job)
	goesOn := false
	if b := l.server.standby; b != nil && j == nil {
		mine, refused := b.comes(m.job, request)
		if refused != nil {
			l.send(m.job, 0, m.from, schema.Control{Refused: refused})
			return
		}
		goesOn = mine
	}
	if j == nil && !goesOn && l.mayContinueElsewhere(m.job) {
		l.send(m.job, 0, m.from, schema.Control{Refused: &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(
			fmt.Sprintf("job %s has lost its trainers here, and the ps that stands by is out of reach and may continue it. If "+
				"that ps has ended: %s takeover %s", m.job, process.Invoked("ps"), m.job))}})
		return
	}
	if request.Run != 0 && !request.Resume && !goesOn && !l.runs(m.job, request.Run) {
		l.send(m.job, 0, m.from, schema.Control{Refused: coordinator.RunOver(m.job)})
		return
	}
	if j != nil && j.coordinator.State() != coordinator.Placing {
		if !tookPart(j.ended, m.from) {
			l.admit(j, m, request)
		}
		return
	}
	if j == nil && l.coordinatedElsewhere(time.Now(), m.job) {
		return // by who answers
	}
	if !m.checked {
		if !l.manifests.offer(m) {
			l.server.counters.dropped.Add(1)
		}
		return // read comes back to it with what is found
	}
	if m.refused != nil { // which is written down nowhere
		l.joinRefused(m.job, m.from, request.Host, m.refused)
		l.send(m.job, 0, m.from, schema.Control{Refused: m.refused})
		return
	}
	l.wait(m, request, goesOn)
}

// takeover notes that an operator says that the ps of a job has ended, and answers why the job does not continue here;
// empty: it does.
func (l *controlLoop) takeover(name schema.JobName) string {
	switch b := l.server.standby; {
	case l.mayContinueElsewhere(name):
		delete(l.yielded, name)
		return ""
	case l.job(name) != nil && l.job(name).coordinator.Outcome().LacksQuorum:
		l.job(name).coordinator.StandsNoMore()
		return ""
	case b != nil:
		return b.takeover(name)
	case l.job(name) != nil || l.coordinatedElsewhere(time.Now(), name):
		return fmt.Sprintf("job %s runs: drain the ps that has it", name)
	}
	l.server.log.Warn("an operator continues a job here", "job", name, "why", "takeover")
	l.server.registry.decide(name)
	return ""
}

// wait has a join wait until its job gathers trainers. The first one of a run has it acquired.
func (l *controlLoop) wait(m *message, request *schema.Join, goesOn bool) {
	j := l.jobs[m.job]
	first := j == nil || j.state == coordinator.Ended
	if first {
		j = &job{name: m.job, since: l.server.now()}
	}
	if slices.ContainsFunc(j.waiting, func(w *message) bool { return w.from == m.from }) || l.joins == joinsMax ||
		l.joinBytes+m.bytes > checkingBytesMax {
		return
	}
	l.jobs[m.job] = j
	j.waiting = append(j.waiting, m)
	l.joins++
	l.joinBytes += m.bytes
	if first {
		job, left := request.Job, trainersLeft{}
		if l.server.interrupted.lately(m.job, l.server.now()) {
			job, left = l.history.withTrainersLeft(job)
		}
		q := acquireRequest{job: job, left: left, joiner: m.from, resume: request.Resume, back: request.Run, alone: goesOn,
			over: l.server.runHere(m.job)}
		if request.Run != 0 {
			q.voter = request.Number
		}
		if goesOn && q.back == 0 {
			q.back = l.server.standby.lostRun(job)
			q.resume = q.resume || q.back != 0
		}
		select {
		case l.server.registry.acquires <- q:
		default: // many others come first
			l.giveUp(j, nil)
		}
	}
}

// runs reports that a run of a job is known here, or may be known to another ps.
func (l *controlLoop) runs(name schema.JobName, run schema.RunID) bool {
	if j := l.job(name); j != nil {
		return j.run == run
	}
	a := l.assignments[name]
	return a != nil && a.run == run || !l.server.registry.alone.Load()
}

// coordinatedElsewhere reports whether another ps is known to coordinate a job. A shard server of it hears that ps
// every second, except when no ps can be heard: then, and some heartbeats longer, the registry may have lost
// the job.
func (l *controlLoop) coordinatedElsewhere(now time.Time, name schema.JobName) bool {
	if a := l.assignments[name]; a != nil {
		patience := max(l.server.registry.lease, 4*tickEvery)
		return a.coordinator.For(now) < patience || now.Sub(l.server.controlBack.get()) < patience
	}
	j := l.jobs[name]
	return j != nil && j.state == coordinator.Ended && now.Before(j.elsewhere)
}

func (l *controlLoop) admit(j *job, m *message, request *schema.Join) {
	if request.Data == schema.DataCluster {
		if r := checkMessages(j.manifest, "the NATS server at "+l.server.control.Address(),
			l.server.control.PayloadBytesMax()); r != nil {
			l.joinRefused(m.job, m.from, request.Host, r)
			l.carryOut(j, j.coordinator.Refuse(m.from, r))
			return
		}
	}
	decisions := j.coordinator.Join(time.Now(), m.from, request)
	for i := range decisions {
		if r := decisions[i].Control.Refused; r != nil && r.Reason != schema.RefusedBusy { // else it asks again
			l.joinRefused(m.job, m.from, request.Host, r)
		}
	}
	l.carryOut(j, decisions)
}

// acquired takes the registry's answer: who coordinates a job: this ps, if it wrote the job down first.
func (l *controlLoop) acquired(c acquisition) {
	j := l.jobs[c.job.Name]
	switch {
	case errors.Is(c.err, fabric.ErrLost): // or slower than we wait
		l.server.log.Warn("job not registered yet, its trainers ask again", "job", j.name, "err", c.err)
		l.giveUp(j, nil)
	case c.err != nil:
		l.giveUp(j, &schema.Refused{Reason: "server_full",
			Text: schema.Clip(fmt.Sprintf("job %s cannot be registered: %v", j.name, c.err))})
	case c.ended != nil:
		l.joinAgain(j, c.ended)
	case c.waits != "":
		l.server.log.Warn("job waits for a trainer of it", "job", j.name, "text", c.waits)
		l.giveUp(j, &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(c.waits)})
	case c.record == nil:
		l.takeWaiting(j)
		j.state.Transition(coordinator.Ended)
		j.elsewhere = time.Now().Add(l.server.registry.renewEvery())
	default:
		l.find(j, c)
	}
}

// register makes the coordinator of a job that this ps has acquired, and whose checkpoints have been looked for.
func (l *controlLoop) register(f *foundJob) {
	c, name := f.acquisition, f.job.Name
	j := l.jobs[name]
	if f.refused != nil {
		l.server.registry.end(name, endedRun{})
		l.giveUp(j, f.refused)
		return
	}
	fitted := l.fitChunks(c.job, l.shardsHere(&c))
	voters, refused := l.mayBegin(f, fitted)
	if refused != nil {
		if c.left.places > 0 && l.history.noRoomForMore(c.job) {
			refused = &schema.Refused{Reason: schema.RefusedBusy, Text: refused.Text}
		}
		l.server.registry.end(name, endedRun{})
		l.giveUp(j, refused)
		l.runOver(name, c.record.RunID, checkpoint.Abandon)
		return
	}
	j.place(l.server, c, &f.located, fitted, l.window(fitted, l.shardsHere(&c), l.held()), voters)
	l.server.log.Info("job registered", "job", name, "run_id", strconv.FormatUint(uint64(j.run), 10), "trainers",
		c.job.Trainers, "shards", j.coordinator.Telemetry(l.server.now()).Shards, "servers", len(c.servers))
	if err := coordinator.CheckReplicas(j.manifest); err != nil && (l.server.config.grouped() || l.follower != nil) {
		l.server.log.Warn("no replica of the job is kept", "job", name, "err", err)
	}
	l.carryOut(j, j.coordinator.Assign(time.Now()))
	l.watchTrainers(j)
	l.watchServers(j)
	l.admitWaiting(j)
}

// mayBegin refuses a job that cannot begin here, and takes over one of the other ps, with the voters that takeOver
// returns. A job without room here is not taken over: its replica stays.
func (l *controlLoop) mayBegin(f *foundJob, fitted *schema.Job) (voters []schema.Voter, refused *schema.Refused) {
	c, b := &f.acquisition, l.server.standby
	if refused = checkMessages(c.job, "this server", l.server.config.PayloadBytesMax); refused != nil {
		return nil, refused
	}
	switch {
	case !f.located.fromReplica():
		refused = l.checkServers(c, fitted)
	case b != nil: // else its ps say for themselves whether they have room
		stays := l.server.replicas.yields(f.located.from.run)
		refused = l.checkServers(c, fitted)
		stays()
		if refused != nil {
			refused = &schema.Refused{Reason: schema.RefusedBusy, Text: refused.Text}
		}
	}
	if refused != nil || b == nil || len(f.offers) == 0 {
		return nil, refused
	}
	voters, ok := b.takeOver(c.job.Name, f.offers[0].run)
	if !ok {
		return nil, &schema.Refused{Reason: schema.RefusedBusy, Text: "the ps that has the job is back"}
	}
	return voters, nil
}

// admitWaiting admits those who wait for a job, once all of its shard servers have been heard of. Before, one of them
// may be dead with a valid lease: no trainer should wait for it.
func (l *controlLoop) admitWaiting(j *job) {
	if j.coordinator.State() == coordinator.Placing {
		return
	}
	for _, m := range l.takeWaiting(j) {
		if l.jobs[j.name] == j && !tookPart(j.ended, m.from) {
			l.admit(j, m, m.control.Join)
		}
	}
}

// busyAfter is for how long those who wait for a job are told nothing.
const busyAfter = 2 * tickEvery

// putOff tells the trainers that wait for a job what it waits for. They ask again.
func (l *controlLoop) putOff(j *job, now time.Time) {
	text, since := "", now.Sub(j.since)
	switch {
	case since < busyAfter:
		return
	case j.state == coordinator.Locating:
		text = fmt.Sprintf(
			"its checkpoints have been read and verified for %s, and the job begins when that is done",
			liveness.Rounded(since))
	case j.coordinator != nil && j.coordinator.State() == coordinator.Placing:
		text = fmt.Sprintf("%s is announced and has not answered for %s: it may be dead, which counts %s after its last "+
			"sign; the job is registered without it then", j.coordinator.UnheardServer(),
			liveness.Rounded(since), l.server.registry.lease)
	default:
		return
	}
	l.turnAway(j, &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(text)})
}

// registerAnew drops a job without admitted trainers, because one of its shard servers is no more, and has it
// acquired for those who wait, among the ps that there are now. It reports whether it did.
func (l *controlLoop) registerAnew(j *job, servers []leaseRecord) bool {
	if j.coordinator.State() != coordinator.Placing {
		return false
	}
	dead := slices.IndexFunc(j.servers, func(s leaseRecord) bool {
		return !slices.ContainsFunc(servers, func(a leaseRecord) bool {
			return a.ID == s.ID && a.Incarnation == s.Incarnation && !a.Leaving
		})
	})
	if dead < 0 {
		return false
	}
	l.server.log.Warn("ps is no more, its job is registered anew", "job", j.manifest.Name, "server", j.servers[dead].ID)
	waiting := l.takeWaiting(j)
	l.drop(j, &coordinator.Outcome{})
	j.state.Transition(coordinator.Ended)
	l.runOver(j.manifest.Name, j.run, checkpoint.Abandon)
	for _, m := range waiting {
		l.join(m, m.control.Join)
	}
	return true
}

// joinAgain ends a run that is not acquired, and drops the joins that wait for it and come from trainers of its earlier
// runs: they were repeated to a ps that was slow, and answered by another. The others have the job acquired for them.
func (l *controlLoop) joinAgain(j *job, ended []endedRun) {
	waiting := l.takeWaiting(j)
	l.giveUp(j, nil)
	for _, m := range waiting {
		if !tookPart(ended, m.from) {
			l.join(m, m.control.Join)
		}
	}
}

// takeWaiting takes the joins for a job that wait.
func (l *controlLoop) takeWaiting(j *job) []*message {
	waiting := j.waiting
	j.waiting = nil
	l.joins -= len(waiting)
	for _, m := range waiting {
		l.joinBytes -= m.bytes
	}
	return waiting
}

// giveUp ends a job that this ps does not come to coordinate, and refuses its joins. refused is nil where they are
// only to be repeated.
func (l *controlLoop) giveUp(j *job, refused *schema.Refused) {
	j.state.Transition(coordinator.Ended)
	delete(l.jobs, j.name)
	if refused == nil {
		l.takeWaiting(j)
		return
	}
	l.turnAway(j, refused)
}

// turnAway refuses all that wait for a job.
func (l *controlLoop) turnAway(j *job, refused *schema.Refused) {
	for _, m := range l.takeWaiting(j) {
		if refused.Reason != schema.RefusedBusy {
			l.joinRefused(j.name, m.from, m.control.Join.Host, refused)
		}
		l.send(j.name, 0, m.from, schema.Control{Refused: refused})
	}
}

// sendAway answers a message that came too late.
func (l *controlLoop) sendAway(m *message) {
	if control, err := m.decode(); err != nil || control.Join == nil {
		return
	}
	l.send(m.job, 0, m.from, schema.Control{Refused: &shuttingDown})
}
