package ps

import (
	"errors"
	"fmt"
	"maps"
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
	j := l.jobs.of(m.job)
	goesOn := false
	if b := l.server.primary; b != nil && j == nil {
		mine, refused := b.comes(m.job, request)
		if refused != nil {
			l.send(m.job, 0, m.from, schema.Control{Refused: refused})
			return
		}
		goesOn = mine
	}
	if j == nil && !goesOn && l.successor.mayContinue(m.job, l.server.primary.isSilent()) {
		l.send(m.job, 0, m.from, schema.Control{Refused: &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(
			fmt.Sprintf("job %s has lost its trainers here, and the ps with the replica is out of reach and may continue "+
				"it. If that ps has ended: %s takeover %s", m.job, process.Invoked("ps"), m.job))}})
		return
	}
	known := j != nil && j.run == request.Run ||
		j == nil && (l.shards.of(m.job, request.Run) != nil || !l.server.registry.alone.Load())
	if request.Run != 0 && !request.Resume && !goesOn && !known {
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
		if !l.inbox.manifests.offer(m) {
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
	switch b, j := l.server.primary, l.jobs.of(name); {
	case l.successor.mayContinue(name, b.isSilent()):
		delete(l.successor.yielded, name)
		return ""
	case j != nil && j.coordinator.Outcome().LacksQuorum:
		j.coordinator.SetSuccessor("")
		return ""
	case b != nil:
		return b.takeover(name)
	case j != nil || l.coordinatedElsewhere(time.Now(), name):
		return fmt.Sprintf("job %s runs: drain the ps that has it", name)
	}
	l.server.log.Warn("operator continues job here", "job", name, "why", "takeover")
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
	joins, bytes := l.jobs.waiting()
	if slices.ContainsFunc(j.waiting, func(w *message) bool { return w.from == m.from }) || joins == joinsMax ||
		bytes+m.bytes > checkingBytesMax {
		return
	}
	l.jobs[m.job] = j
	j.waiting = append(j.waiting, m)
	if first {
		job, left := request.Job, trainersLeft{}
		if l.server.folder.lately(m.job, l.server.now()) {
			job, left = l.history.withTrainersLeft(job)
		}
		q := acquireRequest{job: job, left: left, joiner: m.from, resume: request.Resume, back: request.Run, alone: goesOn,
			over: l.server.runHere(m.job)}
		if request.Run != 0 {
			q.voter = request.Number
		}
		if goesOn && q.back == 0 {
			q.back = l.server.primary.lostRun(job)
			q.resume = q.resume || q.back != 0
		}
		select {
		case l.server.registry.acquires <- q:
		default: // many others come first
			l.giveUp(j, nil)
		}
	}
}

// waiting returns how many joins wait for jobs, and the bytes of their frames.
func (t jobTable) waiting() (joins, bytes int) {
	for _, j := range t {
		joins += len(j.waiting)
		for _, m := range j.waiting {
			bytes += m.bytes
		}
	}
	return joins, bytes
}

// coordinatedElsewhere reports whether another ps is known to coordinate a job. A shard server of it hears that ps
// every second, except when no ps can be heard: then, and some heartbeats longer, the registry may have lost
// the job.
func (l *controlLoop) coordinatedElsewhere(now time.Time, name schema.JobName) bool {
	if a := l.shards.jobs[name]; a != nil {
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
		l.server.log.Warn("job not registered yet, its trainers retry", "job", j.name, "err", c.err)
		l.giveUp(j, nil)
	case c.err != nil:
		l.giveUp(j, &schema.Refused{Reason: "server_full",
			Text: schema.Clip(fmt.Sprintf("job %s cannot be registered: %v", j.name, c.err))})
	case c.ended != nil: // joins of its trainers were repeated to a ps that was slow, and answered by another
		waiting := j.takeWaiting()
		l.giveUp(j, nil)
		for _, m := range waiting {
			if !tookPart(c.ended, m.from) { // have it acquired for them
				l.join(m, m.control.Join)
			}
		}
	case c.waits != "":
		l.server.log.Warn("job waits for a trainer of it", "job", j.name, "text", c.waits)
		l.giveUp(j, &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(c.waits)})
	case c.record == nil:
		j.waiting = nil
		j.state.Transition(coordinator.Ended)
		j.elsewhere = time.Now().Add(l.server.registry.renewEvery())
	default:
		l.find(j, c)
	}
}

// find collects the offers of an acquired job, and has it registered with the version that is chosen among them. If its
// trainers rejoin, all ps are asked first which replicas they have of its run; the folder is read after that.
func (l *controlLoop) find(j *job, c acquisition) {
	j.move(coordinator.Locating, l.server.now())
	j.offers = &offerRequest{acquired: c, since: l.server.now(), answers: map[string]schema.Kept{}}
	if l.server.config.Replicas > 0 && c.back != 0 && c.resume {
		self := l.server.ID()
		j.offers.answers[self] = l.server.replicas.kept(c.back)
		for i := range c.peers {
			if id := c.peers[i].ID; id != self {
				j.offers.asked = append(j.offers.asked, id)
				l.send(c.job.Name, 0, schema.ServerMember(id), schema.Control{Query: &schema.Query{Run: c.back}})
			}
		}
		time.AfterFunc(spreadWithin, func() { nudge(l.changed) })
		time.AfterFunc(offersWithin, func() { nudge(l.changed) })
	}
	l.settleOffers(j)
}

// settleOffers locates the version of a job once all ps have answered, or the time for that is over.
func (l *controlLoop) settleOffers(j *job) {
	q := j.offers
	if q == nil {
		return
	}
	f := foundJob{acquisition: q.acquired}
	for _, id := range slices.Sorted(maps.Keys(q.answers)) {
		said := q.answers[id]
		f.offers = append(f.offers, replicaOffers(&said)...)
	}
	waits := func(id string) bool { _, ok := q.answers[id]; return !ok }
	complete, within := hasOffer(f.offers), offersWithin
	if complete {
		within = spreadWithin
	}
	if slices.ContainsFunc(q.asked, waits) && l.server.now().Sub(q.since) < within {
		return
	}
	j.offers = nil
	if !complete {
		f.offers = nil
	}
	var heard []holder
	for id, a := range q.answers {
		heard = append(heard, holder{server: id, incarnation: a.Incarnation})
	}
	writing := l.history.writing(j.name) // its version is the newest
	l.server.releasing.Go(func() {
		if writing != nil {
			<-writing
		}
		f.located, f.refused = l.server.locate(&f.acquisition, f.offers)
		if f.refused == nil {
			f.refused = l.server.placeRun(&f, heard)
		}
		select {
		case l.found <- f:
		case <-l.done:
		}
	})
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
	here := c.shardsOn(l.server.ID())
	fitted := l.shards.fitChunks(c.job, here)
	voters, refused := l.shards.mayBegin(f, fitted)
	if refused != nil {
		if c.left.places > 0 && l.history.noRoomForMore(c.job) {
			refused = &schema.Refused{Reason: schema.RefusedBusy, Text: refused.Text}
		}
		l.server.registry.end(name, endedRun{})
		l.giveUp(j, refused)
		l.server.folder.over(name, c.record.RunID, checkpoint.Abandon)
		return
	}
	j.place(l.server, c, &f.located, fitted, l.shards.window(fitted, here, l.shards.held()), voters)
	l.server.log.Info("job registered", "job", name, "run_id", strconv.FormatUint(uint64(j.run), 10), "trainers",
		c.job.Trainers, "shards", j.coordinator.Telemetry(l.server.now()).Shards, "servers", len(c.servers))
	grouped, err := l.server.config.grouped(), coordinator.CheckReplicas(j.manifest)
	if err != nil && (grouped || l.successor.is != nil) {
		l.server.log.Warn("no replica of the job is kept", "job", name, "err", err)
	}
	l.carryOut(j, j.coordinator.Assign(time.Now()))
	l.processes.watchTrainers(j)
	if err == nil && grouped {
		l.processes.watchServers(j)
	}
	l.admitWaiting(j)
}

// admitWaiting admits those who wait for a job, once all of its shard servers have been heard of. Before, one of them
// may be dead with a valid lease: no trainer should wait for it.
func (l *controlLoop) admitWaiting(j *job) {
	if j.coordinator.State() == coordinator.Placing {
		return
	}
	for _, m := range j.takeWaiting() {
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
			"sign; the job is registered without it then", j.coordinator.Status().Unheard,
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
	l.server.log.Warn("ps lost, its job is registered again", "job", j.manifest.Name, "server", j.servers[dead].ID)
	waiting := j.takeWaiting()
	l.drop(j, &coordinator.Outcome{})
	j.state.Transition(coordinator.Ended)
	l.server.folder.over(j.manifest.Name, j.run, checkpoint.Abandon)
	for _, m := range waiting {
		l.join(m, m.control.Join)
	}
	return true
}

// takeWaiting takes the joins that wait.
func (j *job) takeWaiting() []*message {
	waiting := j.waiting
	j.waiting = nil
	return waiting
}

// giveUp ends a job that this ps does not come to coordinate, and refuses its joins. refused is nil where they are
// only to be repeated.
func (l *controlLoop) giveUp(j *job, refused *schema.Refused) {
	j.state.Transition(coordinator.Ended)
	delete(l.jobs, j.name)
	if refused == nil {
		j.waiting = nil
		return
	}
	l.turnAway(j, refused)
}

// turnAway refuses all that wait for a job.
func (l *controlLoop) turnAway(j *job, refused *schema.Refused) {
	for _, m := range j.takeWaiting() {
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

// joinRefused notes a refusal for the report. It logs it, and tells the trainers that wait for the job to start, where
// note says so.
func (l *controlLoop) joinRefused(job schema.JobName, from schema.Member, host string, why *schema.Refused) {
	n, tell := l.refused.note(time.Now(), job, host, why)
	if !tell {
		return
	}
	l.server.log.Warn("join refused", "job", job, "member", from, "host", host, "reason", why.Reason, "text",
		why.Text, "times", n)
	if j := l.jobs.of(job); j != nil && j.coordinator.State().Gathers() {
		told := *why
		told.Text = fmt.Sprintf("a trainer on %s was refused: %s", host, why.Text)
		l.send(job, j.run, schema.All, schema.Control{Refused: &told})
	}
}
