// Package ops is the HTTP side of a ps: the page, the API, the stream of updates, probes, metrics and profiles.
//
// # What is where
//
//   - Hub (hub.go) owns the status: it adds reports as they come, and makes a view of all jobs once a second, or at once
//     after an urgent report.
//   - Server (server.go) is the listener of the page, with a bound of connections, and one for Go's profiles. guard.go
//     decides which requests are served.
//   - api.go answers below /api/v1/, sends the stream of updates, and has /healthz, /readyz, the page and its runbooks.
//
// # What looking costs
//
// A view is made once a second even without clients, since it keeps the curves. Everything else happens on request: the
// first client encodes the JSON of an update, and all share it. A slow client gets the newest update when it has read
// the previous one, and is disconnected if it does not read; it costs a goroutine, about 28 KiB and kernel buffers. No
// shard, control loop or status waits for this package.
//
// # What clients may do
//
// Every path is read-only. Requests with foreign host names, from pages of other sites, with other methods, bodies, or
// large or slow headers are refused and counted. Beyond this machine a token and TLS are required unless Insecure is set.
// Connections and streams are bounded. A new connection is always accepted: a full server closes the connection in the
// earliest phase, and among those the oldest.
//
// # Faults
//
// An error of the listener, or a panic of a handler or of the status, is logged and counted, and training continues.
// Only a failure to start is returned as an error.
//
// # What it must not know
//
// NATS, shards and coordinators, NVML: cmd/ps passes reports and functions by Config and Hub.Take. The package calls
// nothing that may block: the functions of Config answer from memory.
//
// To add a path of the API, change api.go, the table of its test, and docs/http.md. Package status defines what is sent.
package ops

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gradbus/internal/certificate"
	"gradbus/internal/loglimit"
)

// Server is the HTTP side of a ps. It shows, and changes nothing.
type Server struct {
	config  Config
	limits  limits
	log     *slog.Logger
	hub     *Hub
	url     string
	guard   *guard
	tokens  atomic.Pointer[tokens]
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

// shutdownTime is the time for requests in progress at the end; streams end at once.
const shutdownTime = 500 * time.Millisecond

// Start serves until ctx ends or Close is called. An error says what could not be had; nothing is then left. What goes
// wrong later is logged and counted, and ends nothing.
func Start(ctx context.Context, config Config) (*Server, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		config: config, limits: config.limits.withDefaults(), log: loglimit.Logger(config.Log), hub: config.Hub,
		stop:  make(chan struct{}),
		ended: make(chan struct{}),
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
	var profiles net.Listener
	if config.Pprof != "" {
		if profiles, err = net.Listen("tcp", config.Pprof); err != nil {
			listener.Close()
			return nil, taken("pprof", config.Pprof, "choose another with --pprof", err)
		}
	}
	s.begin(ctx, listener, profiles, secure)
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
	if !was.page.equal(now.page) {
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
			s.log.Warn("page port in use, took another one", "wanted", s.config.Listen, "address",
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

func (s *Server) begin(ctx context.Context, listener, profiles net.Listener, secure *certificate.File) {
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
	if profiles != nil {
		h := s.server(ctx, s.profiles())
		h.WriteTimeout = 0 // a profile takes as long as the client asks for
		s.serve(h, bounded(profiles, profilesConnectionsMax), "profiles")
		s.log.Info("profiles", "url", "http://"+profiles.Addr().String()+"/debug/pprof/")
	}
	watched := make(chan struct{})
	s.unwatch = context.AfterFunc(ctx, func() {
		<-watched
		s.Close()
	})
	close(watched)
}

// reachable returns an address in the form that clients on this machine dial.
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

// headerSlop is the number of bytes that net/http reads beyond MaxHeaderBytes before it refuses a request.
const headerSlop = 4 << 10

// connKey finds the connection in a request's context.
type connKey struct{}

func (s *Server) serve(h *http.Server, l net.Listener, what string) {
	s.serving = append(s.serving, h)
	s.running.Go(func() {
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.faults.Add(1)
			s.log.Error("http server ended; training continues without it", "serving", what, "err", err)
		}
	})
}

// faultLog takes what net/http logs: broken handshakes, panics of handlers. It is counted.
type faultLog struct{ s *Server }

func (f faultLog) Write(b []byte) (int, error) {
	f.s.log.Warn("http", "fault", strings.TrimSpace(string(b)), "faults", f.s.faults.Add(1))
	return len(b), nil
}

// URL returns the address of the page for browsers on this machine: http://127.0.0.1:8080/.
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
	RequestsRefused  uint64 // by the rules of guard.go, the token, or a bound
	Faults           uint64 // that net/http logged
	OverviewFaults   uint64 // panics of the Tracker
}

// Stats may be called at any time, and costs next to nothing.
func (s *Server) Stats() Stats {
	return Stats{
		Connections: s.conns.count(), Streams: int(s.streams.Load()), Requests: s.asked.Load(),
		UpdatesMissed: s.missed.Load(), ConnectionsEnded: s.conns.ended.Load(),
		RequestsRefused: s.refused.Load(), Faults: s.faults.Load(),
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

// Config configures a Server. Names in parentheses are those of the flags, which errors use.
type Config struct {
	// Listen (http) is the host:port to serve at; port 0 means any free one.
	Listen string
	// AnyPort takes a free port where that of Listen is taken, and says so in the log, instead of an error: for a ps whose
	// user did not ask for that port.
	AnyPort bool
	// Hosts (http-host) are names besides the address and loopback names that requests may ask for in their Host header:
	// those under which a proxy or a name server makes the page known.
	Hosts []string
	// Machine are names of this machine, that requests may ask for as well; Server.Public gives none of them.
	Machine []string
	// Token (http-token-file) is what requests must show, but for /healthz and the short form of /readyz. Empty means
	// that none is asked for.
	Token string
	// MetricsToken (metrics-token-file) is what requests for /metrics must show where they do not show Token; it opens
	// nothing else. Empty means that there is none.
	MetricsToken string
	// CertFile and KeyFile (http-tls-cert, http-tls-key) are PEM files of a certificate and its key; with them all is TLS.
	CertFile, KeyFile string
	// Insecure (http-insecure) allows an address that other machines reach without Token and TLS.
	Insecure bool
	// Pprof (pprof) is the loopback host:port of Go's profiles. Empty means none.
	Pprof string

	// Hub makes the views. It outlives the Server; its creator closes it.
	Hub *Hub
	// Page holds the files of the page, index.html at its root, each served under its path; nil serves a line of text.
	Page fs.FS
	// Runbooks is Markdown, shown at /runbooks.
	Runbooks string
	// Metrics answers /metrics; nil is none.
	Metrics http.Handler
	// Alive returns the time of the last iteration of the control loop; zero before the first. It must not block.
	Alive func() time.Time
	// Checks returns the checks that must pass for the ps to be ready. It must not block.
	Checks func() []Check
	// Log receives errors; nil discards them. Requests are not logged.
	Log *slog.Logger

	limits limits // zero fields have defaults; tests shorten them
}

// Check is one line of /readyz?verbose.
type Check struct {
	Name string
	OK   bool
	Text string // what is, or what is wrong
}

// limits bound what clients may take of the process.
type limits struct {
	headerBytesMax int           // of a request's line and headers
	headerTime     time.Duration // until a request's headers are there
	formTime       time.Duration // until the form of a request has arrived, after its headers
	writeTime      time.Duration // until an answer is taken
	idleTime       time.Duration // between requests of a connection
	streamTime     time.Duration // that a stream's client may take for one update
	streamsMax     int
	connectionsMax int
	aliveTime      time.Duration // that the control loop may stand still
}

func (l limits) withDefaults() limits {
	set(&l.headerBytesMax, 16<<10)
	set(&l.headerTime, 5*time.Second)
	set(&l.formTime, 2*time.Second)
	set(&l.writeTime, 20*time.Second)
	set(&l.idleTime, time.Minute)
	set(&l.streamTime, 10*time.Second)
	// A connection costs some 28 KiB, with a stream or without. Dashboards are few, and all together stay below 8 MiB.
	set(&l.streamsMax, 128)
	set(&l.connectionsMax, 256)
	set(&l.aliveTime, 10*time.Second)
	return l
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// tokenBytesMin is the shortest token that is worth asking for: 16 hexadecimal digits are 64 bits.
const tokenBytesMin = 16

// Validate says what is wrong, in one line, and what would be right.
func (c Config) Validate() error {
	var wrong []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	host, _, err := net.SplitHostPort(c.Listen)
	check(err == nil, "http %q: want host:port, for example 127.0.0.1:8080, or off", c.Listen)
	check((c.CertFile == "") == (c.KeyFile == ""), "http-tls-cert and http-tls-key: want both or neither")
	for _, each := range [][2]string{{"http-token-file", c.Token}, {"metrics-token-file", c.MetricsToken}} {
		flag, token := each[0], each[1]
		check(token == "" || len(token) >= tokenBytesMin,
			"%s: its token has %d characters, want at least %d: openssl rand -hex 16 makes one", flag, len(token),
			tokenBytesMin)
		check(!strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }),
			"%s: its token holds what is no letter, digit or sign of ASCII", flag)
	}
	check(c.MetricsToken == "" || c.MetricsToken != c.Token,
		"metrics-token-file: its token is that of http-token-file, which opens more: want another")
	if err == nil {
		check(isLoopback(host) || c.Insecure || c.Token != "" && c.CertFile != "",
			"http %s: other machines can reach it: give http-token-file, http-tls-cert and http-tls-key, serve at 127.0.0.1, "+
				"or say http-insecure", c.Listen)
	}
	for _, h := range c.Hosts {
		check(hostName(h) != "" && !strings.ContainsAny(h, "/*@ "),
			"http-host %q: want a name or an address, without scheme and port", h)
	}
	if c.Pprof != "" {
		host, _, err := net.SplitHostPort(c.Pprof)
		check(err == nil && isLoopback(host), "pprof %q: want host:port of this machine alone, for example 127.0.0.1:6060",
			c.Pprof)
	}
	check(c.Hub != nil, "no hub")
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	return nil
}

// isLoopback reports whether only this machine reaches a host to listen at.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// profilesConnectionsMax bounds the connections of the listener for profiles.
const profilesConnectionsMax = 16

// profiles are Go's own, under names of this machine only. The command line, which pprof would show too, may hold
// secrets.
func (s *Server) profiles() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return s.guarded(newGuard(Config{Listen: s.config.Pprof}, nil), mux)
}

// connections is a listener that bounds the connections that are open, and never turns a new one away: one more ends
// the one that costs its client least, by its phase, and of equals the one that has been in it longest. So a probe is
// answered however many clients send requests, forms or handshakes slowly, or do not take their answers.
type connections struct {
	net.Listener
	max   int
	ended atomic.Uint64 // connections, to make room

	mu   sync.Mutex // guards the rest; nothing is waited for under it
	open map[*connection]struct{}
}

// phase is the use of a connection, in the order in which connections are closed to make room.
type phase uint8

const (
	waiting   phase = iota // for a request: idle, in the handshake of TLS, or amid headers
	answering              // a request without the token: its form is read, or its answer is taken
	admitted               // a request with the token
	streaming              // updates; streamsMax keeps these far below the bound of connections
)

// connection is one of them.
type connection struct {
	net.Conn
	of    *connections
	phase phase
	since time.Time // that it has been in its phase
}

func bounded(l net.Listener, most int) *connections {
	return &connections{Listener: l, max: most, open: map[*connection]struct{}{}}
}

// Accept waits for a connection, and makes room for it.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	in := &connection{Conn: conn, of: c, since: time.Now()}
	if last := c.admit(in); last != nil {
		c.ended.Add(1)
		last.Conn.Close()
	}
	return in, nil
}

// admit returns the connection that has to end for a new one; nil where there is room.
func (c *connections) admit(in *connection) (last *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= c.max {
		for each := range c.open {
			if last == nil || cmp.Or(cmp.Compare(each.phase, last.phase), each.since.Compare(last.since)) < 0 {
				last = each
			}
		}
		delete(c.open, last)
	}
	c.open[in] = struct{}{}
	return last
}

// changed is http.Server.ConnState. A connection becomes active when the headers of a request are there, not before.
func changed(conn net.Conn, state http.ConnState) {
	in := plainOf(conn)
	switch {
	case in == nil:
	case state == http.StateActive:
		in.enter(answering)
	default:
		in.enter(waiting)
	}
}

// enter begins a phase.
func (in *connection) enter(p phase) {
	in.of.mu.Lock()
	defer in.of.mu.Unlock()
	in.phase, in.since = p, time.Now()
}

// Close ends the connection and gives its place back.
func (in *connection) Close() error {
	in.of.mu.Lock()
	delete(in.of.open, in)
	in.of.mu.Unlock()
	return in.Conn.Close()
}

func (c *connections) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// plainOf is the connection under TLS, or itself.
func plainOf(conn net.Conn) *connection {
	if over, ok := conn.(*tls.Conn); ok {
		conn = over.NetConn()
	}
	in, _ := conn.(*connection)
	return in
}

// sendBufferBytes bounds what the kernel buffers of a stream for a client that does not read: a few updates. Linux
// doubles it. It is memory of the machine, not of the process.
const sendBufferBytes = 32 << 10

// connectionOf returns the connection of a request; nil if it is not one of the Server's.
func connectionOf(r *http.Request) *connection {
	in, _ := r.Context().Value(connKey{}).(*connection)
	return in
}

// narrow bounds what the kernel buffers of a stream.
func (in *connection) narrow() {
	if tcp, ok := in.Conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBufferBytes) // a wish; a kernel that refuses it buffers more
	}
}
