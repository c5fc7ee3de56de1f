package ps

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/checkpoint"
	"gradbus/fabric"
	"gradbus/internal/liveness"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

const (
	// tickEvery is the interval at which coordinators check deadlines and send heartbeats.
	tickEvery = coordinator.TickEvery
	// askBefore is the time before a tick at which shards are asked for their state, so that the tick's view is recent.
	askBefore = 100 * time.Millisecond
)

// controlLoop runs the coordinators of all jobs on one goroutine. Control messages are few: a heartbeat a second for
// each trainer.
type controlLoop struct {
	server    *Server
	inbox     *inbox
	found     chan foundJob     // jobs whose checkpoints have been looked for
	completed chan completedJob // versions whose parts are all there
	ends      chan schema.RunID // runs whose shards are kept here, and whose coordinators have ended
	changed   chan struct{}     // of one: what is kept, or which ps has replicas, may have changed
	done      chan struct{}
	drains    chan chan struct{} // each is closed when the last versions of all jobs are durable
	shutting  chan struct{}
	once      sync.Once

	snapshot atomic.Pointer[Stats]
	began    moment // when it last began with a message or anything else

	// What follows belongs to the goroutine.
	jobs      jobTable
	shards    *shardHost
	processes *processWatcher
	ticks     liveness.Ticks
	local     []localMessage // between this ps and the coordinators on it
	history   endedJobs
	shown     shownJobs // what reports have of them
	refused   refusedJoins
	successor successor
	waiting   []chan struct{} // of drains
	drainers  []schema.Member // that have asked for the end of this ps, and are told of it
}

func newControlLoop(s *Server) *controlLoop {
	done := make(chan struct{})
	l := &controlLoop{
		server: s, inbox: newInbox(s), shards: newShardHost(s, done), found: make(chan foundJob),
		processes: newProcessWatcher(s.process, done), ends: make(chan schema.RunID), changed: make(chan struct{}, 1),
		completed: make(chan completedJob), done: done, drains: make(chan chan struct{}), shutting: make(chan struct{}),
		jobs: jobTable{}, successor: successor{yielded: map[schema.JobName]yield{}},
	}
	l.snapshot.Store(&Stats{})
	return l
}

// close asks the goroutine to take leave of all jobs and end.
func (l *controlLoop) close() { l.once.Do(func() { close(l.shutting) }) }

// run is the control loop's goroutine.
func (l *controlLoop) run(ctx context.Context) {
	defer close(l.done)
	checking, stop := context.WithCancel(ctx)
	var checks sync.WaitGroup
	defer checks.Wait()
	defer stop()
	checks.Go(func() { l.inbox.manifests.run(checking) })
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	ask := time.NewTimer(tickEvery - askBefore)
	defer ask.Stop()
	for l.turn(ctx, ticker, ask) {
	}
	l.shutdown()
}

// turn waits for one event and handles it. It reports whether the loop continues.
func (l *controlLoop) turn(ctx context.Context, ticker *time.Ticker, ask *time.Timer) (open bool) {
	defer l.endIllegal(&open)
	l.began.set(l.server.now())
	select {
	case m := <-l.inbox.messages:
		l.inbox.taken(m)
		l.read(ctx, m)
	case m := <-l.inbox.manifests.results:
		l.inbox.manifests.taken(m)
		l.read(ctx, m)
	case n := <-l.shards.news:
		l.tell(n.assignment.manifest.Name, n.assignment.run, l.shards.hear(n))
	case c := <-l.server.registry.results:
		l.acquired(c)
	case f := <-l.found:
		l.register(&f)
	case c := <-l.completed:
		l.tellCompleted(&c)
		l.tellDrained()
	case <-l.changed:
		l.tellSuccessor(l.server.now(), false)
		for _, j := range l.jobs.coordinated() {
			l.carryOut(j, j.coordinator.BeginReplicas(l.server.now()))
		}
		l.tellKept()
		for _, j := range byName(l.jobs) {
			l.settleOffers(j)
		}
		l.tellDrained()
	case done := <-l.drains:
		l.waiting = append(l.waiting, done)
		l.tellDrained()
	case d := <-l.processes.deaths:
		if l.jobs[d.job.manifest.Name] == d.job {
			l.carryOut(d.job, d.decide(l.server.now()))
		}
	case run := <-l.ends:
		l.coordinatorEnded(run)
	case q := <-l.server.registry.answers:
		l.answered(ctx, &q)
	case n := <-l.server.registry.news:
		l.look(n)
	case <-ticker.C:
		l.readAll(ctx)
		l.tick(ctx, l.server.now())
		ask.Reset(tickEvery - askBefore)
	case <-ask.C:
		l.shards.refresh()
	case <-l.shutting:
		return false
	case <-ctx.Done():
		return false
	}
	l.readLocal(ctx)
	l.snapshot.Store(statsOf(l.jobs, l.shards))
	return true
}

// endIllegal ends the job of which a state was to change illegally. The other jobs of this ps continue. It is deferred.
func (l *controlLoop) endIllegal(open *bool) {
	r := recover()
	illegal, ok := r.(*coordinator.IllegalTransition)
	switch {
	case r == nil:
		return
	case !ok:
		panic(r)
	}
	*open = true
	for name, j := range byName(l.jobs) {
		if !illegal.Of(&j.state, j.coordinator) {
			continue
		}
		l.server.log.Error("illegal transition", "job", name, "err", illegal)
		text := schema.Clip("internal error of the ps: " + illegal.Error())
		if j.coordinator != nil {
			l.carryOut(j, j.coordinator.Fail(schema.Coordinator, text))
			continue
		}
		delete(l.jobs, name)
		l.turnAway(j, &schema.Refused{Reason: "server_full", Text: text})
	}
}

// readAll reads what has come before a tick: a heartbeat that waits here, because this process had no time for it, is a
// sign of life all the same. Where so many wait that reading them takes until the next tick, what the registry has
// found out goes between them.
func (l *controlLoop) readAll(ctx context.Context) {
	for range len(l.inbox.messages) { // no other goroutine receives
		l.began.set(l.server.now())
		m := <-l.inbox.messages
		l.inbox.taken(m)
		l.read(ctx, m)
		select {
		case c := <-l.server.registry.results:
			l.acquired(c)
		case n := <-l.server.registry.news:
			l.look(n)
		default:
		}
		l.readLocal(ctx)
	}
}

// tick sends a heartbeat for every job and lets its coordinator look at deadlines; coordinators elsewhere are told how
// our shards fare. Deadlines are judged by ticks alone, after all that has come before them has been read. The time in
// which this process did not run, or the loop was at one thing, is taken out of all of them.
func (l *controlLoop) tick(ctx context.Context, now time.Time) {
	// A connection that the server gave up belongs to a trainer that may be cut off: it has until the deadline to come
	// back.
	var clients []string
	if len(l.jobs)+len(l.shards.jobs) > 0 {
		clients = slices.Concat(l.server.nats.Clients(), l.server.nats.Faded())
	}
	pause := l.ticks.Tick(now, l.server.config.Deadline) // of which coordinators, and shards here, know by themselves
	if is := l.successor.is; is != nil {
		is.heard.Excuse(pause, now)
	}
	l.shards.limitHeap()
	for name, a := range byName(l.shards.jobs) {
		a.tickModules(now, a.excusePause(now), clients)
		j := l.jobs.of(name)
		l.tell(name, a.run, l.shards.tick(a, now, j != nil && j.run == a.run))
	}
	l.readLocal(ctx)
	for name, j := range byName(l.jobs) {
		if j.coordinator == nil {
			if l.putOff(j, now); j.state == coordinator.Ended && now.After(j.elsewhere) {
				delete(l.jobs, name)
			}
			continue
		}
		l.tickJob(j, now, clients)
	}
	l.tellSuccessor(now, true)
	l.server.replicas.tick(now, pause)
	for _, j := range l.jobs.coordinated() {
		j.noteReplica(now, &l.successor, l.server.config.grouped())
	}
	l.report(now)
	l.tellDrained()
}

// tickJob lets the coordinator of a job look at deadlines, and sends its heartbeat.
func (l *controlLoop) tickJob(j *job, now time.Time, clients []string) {
	if l.server.controlLost.Load() {
		l.carryOut(j, j.coordinator.Blind(now, l.server.control.Address()))
		return
	}
	j.coordinator.Connections(clients)
	if l.server.primary.hasEnded(j.name) {
		l.carryOut(j, j.coordinator.EarlierRunEnded(now))
	}
	if j.coordinator.State().Gathers() && l.server.primary.yields(j.name) {
		l.carryOut(j, j.coordinator.Restart("", schema.Coordinator, "the job has begun at the other ps of the pair, too"))
	}
	l.carryOut(j, j.coordinator.Tick(now))
	if j.coordinator.State().IsOver() {
		return
	}
	l.putOff(j, now)
	frame, err := schema.EncodeHeartbeat(schema.Head{Job: j.run, Generation: generationFirst,
		Lanes: uint16(j.manifest.Lanes), Batch: j.coordinator.Status().Durable}, nil)
	if err != nil {
		l.server.log.Error("encode heartbeat", "err", err)
		return
	}
	at := fabric.At(string(j.name), string(schema.Coordinator), fabric.KindHeartbeat, string(schema.All))
	l.server.publish(l.server.posts, at, frame)
}

// carryOut publishes and logs what a coordinator decided, and frees the job where it has ended.
func (l *controlLoop) carryOut(j *job, decisions []coordinator.Decision) {
	log := l.server.log.With("job", j.manifest.Name)
	for _, decision := range decisions {
		if decision.Record != nil {
			l.server.registry.note(recordChange{name: j.manifest.Name, run: j.run, lr: decision.Record})
		}
		if decision.Voters != nil {
			l.server.registry.note(recordChange{name: j.manifest.Name, run: j.run, voters: decision.Voters})
		}
		if decision.Control.LR != nil {
			nudge(l.changed)
		}
		if decision.Later > 0 {
			time.AfterFunc(decision.Later, func() { nudge(l.changed) })
		}
		if decision.Written != nil {
			l.complete(j, decision.Written)
		}
		switch decision.To {
		case "":
		case l.server.member:
			l.local = append(l.local, localMessage{j.manifest.Name, j.run, schema.Coordinator, decision.Control})
		default:
			l.send(j.manifest.Name, j.run, decision.To, decision.Control)
		}
		// see joinRefused
		if decision.Note == "" || decision.Control.Refused != nil && decision.Control.Refused.Reason != schema.RefusedLR {
			continue
		}
		about := log
		if decision.Who != "" {
			about = log.With("member", decision.Who)
		}
		if f := decision.Control.Ended; f != nil && f.End != schema.EndStopped {
			about.Warn(decision.Note)
		} else {
			about.Info(decision.Note)
		}
	}
	if j.coordinator.State().IsOver() {
		l.free(j)
		return
	}
	if len(decisions) > 0 {
		l.processes.watchTrainers(j)
	}
}

// send publishes a control message from the coordinator.
func (l *controlLoop) send(name schema.JobName, run schema.RunID, to schema.Member, c schema.Control) {
	l.sendAs(schema.Coordinator, name, run, to, c)
}

func (l *controlLoop) sendAs(from schema.Member, name schema.JobName, run schema.RunID, to schema.Member,
	c schema.Control) {
	frame, err := schema.EncodeControl(schema.Head{Job: run, Generation: generationFirst}, c)
	if err != nil {
		l.server.log.Error("encode control", "job", name, "message", c.Name(), "err", err)
		return
	}
	l.server.publish(l.server.posts, fabric.At(string(name), string(from), fabric.KindCtl, string(to)), frame)
}

// free ends a job that this ps coordinates. Its name may be registered again when this returns.
func (l *controlLoop) free(j *job) {
	if l.jobs[j.manifest.Name] != j {
		return
	}
	outcome := j.coordinator.Outcome()
	l.drop(j, &outcome)
	l.history.remember(j, &outcome)
	l.runEnded(j, &outcome)
	if outcome.NextTrainers == 0 {
		l.shown.add(j, time.Now())
	}
	if f := outcome.Failed; f != nil { // before a trainer was admitted
		l.turnAway(j, &schema.Refused{Reason: "server_full", Text: f.Text})
	}
	j.waiting = nil // of an end without a failure: they are repeated
	j.noteWritten()
}

// runEnded notes that a run of a job has ended, unless the job is to continue it.
func (l *controlLoop) runEnded(j *job, outcome *coordinator.Outcome) {
	folder, failed := &l.server.folder, outcome.Failed
	if failed != nil && outcome.LacksQuorum {
		l.successor.yielded[j.name] = yield{l.server.now(), l.successor.last}
	}
	switch {
	case j.notSaved != "":
		return
	case failed != nil && failed.Back:
		folder.note(j.name, l.server.now())
		if !l.server.byItself() {
			folder.over(j.name, j.run, checkpoint.Leave)
		}
		return
	}
	note := checkpoint.End
	if !outcome.Began {
		note = checkpoint.Abandon
	}
	folder.over(j.name, j.run, note)
}

// drop takes a job out of the registry and has its shards released.
func (l *controlLoop) drop(j *job, outcome *coordinator.Outcome) {
	delete(l.jobs, j.manifest.Name)
	for _, w := range slices.Concat(j.watching, j.serving) {
		w.stop()
	}
	l.server.registry.end(j.manifest.Name, endedRun{RunID: j.run, Joiners: outcome.Joiners})
	l.releaseServers(j, outcome.Failed)
	l.shards.release(l.shards.of(j.manifest.Name, j.run))
}

// complete completes a checkpoint whose parts all shards have written, on a goroutine, and removes older ones.
func (l *controlLoop) complete(j *job, w *coordinator.Written) {
	s := l.server
	m := &checkpoint.Manifest{Format: checkpoint.Format, Job: j.manifest, Shards: len(w.Parts),
		ID: checkpoint.ID{Epoch: w.Epoch, Run: j.run, Version: w.Version}, LR: w.LR, Here: w.Trainers, Created: s.now()}
	for _, p := range w.Parts {
		m.Parts = append(m.Parts, checkpoint.PartInfo{Shard: p.Shard, Bytes: p.Bytes, Checksum: p.Checksum})
	}
	if w.Base > 0 {
		base := m.ID
		base.Version = w.Base
		m.Base = &checkpoint.Base{ID: base}
	}
	c := completedJob{job: j, written: w}
	done := make(chan struct{})
	j.writing = done
	s.releasing.Go(func() {
		c.err = s.folder.complete(m)
		close(done)
		select {
		case l.completed <- c:
		case <-l.done:
		}
	})
}

// tellCompleted notifies the coordinator, and clients that wait for a job that has ended meanwhile.
func (l *controlLoop) tellCompleted(c *completedJob) {
	now := l.server.now()
	decisions := c.job.coordinator.Completed(now, c.written, c.err)
	if name := c.job.manifest.Name; l.jobs[name] == c.job {
		l.carryOut(c.job, decisions)
	}
	c.job.noteWritten()
	l.shown.durable(c.job.run, c.job.coordinator.Telemetry(now).Durability)
}

// report leaves for the reporter what coordinators know. It is called at the end of each tick.
func (l *controlLoop) report(now time.Time) {
	p := &jobReports{when: now, refused: l.refused.lately(now)}
	for _, j := range l.jobs.coordinated() {
		if len(p.jobs) == schema.TelemetryJobsMax-endedShownMax {
			break
		}
		p.jobs = append(p.jobs, j.telemetry(now))
	}
	l.shown = slices.DeleteFunc(l.shown, func(j schema.JobReport) bool {
		return l.jobs.of(j.Name) != nil || now.Sub(time.UnixMilli(j.EndedMS)) > endedShown
	})
	p.jobs = append(p.jobs, l.shown...)
	l.server.reporter.look(p)
}

// shuttingDown answers joins. It concerns this ps and no job: another ps, or the next process here, may admit them.
var shuttingDown = schema.Refused{Reason: schema.RefusedBusy, Text: "the parameter server is shutting down"}

// shutdown ends every job. A goroutine that waits for the control loop also waits for what it has released.
func (l *controlLoop) shutdown() {
	why := shuttingDown.Text
	how := schema.EndStopped
	if l.server.Err() != nil {
		how = schema.EndFailed
	}
	l.tellDrainers(true, l.drainers...)
	for _, j := range l.jobs.coordinated() {
		l.carryOut(j, j.coordinator.Restart(how, schema.Coordinator, why))
	}
	for name, a := range byName(l.shards.jobs) {
		l.tell(name, a.run, &schema.Control{Ended: &schema.Ended{Member: l.server.member, Text: why, Back: true, End: how}})
		l.shards.release(a)
	}
	l.report(l.server.now())
	for _, j := range byName(l.jobs) {
		l.turnAway(j, &shuttingDown)
	}
	for {
		select {
		case m := <-l.inbox.messages:
			l.inbox.taken(m)
			l.sendAway(m)
		default:
			l.snapshot.Store(statsOf(l.jobs, l.shards))
			return
		}
	}
}

// jobTable is the jobs that this ps coordinates, acquires, or knows to be elsewhere: of each name the latest run.
type jobTable map[schema.JobName]*job

// coordinated goes through the jobs that this ps coordinates, by their names.
func (t jobTable) coordinated() iter.Seq2[schema.JobName, *job] {
	return func(yield func(schema.JobName, *job) bool) {
		for name, j := range byName(t) {
			if j.coordinator != nil && !yield(name, j) {
				return
			}
		}
	}
}

// of returns the job of a name that this ps coordinates; nil: it coordinates none.
func (t jobTable) of(name schema.JobName) *job {
	if j := t[name]; j != nil && j.coordinator != nil {
		return j
	}
	return nil
}

// addressed returns the job that a message is for: one that this ps coordinates, in the run that the frame names, or in
// any run if the frame names none; nil: there is none. Messages reach a job by this alone.
func (t jobTable) addressed(m *message) *job {
	if j := t.of(m.job); j != nil && (m.head.Job == 0 || m.head.Job == j.run) {
		return j
	}
	return nil
}

// byName goes through what there is of each job in the order of their names. What is taken out on the way is left out.
func byName[V any, M ~map[schema.JobName]V](all M) iter.Seq2[schema.JobName, V] {
	return func(yield func(schema.JobName, V) bool) {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if one, there := all[name]; there && !yield(name, one) {
				return
			}
		}
	}
}

// newRunID draws the number that tells this run of a job from every other.
func newRunID() (schema.RunID, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, err
		}
		if id := schema.RunID(binary.LittleEndian.Uint64(b[:])); id != 0 {
			return id, nil
		}
	}
}
