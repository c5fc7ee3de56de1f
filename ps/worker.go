package ps

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"gradbus/fabric"
	"gradbus/ps/module"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/endpoint"
)

// worker runs one shard of one job: who steps the pure state machine when (step.go), and what surrounds it: a queue,
// windows, subjects, the clock.
type worker struct {
	server *Server
	config shard.Config
	name   string // of the job, as in subjects
	member schema.Member
	log    *slog.Logger
	queue  *queue
	watch  *watch
	ask    chan struct{} // has room for one: somebody wants a fresh waiting
	left   chan struct{} // has room for one: gone or since has changed
	done   chan struct{}

	modules *module.Set // that the shard hosts; nil where the job has none

	// held by the goroutine that steps; guards what follows. Lock order: stepLock, then queue.mu
	stepLock sync.Mutex
	window   int64              // of each contributor
	end      *endpoint.Endpoint // the shard; nil before it is ready, and after its end
	err      error              // why it has failed
	limit    *rate.Limiter
	here     item   // the frame that is stepped where it was received
	items    []item // contributions that were taken from the queue, and how many of them were stepped
	asks     []item // lookups and pulls that were

	nextItem, nextAsk int   // of these, the first that is not stepped
	ackPending        bool  // ackWake has been told since the last Tick
	tally             tally // what was done so far
	timed             *timedBackend

	ackWake chan struct{} // has room for one: somebody is to be acknowledged soon
	// of the learning rates, as the coordinator said last; a step sees them before its frame
	lr      atomic.Pointer[[]schema.LRChange]
	changes *[]schema.LRChange // those that the shard knows

	// of checkpoints, as the coordinator said last; likewise. Then what the shard knows, and whether the saver was told of
	// the copy that is being taken
	checkpoints atomic.Pointer[schema.Checkpoints]
	wished      *schema.Checkpoints
	copying     bool
	mirror      atomic.Pointer[mirroring] // nil: nobody stands by
	mirrored    schema.Version            // that it was told of last
	saver       *saver                    // nil where nothing is written
	saving      atomic.Bool               // a part is being written
	part        atomic.Pointer[schema.CheckpointPart]
	gathered    *gathering // of what trainers own

	send func(to schema.Member, subject fabric.Subject, frame fabric.Payload)
	// told that the shard is ready, or goes by other generations (nil), and once that it failed
	result    func(error)
	reachable func(context.Context) error // waits until the shard is listened at; nil where it is

	mu      sync.Mutex
	waiting shard.Waiting
	told    tally

	held     int64               // bytes of memory, as noteHeld says
	idle     string              // why the shard has nothing to do; empty where it has, and before it is known
	gone     []schema.Member     // of a grouped job, as the coordinator said last
	since    []schema.Generation // of trainers, likewise
	taken    takenOver
	promised int64 // bytes of memory; does not change
}

// takenOver is how far a shard was when it began to go by generations of trainers' places.
type takenOver struct {
	generation schema.Generation // the newest of them
	done       schema.Version
}

// acknowledgeEvery is the time between two looks at what little has come: see endpoint.Endpoint.Tick.
const acknowledgeEvery = fabric.AckDelayMax / 3

func newWorker(s *Server, c shard.Config, window int64, log *slog.Logger, send func(schema.Member, fabric.Subject,
	fabric.Payload), result func(error)) *worker {
	w := &worker{
		timed: &timedBackend{Backend: c.Backend}, server: s, config: c, name: string(c.Job.Name),
		member: schema.ShardMember(c.Index), log: log,
		queue: newQueue(int(queueBytes(len(c.Contributors), window))), ask: make(chan struct{}, 1),
		left: make(chan struct{}, 1), ackWake: make(chan struct{}, 1), done: make(chan struct{}),
		limit: rate.NewLimiter(refusalsPerSecond, refusalsPerSecond), send: send, result: result, window: window,
		gathered: &gathering{came: newQueue(gatheredBytesMax)},
	}
	w.watch = newWatch(&c, w.timed, s.rounds)
	w.config.OnClosing = w.watch.closing
	if len(c.Job.Modules) > 0 {
		w.modules = w.newModules()
	}
	w.watchGroups()
	return w
}

// watchGroups tells of groups: the log, at level debug, and the trainers, where the manifest asks for it.
func (w *worker) watchGroups() {
	logged, told := w.log.Enabled(context.Background(), slog.LevelDebug), w.config.Job.GroupEvents
	if !logged && !told {
		return
	}
	last := int64(0)
	w.config.OnGroup = func(e shard.GroupEvent) {
		if told {
			last = max(time.Now().UnixNano(), last+1)
			w.tellGroup(&schema.Group{Update: e.Group, Closed: e.Closed, Start: e.Start, Member: e.Member, Batch: e.Batch,
				Parked: e.Parked, Size: e.Size, AtNS: last})
		}
		switch {
		case !logged:
		case e.Closed:
			w.log.Debug("update made", "update", uint64(e.Group))
		default:
			w.log.Debug("request parked", "update", uint64(e.Group), "member", e.Member, "batch", uint64(e.Batch), "parked",
				e.Parked, "group", e.Size)
		}
	}
}

// tellGroup tells every trainer by the subject of results to it, so that each hears it before what the group made: what
// has another kind or receiver comes in an order of its own.
func (w *worker) tellGroup(g *schema.Group) {
	frame, err := schema.EncodeControl(schema.Head{Job: w.config.RunID, Generation: w.config.Generation},
		schema.Control{Group: g})
	if err != nil {
		w.log.Error("an event of a group cannot be told", "err", err) // a broken invariant, of which nothing depends
		return
	}
	for i := range w.config.Contributors {
		to := w.config.Contributors[i].Member
		w.send(to, fabric.At(w.name, string(w.member), fabric.KindMean, string(to)).WithBucket(uint64(g.Update), 0),
			fabric.WithoutRoom(frame))
	}
}

// run is the worker's goroutine. It ends with ctx, having freed the shard's memory.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	var saving sync.WaitGroup
	serving, stop := context.WithCancel(ctx)
	if err := w.serve(serving, &saving); err != nil && ctx.Err() == nil {
		w.result(err)
	}
	stop()
	saving.Wait()
	w.queue.close()
	w.gathered.came.close()
	if w.modules != nil {
		w.modules.Close()
	}
	w.stepLock.Lock()
	defer w.stepLock.Unlock()
	w.drop()
	if w.end != nil {
		w.end.Close()
		w.end = nil
	}
}

// serve makes the shard, and does what is not done by those who receive, until ctx ends or the shard fails.
func (w *worker) serve(ctx context.Context, saving *sync.WaitGroup) (err error) {
	if err := w.build(ctx); err != nil {
		return err
	}
	w.result(nil)
	if w.saver != nil {
		saving.Go(func() { w.saver.run(ctx) })
	}
	late := time.NewTimer(time.Hour)
	late.Stop()
	defer late.Stop()
	for {
		select {
		case <-w.queue.wake:
			if err := w.drain(ctx); err != nil {
				return err
			}
		case <-w.ackWake:
			late.Reset(acknowledgeEvery)
		case <-late.C:
			if w.acknowledgeLate() {
				late.Reset(acknowledgeEvery)
			}
		case <-w.left:
			if err := w.withoutGone(); err != nil {
				return err
			}
			if w.takeOver() {
				w.result(nil)
			}
		case <-w.ask:
			w.answerLoop()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tally counts what was done for one shard. It belongs to whoever holds the step lock; a copy is made for reports when
// the control loop asks.
type tally struct {
	frames, bytes, acks, lookups, pulls, repeats, rounds uint64

	step, publish, apply time.Duration
	applyBytes           uint64
	ready                bool
	version              schema.Version
	staged               int64
}

// answerLoop notes how the shard fares, for the control loop and for reports.
func (w *worker) answerLoop() {
	w.stepLock.Lock()
	waiting, told := w.end.Waiting(), w.tally
	told.ready, told.rounds, told.version, told.staged = true, w.end.Rounds(), w.end.Newest(), w.end.StagedBytes()
	told.apply, told.applyBytes = w.timed.spent, w.timed.bytes
	told.publish, told.acks = w.end.Publishing(), w.end.Acks()
	w.stepLock.Unlock()
	w.mu.Lock()
	w.waiting, w.told = waiting, told
	w.mu.Unlock()
}

// lose tells the shard whom no group is to wait for any more.
func (w *worker) lose(gone []schema.Member) {
	w.mu.Lock()
	w.gone = gone
	w.mu.Unlock()
	w.tellLeft()
}

func (w *worker) tellLeft() {
	nudge(w.left)
}

// rise tells the shard in which generations trainers have taken their places.
func (w *worker) rise(since []schema.Generation) {
	w.mu.Lock()
	w.since = since
	w.mu.Unlock()
	w.tellLeft()
}

// takeOver has the shard go by the generations that the coordinator said last, and notes how far it was. It reports
// whether there were any that it did not know.
func (w *worker) takeOver() bool {
	w.mu.Lock()
	since, before := w.since, w.taken.generation
	w.mu.Unlock()
	next := takenOver{generation: before}
	w.stepLock.Lock()
	for i, g := range since {
		if g > before && g > w.config.Generation {
			w.end.TakeOver(i, g)
			next.generation = max(next.generation, g)
		}
	}
	next.done = w.end.Done()
	w.stepLock.Unlock()
	if next.generation == before {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taken = next
	return true
}

// takenOver is how far the shard was when it began to go by the generations that it goes by.
func (w *worker) takenOver() takenOver {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.taken
}

// withoutGone closes what waited for those who are gone alone. A broken invariant ends the job, not the server.
func (w *worker) withoutGone() (err error) {
	w.mu.Lock()
	gone := w.gone
	w.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	w.stepLock.Lock()
	defer w.end.Flush()
	defer w.stepLock.Unlock()
	defer w.recovered(&err)
	w.end.Await(&w.stepLock, schema.KindDense, 0)
	taken, err := w.end.Gone(gone)
	w.put(&taken, nil)
	return err
}

// build makes the shard. A broken invariant ends the job, not the server.
func (w *worker) build(ctx context.Context) (err error) {
	defer w.recovered(&err)
	w.noteHeld()
	config := w.config
	config.Backend = w.timed // of the shard alone: modules compute at the same time
	if w.modules != nil {
		if err := w.modules.Build(ctx); err != nil {
			return err
		}
		config.Resumed = w.modulesResumed(config.Resumed)
	}
	made, err := endpoint.New(ctx, endpoint.Config{Shard: config, WindowBytes: w.window, Publish: w.publish,
		Ack: func(to schema.Member, frame []byte) {
			w.send(to, fabric.At(w.name, string(w.member), fabric.KindAck, string(to)), fabric.WithoutRoom(frame))
		}})
	if err != nil {
		return err
	}
	if w.reachable != nil {
		err = w.reachable(ctx)
	}
	if err != nil {
		made.Close()
		return err
	}
	w.stepLock.Lock()
	defer w.stepLock.Unlock()
	w.end = made
	if w.modules != nil {
		return w.modules.Open()
	}
	return nil
}

// recovered makes a panic an error. It is deferred.
func (w *worker) recovered(err *error) {
	if r := recover(); r != nil {
		w.log.Error("shard panicked", "panic", r, "stack", string(debug.Stack()))
		*err = fmt.Errorf("shard %s failed: internal error: %v", w.member, r)
	}
}

// Send implements outlet, for refusals to a trainer.
func (w *worker) Send(subject fabric.Subject, frame []byte) error {
	w.send(schema.Member(subject.To), subject, fabric.WithoutRoom(frame))
	return nil
}

// publish sends what the shard has put out.
func (w *worker) publish(o *shard.Output) {
	at := fabric.At(w.name, string(w.member), "", string(o.To))
	switch o.Kind {
	case schema.KindMean:
		at.Kind = fabric.KindMean
		at = at.WithBucket(uint64(o.Batch), uint32(o.Bucket))
	case schema.KindRows:
		at.Kind = fabric.KindRows
		at = at.WithBatch(uint64(o.Batch))
	case schema.KindPull:
		at.Kind = fabric.KindPull
	case schema.KindState:
		at.Kind = fabric.KindReplica
		at = at.WithBucket(uint64(o.Batch), uint32(o.Bucket))
	case schema.KindRefusal:
		at.Kind = fabric.KindCtl
		if o.Reason != schema.ReasonStaleBatch {
			w.server.logRefusal(w.name, string(o.To), o.Reason, o.Text)
		}
		if !w.limit.Allow() {
			return
		}
	}
	frame := fabric.WithoutRoom(o.Frame)
	if o.Built != nil {
		frame = fabric.NewPayload(o.Built.Room())
	}
	w.send(o.To, at, frame)
}

// refresh asks for a new answer from lately.
func (w *worker) refresh() {
	nudge(w.ask)
}

// lately is what the shard waited for when it last answered refresh.
func (w *worker) lately() shard.Waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}
