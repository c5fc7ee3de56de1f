package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// connectTimeout bounds one attempt to connect, and again one handshake: a loopback needs a millisecond, a long
	// way with a lost packet a second.
	connectTimeout = 2 * time.Second
	// writeTimeout bounds a Publish whose socket is full: a server that takes nothing for so long counts as lost.
	writeTimeout = 10 * time.Second
	// closeGrace is what Close gives a full socket to empty.
	closeGrace = time.Second
	// reconnectAfterMax bounds the pause between attempts, which begins at 50 ms and doubles.
	reconnectAfterMax = time.Second
)

type lineEvent int

const (
	lineLost lineEvent = iota
	lineBack
	lineEnded
)

// line is one NATS connection of a Conn. It keeps hold of the socket, so that Close cannot hang on a full one.
type line struct {
	index lineIndex
	nats  *nats.Conn
	ended chan struct{} // closed when NATS is through with the connection
	// lost is set while NATS reconnects. It holds a lock during an attempt, for which Publish must not wait.
	lost atomic.Bool

	ctx    context.Context // of all dialing; ends with close
	cancel context.CancelFunc

	mu      sync.Mutex
	socket  net.Conn // latest
	dialErr error    // of the latest attempt
}

// dialLine connects, or says clearly why not. tell is called from a goroutine of NATS's, in order, and not after close
// has returned.
func dialLine(ctx context.Context, config *Config, index lineIndex, tell func(lineEvent, error)) (*line, error) {
	l := &line{index: index, ended: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	// The handshake knows no context: cutting the socket ends it.
	stop := context.AfterFunc(ctx, l.cut)
	nc, err := nats.Connect(config.URL, l.options(config, tell)...)
	if !stop() && err == nil {
		nc.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		l.cancel()
		return nil, l.dialError(ctx, config, err)
	}
	l.nats = nc
	return l, nil
}

func (l *line) options(config *Config, tell func(lineEvent, error)) []nats.Option {
	options := []nats.Option{
		nats.Name(config.Name),
		nats.Timeout(connectTimeout),
		nats.MaxReconnects(-1),
		nats.ReconnectBufSize(-1), // what cannot be sent now is refused now; the windows repeat it
		nats.CustomReconnectDelay(reconnectAfter),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(pingsMax),
		nats.FlusherTimeout(writeTimeout),
		nats.ReconnectOnFlusherError(),
		nats.IgnoreDiscoveredServers(), // members dial the addresses they were given
		nats.SkipHostLookup(),          // the dialer does it
		nats.DisconnectErrHandler(func(nc *nats.Conn, _ error) {
			if !nc.IsClosed() {
				l.lost.Store(true)
				tell(lineLost, nil)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) {
			l.lost.Store(false)
			tell(lineBack, nil)
		}),
		nats.ClosedHandler(func(nc *nats.Conn) {
			if l.ctx.Err() == nil {
				tell(lineEnded, nc.LastError())
			}
			close(l.ended)
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			l.report(config, sub, err)
		}),
	}
	if config.Server != nil {
		options = append(options, nats.InProcessServer(l.inProcess(config.Server)))
		if token := config.Server.token; token != "" {
			options = append(options, nats.Token(token))
		}
		return options
	}
	switch {
	case config.CredsFile != "":
		options = append(options, nats.UserCredentials(config.CredsFile))
	case config.Token != "" && !strings.Contains(config.URL, "@"): // else the address says who this is
		options = append(options, nats.Token(config.Token))
	}
	if config.TLS != nil {
		options = append(options, nats.Secure(config.TLS))
	}
	return append(options, nats.SetCustomDialer(l))
}

func reconnectAfter(attempts int) time.Duration {
	return min(50*time.Millisecond<<min(attempts-1, 10), reconnectAfterMax)
}

// report passes on what NATS finds wrong outside of any call.
func (l *line) report(config *Config, sub *nats.Subscription, err error) {
	if sub != nil && errors.Is(err, nats.ErrSlowConsumer) {
		dropped, _ := sub.Dropped()
		config.Log.Error("messages dropped, handler too slow", "name", config.Name, "pattern", sub.Subject, "dropped", dropped)
		return
	}
	config.Log.Warn("connection fault", "name", config.Name, "line", l.index.String(), "err", err)
}

// Dial implements nats.CustomDialer.
func (l *line) Dial(network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: connectTimeout}
	return l.keep(dialer.DialContext(l.ctx, network, address))
}

// inProcess implements nats.InProcessConnProvider over a server of this process.
func (l *line) inProcess(s *Server) nats.InProcessConnProvider {
	return provider(func() (net.Conn, error) { return l.keep(s.nats.InProcessConn()) })
}

type provider func() (net.Conn, error)

func (p provider) InProcessConn() (net.Conn, error) { return p() }

func (l *line) keep(socket net.Conn, err error) (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.socket, l.dialErr = socket, err
	if err == nil && l.ctx.Err() != nil { // closed meanwhile
		socket.Close()
	}
	return socket, err
}

// local is our side of the latest socket; nil where there is none.
func (l *line) local() net.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket == nil {
		return nil
	}
	return l.socket.LocalAddr()
}

// cut ends whatever the line is doing.
func (l *line) cut() {
	l.cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.socket != nil {
		l.socket.Close()
	}
}

// flush waits for the server's word that it has taken in what was sent. ctx must have a deadline.
func (l *line) flush(ctx context.Context) error {
	if l.lost.Load() {
		return errReconnecting
	}
	return l.nats.FlushWithContext(ctx)
}

// close flushes for a moment, then ends the line and waits for its last callback.
func (l *line) close() {
	l.cancel()
	late := time.AfterFunc(closeGrace, l.cut)
	l.nats.Close()
	late.Stop()
	<-l.ended
}

// dialError says what is wrong and what would be right.
func (l *line) dialError(ctx context.Context, config *Config, err error) error {
	at := address(config)
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("dial %s: %w", at, context.Cause(ctx))
	}
	if ctx.Err() != nil { // what NATS says is that its socket was closed
		err = context.Cause(ctx)
	}
	l.mu.Lock()
	dialErr, reached := l.dialErr, l.socket != nil
	l.mu.Unlock()
	switch {
	case dialErr != nil:
		return fmt.Errorf("%w at %s: %w; ./bin/ps starts one", ErrNoServer, at, dialErr)
	case !reached: // NATS did not even try
		return fmt.Errorf("dial %s: %w", at, err)
	case errors.Is(err, nats.ErrAuthorization):
		if config.Token == "" {
			return fmt.Errorf("dial %s: %w: it asks for a token and none was given", at, ErrRefused)
		}
		return fmt.Errorf("dial %s: %w: wrong token", at, ErrRefused)
	case isTLS(err):
		return fmt.Errorf("dial %s: %w: %w", at, ErrRefused, err)
	}
	return fmt.Errorf("%w at %s: something listens there, but the NATS greeting failed (%w): it is another program, or has no room for more connections; ./bin/ps starts one",
		ErrNoServer, at, err)
}

func address(config *Config) string {
	if config.Server != nil {
		return "the server of this process"
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

// WithoutUser takes what may be a password out of addresses, separated by commas, for people to see. They need not be valid.
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
