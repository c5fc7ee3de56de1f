package fabric

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"gradbus/internal/loglimit"
)

const (
	// dialTimeout bounds connecting, of all lines, handshake and all, where ctx does not.
	dialTimeout = 15 * time.Second
	// closeTimeout bounds Close: handlers that do not return by then are named in the log and left.
	closeTimeout = 5 * time.Second
	// roundTripTimeout bounds the wait for the server's word that it has taken in what was sent.
	roundTripTimeout = 5 * time.Second
	// pendingMessagesMax bounds small messages that wait for one handler, which pendingBytesMax would let through in
	// great numbers.
	pendingMessagesMax = 1 << 16
)

// lineIndex names one of the connections of a Conn. Bulk goes one way on each of the first two, so that what comes in
// never waits for what goes out.
type lineIndex int

const (
	bulkLine    lineIndex = iota // what is published: dense, sparse, reduce, mean, rows
	resultsLine                  // what is subscribed to of these kinds
	controlLine                  // ack, ctl, beat, pull and lookup, both ways
	lineCount
)

func (l lineIndex) String() string { return [...]string{"bulk", "results", "control"}[l] }

// Config describes a connection.
type Config struct {
	URL       string  // nats://host:port or tls://host:port
	Server    *Server // a server in this process, reached without a socket; URL, Token, CredsFile, TLS, Renew are not used
	Bus       *Bus    // the network that URL is an address of; nil is TCP
	Name      string  // connection name, "job/member"; Server.Clients lists it
	Token     string  // secret that the server asks for; "" is none
	CredsFile string  // file with NATS credentials, where the server wants such; "" is none
	// how to check the server's certificate; nil is plain TCP, or the system's roots for tls://
	TLS *tls.Config
	// what Token and TLS are by now, for each attempt to connect; nil: as they are here. Where TLS is nil it stays nil
	Renew   func() (token string, tls *tls.Config)
	Log     *slog.Logger // receives faults; nil discards them
	OnState func(State)  // told of every change of state, in order, by one goroutine; it must not call Close
	// bytes that may wait for one handler on a line over nats.go before messages are dropped and counted; 0 is
	// PendingBytesMaxDefault
	PendingBytesMax int
	// that messages are read into, perhaps by several connections; nil: its own, of FreeBytesMaxDefault
	Buffers *Buffers
	Plain   bool // bulk too goes over nats.go: slower, with allocations and copies, otherwise the same

	// Direct has a server on a Bus call handlers on the goroutine that publishes, within Send and under whatever locks its
	// caller holds, and several at a time. Such a handler waits for no lock that anybody holds while it publishes. What it
	// is given ends with the call, but for Message.Keep. Elsewhere it says nothing.
	Direct bool
}

// Conn is a member's way to the others over one server: three NATS connections, one for bulk that goes out, one for
// bulk that comes in and one for control, so that neither an ack nor a heartbeat ever waits behind gradients. It
// reconnects by itself, for ever. It is safe for concurrent use.
type Conn struct {
	config   Config
	lines    [lineCount]line // nil after a failed Dial
	patience time.Duration   // closeTimeout

	life
}

// Stats counts since Dial, over all connections. A message that arrives for two subscriptions counts twice.
type Stats struct {
	BytesSent, BytesReceived       uint64
	MessagesSent, MessagesReceived uint64
	Reconnects                     uint64
	Dropped                        uint64 // messages that were dropped because a handler was too slow: a fault
}

// Add adds the counts of another connection.
func (s *Stats) Add(n Stats) {
	s.BytesSent, s.BytesReceived = s.BytesSent+n.BytesSent, s.BytesReceived+n.BytesReceived
	s.MessagesSent, s.MessagesReceived = s.MessagesSent+n.MessagesSent, s.MessagesReceived+n.MessagesReceived
	s.Reconnects, s.Dropped = s.Reconnects+n.Reconnects, s.Dropped+n.Dropped
}

// Dial connects all lines. It takes at most as long as ctx, or 5 s. Errors: ErrNoServer where nothing listens, or what
// listens does not speak NATS; ErrRefused where the token or a certificate was refused; the cause of ctx.
func Dial(ctx context.Context, config Config) (*Conn, error) {
	if config.PendingBytesMax == 0 {
		config.PendingBytesMax = PendingBytesMaxDefault
	}
	if config.Buffers == nil {
		config.Buffers = NewBuffers(FreeBytesMaxDefault)
	}
	config.Log = loglimit.Logger(config.Log)
	if err := config.checkURL(); err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, dialTimeout, fmt.Errorf("no answer within %s", dialTimeout))
	defer cancel()
	c := &Conn{config: config, patience: closeTimeout,
		life: life{states: newStateLoop(config.OnState)}}
	for i := range c.lines {
		if err := c.dialLine(ctx, lineIndex(i)); err != nil {
			c.Close()
			return nil, err
		}
	}
	c.states.connected()
	return c, nil
}

func (c *Conn) dialLine(ctx context.Context, at lineIndex) error {
	if bus, err := busOf(&c.config); bus != nil || err != nil {
		l, err := dialBus(&c.config, &c.handlers, c.lineEvent)
		if err != nil {
			return fmt.Errorf("dial: %w", err)
		}
		c.lines[at] = l
		return nil
	}
	if at == controlLine || c.config.Plain {
		l, err := dialNats(ctx, &c.config, at, &c.handlers, c.lineEvent)
		if err != nil {
			return err
		}
		c.lines[at] = l
		return nil
	}
	l, err := dialData(ctx, &c.config, at, &c.handlers, c.lineEvent)
	if err != nil {
		return err
	}
	c.lines[at] = l
	return nil
}

// latest is what Token and TLS are by now.
func (c *Config) latest() (token string, tls *tls.Config) {
	if c.Renew == nil {
		return c.Token, c.TLS
	}
	if token, tls = c.Renew(); c.TLS == nil {
		tls = nil
	}
	return token, tls
}

// checkURL checks where the connection leads. One to a server of this process has no address, shows the server's own
// secret, and is never TLS: the scheme of an address would have nats.go ask for it on a pipe that has none.
func (c *Config) checkURL() error {
	if c.Server != nil {
		c.URL, c.Token, c.CredsFile, c.TLS, c.Renew = "", "", "", nil, nil
	}
	if c.Server != nil || c.Bus != nil {
		return nil
	}
	for one := range strings.SplitSeq(c.URL, ",") {
		u, err := url.Parse(one)
		if err != nil || u.Scheme != "nats" && u.Scheme != "tls" || u.Hostname() == "" {
			return fmt.Errorf("url %q: want nats://host:port or tls://host:port", clip(WithoutUser(one)))
		}
	}
	return nil
}

// Send sends data to a subject, on the connection that its kind belongs to, and returns when the data was copied or
// written: it may be reused at once. It waits for the network only where the socket is full. Order is kept within a
// connection. On the bulk line nothing is allocated. Errors: ErrSubject, ErrPayload, ErrLost, ErrRefused, ErrClosed.
func (c *Conn) Send(s Subject, data []byte) error {
	if err := s.check(); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	l := c.lines[route(s.Kind)]
	if err := l.publish(&s, "", data); err != nil {
		return c.publishError(l, s.String(), len(data), err)
	}
	return nil
}

// SendInPlace is Send of bytes with room around them, which is the connection's until it returns.
func (c *Conn) SendInPlace(s Subject, p Payload) error {
	l, ok := c.lines[route(s.Kind)].(*dataLine)
	if !ok {
		return c.Send(s, p.Data())
	}
	if err := s.check(); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if err := l.publishInPlace(&s, p); err != nil {
		return c.publishError(l, s.String(), p.Len(), err)
	}
	return nil
}

// Lend sends data that must not change until its receiver says, by a protocol of the two, that it is done with it. A
// receiver on a Bus may read the data in place until then, and never writes to it.
func (c *Conn) Lend(s Subject, data []byte) error {
	l, ok := c.lines[route(s.Kind)].(*busLine)
	if !ok {
		return c.Send(s, data)
	}
	if err := s.check(); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if err := l.pass(&s, data, true); err != nil {
		return c.publishError(l, s.String(), len(data), err)
	}
	return nil
}

// Publish is Send to a subject's text.
func (c *Conn) Publish(subject string, data []byte) error {
	s, err := ParseSubject(subject)
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	l := c.lines[route(s.Kind)]
	if err := l.publish(&s, subject, data); err != nil {
		return c.publishError(l, subject, len(data), err)
	}
	return nil
}

func (c *Conn) publishError(l line, subject string, bytes int, err error) error {
	switch {
	case errors.Is(err, errPayload):
		return fmt.Errorf("publish %s: %w: %d bytes, and the server takes at most %d; use smaller chunks",
			subject, ErrPayload, bytes, l.payloadMax())
	case c.Err() != nil && (errors.Is(err, errReconnecting) || isClosed(err)):
		return fmt.Errorf("publish %s: %w", subject, c.Err())
	case c.Err() != nil:
		return fmt.Errorf("publish %s: %w: %w", subject, c.Err(), err)
	}
	// Reconnecting, or a failed write, after which the line reconnects: whether the message went out is not known.
	return fmt.Errorf("publish %s: %w: %w", subject, ErrLost, err)
}

// LocalHost is this machine's address on the way to the server; "" within one process.
func (c *Conn) LocalHost() string {
	if l, ok := c.lines[controlLine].(*natsLine); ok {
		return l.localHost()
	}
	return ""
}

// PayloadBytesMax is the size of the largest message that the server takes.
func (c *Conn) PayloadBytesMax() int { return c.lines[bulkLine].payloadMax() }

// Subscribe calls the handler for every message that matches the pattern, in order of arrival, until Close. The
// subscription is active at the server when Subscribe returns. Where the pattern's kind is a wildcard, a pattern of six
// tokens is delivered on the control connection and a longer one on the results connection: see ListenAt. Where two
// patterns match a message both handlers get it.
//
// On the control connection each subscription has a goroutine of its own. Messages wait for a slow handler up to
// Config.PendingBytesMax and 65536 messages; beyond, they are dropped, counted in Stats and logged.
//
// On the results connection all handlers run one after the other on the goroutine that reads, and nothing waits here:
// while a handler runs, messages wait in the socket and in the server, up to its ServerConfig.PendingBytesMax. Then the
// server cuts the connection off: the state is Lost, then Back, Stats.Reconnects counts it, and windows send again what
// was dropped. So a handler that may take long passes its work on.
//
// A handler must not call Close, nor, on the results connection, Subscribe or Flush.
func (c *Conn) Subscribe(pattern string, handler func(Message)) error {
	at, err := routePattern(pattern)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return c.subscribe(c.lines[at], pattern, handler)
}

// unsubscribe ends the subscriptions of a pattern. Their handlers may still be called for what has arrived.
func (c *Conn) unsubscribe(pattern string) {
	if at, err := routePattern(pattern); err == nil {
		c.lines[at].unsubscribe(pattern)
	}
}

// errReconnecting explains an ErrLost that was given without trying.
var errReconnecting = errors.New("reconnecting")

// Flush waits until the server has taken in all that was published before, at most 5 s. Publishing does not need it:
// what was published leaves by itself within microseconds.
func (c *Conn) Flush(ctx context.Context) error {
	return c.flush(ctx, c.lines[:]...)
}

// Stats counts what went through.
func (c *Conn) Stats() Stats {
	var s Stats
	for _, l := range c.lines {
		l.count(&s)
	}
	return s
}

// Close sends what was published, closes all connections and waits until every handler and OnState have returned, at
// most about 10 s in all: where one does not return, the log says so. It may be called again.
func (c *Conn) Close() {
	c.fail(fmt.Errorf("connection %w", ErrClosed))
	for _, l := range c.lines {
		if l != nil {
			l.close()
		}
	}
	c.states.end()
	done := make(chan struct{})
	go func() {
		c.handlers.Wait()
		c.states.wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(c.patience):
		c.config.Log.Error("connection closed while a handler still runs", "connection", c.config.Name, "after", c.patience)
	}
}

const (
	// connectTimeout bounds one attempt to connect, and again one handshake: a loopback needs a millisecond, a long
	// way with a lost packet a second, and a machine that is busy with other things some.
	connectTimeout = 5 * time.Second
	// writeTimeout bounds a Publish whose socket is full: a server that takes nothing for so long counts as lost.
	writeTimeout = 10 * time.Second
	// closeGrace is what Close gives a full socket to empty.
	closeGrace = time.Second
	// reconnectAfterMax bounds the pause between attempts, which begins at up to 50 ms and doubles.
	reconnectAfterMax = time.Second
)

type lineEvent int

const (
	lineLost lineEvent = iota
	lineBack
	lineEnded
)

// line is one connection of a Conn: natsLine over nats.go, or dataLine over fabric's own. Both reconnect for ever.
type line interface {
	// publish sends a message. text is the subject's where the caller has it, else "". Errors: errReconnecting,
	// errPayload, or what the connection says, after which whether the message went out is not known.
	publish(s *Subject, text string, data []byte) error
	// subscribe returns when the server knows the subscription.
	subscribe(pattern string, handler func(Message)) error
	// unsubscribe ends the subscriptions of a pattern. A handler that runs is not waited for.
	unsubscribe(pattern string)
	// flush waits for the server's word that it has taken in what was sent. ctx must have a deadline.
	flush(ctx context.Context) error
	isLost() bool
	payloadMax() int
	count(*Stats)
	// close ends the line within about closeGrace and tells nothing afterwards. Handlers may still run.
	close()
}

// errPayload: the message is larger than the server takes.
var errPayload = errors.New("larger than max_payload")

// reconnectAfter is the pause before an attempt to connect again: between half of what it may be and all of it, so that
// clients which lost a server together do not reconnect together. The point in between is a function of the names of
// connection and line and of the attempt alone: a simulation has the same pauses each time.
func (l lineIndex) reconnectAfter(connection string, attempts int) time.Duration {
	most := min(50*time.Millisecond<<min(attempts-1, 10), reconnectAfterMax)
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s %d %d", connection, l, attempts)
	z := h.Sum64() // which the end of the text alone hardly changes in its upper bits: mixed as by SplitMix64
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return most/2 + time.Duration((z^z>>31)%uint64(most/2+1))
}

// dialed is how far an attempt to connect came.
type dialed struct {
	reached bool  // something listens there
	dialErr error // why it was not reached
	tls     *tlsWitness
}

// explain says what is wrong with an attempt to connect and what would be right.
func (d *dialed) explain(ctx context.Context, config *Config, err error) error {
	at := address(config)
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("dial %s: %w", at, context.Cause(ctx))
	}
	if ctx.Err() != nil { // what is known otherwise is that the socket was closed
		err = context.Cause(ctx)
	}
	switch {
	case d.dialErr != nil:
		return fmt.Errorf("%w at %s: %w; ./bin/ps starts one", ErrNoServer, at, d.dialErr)
	case !d.reached: // no attempt was made
		return fmt.Errorf("dial %s: %w", at, err)
	case errors.Is(err, nats.ErrAuthorization) || errors.Is(err, errUnauthorized):
		if config.Token == "" {
			return fmt.Errorf("dial %s: %w: it asks for a token and none was given", at, ErrRefused)
		}
		return fmt.Errorf("dial %s: %w: wrong token", at, ErrRefused)
	}
	if wrong := d.tls.explain(err); wrong != nil {
		return fmt.Errorf("dial %s: %w: %w", at, ErrRefused, wrong)
	}
	return fmt.Errorf("%w at %s: something listens there, but the NATS greeting failed (%w): it is another program, or "+
		"has no room for more connections; ./bin/ps starts one",
		ErrNoServer, at, err)
}

func address(config *Config) string {
	if config.Server != nil && config.Server.bus == nil {
		return "the server of this process"
	}
	if config.Server != nil {
		return config.Server.bus.at
	}
	var hosts []string
	for one := range strings.SplitSeq(config.URL, ",") {
		u, err := url.Parse(one)
		if err != nil || u.Host == "" {
			return clip(WithoutUser(config.URL))
		}
		hosts = append(hosts, u.Host)
	}
	return strings.Join(hosts, ",")
}

// WithoutUser takes what may be a password out of addresses, separated by commas, for people to see. They need not be
// valid.
func WithoutUser(addresses string) string {
	all := strings.Split(addresses, ",")
	for i, one := range all {
		scheme, rest, found := strings.Cut(one, "://")
		if !found {
			scheme, rest = "", one
		}
		rest = rest[strings.LastIndex(rest, "@")+1:]
		if found {
			rest = scheme + "://" + rest
		}
		all[i] = rest
	}
	return strings.Join(all, ",")
}

// life is what every connection has, of however many lines: its states, the goroutines that run its handlers, and why
// it is closed.
type life struct {
	states   *stateLoop
	handlers sync.WaitGroup // one count for each goroutine that runs handlers

	mu  sync.Mutex // a leaf
	err error      // why the connection is closed; nil while it is not
}

// lineEvent is told by a line what happened to it.
func (l *life) lineEvent(event lineEvent, err error) {
	switch event {
	case lineLost:
		l.states.lost()
	case lineBack:
		l.states.back()
	case lineEnded:
		l.fail(fmt.Errorf("%w: %w", ErrRefused, err))
		l.states.end()
	}
}

func (l *life) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
	}
}

// Err is nil while the connection is open or trying to be, then ErrClosed after Close, or what ended it.
func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// addHandler counts one more handler, unless Close may wait for them already.
func (l *life) addHandler() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.handlers.Add(1)
	}
	return l.err
}

// subscribe subscribes on a line. While it runs it counts as a handler, so that Close waits for a handler that the line
// may add.
func (l *life) subscribe(on line, pattern string, handler func(Message)) error {
	if err := l.addHandler(); err != nil {
		return fmt.Errorf("subscribe %s: %w", pattern, err)
	}
	defer l.handlers.Done()
	err := on.subscribe(pattern, handler)
	if err == nil {
		return nil
	}
	if closed := l.Err(); closed != nil {
		return fmt.Errorf("subscribe %s: %w", pattern, closed)
	}
	return fmt.Errorf("subscribe %s: %w: %w", pattern, ErrLost, err)
}

// flush waits until the server has taken in what was published on the lines before, at most 5 s.
func (l *life) flush(ctx context.Context, lines ...line) error {
	ctx, cancel := context.WithTimeout(ctx, roundTripTimeout)
	defer cancel()
	for _, on := range lines {
		if err := on.flush(ctx); err != nil {
			if closed := l.Err(); closed != nil {
				return fmt.Errorf("flush: %w", closed)
			}
			return fmt.Errorf("flush: %w: %w", ErrLost, err)
		}
	}
	return nil
}

// State is what OnState is told.
type State int

const (
	// Connected: Dial has succeeded.
	Connected State = iota + 1
	// Lost: one of the two connections at least is gone. What was published last may not have arrived.
	Lost
	// Back: both are there again, with all subscriptions. What is not acknowledged should be sent again now.
	Back
	// Closed: the end, by Close or because the server came back and refused.
	Closed
)

func (s State) String() string {
	switch s {
	case Connected:
		return "connected"
	case Lost:
		return "lost"
	case Back:
		return "back"
	case Closed:
		return "closed"
	}
	return "unknown"
}

// stateLoop turns the events of two lines into a sequence of states, and tells them on a goroutine of its own, so that
// OnState may take its time. The queue is bounded: a loss and return that were not told yet stand for all later ones.
type stateLoop struct {
	tell func(State)
	done chan struct{}

	mu    sync.Mutex
	cond  *sync.Cond
	queue []State // at most 4: Connected, Lost, Back, Closed
	down  int     // lines that are lost
	open  bool    // Dial has succeeded; before, nothing is told
	ended bool    // Closed is queued
}

func newStateLoop(tell func(State)) *stateLoop {
	l := &stateLoop{tell: tell, done: make(chan struct{})}
	l.cond = sync.NewCond(&l.mu)
	go l.run()
	return l
}

func (l *stateLoop) connected() {
	l.mu.Lock()
	defer l.mu.Unlock()
	// A line may have been lost between the two dials; then Connected comes first all the same.
	l.open = true
	l.queue = append([]State{Connected}, l.queue...)
	l.cond.Signal()
}

func (l *stateLoop) lost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down++
	if l.down == 1 {
		l.push(Lost)
	}
}

func (l *stateLoop) back() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down--
	if l.down == 0 {
		l.push(Back)
	}
}

// push queues Lost or Back. A Lost behind an untold Back takes that one's place away: Lost, Back, Lost is Lost.
func (l *stateLoop) push(s State) {
	if l.ended {
		return
	}
	if n := len(l.queue); s == Lost && n > 0 && l.queue[n-1] == Back && n > 1 && l.queue[n-2] == Lost {
		l.queue = l.queue[:n-1]
		return
	}
	l.queue = append(l.queue, s)
	l.cond.Signal()
}

// end queues Closed, once. Nothing follows it.
func (l *stateLoop) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.ended = true
		l.queue = append(l.queue, Closed)
		l.cond.Signal()
	}
}

func (l *stateLoop) run() {
	defer close(l.done)
	for {
		l.mu.Lock()
		for len(l.queue) == 0 || !l.open && !l.ended {
			l.cond.Wait()
		}
		s, open := l.queue[0], l.open
		l.queue = l.queue[1:]
		l.mu.Unlock()
		if l.tell != nil && open {
			l.tell(s)
		}
		if s == Closed {
			return
		}
	}
}

func (l *stateLoop) wait() { <-l.done }

// Errors that a caller may test for with errors.Is. Every one arrives wrapped in a sentence with the operation, the
// address or subject and what would be right.
var (
	// ErrNoServer: nothing that speaks NATS answered at the address. No connection exists.
	ErrNoServer = errors.New("no gradbus server")
	// ErrRefused: the server answered and turned the connection away (token, certificate). On Dial no connection
	// exists; later it means that the server came back with other credentials, and the connection is closed for good.
	ErrRefused = errors.New("refused by the server")
	// ErrLost: the server is out of reach for the moment. The message may not have been sent; the connection keeps trying
	// and reports Back when it has succeeded.
	ErrLost = errors.New("server lost")
	// ErrPayload: the message is larger than the server accepts. Nothing was sent.
	ErrPayload = errors.New("message too large")
	// ErrClosed: Close was called, on the connection or the window. Nothing was sent.
	ErrClosed = errors.New("closed")
	// ErrSubject: a subject or pattern is not of the form that docs/protocol.md gives. Nothing was sent or subscribed.
	ErrSubject = errors.New("bad subject")
	// ErrPortTaken: another process listens at the address. No server was started.
	ErrPortTaken = errors.New("port taken")
	// ErrNoJetStream: the control server does not have JetStream, or not for this account. Nothing was written.
	ErrNoJetStream = errors.New("no JetStream")
	// ErrDenied: the server does not let this client write what it was asked for. Nothing was written.
	ErrDenied = errors.New("not allowed")
	// ErrNoBucket: the control server has no such bucket, or lost it in a restart. Nothing was written.
	ErrNoBucket = errors.New("no such bucket")
	// ErrKeyExists: another client has written the key. Nothing was written.
	ErrKeyExists = errors.New("key exists")
	// ErrNoKey: the bucket has no such key.
	ErrNoKey = errors.New("no such key")
	// ErrAck: a peer acknowledged what was never sent. The window is as it was.
	ErrAck = errors.New("bad acknowledgement")
)

// Ask repeats a request until it is answered: ask is called at once and then every retry, and the first value of
// answers is returned. Answers come by way of the caller's own subscription, on a subject derived from the request's;
// a request must therefore be one that may be answered more than once, and answers should have room for one value.
//
// ErrLost from ask is not the end, since the next repetition may find the server again; any other error is. Where ctx
// ends first, the error wraps its cause and says how often was asked, and the last ErrLost if there was one; where it
// has ended before, nothing is.
//
//	rows, err := fabric.Ask(ctx, time.Second, func() error { return conn.Publish(subject, frame) }, arrived)
func Ask[T any](ctx context.Context, retry time.Duration, ask func() error, answers <-chan T) (T, error) {
	var none T
	if ctx.Err() != nil { // where all is in one process, an answer is there as soon as it was asked
		return none, fmt.Errorf("ask: nothing was asked: %w", context.Cause(ctx))
	}
	timer := time.NewTimer(retry)
	defer timer.Stop()
	for asked := 1; ; asked++ {
		err := ask()
		if err != nil && !errors.Is(err, ErrLost) {
			return none, err
		}
		select {
		case answer, ok := <-answers:
			return received(answer, ok)
		case <-ctx.Done():
		case <-timer.C:
			select { // what is there by now goes before another request
			case answer, ok := <-answers:
				return received(answer, ok)
			default:
			}
		}
		if ctx.Err() == nil {
			timer.Reset(retry)
			continue
		}
		if err != nil {
			return none, fmt.Errorf("ask: no answer to %d requests: %w; last: %w", asked, context.Cause(ctx), err)
		}
		return none, fmt.Errorf("ask: no answer to %d requests: %w", asked, context.Cause(ctx))
	}
}

func received[T any](answer T, ok bool) (T, error) {
	if !ok {
		return answer, fmt.Errorf("ask: answers %w", ErrClosed)
	}
	return answer, nil
}
