package fabric

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"gradbus/fabric/fabrictest"
)

// receiver is the far end of a window: it takes frames in, keeps count, and acknowledges.
type receiver struct {
	t     *testing.T
	conn  *Conn
	acks  string
	mu    sync.Mutex
	inbox *Inbox
	got   map[uint64]int // by index
}

func (r *receiver) take(m Message) {
	sequence, ok := envelope{}.Sequence(m.Data)
	if !ok {
		r.t.Errorf("a frame of %d bytes", len(m.Data))
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if fresh, _ := r.inbox.AcceptBytes(sequence, len(m.Data)); fresh {
		index := binary.LittleEndian.Uint64(m.Data[8:])
		if !bytes.Equal(m.Data[8:], simulationFrame(index, len(m.Data)-simulationHeader)[8:]) {
			r.t.Errorf("frame %d is spoilt", index)
		}
		r.got[index]++
		r.inbox.Free(len(m.Data))
	}
	// Lost with the server: the sender repeats, and is answered again.
	_ = r.conn.Publish(r.acks, encodeAck(r.inbox.Ack()))
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.got)
}

// times is how often a frame was taken as fresh.
func (r *receiver) times(index uint64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.got[index]
}

func encodeAck(a Ack) []byte {
	b := binary.LittleEndian.AppendUint64(nil, a.Cumulative)
	for _, word := range a.Bitmap {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return binary.LittleEndian.AppendUint64(b, a.Window)
}

func decodeAck(b []byte) Ack {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return Ack{Cumulative: word(0), Bitmap: [4]uint64{word(1), word(2), word(3), word(4)}, Window: word(5)}
}

// flow is a sender and a receiver with a window between them, over any server.
type flow struct {
	outbox   *Outbox
	receiver *receiver
	stop     func()
}

func newFlow(t *testing.T, from, to *Conn, back <-chan struct{}) *flow {
	t.Helper()
	r := &receiver{t: t, conn: to, acks: At("j", "s0", KindAck, "t0").String(), inbox: NewInbox(1 << 20),
		got: map[uint64]int{}}
	if err := to.Subscribe(Pattern("j", Any, KindDense, "s0", true), r.take); err != nil {
		t.Fatal(err)
	}
	return newFlowTo(t, from, r, back, 1<<20)
}

// newFlowTo is a flow to a receiver that listens already.
func newFlowTo(t *testing.T, from *Conn, r *receiver, back <-chan struct{}, bytesMax int) *flow {
	o := NewOutbox(OutboxConfig{Envelope: envelope{}, Publish: from.SendInPlace, BytesMax: bytesMax,
		resendAfter: 50 * time.Millisecond})
	err := from.Subscribe(Pattern("j", Any, KindAck, "t0", false), func(m Message) {
		if err := o.Ack(decodeAck(m.Data)); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // the owner's duties
		ticks := time.NewTicker(10 * time.Millisecond)
		defer ticks.Stop()
		for {
			var err error
			select {
			case <-done:
				return
			case <-back:
				err = o.ResendAll()
			case now := <-ticks.C:
				err = o.Tick(now)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	return &flow{outbox: o, receiver: r, stop: sync.OnceFunc(func() { close(done); wg.Wait() })}
}

// The server goes away in mid-flow and another one takes its port: everything arrives exactly once.
func TestServerRestartInMidFlow(t *testing.T) { overBoth(t, testServerRestartInMidFlow) }

func testServerRestartInMidFlow(t *testing.T) {
	server := startServer(t, ServerConfig{})
	port := fabrictest.PortOf(t, server.URL())
	back := make(chan struct{}, 1)
	from := dial(t, Config{URL: server.URL(), Log: discard(), OnState: func(s State) {
		if s == Back {
			select {
			case back <- struct{}{}:
			default:
			}
		}
	}})
	to := dial(t, Config{URL: server.URL(), Log: discard()})
	f := newFlow(t, from, to, back)
	defer f.stop()

	const frames = 3000
	sent := make(chan error, 1)
	go func() {
		for i := range uint64(frames) {
			subject := At("j", "t0", KindDense, "s0").WithBucket(i/10, uint32(i%10))
			if err := f.outbox.Send(guarded(t), subject, WithoutRoom(simulationFrame(i, int(i*37%4096)))); err != nil {
				sent <- err
				return
			}
		}
		sent <- f.outbox.Drained(guarded(t))
	}()
	for _, share := range []int{4, 2} {
		eventually(t, "part of the flow", func() bool { return f.receiver.count() >= frames/share })
		server.Close()
		eventually(t, "frames wait for the server", func() bool {
			return from.lines[bulkLine].isLost() && f.outbox.Pending() > 0
		})
		server = restart(t, ServerConfig{Port: port})
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	f.stop()
	for i := range uint64(frames) {
		if n := f.receiver.times(i); n != 1 {
			t.Fatalf("frame %d arrived %d times", i, n)
		}
	}
	stats := f.outbox.Stats()
	t.Logf("%+v", stats)
	if stats.Back+stats.Timeout+stats.Gaps == 0 {
		t.Error("nothing was sent again: the restarts missed the flow")
	}
}
