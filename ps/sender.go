package ps

import (
	"context"
	"sync/atomic"

	"gradbus/fabric"
)

// sendsMax and sendBytesMax bound the control messages that wait to be sent: those of some seconds, or manifests of 1
// MiB each. What finds them full is dropped: all of it is said again.
const (
	sendsMax     = 4 * 4096
	sendBytesMax = 16 << 20
)

// sender sends the control messages of this ps on a goroutine of its own, in their order. A socket that is full holds
// up whoever writes to it for up to 10 s, and the control loop waits for no server.
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
