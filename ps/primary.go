package ps

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gradbus/fabric"
	"gradbus/internal/liveness"
	"gradbus/internal/planted"
	"gradbus/internal/process"
	"gradbus/ps/coordinator"
	"gradbus/schema"
)

const (
	// followEvery is the time between two words of a ps with replicas to the primary.
	followEvery = 250 * time.Millisecond
	// cutMax is for how long the other ps may be out of reach while nothing says that it has ended.
	cutMax = 2 * time.Second
	// probeEvery is the time between two attempts to find out whether it has.
	probeEvery = 20 * time.Millisecond
	// othersFirst is for how long no newcomer begins a job here that was on the ps which is lost, and of which nothing is
	// here: started again at once, that one has a later version, and those who come back to it.
	othersFirst = 5 * time.Second
)

// primary is the other ps of a pair, for which this one holds replicas. It has a registry of its own, and tells which
// of its jobs are to be kept here (schema.Keep), and the replica store has what their shards have. When that ps has
// ended, a job goes on here with the first trainer that comes. Where it is only out of reach it may be there all the
// same: then more than half of the trainers have to come. No trainer counts twice, since it is in one run at a time; so
// no two ps continue a job.
//
// Its methods are called by the control loop, by fabric's goroutines, and by its own, which end with the server.
type primary struct {
	server *Server
	url    string
	drawn  uint64
	conn   *fabric.Conn
	done   sync.WaitGroup
	soon   chan struct{} // of one: something has changed that the other ps is to know

	mu     sync.Mutex // lock order: mu, then the replica store's
	closed bool       // no goroutine begins any more
	jobs   map[schema.JobName]*followedJob
	silent liveness.Silence        // the other ps, since it was heard
	other  uint64                  // what it drew at its start; 0: it was never heard
	there  map[schema.JobName]bool // jobs that the other ps has; nil: it has not said yet, and may have any
	over   []continuedRun          // the latest last; at most endedMax
	cut    liveness.Silence
	// Why the other ps refuses this one, or has a replica elsewhere; empty since it answers.
	refused string
}

// followedJob is a job of the other ps that can go on here. mu of the primary guards it.
type followedJob struct {
	run      schema.RunID
	of       uint64          // incarnation of the other ps that has it; 0: that has not said yet
	voters   []schema.Voter  // trainers of the run, as the other ps said last
	gone     string          // why the ps that has it is lost; empty: it is not
	since    time.Time       // then
	ended    bool            // the ps is known to have ended, or an operator says so
	promised map[uint64]bool // numbers of voters that have promised to follow this ps
	whole    bool            // a version of all shards is here
}

// continuedRun is a run of the other ps that this one has continued in another run.
type continuedRun struct {
	schema.OverRun
	of    uint64 // incarnation of the other ps that had it
	ended bool   // that ps no longer runs it, or an operator says so
}

// newPrimary is for the ps at the address that the server was given. Nothing is dialed yet.
func newPrimary(s *Server) *primary {
	return &primary{server: s, url: s.config.Peer, drawn: s.registry.self.Incarnation,
		jobs: map[schema.JobName]*followedJob{}, soon: make(chan struct{}, 1)}
}

// start connects to the other ps, now, or later where it is not there yet. That it refuses is an error.
func (b *primary) start(ctx context.Context) error {
	err := b.connect(ctx)
	if !errors.Is(err, fabric.ErrNoServer) {
		return err
	}
	b.server.log.Warn("primary not reachable yet", "at", fabric.WithoutUser(b.url), "err", err)
	b.run(func() {
		for err != nil && b.server.running.Err() == nil {
			select {
			case <-time.After(followEvery):
				if err = b.connect(b.server.running); err != nil && !errors.Is(err, fabric.ErrNoServer) {
					b.mu.Lock()
					b.noteRefused(err.Error())
					b.mu.Unlock()
				}
			case <-b.server.running.Done():
			}
		}
	})
	return nil
}

// connect connects, and begins to follow.
func (b *primary) connect(ctx context.Context) error {
	s := b.server
	conn, err := fabric.Dial(ctx, b.fabricConfig("replica/"+s.ID(), b.changed))
	if err != nil {
		return fmt.Errorf("hold replicas for the ps at %s: %w", fabric.WithoutUser(b.url), err)
	}
	b.mu.Lock()
	b.conn, b.there = conn, nil
	b.mu.Unlock()
	control := fabric.Pattern(fabric.Any, string(schema.Coordinator), fabric.KindCtl, string(s.member), false)
	if err = conn.Subscribe(control, b.hear); err != nil {
		conn.Close()
		return fmt.Errorf("hold replicas for the ps at %s: %w", fabric.WithoutUser(b.url), err)
	}
	b.run(func() { b.follow(s.running) })
	s.log.Info("holding replicas", "for", fabric.WithoutUser(b.url))
	return nil
}

func (b *primary) fabricConfig(name string, onState func(fabric.State)) fabric.Config {
	s := b.server
	return renewing(fabric.Config{URL: b.url, Bus: s.bus, Name: name, Key: s.config.Key, Log: s.log, OnState: onState},
		func() (string, *tls.Config) { c := s.trust.Load(); return c.Token, c.NATSTLS })
}

// run runs f on a goroutine of its own, unless the server has ended.
func (b *primary) run(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.runLocked(f)
}

func (b *primary) runLocked(f func()) {
	if !b.closed {
		b.done.Go(f)
	}
}

// close takes leave of the other ps. The server runs no more.
func (b *primary) close() {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	b.done.Wait()
	if b.conn == nil {
		return
	}
	last := b.word()
	last.Leaving = true
	b.say(last)
	ctx, cancel := context.WithTimeout(context.Background(), drainWithin)
	_ = b.conn.Flush(ctx) // it is missed soon if not
	cancel()
	b.conn.Close()
}

// word returns the common part of all messages to the other ps.
func (b *primary) word() *schema.Follow {
	return &schema.Follow{URL: b.server.announced(b.conn.LocalHost()), Incarnation: b.drawn, Host: process.HostAndID()}
}

// follow says what this ps has, again and again.
func (b *primary) follow(ctx context.Context) {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	b.tellSoon()
	var ticks liveness.Ticks
	for {
		select {
		case <-ticker.C:
		case <-b.soon:
		case <-ctx.Done():
			return
		}
		now := b.server.now()
		b.mu.Lock()
		b.silent.Excuse(ticks.Tick(now, b.server.config.Deadline), now) // in which this process did not run
		f := b.word()
		for _, r := range b.over {
			f.Over = append(f.Over, r.OverRun)
		}
		b.expire(now)
		b.mu.Unlock()
		b.say(f)
	}
}

// expire loses the jobs of a ps that has been silent for too long, and drops lost ones that no trainer has joined. mu is
// held.
func (b *primary) expire(now time.Time) {
	for name, j := range b.jobs {
		if silent := b.silent.For(now); silent > b.server.config.Deadline+graceOfCoordinator {
			b.lose(name, j, fmt.Sprintf("its ps has said nothing for %s", liveness.Rounded(silent)), false)
		}
		if j.gone != "" && now.Sub(j.since) > b.waitsFor(j) {
			b.server.log.Warn("no trainer has joined a lost job", "job", name)
			if b.drop(name); j.ended {
				delete(b.there, name) // trainers that join later begin it here
			}
		}
	}
}

// tellSoon has follow say what this ps has.
func (b *primary) tellSoon() {
	nudge(b.soon)
}

func (b *primary) say(f *schema.Follow) { b.send(schema.TelemetryJob, 0, schema.Control{Follow: f}) }

// send sends a control message to a coordinator of the other ps.
func (b *primary) send(name schema.JobName, run schema.RunID, c schema.Control) {
	frame, err := schema.EncodeControl(schema.Head{Job: run, Generation: generationFirst}, c)
	if err != nil {
		b.server.log.Error("encode control", "job", name, "message", c.Name(), "err", err)
		return
	}
	at := fabric.At(string(name), string(b.server.member), fabric.KindCtl, string(schema.Coordinator))
	b.server.publish(b.conn, at, frame)
}

// sayKept tells the coordinator of a run what is kept of it here, and reports whether the other ps has the run.
func (b *primary) sayKept(name schema.JobName, said *schema.Kept) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	j := b.jobs[name]
	follows := j != nil && j.run == said.Run
	b.mu.Unlock()
	if follows {
		b.send(name, said.Run, schema.Control{Kept: said})
	}
	return follows
}

// hear takes a word of the other ps.
func (b *primary) hear(m fabric.Message) {
	defer m.Release()
	subject, err := m.Parse()
	if err != nil {
		return
	}
	view, err := schema.Verify(m.Data, b.server.limits)
	if err == nil && view.Head().Kind == schema.KindRefusal {
		if r := schema.RefusedByOlder(&view); r != nil {
			b.turnedAway(r.Text)
		}
	}
	if err != nil || view.Head().Kind != schema.KindControl {
		return // a heartbeat, or a refusal of what is said again
	}
	c, err := schema.DecodeControl(&view)
	switch {
	case err != nil:
		b.server.log.Warn("word of the other ps not understood", "err", err)
	case c.Refused != nil:
		b.turnedAway(c.Refused.Text)
	case c.Jobs != nil:
		b.heard(c.Jobs)
	case c.Keep != nil:
		b.keep(schema.JobName(subject.Job), view.Head().Job, c.Keep)
	}
}

// turnedAway records that the other ps refuses this one, or has a replica elsewhere.
func (b *primary) turnedAway(why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.there = map[schema.JobName]bool{}
	b.noteRefused(why)
}

// noteRefused records why the other ps refuses this one, and logs each new reason. mu is held.
func (b *primary) noteRefused(why string) {
	if b.refused != why {
		b.refused = why
		b.server.log.Warn("refused by the other ps", "text", why)
	}
}

// heard takes it which jobs the other ps has.
func (b *primary) heard(h *schema.Jobs) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.silent.Begin(b.server.now())
	b.refused, b.other = "", h.Incarnation
	b.there = map[schema.JobName]bool{}
	for _, j := range h.Jobs {
		b.there[j.Job] = true
	}
	for name, j := range b.jobs {
		switch {
		case j.of == 0:
			j.of = h.Incarnation
		case j.of != h.Incarnation && b.there[name]: // it was started again, and has the job in a later run
			b.drop(name)
		case j.of != h.Incarnation: // it has ended, and what is there now never had the run
			b.lose(name, j, "its ps was started again", true)
		case !b.there[name]:
			b.server.log.Info("job has ended where it was", "job", name)
			b.drop(name)
		}
	}
	for i := range b.over {
		r := &b.over[i]
		if r.of == h.Incarnation && (b.there[r.Job] || len(h.Jobs) == schema.FollowMax) {
			continue // it may still have to hear that the run is over
		}
		r.ended = true
	}
}

// changed is told by fabric how the way to the other ps fares.
func (b *primary) changed(state fabric.State) {
	switch state {
	case fabric.Lost:
		b.mu.Lock()
		b.cut.Begin(b.server.now())
		b.mu.Unlock()
		b.server.log.Warn("primary unreachable", "at", fabric.WithoutUser(b.url))
		b.run(b.probe)
	case fabric.Back:
		b.mu.Lock()
		b.cut.End()
		b.there = nil
		b.mu.Unlock()
		b.server.log.Info("primary reachable again", "at", fabric.WithoutUser(b.url))
	}
}

// probe finds out whether the other ps has ended, until it is back. A machine without one refuses connections.
func (b *primary) probe() {
	s := b.server
	for s.running.Err() == nil {
		b.mu.Lock()
		cut, lasts := b.cut.For(s.now()), b.cut.Lasts()
		b.mu.Unlock()
		why := ""
		if cut > cutMax {
			why = fmt.Sprintf("its ps has been out of reach for %s", liveness.Rounded(cut))
		}
		if !lasts {
			return
		}
		if why == "" {
			ctx, cancel := context.WithTimeout(s.running, cutMax)
			conn, err := fabric.DialControl(ctx, b.fabricConfig("probe/"+s.ID(), nil))
			cancel()
			if err == nil {
				conn.Close()
			} else if errors.Is(err, syscall.ECONNREFUSED) || s.bus != nil && errors.Is(err, fabric.ErrNoServer) {
				why = "nothing listens where its ps was" // a host that is cut off may say so, too
			}
		}
		if why != "" {
			b.mu.Lock()
			for name, j := range b.jobs {
				b.lose(name, j, why, planted.Is(planted.TakeUnreachableForEnded))
			}
			b.mu.Unlock()
			return
		}
		select {
		case <-time.After(probeEvery):
		case <-s.running.Done():
		}
	}
}

// keep takes it that the other ps has a job, which is to be kept here.
func (b *primary) keep(name schema.JobName, run schema.RunID, told *schema.Keep) {
	s := b.server
	if told.Job != nil {
		s.config.checkManifest(told.Job) // before the lock, for which the control loop waits; what it finds is remembered
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.jobs[name]
	if b.isOver(name, run) || b.goesOn(j) && j.run != run { // whose trainers are on their way
		return
	}
	if j == nil || j.run != run {
		if told.Job == nil { // it was for the process before this one
			return
		}
		b.drop(name)
		j = &followedJob{run: run, of: b.other, promised: map[uint64]bool{}}
		b.jobs[name] = j
	}
	s.replicas.keep(name, run, told, nil)
	j.voters = told.Voters
	if j.gone != "" && !told.Last && !b.cut.Lasts() && !s.registry.hasGone(j.of) { // else it was sent before
		s.log.Info("ps is back", "job", name)
		j.gone, j.ended = "", false
		clear(j.promised)
	}
	v, had := b.version(j), j.whole
	if j.whole = v > 0; j.whole && !had {
		s.log.Info("job replicated", "job", name, "version", uint64(v))
	}
	if told.Last {
		b.lose(name, j, "its ps ends, and has handed it over", true)
	}
	nudge(s.loop.changed) // which tells what is kept
}

// version is the one of a job that is whole here; 0: none is.
func (b *primary) version(j *followedJob) schema.Version { return b.server.replicas.version(j.run) }

// isOver reports whether this ps has gone on with a run. mu is held.
func (b *primary) isOver(name schema.JobName, run schema.RunID) bool {
	return slices.ContainsFunc(b.over, func(r continuedRun) bool { return r.OverRun == schema.OverRun{Job: name, Run: run} })
}

// hasEnded reports whether the last run of a job that this ps has continued is known to have ended. b may be nil.
func (b *primary) hasEnded(name schema.JobName) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.continued(name)
	return r != nil && r.ended
}

// yields reports whether a job that begins here has begun at the other ps, too, which keeps it: the one that drew the
// higher number at its start. b may be nil.
func (b *primary) yields(name schema.JobName) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.continued(name); r != nil && !r.ended {
		return false // the other ps has to hear that its run is over
	}
	return b.there[name] && b.other > b.drawn
}

// continued is the last run of a job that this ps has continued; nil: there is none. mu is held.
func (b *primary) continued(name schema.JobName) *continuedRun {
	for i := len(b.over) - 1; i >= 0; i-- {
		if r := &b.over[i]; r.Job == name {
			return r
		}
	}
	return nil
}

// processEnded takes it that the process of a run's coordinator has ended, and reports whether the other ps had it.
func (b *primary) processEnded(run schema.RunID) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, j := range b.jobs {
		if j.run == run {
			b.server.registry.gone(j.of)
			b.lose(name, j, "its ps has ended", true)
			return true
		}
	}
	return false
}

// lose notes that the ps that has a job is lost; ended says that it is known to have ended. mu is held.
func (b *primary) lose(name schema.JobName, j *followedJob, why string, ended bool) {
	if j.gone != "" && (j.ended || !ended) {
		return
	}
	if j.gone == "" {
		j.gone = why
	}
	j.ended, j.since = ended, b.server.now()
	b.server.replicas.await(j.run, b.waitsFor(j))
	text := j.gone
	if !ended {
		text = j.missing(name)
	}
	b.server.log.Warn("the ps of a job is lost, its trainers are awaited here", "job", name, "why", text, "version",
		uint64(b.version(j)))
}

// waitsFor returns how long a lost job waits for its trainers: as long as for those of a job that starts, if it takes an
// operator to say that its ps has ended. mu is held.
func (b *primary) waitsFor(j *followedJob) time.Duration {
	if j.ended {
		return resumeWindow
	}
	return max(resumeWindow, b.server.config.StartTimeout)
}

// drop forgets a job. mu is held.
func (b *primary) drop(name schema.JobName) {
	if j := b.jobs[name]; j != nil {
		b.server.replicas.forget(j.run)
		delete(b.jobs, name)
	}
}

// lost reports whether a run is over where it was, and goes on here, and why, or why not.
func (b *primary) lost(name schema.JobName, run schema.RunID) (lost bool, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch j := b.jobs[name]; {
	case b.isOver(name, run):
		return true, "it goes on here"
	case j == nil || j.run != run:
		return false, "the run is not known here"
	case j.gone != "" && b.version(j) == 0:
		return false, j.gone + ", and not all of it had been told here"
	default:
		return j.gone != "", j.gone
	}
}

// goesOn reports whether a job is to continue here: its ps is lost, all of it is here, and its trainers are awaited. mu is
// held.
func (b *primary) goesOn(j *followedJob) bool {
	return j != nil && j.gone != "" && b.version(j) > 0 && b.server.now().Sub(j.since) < b.waitsFor(j)
}

// isSilent reports whether the other ps does not answer. b may be nil.
func (b *primary) isSilent() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.silent.For(b.server.now()) >= cutMax
}

// takeover notes that an operator says that the ps of a job has ended, and answers what follows.
func (b *primary) takeover(name schema.JobName) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, j := b.continued(name), b.jobs[name]
	answers := !b.cut.Lasts() && b.silent.For(b.server.now()) < cutMax
	switch {
	case r != nil && !r.ended && j == nil:
		r.ended = true
	case answers && (b.there[name] || j != nil && j.gone == ""):
		return fmt.Sprintf("job %s is on the ps at %s, which answers: drain that one", name, fabric.WithoutUser(b.url))
	case j != nil && b.version(j) > 0:
		b.lose(name, j, "an operator says that its ps has ended", true)
	case j == nil && b.there != nil && !b.there[name]:
		return fmt.Sprintf("this ps does not wait with job %s for another one", name)
	default:
		b.drop(name)
		if delete(b.there, name); b.there == nil {
			b.there = map[schema.JobName]bool{}
		}
	}
	return ""
}

// awaited are the jobs that are to go on here. b may be nil.
func (b *primary) awaited() (all []schema.JobName) {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, j := range b.jobs {
		if b.goesOn(j) {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// comes answers a trainer that asks for a job of the other ps. mine reports that the job is for this ps to answer, and
// refused is the answer; nil if the job continues here. A voter's request is its promise to follow this ps: it has left
// the other coordinator before.
func (b *primary) comes(name schema.JobName, request *schema.Join) (mine bool, refused *schema.Refused) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j, now, run := b.jobs[name], b.server.now(), request.Run
	goesOn := b.goesOn(j)
	switch {
	case j == nil && b.there == nil:
		return true, &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(fmt.Sprintf(
			"this ps holds replicas for the one at %s, and has to hear first which jobs are there. If that ps has ended: "+
				"%s takeover %s", fabric.WithoutUser(b.url), process.Invoked("ps"), name))}
	case !goesOn && b.there[name] && b.silent.For(now) < cutMax, j != nil && j.gone == "":
		there := fabric.WithoutUser(b.url)
		return true, &schema.Refused{Reason: schema.RefusedElsewhere, Field: "server", Have: there,
			Text: schema.Clip(fmt.Sprintf("job %s is on the ps at %s, for which this one holds replicas", name, there))}
	case run == 0 && j != nil && j.gone != "" && b.version(j) == 0 && now.Sub(j.since) < othersFirst:
		return true, &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(fmt.Sprintf(
			"job %s was on the ps at %s, of which this one has nothing: %s. It may go on there first", name,
			fabric.WithoutUser(b.url), j.gone))}
	case (!goesOn || run != 0 && run != j.run) && (j != nil && !j.ended || j == nil && b.there[name]):
		return true, &schema.Refused{Reason: schema.RefusedBusy, Text: schema.Clip(fmt.Sprintf(
			"job %s is on the ps at %s, which does not answer and may still run it. If that ps has ended: %s takeover %s",
			name, fabric.WithoutUser(b.url), process.Invoked("ps"), name))}
	case !goesOn || run != 0 && run != j.run:
		return false, nil
	}
	if run != 0 {
		j.promise(request.Number)
	}
	if j.ended || mayStart(j.voters, j.promised) {
		return true, nil
	}
	return true, &schema.Refused{Reason: schema.RefusedBusy, Field: schema.FieldVoters,
		Text: schema.Clip(j.missing(name))}
}

// promise notes that a trainer follows this ps, if it is a voter.
func (j *followedJob) promise(number uint64) {
	if coordinator.IsVoter(j.voters, number) {
		j.promised[number] = true
	}
}

// mayStart reports whether more than half of the voters of a run have promised to follow a successor. Trainers that
// joined later, or were started again, are no voters.
func mayStart(voters []schema.Voter, promised map[uint64]bool) bool {
	n := coordinator.CountVoters(voters, func(number uint64) bool { return promised[number] })
	if planted.Is(planted.GoOnWithMinority) {
		return n > 0
	}
	return 2*n > len(voters)
}

// missing says which trainers a job waits for before it may continue here, and what decides without them.
func (j *followedJob) missing(name schema.JobName) string {
	var not []string
	for _, m := range j.absent() {
		not = append(not, string(m))
	}
	return fmt.Sprintf("%s, and it may still run the job. The job continues here when more than half of its %d trainers "+
		"have joined, of which these have not: %s. If that ps has ended: %s takeover %s", j.gone, len(j.voters),
		strings.Join(not, " "), process.Invoked("ps"), name)
}

// lostRun is the run that a newcomer to a job goes on from, where the job is to go on here; 0: it is another job.
func (b *primary) lostRun(job *schema.Job) schema.RunID {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.jobs[job.Name]
	if j == nil {
		return 0
	}
	of := b.server.replicas.manifest(j.run)
	if of == nil {
		return 0
	}
	if field, have, want, differs := of.WithChunkBytes(job.ChunkBytes).Diff(job); differs {
		b.server.log.Warn("job starts over: its settings differ from those of the replica", "job",
			job.Name, "field", field, "have", have, "want", want)
		return 0
	}
	return j.run
}

// takeOver notes that a run of the other ps continues here; ok is false if that ps has it again. voters are its trainers
// if the other ps may still run it, and nil if that is known to have ended.
func (b *primary) takeOver(name schema.JobName, run schema.RunID) (voters []schema.Voter, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.jobs[name]
	if j == nil || j.run != run || j.gone == "" {
		return nil, false
	}
	delete(b.jobs, name)
	delete(b.there, name) // until the other ps says that it has the job again
	if b.over = append(b.over, continuedRun{schema.OverRun{Job: name, Run: run}, j.of, j.ended}); len(b.over) > endedMax {
		b.over = b.over[1:]
	}
	b.server.log.Info("job goes on here", "job", name, "version", uint64(b.version(j)), "why", j.gone)
	if j.ended {
		return nil, true
	}
	return j.voters, true
}
