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
	"unsafe"
)

// watchEvery is the interval at which a line checks its connection.
const watchEvery = time.Second

// dataLine is a line over fabric's own connection: NATS's protocol with as few copies as it allows. Messages are read
// into leased buffers and handled on the goroutine that reads; published messages are written from where they lie.
//
// Lock order: writer.mu, then mu.
type dataLine struct {
	index  lineIndex
	config *Config
	tell   func(lineEvent, error)
	writer wireWriter
	tokens tokenTable    // used by the reading goroutine only
	ended  chan struct{} // closed when the goroutine has returned

	ctx    context.Context // of all dialing; ends with close
	cancel context.CancelFunc

	lost     atomic.Bool
	maximum  atomic.Int64 // payload, bytes
	handling atomic.Bool  // a handler runs: until it returns nothing is read, not even a PONG

	messagesSent, bytesSent, messagesReceived, bytesReceived, reconnects atomic.Uint64

	mu            sync.Mutex
	socket        net.Conn // latest
	closed        bool
	subscriptions map[uint64]subscription // by sid
	sid           uint64                  // the last
	waiting       []chan struct{}         // for PONGs, in the order of the PINGs; nil: no flush waits
	silent        int                     // PINGs since the server last sent anything
}

type subscription struct {
	pattern string
	handler func(Message)
}

// dialData connects, or returns why not. tell is called from one goroutine, in order, and not after close has returned,
// except within a handler.
func dialData(ctx context.Context, config *Config, index lineIndex, handlers *sync.WaitGroup, tell func(lineEvent,
	error)) (*dataLine, error) {
	l := &dataLine{index: index, config: config, tell: tell, tokens: tokenTable{},
		ended: make(chan struct{}), subscriptions: map[uint64]subscription{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, l.cancel)
	session, came, err := l.connect()
	if !stop() && err == nil {
		session.conn.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		l.cancel()
		return nil, came.explain(ctx, config, err)
	}
	l.use(session)
	handlers.Go(func() { l.run(session) })
	return l, nil
}

// connect makes one attempt, until ctx of the line ends.
func (l *dataLine) connect() (session *wireSession, came dialed, err error) {
	ctx, cancel := context.WithTimeout(l.ctx, connectTimeout)
	defer cancel()
	socket, at, err := l.dial(ctx)
	if err != nil {
		return nil, dialed{dialErr: err}, err
	}
	came = dialed{reached: true, tls: &tlsWitness{}}
	stop := context.AfterFunc(l.ctx, func() { socket.Close() })
	session, err = greet(ctx, socket, at, l.config, came.tls)
	if !stop() && err == nil {
		err = context.Cause(l.ctx)
	}
	if err != nil {
		socket.Close()
		return nil, came, err
	}
	return session, came, nil
}

// dial connects to the first server of the list that accepts. at is nil in process.
func (l *dataLine) dial(ctx context.Context) (socket net.Conn, at *url.URL, err error) {
	if l.config.Server != nil {
		socket, err = l.config.Server.inProcess()
		return socket, nil, err
	}
	for one := range strings.SplitSeq(l.config.URL, ",") {
		if at, err = url.Parse(one); err != nil {
			return nil, nil, err
		}
		host := at.Host
		if at.Port() == "" {
			host = net.JoinHostPort(at.Hostname(), "4222")
		}
		var dialer net.Dialer
		if socket, err = dialer.DialContext(ctx, "tcp", host); err == nil {
			return socket, at, nil
		}
	}
	return nil, nil, err
}

// use adopts a session, unless the line has been closed.
func (l *dataLine) use(s *wireSession) {
	l.maximum.Store(int64(s.info.PayloadMax))
	l.writer.use(s.conn, s.info.PayloadMax)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.socket, l.silent = s.conn, 0
	if l.closed {
		s.conn.Close()
	}
}

// run is the line's goroutine: it reads, and reconnects, until close.
func (l *dataLine) run(session *wireSession) {
	defer close(l.ended)
	refused := false
	for first := true; ; first = false {
		err := l.serve(session, !first)
		session.conn.Close()
		if l.ctx.Err() != nil {
			l.leave()
			return
		}
		if !l.lost.Swap(true) {
			l.tell(lineLost, err)
		}
		l.leave()
		l.config.Log.Warn("connection lost", "connection", l.config.Name, "line", l.index.String(), "err", err)
		for attempts := 1; ; attempts++ {
			if !l.pause(l.index.reconnectAfter(l.config.Name, attempts)) {
				return
			}
			if session, _, err = l.connect(); err == nil {
				break
			}
			unauthorized := errors.Is(err, errUnauthorized)
			if unauthorized && refused { // twice: not a server that is only starting
				l.tell(lineEnded, err)
				return
			}
			refused = unauthorized
		}
		refused = false
		l.use(session)
	}
}

func (l *dataLine) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}

// leave drops the connection and ends waiting flushes.
func (l *dataLine) leave() {
	l.writer.use(nil, 0)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.waiting {
		if w != nil {
			close(w) // waiting callers see that the line is lost
		}
	}
	l.waiting = nil
}

// serve reads one connection until it ends. On a later connection it subscribes again, and reports Back once the server
// has all subscriptions.
func (l *dataLine) serve(s *wireSession, again bool) error {
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() { l.watch(s, done) })
	defer watch.Wait()
	defer close(done)
	var back chan struct{}
	if again {
		var err error
		if back, err = l.resubscribe(); err != nil {
			return err
		}
	}
	var e wireEvent
	for {
		if err := s.reader.next(&e); err != nil {
			return err
		}
		switch e.op {
		case opMsg:
			l.deliver(&e)
		case opPing:
			if err := l.writer.raw("PONG\r\n"); err != nil {
				return err
			}
		case opPong:
			if told := l.pong(); told != nil && told == back {
				l.reconnects.Add(1)
				l.lost.Store(false)
				l.tell(lineBack, nil)
			}
		case opInfo:
			if err := s.told(&e); err != nil {
				return err
			}
			l.maximum.Store(int64(s.info.PayloadMax))
			if s.info.LameDuck {
				l.config.Log.Warn("server is leaving", "connection", l.config.Name, "line", l.index.String())
			}
		case opErr: // if it is fatal, the server closes the connection
			l.config.Log.Warn("connection fault", "connection", l.config.Name, "line", l.index.String(), "err",
				serverError(e.text))
		}
	}
}

// deliver passes a message to its handler.
func (l *dataLine) deliver(e *wireEvent) {
	l.messagesReceived.Add(1)
	l.bytesReceived.Add(uint64(len(e.data)))
	l.mu.Lock()
	l.silent = 0
	to, ok := l.subscriptions[e.sid]
	l.mu.Unlock()
	if !ok {
		e.lease.Release()
		return
	}
	m := Message{Data: e.data, lease: e.lease}
	// The text is read in place and not kept: a new token is copied.
	if s, err := ParseSubject(unsafe.String(unsafe.SliceData(e.subject), len(e.subject))); err == nil {
		l.tokens.keepSubject(&s)
		m.subject, m.parsed = s, true
	} else {
		m.text = string(e.subject)
	}
	l.handling.Store(true)
	to.handler(m)
	l.handling.Store(false)
}

// pong returns the oldest waiting flush.
func (l *dataLine) pong() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent = 0
	if len(l.waiting) == 0 {
		return nil // no PING was sent
	}
	w := l.waiting[0]
	l.waiting = l.waiting[1:]
	if w != nil {
		close(w)
	}
	return w
}

// ping sends words and a PING after them, and returns a channel that is closed when it was answered, or the line was
// lost.
func (l *dataLine) ping(words string) (chan struct{}, error) {
	answered := make(chan struct{})
	l.writer.mu.Lock() // so that the order of waiting is that of sending
	defer l.writer.mu.Unlock()
	if l.writer.conn == nil {
		return nil, errReconnecting
	}
	l.mu.Lock()
	l.waiting = append(l.waiting, answered)
	l.mu.Unlock()
	return answered, l.writer.rawLocked(words + "PING\r\n")
}

// resubscribe requests all subscriptions at once.
func (l *dataLine) resubscribe() (chan struct{}, error) {
	l.mu.Lock()
	words := ""
	for sid, s := range l.subscriptions {
		words += subscribeText(s.pattern, sid)
	}
	l.mu.Unlock()
	return l.ping(words)
}

// watch sends a PING at intervals, and cuts a connection whose server does not answer, or accepts nothing.
func (l *dataLine) watch(s *wireSession, done <-chan struct{}) {
	ticks := time.NewTicker(watchEvery)
	defer ticks.Stop()
	var write uint64 // write in progress
	var since, pinged time.Time
	for {
		select {
		case <-done:
			return
		case now := <-ticks.C:
			if n := l.writer.writes.Load(); n%2 == 0 || n != write {
				write, since = n, now
			} else if now.Sub(since) >= writeTimeout {
				l.config.Log.Warn("server accepts no messages", "connection", l.config.Name, "line", l.index.String(), "after",
					writeTimeout)
				s.conn.Close()
				return
			}
			if pinged.IsZero() {
				pinged = now
			}
			if now.Sub(pinged) < pingInterval {
				continue
			}
			pinged = now
			if l.overdue() {
				l.config.Log.Warn("the server does not answer", "connection", l.config.Name, "line", l.index.String())
				s.conn.Close()
				return
			}
			l.keepAlive()
		}
	}
}

// overdue reports whether too many PINGs were not answered. Answers are not read while a handler runs, and are queued
// behind incoming bulk.
func (l *dataLine) overdue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.handling.Load() {
		l.silent = 0
	}
	return l.silent >= pingsMax
}

// keepAlive sends a PING without a waiting flush, unless a write is in progress, which has its own timeout.
func (l *dataLine) keepAlive() {
	if !l.writer.mu.TryLock() {
		return
	}
	defer l.writer.mu.Unlock()
	if l.writer.conn == nil {
		return
	}
	l.mu.Lock()
	l.waiting = append(l.waiting, nil)
	l.silent++
	l.mu.Unlock()
	_ = l.writer.rawLocked("PING\r\n") // the reader notices the cut connection
}

func (l *dataLine) publish(s *Subject, _ string, data []byte) error {
	return l.publishInPlace(s, WithoutRoom(data))
}

// publishInPlace is publish for bytes with room around them.
func (l *dataLine) publishInPlace(s *Subject, p Payload) error {
	if l.lost.Load() {
		return errReconnecting
	}
	if int64(p.Len()) > l.maximum.Load() {
		return errPayload
	}
	if err := l.writer.message(s, p); err != nil {
		return err
	}
	l.messagesSent.Add(1)
	l.bytesSent.Add(uint64(p.Len()))
	return nil
}

func (l *dataLine) subscribe(pattern string, handler func(Message)) error {
	if l.lost.Load() {
		return errReconnecting
	}
	l.mu.Lock()
	l.sid++
	sid := l.sid
	l.subscriptions[sid] = subscription{pattern, handler}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), roundTripTimeout)
	defer cancel()
	err := l.roundTrip(ctx, subscribeText(pattern, sid))
	if err != nil {
		l.mu.Lock()
		delete(l.subscriptions, sid)
		l.mu.Unlock()
		_ = l.writer.raw(fmt.Sprintf("UNSUB %d\r\n", sid)) // err is what matters
	}
	return err
}

func (l *dataLine) unsubscribe(pattern string) {
	words := ""
	l.mu.Lock()
	for sid, s := range l.subscriptions {
		if s.pattern == pattern {
			delete(l.subscriptions, sid)
			words += fmt.Sprintf("UNSUB %d\r\n", sid)
		}
	}
	l.mu.Unlock()
	if words == "" {
		return
	}
	_ = l.writer.raw(words) // a lost connection has no subscriptions, and the next one starts with the current ones
}

func (l *dataLine) flush(ctx context.Context) error { return l.roundTrip(ctx, "") }

// roundTrip sends words and waits until the server has processed them.
func (l *dataLine) roundTrip(ctx context.Context, words string) error {
	if l.lost.Load() {
		return errReconnecting
	}
	answered, err := l.ping(words)
	if err != nil {
		return err
	}
	select {
	case <-answered:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if l.lost.Load() || l.ctx.Err() != nil {
		return errReconnecting
	}
	return nil
}

func (l *dataLine) isLost() bool    { return l.lost.Load() }
func (l *dataLine) payloadMax() int { return int(l.maximum.Load()) }

func (l *dataLine) count(s *Stats) {
	s.BytesSent += l.bytesSent.Load()
	s.BytesReceived += l.bytesReceived.Load()
	s.MessagesSent += l.messagesSent.Load()
	s.MessagesReceived += l.messagesReceived.Load()
	s.Reconnects += l.reconnects.Load()
}

// close cuts the connection; messages whose publish has returned were written. It waits for the reading goroutine, but
// not for a handler that it may run.
func (l *dataLine) close() {
	l.cancel()
	l.mu.Lock()
	l.closed = true
	socket := l.socket
	l.mu.Unlock()
	if socket != nil {
		socket.Close()
	}
	late := time.NewTimer(closeGrace)
	defer late.Stop()
	select {
	case <-l.ended:
	case <-late.C:
	}
}
