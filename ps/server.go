package ps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/cuda"
	"gradbus/fabric"
	"gradbus/schema"
)

const (
	// refusalsPerSecond bounds the refusals that one shard of a job, or the server for what belongs to no job, sends.
	refusalsPerSecond = 100
	// logsPerSecond bounds what refusals write to the log.
	logsPerSecond = 5
	// farewell bounds how long Close waits for its last words to reach the embedded server.
	farewell = time.Second
)

// Server is a running parameter server: an embedded NATS server, and the shards and coordinators of any number of jobs.
// It is safe for concurrent use.
type Server struct {
	config   Config
	log      *slog.Logger
	backend  cuda.Backend
	own      bool // the backend is ours to close
	nats     *fabric.Server
	conn     *fabric.Conn
	limits   schema.Limits
	counters counters
	strays   limiter // of refusals that belong to no job
	logs     limiter // of refusals in the log
	desk     *desk

	// jobs is what receiving goroutines look jobs up in. Only the desk replaces it.
	jobs atomic.Pointer[map[schema.JobName]*job]

	cancel  context.CancelFunc
	unwatch func() bool // stops waiting for the end of Start's context
	closed  sync.Once
	done    chan struct{}
}

// Start starts a server and returns when it accepts trainers. It ends with ctx or by Close, whichever comes first, and
// Done tells when it has. Errors: everything Validate finds; fabric.ErrPortTaken; cuda.ErrNoBackend. After an error
// nothing is left running.
func Start(ctx context.Context, config Config, options Options) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	if config.MemoryBytesMax == 0 {
		config.MemoryBytesMax = memoryBytesDefault
		if n := machineBytes(); n > 0 {
			config.MemoryBytesMax = n / 4 * 3
		}
	}
	s := &Server{
		config: config, log: options.Log, backend: options.Backend, limits: schema.Limits{FrameBytesMax: config.PayloadBytesMax},
		strays: limiter{perSecond: refusalsPerSecond}, logs: limiter{perSecond: logsPerSecond}, done: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.jobs.Store(&map[schema.JobName]*job{})
	if err := s.open(ctx); err != nil {
		s.release()
		return nil, err
	}
	running, cancel := context.WithCancel(ctx)
	s.cancel = cancel
	s.desk = newDesk(s)
	go s.desk.run(running)
	watched := make(chan struct{})
	s.unwatch = context.AfterFunc(ctx, func() {
		<-watched // ctx may have ended already, and Close reads unwatch
		s.Close()
	})
	close(watched)
	if err := s.subscribe(); err != nil {
		s.Close()
		return nil, err
	}
	s.log.Info("server ready", "url", s.nats.URL(), "shards", config.Shards, "backend", cuda.Describe(s.backend),
		"memory_bytes_max", config.MemoryBytesMax)
	return s, nil
}

// open acquires backend, NATS server and connection, in this order.
func (s *Server) open(ctx context.Context) (err error) {
	if s.backend == nil {
		s.backend, err = cuda.Open(cuda.Options{Name: s.config.Backend, ISA: s.config.ISA, Threads: s.config.Threads, Log: s.log})
		if err != nil {
			return err
		}
		s.own = true
	}
	s.nats, err = fabric.StartServer(fabric.ServerConfig{
		Host: s.config.Host, Port: s.config.Port, PayloadBytesMax: s.config.PayloadBytesMax, Token: s.config.Token, TLS: s.config.TLS, Log: s.log,
	})
	if err != nil {
		return err
	}
	s.conn, err = fabric.Dial(ctx, fabric.Config{Server: s.nats, Name: "ps", Token: s.config.Token, Log: s.log})
	if err != nil {
		return fmt.Errorf("connect to the embedded server: %w", err)
	}
	return nil
}

// subscribe listens for every job there will ever be: subscriptions are static, since each change of one empties the
// server's caches.
func (s *Server) subscribe() error {
	for shard := range s.config.Shards {
		for _, pattern := range fabric.ListenAt(fabric.Any, string(schema.ShardMember(shard))) {
			if err := s.conn.Subscribe(pattern, func(m fabric.Message) { s.receive(shard, m) }); err != nil {
				return err
			}
		}
	}
	for _, pattern := range []string{
		fabric.Pattern(fabric.Any, fabric.Any, fabric.KindCtl, string(schema.Coordinator), false),
		fabric.Pattern(fabric.Any, fabric.Any, fabric.KindBeat, string(schema.All), false),
	} {
		if err := s.conn.Subscribe(pattern, s.desk.receive); err != nil {
			return err
		}
	}
	return nil
}

// URL is where trainers on this machine find the server.
func (s *Server) URL() string { return s.nats.URL() }

// Done is closed when the server has ended and everything it held is free.
func (s *Server) Done() <-chan struct{} { return s.done }

// Stats says what the server has done and does.
func (s *Server) Stats() Stats {
	stats := *s.desk.snapshot.Load()
	s.counters.read(&stats)
	return stats
}

// Close tells the trainers of every job that the server is shutting down, ends all jobs and waits until every goroutine
// is gone and all memory is free. It may be called again, and from several goroutines.
func (s *Server) Close() {
	s.closed.Do(func() {
		s.unwatch()
		s.desk.close()
		<-s.desk.done
		s.cancel()
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		if err := s.conn.Flush(ctx); err != nil {
			s.log.Warn("last words not sent", "err", err)
		}
		s.release()
		close(s.done)
		s.log.Info("server closed")
	})
	<-s.done
}

// release gives back what open has acquired.
func (s *Server) release() {
	if s.conn != nil {
		s.conn.Close()
	}
	if s.nats != nil {
		s.nats.Close()
	}
	if s.own {
		if err := s.backend.Close(); err != nil {
			s.log.Warn("close backend", "err", err)
		}
	}
}

// logRefusal notes a refusal for the person on call, unless there were many this second.
func (s *Server) logRefusal(job, member string, r schema.Reason, text string) {
	if s.logs.allow(time.Now()) {
		s.log.Warn("frame refused", "job", job, "member", member, "reason", r.String(), "text", text)
	}
}

// publish sends a frame, which may be reused at once. It cannot be done on a connection within this process unless the
// server is closing; receivers ask again for what they miss.
func (s *Server) publish(subject fabric.Subject, frame []byte) {
	if err := s.conn.Send(subject, frame); err != nil && !errors.Is(err, fabric.ErrClosed) {
		s.log.Error("not published", "subject", subject.String(), "err", err)
	}
}
