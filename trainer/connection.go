package trainer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/internal/liveness"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// connection is the part of a membership that exists before any computation: the trainer's name and slot, its
// connections to the coordinator, the shards and other trainers, and how long each has been silent. Err, trainingErr,
// Member, Job and the like are safe for concurrent use.
type connection struct {
	config Config
	job    *schema.Job
	joined schema.Joined
	place  *schema.Placement

	control *fabric.Control // to the coordinator
	servers []*dataServer   // of the shards, and of other trainers if those reduce among themselves
	peer    *peerServer     // this trainer's data server in such a job; else nil
	links   []*shardLink
	owners  map[string]int // index in links by member name

	// ctx ends with the membership. Its cause is the error of every later call.
	ctx  context.Context
	fail context.CancelCauseFunc
	// trainable ends with ctx, or earlier if the session can only be read from then on. Its cause is the error of every
	// later call that trains.
	trainable context.Context

	training     atomic.Bool            // a run of batches is under way
	complete     atomic.Bool            // the last run of batches succeeded, and no other has begun
	heartbeatDue atomic.Bool            // a heartbeat is due at once
	clock        sync.WaitGroup         // the goroutines of keepTime and of links
	replica      atomic.Pointer[string] // URL of the ps where the job continues if its ps is lost; nil: no replica
	asking       atomic.Bool            // the replica's ps is being asked
	ending       sync.Mutex             // guards the end of ctx by close, after which no goroutine starts. A leaf
	controls     chan schema.Control
	leaveNow     chan struct{} // capacity 1: the coordinator no longer asks this trainer to wait
	batch        atomic.Uint64 // batch under way; also the complete version here
	planned      atomic.Uint64 // batch before which the run of batches ends; 0 between runs
	durable      atomic.Uint64 // newest durable version known here; 0: none
	faults       atomic.Uint64 // number of frames that failed verification
	watch        watch
	epoch        time.Time // start of the connection's clock
	retry        *time.Timer
	// handsOver is set if other trainers may compute its lanes after it leaves: it was interrupted, and has not failed
	handsOver bool
	stopped   bool // the program was told to stop, and joins no further run
	// forgotten is set when the coordinator does not know this run, since its ps was restarted.
	forgotten   atomic.Bool
	reconnected func() // called when a lost server of shards is reachable again

	connMu sync.Mutex // guards conn of servers: reports are sent while peers are being dialed. A leaf
}

// newConnection returns the connection of a trainer that was admitted. It dials nothing.
func newConnection(config Config, job *schema.Job, joined schema.Joined) (*connection, error) {
	c := &connection{config: config, job: job, joined: joined, place: schema.NewPlacement(job, joined.Shards),
		owners: map[string]int{}, controls: make(chan schema.Control, 8), leaveNow: make(chan struct{}, 1),
		epoch: time.Now(), retry: time.NewTimer(time.Hour)}
	c.setReplica(joined.Replica)
	c.setFail()
	c.retry.Stop()
	return c, c.findServers()
}

// Member is Session.Member in this run.
func (c *connection) Member() schema.Member { return c.joined.Member }

// Job is Session.Job in this run.
func (c *connection) Job() *schema.Job { return c.job }

// Backend returns the backend of the session's arithmetic, for workloads. The session closes it if the Config had none.
func (c *connection) Backend() cuda.Backend { return c.config.Backend }

// RunID is Session.RunID in this run.
func (c *connection) RunID() schema.RunID { return c.joined.RunID }

// Shards is Session.Shards in this run.
func (c *connection) Shards() int { return c.joined.Shards }

// Lanes is Session.Lanes in this run.
func (c *connection) Lanes() (first lane.Lane, count int) {
	return c.joined.FirstLane, c.joined.LaneCount
}

// Version is Session.Version in this run.
func (c *connection) Version() schema.Version { return c.job.Counted(c.newest()) }

// newest returns the newest complete version, as frames number it.
func (c *connection) newest() schema.Version { return schema.Version(c.batch.Load()) }

// Err returns nil while the membership lasts, and then its final error.
func (c *connection) Err() error {
	if c.ctx.Err() == nil {
		return nil
	}
	return context.Cause(c.ctx)
}

// trainingErr returns nil while the membership can train, and then the reason why it cannot: see Session.Err.
func (c *connection) trainingErr() error {
	if c.trainable.Err() == nil {
		return nil
	}
	return context.Cause(c.trainable)
}

// head returns the common fields of all frames of a batch.
func (c *connection) head(b schema.Batch) schema.Head {
	return schema.Head{Job: c.joined.RunID, Generation: c.joined.Generation, Batch: b, Lanes: uint16(c.job.Lanes)}
}

// signHead returns the head of a heartbeat or control message.
func (c *connection) signHead() schema.Head {
	h := c.head(c.newest())
	if c.complete.Load() {
		h.Flags = schema.FlagComplete
	}
	return h
}

func (c *connection) subject(kind string, to schema.Member) fabric.Subject {
	return fabric.At(string(c.job.Name), string(c.joined.Member), kind, string(to))
}

// running returns a context that ends with ctx or when the session can train no more, with the cause of the first.
func (c *connection) running(ctx context.Context) (context.Context, func()) {
	return endingWith(ctx, c.trainable)
}

// readable returns a context that ends with ctx or with the session, with the cause of the first.
func (c *connection) readable(ctx context.Context) (context.Context, func()) {
	return endingWith(ctx, c.ctx)
}

func endingWith(ctx, other context.Context) (context.Context, func()) {
	both, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return both, func() {
		stop()
		cancel(nil)
	}
}

// since returns the time since the connection was made, on the monotonic clock.
func (c *connection) since() time.Duration { return time.Since(c.epoch) }

// dataServer is a server through which this trainer reaches shards of the job, or another trainer.
type dataServer struct {
	id      string        // ps id; empty if the control server leads to all shards
	peer    schema.Member // trainer that runs it, if trainers reduce among themselves; else empty
	url     string
	control bool // it is the control server, at the address that this trainer knows
	conn    *fabric.Conn
	lost    liveness.Silence // time since the connection was lost; guarded by watch.mu
}

// name returns the name of the server for messages.
func (d *dataServer) name() string {
	at := fabric.WithoutUser(d.url)
	switch {
	case d.peer != "":
		return "trainer " + string(d.peer) + " at " + at
	case d.id != "":
		return "ps " + d.id + " at " + at
	}
	return at
}

// lostError returns the session's error for the loss of the server.
func (d *dataServer) lostError() error {
	if d.peer != "" {
		return errPeerLost
	}
	return ErrServerLost
}

// conns returns the data connections that have been made.
func (c *connection) conns() (all []*fabric.Conn) {
	c.connMu.Lock()
	defer c.connMu.Unlock()
	for _, d := range c.servers {
		if d.conn != nil {
			all = append(all, d.conn)
		}
	}
	if c.peer != nil {
		all = append(all, c.peer.conn)
	}
	return all
}

// findServers makes the links to all owners, and their servers. It dials nothing.
func (c *connection) findServers() error {
	at, err := schema.ServerOfShard(c.joined.Servers, c.joined.Shards)
	if err != nil {
		return fmt.Errorf("the coordinator's answer: %w", err)
	}
	if at == nil && c.joined.Shards > 0 {
		c.servers = []*dataServer{{url: c.config.Server, control: true}}
	}
	for _, d := range c.joined.Servers {
		if d.URL == "" {
			c.servers = append(c.servers, &dataServer{id: d.ID, url: c.config.Server, control: true})
		} else {
			c.servers = append(c.servers, &dataServer{id: d.ID, url: d.URL})
		}
	}
	for i := range c.place.Owners() {
		l := &shardLink{member: c.place.Owner(i), marks: make([]uint64, c.job.Ahead+1), ctx: c.ctx, fail: c.fail,
			run: c.clock.Go, moved: make(chan struct{}, 1)}
		switch {
		case i >= c.joined.Shards:
			if l.reduce = true; l.member != c.joined.Member {
				l.server = &dataServer{peer: l.member} // the start has its address
				c.servers = append(c.servers, l.server)
			}
		case at != nil:
			l.server = c.servers[at[i]]
		default:
			l.server = c.servers[0]
		}
		if l.server != nil {
			granted := c.granted(l.reduce)
			window := granted
			if limit := c.config.WindowBytes; limit != 0 && limit < granted {
				window, l.flags = limit, schema.FlagNarrow
			}
			l.outbox = fabric.NewOutbox(fabric.OutboxConfig{Envelope: schema.Envelope{}, Publish: l.contribute,
				Lend: c.lend(l), BytesMax: window})
		}
		c.owners[string(l.member)] = i
		c.links = append(c.links, l)
	}
	return nil
}

// granted returns the bytes that may be in flight to an owner: the initial credit. Trainers grant the default.
func (c *connection) granted(reduce bool) int {
	if granted := int(min(c.joined.WindowBytes, windowBytesMax)); granted > 0 && !reduce {
		return granted
	}
	return fabric.WindowBytesDefault
}

// lend returns the function for the first transmission of contributions. It lends frames if none is refilled before its
// batch is complete. nil: frames are sent as usual.
func (c *connection) lend(l *shardLink) func(fabric.Subject, fabric.Payload) error {
	if c.config.Bus == nil || !c.place.Plan.Clock.Common() {
		return nil
	}
	return func(subject fabric.Subject, frame fabric.Payload) error {
		return notLost(l.server.conn.Lend(subject, frame.Data()))
	}
}

// contribute sends a frame of gradients; the window retransmits it. See publish.
func (l *shardLink) contribute(subject fabric.Subject, frame fabric.Payload) error {
	return notLost(l.server.conn.SendInPlace(subject, frame))
}

// publish sends a frame that will be retransmitted while unanswered. A lost server is no error here: keepTime handles
// it.
func (l *shardLink) publish(subject fabric.Subject, frame []byte) error {
	return publish(l.server.conn, subject, frame)
}

// outlet is a connection that sends frames.
type outlet interface {
	Send(subject fabric.Subject, data []byte) error
}

func publish(conn outlet, subject fabric.Subject, frame []byte) error {
	return notLost(conn.Send(subject, frame))
}

// notLost returns err, but nil for a lost server, which keepTime handles.
func notLost(err error) error {
	if errors.Is(err, fabric.ErrLost) {
		return nil
	}
	return err
}

// dialConfig returns the configuration for dialing Server.
func (c *Config) dialConfig() fabric.Config {
	return fabric.Config{URL: c.Server, Bus: c.Bus, Token: c.Token, Key: c.Key, CredsFile: c.CredsFile, TLS: c.TLS, Log: c.Log}
}

// dialConfig returns the configuration for dialing Server under the trainer's name.
func (c *connection) dialConfig(onState func(fabric.State)) fabric.Config {
	to := c.config.dialConfig()
	to.Direct, to.Name, to.OnState = true, string(c.job.Name)+"/"+string(c.joined.Member), onState
	return to
}

// connectData dials a server, subscribes there, and returns the round-trip time. It fails if the server would not
// accept the largest message of the job, so that this is not found out within a batch.
func (c *connection) connectData(ctx context.Context, d *dataServer,
	receive func(fabric.Message)) (trip time.Duration, err error) {
	config := c.dialConfig(func(state fabric.State) { c.dataChanged(d, state) })
	if !d.control {
		config.URL, config.CredsFile = d.url, ""
		if d.peer != "" {
			config.Key = nil // a trainer could show the signature to a ps as its own
		}
		if !strings.HasPrefix(d.url, "tls:") {
			if config.TLS != nil {
				config.Log.Warn("gradients to this server go without TLS: start it with --tls-cert and --tls-key", "url", d.url)
			}
			config.TLS = nil
		}
	}
	config.Log = c.logOf(d)
	conn, err := fabric.Dial(ctx, config)
	if err != nil {
		switch {
		case d.control || ctx.Err() != nil:
			return 0, err
		case d.peer != "":
			return 0, fmt.Errorf("%w: %s announces its data server at %s, where this one does not reach it: %w; it has to "+
				"listen and advertise where that leads to it from here (--data-host, --advertise), with a token (--token-file)",
				errPeerLost, d.peer, d.url, err)
		}
		return 0, fmt.Errorf("ps %s announces itself at %s, where this trainer does not reach it: %w; if it has died a moment "+
			"ago, join again; else it has to advertise an address that leads to it from here (--advertise), or this trainer to "+
			"go by the cluster (--route %s)",
			d.id, d.url, err, schema.DataCluster)
	}
	c.connMu.Lock()
	d.conn = conn
	c.connMu.Unlock()
	if err := c.checkPayload(d.name(), d.conn.PayloadBytesMax()); err != nil {
		return 0, err
	}
	at := func(to schema.Member, keyed bool) string {
		return fabric.Pattern(string(c.job.Name), fabric.Any, fabric.Any, string(to), keyed)
	}
	trip = time.Hour
	for _, pattern := range []string{at(c.joined.Member, false), at(c.joined.Member, true), at(schema.All, true)} {
		began := time.Now()
		if err := d.conn.Subscribe(pattern, receive); err != nil {
			if d.peer != "" && errors.Is(err, fabric.ErrLost) { // its run is over, or it has died
				err = fmt.Errorf("%w: %s: %w", d.lostError(), d.name(), err)
			}
			return 0, err
		}
		trip = min(trip, time.Since(began))
	}
	return trip, nil
}

// errUnknownMember reports a ps that gives this trainer the limits of an unknown client: its run has ended there, or
// the ps was restarted.
var errUnknownMember = errors.New("trainer not known at the data server")

// checkPayload returns an error if a server does not accept messages as large as this job's. A ps accepts them from
// members, since the registration checked the size; a NATS server between trainers and ps may not.
func (c *connection) checkPayload(server string, bytesMax int) error {
	need := c.job.MessageBytesMax()
	switch {
	case need <= bytesMax:
		return nil
	case c.config.Route != schema.DataCluster:
		return fmt.Errorf("%w: %s takes %d bytes of %s of job %s, which sends up to %d", errUnknownMember, server, bytesMax,
			c.joined.Member, c.job.Name, need)
	}
	return fmt.Errorf("%w: %s takes messages of at most %d bytes, and those of job %s, with chunks of %d, have up to "+
		"%d: set max_payload there to at least that, or use smaller chunks",
		fabric.ErrPayload, server, bytesMax, c.job.Name, c.job.ChunkBytes, need)
}

// sendPull requests one result. The answer may arrive before sendPull returns, and lead to more pulls.
func (c *connection) sendPull(p exchange.Pull) error {
	h := c.head(p.Batch)
	h.Bucket, h.Chunk, h.Chunks = p.Bucket, p.Chunk, p.Chunk+1
	return c.pull(p.Owner, h)
}

// pull sends a pull frame.
func (c *connection) pull(owner int, h schema.Head) error {
	link := c.links[owner]
	f, err := schema.NewFrame(schema.Layout{Kind: schema.KindPull})
	if err != nil {
		return err
	}
	f.SetHead(h)
	return link.publish(c.subject(fabric.KindPull, link.member), f.Seal())
}

// sendControl sends a message to the coordinator. A caller that needs an answer repeats it.
func (c *connection) sendControl(message schema.Control) error {
	frame, err := schema.EncodeControl(c.signHead(), message)
	if err != nil {
		return err
	}
	if err := c.control.Publish(c.subject(fabric.KindCtl, schema.Coordinator).String(), frame); err != nil &&
		c.Err() == nil {
		c.config.Log.Debug("control message not sent", "job", c.job.Name, "message", message.Name(), "err", err)
	}
	return nil
}

// ask sends a message to the coordinator, and returns at the next news, or when the message should be repeated.
func (c *connection) ask(ctx context.Context, message schema.Control, news <-chan struct{}) error {
	if err := c.sendControl(message); err != nil {
		return err
	}
	c.retry.Reset(c.config.RetryAfter)
	defer c.retry.Stop()
	select {
	case <-news:
	case <-c.retry.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// open verifies a message and returns its frame and subject. ok is false for an invalid frame, or one of another run of
// the job's name.
func (c *connection) open(m *fabric.Message) (v schema.View, subject fabric.Subject, ok bool) {
	v, err := schema.Verify(m.Data, schema.Limits{})
	if err != nil {
		c.faults.Add(1)
		c.config.Log.Warn("frame dropped", "subject", m.Text(), "err", err)
		return v, subject, false
	}
	subject, err = m.Parse()
	return v, subject, err == nil && v.Head().Job == c.joined.RunID // else it belongs to an earlier run of the same name
}

// newRouting returns the routing of keys to the owners of their rows. Rows of quiet tables are not requested.
func (c *connection) newRouting(dims []int, quiet []bool) *routing {
	routing := newRouting(dims, len(c.links), c.job.ChunkBytes/4, func(table int, key uint64) int {
		return c.place.OwnerOfKey(schema.Table(table), key)
	})
	routing.quiet = quiet
	return routing
}

// drainLog is a handler that logs warnings at level debug once the trainer may leave.
type drainLog struct {
	slog.Handler
	mayLeave func() bool
}

func (f drainLog) level(of slog.Level) slog.Level {
	if of == slog.LevelWarn && f.mayLeave() {
		return slog.LevelDebug
	}
	return of
}

// Enabled implements slog.Handler.
func (f drainLog) Enabled(ctx context.Context, level slog.Level) bool {
	return f.Handler.Enabled(ctx, f.level(level))
}

// Handle implements slog.Handler.
func (f drainLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level = f.level(r.Level); !f.Handler.Enabled(ctx, r.Level) { // mayLeave may have changed since Enabled
		return nil
	}
	return f.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (f drainLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return drainLog{f.Handler.WithAttrs(attrs), f.mayLeave}
}

// WithGroup implements slog.Handler.
func (f drainLog) WithGroup(name string) slog.Handler {
	return drainLog{f.Handler.WithGroup(name), f.mayLeave}
}

// logOf returns the logger for events of a server's connection.
func (c *connection) logOf(d *dataServer) *slog.Logger {
	if d.peer == "" {
		return c.config.Log
	}
	return slog.New(drainLog{c.config.Log.Handler(), c.mayLeave})
}

// mayLeave reports whether this trainer has all results of its planned batches, so that other trainers may leave, and
// stop their data servers.
func (c *connection) mayLeave() bool {
	done := c.batch.Load()
	return done > 0 && done >= c.planned.Load()
}

// shardLink sends gradients to one owner, a shard or another trainer: it has the owner's window, and the queue of
// frames that wait for room in it. The link to this trainer itself has neither server nor window.
//
// post sends a frame at once if the window has room, on the calling goroutine. Otherwise the frame waits in the queue,
// which one goroutine empties in order, so a full window delays neither the backward pass nor another link. The queue
// is bounded by the frames of the open batches, which are refilled only after their owner has them.
type shardLink struct {
	member schema.Member
	reduce bool // the owner is a trainer
	server *dataServer
	outbox *fabric.Outbox
	flags  uint32   // flags in the heads of its frames
	marks  []uint64 // value of posted at the end of batch b, at b % len; ahead+1 entries

	ctx    context.Context    // of the session
	fail   func(error)        // ends the session with an error
	run    func(drain func()) // starts a goroutine for which the session waits
	posted uint64             // number of posted frames; used by the goroutine that calls Run

	mu       sync.Mutex // a leaf
	queue    []posted
	draining bool          // a goroutine empties the queue
	left     uint64        // number of frames sent
	moved    chan struct{} // capacity 1: a queued frame was sent
}

// posted is a frame to send.
type posted struct {
	subject fabric.Subject
	frame   fabric.Payload
	bucket  schema.Bucket
	times   *bucketTrace // of its batch; nil without a trace
}

// kind returns the subject token of contributions to the owner.
func (l *shardLink) kind(k string) string {
	if l.reduce {
		return fabric.KindReduce
	}
	return k
}

// post sends a frame, now or when the window has room; it does not wait. The caller must not change the frame until
// received returns.
func (l *shardLink) post(p posted) error {
	l.posted++
	l.mu.Lock()
	if l.draining {
		l.queue = append(l.queue, p)
		l.mu.Unlock()
		return nil
	}
	l.mu.Unlock()
	switch sent, err := l.outbox.TrySend(p.subject, p.frame); {
	case err != nil:
		return err
	case sent:
		l.sent(&p)
		return nil
	}
	l.mu.Lock()
	l.queue, l.draining = append(l.queue, p), true
	l.mu.Unlock()
	l.run(l.drain)
	return nil
}

// drain sends the queued frames until the queue is empty.
func (l *shardLink) drain() {
	for {
		l.mu.Lock()
		if len(l.queue) == 0 {
			l.draining = false
			l.mu.Unlock()
			return
		}
		p := l.queue[0]
		l.queue[0] = posted{}
		if l.queue = l.queue[1:]; len(l.queue) == 0 {
			l.queue = nil
		}
		l.mu.Unlock()
		if err := l.outbox.Send(l.ctx, p.subject, p.frame); err != nil {
			l.fail(fmt.Errorf("batch %d: %w", p.subject.Batch, err))
			return
		}
		l.sent(&p)
		select {
		case l.moved <- struct{}{}:
		default: // already signaled
		}
	}
}

// received returns when the frames of batch b-ahead-1 and before may be refilled. That batch is complete, which proves
// that the owner has its frames even if acks are missing; received waits until none of them is being retransmitted.
func (l *shardLink) received(ctx context.Context, b schema.Batch) error {
	if l.outbox == nil {
		return nil
	}
	mark := l.marks[int(b)%len(l.marks)]
	if err := l.emptied(ctx, mark); err != nil {
		return err
	}
	if l.outbox.Pending() == 0 {
		return nil
	}
	if err := l.outbox.Received(mark); err != nil {
		return fmt.Errorf("end window to %s: %w", l.member, err)
	}
	return l.outbox.DrainedTo(ctx, mark)
}

// sent records that a frame was sent.
func (l *shardLink) sent(p *posted) {
	p.times.sent(p.bucket, p.frame.Len())
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left++
}

// emptied waits until upTo frames were sent.
func (l *shardLink) emptied(ctx context.Context, upTo uint64) error {
	for {
		l.mu.Lock()
		left := l.left
		l.mu.Unlock()
		if left >= upTo {
			return nil
		}
		select {
		case <-l.moved:
		case <-ctx.Done():
			return fmt.Errorf("%d frames wait for room in the window to %s: %w", upTo-left, l.member,
				context.Cause(ctx))
		}
	}
}
