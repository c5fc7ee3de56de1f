package ops

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gradbus/internal/certificate"
	"gradbus/internal/loglimit"
)

// Server is the HTTP side of a ps. It shows, and changes nothing but what it shows of buckets.
type Server struct {
	config  Config
	limits  limits
	log     *slog.Logger
	hub     *Hub
	url     string
	guard   *guard
	tokens  atomic.Pointer[tokens]
	making  chan struct{} // holds one for each answer of the API that is being made
	conns   *connections
	serving []*http.Server
	files   *files

	streams atomic.Int64
	asked   atomic.Uint64 // requests
	refused atomic.Uint64 // of them
	missed  atomic.Uint64 // updates
	wrong   atomic.Uint64 // tokens at /login
	faults  atomic.Uint64

	mu       sync.Mutex // guards closed, and that requests begin before it is set or not at all
	closed   bool
	stop     chan struct{}
	ended    chan struct{} // Close has done all of its work
	requests sync.WaitGroup
	running  sync.WaitGroup // listeners
	unwatch  func() bool
}

// shutdownTime is what requests under way have at the end; streams are told at once.
const shutdownTime = 500 * time.Millisecond

// Start serves until ctx ends or Close is called. An error says what could not be had; nothing is then left. What goes
// wrong later is logged and counted, and ends nothing.
func Start(ctx context.Context, config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		config: config, limits: config.limits.withDefaults(), log: loglimit.Logger(config.Log), hub: config.Hub,
		stop:   make(chan struct{}),
		ended:  make(chan struct{}),
		making: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/4)),
	}
	var secure *certificate.File
	var err error
	if config.CertFile != "" {
		if secure, err = certificate.Load("http-tls", config.CertFile, config.KeyFile, s.log); err != nil {
			return nil, err
		}
	}
	if s.files, err = load(config.Page); err != nil {
		return nil, err
	}
	s.files.byPath["/runbooks"] = runbooksPage(config.Runbooks)
	listener, err := s.listen()
	if err != nil {
		return nil, err
	}
	sides, err := s.listenSides()
	if err != nil {
		listener.Close()
		return nil, err
	}
	s.begin(ctx, listener, sides, secure)
	return s, nil
}

// Reload takes tokens and the certificate from a configuration, and names the flags whose files say something else.
// Connections and streams that there are stay. After an error everything stays.
func (s *Server) Reload(c Config) (changed []string, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	secure := s.guard.secure
	was, now := s.tokens.Load(), newTokens(c, secure != nil)
	if (now.page == nil) != (was.page == nil) || (now.metrics == nil) != (was.metrics == nil) {
		return nil, errors.New("http-token-file, metrics-token-file: they begin and end with a restart alone")
	}
	if (c.CertFile != "") != (secure != nil) {
		return nil, errors.New("http-tls-cert: TLS begins and ends with a restart alone")
	}
	if secure != nil {
		renewed, err := secure.Reload(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, err
		}
		if renewed {
			changed = append(changed, "http-tls-cert")
		}
	}
	if was.page.equal(now.page) {
		now.page = was.page // and who has guessed wrongly
	} else {
		changed = append(changed, "http-token-file")
	}
	if !was.metrics.equal(now.metrics) {
		changed = append(changed, "metrics-token-file")
	}
	s.tokens.Store(now)
	return changed, nil
}

func (s *Server) listen() (net.Listener, error) {
	l, err := net.Listen("tcp", s.config.Listen)
	if s.config.AnyPort && errors.Is(err, syscall.EADDRINUSE) {
		host, _, _ := net.SplitHostPort(s.config.Listen) // Validate saw that it can be
		if l, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err == nil {
			s.log.Warn("the page's port is taken, by another ps perhaps: it is at another", "wanted", s.config.Listen, "address",
				l.Addr().String())
		}
	}
	if err != nil {
		return nil, taken("http", s.config.Listen, "choose another with --http, port 0 for any free one, or --http off", err)
	}
	return l, nil
}

func taken(flag, at, instead string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%s %s: the port is taken: %s: %w", flag, at, instead, err)
	}
	return fmt.Errorf("%s %s: %w", flag, at, err)
}

func (s *Server) begin(ctx context.Context, listener net.Listener, sides []*side, secure *certificate.File) {
	s.conns = bounded(listener, s.limits.connectionsMax)
	scheme := "http"
	if secure != nil {
		scheme = "https"
	}
	s.url = (&url.URL{Scheme: scheme, Host: reachable(listener.Addr()), Path: "/"}).String()
	s.tokens.Store(newTokens(s.config, secure != nil))
	s.guard = newGuard(s.config, secure)
	page := s.server(ctx, s.handler())
	over := net.Listener(s.conns)
	if secure != nil {
		page.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
		secure.Serve(page.TLSConfig)
		over = tls.NewListener(s.conns, page.TLSConfig)
	}
	s.serve(page, over, "page")
	for _, one := range sides {
		h := s.server(ctx, one.handler(s))
		if one.endless {
			h.WriteTimeout = 0
		}
		s.serve(h, bounded(one.listener, sideConnectionsMax), one.what)
		s.log.Info(one.what, "url", "http://"+one.listener.Addr().String()+one.path)
	}
	watched := make(chan struct{})
	s.unwatch = context.AfterFunc(ctx, func() {
		<-watched
		s.Close()
	})
	close(watched)
}

// reachable is an address as somebody on this machine would dial it.
func reachable(at net.Addr) string {
	host, port, err := net.SplitHostPort(at.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", port)
	}
	return at.String()
}

// server has every limit that net/http knows.
func (s *Server) server(ctx context.Context, h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: s.limits.headerTime,
		ReadTimeout:       s.limits.headerTime + s.limits.formTime,
		WriteTimeout:      s.limits.writeTime,
		IdleTimeout:       s.limits.idleTime,
		MaxHeaderBytes:    max(1, s.limits.headerBytesMax-headerSlop),
		ErrorLog:          log.New(faultLog{s}, "", 0),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, plainOf(c))
		},
		ConnState: changed,
		// An OPTIONS * is not answered beside the rules.
		DisableGeneralOptionsHandler: true,
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: 32, SendPingTimeout: s.limits.idleTime},
	}
}

// headerSlop is what net/http reads of a request beyond its MaxHeaderBytes before it refuses it.
const headerSlop = 4 << 10

// connKey finds the connection in a request's context.
type connKey struct{}

func (s *Server) serve(h *http.Server, l net.Listener, what string) {
	s.serving = append(s.serving, h)
	s.running.Go(func() {
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.faults.Add(1)
			s.log.Error("http ended; training goes on without it", "serving", what, "err", err)
		}
	})
}

// faultLog takes what net/http logs: broken handshakes, panics of handlers. It is counted.
type faultLog struct{ s *Server }

func (f faultLog) Write(b []byte) (int, error) {
	f.s.log.Warn("http", "fault", strings.TrimSpace(string(b)), "faults", f.s.faults.Add(1))
	return len(b), nil
}

// URL is where somebody on this machine finds the page: http://127.0.0.1:8080/.
func (s *Server) URL() string { return s.url }

// Public is where others find it: under the first of the names that were given for it, or that its certificate has;
// else URL.
func (s *Server) Public() string {
	names := s.config.Hosts
	if s.guard.secure != nil {
		names = append(slices.Clip(names), certified(s.guard.secure.Latest())...)
	}
	u, err := url.Parse(s.url)
	if err != nil || len(names) == 0 {
		return s.url
	}
	u.Host = net.JoinHostPort(hostName(names[0]), u.Port())
	if _, port, err := net.SplitHostPort(names[0]); err == nil {
		u.Host = net.JoinHostPort(hostName(names[0]), port) // of a proxy
	}
	return u.String()
}

// Stats counts what became of requests since the start.
type Stats struct {
	Connections      int // open
	Streams          int // open
	Requests         uint64
	UpdatesMissed    uint64 // that the client of a stream was too slow for
	ConnectionsEnded uint64 // to make room for others
	RequestsRefused  uint64 // by the rules of guard.go, the token, or for want of room
	Faults           uint64 // that net/http logged
	ReportsDropped   uint64 // by the Hub
	OverviewFaults   uint64 // panics of the Tracker
}

// Stats may be called at any time, and costs next to nothing.
func (s *Server) Stats() Stats {
	return Stats{
		Connections: s.conns.count(), Streams: int(s.streams.Load()), Requests: s.asked.Load(),
		UpdatesMissed: s.missed.Load(), ConnectionsEnded: s.conns.ended.Load(),
		RequestsRefused: s.refused.Load(), Faults: s.faults.Load(), ReportsDropped: s.hub.dropped.Load(),
		OverviewFaults: s.hub.panics.Load(),
	}
}

// Close ends all streams at once and other requests within half a second, and waits. It may be called again, and by
// several: each waits for the end.
func (s *Server) Close() {
	s.mu.Lock()
	first := !s.closed
	if first {
		s.closed = true
		close(s.stop)
	}
	s.mu.Unlock()
	if !first {
		<-s.ended
		return
	}
	defer close(s.ended)
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	for _, h := range s.serving {
		if h.Shutdown(ctx) != nil {
			h.Close()
		}
	}
	s.unwatch()
	s.running.Wait()
	s.requests.Wait()
}

// enter begins a request; false at the end.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.requests.Add(1)
	}
	return !s.closed
}
