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

// busScheme is that of the addresses of servers on a Bus.
const busScheme = "memory"

// Bus is a network within one process, for jobs that live in one and for tests: servers are started on it
// (ServerConfig.Bus) and dialed (Config.Bus) as they are over TCP, by addresses like memory://local:1, and no socket,
// no NATS and no goroutine but those of handlers is behind them. It keeps the promises of a NATS server: order within a
// pattern, at most once, a bound on what waits, and Lost and Back for all connections of a server that stops and starts
// again. Who is in the process is trusted: no token is asked for, and nothing is encrypted. It is safe for concurrent
// use.
//
// A message goes from Send to its handlers by a call, or over one queue for each subscription: see Config.Direct.
type Bus struct {
	// Delay is how long every message takes, from Send to its handler; over any of it Config.Direct is none. It is set
	// before anything is started, and is for tests of what members do who are far from each other.
	Delay time.Duration
	// Harm says how often a message arrives at the connection of a name, and how much later than it would; 1 and 0 are no
	// harm. Messages that are later than others change their order. It is set as Delay is, and for the same.
	Harm func(name string, at *Subject) (copies int, later time.Duration)

	network *busNetwork
	host    *busHost // that is dialed from; nil for one that nothing happens to
}

// busNetwork is what all hosts on a Bus share.
type busNetwork struct {
	mu      sync.Mutex
	servers map[string]*busServer            // by host:port
	port    int                              // the last one that was chosen
	links   atomic.Pointer[map[busLink]Link] // those that are not up; replaced, never changed
}

// busLink is the way from one host to another.
type busLink struct{ from, to *busHost }

// Link is the state of the way from one host to another.
type Link uint8

// The states of a link.
const (
	LinkUp      Link = iota
	LinkCut          // messages are lost, without notice
	LinkRefused      // the same, and new connections find no server
)

// link returns the state of the way from one host to another.
func (n *busNetwork) link(from, to *busHost) Link {
	if all := n.links.Load(); all != nil {
		return (*all)[busLink{from, to}]
	}
	return LinkUp
}

// busHost is a machine whose way to the others may be cut.
type busHost struct {
	cut  atomic.Bool // what is sent to it or from it is lost
	dead atomic.Bool // for good, and its connections have ended
}

// NewBus makes a network without servers.
func NewBus() *Bus { return &Bus{network: &busNetwork{servers: map[string]*busServer{}}} }

// Host is the same network as a further machine sees it, of which Cut and Kill are the faults.
func (b *Bus) Host() *Bus {
	return &Bus{Delay: b.Delay, Harm: b.Harm, network: b.network, host: &busHost{}}
}

// Cut loses what is sent to connections of a Host and from them, until it is called with false; they do not notice.
func (b *Bus) Cut(cut bool) { b.host.cut.Store(cut) }

// Link sets the state of the way from this Host to another one. The way back has a state of its own.
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
}

// Kill ends the connections of a Host as the end of its machine does: servers notice, and nothing more is heard of it.
func (b *Bus) Kill() {
	b.host.cut.Store(true)
	b.host.dead.Store(true)
	b.network.mu.Lock()
	servers := slices.Collect(maps.Values(b.network.servers))
	b.network.mu.Unlock()
	for _, s := range servers {
		s.bury(b.host)
	}
}

// bury forgets the lines of a host that is dead.
func (s *busServer) bury(host *busHost) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.lines, func(l *busLine, _ struct{}) bool { return l.host == host })
	s.change()
}

// add starts a server at an address, or at one that is free where the port is 0. Its config is the server's from then
// on.
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
	if there := b.network.servers[at]; there != nil && there.revive(config) {
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

// find is the server of the first of the addresses at which there is one.
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

// busServer carries messages between the lines that are open to it.
//
// Lock order: that of the bus, then mu, then that of a line, then that of a subscription. None is held while a handler
// runs.
type busServer struct {
	bus    *Bus
	at     string
	config atomic.Pointer[ServerConfig]
	pool   Buffers                   // of what waits, and of what is kept beyond a call
	routes atomic.Pointer[busRoutes] // of all subscriptions; replaced, never changed
	slow   atomic.Int64              // readers that had more wait for them than is allowed

	mu      sync.Mutex
	up      bool
	closed  bool // for good; who is still connected waits for another server at the address
	lines   map[*busLine]struct{}
	buckets map[string]*busBucket
}

// busRoutes finds the subscriptions that a subject matches.
type busRoutes struct {
	to  map[string][]*busSubscription // by receiver, of patterns that name one
	any []*busSubscription            // of all others
}

func (s *busServer) url() string { return busScheme + "://" + s.at }

// change replaces the routes. The lock is held.
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

// route hands a message to every subscription that it matches. lent says that the data stays as it is for as long as
// anybody may look at it.
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

// join opens a line; the error is ErrNoServer where the server is down.
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
		names = append(names, l.config.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// stop loses every line and every bucket, and, as a crash does, what waits.
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
		l.comeBack()
	}
}

// close stops the server for good: its address is free. What has arrived is still handled, as last words may be.
func (s *busServer) close() {
	s.stop(false)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.bus.forget(s)
}

// forget frees the address of a server that was closed, once no connection waits for another server there.
func (b *Bus) forget(s *busServer) {
	b.network.mu.Lock()
	defer b.network.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed && len(s.lines) == 0 {
		maps.DeleteFunc(b.network.servers, func(_ string, there *busServer) bool { return there == s })
	}
}

// revive starts a server in place of one that was closed, and whose connections wait for it. The lock of the bus is
// held.
func (s *busServer) revive(config *ServerConfig) bool {
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

// busPattern is a pattern over subjects, taken apart.
type busPattern struct {
	text                string
	job, from, kind, to string   // "" is any
	keyed               bool     // something follows on the receiver
	tail                []string // of it, what is named; nil where anything may
	short               []string // where the pattern ends before the receiver: all tokens, the last being >
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

// matchTokens compares a pattern's tokens with a text's.
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
