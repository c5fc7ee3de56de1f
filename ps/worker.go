package ps

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// worker runs one shard of one job: who steps the pure state machine when (turn.go), and what surrounds it: a queue, windows,
// subjects, the clock.
type worker struct {
	server *Server
	config ShardConfig
	name   string // of the job, as in subjects
	member schema.Member
	log    *slog.Logger
	queue  *queue
	watch  *watch
	ask    chan struct{} // has room for one: somebody wants a fresh waiting
	left   chan struct{} // has room for one: gone has changed
	done   chan struct{}

	modules     *modules // that the shard hosts; nil where the job has none
	moduleLimit fabric.Limiter

	turn  sync.Mutex // held by the goroutine that steps; guards what follows. Lock order: turn, then queue.mu
	shard *Shard     // nil before it is ready, and after its end
	err   error      // why it has failed
	peers []peer     // by host
	limit fabric.Limiter
	here  item   // the frame that is stepped where it was received
	items []item // contributions that were taken from the queue
	asks  []item // lookups and pulls that were
	owing bool   // owed has been told since the last time that everything was acknowledged
	tally tally  // what was done so far
	timed *timedBackend

	owed    chan struct{}                     // has room for one: somebody is to be acknowledged soon
	lr      atomic.Pointer[[]schema.LRChange] // of the learning rates, as the coordinator said last; a step sees them before its frame
	changes *[]schema.LRChange                // those that the shard knows

	send   func(to schema.Member, subject fabric.Subject, frame []byte)
	result func(error) // told once that the shard is ready (nil), and once that it failed

	mu      sync.Mutex
	waiting Waiting
	told    tally
	gone    []schema.Member // of a grouped job, as the coordinator said last
}

// peer is the receiving side of one trainer's window.
type peer struct {
	inbox   *fabric.Inbox
	ack     *schema.Frame
	subject fabric.Subject
	frames  int          // that came since the last ack
	bytes   int          // of these
	now     bool         // an ack is due at once: something is missing, or came again
	batch   schema.Batch // of the latest frame
	unsaid  int          // bytes given back that no ack has carried yet
}

// An ack costs some 15 us of processor time over all processes, so it stands for several frames: as many as a sender with a window of
// 1 MiB need not wait for, and as many as it may have under way, which is 256, do not run out by. A sender that pauses hears after a
// moment. What is missing, or came again, is said at once.
const (
	acknowledgeBytes  = 256 << 10
	acknowledgeFrames = 32
	acknowledgeAfter  = fabric.AckDelayMax / 3
)

func newWorker(s *Server, c ShardConfig, window int64, log *slog.Logger, send func(schema.Member, fabric.Subject, []byte), result func(error)) (*worker, error) {
	w := &worker{
		timed:  &timedBackend{Backend: c.Backend},
		watch:  newWatch(&c, s.rounds),
		server: s, config: c, name: string(c.Job.Name), member: schema.ShardMember(c.Index), log: log,
		queue: newQueue(int(queueBytes(len(c.Hosts), window))), ask: make(chan struct{}, 1), left: make(chan struct{}, 1), owed: make(chan struct{}, 1), done: make(chan struct{}),
		limit: fabric.Limiter{PerSecond: refusalsPerSecond}, moduleLimit: fabric.Limiter{PerSecond: refusalsPerSecond}, send: send, result: result,
	}
	if len(c.Job.Modules) > 0 {
		w.modules = newModules(w, result)
	}
	w.watchGroups()
	share := uint64(c.StagedBytesMax) / uint64(len(c.Hosts))
	for _, h := range c.Hosts {
		ack, err := schema.NewFrame(schema.Layout{Kind: schema.KindAck})
		if err != nil {
			return nil, fmt.Errorf("build ack: %w", err)
		}
		w.peers = append(w.peers, peer{
			inbox: fabric.NewInbox(share), ack: ack,
			subject: fabric.At(w.name, string(w.member), fabric.KindAck, string(h.Member)),
		})
	}
	return w, nil
}

// What the log says, at level debug, of a grouped job: that a request was taken (member, batch, update, parked, group), and
// that an update was made (update).
const (
	LogParked  = "request parked"
	LogUpdated = "update made"
)

// watchGroups logs groups where the log wants to know.
func (w *worker) watchGroups() {
	if !w.log.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	w.config.OnGroup = func(e GroupEvent) {
		if e.Closed {
			w.log.Debug(LogUpdated, "update", uint64(e.Group))
			return
		}
		w.log.Debug(LogParked, "update", uint64(e.Group), "member", e.Member, "batch", uint64(e.Batch), "parked", e.Parked, "group", e.Size)
	}
}

// run is the worker's goroutine. It ends with ctx, having freed the shard's memory.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	if err := w.serve(ctx); err != nil && ctx.Err() == nil {
		w.result(err)
	}
	w.queue.close()
	if w.modules != nil {
		w.modules.close()
	}
	w.turn.Lock()
	defer w.turn.Unlock()
	if w.shard != nil {
		w.shard.Close()
		w.shard = nil
	}
}

// serve makes the shard, and does what is not done by those who receive, until ctx ends or the shard fails.
func (w *worker) serve(ctx context.Context) (err error) {
	if err := w.build(ctx); err != nil {
		return err
	}
	w.result(nil)
	late := time.NewTimer(time.Hour)
	late.Stop()
	defer late.Stop()
	for {
		select {
		case <-w.queue.wake:
			if err := w.drain(ctx); err != nil {
				return err
			}
		case <-w.owed:
			late.Reset(acknowledgeAfter)
		case <-late.C:
			w.acknowledgeAll()
		case <-w.left:
			if err := w.withoutGone(); err != nil {
				return err
			}
		case <-w.ask:
			w.answerDesk()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tally counts what was done for one shard. It belongs to whoever has the turn; a copy is made for pulses when the desk asks.
type tally struct {
	frames, bytes, acks, lookups, pulls, repeats, rounds uint64

	step, publish, apply time.Duration
	applyBytes           uint64
	ready                bool
	version              schema.Version
	staged               int64
}

// answerDesk notes how the shard fares, for the desk and for pulses.
func (w *worker) answerDesk() {
	w.turn.Lock()
	waiting, told := w.shard.Waiting(), w.tally
	told.ready, told.rounds, told.version, told.staged = true, w.shard.rounds, w.shard.newest, w.shard.StagedBytes()
	told.apply, told.applyBytes = w.timed.spent, w.timed.bytes
	w.turn.Unlock()
	w.mu.Lock()
	w.waiting, w.told = waiting, told
	w.mu.Unlock()
}

// lose tells the shard whom no group is to wait for any more.
func (w *worker) lose(gone []schema.Member) {
	w.mu.Lock()
	w.gone = gone
	w.mu.Unlock()
	select {
	case w.left <- struct{}{}:
	default: // it has yet to look
	}
}

// withoutGone closes what waited for those who are gone alone. A broken invariant ends the job, not the server.
func (w *worker) withoutGone() (err error) {
	w.mu.Lock()
	gone := w.gone
	w.mu.Unlock()
	w.turn.Lock()
	defer w.turn.Unlock()
	defer w.recovered(&err)
	outputs, err := w.shard.Gone(gone)
	if err != nil {
		return err
	}
	for i := range outputs {
		w.publish(&outputs[i])
	}
	if len(outputs) > 0 {
		w.settle("", true)
	}
	return nil
}

// build makes the shard. A broken invariant ends the job, not the server.
func (w *worker) build(ctx context.Context) (err error) {
	defer w.recovered(&err)
	config := w.config
	config.Backend = w.timed // of the shard alone: modules compute at the same time
	made, err := NewShard(ctx, config)
	if err != nil {
		return err
	}
	w.turn.Lock()
	defer w.turn.Unlock()
	w.shard = made
	if w.modules != nil {
		return w.modules.build(ctx)
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

// accept passes a sequenced frame through its sender's window. A sender or run that is not known is left to the shard,
// which refuses it.
func (w *worker) accept(from schema.Member, h *schema.Head, bytes int) bool {
	host := w.hostOf(from)
	if host < 0 || h.Job != w.config.RunID || h.Generation != w.config.Generation {
		return true
	}
	if h.Sequence == 0 {
		subject := fabric.At(w.name, string(from), "", "")
		w.server.refuse(w, w.config.Index, &subject, *h, schema.Refuse(schema.ReasonMalformed, "%v frame without a sequence number", h.Kind))
		return false
	}
	p := &w.peers[host]
	w.knows(p, h)
	p.frames, p.bytes = p.frames+1, p.bytes+bytes
	fresh, ok := p.inbox.AcceptBytes(uint64(h.Sequence), bytes)
	p.now = p.now || !fresh || p.inbox.Ack().Cumulative < uint64(h.Sequence)
	switch {
	case fresh:
		return true
	case ok:
		w.tally.repeats++
		w.server.counters.count(schema.ReasonDuplicate)
	default:
		w.outside(host, h, bytes)
	}
	return false
}

// knows forgets what a trainer was to be told that it knows: in sync who begins a batch has all results of the one before, which
// say more than acks.
func (w *worker) knows(p *peer, h *schema.Head) {
	if h.Batch <= p.batch {
		return
	}
	p.batch = h.Batch
	if w.config.Placement.Plan.DeferredCommit() && !p.now {
		p.frames, p.bytes = 0, 0
	}
}

// answered notes that a lookup was answered: where rows are applied alone the answer says what has come in, as an ack would.
func (w *worker) answered(from schema.Member, b schema.Batch) {
	if !w.config.Placement.Plan.AsyncTables {
		return
	}
	host := w.hostOf(from) // one of them: the shard has taken the lookup
	if p, rows := &w.peers[host], w.shard.line(host).sparse; !p.now && rows != nil && rows.Closed() >= b {
		p.frames, p.bytes = 0, 0
	}
}

// outside takes what its sender's window has no room for. It is dropped and will come again; but what will not fit then
// either is refused, so that the sender does not wait for ever.
func (w *worker) outside(host int, h *schema.Head, bytes int) {
	refused := w.shard.checkShare(host, h, int64(bytes))
	if refused == nil {
		w.server.counters.dropped.Add(1)
		return
	}
	subject := fabric.At(w.name, string(w.config.Hosts[host].Member), "", "")
	w.server.refuse(w, w.config.Index, &subject, *h, refused)
}

func (w *worker) hostOf(from schema.Member) int {
	for i := range w.config.Hosts {
		if w.config.Hosts[i].Member == from {
			return i
		}
	}
	return -1
}

// acknowledge tells a trainer what has come in, and what of it is no longer held, where that is worth a message or all is to be
// said. It reports whether something is left to be said. The turn is held.
func (w *worker) acknowledge(host int, all bool) (owing bool) {
	p := &w.peers[host]
	if back := int(p.inbox.HeldBytes()) - int(w.shard.HeldBytes(host)); back > 0 {
		p.inbox.Free(back)
		p.unsaid += back
	}
	worth := p.now || p.bytes >= acknowledgeBytes || p.frames >= acknowledgeFrames || p.unsaid >= fabric.WindowBytesDefault/4
	if !worth && (p.frames == 0 || !all) {
		return p.frames > 0
	}
	p.frames, p.bytes, p.now, p.unsaid = 0, 0, false, 0
	w.tally.acks++
	p.ack.SetHead(schema.Head{
		Job: w.config.RunID, Generation: w.config.Generation, Batch: w.shard.Batch(), Lanes: uint16(w.config.Job.Lanes),
	})
	p.ack.SetAck(schema.Ack(p.inbox.Ack()))
	w.send(w.config.Hosts[host].Member, p.subject, p.ack.Seal())
	return false
}

// Send implements outlet, for refusals to a trainer.
func (w *worker) Send(subject fabric.Subject, frame []byte) error {
	w.send(schema.Member(subject.To), subject, frame)
	return nil
}

// publish sends what the shard has put out.
func (w *worker) publish(o *Output) {
	at := fabric.At(w.name, string(w.member), "", string(o.To))
	switch o.Kind {
	case schema.KindMean:
		at.Kind = fabric.KindMean
		at = at.WithBucket(uint64(o.Batch), uint32(o.Bucket))
	case schema.KindRows:
		at.Kind = fabric.KindRows
		at = at.WithBatch(uint64(o.Batch))
	case schema.KindRefusal:
		at.Kind = fabric.KindCtl
		if o.Reason != schema.ReasonStaleBatch {
			w.server.logRefusal(w.name, string(o.To), o.Reason, o.Text)
		}
		if !w.limit.Allow(time.Now()) {
			return
		}
	}
	w.send(o.To, at, o.Frame)
}

// refresh asks for a new answer from lately.
func (w *worker) refresh() {
	select {
	case w.ask <- struct{}{}:
	default:
	}
}

// lately is what the shard waited for when it last answered refresh.
func (w *worker) lately() Waiting {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting
}
