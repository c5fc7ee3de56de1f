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

// release closes a link that no other assignment uses, and waits until it is closed.
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

// refusal says why a frame was not taken. It changes nothing but a counter.
type refusal = schema.FrameError

// receive processes what arrives for one shard, of any job: it is verified here, once, and passed to the job's worker,
// which may step it at once. It runs on the goroutines of the shard's lines and waits for no step lock, so that no job
// delays another for longer than a step. The last user of the message releases it. A refusal is sent on the connection
// on which the frame arrived.
func (s *Server) receive(conn *fabric.Conn, shard int, m fabric.Message) {
	s.counters.received(len(m.Data))
	m.Keep() // but for what its sender lends
	if it, to, ok := s.admit(conn, shard, &m); ok {
		if name, module := m.Module(); module {
			to.deliverToModule(&it, name)
		} else if !to.deliver(&it) {
			s.counters.dropped.Add(1)
		}
		return
	}
	m.Release()
}

// admit verifies a message and finds whose worker it is for. Where that fails its sender has been told.
func (s *Server) admit(conn *fabric.Conn, shard int, m *fabric.Message) (it item, to *worker, ok bool) {
	subject, err := m.Parse()
	if err != nil {
		s.counters.count(schema.ReasonMalformed) // the sender is not known
		return it, nil, false
	}
	a := (*s.jobs.Load())[schema.JobName(subject.Job)]
	if s.ofAnother(a, shard) {
		return it, nil, false
	}
	view, err := schema.Verify(m.Data, s.limits)
	if err != nil {
		s.refuse(conn, shard, &subject, schema.Head{}, schema.Refusing(err))
		return it, nil, false
	}
	head := view.Head()
	if !goesBy(head.Kind, subject.Kind) {
		s.refuse(conn, shard, &subject, head, schema.Refuse(schema.ReasonMalformed, "%v frame on a subject of kind %s",
			head.Kind, subject.Kind))
		return it, nil, false
	}
	if !a.has(shard) {
		s.refuse(conn, shard, &subject, head, schema.Refuse(schema.ReasonJobUnknown,
			"job %s is not registered here: it has ended, or the server has restarted", subject.Job))
		return it, nil, false
	}
	return item{from: schema.Member(subject.From), view: view, payload: m.Lease()}, a.workers[shard], true
}

// ofAnother reports whether a frame may be for a shard of another ps, which then answers for it: our data server is
// also the cluster by which some trainers reach the shards of all ps, and shards of any number are heard there.
func (s *Server) ofAnother(a *assignment, shard int) bool {
	return !a.has(shard) && s.embedsControl() && (a != nil || !s.registry.alone.Load())
}

// has reports whether a shard of the job is here. Of a job that is not known, none is.
func (a *assignment) has(shard int) bool {
	return a != nil && shard < a.shards && a.workers[shard] != nil
}

// refuse tells a sender in a shard's name why its frame went nowhere.
func (s *Server) refuse(conn outlet, shard int, subject *fabric.Subject, head schema.Head, r *refusal) {
	s.refuseAs(conn, schema.ShardMember(shard), subject, head, r)
}

// refuseAs counts a refusal and tells the sender, unless it, or others, were told too often this second.
func (s *Server) refuseAs(conn outlet, who schema.Member, subject *fabric.Subject, head schema.Head, r *refusal) {
	s.counters.count(r.Reason)
	s.logRefusal(subject.Job, subject.From, r.Reason, r.Detail)
	if !s.unroutable.Allow() {
		return
	}
	frame := schema.EncodeRefusal(head, r.Reason, r.Detail)
	s.publish(conn, fabric.At(subject.Job, string(who), fabric.KindCtl, subject.From), frame)
}

// goesBy reports whether a frame of a kind may come to a shard on a subject of a kind.
func goesBy(k schema.Kind, subject string) bool {
	switch k {
	case schema.KindLookup:
		return subject == fabric.KindLookup || subject == fabric.KindPool
	case schema.KindState:
		return subject == fabric.KindReplica
	}
	return kindToken(k) == subject
}

// kindToken is the word for a kind in subjects.
func kindToken(k schema.Kind) string {
	switch k {
	case schema.KindDense:
		return fabric.KindDense
	case schema.KindSparse:
		return fabric.KindSparse
	case schema.KindMean:
		return fabric.KindMean
	case schema.KindLookup:
		return fabric.KindLookup
	case schema.KindRows:
		return fabric.KindRows
	case schema.KindPull:
		return fabric.KindPull
	case schema.KindAck:
		return fabric.KindAck
	case schema.KindHeartbeat:
		return fabric.KindHeartbeat
	case schema.KindState:
		return fabric.KindState
	case schema.KindForward, schema.KindBackward, schema.KindStep, schema.KindWeights, schema.KindOutput:
		return fabric.KindModule
	}
	return fabric.KindCtl
}

// sendsMax and sendBytesMax bound the control messages that wait to be sent: those of some seconds, or manifests of 1
// MiB each. What finds them full is dropped: all of it is said again.
const (
	sendsMax     = 4 * 4096
	sendBytesMax = 16 << 20
)

// sender sends the control messages of this ps on its own goroutine, in order. A full socket blocks its writer for up
// to 10 s, and the control loop must not wait for a server.
type sender struct {
	publish func(fabric.Subject, []byte)
	queue   chan unsent
	bytes   atomic.Int64 // of queue
	dropped *atomic.Uint64
	stop    chan struct{}
	done    chan struct{} // closed when the goroutine has ended
}

type unsent struct {
	at    fabric.Subject
	frame []byte
}

func newSender(publish func(fabric.Subject, []byte), dropped *atomic.Uint64) *sender {
	s := &sender{publish: publish, queue: make(chan unsent, sendsMax), dropped: dropped, stop: make(chan struct{}),
		done: make(chan struct{})}
	go s.run()
	return s
}

// Send implements outlet. It never waits, and keeps the frame.
func (s *sender) Send(at fabric.Subject, frame []byte) error {
	bytes := int64(len(frame))
	if s.bytes.Add(bytes) <= sendBytesMax {
		select {
		case s.queue <- unsent{at, frame}:
			return nil
		default:
		}
	}
	s.bytes.Add(-bytes)
	s.dropped.Add(1)
	return nil
}

func (s *sender) run() {
	defer close(s.done)
	for {
		select {
		case m := <-s.queue:
			s.send(m)
		case <-s.stop:
			for { // what was said before
				select {
				case m := <-s.queue:
					s.send(m)
				default:
					return
				}
			}
		}
	}
}

func (s *sender) send(m unsent) {
	s.bytes.Add(-int64(len(m.frame)))
	s.publish(m.at, m.frame)
}

// end has the goroutine send what waits and end, and waits for that as long as ctx. It is called once.
func (s *sender) end(ctx context.Context) error {
	close(s.stop)
	select {
	case <-s.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
