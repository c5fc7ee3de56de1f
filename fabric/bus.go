package fabric

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// busScheme is the scheme of addresses of servers on a Bus.
const busScheme = "memory"

// Bus is a network within one process, for jobs that live in one and for tests. Servers are started on it
// (ServerConfig.Bus) and dialed (Config.Bus) as over TCP, by addresses like memory://local:1. It uses no socket, no
// NATS and no goroutines but those of handlers. It has the guarantees of a NATS server: order within a pattern,
// delivery at most once, a bound on waiting messages, and Lost and Back for all connections of a server that stops and
// starts again. All members are in one process and trusted: tokens are not checked, and nothing is encrypted. It is
// safe for concurrent use.
//
// A message goes from Send to its handlers by a call, or over one queue for each subscription: see Config.Direct.
type Bus struct {
	// Delay is the time that every message takes from Send to its handler; with a delay, Config.Direct has no effect.
	// Set it before anything is started. It is for tests of distant members.
	Delay time.Duration
	// Harm returns how many copies of a message arrive at the connection with a name, and how much later than usual; 1
	// and 0 mean no harm. Different delays change the order of messages. Set it before anything is started. It is for
	// tests.
	Harm func(name string, at *Subject) (copies int, later time.Duration)

	network *busNetwork
	host    *busHost // host that is dialed from; nil: a host without faults
}

// busNetwork is the state that all hosts on a Bus share.
type busNetwork struct {
	mu      sync.Mutex
	servers map[string]*busServer            // by host:port
	port    int                              // last chosen port
	links   atomic.Pointer[map[busLink]Link] // links that are not up; replaced, never modified
}

// busLink is the link from one host to another.
type busLink struct{ from, to *busHost }

// Link is the state of the link from one host to another.
type Link uint8

// States of a link.
const (
	LinkUp      Link = iota
	LinkCut          // messages are lost without notice
	LinkRefused      // connections end, and new ones are refused
)

// link returns the state of the link from one host to another.
func (n *busNetwork) link(from, to *busHost) Link {
	if all := n.links.Load(); all != nil {
		return (*all)[busLink{from, to}]
	}
	return LinkUp
}

// busHost is a machine whose links can be cut.
type busHost struct {
	cut  atomic.Bool // messages to and from it are lost
	dead atomic.Bool // permanently; its connections have ended
}

// NewBus makes a network without servers.
func NewBus() *Bus { return &Bus{network: &busNetwork{servers: map[string]*busServer{}}} }

// Host returns the same network as seen by another machine, to which Cut and Kill apply.
func (b *Bus) Host() *Bus {
	return &Bus{Delay: b.Delay, Harm: b.Harm, network: b.network, host: &busHost{}}
}

// Cut loses the messages to and from the connections of a Host, until it is called with false. They do not notice.
func (b *Bus) Cut(cut bool) { b.host.cut.Store(cut) }

// Link sets the state of the link from this Host to another one. The reverse link has its own state.
func (b *Bus) Link(to *Bus, state Link) {
	b.network.mu.Lock()
	defer b.network.mu.Unlock()
	all := map[busLink]Link{}
	if old := b.network.links.Load(); old != nil {
		all = maps.Clone(*old)
	}
	if all[busLink{b.host, to.host}] = state; state == LinkUp {
		delete(all, busLink{b.host, to.host})
	}
	b.network.links.Store(&all)
	for _, s := range b.network.servers {
		if s.bus.host == to.host {
			s.relink(b.host, state)
		}
	}
}

// relink ends the lines of a host that are refused from now on, and has them come back when they no longer are.
func (s *busServer) relink(host *busHost, state Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.lines {
		switch {
		case l.host != host:
		case state == LinkRefused:
			l.lose(true)
		case s.up:
			l.comeBack()
		}
	}
}

// Kill ends the connections of a Host as the end of its machine does: servers notice, and nothing more arrives from it.
func (b *Bus) Kill() {
	b.host.cut.Store(true)
	b.host.dead.Store(true)
	b.network.mu.Lock()
	servers := slices.Collect(maps.Values(b.network.servers))
	b.network.mu.Unlock()
	for _, s := range servers {
		s.removeHost(b.host)
	}
}

// removeHost removes the lines of a dead host.
func (s *busServer) removeHost(host *busHost) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.lines, func(l *busLine, _ struct{}) bool { return l.host == host })
	s.change()
}

// add starts a server at an address, or at a free one if the port is 0. The server owns config afterwards.
func (b *Bus) add(config *ServerConfig) (*busServer, error) {
	b.network.mu.Lock()
	defer b.network.mu.Unlock()
	host := "local"
	for config.Port == 0 {
		if b.network.port++; b.network.servers[net.JoinHostPort(host, strconv.Itoa(b.network.port))] == nil {
			config.Port = b.network.port
		}
	}
	at := net.JoinHostPort(host, strconv.Itoa(config.Port))
	if there := b.network.servers[at]; there != nil && there.restartAt(config) {
		return there, nil
	} else if there != nil {
		return nil, fmt.Errorf("start server: %w: %s is in use on this bus; want another port, or 0 for any free one",
			ErrPortTaken, at)
	}
	s := &busServer{bus: b, at: at, pool: Buffers{bytesMax: FreeBytesMaxDefault}, lines: map[*busLine]struct{}{},
		buckets: map[string]*busBucket{}, up: true}
	s.config.Store(config)
	s.routes.Store(&busRoutes{})
	b.network.servers[at] = s
	return s, nil
}

// find returns the server of the first of the addresses that has one.
func (b *Bus) find(addresses string) (s *busServer, err error) {
	for one := range strings.SplitSeq(addresses, ",") {
		u, err := url.Parse(one)
		if err != nil || u.Scheme != busScheme || u.Host == "" {
			return nil, fmt.Errorf("url %q: want %s://host:port, as a server on this bus gives it",
				clip(WithoutUser(one)), busScheme)
		}
		b.network.mu.Lock()
		s = b.network.servers[u.Host]
		b.network.mu.Unlock()
		if s != nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("%w at %s: none was started on this bus", ErrNoServer, clip(WithoutUser(addresses)))
}

// busServer carries messages between its open lines.
//
// Lock order: that of the bus, then mu, then that of a line, then that of a subscription. None is held while a handler
// runs.
type busServer struct {
	bus    *Bus
	at     string
	config atomic.Pointer[ServerConfig]
	pool   Buffers                   // of waiting messages and of copies by Keep
	routes atomic.Pointer[busRoutes] // of all subscriptions; replaced, never modified
	slow   atomic.Int64              // readers whose queue exceeded the limit

	mu      sync.Mutex
	up      bool
	closed  bool // permanently; connected clients wait for another server at the address
	lines   map[*busLine]struct{}
	buckets map[string]*busBucket
}

// busRoutes finds the subscriptions that match a subject.
type busRoutes struct {
	to  map[string][]*busSubscription // by receiver, for patterns that name one
	any []*busSubscription            // all others
}

func (s *busServer) url() string { return busScheme + "://" + s.at }

// change rebuilds the routes. The caller holds the lock.
func (s *busServer) change() {
	r := &busRoutes{to: map[string][]*busSubscription{}}
	for l := range s.lines {
		for _, sub := range l.all() {
			if to := sub.pattern.to; to != "" {
				r.to[to] = append(r.to[to], sub)
			} else {
				r.any = append(r.any, sub)
			}
		}
	}
	s.routes.Store(r)
}

// route hands a message to every matching subscription. lent says that the data stays unchanged for as long as a
// receiver may read it.
func (s *busServer) route(at *Subject, data []byte, lent bool) {
	r := s.routes.Load()
	for _, sub := range r.to[at.To] {
		if sub.pattern.matches(at) {
			sub.deliver(at, data, lent)
		}
	}
	for _, sub := range r.any {
		if sub.pattern.matches(at) {
			sub.deliver(at, data, lent)
		}
	}
}

// join opens a line. It fails with ErrNoServer if the server is down.
func (s *busServer) join(l *busLine) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up {
		return fmt.Errorf("%w at %s: it was stopped", ErrNoServer, s.at)
	}
	s.lines[l] = struct{}{}
	return nil
}

func (s *busServer) leave(l *busLine) {
	s.mu.Lock()
	delete(s.lines, l)
	s.change()
	s.mu.Unlock()
	s.bus.forget(s)
}

func (s *busServer) clients() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for l := range s.lines {
		if !l.isLost() {
			names = append(names, l.config.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// stop drops every line and every bucket, and, if it crashes, the waiting messages.
func (s *busServer) stop(crashes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.up {
		return
	}
	s.up = false
	clear(s.buckets)
	for l := range s.lines {
		l.lose(crashes)
	}
}

func (s *busServer) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.up || s.closed {
		return
	}
	s.up = true
	for l := range s.lines {
		if s.bus.network.link(l.host, s.bus.host) != LinkRefused {
			l.comeBack()
		}
	}
}

// close stops the server permanently and frees its address. Messages that have arrived are still handled, because they
// may be the last ones.
func (s *busServer) close() {
	s.stop(false)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.bus.forget(s)
}

// forget frees the address of a closed server, once no connection waits for another server there.
func (b *Bus) forget(s *busServer) {
	b.network.mu.Lock()
	defer b.network.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && len(s.lines) == 0 {
		maps.DeleteFunc(b.network.servers, func(_ string, there *busServer) bool { return there == s })
	}
}

// restartAt starts a server in the place of a closed one, whose connections wait for it. The caller holds the lock of the
// bus.
func (s *busServer) restartAt(config *ServerConfig) bool {
	s.mu.Lock()
	if !s.closed {
		s.mu.Unlock()
		return false
	}
	s.config.Store(config)
	s.closed = false
	s.mu.Unlock()
	s.start()
	return true
}

func (s *busServer) log() *slog.Logger { return s.config.Load().Log }

// busPattern is a parsed pattern over subjects.
type busPattern struct {
	text                string
	job, from, kind, to string   // "": any
	keyed               bool     // tokens follow the receiver
	tail                []string // named tokens after the receiver; nil: any
	short               []string // for a pattern that ends before the receiver: all tokens, the last one being >
}

func newBusPattern(text string) busPattern {
	tokens := strings.Split(strings.TrimPrefix(text, subjectRoot), ".")
	p := busPattern{text: text}
	if len(tokens) < 4 || tokens[3] == ">" {
		p.short = tokens
		return p
	}
	for i, at := range []*string{&p.job, &p.from, &p.kind, &p.to} {
		if tokens[i] != Any {
			*at = tokens[i]
		}
	}
	if p.keyed = len(tokens) > 4; p.keyed && tokens[4] != ">" {
		p.tail = tokens[4:]
	}
	return p
}

func (p *busPattern) matches(s *Subject) bool {
	if p.short != nil {
		return matchTokens(p.short, strings.TrimPrefix(s.String(), subjectRoot))
	}
	if p.kind != "" && p.kind != s.Kind || p.to != "" && p.to != s.To || p.job != "" && p.job != s.Job ||
		p.from != "" && p.from != s.From {
		return false
	}
	if p.keyed != (s.HasBatch || s.Name != "") {
		return false
	}
	if p.tail == nil {
		return true
	}
	text := s.String()
	return matchTokens(p.tail, text[len(At(s.Job, s.From, s.Kind, s.To).String())+1:])
}

// matchTokens compares the tokens of a pattern with those of a text.
func matchTokens(pattern []string, text string) bool {
	tokens := strings.Split(text, ".")
	for i, want := range pattern {
		switch {
		case i >= len(tokens):
			return false
		case want == ">":
			return true
		case want != Any && want != tokens[i]:
			return false
		}
	}
	return len(tokens) == len(pattern)
}
