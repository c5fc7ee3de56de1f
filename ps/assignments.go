package ps

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"gradbus/fabric"
	"gradbus/internal/liveness"
	"gradbus/internal/planted"
	"gradbus/ps/coordinator"
	"gradbus/schema"
	"gradbus/shard"
)

// localMessage goes between a coordinator and the shards on the same ps: it needs no wire. The control loop reads these
// after whatever wrote them.
type localMessage struct {
	job     schema.JobName
	run     schema.RunID
	from    schema.Member // coordinator, or this ps
	control schema.Control
}

// readLocal reads what this ps has written to itself.
func (l *controlLoop) readLocal(ctx context.Context) {
	for len(l.local) > 0 {
		m := l.local[0]
		l.local = l.local[1:]
		j := l.job(m.job)
		switch {
		case j == nil || j.run != m.run: // has ended meanwhile
		case m.from == schema.Coordinator:
			l.readAsShardServer(ctx, m.job, m.run, &m.control)
		default:
			l.readFromShardServer(j, m.from, &m.control)
		}
	}
	l.local = nil
}

// readFromShardServer is the coordinator's side. It reports whether the sender is a shard server of the job.
func (l *controlLoop) readFromShardServer(j *job, from schema.Member, c *schema.Control) bool {
	var decisions []coordinator.Decision
	var known bool
	switch {
	case c.Kept != nil:
		decisions, known = j.coordinator.Kept(time.Now(), from, c.Kept), true
	case c.Report != nil:
		decisions, known = j.coordinator.Report(time.Now(), from, c.Report)
	case c.Failed != nil:
		decisions, known = j.coordinator.ShardServerFailed(from, c.Failed)
	}
	l.carryOut(j, decisions)
	if known && l.jobs[j.name] == j {
		l.admitWaiting(j)
	}
	return known
}

// tell sends a message about a job with shards here to its coordinator.
func (l *controlLoop) tell(a *assignment, c schema.Control) {
	name := a.manifest.Name
	if j := l.job(name); j != nil && j.run == a.run {
		l.local = append(l.local, localMessage{name, a.run, l.server.member, c})
		return
	}
	l.sendAs(l.server.member, name, a.run, schema.Coordinator, c)
}

// checkFit ends the jobs with shards here where this process must not compute any more.
func (l *controlLoop) checkFit() {
	if len(l.assignments) == 0 {
		return
	}
	err := l.server.unfit()
	if err == nil {
		return
	}
	for _, a := range byName(l.assignments) {
		l.reportFailed(a, l.server.member, err)
	}
}

// reportFailed reports that shards cannot go on. Where they were lost, or what they begin with could not be read, their
// trainers come back: another version may be found then, or the disk be well again.
func (l *controlLoop) reportFailed(a *assignment, who schema.Member, err error) {
	back := errors.Is(err, shard.ErrResume) || errors.Is(err, errShardsLost)
	failed := &schema.Failed{Member: who, Text: err.Error(), Back: back}
	l.tell(a, schema.Control{Failed: failed})
}

// readAsShardServer takes a message of a coordinator to its shard servers.
func (l *controlLoop) readAsShardServer(ctx context.Context, name schema.JobName, run schema.RunID, c *schema.Control) {
	a := l.assignments[name]
	switch {
	case c.Failed != nil, c.Left != nil:
		if a != nil && a.run == run {
			l.release(a)
		}
		l.server.replicas.ended(run, c.Failed != nil && c.Failed.Back)
	case c.Keep != nil:
		l.readKeep(name, run, c.Keep)
	case c.Assign != nil:
		l.assigned(ctx, name, run, c.Assign)
	}
}

// assigned makes shards of a job, or learns of new routes to its trainers.
func (l *controlLoop) assigned(ctx context.Context, name schema.JobName, run schema.RunID, assign *schema.Assign) {
	a := l.assignments[name]
	if a != nil && a.run != run {
		if j := l.job(name); j != nil && j.run == a.run {
			return // two ps have registered the name; the registry says which of them
		}
		l.release(a) // whose end was not heard
		a = nil
	}
	if a == nil {
		self := l.server.registry.self.Incarnation
		if assign.Incarnation != 0 && assign.Incarnation != self && !assign.Made {
			return // it is for the ps that was here before; its coordinator finds that out by the registry
		}
		var err error
		if a, err = l.makeShards(ctx, name, run, assign); errors.Is(err, errBusy) {
			l.server.log.Info("shards put off", "job", name, "err", err)
			return // it is said again each second
		} else if err != nil {
			l.server.log.Warn("shards not made", "job", name, "err", err)
			l.reportFailed(&assignment{manifest: assign.Job, run: run}, l.server.member, err)
			return
		}
	}
	if err := a.checkChange(assign); err != nil {
		l.server.log.Warn("assignment refused", "job", name, "err", err)
		return
	}
	a.coordinator.Begin(time.Now())
	if assign.Serial > a.serial && a.wanted <= a.serial {
		for _, i := range a.own {
			a.workers[i].lr.Store(&assign.LR)
			a.workers[i].wish(assign.Checkpoints)
		}
		a.route(assign, l.news)
		for _, i := range a.own {
			if len(assign.Gone) > 0 {
				a.workers[i].lose(assign.Gone)
			}
			if len(assign.Since) > 0 {
				a.workers[i].rise(assign.Since)
			}
		}
	}
	l.tell(a, schema.Control{Report: a.report()})
}

// checkChange refuses an assignment of other shards than these, or with places that their job has not: what it says of
// shards and trainers is looked up by their numbers.
func (a *assignment) checkChange(assign *schema.Assign) error {
	trainers := a.manifest.Trainers
	if assign.Shards != a.shards || !slices.Equal(assign.Own, a.own) || assign.Job.Trainers != trainers {
		return fmt.Errorf("shards %v of %d for %d trainers: want %v of %d for %d as before", assign.Own, assign.Shards,
			assign.Job.Trainers, a.own, a.shards, trainers)
	}
	return nil
}

// errShardsLost says that this ps had the shards and has them no more. What they would begin with is not what they had.
var errShardsLost = errors.New("it was started anew, or heard no coordinator for too long, and has lost its shards")

// errBusy says that there will be room in a moment.
var errBusy = errors.New("not yet")

// makeShards makes shards of a job, where there is room for them.
func (l *controlLoop) makeShards(ctx context.Context, name schema.JobName, run schema.RunID,
	assign *schema.Assign) (*assignment, error) {
	if assign.Made && !planted.Is(planted.RemakeShards) {
		return nil, errShardsLost
	}
	if assign.Job.Name != name {
		return nil, fmt.Errorf("manifest of job %s sent as job %s", assign.Job.Name, name)
	}
	if err := assign.Job.Validate(); err != nil {
		return nil, err
	}
	if err := l.server.unfit(); err != nil {
		return nil, err
	}
	of, v, kept := parseReplicaID(assign.Resume)
	if kept {
		l.server.replicas.yields(of)
	}
	r := l.checkRoom(assign.Job, len(assign.Own), assign.Shards, assign.WindowBytes)
	if r != nil && r.Reason == schema.RefusedBusy {
		return nil, fmt.Errorf("%w: %s", errBusy, r.Text)
	} else if r != nil {
		return nil, errors.New(r.Text)
	}
	var resumed func(int) *shard.Resumed
	var err error
	if kept {
		resumed, err = l.server.replicas.resume(assign.Job, of, v, assign.Own)
	} else {
		resumed, err = l.resumed(assign.Job, assign.Resume)
	}
	if err != nil {
		return nil, err
	}
	a := newAssignment(ctx, l.server, run, assign, resumed, l.window(assign.Job, len(assign.Own), l.held()), l.news)
	l.assignments[name] = a
	l.shareJobs()
	l.server.log.Info("shards of a job are here", "job", name, "shards", len(a.own), "bytes", a.memory.Bytes())
	return a, nil
}

// release ends the shards of a job. It does not wait for them: what the job was promised is free when they have ended,
// as hear learns.
func (l *controlLoop) release(a *assignment) {
	delete(l.assignments, a.manifest.Name)
	l.leaving[a] = struct{}{}
	l.shareJobs()
	a.cancel()
	l.server.releasing.Go(func() {
		a.wait()
		l.server.ended.add(l.server.now(), a)
		l.server.log.Info("job freed", "job", a.manifest.Name, "bytes", a.memory.Bytes())
		select {
		case l.news <- shardNews{assignment: a, free: true}:
		case <-l.done:
		}
	})
}

// held are the jobs that memory and windows are promised to here, those that end among them.
func (l *controlLoop) held() []*assignment {
	return slices.AppendSeq(slices.Collect(maps.Values(l.assignments)), maps.Keys(l.leaving))
}

// shareJobs shows receiving goroutines which jobs there are now.
func (l *controlLoop) shareJobs() {
	jobs := maps.Clone(l.assignments)
	l.limitHeap()
	l.server.jobs.Store(&jobs)
	l.server.freeBytes.Store(l.freeBytes(l.held()))
}

// limitHeap tells how much the heap may hold, where that has changed.
func (l *controlLoop) limitHeap() {
	limit := l.server.limitHeap
	if limit == nil {
		return
	}
	var all []Memory
	for _, a := range l.held() {
		all = append(all, a.memory)
	}
	all = append(all, l.server.replicas.memories()...)
	if bytes := heapBytes(l.server.config.Shards, all, l.server.nats.AnonymousBytes()); bytes != l.heap {
		l.heap = bytes
		limit(bytes)
	}
}

// hear takes what a shard has to say about itself, or how the way to the cluster was found.
func (l *controlLoop) hear(n shardNews) {
	a := n.assignment
	switch {
	case n.free:
		delete(l.leaving, a)
		l.shareJobs()
		return
	case l.assignments[a.manifest.Name] != a: // has ended meanwhile
		return
	}
	switch {
	case n.err != nil && n.member == "":
		l.reportFailed(a, l.server.member, fmt.Errorf("the cluster is no way to its trainers: %w", n.err))
		return
	case n.err != nil:
		l.reportFailed(a, n.member, n.err)
		return
	case n.member == "":
		a.serial = a.wanted
	case a.building > 0:
		a.building--
	}
	if a.building == 0 {
		l.tell(a, schema.Control{Report: a.report()})
	}
}

// tickAssignment reports to the coordinator, or gives the shards up where it has been silent for too long.
func (l *controlLoop) tickAssignment(a *assignment, now time.Time) {
	if j := l.job(a.manifest.Name); j != nil && j.run == a.run {
		a.coordinator.Begin(now)
	}
	if a.deserted(now) {
		l.server.log.Warn("shards given up, coordinator silent", "job", a.manifest.Name, "silent",
			liveness.Rounded(a.coordinator.For(now)))
		l.release(a)
		return
	}
	l.tell(a, schema.Control{Report: a.report()})
}

// excusePause takes a pause of this process out of the coordinator's silence, and gives the pause. It is called at each
// tick.
func (a *assignment) excusePause(now time.Time) time.Duration {
	pause := a.ticks.Tick(now, a.deadline)
	a.coordinator.Excuse(pause, now)
	return pause
}

// deserted reports whether the coordinator was silent for too long.
func (a *assignment) deserted(now time.Time) bool {
	_, lost := a.coordinator.Lost(now, a.deadline+graceOfCoordinator)
	return lost
}

// hearCoordinator notes the heartbeat of a coordinator elsewhere.
func (l *controlLoop) hearCoordinator(name schema.JobName, run schema.RunID) {
	if a := l.assignments[name]; a != nil && a.run == run {
		a.coordinator.Begin(time.Now())
	}
}

// look takes what the registry has seen.
func (l *controlLoop) look(ctx context.Context, n registryNews) {
	if n.taken != nil {
		l.server.log.Error("this ps has to end", "err", n.taken)
		l.server.fail(n.taken)
		return
	}
	if n.changed.run != 0 {
		if j := l.job(n.changed.name); j != nil && j.run == n.changed.run {
			l.carryOut(j, j.coordinator.Recorded(l.server.now(), n.changed.lr, n.changed.voters))
		}
		return
	}
	if j := l.job(n.stolen); n.stolen != "" && j != nil {
		l.carryOut(j, j.coordinator.Fail(schema.Coordinator,
			"another ps has taken the record of the job, while this one did not reach the control server"))
	}
	for name, j := range l.coordinated() {
		if l.registerAnew(j, n.servers) {
			continue
		}
		if l.findReplaced(j, n.servers); l.jobs[name] == j {
			l.carryOut(j, j.coordinator.Peers(l.server.now(), peersOf(l.keepers(n.servers))))
		}
	}
	l.verify(ctx)
}

// findReplaced ends a job whose shards were lost by a ps that has ended, or was started anew.
func (l *controlLoop) findReplaced(j *job, servers []leaseRecord) {
	for i := range j.servers {
		for _, there := range servers {
			if there.ID == l.server.registry.self.ID || there.ID != j.servers[i].ID ||
				there.Incarnation == j.servers[i].Incarnation && !there.Leaving {
				continue
			}
			how := "has ended"
			if there.Incarnation != j.servers[i].Incarnation {
				how = "was started anew on " + there.Host + " and has lost its shards"
			}
			l.carryOut(j, j.coordinator.ShardServerGone(i, how))
			return
		}
	}
}

// post sends a control message, and keeps it. A server that is lost does not take it; all of them are said again.
func (s *Server) post(subject fabric.Subject, frame []byte) { s.publish(s.posts, subject, frame) }
