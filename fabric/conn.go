package fabric

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

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
