package ps

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"gradbus/fabric"
	"gradbus/schema"
)

// link is the connection of one shard number to the embedded server. Frames to shards of that number, of all jobs, come
// in on its goroutines, so that no shard waits while another one is stepped.
type link struct {
	shard  int
	conn   atomic.Pointer[fabric.Conn] // nil before it is there
	lost   atomic.Bool
	cancel context.CancelFunc // of dialing
	opened chan struct{}      // closed once conn is there with all subscriptions, or err is set
	err    error
	users  int // guarded by links.mu
}

// links are the connections of the shard numbers that are listened at. Those of jobs on this ps alone stay for as long
// as the server runs, others while a job has a shard of that number here. They are safe for concurrent use.
type links struct {
	running context.Context
	dial    func(context.Context, *link) error

	mu     sync.Mutex // a leaf
	all    map[int]*link
	closed fabric.Stats // of links that are no more
}

func newLinks(running context.Context, dial func(context.Context, *link) error) *links {
	return &links{running: running, dial: dial, all: map[int]*link{}}
}

// take gives the link of a shard number, which is dialed where it is the first to be taken. It never waits. Every link
// that was taken is released once.
func (s *links) take(shard int) *link {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.all[shard]
	if l == nil {
		l = &link{shard: shard, opened: make(chan struct{})}
		var ctx context.Context
		ctx, l.cancel = context.WithCancel(s.running)
		s.all[shard] = l
		go s.open(ctx, l)
	}
	l.users++
	return l
}

// open is a goroutine that ends with the dialing.
func (s *links) open(ctx context.Context, l *link) {
	defer close(l.opened)
	if l.err = s.dial(ctx, l); l.err != nil {
		s.forget(l)
	}
}

// forget has the next who takes a link of that number dial again.
func (s *links) forget(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[l.shard] == l {
		delete(s.all, l.shard)
	}
}

// wait returns when the link is listened at, or why it is not.
func (l *link) wait(ctx context.Context) error {
	select {
	case <-l.opened:
		return l.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// release closes a link that nobody else has taken, and waits until it is closed.
func (s *links) release(l *link) {
	s.mu.Lock()
	l.users--
	last := l.users == 0
	if last {
		if s.all[l.shard] == l {
			delete(s.all, l.shard)
		}
		if conn := l.conn.Load(); conn != nil {
			s.closed.Add(conn.Stats())
		}
	}
	s.mu.Unlock()
	if !last {
		return
	}
	l.cancel()
	<-l.opened
	if conn := l.conn.Load(); conn != nil {
		conn.Close()
	}
}

// Send implements outlet.
func (l *link) Send(subject fabric.Subject, frame []byte) error {
	conn := l.conn.Load()
	if conn == nil {
		return fabric.ErrLost
	}
	return conn.Send(subject, frame)
}

// SendInPlace is Send of a frame with room around it: see fabric.Conn.
func (l *link) SendInPlace(subject fabric.Subject, frame fabric.Payload) error {
	conn := l.conn.Load()
	if conn == nil {
		return fabric.ErrLost
	}
	return conn.SendInPlace(subject, frame)
}

// conns are the connections that are there now.
func (s *links) conns() (all []*fabric.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.all {
		if conn := l.conn.Load(); conn != nil {
			all = append(all, conn)
		}
	}
	return all
}

// lost reports whether any of them is lost.
func (s *links) lost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.all {
		if l.lost.Load() {
			return true
		}
	}
	return false
}

// stats counts over all links that there ever were.
func (s *links) stats() fabric.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := s.closed
	for _, l := range s.all {
		if conn := l.conn.Load(); conn != nil {
			total.Add(conn.Stats())
		}
	}
	return total
}

// dialLink connects a link to the embedded server and listens at its shard number.
func (s *Server) dialLink(ctx context.Context, l *link) error {
	if s.dialing != nil {
		if err := s.dialing(ctx, l.shard); err != nil {
			return err
		}
	}
	conn, err := fabric.Dial(ctx, fabric.Config{
		Server: s.nats, Direct: true, Name: "ps", Log: s.log, Buffers: s.buffers,
		OnState: func(state fabric.State) { l.lost.Store(state == fabric.Lost) },
	})
	if err != nil {
		return fmt.Errorf("connect to the embedded server: %w", err)
	}
	l.conn.Store(conn)
	for _, pattern := range fabric.ListenAt(fabric.Any, string(schema.ShardMember(l.shard))) {
		if err := conn.Subscribe(pattern, func(m fabric.Message) { s.receive(conn, l.shard, m) }); err != nil {
			return fmt.Errorf("listen at the embedded server: %w", err) // release closes the connection
		}
	}
	return nil
}
