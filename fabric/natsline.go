package fabric

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

// natsLine is a line over nats.go. It keeps hold of the socket, so that Close cannot hang on a full one.
type natsLine struct {
	index    lineIndex
	config   *Config
	nats     *nats.Conn
	handlers *sync.WaitGroup // one count for each subscription whose goroutine runs
	ended    chan struct{}   // closed when NATS is through with the connection
	// connection is the context of answers: it ends when the connection is lost, and each request with it. It also
	// shows whether NATS reconnects: NATS holds a lock during an attempt, for which Publish must not wait.
	connection atomic.Pointer[connection]
	// maximum is the payload that the server takes, bytes. NATS gives it under a lock that it holds while it writes.
	maximum atomic.Int64
	// denied is closed when the server has refused to take a message of this client.
	denied     chan struct{}
	deniedOnce sync.Once

	ctx    context.Context // of all dialing; ends with close
	cancel context.CancelFunc
	tls    tlsWitness

	mu            sync.Mutex // guards what follows; never held while calling NATS but for a subscription's counter
	socket        net.Conn   // latest
	dialErr       error      // of the latest attempt
	subscriptions []*nats.Subscription
	dropped       uint64 // by subscriptions that have ended
}

// dialNats connects, or says clearly why not. tell is called from a goroutine of NATS's, in order, and not after close
// has returned.
func dialNats(ctx context.Context, config *Config, index lineIndex, handlers *sync.WaitGroup, tell func(lineEvent,
	error)) (*natsLine, error) {
	l := &natsLine{index: index, config: config, handlers: handlers, ended: make(chan struct{}),
		denied: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.connect()
	// The handshake knows no context: cutting the socket ends it.
	stop := context.AfterFunc(ctx, l.cut)
	nc, err := nats.Connect(config.URL, l.options(config, tell)...)
	if !stop() && err == nil {
		nc.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		l.cancel()
		l.mu.Lock()
		came := dialed{reached: l.socket != nil, dialErr: l.dialErr, tls: &l.tls}
		l.mu.Unlock()
		return nil, came.explain(ctx, config, err)
	}
	l.nats = nc
	l.maximum.Store(nc.MaxPayload())
	return l, nil
}

func (l *natsLine) options(config *Config, tell func(lineEvent, error)) []nats.Option {
	options := []nats.Option{
		nats.Name(config.Name),
		nats.Timeout(connectTimeout),
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1), // what cannot be sent now is refused now; the windows repeat it
		nats.CustomReconnectDelay(func(attempts int) time.Duration {
			return l.index.reconnectAfter(config.Name, attempts)
		}),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(pingsMax),
		nats.FlusherTimeout(writeTimeout),
		nats.ReconnectOnFlusherError(),
		nats.IgnoreDiscoveredServers(), // members dial the addresses they were given
		nats.SkipHostLookup(),          // the dialer does it
		nats.CustomInboxPrefix(memberInboxPrefix),
		nats.DisconnectErrHandler(func(nc *nats.Conn, _ error) {
			if !nc.IsClosed() {
				l.connection.Load().lose(errCutOff)
				tell(lineLost, nil)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			l.maximum.Store(nc.MaxPayload())
			l.connect()
			tell(lineBack, nil)
		}),
		nats.ClosedHandler(func(nc *nats.Conn) {
			if l.ctx.Err() == nil {
				tell(lineEnded, nc.LastError())
			}
			close(l.ended)
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) { l.report(sub, err) }),
	}
	if config.Server != nil {
		options = append(options, nats.InProcessServer(provider(func() (net.Conn, error) {
			return l.keep(config.Server.inProcess())
		})))
		if own := config.Server.own; own != nil {
			options = append(options, own.option())
		}
		return options
	}
	switch {
	case config.CredsFile != "":
		options = append(options, userCredentials(config.CredsFile))
	case !strings.Contains(config.URL, "@"): // else the address says who this is
		options = append(options, nats.TokenHandler(func() string { token, _ := config.latest(); return token }))
		if config.Key != nil {
			options = append(options, config.Key.option())
		}
	}
	if config.TLS != nil || strings.HasPrefix(config.URL, "tls:") {
		options = append(options, nats.Secure(l.tls.options(config.TLS)), func(o *nats.Options) error {
			o.RootCAsCB = func() (roots *x509.CertPool, err error) {
				if _, latest := config.latest(); latest != nil {
					roots = latest.RootCAs
				}
				return roots, nil
			}
			return nil
		})
	}
	return append(options, nats.SetCustomDialer(l))
}

// report passes on what NATS finds wrong outside of any call.
func (l *natsLine) report(sub *nats.Subscription, err error) {
	if sub != nil && errors.Is(err, nats.ErrSlowConsumer) {
		dropped, _ := sub.Dropped()
		l.config.Log.Error("messages dropped, handler too slow", "connection", l.config.Name, "pattern", sub.Subject,
			"dropped", dropped)
		return
	}
	if errors.Is(err, nats.ErrPermissionViolation) {
		l.deniedOnce.Do(func() { close(l.denied) })
	}
	l.config.Log.Warn("connection fault", "connection", l.config.Name, "line", l.index.String(), "err", err)
}

// Dial implements nats.CustomDialer.
func (l *natsLine) Dial(network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: connectTimeout}
	return l.keep(dialer.DialContext(l.ctx, network, address))
}

// provider implements nats.InProcessConnProvider over a server of this process.
type provider func() (net.Conn, error)

func (p provider) InProcessConn() (net.Conn, error) { return p() }

func (l *natsLine) keep(socket net.Conn, err error) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.socket, l.dialErr = socket, err
	if err == nil && l.ctx.Err() != nil { // closed while it was dialed
		socket.Close()
	}
	return socket, err
}

// local is our side of the latest socket; nil where there is none.
func (l *natsLine) local() net.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket == nil {
		return nil
	}
	return l.socket.LocalAddr()
}

// localHost is this machine's address on the way to the server.
func (l *natsLine) localHost() string {
	if at, ok := l.local().(*net.TCPAddr); ok {
		return at.IP.String()
	}
	return ""
}

// cut ends whatever the line is doing.
func (l *natsLine) cut() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket != nil {
		l.socket.Close()
	}
}

func (l *natsLine) publish(s *Subject, text string, data []byte) error {
	if l.isLost() {
		return errReconnecting
	}
	if text == "" {
		text = s.String()
	}
	err := l.nats.Publish(text, data)
	if errors.Is(err, nats.ErrMaxPayload) {
		return errPayload
	}
	return err
}

func (l *natsLine) subscribe(pattern string, handler func(Message)) error {
	return l.subscribeWithin(pattern, pendingMessagesMax, l.config.PendingBytesMax, func(m *nats.Msg) {
		handler(NewMessage(m.Subject, m.Data))
	})
}

// subscribeWithin subscribes with bounds on what waits for the handler, which sees reply subjects.
func (l *natsLine) subscribeWithin(pattern string, messagesMax, bytesMax int, handler nats.MsgHandler) error {
	if l.isLost() {
		return errReconnecting
	}
	l.handlers.Add(1)
	ended := sync.OnceFunc(l.handlers.Done)
	subscription, err := l.nats.Subscribe(pattern, handler)
	if err != nil {
		ended()
		return err
	}
	subscription.SetClosedHandler(func(string) { ended() })
	if !subscription.IsValid() { // closed before the handler was set, which may then never be called
		ended()
	}
	if err := l.activate(subscription, messagesMax, bytesMax); err != nil {
		_ = subscription.Unsubscribe() // what matters is err; a closed connection has no subscriptions
		return err
	}
	return nil
}

func (l *natsLine) unsubscribe(pattern string) {
	var ended []*nats.Subscription
	l.mu.Lock()
	l.subscriptions = slices.DeleteFunc(l.subscriptions, func(sub *nats.Subscription) bool {
		if sub.Subject != pattern {
			return false
		}
		if n, err := sub.Dropped(); err == nil {
			l.dropped += uint64(n)
		}
		ended = append(ended, sub)
		return true
	})
	l.mu.Unlock()
	for _, sub := range ended {
		_ = sub.Unsubscribe() // a closed connection has no subscriptions
	}
}

// activate bounds a subscription's queue, and waits until the server knows it.
func (l *natsLine) activate(subscription *nats.Subscription, messagesMax, bytesMax int) error {
	if err := subscription.SetPendingLimits(messagesMax, bytesMax); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), roundTripTimeout)
	defer cancel()
	if err := l.flush(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.subscriptions = append(l.subscriptions, subscription)
	return nil
}

// connection is one of those that a line has in turn.
type connection struct {
	context.Context
	lose context.CancelCauseFunc
}

// errCutOff explains an ErrLost of a question that was under way.
var errCutOff = errors.New("the connection was cut off before an answer came")

func (l *natsLine) connect() {
	ctx, lose := context.WithCancelCause(context.Background())
	l.connection.Store(&connection{ctx, lose})
}

// whileConnected is the context of a question, which is not waited for once it or its answer is lost. end gives the
// error to report.
func (l *natsLine) whileConnected(ctx context.Context) (within context.Context, end func(err error) error) {
	within, cancel := context.WithCancelCause(ctx)
	by := l.connection.Load()
	stop := context.AfterFunc(by, func() { cancel(context.Cause(by)) })
	return within, func(err error) error {
		if stop(); err != nil && ctx.Err() == nil && by.Err() != nil {
			err = context.Cause(by)
		}
		cancel(nil)
		return err
	}
}

func (l *natsLine) flush(ctx context.Context) error {
	if l.isLost() {
		return errReconnecting
	}
	return l.nats.FlushWithContext(ctx)
}

func (l *natsLine) isLost() bool    { return l.connection.Load().Err() != nil }
func (l *natsLine) payloadMax() int { return int(l.maximum.Load()) }

func (l *natsLine) count(s *Stats) {
	n := l.nats.Stats()
	s.BytesSent += n.OutBytes
	s.BytesReceived += n.InBytes
	s.MessagesSent += n.OutMsgs
	s.MessagesReceived += n.InMsgs
	s.Reconnects += n.Reconnects
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Dropped += l.dropped + l.droppedNow()
}

// droppedNow returns the number of messages that open subscriptions have dropped. The caller holds the lock.
func (l *natsLine) droppedNow() (sum uint64) {
	for _, sub := range l.subscriptions {
		if n, err := sub.Dropped(); err == nil {
			sum += uint64(n)
		}
	}
	return sum
}

// close flushes for a moment, then ends the line and waits for its last callback.
func (l *natsLine) close() {
	l.mu.Lock()
	l.dropped += l.droppedNow()
	l.subscriptions = nil
	l.mu.Unlock()
	l.cancel()
	late := time.AfterFunc(closeGrace, l.cut)
	l.nats.Close()
	late.Stop()
	<-l.ended
}

// isClosed tells an error that says no more than that the connection was closed.
func isClosed(err error) bool {
	return errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.ErrClosedPipe)
}
