package ps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/fabric"
	"gradbus/internal/liveness"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
)

// graceOfCoordinator is added to the deadline for a coordinator's silence, so that it ends the job first.
const graceOfCoordinator = 5 * time.Second

// assignment is the shards of a job on this ps, for any coordinator, with a worker each. The control loop's goroutine
// owns it, except routes, which workers read.
type assignment struct {
	server   *Server
	manifest *schema.Job
	run      schema.RunID
	shards   int           // of the job
	own      []int         // the shards here
	workers  []*worker     // by shard of the job; nil where another ps has it
	memory   Memory        // that it is promised
	window   int64         // bytes that we would let each trainer have under way to each shard here: see windowShare
	deadline time.Duration // after which a silent coordinator, or trainer with modules here, counts as lost

	ctx    context.Context
	cancel context.CancelFunc
	// of what the control loop does not wait for: ways to the cluster that are opened, contexts that expire
	asides      sync.WaitGroup
	building    int // shards that are not ready yet
	serial      int // of the last assignment that was carried out
	wanted      int // of the one that is being carried out
	ticks       liveness.Ticks
	coordinator liveness.Peer // heard of by heartbeats and assignments
	routes      atomic.Pointer[routes]
	links       []*link          // by shard of the job, as workers
	mirroring   *replicaSender   // nil: the job has no replica
	series      uint32           // of what is told then
	trainers    *trainerLiveness // where modules are hosted here; else nil
}

// routes are the ways to the trainers of a job.
type routes struct {
	direct    bool                       // a trainer uses this ps's own data server, to which each shard has its link
	cluster   *fabric.Conn               // through the control cluster; nil if no trainer uses it
	onCluster map[schema.Member]struct{} // whom it leads to; all others are direct
}

// newAssignment makes workers for our shards of a job, whose goroutines begin to draw version 0. news is told when they
// are done, or fail. They count on the window that trainers were told; ours is what other jobs leave of our queues.
func newAssignment(ctx context.Context, s *Server, run schema.RunID, assign *schema.Assign,
	resumed func(int) *shard.Resumed, window int64, news chan<- shardNews) *assignment {
	told := cmp.Or(assign.WindowBytes, window)
	a := &assignment{
		server: s, manifest: assign.Job, run: run, shards: assign.Shards, own: assign.Own, building: len(assign.Own),
		workers: make([]*worker, assign.Shards), links: make([]*link, assign.Shards),
		memory: memoryTold(s.config, assign.Job, len(assign.Own), assign.Shards, told), window: window,
		deadline: s.config.Deadline,
	}
	a.routes.Store(&routes{direct: true})
	if len(assign.Job.Modules) > 0 {
		a.trainers = newTrainerLiveness(assign.Job, a.deadline)
	}
	a.ctx, a.cancel = context.WithCancel(ctx)
	place, contributors := schema.NewPlacement(assign.Job, assign.Shards), round.ContributorsOf(assign.Job)
	for _, i := range assign.Own {
		config := s.shardConfig(assign.Job, place, i)
		config.RunID, config.Contributors, config.Lent = run, contributors, s.bus != nil
		config.StagedBytesMax = stagedFor(assign.Job, s.config.StagedBytesMax, told)
		config.Resumed = resumed(i)
		if tell := s.journal; tell != nil {
			config.Journal = func(e shard.Journal) { tell(assign.Job.Name, i, e) }
		}
		tell := func(err error) {
			select {
			case news <- shardNews{assignment: a, member: schema.ShardMember(i), err: err}:
			case <-a.ctx.Done():
			}
		}
		send := func(to schema.Member, subject fabric.Subject, frame fabric.Payload) { a.publish(i, to, subject, frame) }
		w := newWorker(s, config, told, s.log.With("job", assign.Job.Name, "shard", schema.ShardMember(i)), send, tell)
		switch {
		case s.config.local != nil || assign.Checkpoints != nil && s.folder.path() != "":
			w.saver = newSaver(w, assign.Shards)
		case assign.Checkpoints == nil:
		default:
			w.log.Warn("job has no checkpoints: this ps has no checkpoint folder",
				"want", "--checkpoint-dir, the folder of the coordinator's ps")
		}
		w.reachable = func(ctx context.Context) error { return a.links[i].wait(ctx) }
		a.workers[i] = w
	}
	a.notePromised()
	for _, i := range a.own {
		a.links[i] = s.links.take(i)
		go a.workers[i].run(a.ctx)
	}
	return a
}

// shardNews says that a shard is ready, or why it is not or no more; or that the routes to trainers are open; or that
// all is free.
type shardNews struct {
	assignment *assignment
	member     schema.Member
	err        error
	free       bool // the workers have ended, and their memory is free
}

// wait returns when the workers, which have been told to end, have done so and their memory is free. The control loop
// must not call it: a worker may be at something long.
func (a *assignment) wait() {
	for _, i := range a.own {
		<-a.workers[i].done
	}
	a.asides.Wait()
	if r := a.routes.Load(); r.cluster != nil {
		r.cluster.Close()
	}
	for _, i := range a.own {
		a.server.links.release(a.links[i])
	}
}

// report says how our shards fare.
func (a *assignment) report() *schema.Report {
	r := &schema.Report{Serial: a.serial, Ready: a.building == 0, Waiting: []schema.Waiting{}}
	for _, i := range a.own {
		w := a.workers[i].lately()
		a.workers[i].refresh()
		r.Writing = r.Writing || a.workers[i].saving.Load()
		taken := a.workers[i].takenOver()
		if i == a.own[0] {
			r.Generation, r.Done = taken.generation, taken.done
		}
		r.Generation, r.Done = min(r.Generation, taken.generation), min(r.Done, taken.done)
		if p := a.workers[i].part.Load(); p != nil {
			r.Parts = append(r.Parts, *p)
		}
		if v := a.workers[i].saver; v != nil {
			if p := v.failed.Load(); p != nil {
				r.Parts = append(r.Parts, *p)
			}
		}
		r.Waiting = mergeWaiting(r.Waiting, &w.Waiting)
	}
	return r
}

func (a *assignment) reported() *schema.Control { return &schema.Control{Report: a.report()} }

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

// mergeWaiting adds what a shard waits for to what others of this ps wait for: one entry for each batch, so that a
// report is not larger for more shards.
func mergeWaiting(all []schema.Waiting, w *schema.Waiting) []schema.Waiting {
	if len(w.Members) == 0 {
		return all
	}
	i, found := slices.BinarySearchFunc(all, w.Batch, func(e schema.Waiting, b schema.Batch) int {
		return int(int64(e.Batch) - int64(b))
	})
	if !found {
		return slices.Insert(all, i, *w)
	}
	e := &all[i]
	if !slices.Equal(e.Members, w.Members) {
		e.Members = slices.Concat(e.Members, w.Members)
		slices.Sort(e.Members)
		e.Members = slices.Compact(e.Members)
	}
	if w.Bucket < e.Bucket || w.Bucket == e.Bucket && w.Chunk < e.Chunk {
		e.Bucket, e.Chunk, e.First = w.Bucket, w.Chunk, w.First
	}
	return all
}

// publish sends a frame of one of our shards to a trainer, or to all of them by every route in use. It may be reused at
// once. What a lost server does not take is asked for again.
func (a *assignment) publish(shard int, to schema.Member, subject fabric.Subject, frame fabric.Payload) {
	r := a.routes.Load()
	_, away := r.onCluster[to]
	if r.direct && !away {
		a.server.published(subject, a.links[shard].SendInPlace(subject, frame))
	}
	if r.cluster != nil && (away || to == schema.All) {
		a.server.published(subject, r.cluster.SendInPlace(subject, frame))
	}
}

// route makes the ways to trainers as an assignment wants them, and tells news with an empty member. What may wait for
// the cluster is done on a goroutine, which ends with the job.
func (a *assignment) route(assign *schema.Assign, news chan<- shardNews) {
	old := a.routes.Load()
	next := &routes{cluster: old.cluster, onCluster: map[schema.Member]struct{}{}}
	for _, m := range assign.Cluster {
		next.onCluster[m] = struct{}{}
	}
	next.direct = len(next.onCluster) < a.manifest.Trainers
	a.wanted = assign.Serial
	if len(next.onCluster) == 0 || next.cluster != nil || a.server.embedsControl() {
		if a.server.embedsControl() { // the control server is our own data server
			next.direct, next.onCluster = true, nil
		}
		a.routes.Store(next)
		a.serial = assign.Serial
		return
	}
	a.asides.Go(func() {
		conn, err := a.dialCluster()
		if err == nil {
			next.cluster = conn
			a.routes.Store(next) // wait closes it
		}
		select {
		case news <- shardNews{assignment: a, err: err}:
		case <-a.ctx.Done():
		}
	})
}

// dialCluster connects a job's shards here to the control cluster, by which some of its trainers send.
func (a *assignment) dialCluster() (*fabric.Conn, error) {
	s := a.server
	config := s.controlConfig(string(a.manifest.Name) + "/" + string(s.member))
	conn, err := fabric.Dial(a.ctx, config)
	if err != nil {
		return nil, err
	}
	if r := checkMessages(a.manifest, "the NATS server at "+s.control.Address(), conn.PayloadBytesMax()); r != nil {
		conn.Close()
		return nil, errors.New(r.Text)
	}
	for _, i := range a.own {
		for _, pattern := range fabric.ListenAt(string(a.manifest.Name), string(schema.ShardMember(i))) {
			if err := conn.Subscribe(pattern, func(m fabric.Message) { s.receive(conn, i, m) }); err != nil {
				conn.Close()
				return nil, err
			}
		}
	}
	return conn, nil
}

// trainerLiveness measures the silence of the trainers of a job with modules here: contexts end with their trainer,
// also in a job that continues without it. A trainer that was never heard has none.
type trainerLiveness struct {
	job      schema.JobName
	deadline time.Duration
	trainers []moduleClient
}

// moduleClient is a trainer as one whose contexts may have to end. Modules tell again and again when they heard of it
// last, so what was heard stays known when its silence has ended.
type moduleClient struct {
	liveness.Peer
	heard time.Time // the newest sign of life
}

// lostTrainer is one whose contexts end, and why.
type lostTrainer struct {
	contributor int
	cause       string
}

func newTrainerLiveness(job *schema.Job, deadline time.Duration) *trainerLiveness {
	return &trainerLiveness{job: job.Name, deadline: deadline, trainers: make([]moduleClient, job.Trainers)}
}

// sign notes that a trainer was heard of. A sign that is no newer than those before is none: it would have a trainer
// that is gone be lost again.
func (l *trainerLiveness) sign(contributor int, at time.Time) {
	if p := &l.trainers[contributor]; at.After(p.heard) {
		p.heard = at
		p.Begin(at)
	}
}

// leave says that a trainer holds nothing any more.
func (l *trainerLiveness) leave(contributor int) { l.trainers[contributor].Peer = liveness.Peer{} }

// tick finds who is lost, after a pause of this process. clients are the names of connections.
func (l *trainerLiveness) tick(now time.Time, pause time.Duration, clients []string) (lost []lostTrainer) {
	for i := range l.trainers {
		p, name := &l.trainers[i], schema.TrainerMember(i)
		if !p.Lasts() {
			continue
		}
		p.Excuse(pause, now)
		p.Connection(slices.Contains(clients, string(l.job)+"/"+string(name)))
		if why, gone := p.Lost(now, l.deadline); gone {
			cause := fmt.Sprintf("%s was not heard of for %s%s", name, liveness.Rounded(p.For(now)), why)
			lost = append(lost, lostTrainer{i, cause})
			l.leave(i)
		}
	}
	return lost
}

// hearTrainer notes a sign of life of a trainer of a job with shards here.
func (a *assignment) hearTrainer(from schema.Member, now time.Time) {
	if a.trainers == nil {
		return
	}
	if i := a.hostOf(from); i >= 0 {
		a.trainers.sign(i, now)
	}
}

// trainerLeft ends what a trainer that has left holds.
func (a *assignment) trainerLeft(from schema.Member) {
	if a.trainers == nil {
		return
	}
	if i := a.hostOf(from); i >= 0 {
		a.hearModules(i)
		a.trainers.leave(i)
		a.expire(lostTrainer{i, string(from) + " has left"})
	}
}

func (a *assignment) hostOf(from schema.Member) int {
	for i := range a.manifest.Trainers {
		if schema.TrainerMember(i) == from {
			return i
		}
	}
	return -1
}

// tickModules ends the contexts of trainers that are lost.
func (a *assignment) tickModules(now time.Time, pause time.Duration, clients []string) {
	if a.trainers == nil {
		return
	}
	for i := range a.manifest.Trainers {
		a.hearModules(i)
	}
	for _, lost := range a.trainers.tick(now, pause, clients) {
		a.expire(lost)
	}
}

// hearModules notes when modules here have last heard of a trainer.
func (a *assignment) hearModules(contributor int) {
	for _, own := range a.own {
		if at := a.workers[own].modules.Heard(contributor); !at.IsZero() {
			a.trainers.sign(contributor, at)
		}
	}
}

// expire ends what a trainer holds. Client slots are locked while answers are sent, so the control loop does not wait
// for that.
func (a *assignment) expire(lost lostTrainer) {
	a.asides.Go(func() {
		for _, own := range a.own {
			a.workers[own].modules.Expire(lost.contributor, lost.cause)
		}
	})
}
