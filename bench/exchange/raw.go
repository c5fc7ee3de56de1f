package exchange

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
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
