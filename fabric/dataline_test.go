package fabric

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// One message after the other through the server and back: neither side allocates, but for what the server does.
func TestDataLineAllocations(t *testing.T) {
	server := startServer(t, ServerConfig{})
	to := dial(t, Config{Server: server})
	arrived := make(chan int)
	if err := to.Subscribe(Pattern("j", Any, KindDense, "s0", true), func(m Message) {
		n := len(m.Data)
		if s, err := m.Parse(); err != nil || s.From != "t0" {
			n = -1
		}
		m.Release()
		arrived <- n
	}); err != nil {
		t.Fatal(err)
	}
	from := dial(t, Config{URL: server.URL()})
	data := make([]byte, 65024+128)
	batch := uint64(0)
	once := func() {
		batch++
		if err := from.Send(At("j", "t0", KindDense, "s0").WithBucket(batch, 1), data); err != nil {
			t.Error(err)
		}
		if n := <-arrived; n != len(data) {
			t.Errorf("%d bytes arrived", n)
		}
	}
	const most = 30 // of the server: its subject, match and caches; a frame that was allocated would be 65 KiB
	for range 100 {
		once()
	}
	before := allocated()
	n := testing.AllocsPerRun(200, once)
	bytesEach := (allocated() - before) / 201
	t.Logf("%v allocations and %d bytes a message, of the server", n, bytesEach)
	if n > most {
		t.Errorf("%v allocations a message, want at most %d", n, most)
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// Reading and handling a message allocates nothing at all.
func TestDeliverAllocations(t *testing.T) {
	pool := &Buffers{bytesMax: 1 << 20}
	l := &dataLine{tokens: tokenTable{}, subscriptions: map[uint64]subscription{1: {"", func(m Message) {
		if s, err := m.Parse(); err != nil || s.Batch != 7 || s.Kind != KindDense {
			t.Errorf("%+v, %v", s, err)
		}
		m.Lease().Release()
	}}}}
	said := fmt.Appendf(nil, "MSG gradbus.v1.j.t0.dense.s0.7.1 1 65152\r\n%s\r\n", make([]byte, 65152))
	source := bytes.NewReader(said)
	r := newWireReader(source, pool)
	var e wireEvent
	if n := testing.AllocsPerRun(100, func() {
		source.Reset(said)
		if err := r.next(&e); err != nil {
			t.Fatal(err)
		}
		l.deliver(&e)
	}); n != 0 {
		t.Errorf("a message takes %v allocations", n)
	}
}

// What strangers put into subjects does not pile up.
func TestTokensAreBounded(t *testing.T) {
	table := tokenTable{}
	for i := range 3 * tokenTableMax {
		if got := table.keep(fmt.Sprint(i)); got != fmt.Sprint(i) {
			t.Fatalf("token %d reads %q", i, got)
		}
	}
	if len(table) > tokenTableMax {
		t.Errorf("%d tokens are kept", len(table))
	}
}

// A handler that does not keep up is noticed by the server, which cuts the connection off; it comes back, and the
// window repairs what was dropped.
func TestSlowHandlerIsCutOffAndRepaired(t *testing.T) {
	server := startServer(t, ServerConfig{PayloadBytesMax: 1 << 20, PendingBytesMax: 4 << 20})
	var told states
	// no socket, which would hold megabytes
	to := dial(t, Config{Server: server, Name: "slow", OnState: told.add, Log: discard()})
	back := make(chan struct{}, 1)
	from := dial(t, Config{URL: server.URL(), Log: discard()})
	r := &receiver{t: t, conn: to, acks: At("j", "s0", KindAck, "t0").String(), inbox: NewInbox(64 << 20),
		got: map[uint64]int{}}
	var slow atomic.Bool
	slow.Store(true)
	if err := to.Subscribe(Pattern("j", Any, KindDense, "s0", true), func(m Message) {
		for slow.Load() {
			time.Sleep(time.Millisecond)
		}
		r.take(m)
		m.Release()
	}); err != nil {
		t.Fatal(err)
	}
	f := newFlowTo(t, from, r, back, 6<<20) // a little more than may wait for a reader
	defer f.stop()
	const frames = 200
	sent := make(chan error, 1)
	go func() {
		for i := range uint64(frames) {
			if err := f.outbox.Send(guarded(t), At("j", "t0", KindDense, "s0").WithBatch(i),
				WithoutRoom(simulationFrame(i, 100_000))); err != nil {
				sent <- err
				return
			}
		}
		sent <- f.outbox.Drained(guarded(t))
	}()
	eventually(t, "the server cut it off", func() bool { return server.SlowConsumers() > 0 })
	slow.Store(false)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	f.stop()
	for i := range uint64(frames) {
		if n := r.times(i); n != 1 {
			t.Fatalf("frame %d arrived %d times", i, n)
		}
	}
	eventually(t, "lost and back were told", func() bool { return to.Stats().Reconnects > 0 && told.isBack() })
}

// The server of a process stops and starts while the process lives: what is in the process follows to the new one.
func TestServerStopAndStart(t *testing.T) { overBoth(t, testServerStopAndStart) }

func testServerStopAndStart(t *testing.T) {
	server := startServer(t, ServerConfig{})
	at := server.URL()
	var inside, outside states
	a := dial(t, Config{Server: server, OnState: inside.add, Log: discard()})
	b := dial(t, Config{URL: at, OnState: outside.add, Log: discard()})
	roundTrip(t, a, b)
	server.Stop()
	eventually(t, "both lost it", func() bool { return inside.are(Connected, Lost) && outside.are(Connected, Lost) })
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	if server.URL() != at {
		t.Errorf("it is at %s now, and was at %s", server.URL(), at)
	}
	eventually(t, "both are back",
		func() bool { return inside.are(Connected, Lost, Back) && outside.are(Connected, Lost, Back) })
	if err := b.Send(At("trip", "t0", KindMean, "t1").WithBucket(1, 2), []byte(KindMean)); err != nil {
		t.Error(err)
	}
	server.Close()
	wantError(t, server.Start(), ErrClosed)
}

// scripted is a server that says what it is told to, word for word, to each connection after the greeting.
func scripted(t *testing.T, says string) (at string) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				fmt.Fprintf(c, "INFO {\"max_payload\":1000}\r\n")
				room, heard := make([]byte, 4096), ""
				for !strings.Contains(heard, "PING") {
					n, err := c.Read(room)
					if err != nil {
						return
					}
					heard += string(room[:n])
				}
				fmt.Fprintf(c, "PONG\r\n%s", says)
				for {
					if _, err := c.Read(room); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		wg.Wait()
	})
	return "nats://" + listener.Addr().String()
}

// A server that breaks off or talks nonsense is lost, and dialled again for ever.
func TestDataLineAndAStrangeServer(t *testing.T) {
	for name, says := range map[string]string{
		"nonsense":    "HELLO\r\n",
		"too large":   "MSG a 1 1001\r\n",
		"no message":  "MSG a 1 1\r\nxx\r\n",
		"endless":     strings.Repeat("x", lineBytesMax+1),
		"wrong INFO":  "INFO {\r\n",
		"unasked for": "PONG\r\nPONG\r\nMSG a 99 1\r\nx\r\nINFO {\"ldm\":true}\r\n-ERR 'whatever'\r\nHELLO\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			var log logBuffer
			var told states
			l := &dataLine{config: &Config{URL: scripted(t, says), Log: log.log(), Buffers: NewBuffers(0)}}
			var handlers sync.WaitGroup
			l, err := dialData(guarded(t), l.config, bulkLine, &handlers, func(e lineEvent, _ error) {
				told.add(map[lineEvent]State{lineLost: Lost, lineBack: Back, lineEnded: Closed}[e])
			})
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "it is lost, and dialled again and again", func() bool {
				return strings.Count(log.String(), "connection lost") >= 3
			})
			if !strings.Contains(says, "PONG") && !told.are(Lost) { // who answers before being asked seems to be back
				t.Errorf("told %v; want Lost, once", told.told)
			}
			l.close()
			handlers.Wait()
		})
	}
}

// A server that does not answer is given up after two PINGs, but not while messages come in, a handler runs or a write
// is in progress.
func TestDataLineOverdue(t *testing.T) {
	near, far := net.Pipe()
	var heard sync.WaitGroup
	heard.Go(func() {
		room := make([]byte, 100)
		for {
			if _, err := far.Read(room); err != nil {
				return
			}
		}
	})
	l := &dataLine{tokens: tokenTable{}, subscriptions: map[uint64]subscription{}}
	l.writer.use(near, 1000)
	pings := func(n int) {
		for range n {
			l.keepAlive()
		}
	}
	if l.overdue() {
		t.Error("overdue before the first PING")
	}
	if pings(pingsMax - 1); l.overdue() {
		t.Error("overdue after one PING")
	}
	if pings(1); !l.overdue() {
		t.Error("not overdue after two PINGs")
	}
	if l.pong(); l.overdue() {
		t.Error("overdue after an answer")
	}
	pings(pingsMax)
	if l.deliver(&wireEvent{op: opMsg}); l.overdue() {
		t.Error("overdue although messages come in")
	}
	pings(pingsMax)
	l.handling.Store(true)
	if l.overdue() {
		t.Error("overdue while a handler runs")
	}
	l.handling.Store(false)
	l.writer.mu.Lock()
	if pings(3 * pingsMax); l.overdue() {
		t.Error("overdue while a write is in progress, of PINGs that were never sent")
	}
	l.writer.mu.Unlock()
	near.Close()
	heard.Wait()
}
