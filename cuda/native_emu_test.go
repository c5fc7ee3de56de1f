//go:build native && emu

package cuda

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// emulated is the emulated device with its switches as they were, before and after the test.
func emulated(t *testing.T) Backend {
	t.Helper()
	emuReset()
	b, err := Open(Options{Name: "emu"})
	must(t, err)
	t.Cleanup(func() {
		emuReset()
		must(t, b.Close())
	})
	return b
}

// osThreads is how many threads this process has.
func osThreads(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	_, after, _ := strings.Cut(string(status), "Threads:")
	n, err := strconv.Atoi(strings.TrimSpace(after[:strings.Index(after, "\n")]))
	must(t, err)
	return n
}

// TestWaitParks: goroutines that wait for a busy device block no thread, and let go when their context ends.
func TestWaitParks(t *testing.T) {
	b := emulated(t)
	const waiters = 50
	before := osThreads(t)
	emuDefer(true)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	streams, batches := make([]*Stream, waiters), make([]*Batch, waiters)
	for i := range streams {
		var err error
		streams[i], err = OpenStream(b)
		must(t, err)
		a := addOne(0, []float32{7})
		c := carry(t, b, streams[i], &a)
		batches[i] = b.NewBatch()
		must(t, batches[i].add(c.command))
		must(t, streams[i].Submit(batches[i]))
		all.Go(func() {
			if err := streams[i].Wait(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("wait: %v", err)
			}
		})
	}
	// A thread blocked in a read would be one more for each waiter.
	for range 20 {
		time.Sleep(5 * time.Millisecond)
		if n := osThreads(t) - before; n > waiters/2 {
			t.Errorf("%d more threads for %d waiting goroutines", n, waiters)
			break
		}
	}
	cancel()
	all.Wait()
	emuDefer(false)
	for i, s := range streams {
		must(t, s.Wait(t.Context()))
		batches[i].Free()
		must(t, s.Close())
	}
}

// doomed is a backend with a stream and a batch of every operation, to be run on a device that fails.
type doomed struct {
	backend Backend
	stream  *Stream
	batch   *Batch
	carried []*carried
}

func newDoomed(t *testing.T) *doomed {
	t.Helper()
	b, err := Open(Options{Name: "emu"})
	must(t, err)
	s, err := OpenStream(b)
	must(t, err)
	d := &doomed{backend: b, stream: s, batch: b.NewBatch()}
	for _, c := range samples(1) {
		c := carry(t, b, s, c)
		d.carried = append(d.carried, c)
		must(t, d.batch.add(c.command))
	}
	must(t, d.run(t)) // makes the workspace
	return d
}

func (d *doomed) run(t *testing.T) error {
	if err := d.stream.Submit(d.batch); err != nil {
		return err
	}
	return d.stream.Wait(t.Context())
}

func (d *doomed) close(t *testing.T) {
	t.Helper()
	must(t, d.stream.Close())
	d.batch.Free()
	for _, c := range d.carried {
		c.device.Free()
		c.host.Free()
	}
	must(t, d.backend.Close())
}

// TestPlaced: a call is done where that is sooner, with the same bits. The device is asked for nothing where that is
// the CPU.
func TestPlaced(t *testing.T) {
	emu, err := Open(Options{Name: "emu"})
	must(t, err)
	defer emu.Close()
	cpu, err := Open(Options{Name: "cpu"})
	must(t, err)
	emu.(*native).cpu = cpu.(*native) // which Close closes, too
	for n, onDevice := range map[int]bool{8: false, 256: true} {
		r := rand.New(rand.NewPCG(uint64(n), 1))
		a := MatMul{M: n, N: n, K: n, A: Float32s(noise(r, n*n)), B: Float32s(noise(r, n*n))}
		got, want := make([]float32, n*n), make([]float32, n*n)
		before := emuCalls()
		a.C = Float32s(got)
		must(t, emu.MatMul(a))
		if asked := emuCalls() > before; asked != onDevice {
			t.Errorf("%d by %d: on the device %v, want %v", n, n, asked, onDevice)
		}
		a.C = Float32s(want)
		must(t, cpu.MatMul(a))
		wantFloats(t, "product", got, want)
	}
}

// TestLostDevice lets each call that the device gets fail in turn, as a driver does whose device is gone: whichever it
// is, the caller is told ErrDevice, by Submit or by Wait, from then on, and nothing hangs.
func TestLostDevice(t *testing.T) {
	const launchFailed = 719 // cudaErrorLaunchFailure
	emuReset()
	defer emuReset()
	d := newDoomed(t)
	before := emuCalls()
	must(t, d.run(t))
	calls := emuCalls() - before
	d.close(t)
	if calls < int64(len(d.carried)) {
		t.Fatalf("%d calls of the device for %d commands", calls, len(d.carried))
	}
	for n := int64(1); n <= calls; n++ {
		d := newDoomed(t)
		emuFailAt(n, launchFailed)
		if err := d.run(t); !errors.Is(err, ErrDevice) {
			t.Errorf("call %d of %d failed: %v, want ErrDevice", n, calls, err)
		}
		if err := d.stream.Wait(t.Context()); !errors.Is(err, ErrDevice) {
			t.Errorf("call %d of %d failed, and then: %v, want ErrDevice", n, calls, err)
		}
		if err := d.backend.BagForward(addOne(0, make([]float32, 1))); !errors.Is(err, ErrDevice) {
			t.Errorf("call %d of %d failed, and then the backend: %v, want ErrDevice", n, calls, err)
		}
		emuReset()
		d.close(t)
	}
}

// TestLostDeviceInCalls lets each thing that a call on pinned memory asks of the device fail in turn, for want of
// memory and for good. Either nothing was written, or the device is lost, for calls that the CPU would do, too.
func TestLostDeviceInCalls(t *testing.T) {
	const launchFailed, noMemory = 719, 2
	emuReset()
	defer emuReset()
	const rows, dim = 40, 5
	failAt := func(n int64, code int32) (asked int64) {
		b, err := Open(Options{Name: "emu"})
		must(t, err)
		defer b.Close()
		var m [2]*Buffer
		for i := range m {
			m[i], err = b.Alloc(rows * dim)
			must(t, err)
			defer m[i].Free()
		}
		table, moved := Float32s(m[0].Float32s()), Float32s(m[1].Float32s())
		a := CoalesceApply{Dim: dim, Optimizer: SGD{LR: 0.1, Momentum: 0.9}, Weight: 1, Table: table, Out: table,
			Keys: int64sOf(3, 1, 3), Rows: Float32s(slices.Repeat([]float32{1}, 3*dim)),
			Slots: []Slot{{Name: "momentum", Before: moved, After: moved}}}
		_, err = b.CoalesceApply(a) // makes the memory of calls
		must(t, err)
		before := string(table.bytes()) + string(moved.bytes())
		from := emuCalls()
		if n > 0 {
			emuFailAt(n, code)
			defer emuReset()
		}
		_, err = b.CoalesceApply(a)
		asked = emuCalls() - from
		written := string(table.bytes())+string(moved.bytes()) != before
		switch {
		case n == 0 || err == nil && code == noMemory: // where memory lies was not told, so it was copied
			must(t, err)
			if !written {
				t.Errorf("call %d: nothing was written", n)
			}
		case errors.Is(err, ErrMemory):
			if written {
				t.Errorf("call %d, code %d: %v, and something was written", n, code, err)
			}
		case !errors.Is(err, ErrDevice):
			t.Errorf("call %d, code %d: %v, want ErrDevice", n, code, err)
		default:
			emuReset()
			cpu, err := Open(Options{Name: "cpu"})
			must(t, err)
			b.(*native).cpu = cpu.(*native)
			if err := b.BagForward(addOne(0, make([]float32, 1))); !errors.Is(err, ErrDevice) {
				t.Errorf("call %d, code %d, and then the CPU: %v, want ErrDevice", n, code, err)
			}
		}
		return asked
	}
	for n := failAt(0, 0); n > 0; n-- {
		failAt(n, launchFailed)
		failAt(n, noMemory)
	}
}

// Operations are counted where they were done: a backend of a device leaves small ones to the CPU.
func TestOperationsAreCountedByDevice(t *testing.T) {
	b := emulated(t).(*native)
	cpu, err := Open(Options{Name: "cpu"})
	must(t, err)
	b.cpu = cpu.(*native) // as cuda has it; closed with it
	product := func(n int) {
		t.Helper()
		of := func() Vector { return Float32s(make([]float32, n*n)) }
		must(t, b.MatMul(MatMul{M: n, N: n, K: n, A: of(), B: of(), C: of()}))
	}
	product(2)
	product(256)
	product(3)
	if calls := Calls(b); calls["cpu"] != 2 || calls[b.Name()] != 1 {
		t.Errorf("%v, want 2 of the CPU and 1 of the device", calls)
	}
}
