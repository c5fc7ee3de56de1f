package exchange

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"gradbus/fabric"
)

// rawBufferBytes is the sink's buffer. It is as large as the largest write: a smaller one costs calls, a larger one
// cache.
const rawBufferBytes = 1 << 20

// sink accepts one raw TCP connection and reads it into a fixed buffer.
type sink struct {
	listener net.Listener
	count    atomic.Uint64
	wait     sync.WaitGroup
	mu       sync.Mutex
	conn     net.Conn
}

func newSink() (*sink, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &sink{listener: listener}
	s.wait.Go(s.read)
	return s, nil
}

func (s *sink) read() {
	conn, err := s.listener.Accept()
	if err != nil {
		return // closed
	}
	s.mu.Lock()
	s.conn = conn
	s.mu.Unlock()
	for buffer := make([]byte, rawBufferBytes); ; {
		n, err := conn.Read(buffer)
		s.count.Add(uint64(n))
		if err != nil {
			return
		}
	}
}

func (s *sink) order(_ context.Context, o order) (answer, error) {
	if o.Op != opListen {
		return answer{}, errors.New("unknown order")
	}
	return answer{URL: s.listener.Addr().String()}, nil
}

func (s *sink) bytes() uint64 { return s.count.Load() }

func (s *sink) close() {
	s.listener.Close()
	s.mu.Lock()
	if s.conn != nil {
		s.conn.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
}

// source writes to a raw TCP connection, in pieces of a size that may be changed under way.
type source struct {
	conn  net.Conn
	size  atomic.Int64
	count atomic.Uint64
	wait  sync.WaitGroup
}

func newSource() *source { return &source{} }

func (s *source) order(ctx context.Context, o order) (answer, error) {
	switch o.Op {
	case opConnect:
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", o.URL)
		if err != nil {
			return answer{}, err
		}
		s.conn = conn
		return answer{}, nil
	case opWrite:
		if o.Bytes < 1 || o.Bytes > rawBufferBytes {
			return answer{}, fmt.Errorf("%d bytes: want 1 to %d", o.Bytes, rawBufferBytes)
		}
		if s.size.Swap(int64(o.Bytes)) == 0 {
			s.wait.Go(s.write)
		}
		return answer{}, nil
	}
	return answer{}, errors.New("unknown order")
}

func (s *source) write() {
	for buffer := make([]byte, rawBufferBytes); ; {
		n, err := s.conn.Write(buffer[:s.size.Load()])
		s.count.Add(uint64(n))
		if err != nil {
			return // closed, here or there
		}
	}
}

func (s *source) bytes() uint64 { return s.count.Load() }

func (s *source) close() {
	if s.conn != nil {
		s.conn.Close()
	}
	s.wait.Wait()
}

// The writer and the reader speak on subjects of a job of their own. Their messages are no frames: a sequence number,
// then anything; an ack is a sequence number and a window.
const (
	publishJob    = "psbench"
	publishFrames = 64 // different buffers that the writer sends in turn, as a trainer's are
)

// counted is the envelope of the writer's messages.
type counted struct{}

func (counted) Sequence(b []byte) (uint64, bool) {
	if len(b) < 8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b), true
}

func (counted) SetSequence(b []byte, n uint64) { binary.LittleEndian.PutUint64(b, n) }

// reader is an embedded server and its in-process reader, which looks at nothing but the sequence number.
type reader struct {
	server *fabric.Server
	conn   *fabric.Conn
	inbox  *fabric.Inbox
	count  atomic.Uint64
	ack    [16]byte
	ackDue int
	window int
}

func newReader(ctx context.Context, s *spec) (_ *reader, err error) {
	r := &reader{window: s.WindowBytes, inbox: fabric.NewInbox(uint64(2 * s.WindowBytes))}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.server, err = fabric.StartServer(fabric.ServerConfig{}); err != nil {
		return nil, err
	}
	if r.conn, err = fabric.Dial(ctx, fabric.Config{Server: r.server, Name: publishJob + "/s0"}); err != nil {
		return nil, err
	}
	if err = r.conn.Subscribe(fabric.Pattern(publishJob, fabric.Any, fabric.KindDense, "s0", true), r.take); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *reader) take(m fabric.Message) {
	defer m.Release()
	n, ok := counted{}.Sequence(m.Data)
	if !ok {
		return
	}
	r.inbox.AcceptBytes(n, len(m.Data))
	r.inbox.Free(int(r.inbox.HeldBytes()))
	r.count.Add(uint64(len(m.Data)))
	if r.ackDue += len(m.Data); r.ackDue < r.window/8 {
		return
	}
	r.ackDue = 0
	a := r.inbox.Ack()
	binary.LittleEndian.PutUint64(r.ack[:], a.Cumulative)
	binary.LittleEndian.PutUint64(r.ack[8:], a.Window)
	_ = r.conn.Send(fabric.At(publishJob, "s0", fabric.KindAck, "t0"), r.ack[:]) // the next one says the same
}

func (r *reader) order(_ context.Context, o order) (answer, error) {
	if o.Op != opListen {
		return answer{}, errors.New("unknown order")
	}
	return answer{URL: r.server.URL()}, nil
}

func (r *reader) bytes() uint64 { return r.count.Load() }

func (r *reader) close() {
	if r.conn != nil {
		r.conn.Close()
	}
	if r.server != nil {
		r.server.Close()
	}
}

// writer publishes to the reader, as far ahead of its acks as a trainer's window is wide.
type writer struct {
	spec   *spec
	conn   *fabric.Conn
	outbox *fabric.Outbox
	frames [][]byte
	count  atomic.Uint64
	wait   sync.WaitGroup
	cancel context.CancelFunc
}

func newWriter(s *spec) *writer {
	w := &writer{spec: s}
	for range publishFrames {
		w.frames = append(w.frames, make([]byte, s.ChunkBytes))
	}
	return w
}

func (w *writer) order(ctx context.Context, o order) (answer, error) {
	if o.Op != opConnect {
		return answer{}, errors.New("unknown order")
	}
	var err error
	if w.conn, err = fabric.Dial(ctx, fabric.Config{URL: o.URL, Name: publishJob + "/t0"}); err != nil {
		return answer{}, err
	}
	w.outbox = fabric.NewOutbox(fabric.OutboxConfig{Envelope: counted{}, BytesMax: w.spec.WindowBytes,
		FramesMax: min(fabric.SpanMax, publishFrames-1), Publish: w.conn.SendInPlace})
	err = w.conn.Subscribe(fabric.Pattern(publishJob, fabric.Any, fabric.KindAck, "t0", false), func(m fabric.Message) {
		defer m.Release()
		if len(m.Data) == 16 {
			le := binary.LittleEndian
			_ = w.outbox.Ack(fabric.Ack{Cumulative: le.Uint64(m.Data), Window: le.Uint64(m.Data[8:])}) // fails with Send
		}
	})
	if err != nil {
		return answer{}, err
	}
	ctx, w.cancel = context.WithCancel(ctx)
	w.wait.Go(func() { w.write(ctx) })
	w.wait.Go(func() { tick(ctx, w.outbox) })
	return answer{}, nil
}

func (w *writer) write(ctx context.Context) {
	subject := fabric.At(publishJob, "t0", fabric.KindDense, "s0").WithBucket(1, 1)
	for i := 0; ; i++ {
		frame := w.frames[i%publishFrames]
		if w.outbox.Send(ctx, subject, fabric.WithoutRoom(frame)) != nil {
			return
		}
		w.count.Add(uint64(len(frame)))
	}
}

// tick drives windows until ctx ends.
func tick(ctx context.Context, outboxes ...*fabric.Outbox) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			for _, o := range outboxes {
				if err := o.Tick(now); err != nil {
					o.Close(fmt.Errorf("tick: %w", err))
				}
			}
		}
	}
}

func (w *writer) bytes() uint64 { return w.count.Load() }

func (w *writer) close() {
	if w.cancel != nil {
		w.cancel()
	}
	if w.conn != nil {
		w.conn.Close()
	}
	w.wait.Wait()
}
