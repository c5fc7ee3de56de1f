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
	"net/url"
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
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"gradbus/internal/loglimit"
	"gradbus/internal/temporary"
)

const (
	// PayloadBytesMaxDefault is the largest message the embedded server accepts where its configuration is silent:
	// twice the largest chunk that is of any use, and the size beyond which NATS itself advises against more.
	PayloadBytesMaxDefault = 8 << 20
	// PendingBytesMaxDefault bounds what waits for one reader. Windows of 4 MiB each may fill half of it, so it serves
	// 32 trainers that all send to one shard.
	PendingBytesMaxDefault = 256 << 20

	// ConnectionsMaxDefault bounds the server's memory and descriptors; a member holds three connections.
	ConnectionsMaxDefault = 4096

	// writeDeadline is how long a reader may leave its socket full before the server cuts it off.
	writeDeadline = 10 * time.Second
	// pingInterval and pingsMax find a peer that vanished without a word after 10 to 15 s.
	pingInterval = 5 * time.Second
	pingsMax     = 2
	// greetingTimeout is how long a connection may take to say who it is, and as long for TLS: as long as those of ours
	// do.
	greetingTimeout = connectTimeout
	// readyTimeout bounds the start of a server, which takes milliseconds where the machine is not busy.
	readyTimeout = 30 * time.Second
	// closedMax bounds what the server remembers of connections that have ended, some hundred bytes each.
	closedMax = 1024
	// bucketBytesMax bounds what JetStream keeps in memory.
	bucketBytesMax = 256 << 20
)

// ServerConfig describes an embedded NATS server.
type ServerConfig struct {
	// serve members within this process, by calls; of what follows Port and the bounds count, and JetStream. nil is NATS
	Bus             *Bus
	Host            string       // address to listen at; "" is 127.0.0.1
	Port            int          // TCP port; 0 is any free one
	Name            string       // server name in logs; "" is "gradbus"
	PayloadBytesMax int          // largest message, bytes; 0 is PayloadBytesMaxDefault; at most 64 MiB
	PendingBytesMax int64        // bytes that may wait for one reader before it is cut off; 0 is PendingBytesMaxDefault
	connectionsMax  int          // open connections, three a member; 0 is ConnectionsMaxDefault
	JetStream       bool         // also keep the buckets of Control, in memory, at most 256 MiB
	Token           string       // secret that every TCP connection must show; "" asks for none. See CheckToken
	Guard           *Guard       // what TCP connections may do; nil: anything
	TLS             *tls.Config  // server certificate; nil is plain TCP
	Log             *slog.Logger // receives warnings and errors; nil discards them

	greeting time.Duration // that a connection may take to say who it is; 0 is greetingTimeout
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
	// A message counts as pending a little beyond its arrival: with room for two, a reader who is on time is cut off.
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

// Server is an embedded NATS server, or what stands for one on a Bus. It is safe for concurrent use.
type Server struct {
	config ServerConfig
	url    string
	bus    *busServer // in place of what follows; nil is NATS
	token  string     // of this process's connections: drawn at random, and known to this process alone

	turn sync.Mutex // of Stop and Start, which take their time. Lock order: turn, then mu

	mu     sync.Mutex // never held for long
	nats   *server.Server
	door   *door // of nats; nil where everybody may do anything
	cutOff int64 // readers, by servers before the present one
	closed bool
}

// StartServer starts a server and returns when it accepts connections. The caller owns it and calls Close. It installs
// no signal handlers. Errors: ErrPortTaken; a host that is not of this machine; a configuration error naming the field.
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
	secret := newSecret()
	nats, door, err := startNATS(&config, secret)
	if err != nil {
		return nil, err
	}
	at := nats.Addr().(*net.TCPAddr)
	config.Port = at.Port // of every later one too
	return &Server{config: config, nats: nats, door: door, token: secret, url: serverURL(at, config.TLS != nil)}, nil
}

// startNATS starts what serves, and waits until it accepts connections.
func startNATS(config *ServerConfig, secret string) (*server.Server, *door, error) {
	address := net.JoinHostPort(config.Host, strconv.Itoa(config.Port))
	options := serverOptions(config)
	door, err := newDoor(config, secret)
	if err != nil {
		return nil, nil, fmt.Errorf("start server at %s: keys of its connections: %w", address, err)
	}
	if door != nil {
		options.CustomClientAuthentication = door
	}
	if config.JetStream {
		if options.StoreDir, err = temporary.Folder("folder of JetStream"); err != nil {
			return nil, nil, fmt.Errorf("start server at %s: %w", address, err)
		}
		defer os.RemoveAll(options.StoreDir) // empty folders that JetStream wants to see when it starts, and never again
	}
	nats, err := server.NewServer(options)
	if err != nil {
		return nil, nil, fmt.Errorf("start server at %s: %w", address, err)
	}
	log := &serverLog{log: config.Log}
	nats.SetLoggerV2(log, false, false, false)
	if door != nil {
		door.open(nats)
	}
	nats.Start()
	err = log.fatal()
	switch {
	case err != nil:
		err = startError(address, options.StoreDir, err)
	case !nats.ReadyForConnections(readyTimeout):
		err = fmt.Errorf("start server at %s: not ready after %s", address, readyTimeout)
	default:
		return nats, door, nil
	}
	stopNATS(nats, door)
	return nil, nil, err
}

func stopNATS(nats *server.Server, door *door) {
	if door != nil {
		door.close()
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
		NoLog:            true, // SetLoggerV2 sets ours
		NoSystemAccount:  true,
		MaxConn:          config.connectionsMax,
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
		// 0 would be three quarters of the disk
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

// startError says what a person may do about a server that does not start. folder is JetStream's; empty: there is none.
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

// URL is the address that members on this machine dial, with the port that was chosen.
func (s *Server) URL() string { return s.url }

// inProcess connects to the server without a socket.
func (s *Server) inProcess() (net.Conn, error) { return s.serving().InProcessConn() }

func (s *Server) serving() *server.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nats
}

// connected is who is connected, as of a look.
type connected struct {
	names, faded []string
	guestBytes   int64
}

// connected is as of at most doorEvery ago, or longer where new connections keep the door busy: who asks must not wait
// for those. Without a door it is as of now.
func (s *Server) connected() *connected {
	s.mu.Lock()
	nats, door := s.nats, s.door
	s.mu.Unlock()
	if door != nil {
		return door.seen.Load()
	}
	return &connected{names: openNames(nats), faded: fadedNames(nats)}
}

// Clients lists the names of the open client connections, ascending, each once though a member holds three. It waits
// for no connection: what it gives may be some hundred milliseconds old.
func (s *Server) Clients() []string {
	if s.bus != nil {
		return s.bus.clients()
	}
	return s.connected().names
}

// openNames are those of the open connections. It takes some microseconds a connection.
func openNames(nats *server.Server) []string {
	connections, err := nats.Connz(&server.ConnzOptions{Limit: math.MaxInt32})
	if err != nil {
		return nil // only for options that are not used here
	}
	names := make([]string, 0, len(connections.Conns))
	for _, c := range connections.Conns {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return slices.Clip(slices.Compact(names)) // shared: what a reader appends goes elsewhere
}

// connections asks the server for its connections while the door writes nothing of any.
func (s *Server) connections(options server.ConnzOptions) (*server.Connz, error) {
	s.mu.Lock()
	nats, door := s.nats, s.door
	s.mu.Unlock()
	if door != nil {
		door.mu.Lock()
		defer door.mu.Unlock()
	}
	return nats.Connz(&options)
}

// Faded lists the names of connections that this server gave up, because nothing came from them or they took nothing,
// and that were not closed otherwise since: their members may be cut off rather than gone. It looks at the last
// closedMax connections that have ended, when Clients does.
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

// GuestBytes bounds what connections that are there can make the server hold as guests: at most the GuestBytes of all.
// It is 0 without a Guard, and as old as Clients.
func (s *Server) GuestBytes() int64 {
	if s.bus != nil {
		return 0
	}
	return s.connected().guestBytes
}

// SlowConsumers counts the readers that were cut off because they did not read in time, since StartServer.
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
	s.mu.Lock()
	door := s.door
	s.mu.Unlock()
	if door != nil {
		door.ask(&s.config)
	}
}

// Stop cuts all connections and stops serving, until Start. Connections, also those of this process, are Lost and keep
// trying.
func (s *Server) Stop() {
	if s.bus != nil {
		s.bus.stop(true)
		return
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	s.mu.Lock()
	nats, door := s.nats, s.door
	s.mu.Unlock()
	stopNATS(nats, door)
}

// Start serves again after Stop, at the same address. Errors as of StartServer, and ErrClosed after Close.
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
	nats, door, err := startNATS(&s.config, s.token)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutOff += s.nats.NumSlowConsumers()
	s.nats, s.door = nats, door
	return nil
}

// Close cuts all connections, stops the server and waits until it is gone. It may be called again.
func (s *Server) Close() {
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.mu.Unlock()
	if s.bus != nil {
		if !was { // its address may be another's by now
			s.bus.close()
		}
		return
	}
	s.Stop()
}

// tokenBytesMin is the shortest token that is worth asking for: 16 hexadecimal digits are 64 bits.
const tokenBytesMin = 16

// CheckToken says what is wrong with the token of a server that others may reach, and what would be right. None at all
// is none of its business.
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

// serverLog passes what the embedded server has to say to slog, from warnings on, as one message. What clients can have
// it say, with names of theirs, is limited together, apart from what it says itself. A reader that is cut off is a
// warning to us, though NATS gives it as a notice.
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

// clientMark is in what NATS says of a client, which may have made the format, too.
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

// Fatalf keeps the error for StartServer to return, with what it wraps. NATS calls it and returns; a library does not
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

// MonitoringPages are the pages of NATS's own monitoring that Server.Monitoring gives, each with its parameters, which
// mean what they mean to nats-server. Left out are those that tell of the process rather than of NATS.
var MonitoringPages = map[string][]string{
	"varz": nil, "jsz": nil, "connz": {"subs", "offset", "limit", "sort", "state"}, "subsz": {"subs", "offset", "limit"},
}

// Monitoring is a page of NATS's own monitoring, as JSON. It costs as much as Clients, and more with subscriptions.
// Errors: a page or a value that is not known; a server on a Bus, which has none.
func (s *Server) Monitoring(page string, parameters url.Values) (text []byte, err error) {
	if s.bus != nil {
		return nil, errors.New("the server of this process is not NATS")
	}
	var offset, limit int
	var subs bool
	err = cmp.Or(number(parameters, "offset", &offset), number(parameters, "limit", &limit))
	detail := parameters.Get("subs") == "detail"
	if given := parameters.Get("subs"); given != "" && !detail && err == nil {
		if subs, err = strconv.ParseBool(given); err != nil {
			err = fmt.Errorf("subs %q: want 1, 0 or detail", clip(given))
		}
	}
	state, known := map[string]server.ConnState{"": server.ConnOpen, "open": server.ConnOpen, "closed": server.ConnClosed,
		"all": server.ConnAll}[parameters.Get("state")]
	if !known && err == nil {
		err = fmt.Errorf("state %q: want open, closed or all", clip(parameters.Get("state")))
	}
	if err != nil {
		return nil, err
	}
	var found any
	switch page {
	case "varz":
		found, err = s.serving().Varz(nil)
	case "jsz":
		found, err = s.serving().Jsz(nil)
	case "connz":
		found, err = s.connections(server.ConnzOptions{Subscriptions: subs, SubscriptionsDetail: detail, Offset: offset,
			Limit: limit, Sort: server.SortOpt(parameters.Get("sort")), State: state})
	case "subsz":
		found, err = s.serving().Subsz(&server.SubszOptions{Subscriptions: subs || detail, Offset: offset, Limit: limit})
	default:
		err = fmt.Errorf("no page %q of NATS's monitoring", clip(page))
	}
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(found, "", "  ")
}

// number reads a parameter that counts, if it is there.
func number(parameters url.Values, name string, to *int) (err error) {
	if text := parameters.Get(name); text != "" {
		if *to, err = strconv.Atoi(text); err != nil || *to < 0 {
			return fmt.Errorf("%s %q: want a number, 0 or more", name, clip(text))
		}
	}
	return nil
}

// Survey is what a NATS server reports to a client that may use it as control server: enough to see settings that would
// lose data.
type Survey struct {
	Address         string
	Version         string // of the server
	Cluster         string // its name; empty where it is alone
	servers         int    // of the cluster that are known
	PayloadBytesMax int
	tls             bool

	JetStream error // nil where the account has JetStream
	Memory    Share // that the account may take, and takes; of JetStream
	storage   Share
	Buckets   []BucketSurvey // of those that were asked for and are there
}

// Share is how much of something is used. Max is -1 where there is no limit.
type Share struct{ Used, Max int64 }

// BucketSurvey is how a bucket is kept.
type BucketSurvey struct {
	Name     string
	InMemory bool
	Replicas int // that it should have
	Current  int // of these that are up to date, the leader among them
	Keys     uint64
	Bytes    uint64
	BytesMax int64
}

// Survey asks the server for itself and for buckets by name. Errors: ErrLost.
func (c *Control) Survey(ctx context.Context, buckets ...string) (Survey, error) {
	if c.bus != nil {
		return Survey{Address: c.Address(), servers: 1, PayloadBytesMax: c.PayloadBytesMax()}, nil
	}
	nc := c.nats.nats
	s := Survey{Address: c.Address(), Version: nc.ConnectedServerVersion(), Cluster: nc.ConnectedClusterName(),
		servers:         max(1, len(nc.Servers())),
		PayloadBytesMax: c.PayloadBytesMax()}
	_, err := nc.TLSConnectionState()
	s.tls = err == nil
	asked, end := c.asking(ctx)
	account, err := c.js.AccountInfo(asked)
	err = end(err)
	switch {
	case errors.Is(err, ErrDenied):
		return s, fmt.Errorf("survey: %w", err)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		s.JetStream = bucketError(c.Address(), err)
		return s, nil
	case err != nil:
		return s, fmt.Errorf("survey: %w: %s: %w", ErrLost, c.Address(), err)
	}
	s.Memory = Share{int64(account.Memory), account.Limits.MaxMemory}
	s.storage = Share{int64(account.Store), account.Limits.MaxStore}
	for _, name := range buckets {
		stream, err := c.js.Stream(ctx, "KV_"+name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			continue
		}
		if err != nil {
			return s, fmt.Errorf("survey: bucket %s: %w", name, bucketError(c.Address(), err))
		}
		info := stream.CachedInfo()
		b := BucketSurvey{Name: name, InMemory: info.Config.Storage == jetstream.MemoryStorage,
			Replicas: info.Config.Replicas, Current: 1,
			Keys: info.State.Msgs, Bytes: info.State.Bytes, BytesMax: info.Config.MaxBytes}
		if info.Cluster != nil {
			for _, r := range info.Cluster.Replicas {
				if r.Current && !r.Offline {
					b.Current++
				}
			}
		}
		s.Buckets = append(s.Buckets, b)
	}
	return s, nil
}

// ServiceConfig is what a program says of itself to tools that look for services at a NATS server.
type ServiceConfig struct {
	Name        string            // of the kind of service: letters, digits, - and _
	Version     string            // of the program, as in 1.2.3
	Description string            // for people
	Metadata    map[string]string // what does not change while it runs

	// Endpoint and Subject name one question that the service answers, and where it is asked: "status" at
	// "gradbus-ps.a.status".
	Endpoint, Subject string
	// Answer is what is answered, a JSON value: to that question, and as the endpoint's data in $SRV.STATS. It is called
	// by a goroutine of NATS's, must return at once, and what it returns is not to be changed any more. nil says that
	// there is no answer yet.
	Answer func() []byte
}

const (
	// serviceMessagesMax and serviceBytesMax bound the questions that wait for one answering goroutine; beyond, they are
	// dropped.
	serviceMessagesMax = 256
	serviceBytesMax    = 1 << 20

	// inboxPrefix begins the reply subjects of NATS's clients, and memberInboxPrefix those of this package's connections.
	inboxPrefix       = "_INBOX."
	memberInboxPrefix = inboxPrefix + "gradbus"
)

// serviceSubjects gives the subjects at which a verb of NATS's service protocol is asked: of all services, of those of
// a name, and of one alone.
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

// Service makes the program known to tools that speak NATS's service protocol: nats micro ls, info and stats find it,
// by subjects $SRV.PING, $SRV.INFO and $SRV.STATS. It lasts until the connection ends, and may be called once. Its
// subscriptions are static.
func (c *Control) Service(config ServiceConfig) error {
	if c.bus != nil {
		return nil // no tool reaches it
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
	if err := c.addHandler(); err != nil { // Close waits for what is subscribed here
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

// service answers what tools ask.
type service struct {
	line              *natsLine
	answered, refused atomic.Uint64
}

// respond answers a question at the subject that its sender chose. This is the only place that publishes to such a
// subject. The connection may write to JetStream, so a reply subject outside of the inboxes of NATS's clients would
// have a stranger write there in our name ($KV.gradbus-servers.ID); one among the inboxes of members would forge an
// answer of JetStream's.
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
