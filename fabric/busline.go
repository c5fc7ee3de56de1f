package fabric

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// busLine is a line to a server on a Bus.
type busLine struct {
	server   *busServer
	config   *Config
	handlers *sync.WaitGroup // one count for each subscription with a running goroutine
	tell     func(lineEvent, error)
	direct   bool
	host     *busHost // may be nil
	lost     atomic.Bool

	messagesSent, bytesSent, messagesReceived, bytesReceived, reconnects, dropped atomic.Uint64

	mu            sync.Mutex
	subscriptions []*busSubscription
	closed        bool
}

// dialBus opens a line. The error is ErrNoServer.
func dialBus(config *Config, handlers *sync.WaitGroup, tell func(lineEvent, error)) (*busLine, error) {
	server, err := busOf(config)
	if err != nil {
		return nil, err
	}
	l := &busLine{server: server, config: config, handlers: handlers, tell: tell,
		direct: config.Direct && server.bus.Delay == 0 && server.bus.Harm == nil}
	if config.Bus != nil && config.Bus.host != nil {
		if config.Bus.host.dead.Load() {
			return nil, fmt.Errorf("%w: this host of the bus is dead", ErrNoServer)
		}
		if server.bus.network.link(config.Bus.host, server.bus.host) == LinkRefused {
			return nil, fmt.Errorf("%w at %s: connection refused", ErrNoServer, server.at)
		}
		l.host, l.direct = config.Bus.host, false
	}
	if err := server.join(l); err != nil {
		return nil, err
	}
	return l, nil
}

// busOf returns the server on a Bus that a configuration refers to; nil if it does not refer to a Bus.
func busOf(config *Config) (*busServer, error) {
	switch {
	case config.Server != nil:
		return config.Server.bus, nil
	case config.Bus != nil:
		return config.Bus.find(config.URL)
	}
	return nil, nil
}

func (l *busLine) all() []*busSubscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.subscriptions)
}

// lose and comeBack are called with the server's lock held, so that they are reported in order. Waiting messages are
// lost if the server crashes.
func (l *busLine) lose(crashes bool) {
	if l.lost.Swap(true) {
		return
	}
	if crashes {
		for _, sub := range l.all() {
			sub.drop()
		}
	}
	l.tell(lineLost, nil)
	l.config.Log.Warn("connection lost", "connection", l.config.Name, "err", "the server has stopped, or refuses it")
}

func (l *busLine) comeBack() {
	if l.lost.Swap(false) {
		l.reconnects.Add(1)
		l.tell(lineBack, nil)
	}
}

func (l *busLine) publish(s *Subject, _ string, data []byte) error { return l.pass(s, data, false) }

// pass is publish for data that may be lent.
func (l *busLine) pass(s *Subject, data []byte, lent bool) error {
	if l.lost.Load() {
		return errReconnecting
	}
	if len(data) > l.payloadMax() {
		return errPayload
	}
	l.messagesSent.Add(1)
	l.bytesSent.Add(uint64(len(data)))
	if l.isCut() || l.server.bus.network.link(l.host, l.server.bus.host) != LinkUp {
		return nil
	}
	l.server.route(s, data, lent)
	return nil
}

func (l *busLine) subscribe(pattern string, handler func(Message)) error {
	sub := &busSubscription{line: l, pattern: newBusPattern(pattern), handler: handler}
	sub.changed.L = &sub.mu
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return errReconnecting
	}
	l.subscriptions = append(l.subscriptions, sub)
	if !l.direct {
		l.handlers.Go(sub.run)
	}
	l.mu.Unlock()
	l.server.change()
	return nil
}

func (l *busLine) unsubscribe(pattern string) {
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	l.mu.Lock()
	l.subscriptions = slices.DeleteFunc(l.subscriptions, func(sub *busSubscription) bool {
		if sub.pattern.text != pattern {
			return false
		}
		sub.end()
		return true
	})
	l.mu.Unlock()
	l.server.change()
}

func (l *busLine) flush(context.Context) error {
	if l.lost.Load() {
		return errReconnecting
	}
	return nil
}

func (l *busLine) isCut() bool     { return l.host != nil && l.host.cut.Load() }
func (l *busLine) isLost() bool    { return l.lost.Load() }
func (l *busLine) payloadMax() int { return l.server.config.Load().PayloadBytesMax }

func (l *busLine) count(s *Stats) {
	s.BytesSent += l.bytesSent.Load()
	s.BytesReceived += l.bytesReceived.Load()
	s.MessagesSent += l.messagesSent.Load()
	s.MessagesReceived += l.messagesReceived.Load()
	s.Reconnects += l.reconnects.Load()
	s.Dropped += l.dropped.Load()
}

// close ends the line. Handlers on the line's own goroutines are asked to end; close waits for those that publishers
// run.
func (l *busLine) close() {
	l.mu.Lock()
	was := l.closed
	l.closed = true
	l.mu.Unlock()
	if was {
		return
	}
	all := l.all()
	l.lost.Store(true)
	l.server.leave(l)
	for _, sub := range all {
		sub.end()
	}
	for _, sub := range all {
		sub.quiet()
	}
}

// busSubscription is a handler and its queue.
type busSubscription struct {
	line    *busLine
	pattern busPattern
	handler func(Message)

	mu      sync.Mutex   // a leaf
	changed sync.Cond    // a message waits, a call has returned, or the end
	queue   []busMessage // waiting messages; always empty if the line is direct
	bytes   int
	calls   int // running calls of the handler by publishers
	ended   bool
}

// busMessage is a waiting message.
type busMessage struct {
	Message
	due time.Time // arrival time; zero: at once
}

// deliver calls the handler, or queues the message.
func (b *busSubscription) deliver(at *Subject, data []byte, lent bool) {
	m := Message{Data: data, subject: *at, parsed: true}
	if b.line.direct {
		if !lent {
			m.borrowedFrom = &b.line.server.pool
		}
		b.call(m)
		return
	}
	if b.line.isCut() || b.line.server.bus.network.link(b.line.server.bus.host, b.line.host) != LinkUp {
		return
	}
	if harm := b.line.server.bus.Harm; harm != nil {
		copies, later := harm(b.line.config.Name, at)
		if later > 0 {
			data := slices.Clone(data)
			at := *at
			time.AfterFunc(later, func() { b.arrive(Message{Data: data, subject: at, parsed: true}, data, true) })
			copies--
		}
		for range copies {
			b.arrive(m, data, false) // each subscription gets its own copy
		}
		return
	}
	b.arrive(m, data, lent)
}

// arrive queues a message for the handler.
func (b *busSubscription) arrive(m Message, data []byte, lent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return
	}
	if b.bytes+len(data) > b.line.config.PendingBytesMax || len(b.queue) >= pendingMessagesMax {
		if b.line.dropped.Add(1) == 1 {
			b.line.server.slow.Add(1)
			b.line.server.log().Error("messages dropped, handler too slow", "connection", b.line.config.Name, "pattern",
				b.pattern.text)
		}
		return
	}
	if !lent {
		m.borrowedFrom = &b.line.server.pool
		m.Keep()
	}
	w := busMessage{Message: m}
	if delay := b.line.server.bus.Delay; delay > 0 {
		w.due = time.Now().Add(delay)
	}
	b.queue = append(b.queue, w)
	b.bytes += len(data)
	b.changed.Broadcast()
}

func (b *busSubscription) call(m Message) {
	b.mu.Lock()
	if b.ended {
		b.mu.Unlock()
		return
	}
	b.calls++
	b.mu.Unlock()
	b.handle(m)
	b.mu.Lock()
	b.calls--
	if b.ended {
		b.changed.Broadcast()
	}
	b.mu.Unlock()
}

func (b *busSubscription) handle(m Message) {
	b.line.messagesReceived.Add(1)
	b.line.bytesReceived.Add(uint64(len(m.Data)))
	b.handler(m)
}

// run is the goroutine of a subscription whose line is not direct.
func (b *busSubscription) run() {
	for {
		b.mu.Lock()
		for len(b.queue) == 0 && !b.ended {
			b.changed.Wait()
		}
		if len(b.queue) == 0 {
			b.mu.Unlock()
			return
		}
		m := b.queue[0]
		b.queue[0] = busMessage{}
		if b.queue = b.queue[1:]; len(b.queue) == 0 {
			b.queue = nil
		}
		b.bytes -= len(m.Data)
		b.mu.Unlock()
		if !m.due.IsZero() {
			time.Sleep(time.Until(m.due))
		}
		b.handle(m.Message)
	}
}

// drop discards the queue.
func (b *busSubscription) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.queue {
		b.queue[i].Release()
	}
	b.queue, b.bytes = nil, 0
}

// end stops deliveries, except those that are queued.
func (b *busSubscription) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.changed.Broadcast()
}

// quiet waits until no publisher runs the handler.
func (b *busSubscription) quiet() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.calls > 0 {
		b.changed.Wait()
	}
}
