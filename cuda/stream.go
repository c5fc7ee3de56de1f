package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"
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

// Buffer is memory outside the Go heap, aligned to 64 bytes and zeroed. Its owner frees it; slices of it die with it.
type Buffer struct {
	values []float32
	free   func()
}

// Float32s is the buffer's memory, valid until Free.
func (b *Buffer) Float32s() []float32 { return b.values }

// vector is n elements of any type from the byte offset on, valid until Free. It panics where they are out of range, as
// slicing does.
func (b *Buffer) vector(dtype DType, offset, n int) Vector {
	whole := Vector{unsafe.Pointer(unsafe.SliceData(b.values)), len(b.values) * 4, Uint8}
	return whole.at(dtype, offset, n)
}

// at is n elements of a type from an offset on in a vector of bytes.
func (v Vector) at(dtype DType, offset, n int) Vector {
	size := dtype.Bytes()
	if size == 0 || offset < 0 || n < 0 || offset%size != 0 || offset > v.n || n > (v.n-offset)/size {
		panic(fmt.Sprintf("%d elements of %v at byte %d of %d", n, dtype, offset, v.n))
	}
	if n == 0 {
		return Vector{dtype: dtype}
	}
	return Vector{unsafe.Add(v.data, offset), n, dtype}
}

// Free gives the memory back. A second call does nothing.
func (b *Buffer) Free() {
	if b != nil && b.free != nil {
		b.free()
		b.free, b.values = nil, nil
	}
}

// MaxPool2d is the geometry of a max-pooling: each of N images of C channels of H x W is covered by windows of KernelH
// x KernelW, a stride of 0 being the kernel's side; Pad values of -Inf stand on each side, at most half of the
// kernel's. Windows that do not fit are left out. XLayout is that of X and its gradient, YLayout of Y and its gradient.
type MaxPool2d struct {
	N, C, H, W       int
	KernelH, KernelW int
	StrideH, StrideW int
	PadH, PadW       int
	XLayout, YLayout Layout
}

// outHeight is (H + 2 PadH - KernelH) / StrideH + 1.
func (p *MaxPool2d) outHeight() int { return windows(p.H, p.KernelH, p.strideH(), p.PadH) }

// outWidth is (W + 2 PadW - KernelW) / StrideW + 1.
func (p *MaxPool2d) outWidth() int { return windows(p.W, p.KernelW, p.strideW(), p.PadW) }

func (p *MaxPool2d) strideH() int {
	if p.StrideH == 0 {
		return p.KernelH
	}
	return p.StrideH
}

func (p *MaxPool2d) strideW() int {
	if p.StrideW == 0 {
		return p.KernelW
	}
	return p.StrideW
}

// MaxPool2dForward is Y, the largest value of each window, and ArgMax (or nil), where it was found: h*W + w in the
// channel's plane. ArgMax has Y's length and, whatever Y's, the layout XLayout. Of equal values the first counts, by h,
// then w; the first NaN counts as the largest.
type MaxPool2dForward struct {
	MaxPool2d
	X, Y   []float32
	ArgMax []int32
}

// MaxPool2dBackward is GradX: each value of GradY is added where ArgMax says, in order of windows; elsewhere GradX is
// zero. ArgMax is that of MaxPool2dForward.
type MaxPool2dBackward struct {
	MaxPool2d
	GradY  []float32
	ArgMax []int32
	GradX  []float32
}

func (p *MaxPool2d) check(op string, x, y []float32, argmax []int32) error {
	p.StrideH, p.StrideW = p.strideH(), p.strideW()
	if err := firstOf(p.XLayout.check(op), p.YLayout.check(op),
		checkWindow(op, "height", p.H, p.KernelH, p.StrideH, p.PadH),
		checkWindow(op, "width", p.W, p.KernelW, p.StrideW, p.PadW)); err != nil {
		return err
	}
	if 2*p.PadH > p.KernelH || 2*p.PadW > p.KernelW {
		return shapeError(op, "padding of %d x %d is more than half of the kernel's %d x %d", p.PadH, p.PadW,
			p.KernelH, p.KernelW)
	}
	if p.H*p.W > extentMax {
		return shapeError(op, "a plane of %d x %d: its places are numbered in 31 bits", p.H, p.W)
	}
	if argmax != nil && len(argmax) != len(y) {
		return shapeError(op, "argmax has %d values, want %d", len(argmax), len(y))
	}
	return firstOf(tensor(op, "x", x, p.N, p.C, p.H, p.W), tensor(op, "y", y, p.N, p.C, p.outHeight(), p.outWidth()))
}

// MaxPool2dForward: see the type.
func (d *Dense) MaxPool2dForward(a MaxPool2dForward) error {
	const op = "max pool forward"
	if err := firstOf(a.check(op, a.X, a.Y, a.ArgMax), separate(op, "y", a.Y, a.X)); err != nil || len(a.Y) == 0 {
		return err
	}
	d.maps.poolForward(&a)
	return nil
}

// MaxPool2dBackward: see the type.
func (d *Dense) MaxPool2dBackward(a MaxPool2dBackward) error {
	const op = "max pool backward"
	if err := firstOf(a.check(op, a.GradX, a.GradY, a.ArgMax), separate(op, "the gradient", a.GradX, a.GradY)); err !=
		nil || len(a.GradY) == 0 {
		return err
	}
	if a.ArgMax == nil {
		return shapeError(op, "no argmax: give MaxPool2dForward's")
	}
	if at := d.maps.poolBackward(&a); at >= 0 {
		return &idError{op: op, position: at, id: int64(a.ArgMax[at]), limit: int64(a.H * a.W)}
	}
	return nil
}

// places gives where value (image, channel, place) of N images of C channels of so many places lies.
type places struct{ image, channel, place int }

func placesOf(l Layout, channels, plane int) places {
	if l == NHWC {
		return places{channels * plane, 1, channels}
	}
	return places{channels * plane, plane, 1}
}

func (goMaps) poolForward(a *MaxPool2dForward) {
	oh, ow := a.outHeight(), a.outWidth()
	in, out, at := placesOf(a.XLayout, a.C, a.H*a.W), placesOf(a.YLayout, a.C, oh*ow), placesOf(a.XLayout, a.C, oh*ow)
	for image := range a.N {
		for channel := range a.C {
			x := a.X[image*in.image+channel*in.channel:]
			for window := range oh * ow {
				top, place := a.largestOf(x, in.place, window/ow*a.StrideH-a.PadH, window%ow*a.StrideW-a.PadW)
				a.Y[image*out.image+channel*out.channel+window*out.place] = top
				if a.ArgMax != nil {
					a.ArgMax[image*at.image+channel*at.channel+window*at.place] = int32(place)
				}
			}
		}
	}
}

// largestOf is the largest value of the window that begins at (row, column) of the plane x, and its place.
func (a *MaxPool2dForward) largestOf(x []float32, step, row, column int) (top float32, place int) {
	place = -1
	for h := max(row, 0); h < min(row+a.KernelH, a.H); h++ {
		for w := max(column, 0); w < min(column+a.KernelW, a.W); w++ {
			v := x[(h*a.W+w)*step]
			if place < 0 || v > top || v != v && top == top {
				top, place = v, h*a.W+w
			}
		}
	}
	return top, place
}

func (goMaps) poolBackward(a *MaxPool2dBackward) int {
	for i, at := range a.ArgMax {
		if uint(at) >= uint(a.H*a.W) {
			return i
		}
	}
	windows := a.outHeight() * a.outWidth()
	in, out, at := placesOf(a.XLayout, a.C, a.H*a.W), placesOf(a.YLayout, a.C, windows), placesOf(a.XLayout, a.C, windows)
	clear(a.GradX)
	for image := range a.N {
		for channel := range a.C {
			x := a.GradX[image*in.image+channel*in.channel:]
			for window := range windows {
				place := a.ArgMax[image*at.image+channel*at.channel+window*at.place]
				x[int(place)*in.place] += a.GradY[image*out.image+channel*out.channel+window*out.place]
			}
		}
	}
	return -1
}

func (goMaps) relayout(a *Relayout) {
	from, to := placesOf(a.From, a.C, a.Plane), placesOf(a.To, a.C, a.Plane)
	for image := range a.N {
		for channel := range a.C {
			x, y := a.X[image*from.image+channel*from.channel:], a.Y[image*to.image+channel*to.channel:]
			for p := range a.Plane {
				y[p*to.place] = x[p*from.place]
			}
		}
	}
}
