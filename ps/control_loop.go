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
	// messagesMax and messageBytesMax bound what waits for the control loop: some seconds of heartbeats of the largest
	// job, and the bodies of control messages, of up to 1 MiB. What finds it full is dropped; trainers repeat all of it.
	messagesMax     = 4 * 4096
	messageBytesMax = 32 << 20
)

// controlLoop runs the coordinators of all jobs on one goroutine. Control messages are few: a heartbeat a second for
// each trainer.
type controlLoop struct {
	server    *Server
	messages  chan *message // of which a place is small: few are ever taken
	manifests *manifests
	bytes     atomic.Int64 // of those in messages
	news      chan shardNews
	found     chan foundJob     // jobs whose checkpoints have been looked for
	completed chan completedJob // versions whose parts are all there
	deaths    chan death
	ends      chan schema.RunID // runs whose shards are kept here, and whose coordinators have ended
	mirrored  chan struct{}     // of one: see tellSoon
	done      chan struct{}

	drains   chan chan struct{}
	shutting chan struct{}
	once     sync.Once

	snapshot atomic.Pointer[Stats]
	began    moment // when it last began with a message or anything else

	// What follows belongs to the goroutine.
	jobs        map[schema.JobName]*job           // by name, the latest run
	assignments map[schema.JobName]*assignment    // shards on this ps
	leaving     map[*assignment]struct{}          // whose shards were told to end and have not yet
	checks      map[schema.JobName]*assignRequest // assignments that the registry has yet to confirm
	joins       int                               // that wait for jobs
	joinBytes   int                               // of their frames
	ticks       liveness.Ticks
	unverified  []unverified   // messages in the name of coordinators that may not exist
	local       []localMessage // between this ps and the coordinators on it
	history     endedJobs
	shown       []schema.JobReport // what reports tell of them
	refused     refusedJoins
	heap        int64     // bytes that the heap was limited to last
	follower    *follower // standby of this ps; nil: none
	gone        string    // why there is no standby any more; empty: there is one, or never was
	foreign     foreignPeer
	yielded     map[schema.JobName]time.Time // jobs that ended here while that ps may have continued them, and when
	drained     []chan struct{}              // closed when the last versions of all jobs are durable
	drainers    []schema.Member              // who has asked for the end of this ps, and is told of it
}

func newControlLoop(s *Server) *controlLoop {
	l := &controlLoop{
		server: s, messages: make(chan *message, messagesMax), news: make(chan shardNews), found: make(chan foundJob),
		manifests: newManifests(s.checkManifest),
		deaths:    make(chan death), ends: make(chan schema.RunID), mirrored: make(chan struct{}, 1),
		completed: make(chan completedJob),
		done:      make(chan struct{}), drains: make(chan chan struct{}),
		shutting: make(chan struct{}), jobs: map[schema.JobName]*job{}, assignments: map[schema.JobName]*assignment{},
		yielded: map[schema.JobName]time.Time{},
		leaving: map[*assignment]struct{}{}, checks: map[schema.JobName]*assignRequest{},
	}
	l.snapshot.Store(&Stats{})
	return l
}

// receive takes what comes in for coordinators. It never waits.
func (l *controlLoop) receive(m fabric.Message) {
	s := l.server
	subject, err := m.Parse()
	ofServer := err == nil && subject.Job == string(schema.TelemetryJob) && schema.Member(subject.From).IsServer()
	if !ofServer && (err != nil || subject.From != string(schema.Coordinator)) { // those are our own, or nearly
		s.counters.received(len(m.Data))
	}
	if err != nil {
		s.counters.count(schema.ReasonMalformed)
		return
	}
	view, err := schema.Verify(m.Data, s.limits)
	if err != nil {
		l.refuse(&subject, schema.Head{}, schema.Refusing(err))
		return
	}
	head := view.Head()
	if kindToken(head.Kind) != subject.Kind {
		l.refuse(&subject, head, schema.Refuse(schema.ReasonMalformed, "%v frame on a subject of kind %s", head.Kind,
			subject.Kind))
		return
	}
	if head.Kind == schema.KindHeartbeat {
		if s.reporter.receive(&subject, &view); ofServer {
			return // a ps is no member of a job
		}
		view = schema.View{}
	}
	waits := &message{job: schema.JobName(subject.Job), from: schema.Member(subject.From), to: schema.Member(subject.To),
		head: head, view: view, bytes: len(view.Bytes())}
	switch large := waits.bytes > largeControlBytes && waits.from != schema.Coordinator && !waits.from.IsServer(); {
	case large && !isJoiner(waits.from):
		l.refuse(&subject, head, schema.Refuse(schema.ReasonOversized, "control message of %d bytes: want at most %d",
			waits.bytes, largeControlBytes))
	case large && !l.manifests.offer(waits), !large && !l.queue(waits):
		s.counters.dropped.Add(1)
	}
}

// queue has a message wait for the loop, and reports whether there is room.
func (l *controlLoop) queue(m *message) bool {
	if l.bytes.Add(int64(m.bytes)) <= messageBytesMax {
		select {
		case l.messages <- m:
			return true
		default:
		}
	}
	l.taken(m)
	return false
}

// taken gives back the room of a message that waits no more.
func (l *controlLoop) taken(m *message) { l.bytes.Add(-int64(m.bytes)) }

// refuse tells a sender in the coordinator's name why its frame went nowhere.
func (l *controlLoop) refuse(subject *fabric.Subject, head schema.Head, r *refusal) {
	if l.server.posts != nil {
		l.server.refuseAs(l.server.posts, schema.Coordinator, subject, head, r)
	}
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
	checks.Go(func() { l.manifests.run(checking) })
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
	case m := <-l.messages:
		l.taken(m)
		l.read(ctx, m)
	case m := <-l.manifests.results:
		l.manifests.taken(m)
		l.read(ctx, m)
	case n := <-l.news:
		l.hear(n)
	case c := <-l.server.registry.results:
		l.acquired(c)
	case f := <-l.found:
		l.register(&f)
	case c := <-l.completed:
		l.tellCompleted(&c)
		l.tellDrained()
	case <-l.mirrored:
		l.tellStandby(l.server.now(), false)
		for _, j := range l.coordinated() {
			l.carryOut(j, j.coordinator.BeginReplicas(l.server.now()))
		}
		l.tellKept()
		for _, j := range byName(l.jobs) {
			l.settleOffers(j)
		}
		l.tellDrained()
	case done := <-l.drains:
		l.drained = append(l.drained, done)
		l.tellDrained()
	case d := <-l.deaths:
		if l.jobs[d.job.manifest.Name] == d.job {
			l.died(&d)
		}
	case run := <-l.ends:
		l.coordinatorEnded(run)
	case q := <-l.server.registry.answers:
		l.answered(ctx, &q)
	case n := <-l.server.registry.news:
		l.look(ctx, n)
	case <-ticker.C:
		l.readAll(ctx)
		l.tick(ctx, l.server.now())
		ask.Reset(tickEvery - askBefore)
	case <-ask.C:
		l.askShards()
	case <-l.shutting:
		return false
	case <-ctx.Done():
		return false
	}
	l.readLocal(ctx)
	l.publishStats()
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
	for range len(l.messages) { // no other goroutine receives
		l.began.set(l.server.now())
		m := <-l.messages
		l.taken(m)
		l.read(ctx, m)
		select {
		case c := <-l.server.registry.results:
			l.acquired(c)
		case n := <-l.server.registry.news:
			l.look(ctx, n)
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
	if len(l.jobs)+len(l.assignments) > 0 {
		clients = slices.Concat(l.server.nats.Clients(), l.server.nats.Faded())
	}
	pause := l.ticks.Tick(now, l.server.config.Deadline) // of which coordinators, and shards here, know by themselves
	if l.follower != nil {
		l.follower.heard.Excuse(pause, now)
	}
	l.checkFit()
	l.limitHeap()
	for _, a := range byName(l.assignments) {
		a.tickModules(now, a.excusePause(now), clients)
		l.tickAssignment(a, now)
	}
	l.readLocal(ctx)
	for name, j := range byName(l.jobs) {
		if j.coordinator == nil {
			if l.putOff(j, now); j.state == coordinator.Ended && now.After(j.elsewhere) {
				delete(l.jobs, name)
			}
			continue
		}
		if l.server.controlLost.Load() {
			l.carryOut(j, j.coordinator.Blind(now, l.server.control.Address()))
			continue
		}
		j.coordinator.Connections(clients)
		if l.server.standby.hasEnded(name) {
			l.carryOut(j, j.coordinator.EarlierRunEnded(now))
		}
		if j.coordinator.State().Gathers() && l.server.standby.yields(name) {
			l.carryOut(j, j.coordinator.Restart("", schema.Coordinator, "the job has begun at the other ps of the pair, too"))
		}
		l.carryOut(j, j.coordinator.Tick(now))
		if !j.coordinator.State().IsOver() {
			l.putOff(j, now)
			l.heartbeat(j)
		}
	}
	l.tellStandby(now, true)
	l.server.replicas.tick(now, pause)
	l.noteStandby(now)
	l.report(now)
	l.tellDrained()
}

// askShards asks our shards how they fare. They have answered by the next tick, unless they are at work for longer.
func (l *controlLoop) askShards() {
	for _, a := range l.assignments {
		for _, i := range a.own {
			a.workers[i].refresh()
		}
	}
}

// heartbeat tells a job's trainers, and its shard servers, that the coordinator is there.
func (l *controlLoop) heartbeat(j *job) {
	head := schema.Head{Job: j.run, Generation: generationFirst, Lanes: uint16(j.manifest.Lanes),
		Batch: j.coordinator.Durable()}
	frame, err := schema.EncodeHeartbeat(head, nil)
	if err != nil {
		l.server.log.Error("encode heartbeat", "err", err)
		return
	}
	at := fabric.At(string(j.manifest.Name), string(schema.Coordinator), fabric.KindHeartbeat, string(schema.All))
	l.server.post(at, frame)
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
			l.tellSoon()
		}
		if decision.Later > 0 {
			time.AfterFunc(decision.Later, l.tellSoon)
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
		if f := decision.Control.Failed; f != nil && f.End != schema.EndStopped {
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
		l.watchTrainers(j)
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
	l.server.post(fabric.At(string(name), string(from), fabric.KindCtl, string(to)), frame)
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
		l.show(j, time.Now())
	}
	if f := outcome.Failed; f != nil { // before a trainer was admitted
		l.turnAway(j, &schema.Refused{Reason: "server_full", Text: f.Text})
	}
	l.takeWaiting(j) // of an end without a failure: they are repeated
	l.noteWritten(j)
}

// noteWritten ends a job that is ending, once the version that it completed last is on the disk.
func (l *controlLoop) noteWritten(j *job) {
	if isClosed(j.writing) {
		j.coordinator.Finish()
	}
}

// drop takes a job out of the registry and has its shards released.
func (l *controlLoop) drop(j *job, outcome *coordinator.Outcome) {
	delete(l.jobs, j.manifest.Name)
	for _, w := range slices.Concat(j.watching, j.serving) {
		w.stop()
	}
	l.server.registry.end(j.manifest.Name, endedRun{RunID: j.run, Joiners: outcome.Joiners})
	l.releaseServers(j, outcome.Failed)
	if a := l.shardsOf(j); a != nil {
		l.release(a)
	}
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
	l.tellDrainers(true)
	for _, j := range l.coordinated() {
		l.carryOut(j, j.coordinator.Restart(how, schema.Coordinator, why))
	}
	for _, a := range byName(l.assignments) {
		l.tell(a, schema.Control{Failed: &schema.Failed{Member: l.server.member, Text: why, Back: true, End: how}})
		l.release(a)
	}
	l.report(l.server.now())
	for _, j := range byName(l.jobs) {
		l.turnAway(j, &shuttingDown)
	}
	for {
		select {
		case m := <-l.messages:
			l.taken(m)
			l.sendAway(m)
		default:
			l.publishStats()
			return
		}
	}
}

// forget takes it that all that was released is free. The goroutine has ended.
func (l *controlLoop) forget() {
	clear(l.leaving)
	l.publishStats()
}

func (l *controlLoop) publishStats() {
	stats := &Stats{}
	for name, j := range l.coordinated() {
		status := JobStatus{Status: j.coordinator.Status()}
		if a := l.assignments[name]; a != nil {
			status.Bytes = a.memory.Bytes()
		}
		stats.Jobs = append(stats.Jobs, status)
	}
	for _, a := range l.held() {
		stats.Memory += a.memory.Bytes()
	}
	l.snapshot.Store(stats)
}

// coordinated goes through the jobs that this ps coordinates, by their names.
func (l *controlLoop) coordinated() iter.Seq2[schema.JobName, *job] {
	return func(yield func(schema.JobName, *job) bool) {
		for name, j := range byName(l.jobs) {
			if j.coordinator != nil && !yield(name, j) {
				return
			}
		}
	}
}

// job returns the job of a name that this ps coordinates; nil: it coordinates none.
func (l *controlLoop) job(name schema.JobName) *job {
	if j := l.jobs[name]; j != nil && j.coordinator != nil {
		return j
	}
	return nil
}

// byName goes through what there is of each job in the order of their names. What is taken out on the way is left out.
func byName[V any](all map[schema.JobName]V) iter.Seq2[schema.JobName, V] {
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
