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
	"gradbus/shard/round"
)

// worker runs one shard of one job: who steps the pure state machine when, and what surrounds it: a queue,
// windows, subjects, the clock.
type worker struct {
	server *Server
	config shard.Config
	name   string // of the job, as in subjects
	member schema.Member
	log    *slog.Logger
	alone  bool // the job's only trainer is in this process
	queue  *queue
	watch  *watch
	ask    chan struct{} // capacity 1: requests a fresh waiting
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

	ackWake chan struct{} // capacity 1: acks are due soon
	// of the learning rates, as the coordinator said last; a step sees them before its frame
	lr      atomic.Pointer[[]schema.LRChange]
	changes *[]schema.LRChange // those that the shard knows

	// of checkpoints, as the coordinator said last; likewise. Then what the shard knows, and whether the saver was told of
	// the copy that is being taken
	checkpoints atomic.Pointer[schema.Checkpoints]
	wished      *schema.Checkpoints
	copying     bool
	mirror      atomic.Pointer[replicaSender] // nil: no ps has a replica of the shard
	begun       atomic.Uint64                 // the latest batch that the shard has begun: the control loop waits for no step
	mirrored    schema.Version                // that it was told of last
	saver       *saver                        // nil where nothing is written
	saving      atomic.Bool                   // a part is being written
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

// takenOver is the progress of a shard when it began to apply the generations of trainers' slots.
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
		member: schema.ShardMember(c.Index), log: log, alone: s.config.local != nil && c.Job.Trainers == 1,
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
		w.log.Error("group event not sent", "err", err) // a broken invariant, of which nothing depends
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

// tally counts the work for one shard. The holder of the step lock owns it; reports use a copy that is made when the
// control loop asks.
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

// takenOver returns the progress of the shard when it began to apply its current generations.
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
	w.begun.Store(uint64(made.Batch()))
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

// lately returns what the shard waited for when it last answered refresh.
func (w *worker) lately() shard.Waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}

// Which goroutine steps a shard: if no other one steps and nothing waits, the goroutine that has received a frame steps
// it, because its bytes are still in the cache from verification and no goroutine has to be woken. Otherwise the frame
// is queued: for the worker's goroutine, or, if it is a lookup or a pull, for the goroutine that steps, which looks for
// those after every step. Sparse contributions are queued, except small ones, because closing their round would delay
// the other jobs of the receiving goroutine. It has none where it is that of the job's only trainer, in this process.

// sparseHereBytes is the size up to which a sparse contribution is small: stepping it takes some ten microseconds,
// about as much as waking another goroutine.
const sparseHereBytes = 16 << 10

// deliver takes a verified frame; false says that it was dropped, its payload being released. Contributions must come
// from one goroutine a connection, in their order, which is kept.
func (w *worker) deliver(it *item) bool {
	h := it.view.Head()
	if h.Kind == schema.KindState {
		w.gathers(it)
		return true
	}
	it.came = time.Now()
	ask, here := isAsk(h.Kind), w.alone || len(it.view.Bytes()) <= sparseHereBytes
	if (ask || h.Kind == schema.KindDense || h.Kind == schema.KindSparse && here) && w.stepLock.TryLock() {
		free := w.end != nil && w.err == nil && (ask || w.nextItem == len(w.items) && w.queue.empty())
		if free && w.end.Ready(h.Kind, h.Batch) {
			w.stepHere(it)
			return true
		}
		w.stepLock.Unlock()
	}
	return w.queue.put(*it)
}

// stepHere steps a frame that nothing goes before, and publishes what comes of it. The step lock is held, and given
// back.
func (w *worker) stepHere(it *item) {
	e := w.end
	w.here = *it
	w.err = w.step(&w.here)
	w.here = item{}
	if w.err == nil {
		w.err = w.answer(false)
	}
	if w.err != nil {
		w.queue.signal() // the worker's goroutine finds it
	}
	w.stepLock.Unlock()
	e.Flush()
}

// drain steps what waits, and leaves what comes meanwhile to the next call, for which it has been signalled. Between
// steps it publishes, without the step lock. The error is why the shard has failed, or that ctx has ended.
func (w *worker) drain(ctx context.Context) error {
	w.stepLock.Lock()
	defer w.end.Flush()
	defer w.stepLock.Unlock()
	if w.err == nil {
		w.err = w.answer(true)
	}
	w.pause()
	if w.nextItem == len(w.items) {
		w.items, w.nextItem = w.queue.swap(w.items), 0
	}
	for w.nextItem < len(w.items) && w.err == nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		it := &w.items[w.nextItem]
		h := it.view.Head()
		if w.end.Await(&w.stepLock, h.Kind, h.Batch); w.err != nil {
			break
		}
		w.nextItem++
		if w.err = w.step(it); w.err == nil {
			w.err = w.answer(true)
		}
		w.pause()
	}
	return w.err
}

// pause releases the step lock for as long as something is to be published. Frames that come meanwhile are queued, but
// for lookups and pulls.
func (w *worker) pause() {
	if e := w.end; e != nil && e.Waits() {
		w.stepLock.Unlock()
		e.Flush()
		w.stepLock.Lock()
	}
}

// answer answers the lookups that were parked, and steps the lookups and pulls that wait. The step lock is held, but
// not while this publishes, or waits for who does. Who must not wait leaves to the worker's goroutine what is not
// ready.
func (w *worker) answer(wait bool) error {
	if err := w.answerParked(wait); err != nil {
		return err
	}
	for w.end != nil && w.err == nil {
		if w.nextAsk == len(w.asks) {
			if w.queue.ask.Load() == 0 {
				return nil
			}
			w.asks, w.nextAsk = w.queue.swapAsks(w.asks), 0
		}
		it := &w.asks[w.nextAsk]
		if h := it.view.Head(); !w.end.Ready(h.Kind, h.Batch) {
			if !wait {
				w.queue.signal()
				return nil
			}
			w.end.Await(&w.stepLock, h.Kind, h.Batch) // another goroutine may step the frame meanwhile
			continue
		}
		w.nextAsk++
		if err := w.step(it); err != nil {
			return err
		}
	}
	return w.err
}

// drop releases what was taken from the queue and will not be stepped. The step lock is held.
func (w *worker) drop() {
	for _, it := range w.items[w.nextItem:] {
		round.Release(it.payload)
	}
	for _, it := range w.asks[w.nextAsk:] {
		round.Release(it.payload)
	}
	w.items, w.nextItem, w.asks, w.nextAsk = nil, 0, nil, 0
}

// step takes one frame, and notes what became of it. What the shard puts out waits to be published. A broken invariant
// ends the job, not the server. The step lock is held, and Ready was called.
func (w *worker) step(it *item) (err error) {
	defer w.recovered(&err)
	h, began := it.view.Head(), time.Now()
	if changes := w.lr.Load(); changes != w.changes {
		w.changes = changes
		w.end.SetLR(*changes)
	}
	if wish := w.checkpoints.Load(); wish != w.wished {
		w.wished = wish
		w.end.CopyAt(copyRequest(wish))
	}
	before := w.watch.begin()
	taken, err := w.end.Step(it.from, &it.view, it.payload)
	if err != nil {
		return err
	}
	if _, copies := w.end.Copying(); copies && !w.copying {
		w.copying = true
		w.saver.tell()
	}
	if m := w.mirror.Load(); m != nil {
		m.copies(w.end.Shard, &w.mirrored)
	}
	if taken.Dropped {
		w.server.counters.dropped.Add(1)
	} else {
		w.server.counters.count(taken.Reason)
	}
	if taken.Repeat {
		w.tally.repeats++
	} else if !taken.Dropped {
		w.tally.stepped(&h, taken.Reason, len(it.view.Bytes()), began)
	}
	var over []RoundTimes
	if taken.Reason == schema.ReasonOK && !taken.Dropped && !isAsk(h.Kind) {
		contributor := w.end.Contributor(it.from)
		if whose, ok := w.end.Answers(contributor); ok {
			over = w.watch.stepped(it, contributor, whose, before, taken.Outputs)
		}
	}
	w.put(&taken, over)
	return nil
}

// put leaves what became of a step to be published, and what is not acknowledged to the worker's goroutine. over are
// the rounds that are over once all is published.
func (w *worker) put(taken *endpoint.Taken, over []RoundTimes) {
	var then func()
	if over != nil {
		then = func() { w.watch.published(over) }
	}
	w.begun.Store(uint64(w.end.Batch()))
	w.end.Put(taken.Outputs, then)
	if taken.Pending && !w.ackPending {
		w.ackPending = true
		nudge(w.ackWake)
	}
}

// answerParked answers the lookups that have waited for what was stepped, one after the other, since their answers
// share a frame. For the step lock and for wait see answer.
func (w *worker) answerParked(wait bool) (err error) {
	defer w.recovered(&err)
	for w.err == nil && w.end != nil && w.end.Due() {
		if !w.end.Ready(schema.KindLookup, 0) {
			if !wait {
				w.queue.signal()
				return nil
			}
			w.end.Await(&w.stepLock, schema.KindLookup, 0) // another goroutine may answer meanwhile
			continue
		}
		outputs, err := w.end.Answer()
		if err != nil {
			return err
		}
		var over []RoundTimes
		if whose, ok := w.end.Answers(w.end.Contributor(outputs[0].To)); ok {
			over = w.watch.answered(&outputs[0], whose)
		}
		w.put(&endpoint.Taken{Outputs: outputs}, over)
	}
	return w.err
}

// acknowledgeLate sends the acks that have waited long enough. It reports whether any remain.
func (w *worker) acknowledgeLate() bool {
	w.stepLock.Lock()
	defer w.stepLock.Unlock()
	w.ackPending = w.end.Tick()
	return w.ackPending
}

// queueItemsMax bounds what waits for one shard of one job, as queue.bytesMax does. Beyond them frames are dropped, not
// refused: trainers send again what was neither acknowledged nor answered.
const queueItemsMax = 1 << 14

// item is a verified frame, who sent it and the memory that it lies in.
type item struct {
	from    schema.Member
	view    schema.View
	payload shard.Payload
	came    time.Time // when it arrived
}

// queue holds frames that their receiving goroutine could not step. The reader takes all of them at once, so that one
// wake-up and one ack serve many frames. Lookups and pulls, for which trainers wait, are kept apart and go first: they
// may overtake contributions, which arrive on another connection anyway.
type queue struct {
	wake     chan struct{} // has room for one: something was put in, or close was called
	ask      atomic.Int32  // len(asks), to be read without the lock
	bytesMax int           // of frames that wait: the windows of all trainers, twice, since frames may be repeated

	mu     sync.Mutex
	items  []item // contributions, in their order
	asks   []item // lookups and pulls, in theirs
	bytes  int
	closed bool
}

// isAsk reports whether a trainer waits for the answer to a frame of the kind.
func isAsk(k schema.Kind) bool { return k == schema.KindLookup || k == schema.KindPull }

func newQueue(bytesMax int) *queue { return &queue{wake: make(chan struct{}, 1), bytesMax: bytesMax} }

// put appends a frame; false says that it was dropped, its payload being released.
func (q *queue) put(it item) bool {
	bytes := len(it.view.Bytes())
	q.mu.Lock()
	ok := !q.closed && len(q.items)+len(q.asks) < queueItemsMax && q.bytes+bytes <= q.bytesMax
	switch {
	case !ok:
	case isAsk(it.view.Head().Kind):
		q.asks = append(q.asks, it)
		q.ask.Store(int32(len(q.asks)))
		q.bytes += bytes
	default:
		q.items = append(q.items, it)
		q.bytes += bytes
	}
	q.mu.Unlock()
	if !ok {
		round.Release(it.payload)
		return false
	}
	q.signal()
	return true
}

func (q *queue) signal() {
	nudge(q.wake)
}

// swap gives the contributions that have come in since the last call, and takes room that the reader is done with for
// what comes next. The payloads of what it gives are the reader's to release.
func (q *queue) swap(done []item) []item {
	clear(done) // views and payloads are forgotten
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = done[:0]
	q.taken(items)
	return items
}

// swapAsks is swap for lookups and pulls.
func (q *queue) swapAsks(done []item) []item {
	clear(done)
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.asks
	q.asks = done[:0]
	q.ask.Store(0)
	q.taken(items)
	return items
}

func (q *queue) taken(items []item) {
	for i := range items {
		q.bytes -= len(items[i].view.Bytes())
	}
}

// empty reports whether no contribution waits.
func (q *queue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) == 0 && !q.closed
}

// load returns the number of waiting frames and their bytes.
func (q *queue) load() (frames int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items) + len(q.asks), int64(q.bytes)
}

// close makes every later put fail, and releases the waiting frames.
func (q *queue) close() {
	q.mu.Lock()
	items := append(q.items, q.asks...)
	q.closed, q.items, q.asks, q.bytes = true, nil, nil, 0
	q.mu.Unlock()
	release(items)
}

func release(items []item) {
	for i := range items {
		round.Release(items[i].payload)
	}
}

// nudge makes the reader of c look once more. It never blocks: a reader that has yet to look finds what is new as well.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
