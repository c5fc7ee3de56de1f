package ps

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"gradbus/checkpoint"
	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/internal/liveness"
	"gradbus/internal/loglimit"
	"gradbus/internal/process"
	"gradbus/ps/module"
	"gradbus/schema"
	"gradbus/shard"
)

const (
	// refusalsPerSecond bounds the refusals that one shard of a job, or the server for what belongs to no job, sends.
	refusalsPerSecond = 100
	// drainWithin bounds how long Close waits for its last words to reach the embedded server.
	drainWithin = time.Second
)

// Server is a running parameter server: an embedded NATS server, and the shards and coordinators of any number of jobs.
// It is safe for concurrent use.
type Server struct {
	config     Config
	process    string // this one, as trainers name theirs
	started    time.Time
	folder     checkpointFolder
	log        *slog.Logger
	limitHeap  func(bytes int64) // may be nil
	rounds     func(RoundTimes)  // may be nil
	backend    cuda.Backend
	bus        *fabric.Bus                              // nil is TCP
	journal    func(schema.JobName, int, shard.Journal) // may be nil
	fit        func() error                             // may be nil
	dense      module.Dense                             // opened when the first module is hosted
	closes     bool                                     // the backend is ours to close
	nats       *fabric.Server                           // of this process: data, and control where Config.NATS is empty
	links      *links                                   // to it, of shards
	buffers    *fabric.Buffers                          // of links
	control    *fabric.Control                          // where members, jobs and the other ps are heard of
	posts      *sender                                  // to it
	registry   *registry
	primary    *primary // nil: this ps holds replicas for no other
	replicas   *replicaStore
	lease      time.Duration    // of our lease record
	clock      func() time.Time // nil is time.Now
	dialing    func(context.Context, int) error
	member     schema.Member // p-{id}
	limits     schema.Limits
	counters   counters
	unroutable *rate.Limiter // of refusals that belong to no job
	loop       *controlLoop
	reporter   *reporter
	ended      endedShards

	// jobs is the lookup table of receiving goroutines. Only the control loop replaces it.
	jobs atomic.Pointer[map[schema.JobName]*assignment]

	// trust is the configuration whose tokens and TLS count by now; of the rest config counts.
	trust atomic.Pointer[Config]

	controlLost atomic.Bool    // the control server is out of reach
	controlBack moment         // when it last came back; zero: it was never lost
	cameBack    chan struct{}  // has room for one: it came back just now
	freeBytes   atomic.Int64   // of memory, promised to no job
	own         []*link        // of the shard numbers of jobs that are on this ps alone
	releasing   sync.WaitGroup // of jobs whose shards end, and of what waits for the disk

	end     context.CancelCauseFunc
	running context.Context // ends with the server; the cause is what Err gives
	unwatch func() bool     // stops waiting for the end of running
	closed  sync.Once
	done    chan struct{}

	state     atomic.Value  // schema.ServerState; nil while it serves
	asked     chan struct{} // closed when a client wants this ps to end
	askedOnce sync.Once
}

// Start starts a server and returns when it accepts trainers. It ends with ctx or by Close, whichever comes first, and
// Done tells when it has. Errors: everything Validate finds; fabric.ErrPortTaken; cuda.ErrNoBackend; where control is
// on another server, fabric.ErrNoServer, fabric.ErrRefused and fabric.ErrNoJetStream. After an error nothing is left
// running.
func Start(ctx context.Context, config Config, options Options) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	config.modules, config.local = &module.Sizes{}, options.Local
	if config.Checkpoints.Dir != "" {
		if err := checkpoint.CheckFolder(config.Checkpoints.Dir); err != nil {
			return nil, fmt.Errorf("checkpoint_dir %s: %w", config.Checkpoints.Dir, err)
		}
	}
	if config.MemoryBytesMax == 0 {
		config.MemoryBytesMax = memoryBytesDefault
		if n := process.MemoryBytes(); n > 0 {
			config.MemoryBytesMax = n / 4 * 3
		}
	}
	s := &Server{
		config: config, log: loglimit.Logger(options.Log), limitHeap: options.LimitHeap, rounds: options.Rounds,
		backend: options.Backend, bus: options.Bus, journal: options.Journal, fit: options.Fit,
		lease: cmp.Or(options.lease, leaseTime),
		clock: options.clock, dialing: options.dialing, limits: schema.Limits{FrameBytesMax: config.PayloadBytesMax},
		buffers: fabric.NewBuffers(fabric.FreeBytesMaxDefault), unroutable: rate.NewLimiter(refusalsPerSecond, refusalsPerSecond),
		done:  make(chan struct{}),
		asked: make(chan struct{}), cameBack: make(chan struct{}, 1),
	}
	s.trust.Store(&config)
	s.jobs.Store(&map[schema.JobName]*assignment{})
	s.freeBytes.Store(config.MemoryBytesMax)
	if err := s.open(ctx); err != nil {
		s.release()
		return nil, err
	}
	s.running, s.end = context.WithCancelCause(ctx)
	s.links = newLinks(s.running, s.dialLink)
	s.posts = newSender(func(at fabric.Subject, frame []byte) { s.publish(s.control, at, frame) }, &s.counters.dropped)
	if config.Peer != "" {
		s.primary = newPrimary(s)
	}
	s.folder.dir, s.folder.keep, s.folder.local = config.Checkpoints.Dir, config.Checkpoints.Keep, config.local != nil
	s.folder.log, s.folder.later = s.log, &s.releasing
	s.replicas = newReplicaStore(s)
	s.loop, s.reporter = newControlLoop(s), newReporter(s, &options)
	s.reporter.start(s.running)
	go s.loop.run(s.running)
	go s.registry.run(s.running)
	watched := make(chan struct{})
	s.unwatch = context.AfterFunc(s.running, func() {
		<-watched // ctx may have ended already, and Close reads unwatch
		s.Close()
	})
	close(watched)
	err := s.subscribe()
	if err == nil && s.primary != nil {
		err = s.primary.start(ctx)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	log := s.log.With("server", s.registry.self.ID, "url", s.nats.URL())
	if at := s.registry.self.URL; at != "" { // to others, who find this ps by the registry
		log = log.With("announced", at)
	}
	if config.ControlToken != "" && s.embedsControl() {
		log.Info("jobs with shards on several ps have no replicas", "want", "--nats with the address of an external NATS server")
	}
	log.Info("server ready", "shards", config.Shards, "backend", cuda.Describe(s.backend), "memory_bytes_max",
		config.MemoryBytesMax)
	return s, nil
}

// open acquires backend, NATS server, connections and a place in the registry, in this order.
func (s *Server) open(ctx context.Context) (err error) {
	if s.backend == nil {
		s.backend, err = cuda.Open(cuda.Options{Name: s.config.Backend, ISA: s.config.ISA, Threads: s.config.Threads,
			Log: s.log})
		if err != nil {
			return err
		}
		s.closes = true
	}
	s.nats, err = fabric.StartServer(fabric.ServerConfig{
		Bus: s.bus, Host: s.config.Host, Port: s.config.Port, PayloadBytesMax: s.config.PayloadBytesMax,
		PendingBytesMax: s.config.PendingBytesMax, Token: s.config.Token, TLS: s.config.TLS, Log: s.log,
		JetStream: s.embedsControl(), Guard: s.guard(),
	})
	if err != nil {
		return err
	}
	return s.openControl(ctx)
}

// embedsControl reports whether control is on the server of this process.
func (s *Server) embedsControl() bool { return s.config.NATS == "" }

// controlConfig returns the configuration of a connection to the server that carries control.
func (s *Server) controlConfig(name string) fabric.Config {
	if s.embedsControl() {
		return fabric.Config{Server: s.nats, Name: name, Log: s.log}
	}
	return renewing(fabric.Config{URL: s.config.NATS, Bus: s.bus, Name: name, CredsFile: s.config.NATSCredsFile,
		Key: s.config.Key, Log: s.log}, func() (string, *tls.Config) {
		c := s.trust.Load()
		return cmp.Or(c.ControlToken, c.Token), c.NATSTLS
	})
}

// openControl connects to the control server and announces this ps there.
func (s *Server) openControl(ctx context.Context) (err error) {
	id := s.config.ID
	if id == "" {
		id = idOf(s.nats.URL())
	}
	config := s.controlConfig("ps/" + id)
	config.OnState = s.controlChanged
	if s.control, err = fabric.DialControl(ctx, config); err != nil {
		return fmt.Errorf("connect to the control server: %w", err)
	}
	s.member = schema.ServerMember(id)
	s.process, s.started = process.Self(), s.now()
	incarnation, err := newRunID()
	if err != nil {
		return err
	}
	self := leaseRecord{ID: id, Incarnation: uint64(incarnation), URL: s.advertised(), Shards: s.config.Shards,
		Host: process.HostAndID(), Stands: s.config.grouped(), Process: s.process, Fingerprint: schema.Fingerprint}
	s.registry = newRegistry(s.control, self, s.lease, s.freeBytes.Load, s.runHere, s.log)
	s.registry.back = s.cameBack
	s.registry.now = s.now
	s.registry.measure = func(job *schema.Job) { s.config.modules.Bytes(job) }
	if err := s.registry.open(ctx); errors.Is(err, fabric.ErrDenied) {
		return fmt.Errorf("%w: start both with the same --control-token-file", err)
	} else if err != nil {
		return err
	}
	return nil
}

// runHere is the run of a job with shards here; 0 is none.
func (s *Server) runHere(name schema.JobName) schema.RunID {
	if a := (*s.jobs.Load())[name]; a != nil {
		return a.run
	}
	return 0
}

// shardConfig returns the configuration of a shard of a job, for serving and for a replica.
func (s *Server) shardConfig(job *schema.Job, place *schema.Placement, i int) shard.Config {
	c := &s.config
	return shard.Config{Job: job, Placement: place, Index: i, Generation: generationFirst, Backend: s.backend,
		Advice: c.orRaise("send smaller batches", "staged-mib", ""), StaysReadable: c.local != nil && job.StaysReadable(),
		ParkedBytesMax: parkedBytes(job), Undo: c.recordsUndo(job), Touches: isCopied(c, job)}
}

// idOf makes an id from this machine's name and the port of a URL, by which a ps that is started again is known.
func idOf(serverURL string) string {
	name, err := os.Hostname()
	if err != nil {
		name = "ps"
	}
	port := ""
	if u, err := url.Parse(serverURL); err == nil {
		port = "-" + u.Port()
	}
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '-'
	}, strings.ToLower(name))
	return clean[:min(len(clean), schema.ServerIDBytesMax-len(port))] + port
}

// controlChanged is told by fabric.
func (s *Server) controlChanged(state fabric.State) {
	switch state {
	case fabric.Lost:
		s.controlLost.Store(true)
		s.log.Warn("control server lost", "control", s.control.Address())
	case fabric.Back:
		s.controlBack.set(s.now())
		s.controlLost.Store(false)
		s.log.Info("control server back", "control", s.control.Address())
		nudge(s.cameBack)
	}
}

// fail ends the server for a reason of its own.
func (s *Server) fail(err error) { s.end(err) }

// Err says why a server has ended by itself; nil where it has not, or ended as it was asked to.
func (s *Server) Err() error {
	if err := context.Cause(s.running); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// subscribe listens for every job there will ever be: subscriptions are static, since each change of one empties the
// server's caches. Shards of numbers that only a job on several ps has are added when the first such job comes.
func (s *Server) subscribe() error {
	for i := range s.config.Shards {
		s.own = append(s.own, s.links.take(i))
	}
	for _, l := range s.own {
		if err := l.wait(s.running); err != nil {
			return err
		}
	}
	for _, pattern := range []string{
		fabric.Pattern(fabric.Any, fabric.Any, fabric.KindCtl, string(schema.Coordinator), false),
		fabric.Pattern(fabric.Any, fabric.Any, fabric.KindHeartbeat, string(schema.All), false),
		fabric.Pattern(fabric.Any, string(schema.Coordinator), fabric.KindCtl, string(s.member), false),
	} {
		if err := s.control.Subscribe(pattern, s.loop.inbox.receive); err != nil {
			return err
		}
	}
	return s.reporter.announce()
}

// ID names this ps among all that share a control server: it is member p-{id}.
func (s *Server) ID() string { return s.registry.self.ID }

// Announced are the ids of all ps in the registry, as of a look at most some seconds ago; it waits for nothing.
func (s *Server) Announced() []string {
	if ids := s.registry.listed.Load(); ids != nil {
		return *ids
	}
	return nil
}

// ReportsDropped counts the telemetry reports of others that came faster than one sender may send, or than they were
// read.
func (s *Server) ReportsDropped() uint64 { return s.counters.reportsDropped.Load() }

// URL is where trainers on this machine find the server.
func (s *Server) URL() string { return s.nats.URL() }

// JoinURL is where trainers join jobs: the control server, where that is another one, else this ps as others find it.
// It has no password.
func (s *Server) JoinURL() string {
	if s.embedsControl() {
		return s.announced("")
	}
	return fabric.WithoutUser(s.config.NATS)
}

// Asked returns a channel that is closed when a client wants this ps to end (ps drain): call Drain and Close then,
// as after an interrupt.
func (s *Server) Asked() <-chan struct{} { return s.asked }

// RestartNATS stops the embedded NATS server, with every connection and whatever is on the way, calls meanwhile, and
// starts it again at the same address. Jobs stay and go on. An error says that it could not be started: the server is
// of no use then.
func (s *Server) RestartNATS(meanwhile func()) error {
	s.nats.Stop()
	meanwhile()
	if err := s.nats.Start(); err != nil {
		return fmt.Errorf("restart the embedded server: %w", err)
	}
	return nil
}

// Done is closed when the server has ended and everything it held is free.
func (s *Server) Done() <-chan struct{} { return s.done }

// Stats says what the server has done and does.
func (s *Server) Stats() Stats {
	stats := *s.loop.snapshot.Load()
	s.counters.read(&stats)
	stats.SlowReaders = uint64(s.nats.SlowConsumers())
	return stats
}

// Drain has a last version of every job made durable, so that little is to be computed again when the server is started
// anew, and waits for that, or until ctx ends. Close follows. Training goes on meanwhile.
func (s *Server) Drain(ctx context.Context) {
	s.state.Store(schema.ServerDraining)
	done := make(chan struct{})
	select {
	case s.loop.drains <- done:
	case <-s.loop.done:
		return
	case <-ctx.Done():
		return
	}
	select {
	case <-done:
	case <-s.loop.done:
	case <-ctx.Done():
	}
}

// Close tells the trainers of every job that the server is shutting down, ends all jobs and waits until every goroutine
// is gone and all memory is free. It may be called again, and from several goroutines.
func (s *Server) Close() {
	s.closed.Do(func() {
		s.unwatch()
		s.loop.close()
		<-s.loop.done
		s.end(nil)
		<-s.registry.done
		if s.primary != nil {
			s.primary.close()
		}
		s.replicas.close()
		s.reporter.ended.Wait()
		if s.Err() == nil {
			s.state.Store(schema.ServerEnded)
		}
		s.reporter.send(time.Now()) // how all jobs have ended
		s.reporter.meter.Close()
		s.releasing.Wait()
		clear(s.loop.shards.leaving) // its goroutine has ended, and all that was released is free
		s.loop.snapshot.Store(statsOf(s.loop.jobs, s.loop.shards))
		ctx, cancel := context.WithTimeout(context.Background(), drainWithin)
		defer cancel()
		err := errors.Join(s.posts.end(ctx), s.control.Flush(ctx))
		for _, conn := range s.links.conns() {
			err = errors.Join(err, conn.Flush(ctx))
		}
		if err != nil {
			s.log.Warn("final messages not sent", "err", err)
		}
		s.release()
		close(s.done)
		s.log.Info("server closed")
	})
	<-s.done
}

// release gives back what open has acquired.
func (s *Server) release() {
	if s.control != nil {
		s.control.Close()
	}
	if s.posts != nil {
		<-s.posts.done // at the latest now that the connection is closed
	}
	for _, l := range s.own {
		s.links.release(l)
	}
	if s.nats != nil {
		s.nats.Close()
	}
	s.dense.Close()
	if s.closes {
		if err := s.backend.Close(); err != nil {
			s.log.Warn("close backend", "err", err)
		}
	}
}

// logRefusal notes a refusal for the person on call.
func (s *Server) logRefusal(job, member string, r schema.Reason, text string) {
	s.log.Warn("frame refused", "job", job, "member", member, "reason", r.String(), "text", text)
}

// outlet is a connection.
type outlet interface {
	Send(subject fabric.Subject, data []byte) error
}

// publish sends a frame, which may be reused at once. What a lost server does not take is asked for again.
func (s *Server) publish(conn outlet, subject fabric.Subject, frame []byte) {
	s.published(subject, conn.Send(subject, frame))
}

// published notes what came of publishing.
func (s *Server) published(subject fabric.Subject, err error) {
	if err != nil && !errors.Is(err, fabric.ErrClosed) && !errors.Is(err, fabric.ErrLost) {
		s.log.Error("not published", "subject", subject.String(), "err", err)
	}
}

// Local says that a server and the trainers of its jobs are one process. A job there that cannot be trained any more
// stays readable, and errors name what the program's user can change.
type Local struct {
	// Settings are the names of this server's settings in that program, by flag of ./bin/ps without its dashes. Errors
	// advise to change no others.
	Settings map[string]string
}

// orRaise appends the advice to raise a setting, named as the reader of the error sets it. Where that reader cannot,
// the advice before it is all.
func (c *Config) orRaise(advice, flag, more string) string {
	name := "the server's --" + flag
	if c.local != nil {
		name = c.local.Settings[flag]
	}
	if name == "" {
		return advice
	}
	return advice + ", or raise " + name + more
}

// moment is when something last happened, set and read by any goroutine; zero before it did. It is kept as the clock
// gave it, with its monotonic reading: a number of nanoseconds since 1970 loses that, and an hour that the machine's
// clock is set forward would be an hour in which nothing had happened.
type moment struct{ at atomic.Pointer[time.Time] }

func (m *moment) set(now time.Time) { m.at.Store(&now) }

func (m *moment) get() time.Time {
	if at := m.at.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// now is the time, by the clock that was handed in.
func (s *Server) now() time.Time {
	if s.clock == nil {
		return time.Now()
	}
	return s.clock()
}

// Reload takes tokens, members and TLS from a configuration, for connections that are made from now on, in either
// direction. Existing ones stay, except those of members that have no grant any more. TLS of connections to this ps is what it was given at the start. After an error
// everything stays.
func (s *Server) Reload(c Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	was := s.trust.Load()
	if (c.Token == "") != (was.Token == "") || (c.ControlToken == "") != (was.ControlToken == "") {
		return errors.New("token, control_token: they begin and end with a restart alone")
	}
	if (c.Members == nil) != (was.Members == nil) {
		return errors.New("members: they begin and end with a restart alone")
	}
	s.trust.Store(&c)
	s.nats.SetTokens(c.Token, c.ControlToken)
	s.nats.Recheck()
	return nil
}

// renewing has a connection show and trust what it is told to by now whenever it is made.
func renewing(c fabric.Config, latest func() (token string, tls *tls.Config)) fabric.Config {
	c.Token, c.TLS = latest()
	c.Renew = latest
	return c
}

// guard returns the permissions of clients of the embedded server. Trainers publish frames of their own, and tools
// request the services of ps; only ps write the registry, and only they publish as coordinators and shards, and as this
// ps.
func (s *Server) guard() *fabric.Guard {
	g := &fabric.Guard{
		PeerToken: s.config.ControlToken, Member: s.messageBytesOf,
		Publish: []string{fabric.All, fabric.AllServices, serviceName + ".>"},
		Deny:    []string{fabric.AllFrom(string(schema.Coordinator))},
	}
	g.Deny = append(g.Deny, fabric.Pattern(fabric.Any, fabric.Any, fabric.KindState, fabric.Any, true))
	if s.config.Members != nil {
		g.Grant = func(key, name string) *fabric.Grant { return s.trust.Load().Members.Grant(key, name) }
	}
	for i := range shardsMax { // of more, only jobs over several ps have any
		g.Deny = append(g.Deny, fabric.AllFrom(string(schema.ShardMember(i))))
	}
	if s.config.ID != "" {
		g.Deny = append(g.Deny, fabric.AllFrom(string(schema.ServerMember(s.config.ID))))
	}
	return g
}

// messageBytesOf is the size of the largest message of a trainer of a job with shards here, by the name of its
// connections, {job}/t{n}; 0 where there is no such trainer.
func (s *Server) messageBytesOf(connection string) int {
	name, member, _ := strings.Cut(connection, "/")
	a := (*s.jobs.Load())[schema.JobName(name)]
	if a == nil || !a.manifest.HasTrainer(schema.Member(member)) {
		return 0
	}
	return s.config.messageBytes(a.manifest)
}

// messageBytes bounds the messages of a job's trainers. Bags and inputs of modules are not cut into chunks.
func (c *Config) messageBytes(job *schema.Job) int {
	whole := len(job.Modules) > 0
	for i := range job.Tables {
		whole = whole || job.Tables[i].Cut().PooledByShards()
	}
	if whole {
		return c.PayloadBytesMax
	}
	return max(job.MessageBytesMax(), fabric.AnonymousPayloadBytesMax)
}

// advertised is where trainers find our data server: on the server that carries control, or at an address.
func (s *Server) advertised() string {
	if s.embedsControl() {
		return ""
	}
	return s.announced(s.control.LocalHost())
}

// announced is where others find our data server; local is the address by which we reach them.
func (s *Server) announced(local string) string {
	u, err := url.Parse(s.nats.URL())
	if err != nil {
		return s.nats.URL() // which we made ourselves
	}
	if s.config.Advertise != "" {
		u.Host = s.config.Advertise
		return u.String()
	}
	// Where all addresses are listened at, the one by which we reach the control server is as good a guess as any.
	if ip := net.ParseIP(s.config.Host); ip != nil && ip.IsUnspecified() {
		if local = cmp.Or(local, outgoingHost()); local != "" {
			u.Host = net.JoinHostPort(local, u.Port())
		}
	}
	return u.String()
}

// outgoingHost is the address by which this machine reaches others, by its routes; empty where it reaches none.
func outgoingHost() string {
	for _, at := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} { // for documents, so the default route leads there
		conn, err := net.Dial("udp", at) // sends nothing
		if err != nil {
			continue
		}
		host, _, err := net.SplitHostPort(conn.LocalAddr().String())
		conn.Close()
		if err == nil {
			return host
		}
	}
	return ""
}

// Check is one thing that must be so for the server to take jobs.
type Check struct {
	Name string // short and stable
	OK   bool
	Text string // what was found, for people
}

const (
	// aliveWithin bounds one iteration of the control loop. It begins one at least once a tick.
	aliveWithin = 5 * tickEvery
)

// Alive returns when the control loop, which every job depends on, last began an iteration: it does so several times a
// second, and a server whose control loop hangs is of no use.
func (s *Server) Alive() time.Time { return s.loop.began.get() }

// Checks looks at what must be so for the server to take jobs and to keep those it has. It waits for nothing.
func (s *Server) Checks() []Check {
	now := s.now()
	all := []Check{checkAge("control loop", "its last iteration began", now.Sub(s.Alive()), aliveWithin)}
	control := Check{Name: "control", OK: !s.controlLost.Load(), Text: "connected to " + s.control.Address()}
	if !control.OK {
		control.Text = "the control server at " + s.control.Address() + " is out of reach: see that it runs and can be " +
			"reached from here"
	}
	all = append(all, control)
	if err := s.unfit(); err != nil {
		all = append(all, Check{Name: "compute", Text: err.Error()})
	}
	if lost := s.registry.lost.Load(); lost != nil {
		all = append(all, Check{Name: "registry", Text: *lost})
	} else if renewed := s.registry.renewed.get(); renewed.IsZero() {
		all = append(all, Check{Name: "registry", Text: "no lease record yet"})
	} else {
		all = append(all, checkAge("registry", "announced", now.Sub(renewed), s.lease))
	}
	data := Check{Name: "data", OK: !s.links.lost(), Text: "connected to the embedded server"}
	if !data.OK {
		data.Text = "the embedded NATS server does not answer"
	}
	all = append(all, data)
	if err := s.Err(); err != nil {
		all = append(all, Check{Name: "server", Text: err.Error()})
	} else if s.running.Err() != nil {
		all = append(all, Check{Name: "server", Text: "shutting down"})
	}
	return all
}

func checkAge(name, what string, age, most time.Duration) Check {
	return Check{Name: name, OK: age <= most,
		Text: fmt.Sprintf("%s %s ago (at most %s)", what, liveness.Rounded(max(0, age)), most)}
}

// unfit says why this process must compute nothing more; nil where it may.
func (s *Server) unfit() error {
	if s.fit == nil {
		return nil
	}
	return s.fit()
}
