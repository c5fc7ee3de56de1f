package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
)

// Stream is a queue of work on a backend's device: what is submitted runs in order and beside the caller, who may wait
// for it without keeping an OS thread. The commands' data lie in the device's memory (AllocDevice) or in pinned memory
// (Backend.Alloc). A stream is used by one goroutine at a time.
type Stream struct {
	queue   queue
	ended   *os.File // an eventfd: its sum is how many notifications have come
	fd      int      // of ended, whose own Fd would make it blocking
	asked   uint64   // notifications asked for
	came    uint64   // notifications read
	pending []*Batch // queued and not waited for, in order
	failed  error    // the device's failure: the stream is of no more use
}

// queue is a stream as its backend keeps it.
type queue interface {
	// eventfd is a file descriptor to notify, to be closed by the caller.
	eventfd() (int, error)
	// submit queues a batch's commands and says how many; the command after them was refused where there is an error.
	submit(*Batch) (int, error)
	// outcome is the first error among a batch's commands, when they have ended.
	outcome(*Batch) error
	copy(to, from Vector) error
	// notify adds 1 to the file descriptor when all that is queued has ended.
	notify(fd int) error
	// wait blocks until all has ended.
	wait() error
	alloc(bytes int) (*DeviceMemory, error)
	// close waits, and ends the queue.
	close()
}

// OpenStream gives a stream on the backend's device. A backend that has none answers ErrUnsupported. Close the stream
// before the backend.
func OpenStream(b Backend) (*Stream, error) {
	on, ok := b.(interface{ openQueue() (queue, error) })
	if !ok {
		return nil, fmt.Errorf("open stream: %w: backend %s has no device of its own", ErrUnsupported, b.Name())
	}
	q, err := on.openQueue()
	if err != nil {
		return nil, fmt.Errorf("open stream: %w", err)
	}
	fd, err := q.eventfd()
	if err != nil {
		q.close()
		return nil, fmt.Errorf("open stream: %w: eventfd: %v", ErrMemory, err)
	}
	// The descriptor is non-blocking, so a read parks the goroutine in Go's poller.
	return &Stream{queue: q, ended: os.NewFile(uintptr(fd), "eventfd"), fd: fd}, nil
}

var errStreamClosed = fmt.Errorf("stream: %w", ErrClosed)

func (s *Stream) usable() error {
	if s.queue == nil {
		return errStreamClosed
	}
	return s.failed
}

// AllocDevice gives zeroed memory of the device. Free it before the stream is closed.
func (s *Stream) AllocDevice(bytes int) (*DeviceMemory, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	return s.queue.alloc(bytes)
}

// Submit queues the batch's commands and returns. An error names the first command that was refused at once; those
// before it are queued. What else goes wrong, Wait tells. The batch may not be used until Wait has returned.
func (s *Stream) Submit(b *Batch) error {
	if err := s.usable(); err != nil {
		return err
	}
	queued, err := s.queue.submit(b)
	if queued > 0 {
		b.stream = s
		s.pending = append(s.pending, b)
	}
	return s.note(err)
}

// Copy queues a copy between any two of device and pinned memory; see Backend.Copy.
func (s *Stream) Copy(to, from Vector) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := copyShape(to, from); err != nil {
		return err
	}
	return s.note(s.queue.copy(to, from))
}

// note keeps the failure of a device.
func (s *Stream) note(err error) error {
	if errors.Is(err, ErrDevice) {
		s.failed = err
	}
	return err
}

// Wait parks the goroutine until all that was queued has ended, and returns the error of the first command that failed,
// or ErrDevice where the device did. After it the batches' reports and counts can be read and the batches be used
// again. If ctx ends first, Wait returns its cause, and the work continues: wait again, or close.
func (s *Stream) Wait(ctx context.Context) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("wait: %w", err)
	}
	err := s.queue.notify(s.fd)
	if err == nil {
		s.asked++
		if err := s.park(ctx); err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		err = s.queue.wait() // has ended, so this blocks no longer than a look
	}
	return s.settle(err)
}

// park reads the eventfd until every notification asked for has come.
func (s *Stream) park(ctx context.Context) error {
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { s.ended.SetReadDeadline(time.Unix(1, 0)) })
		defer stop()
	}
	for s.came < s.asked {
		var sum [8]byte
		_, err := s.ended.Read(sum[:])
		switch {
		case err == nil:
			s.came += binary.NativeEndian.Uint64(sum[:])
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		default: // the deadline of an earlier Wait, whose context ended as it returned
			if err := s.ended.SetReadDeadline(time.Time{}); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle lets go of the batches and gives the first error.
func (s *Stream) settle(device error) error {
	first := s.note(device)
	for i, b := range s.pending {
		err := s.queue.outcome(b)
		if first == nil {
			first = err
		}
		b.stream, s.pending[i] = nil, nil
	}
	s.pending = s.pending[:0]
	return first
}

// Close waits for what is queued and ends the stream. A second call does nothing.
func (s *Stream) Close() error {
	if s.queue == nil {
		return nil
	}
	s.queue.close()
	s.settle(nil)
	s.queue = nil
	return s.ended.Close()
}

// DeviceMemory is memory of a device. Its owner frees it.
type DeviceMemory struct {
	region Vector // of bytes
	free   func()
}

// Vector is n elements from the byte offset on. It panics where they are out of range, as slicing does. The host cannot
// read it: it is for a stream's batches and copies.
func (m *DeviceMemory) Vector(dtype DType, offset, n int) Vector {
	return m.region.at(dtype, offset, n)
}

// Float32s is a vector of float32 from the byte offset on; see Vector.
func (m *DeviceMemory) Float32s(offset, n int) Vector { return m.Vector(Float32, offset, n) }
func (m *DeviceMemory) uint8s(offset, n int) Vector   { return m.Vector(Uint8, offset, n) }

// len is the number of bytes.
func (m *DeviceMemory) len() int { return m.region.n }

// Free gives the memory back. A second call does nothing.
func (m *DeviceMemory) Free() {
	if m.free != nil {
		m.free()
		m.free, m.region = nil, Vector{}
	}
}
