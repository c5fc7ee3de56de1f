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
	// dialTimeout bounds connecting all lines, including handshakes, if ctx does not.
	dialTimeout = 15 * time.Second
	// closeTimeout bounds Close: handlers that do not return by then are logged and abandoned.
	closeTimeout = 5 * time.Second
	// roundTripTimeout bounds the wait for the server's confirmation that it has processed what was sent.
	roundTripTimeout = 5 * time.Second
	// pendingMessagesMax bounds the number of messages that wait for one handler: pendingBytesMax alone would allow
	// very many small ones.
	pendingMessagesMax = 1 << 16
)

// lineIndex names one of the connections of a Conn. Bulk uses one connection for each direction, so that incoming
// messages never wait behind outgoing ones.
type lineIndex int

const (
	bulkLine    lineIndex = iota // published bulk: dense, sparse, reduce, mean, rows
	resultsLine                  // subscribed bulk of the same kinds
	controlLine                  // ack, ctl, beat, pull and lookup, both directions
	lineCount
)

func (l lineIndex) String() string { return [...]string{"bulk", "results", "control"}[l] }

// Config configures a connection.
type Config struct {
	URL       string  // nats://host:port or tls://host:port
	Server    *Server // a server in this process; URL, Token, Key, CredsFile, TLS, Renew are ignored
	Bus       *Bus    // network of the URL; nil: TCP
	Name      string  // connection name, "job/member"; Server.Clients lists it
	Token     string  // secret that the server requires; "": none
	Key       *Key    // credential of a member; nil: none
	CredsFile string  // file with NATS credentials; "": none
	// Checks the server's certificate; nil: plain TCP, or the system's roots for tls://.
	TLS *tls.Config
	// Returns the current Token and TLS for each attempt to connect; nil: those above. If TLS is nil it stays nil.
	Renew   func() (token string, tls *tls.Config)
	Log     *slog.Logger // receives errors; nil discards them
	OnState func(State)  // receives every change of state, in order, on one goroutine; it must not call Close
	// Bytes that may wait for one handler of a line over nats.go before messages are dropped and counted; 0:
	// PendingBytesMaxDefault.
	PendingBytesMax int
	// Buffers for received messages, which several connections may share; nil: its own, of FreeBytesMaxDefault.
	Buffers *Buffers
	Plain   bool // use nats.go for bulk, too: slower, with allocations and copies, otherwise the same

	// Direct makes a server on a Bus call handlers on the goroutine that publishes, within Send and under the locks of
	// its caller, several at a time. Such a handler must not wait for a lock that is held during a publish. Its message
	// ends with the call unless it calls Message.Keep. Other servers ignore Direct.
	Direct bool
}

// Conn connects a member to the others through one server, by three NATS connections: one for outgoing bulk, one for
// incoming bulk and one for control, so that acks and heartbeats never wait behind gradients. It reconnects by itself,
// forever. It is safe for concurrent use.
type Conn struct {
	config   Config
	lines    [lineCount]line // nil after a failed Dial
	patience time.Duration   // for Close: closeTimeout

	life
}

// Stats are counts since Dial, over all connections. A message that arrives for two subscriptions counts twice.
type Stats struct {
	BytesSent, BytesReceived       uint64
	MessagesSent, MessagesReceived uint64
	Reconnects                     uint64
	Dropped                        uint64 // messages dropped because a handler was too slow: a fault
}

// Add adds the counts of another connection.
func (s *Stats) Add(n Stats) {
	s.BytesSent, s.BytesReceived = s.BytesSent+n.BytesSent, s.BytesReceived+n.BytesReceived
	s.MessagesSent, s.MessagesReceived = s.MessagesSent+n.MessagesSent, s.MessagesReceived+n.MessagesReceived
	s.Reconnects, s.Dropped = s.Reconnects+n.Reconnects, s.Dropped+n.Dropped
}

// Dial connects all lines. It takes at most as long as ctx, or 15 s. Errors: ErrNoServer if nothing listens, or not a
// NATS server; ErrRefused if the token or a certificate was refused; the cause of ctx.
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

// latest returns the current Token and TLS.
func (c *Config) latest() (token string, tls *tls.Config) {
	if c.Renew == nil {
		return c.Token, c.TLS
	}
	if token, tls = c.Renew(); c.TLS == nil {
		tls = nil
	}
	return token, tls
}

// checkURL checks the address. A connection to a server of this process has no address, uses the server's own secret,
// and never uses TLS: with the scheme of an address nats.go would start TLS on a pipe that has none.
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

// Send sends data to a subject, on the connection of its kind, and returns when the data was copied or written: the
// caller may reuse it at once. It waits for the network only if the socket is full. Order is kept within a connection.
// On the bulk line nothing is allocated. Errors: ErrSubject, ErrPayload, ErrLost, ErrRefused, ErrClosed.
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

// SendInPlace is Send for bytes with room around them, which the connection may write to until it returns.
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

// Lend sends data that must not change until its receiver says so, by a protocol between the two. A receiver on a Bus
// may read the data in place until then, and never writes to it.
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

// Publish is Send with the text of a subject.
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
	// Reconnecting, or a failed write, after which the line reconnects: the message may or may not have been sent.
	return fmt.Errorf("publish %s: %w: %w", subject, ErrLost, err)
}

// LocalHost returns this machine's address on the route to the server; "" within one process.
func (c *Conn) LocalHost() string {
	if l, ok := c.lines[controlLine].(*natsLine); ok {
		return l.localHost()
	}
	return ""
}

// PayloadBytesMax returns the size of the largest message that the server accepts.
func (c *Conn) PayloadBytesMax() int { return c.lines[bulkLine].payloadMax() }

// Subscribe calls the handler for every message that matches the pattern, in order of arrival, until Close. The
// subscription is active at the server when Subscribe returns. If the pattern's kind is a wildcard, a pattern of six
// tokens is delivered on the control connection and a longer one on the results connection: see ListenAt. If two
// patterns match a message, both handlers receive it.
//
// On the control connection each subscription has its own goroutine. Messages wait for a slow handler up to
// Config.PendingBytesMax and 65536 messages; beyond that they are dropped, counted in Stats and logged.
//
// On the results connection all handlers run one after the other on the goroutine that reads, and no messages are
// queued: while a handler runs, messages wait in the socket and in the server, up to its ServerConfig.PendingBytesMax.
// Then the server cuts the connection: the state is Lost, then Back, Stats.Reconnects counts it, and windows retransmit
// what was dropped. So a handler that may take long passes its work on.
//
// A handler must not call Close, nor, on the results connection, Subscribe or Flush.
func (c *Conn) Subscribe(pattern string, handler func(Message)) error {
	at, err := routePattern(pattern)
	if err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	return c.subscribe(c.lines[at], pattern, handler)
}

// unsubscribe ends the subscriptions of a pattern. Their handlers may still be called for messages that have arrived.
func (c *Conn) unsubscribe(pattern string) {
	if at, err := routePattern(pattern); err == nil {
		c.lines[at].unsubscribe(pattern)
	}
}

// errReconnecting is the cause of an ErrLost that was returned without an attempt.
var errReconnecting = errors.New("reconnecting")

// Flush waits until the server has processed everything published before, at most 5 s. Publishing does not need it:
// messages are sent by themselves within microseconds.
func (c *Conn) Flush(ctx context.Context) error {
	return c.flush(ctx, c.lines[:]...)
}

// Stats returns the counts.
func (c *Conn) Stats() Stats {
	var s Stats
	for _, l := range c.lines {
		l.count(&s)
	}
	return s
}

// Close sends pending messages, closes all connections and waits until every handler and OnState have returned, at most
// about 10 s in all; it logs handlers that do not return. It may be called again.
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
	// connectTimeout bounds one attempt to connect, and separately one handshake: loopback needs a millisecond, a long
	// route with a lost packet a second, and a busy machine some.
	connectTimeout = 5 * time.Second
	// writeTimeout bounds a Publish into a full socket: a server that accepts nothing for so long counts as lost.
	writeTimeout = 10 * time.Second
	// closeGrace is the time that Close gives a full socket to drain.
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

// line is one connection of a Conn: natsLine over nats.go, or dataLine over fabric's own. Both reconnect forever.
type line interface {
	// publish sends a message. text is the subject's text if the caller has it, else "". Errors: errReconnecting,
	// errPayload, or the connection's, after which the message may or may not have been sent.
	publish(s *Subject, text string, data []byte) error
	// subscribe returns when the server knows the subscription.
	subscribe(pattern string, handler func(Message)) error
	// unsubscribe ends the subscriptions of a pattern. It does not wait for a running handler.
	unsubscribe(pattern string)
	// flush waits for the server's confirmation that it has processed what was sent. ctx must have a deadline.
	flush(ctx context.Context) error
	isLost() bool
	payloadMax() int
	count(*Stats)
	// close ends the line within about closeGrace and reports no events afterwards. Handlers may still run.
	close()
}

// errPayload reports a message larger than the server accepts.
var errPayload = errors.New("larger than max_payload")

// reconnectAfter returns the pause before another attempt to connect: between half of its maximum and all of it, so
// that clients that lost a server together do not reconnect together. The point in between depends only on the names of
// connection and line and on the attempt: a simulation has the same pauses each time.
func (l lineIndex) reconnectAfter(connection string, attempts int) time.Duration {
	most := min(50*time.Millisecond<<min(attempts-1, 10), reconnectAfterMax)
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s %d %d", connection, l, attempts)
	z := h.Sum64() // the end of the text hardly changes the upper bits of h: mix them as SplitMix64 does
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return most/2 + time.Duration((z^z>>31)%uint64(most/2+1))
}

// dialed is the progress of an attempt to connect.
type dialed struct {
	reached bool  // something listens there
	dialErr error // why it was not reached
	tls     *tlsWitness
}

// explain returns what is wrong with an attempt to connect, and how to fix it.
func (d *dialed) explain(ctx context.Context, config *Config, err error) error {
	at := address(config)
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("dial %s: %w", at, context.Cause(ctx))
	}
	if ctx.Err() != nil { // the error itself only says that the socket was closed
		err = context.Cause(ctx)
	}
	switch {
	case d.dialErr != nil:
		return fmt.Errorf("%w at %s: %w; ./bin/ps starts one", ErrNoServer, at, d.dialErr)
	case !d.reached: // no attempt was made
		return fmt.Errorf("dial %s: %w", at, err)
	case errors.Is(err, nats.ErrAuthorization) || errors.Is(err, errUnauthorized):
		if config.Key != nil {
			return fmt.Errorf("dial %s: %w: its members file does not have the key %s for connections named %s, or another key "+
				"holds that slot, or the server is another one", at, ErrRefused, config.Key.public, clip(config.Name))
		}
		if config.Token == "" {
			return fmt.Errorf("dial %s: %w: it asks for a token or a credential and none was given", at, ErrRefused)
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

// WithoutUser removes passwords from addresses, separated by commas, for people. They need not be valid.
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

// life is the common part of connections with any number of lines: states, the goroutines that run handlers, and the
// reason why it is closed.
type life struct {
	states   *stateLoop
	handlers sync.WaitGroup // one count for each goroutine that runs handlers

	mu  sync.Mutex // a leaf
	err error      // why the connection is closed; nil while it is not
}

// lineEvent handles an event of a line.
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

// Err returns nil while the connection is open or reconnecting, then ErrClosed after Close, or the error that ended it.
func (l *life) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// addHandler counts one more handler, unless Close may already wait for them.
func (l *life) addHandler() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.handlers.Add(1)
	}
	return l.err
}

// subscribe subscribes on a line. It counts as a handler while it runs, so that Close waits for a handler that the line
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

// flush waits until the server has processed everything published on the lines before, at most 5 s.
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

// State is the state that OnState receives.
type State int

const (
	// Connected reports that Dial has succeeded.
	Connected State = iota + 1
	// Lost reports that at least one connection is gone. Messages published last may not have arrived.
	Lost
	// Back reports that all connections are restored, with all subscriptions. Retransmit what is not acknowledged.
	Back
	// Closed is the last state, after Close, or because the server came back and refused the connection.
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

// stateLoop converts the events of the lines to a sequence of states, and reports them on its own goroutine, so that
// OnState may block. The queue is bounded: an unreported loss and return represent all later ones.
type stateLoop struct {
	tell func(State)
	done chan struct{}

	mu    sync.Mutex
	cond  *sync.Cond
	queue []State // at most 4: Connected, Lost, Back, Closed
	down  int     // number of lost lines
	open  bool    // Dial has succeeded; before, nothing is reported
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
	// A line may have been lost between the dials; Connected still comes first.
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

// push queues Lost or Back. A Lost after an unreported Back replaces it: Lost, Back, Lost is Lost.
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

// end queues Closed, once, as the last state.
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

// Errors that a caller may test for with errors.Is. Each is wrapped in a sentence with the operation, the address or
// subject, and what would be valid.
var (
	// ErrNoServer reports that no NATS server answered at the address. No connection exists.
	ErrNoServer = errors.New("no gradbus server")
	// ErrRefused reports that the server answered and refused the connection (token, certificate). After Dial no
	// connection exists; later, the server came back with other credentials and the connection is closed permanently.
	ErrRefused = errors.New("refused by the server")
	// ErrLost reports that the server is unreachable at the moment. The message may not have been sent; the connection
	// keeps reconnecting and reports Back when it has succeeded.
	ErrLost = errors.New("server lost")
	// ErrPayload reports that the message is larger than the server accepts. Nothing was sent.
	ErrPayload = errors.New("message too large")
	// ErrClosed reports that the connection or window was closed. Nothing was sent.
	ErrClosed = errors.New("closed")
	// ErrSubject reports a subject or pattern that docs/protocol.md does not allow. Nothing was sent or subscribed.
	ErrSubject = errors.New("bad subject")
	// ErrPortTaken reports that another process listens at the address. No server was started.
	ErrPortTaken = errors.New("port taken")
	// ErrNoJetStream reports that the control server does not have JetStream, or not for this account. Nothing was
	// written.
	ErrNoJetStream = errors.New("no JetStream")
	// ErrDenied reports that the server does not permit this client to write. Nothing was written.
	ErrDenied = errors.New("not allowed")
	// ErrNoBucket reports that the control server has no such bucket, or lost it in a restart. Nothing was written.
	ErrNoBucket = errors.New("no such bucket")
	// ErrKeyExists reports that another client has written the key. Nothing was written.
	ErrKeyExists = errors.New("key exists")
	// ErrNoKey reports that the bucket has no such key.
	ErrNoKey = errors.New("no such key")
	// ErrAck reports that a peer acknowledged frames that were never sent. The window is unchanged.
	ErrAck = errors.New("bad acknowledgement")
)

// Ask repeats a request until it is answered: it calls ask at once and then every retry, and returns the first value of
// answers. Answers arrive through the caller's own subscription, on a subject derived from the request's. The request
// must be one that may be answered more than once, and answers should have room for one value.
//
// ErrLost from ask does not end it, since the next repetition may reach the server; any other error does. If ctx ends
// first, the error wraps its cause and has the number of requests, and the last ErrLost if there was one. If ctx has
// already ended, ask is not called.
//
//	rows, err := fabric.Ask(ctx, time.Second, func() error { return conn.Publish(subject, frame) }, arrived)
func Ask[T any](ctx context.Context, retry time.Duration, ask func() error, answers <-chan T) (T, error) {
	var none T
	if ctx.Err() != nil { // within one process an answer may have arrived already
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
			select { // an answer that has arrived goes before another request
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
