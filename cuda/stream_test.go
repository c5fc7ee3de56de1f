package cuda

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
)

// onStreams runs body on a stream of every backend that has a device.
func onStreams(t *testing.T, body func(t *testing.T, b Backend, s *Stream)) {
	t.Helper()
	none := true
	for _, b := range backends(t) {
		s, err := OpenStream(b)
		if b.Name() == "go" || b.Name() == "cpu" {
			if !errors.Is(err, ErrUnsupported) {
				t.Errorf("a stream on %s: %v, want ErrUnsupported", b.Name(), err)
			}
			continue
		}
		must(t, err)
		none = false
		t.Run(b.Name(), func(t *testing.T) { body(t, b, s) })
		must(t, s.Close())
		must(t, s.Close())
	}
	if none {
		leftOut(t, "cuda", errors.New("no backend of this build and machine has a device"))
	}
}

// carried is a command whose vectors lie on the device, and what it takes to bring them there and back.
type carried struct {
	command
	host   *Buffer // pinned
	device *DeviceMemory
	pieces []piece
}

type piece struct{ at, bytes int }

// carry moves a command's vectors to the device. They begin at odd multiples of their elements' size.
func carry(t *testing.T, b Backend, s *Stream, c command) *carried {
	t.Helper()
	to := &carried{command: c}
	total := 0
	vectors(c, func(v *Vector) {
		if v.n > 0 {
			to.pieces = append(to.pieces, piece{total + v.dtype.Bytes(), len(bytesOf(*v))})
			total += (v.dtype.Bytes() + len(bytesOf(*v)) + 63) &^ 63
		}
	})
	var err error
	to.host, err = b.Alloc((total + 3) / 4)
	must(t, err)
	to.device, err = s.AllocDevice(total)
	must(t, err)
	t.Cleanup(to.host.Free)
	next := 0
	vectors(c, func(v *Vector) {
		if v.n > 0 {
			p := to.pieces[next]
			next++
			copy(bytesOf(to.host.vector(Uint8, p.at, p.bytes)), bytesOf(*v))
			*v = to.device.Vector(v.dtype, p.at, v.n)
		}
	})
	must(t, s.Copy(to.device.uint8s(0, total), to.host.vector(Uint8, 0, total)))
	return to
}

// back queues the copy to the host.
func (c *carried) back(t *testing.T, s *Stream) {
	t.Helper()
	n := c.device.len()
	must(t, s.Copy(c.host.vector(Uint8, 0, n), c.device.uint8s(0, n)))
}

func (c *carried) memory() []byte {
	var all []byte
	for _, p := range c.pieces {
		all = append(all, bytesOf(c.host.vector(Uint8, p.at, p.bytes))...)
	}
	return all
}

func TestStream(t *testing.T) {
	onStreams(t, func(t *testing.T, b Backend, s *Stream) {
		must(t, s.Wait(t.Context())) // for nothing
		for seed := range uint64(3) {
			memory, counts, reports := wanted(t, seed)
			batch := b.NewBatch()
			var told Report
			var all []*carried
			for i, c := range samples(seed) {
				if i == 0 {
					c.(*BagForward).Report = &told
				}
				c := carry(t, b, s, c)
				all = append(all, c)
				must(t, batch.add(c.command))
			}
			must(t, s.Submit(batch))
			for _, c := range all {
				c.back(t, s)
			}
			must(t, s.Wait(t.Context()))
			if told != reports[0] {
				t.Errorf("report %+v, want %+v", told, reports[0])
			}
			for i, c := range all {
				if batch.Count(i) != counts[i] || batch.report(i) != reports[i] {
					t.Errorf("%T: %d, %+v, want %d, %+v", c.command, batch.Count(i), batch.report(i), counts[i], reports[i])
				}
				if !bytes.Equal(c.memory(), memory[i]) {
					t.Errorf("%T: other bits than the portable backend's", c.command)
				}
				c.device.Free()
			}
			batch.Free()
		}
	})
}

// TestPinned: calls on memory that a device reaches by itself, where some of it stays in place.
func TestPinned(t *testing.T) {
	onStreams(t, func(t *testing.T, b Backend, _ *Stream) {
		for seed := range uint64(3) {
			memory, counts, _ := wanted(t, seed)
			for i, c := range samples(seed) {
				batch, back := b.NewBatch(), pin(t, b, c)
				must(t, batch.add(c))
				must(t, b.Submit(batch))
				back()
				if batch.Count(0) != counts[i] || !bytes.Equal(memoryOf(c), memory[i]) {
					t.Errorf("%T: count %d of %d, or other bits than the portable backend's", c, batch.Count(0), counts[i])
				}
				batch.Free()
			}
		}
	})
}

// TestStreamBadID: a bad id is found on the device, where it stops its own command alone.
func TestStreamBadID(t *testing.T) {
	onStreams(t, func(t *testing.T, b Backend, s *Stream) {
		batch := b.NewBatch()
		defer batch.Free()
		var all []*carried
		for _, id := range []int64{0, 9, 1} {
			a := addOne(id, []float32{7})
			c := carry(t, b, s, &a)
			defer c.device.Free()
			all = append(all, c)
			must(t, batch.add(c.command))
		}
		must(t, s.Submit(batch))
		for _, c := range all {
			c.back(t, s)
		}
		err := s.Wait(t.Context())
		var bad *idError
		if !errors.As(err, &bad) || bad.id != 9 || bad.limit != 2 ||
			!strings.Contains(err.Error(), "command 1: bag forward") {
			t.Errorf("error %v", err)
		}
		for i, want := range []float32{5, 7, 6} {
			p := all[i].pieces[len(all[i].pieces)-1]
			wantFloats(t, "out", view[float32](all[i].host.vector(Float32, p.at, 1)), []float32{want})
		}
		must(t, s.Wait(t.Context())) // the stream is not spoilt
	})
}

func TestStreamRefuses(t *testing.T) {
	onStreams(t, func(t *testing.T, b Backend, s *Stream) {
		refused := func(what string, err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
		onHost, onDevice := b.NewBatch(), b.NewBatch()
		defer onHost.Free()
		defer onDevice.Free()
		a := addOne(0, []float32{7})
		must(t, onHost.BagForward(a))
		refused("Go memory on a stream", s.Submit(onHost), ErrArgument)
		refused("a copy of Go memory", s.Copy(Uint8s([]uint8{1}), Uint8s([]uint8{2})), ErrArgument)
		c := carry(t, b, s, &a)
		defer c.device.Free()
		must(t, onDevice.add(c.command))
		refused("device memory in a call", b.BagForward(a), ErrArgument)
		refused("device memory in a synchronous batch", b.Submit(onDevice), ErrArgument)
		must(t, s.Submit(onDevice))
		refused("a batch twice", s.Submit(onDevice), ErrArgument)
		refused("a queued batch, synchronously", b.Submit(onDevice), ErrArgument)
		refused("a command for a queued batch", onDevice.BagForward(a), ErrArgument)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		refused("a context that has ended", s.Wait(ctx), context.Canceled)
		must(t, s.Wait(t.Context()))
		must(t, s.Submit(onDevice))
		must(t, s.Wait(t.Context()))
		other, err := OpenStream(b)
		must(t, err)
		must(t, other.Close())
		refused("a closed stream", other.Wait(t.Context()), ErrClosed)
		refused("a closed stream", other.Submit(onDevice), ErrClosed)
	})
}
