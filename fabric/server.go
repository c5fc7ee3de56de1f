package fabric

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"gradbus/internal/loglimit"
	"gradbus/internal/temporary"
)

const (
	// PayloadBytesMaxDefault is the default size of the largest message: twice the largest useful chunk, and the size
	// beyond which NATS itself advises against more.
	PayloadBytesMaxDefault = 8 << 20
	// PendingBytesMaxDefault bounds the bytes that wait for one reader. Windows of 4 MiB each may fill half of it, so
	// it serves 32 trainers that all send to one shard.
	PendingBytesMaxDefault = 256 << 20

	// ConnectionsMaxDefault bounds the server's memory and descriptors; a member has three connections.
	ConnectionsMaxDefault = 4096

	// writeDeadline is the time for which a reader may leave its socket full before the server cuts it off.
	writeDeadline = 10 * time.Second
	// pingInterval and pingsMax detect a peer that vanished silently after 10 to 15 s.
	pingInterval = 5 * time.Second
	pingsMax     = 2
	// greetingTimeout bounds the time until a connection has authenticated, and separately the TLS handshake. A client
	// that waits for an overloaded callout gives up before and tries again: at the end of this time the server would say
	// that it is not authorized.
	greetingTimeout = 2 * connectTimeout
	// readyTimeout bounds the start of a server, which takes milliseconds on an idle machine.
	readyTimeout = 30 * time.Second
	// closedMax bounds the number of ended connections that the server remembers, a few hundred bytes each.
	closedMax = 1024
	// bucketBytesMax bounds the memory of JetStream.
	bucketBytesMax = 256 << 20
)

// ServerConfig configures an embedded NATS server.
type ServerConfig struct {
	// Serves members within this process by calls; of the fields below only Port, the limits and JetStream apply. nil:
	// NATS.
	Bus             *Bus
	Host            string       // address to listen at; "" is 127.0.0.1
	Port            int          // TCP port; 0: any free one
	Name            string       // server name in logs; "" is "gradbus"
	PayloadBytesMax int          // largest message, bytes; 0 is PayloadBytesMaxDefault; at most 64 MiB
	PendingBytesMax int64        // bytes that may wait for one reader before it is cut off; 0 is PendingBytesMaxDefault
	connectionsMax  int          // open connections, three a member; 0 is ConnectionsMaxDefault
	JetStream       bool         // also serve the buckets of Control, in memory, at most 256 MiB
	Token           string       // secret that every TCP connection must show; "": none required. See CheckToken
	Guard           *Guard       // limits of TCP connections; nil: none
	TLS             *tls.Config  // server certificate; nil: plain TCP
	Log             *slog.Logger // receives warnings and errors; nil discards them

	greeting time.Duration // bounds the time until a connection has authenticated; 0: greetingTimeout
}

func (c *ServerConfig) validate() error {
	if c.Host == "" {
		c.Host = "127.0.0.1"
	}
	if c.Name == "" {
		c.Name = "gradbus"
	}
	if c.PayloadBytesMax == 0 {
		c.PayloadBytesMax = PayloadBytesMaxDefault
	}
	if c.PendingBytesMax == 0 {
		c.PendingBytesMax = PendingBytesMaxDefault
	}
	if c.connectionsMax == 0 {
		c.connectionsMax = ConnectionsMaxDefault
	}
	c.Log = loglimit.Logger(c.Log)
	var errs []error
	if c.Port < 0 || c.Port > 65535 {
		errs = append(errs, fmt.Errorf("port %d: want 1 to 65535, or 0 for any free one", c.Port))
	}
	if c.PayloadBytesMax < 0 || c.PayloadBytesMax > server.MAX_PAYLOAD_MAX_SIZE*8 {
		errs = append(errs, fmt.Errorf("payload_bytes_max %d: want 1 to %d", c.PayloadBytesMax,
			server.MAX_PAYLOAD_MAX_SIZE*8))
	}
	// A message counts as pending slightly beyond its arrival: with room for only two, a punctual reader would be cut
	// off.
	if c.PendingBytesMax < 4*int64(c.PayloadBytesMax) {
		errs = append(errs, fmt.Errorf("pending_bytes_max %d: want at least four messages, %d", c.PendingBytesMax,
			4*c.PayloadBytesMax))
	}
	if c.connectionsMax < 0 {
		errs = append(errs, fmt.Errorf("connections_max %d: want three a member", c.connectionsMax))
	}
	if len(c.Token) > tokenSecretBytesMax || c.Guard != nil && len(c.Guard.PeerToken) > tokenSecretBytesMax {
		errs = append(errs, fmt.Errorf("token: want at most %d bytes", tokenSecretBytesMax))
	}
	if c.TLS != nil && len(c.TLS.Certificates) == 0 && c.TLS.GetCertificate == nil && c.TLS.GetConfigForClient == nil {
		errs = append(errs, errors.New("tls: no certificate"))
	}
	return errors.Join(errs...)
}

// Server is an embedded NATS server, or its replacement on a Bus. It is safe for concurrent use.
type Server struct {
	config ServerConfig
	url    string
	bus    *busServer // replaces the fields below; nil: NATS
	own    *Key       // of this process's connections; nil if the server asks for no credentials

	turn sync.Mutex // held by Stop and Start, which may take long. Lock order: turn, then mu

	mu      sync.Mutex // never held for long
	nats    *server.Server
	callout *callout // of nats; nil if all connections may do anything
	cutOff  int64    // readers cut off by earlier servers
	closed  bool
}

// StartServer starts a server and returns when it accepts connections. The caller must call Close. It installs no
// signal handlers. Errors: ErrPortTaken; a host that is not of this machine; a configuration error that names the
// field.
func StartServer(config ServerConfig) (*Server, error) {
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("start server: %w", err)
	}
	if config.Bus != nil {
		s := &Server{config: config}
		var err error
		if s.bus, err = config.Bus.add(&s.config); err != nil {
			return nil, err
		}
		s.url = s.bus.url()
		return s, nil
	}
	s := &Server{}
	var err error
	if config.limited() {
		if s.own, err = NewKey(); err != nil {
			return nil, fmt.Errorf("start server: key of its connections: %w", err)
		}
	}
	if s.nats, s.callout, err = startNATS(&config, s.own); err != nil {
		return nil, err
	}
	at := s.nats.Addr().(*net.TCPAddr)
	config.Port = at.Port // also for later restarts
	s.config, s.url = config, serverURL(at, config.TLS != nil)
	return s, nil
}

// limited reports whether connections from outside are asked for a token or have limits.
func (c *ServerConfig) limited() bool { return c.Guard != nil || c.Token != "" }

// startNATS starts a NATS server, and waits until it accepts connections.
func startNATS(config *ServerConfig, own *Key) (*server.Server, *callout, error) {
	address := net.JoinHostPort(config.Host, strconv.Itoa(config.Port))
	options := serverOptions(config)
	callout, err := newCallout(config, options, own)
	if err != nil {
		return nil, nil, fmt.Errorf("start server at %s: keys of its connections: %w", address, err)
	}
	if config.JetStream {
		if options.StoreDir, err = temporary.Folder("folder of JetStream"); err != nil {
			return nil, nil, fmt.Errorf("start server at %s: %w", address, err)
		}
		defer os.RemoveAll(options.StoreDir) // empty folders that JetStream needs only when it starts
	}
	nats, err := server.NewServer(options)
	if err != nil {
		return nil, nil, fmt.Errorf("start server at %s: %w", address, err)
	}
	log := &serverLog{log: config.Log}
	nats.SetLoggerV2(log, false, false, false)
	nats.Start()
	if err = log.fatal(); err == nil {
		err = admitClients(config, nats, callout)
	}
	if err == nil {
		err = log.fatal()
	}
	switch {
	case err != nil:
		err = startError(address, options.StoreDir, err)
	case !nats.ReadyForConnections(readyTimeout):
		err = fmt.Errorf("start server at %s: not ready after %s", address, readyTimeout)
	default:
		return nats, callout, nil
	}
	stopNATS(nats, callout)
	return nil, nil, err
}

// admitClients makes a started server listen. First there is the callout, without which a client would wait in vain,
// and JetStream of the global account, which NATS leaves out where there are other accounts.
func admitClients(config *ServerConfig, nats *server.Server, callout *callout) error {
	if callout != nil {
		if err := callout.open(nats); err != nil {
			return fmt.Errorf("auth callout: %w", err)
		}
		if config.JetStream {
			if err := nats.GlobalAccount().EnableJetStream(nil, nil); err != nil {
				return err
			}
		}
	}
	nats.AcceptLoop(make(chan struct{})) // closes the channel
	return nil
}

func stopNATS(nats *server.Server, callout *callout) {
	if callout != nil {
		callout.leave()
		defer callout.close()
	}
	nats.Shutdown()
	nats.WaitForShutdown()
}

func serverOptions(config *ServerConfig) *server.Options {
	options := &server.Options{
		ServerName:       config.Name,
		Host:             config.Host,
		Port:             config.Port,
		NoSigs:           true,
		NoLog:            true,                      // SetLoggerV2 sets the logger
		NoSystemAccount:  !config.limited(),         // the callout needs it
		DontListen:       true,                      // admitClients begins to
		MaxConn:          config.connectionsMax + 1, // the callout's
		MaxClosedClients: closedMax,
		MaxPayload:       int32(config.PayloadBytesMax),
		MaxPending:       config.PendingBytesMax,
		WriteDeadline:    writeDeadline,
		PingInterval:     pingInterval,
		MaxPingsOut:      pingsMax,
		TLSConfig:        config.TLS,
		TLS:              config.TLS != nil,
		AuthTimeout:      cmp.Or(config.greeting, greetingTimeout).Seconds(),
	}
	if config.Port == 0 {
		options.Port = server.RANDOM_PORT
	}
	if config.JetStream {
		// 0 would mean three quarters of the disk.
		options.JetStream, options.JetStreamMaxMemory, options.JetStreamMaxStore = true, bucketBytesMax, 1
	}
	if config.TLS != nil {
		options.TLSTimeout = greetingTimeout.Seconds()
	}
	if config.Guard != nil {
		options.MaxSubTokens, options.MaxControlLine = subTokensMax, controlLineBytesMax
	}
	return options
}

// startError returns what a person can do about a server that does not start. folder is JetStream's; empty: none.
func startError(address, folder string, err error) error {
	if folder != "" && strings.Contains(err.Error(), folder) {
		return fmt.Errorf("start server at %s: folder of JetStream: %w", address, temporary.Advise(err))
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("start server: %w: %s is in use by another process; want another host or port, or port 0 for "+
			"any free one", ErrPortTaken, address)
	}
	return fmt.Errorf("start server at %s: %w; want a host of this machine, and a port that this user may take",
		address, err)
}

func serverURL(at *net.TCPAddr, secure bool) string {
	host := at.IP.String()
	if at.IP.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "nats"
	if secure {
		scheme = "tls"
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(at.Port))
}

// URL returns the address that members on this machine dial, with the chosen port.
func (s *Server) URL() string { return s.url }

// inProcess connects to the server without a socket.
func (s *Server) inProcess() (net.Conn, error) { return s.serving().InProcessConn() }

func (s *Server) serving() *server.Server {
	nats, _ := s.current()
	return nats
}

func (s *Server) current() (*server.Server, *callout) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nats, s.callout
}

// connected lists the connections at one moment.
type connected struct {
	names, faded   []string
	anonymousBytes int64
}

// connected returns a list that is at most lookEvery old, or older if new connections keep the callout busy: callers must
// not wait for those. Without a callout it is current.
func (s *Server) connected() *connected {
	nats, callout := s.current()
	if callout != nil {
		return callout.seen.Load()
	}
	return &connected{names: openNames(nats, 0), faded: fadedNames(nats)}
}

// Clients lists the names of the open client connections, ascending, each once even if a member has three. It does not
// block; the list may be some hundred milliseconds old.
func (s *Server) Clients() []string {
	if s.bus != nil {
		return s.bus.clients()
	}
	return s.connected().names
}

// openNames returns the names of open connections but one. It takes some microseconds per connection.
func openNames(nats *server.Server, except uint64) []string {
	connections, err := nats.Connz(&server.ConnzOptions{Limit: math.MaxInt32})
	if err != nil {
		return nil // only for options that are not used here
	}
	names := make([]string, 0, len(connections.Conns))
	for _, c := range connections.Conns {
		if c.Cid != except {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return slices.Clip(slices.Compact(names)) // shared: appending must not overwrite it
}

// Faded lists the names of connections that the server gave up because they sent nothing or accepted nothing, and that
// were not closed otherwise since: their members may be cut off rather than gone. It examines the last closedMax
// connections that have ended, when Clients does.
func (s *Server) Faded() []string {
	if s.bus != nil {
		return nil
	}
	return s.connected().faded
}

func fadedNames(nats *server.Server) []string {
	closed, err := nats.Connz(&server.ConnzOptions{State: server.ConnClosed, Limit: closedMax})
	if err != nil {
		return nil // only for options that are not used here
	}
	last := map[string]*server.ConnInfo{}
	for _, c := range closed.Conns {
		if at := last[c.Name]; at == nil || c.Stop.After(*at.Stop) {
			last[c.Name] = c
		}
	}
	var names []string
	for name, c := range last {
		switch c.Reason {
		case server.StaleConnection.String(), server.SlowConsumerWriteDeadline.String(),
			server.SlowConsumerPendingBytes.String():
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// AnonymousBytes bounds the memory that the present anonymous clients can make the server use; at most the function
// AnonymousBytes for all connections. It is 0 without a Guard, and as old as Clients.
func (s *Server) AnonymousBytes() int64 {
	if s.bus != nil {
		return 0
	}
	return s.connected().anonymousBytes
}

// SlowConsumers returns the number of readers that were cut off because they did not read in time, since StartServer.
func (s *Server) SlowConsumers() int64 {
	if s.bus != nil {
		return s.bus.slow.Load()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cutOff + s.nats.NumSlowConsumers()
}

// SetTokens changes the secrets that connections from outside must show from now on: that of all, and that of peers.
// Existing connections stay. A server that was started without tokens and without a Guard stays without.
func (s *Server) SetTokens(token, peer string) {
	if s.bus != nil {
		return
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	s.config.Token = token
	if s.config.Guard != nil {
		guard := *s.config.Guard
		guard.PeerToken = peer
		s.config.Guard = &guard
	}
	if _, callout := s.current(); callout != nil {
		callout.ask(&s.config)
	}
}

// Recheck closes the connections to which Guard.Grant gives nothing any more.
func (s *Server) Recheck() {
	if s.bus != nil {
		return
	}
	if _, callout := s.current(); callout != nil {
		callout.recheck()
	}
}

// Stop cuts all connections and stops serving, until Start. Connections, including those of this process, are Lost and
// keep reconnecting.
func (s *Server) Stop() {
	if s.bus != nil {
		s.bus.stop(true)
		return
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	stopNATS(s.current())
}

// Start serves again after Stop, at the same address. Errors are those of StartServer, and ErrClosed after Close.
func (s *Server) Start() error {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return fmt.Errorf("start server: %w", ErrClosed)
	}
	if s.bus != nil {
		s.bus.start()
		return nil
	}
	if s.serving().Running() {
		return nil
	}
	nats, callout, err := startNATS(&s.config, s.own)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutOff += s.nats.NumSlowConsumers()
	s.nats, s.callout = nats, callout
	return nil
}

// Close cuts all connections, stops the server and waits until it has ended. It may be called again.
func (s *Server) Close() {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if s.bus != nil {
		if !was { // another server may have the address by now
			s.bus.close()
		}
		return
	}
	s.Stop()
}

// tokenBytesMin is the length of the shortest accepted token: 16 hexadecimal digits are 64 bits.
const tokenBytesMin = 16

// CheckToken returns what is wrong with the token of a server that others may reach, and what would be valid. It
// accepts an empty token.
func CheckToken(token string) error {
	switch {
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("token: it holds what is no letter, digit or sign of ASCII: openssl rand -hex 16 makes one")
	case token != "" && len(token) < tokenBytesMin:
		return fmt.Errorf("token: it has %d characters, want at least %d: openssl rand -hex 16 makes one", len(token),
			tokenBytesMin)
	}
	return nil
}

// serverLog passes the embedded server's messages, from warnings on, to slog under one message. Those that clients can
// cause, with names that they choose, share a rate limit of their own. A reader that is cut off is logged as a warning,
// although NATS reports it as a notice.
type serverLog struct {
	log *slog.Logger

	mu    sync.Mutex
	first error // first fatal error; guarded by mu
}

func (l *serverLog) Noticef(format string, v ...any) {
	if strings.Contains(format, "Slow Consumer") {
		l.say(slog.LevelWarn, "slow consumer", fmt.Sprintf(format, v...))
	}
}

func (l *serverLog) Warnf(format string, v ...any) { l.sayOf(slog.LevelWarn, format, v...) }

func (l *serverLog) Errorf(format string, v ...any) { l.sayOf(slog.LevelError, format, v...) }

// clientMark is part of NATS's messages about a client, which may have chosen parts of the format.
const clientMark = " - cid:"

func (l *serverLog) sayOf(level slog.Level, format string, v ...any) {
	text, kind := fmt.Sprintf(format, v...), format
	if strings.Contains(text, clientMark) {
		kind = "client"
	}
	l.say(level, kind, text)
}

func (l *serverLog) say(level slog.Level, kind, text string) {
	l.log.Log(loglimit.Apart(context.Background(), kind), level, "nats server", "component", "nats", "text", text)
}

// Fatalf keeps the error, with what it wraps, for StartServer to return. NATS calls it and returns; a library does not
// exit.
func (l *serverLog) Fatalf(format string, v ...any) {
	err := fmt.Errorf(format, v...)
	for _, arg := range v {
		if cause, ok := arg.(error); ok {
			err = cause
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.first == nil {
		l.first = err
	}
}

func (l *serverLog) fatal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

func (l *serverLog) Debugf(string, ...any) {}
func (l *serverLog) Tracef(string, ...any) {}

// ServiceConfig describes a program to tools that look for services at a NATS server.
type ServiceConfig struct {
	Name        string            // of the kind of service: letters, digits, - and _
	Version     string            // of the program, as in 1.2.3
	Description string            // for people
	Metadata    map[string]string // fixed while it runs

	// Endpoint and Subject name the request that the service answers, and its subject: "status" at
	// "gradbus-ps.a.status".
	Endpoint, Subject string
	// Answer returns the answer, a JSON value: to that request, and as the endpoint's data in $SRV.STATS. NATS calls it
	// on its own goroutine; it must return at once, and its result must not be changed afterwards. nil: there is no
	// answer yet.
	Answer func() []byte
}

const (
	// serviceMessagesMax and serviceBytesMax bound the requests that wait for one answering goroutine; further ones are
	// dropped.
	serviceMessagesMax = 256
	serviceBytesMax    = 1 << 20

	// inboxPrefix begins the reply subjects of NATS's clients, and memberInboxPrefix those of this package's
	// connections.
	inboxPrefix       = "_INBOX."
	memberInboxPrefix = inboxPrefix + "gradbus"
)

// serviceSubjects returns the subjects of a verb of NATS's service protocol: for all services, for those of a name, and
// for a single one.
func serviceSubjects(verb micro.Verb, identity *micro.ServiceIdentity) (subjects []string) {
	for _, of := range [][2]string{{}, {identity.Name}, {identity.Name, identity.ID}} {
		subject, err := micro.ControlSubject(verb, of[0], of[1])
		if err != nil {
			panic(err) // only for verbs that do not exist
		}
		subjects = append(subjects, subject)
	}
	return subjects
}

// Service registers the program with NATS's service protocol: nats micro ls, info and stats find it, by subjects
// $SRV.PING, $SRV.INFO and $SRV.STATS. It lasts until the connection ends, and may be called once. Its subscriptions
// are static.
func (c *Control) Service(config ServiceConfig) error {
	if c.bus != nil {
		return nil // no tool can reach it
	}
	s := &service{line: c.nats}
	identity := micro.ServiceIdentity{Name: config.Name, ID: newSecret(), Version: config.Version,
		Metadata: config.Metadata}
	started := time.Now().UTC()
	answer := func() json.RawMessage {
		if data := config.Answer(); data != nil {
			return data
		}
		return json.RawMessage("null")
	}
	answers := map[string]func() any{config.Subject: func() any { return answer() }}
	for verb, says := range map[micro.Verb]func() any{
		micro.PingVerb: func() any { return &micro.Ping{ServiceIdentity: identity, Type: micro.PingResponseType} },
		micro.InfoVerb: func() any {
			return &micro.Info{ServiceIdentity: identity, Type: micro.InfoResponseType, Description: config.Description,
				Endpoints: []micro.EndpointInfo{{Name: config.Endpoint, Subject: config.Subject}}}
		},
		micro.StatsVerb: func() any {
			return &micro.Stats{ServiceIdentity: identity, Type: micro.StatsResponseType, Started: started,
				Endpoints: []*micro.EndpointStats{{Name: config.Endpoint, Subject: config.Subject,
					NumRequests: int(s.answered.Load()), NumErrors: int(s.refused.Load()), Data: answer()}}}
		},
	} {
		for _, subject := range serviceSubjects(verb, &identity) {
			answers[subject] = says
		}
	}
	if err := c.addHandler(); err != nil { // Close waits for subscriptions that are made here
		return fmt.Errorf("make service %s known at %s: %w", config.Name, c.Address(), err)
	}
	defer c.handlers.Done()
	for subject, says := range answers {
		if err := c.nats.subscribeWithin(subject, serviceMessagesMax, serviceBytesMax, func(m *nats.Msg) {
			s.respond(m, says)
		}); err != nil {
			return fmt.Errorf("make service %s known at %s: %w", config.Name, c.Address(), err)
		}
	}
	return nil
}

// service answers requests of tools.
type service struct {
	line              *natsLine
	answered, refused atomic.Uint64
}

// respond answers a request at the subject that its sender chose. No other code publishes to such a subject. The
// connection may write to JetStream, so a reply subject outside of the inboxes of NATS's clients would let a client
// write there in the server's name ($KV.gradbus-servers.ID); one among the inboxes of members would forge an answer of
// JetStream's.
func (s *service) respond(m *nats.Msg, says func() any) {
	if !strings.HasPrefix(m.Reply, inboxPrefix) || strings.HasPrefix(m.Reply, memberInboxPrefix+".") {
		s.line.config.Log.Warn("service question refused, its reply subject is no inbox", "connection",
			s.line.config.Name, "subject", clip(m.Subject), "reply", clip(m.Reply), "refused", s.refused.Add(1))
		return
	}
	s.answered.Add(1)
	data, err := json.Marshal(says())
	if err == nil {
		err = m.Respond(data)
	}
	if err != nil && !isClosed(err) {
		s.line.config.Log.Debug("service question not answered", "subject", m.Subject, "err", err)
	}
}
