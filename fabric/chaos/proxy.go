package chaos

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// dialTimeout bounds connecting to the server, which is near in every test.
const dialTimeout = 5 * time.Second

// Config configures a Proxy.
type Config struct {
	Server string       // nats://host:port of the server behind it
	Listen string       // host:port to listen at; "" is a free port of 127.0.0.1
	Seed   uint64       // of all decisions
	Rules  []Rule       // the first that matches a message decides; see Proxy.SetRules
	Log    *slog.Logger // receives what ends connections; nil discards it
}

// Proxy stands between members and a server. Its methods may be called from any goroutine.
type Proxy struct {
	listener net.Listener
	log      *slog.Logger
	running  sync.WaitGroup
	counts   [directions][len(kinds)]counters

	connections, cut, refused, broken atomic.Uint64

	mu      sync.Mutex // guards what follows; a leaf
	server  string     // host:port
	rules   []Rule
	dice    *dice
	links   map[*link][]*pipe
	down    bool
	closed  bool
	stalls  map[stall]bool
	resumed chan struct{} // closed and replaced when stalls change
}

type stall struct {
	direction    Direction
	member, kind string // "": all
}

func (s stall) holds(d Direction, member, kind string) bool {
	return s.direction == d && (s.member == "" || s.member == member) && (s.kind == "" || s.kind == kind)
}

// Start starts a proxy. The caller owns it and calls Close.
func Start(c Config) (*Proxy, error) {
	at, err := hostPort(c.Server)
	if err != nil {
		return nil, fmt.Errorf("start proxy: %w", err)
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	listener, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("start proxy: %w", err)
	}
	p := &Proxy{listener: listener, log: c.Log, server: at, rules: slices.Clone(c.Rules), dice: newDice(c.Seed),
		links: map[*link][]*pipe{}, stalls: map[stall]bool{}, resumed: make(chan struct{})}
	p.running.Go(p.accept)
	return p, nil
}

func hostPort(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "nats" || u.Host == "" {
		return "", fmt.Errorf("server %q: want nats://host:port", address)
	}
	return u.Host, nil
}

// URL returns the address at which members dial the proxy.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

// SetRules replaces the rules for messages from now on.
func (p *Proxy) SetRules(rules ...Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = slices.Clone(rules)
}

// decide returns the fate of a message. Every message counts, whether or not a rule matches it, so that decisions do
// not depend on earlier rules.
func (p *Proxy) decide(d Direction, member, kind string, subject []byte) (fate, uint64, *Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	bits := p.dice.roll(d, member, subject)
	for i := range p.rules {
		if r := &p.rules[i]; r.matches(d, member, kind) {
			rule := *r
			return rule.fate(float64(bits>>11) / (1 << 53)), mix(bits), &rule
		}
	}
	return pass, 0, nil
}

func (p *Proxy) accept() {
	for {
		member, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.running.Go(func() { p.serve(member) })
	}
}

// serve carries one connection of a member until it ends.
func (p *Proxy) serve(member net.Conn) {
	p.mu.Lock()
	at, down := p.server, p.down || p.closed
	p.mu.Unlock()
	var server net.Conn
	err := errors.New("refused")
	if !down {
		server, err = net.DialTimeout("tcp", at, dialTimeout)
	}
	if err != nil {
		p.refused.Add(1)
		member.Close()
		return
	}
	l := &link{proxy: p, member: member, server: server}
	pipes := []*pipe{newPipe(l, ToServer), newPipe(l, FromServer)}
	p.mu.Lock()
	ended := p.down || p.closed
	if !ended {
		p.links[l] = pipes
	}
	p.mu.Unlock()
	if ended {
		p.refused.Add(1)
		l.close()
		return
	}
	p.connections.Add(1)
	var both sync.WaitGroup
	for _, pipe := range pipes {
		both.Go(func() {
			if err := pipe.run(); errors.Is(err, errProtocol) {
				p.broken.Add(1)
				p.log.Error("connection ended", "member", l.getName(), "direction", pipe.direction.String(), "err", err)
			}
		})
	}
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// Cut ends all connections, losing what is in transit. New ones are accepted unless Refuse forbids it.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
		p.cut.Add(1)
	}
}

// Refuse sets whether new connections are refused. Existing ones stay: see Cut.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = refuse
}

// Redirect connects new connections to another server.
func (p *Proxy) Redirect(server string) error {
	at, err := hostPort(server)
	if err != nil {
		return fmt.Errorf("redirect: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = at
	return nil
}

// Stall stops reading in one direction on the connections with a name (empty: all), from the next message of a kind on
// (empty: from the next unit of any sort): the sender sees a peer that has stopped reading. Resume ends every stall.
func (p *Proxy) Stall(d Direction, member, kind string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalls[stall{d, member, kind}] = true
}

// Resume ends every stall.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.stalls)
	close(p.resumed)
	p.resumed = make(chan struct{})
}

// waitWhileStalled calls before once if it has to wait.
func (p *Proxy) waitWhileStalled(d Direction, member, kind string, before func()) {
	for {
		p.mu.Lock()
		stalled, resumed := false, p.resumed
		for s := range p.stalls {
			stalled = stalled || s.holds(d, member, kind)
		}
		if p.closed || !stalled {
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		before()
		before = func() {}
		<-resumed
	}
}

// Holds returns the number of messages that are held back at the moment.
func (p *Proxy) Holds() int {
	p.mu.Lock()
	var pipes []*pipe
	for _, of := range p.links {
		pipes = append(pipes, of...)
	}
	p.mu.Unlock()
	n := 0
	for _, pipe := range pipes {
		n += pipe.holds()
	}
	return n
}

// Counts returns the counts so far of the messages of one kind (Other among them), or of all if kind is empty.
func (p *Proxy) Counts(d Direction, kind string) Counts {
	var sum Counts
	for i, k := range kinds {
		if kind == "" || kind == k {
			sum = sum.Add(p.counts[d][i].read())
		}
	}
	return sum
}

// Totals returns the counts so far of connections.
func (p *Proxy) Totals() Totals {
	return Totals{p.connections.Load(), p.cut.Load(), p.refused.Load(), p.broken.Load()}
}

// Close ends all connections and waits until every goroutine has ended. It may be called again.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		p.listener.Close()
		close(p.resumed)
		p.resumed = make(chan struct{})
	}
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	p.running.Wait()
}
