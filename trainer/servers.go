package trainer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"gradbus/fabric"
	"gradbus/internal/liveness"
	"gradbus/internal/process"
	"gradbus/schema"
	"gradbus/trainer/internal/exchange"
)

// dataServer is a server that shards of the job are reached by, or another trainer.
type dataServer struct {
	id   string        // of the ps; empty where the server that carries control leads to all shards
	peer schema.Member // whose data server it is, where trainers reduce among themselves; else empty
	url  string
	own  bool // it is the server that carries control, under the address that this trainer knows
	conn *fabric.Conn
	lost liveness.Silence // since it is out of reach; guarded by watch.mu
}

// name is what messages to people call it.
func (d *dataServer) name() string {
	at := fabric.WithoutUser(d.url)
	switch {
	case d.peer != "":
		return "trainer " + string(d.peer) + " at " + at
	case d.id != "":
		return "ps " + d.id + " at " + at
	}
	return at
}

// lostError is what the loss of the server is to the session.
func (d *dataServer) lostError() error {
	if d.peer != "" {
		return ErrPeerLost
	}
	return ErrServerLost
}

// conns are the connections that carry data, of those that have been made.
func (s *membership) conns() (all []*fabric.Conn) {
	s.connMu.Lock()
	defer s.connMu.Unlock()
	for _, d := range s.servers {
		if d.conn != nil {
			all = append(all, d.conn)
		}
	}
	if s.own != nil {
		all = append(all, s.own.conn)
	}
	return all
}

// findServers makes the links to all owners, and the servers that they go by. Nothing is dialed yet.
func (s *membership) findServers() error {
	at, err := schema.ServerOfShard(s.joined.Servers, s.joined.Shards)
	if err != nil {
		return fmt.Errorf("the coordinator's answer: %w", err)
	}
	if at == nil && s.joined.Shards > 0 {
		s.servers = []*dataServer{{url: s.config.Server, own: true}}
	}
	for _, d := range s.joined.Servers {
		if d.URL == "" {
			s.servers = append(s.servers, &dataServer{id: d.ID, url: s.config.Server, own: true})
		} else {
			s.servers = append(s.servers, &dataServer{id: d.ID, url: d.URL})
		}
	}
	for i := range s.place.Owners() {
		l := &shardLink{member: s.place.Owner(i), marks: make([]uint64, s.job.Ahead+1), ctx: s.ctx, fail: s.fail,
			run: s.clock.Go, moved: make(chan struct{}, 1)}
		switch {
		case i >= s.joined.Shards:
			if l.reduce = true; l.member != s.joined.Member {
				l.server = &dataServer{peer: l.member} // its address is told at the start
				s.servers = append(s.servers, l.server)
			}
		case at != nil:
			l.server = s.servers[at[i]]
		default:
			l.server = s.servers[0]
		}
		if l.server != nil {
			granted := s.granted(l.reduce)
			window := granted
			if own := s.config.WindowBytes; own != 0 && own < granted {
				window, l.flags = own, schema.FlagNarrow
			}
			l.outbox = fabric.NewOutbox(fabric.OutboxConfig{Envelope: schema.Envelope{}, Publish: l.contribute,
				Lend: s.lend(l), BytesMax: window})
		}
		s.owners[string(l.member)] = i
		s.links = append(s.links, l)
	}
	return nil
}

// granted is how many bytes may be on the way to an owner, and the first credit, which it counts on. Trainers grant
// what is usual.
func (s *membership) granted(reduce bool) int {
	if granted := int(min(s.joined.WindowBytes, windowBytesMax)); granted > 0 && !reduce {
		return granted
	}
	return fabric.WindowBytesDefault
}

// lend is how contributions leave for the first time: a job in which no frame is refilled before its batch is complete
// lends them. nil is as everything does.
func (s *membership) lend(l *shardLink) func(fabric.Subject, fabric.Payload) error {
	if s.config.Bus == nil || !s.place.Plan.Clock.Common() {
		return nil
	}
	return func(subject fabric.Subject, frame fabric.Payload) error {
		return notLost(l.server.conn.Lend(subject, frame.Data()))
	}
}

// contribute sends a frame of gradients, which the window repeats: see publish.
func (l *shardLink) contribute(subject fabric.Subject, frame fabric.Payload) error {
	return notLost(l.server.conn.SendInPlace(subject, frame))
}

// publish sends a frame that will be repeated where no answer comes, so a lost server is no error yet: keepTime
// decides.
func (l *shardLink) publish(subject fabric.Subject, frame []byte) error {
	return publish(l.server.conn, subject, frame)
}

// outlet is a connection.
type outlet interface {
	Send(subject fabric.Subject, data []byte) error
}

func publish(conn outlet, subject fabric.Subject, frame []byte) error {
	return notLost(conn.Send(subject, frame))
}

// notLost is an error but for that of a lost server, which keepTime looks at.
func notLost(err error) error {
	if errors.Is(err, fabric.ErrLost) {
		return nil
	}
	return err
}

// fabricConfig is how to reach a server under a member's name.
func (c *Config) fabricConfig(job *schema.Job, member string, onState func(fabric.State)) fabric.Config {
	return fabric.Config{URL: c.Server, Bus: c.Bus, Direct: true, Name: string(job.Name) + "/" + member, Token: c.Token,
		CredsFile: c.CredsFile, TLS: c.TLS, Log: c.Log, OnState: onState}
}

// connect dials under the member's name, listens, and starts to give signs of life.
func (s *membership) connect(ctx context.Context, own *ownServer) error {
	s.hear(string(schema.Coordinator))
	var err error
	if s.control, err = fabric.DialControl(ctx,
		s.config.fabricConfig(s.job, string(s.joined.Member), s.controlChanged)); err != nil {
		return err
	}
	for _, to := range []schema.Member{s.joined.Member, schema.All} {
		pattern := fabric.Pattern(string(s.job.Name), string(schema.Coordinator), fabric.Any, string(to), false)
		if err := s.control.Subscribe(pattern, s.receiveControl); err != nil {
			return err
		}
	}
	if own != nil {
		if err := s.listenOwn(own); err != nil {
			return err
		}
	}
	for _, d := range s.servers {
		if d.peer != "" {
			continue // connectPeers
		}
		if err := s.connectData(ctx, d); err != nil {
			return err
		}
	}
	s.clock.Add(1)
	go s.keepTime()
	if s.reports != nil {
		s.clock.Add(1)
		s.reports.disks = process.WatchDisks(s.config.Writes)
		go s.keepReports()
	}
	return nil
}

// connectData dials a server of shards. A chunk that it would not take is an error now, not in the middle of a batch.
func (s *membership) connectData(ctx context.Context, d *dataServer) (err error) {
	config := s.config.fabricConfig(s.job, string(s.joined.Member), func(state fabric.State) { s.dataChanged(d, state) })
	if !d.own {
		config.URL, config.CredsFile = d.url, ""
		if !strings.HasPrefix(d.url, "tls:") {
			if config.TLS != nil {
				config.Log.Warn("gradients to this server go without TLS: start it with --tls-cert and --tls-key", "url", d.url)
			}
			config.TLS = nil
		}
	}
	config.Log = s.logOf(d)
	conn, err := fabric.Dial(ctx, config)
	if err != nil {
		switch {
		case d.own || ctx.Err() != nil:
			return err
		case d.peer != "":
			return fmt.Errorf("%w: %s announces its data server at %s, where this one does not reach it: %w; it has to "+
				"listen and advertise where that leads to it from here (--data-host, --advertise), with a token (--token-file)",
				ErrPeerLost, d.peer, d.url, err)
		}
		return fmt.Errorf("ps %s announces itself at %s, where this trainer does not reach it: %w; if it has died a moment "+
			"ago, join again; else it has to advertise an address that leads to it from here (--advertise), or this trainer to "+
			"go by the cluster (--route %s)",
			d.id, d.url, err, schema.DataCluster)
	}
	s.connMu.Lock()
	d.conn = conn
	s.connMu.Unlock()
	if need, most := s.job.MessageBytesMax(), d.conn.PayloadBytesMax(); need > most {
		return fmt.Errorf("%w: %s takes messages of at most %d bytes, and those of job %s, with chunks of %d, have up to "+
			"%d: set max_payload there to at least that, or use smaller chunks",
			fabric.ErrPayload, d.name(), most, s.job.Name, s.job.ChunkBytes, need)
	}
	at := func(to schema.Member, keyed bool) string {
		return fabric.Pattern(string(s.job.Name), fabric.Any, fabric.Any, string(to), keyed)
	}
	trip := time.Hour
	for _, pattern := range []string{at(s.joined.Member, false), at(s.joined.Member, true), at(schema.All, true)} {
		began := time.Now()
		if err := d.conn.Subscribe(pattern, s.receive); err != nil {
			if d.peer != "" && errors.Is(err, fabric.ErrLost) { // its run is over, or it has died
				err = fmt.Errorf("%w: %s: %w", d.lostError(), d.name(), err)
			}
			return err
		}
		trip = min(trip, time.Since(began))
	}
	s.expect(d, trip)
	return nil
}

// expect is told how long a server of shards took to answer, which is the first guess of how long its shards do. Where
// it only leads to them nothing is known.
func (s *membership) expect(d *dataServer, trip time.Duration) {
	if s.config.Route == schema.DataCluster {
		return
	}
	for _, l := range s.links {
		if l.server == d {
			l.outbox.Expect(trip)
		}
	}
	if d.peer == "" {
		s.exchange.do(func(x *exchange.Exchange) { x.Expect(trip) })
	}
}
