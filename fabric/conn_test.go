package fabric

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/fabric/fabrictest"
)

// restart starts a server on a port that was just given up.
func restart(t *testing.T, config ServerConfig) *Server {
	t.Helper()
	config.Log = testLog(t)
	var server *Server
	eventually(t, fmt.Sprintf("port %d is free again", config.Port), func() bool {
		var err error
		server, err = StartServer(config)
		return err == nil
	})
	t.Cleanup(server.Close)
	return server
}

// wantError compares an error's kind and words, which must be on one line.
func wantError(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error %v; want %v", err, kind)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q; want %q in it", err, word)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error of more than one line: %q", err)
	}
}

// roundTrip sends one message of each line.
func roundTrip(t *testing.T, from, to *Conn) {
	t.Helper()
	got := make(chan Message, 8) // a second round trip on a connection brings each message twice
	for _, pattern := range ListenAt("trip", "t1") {
		if err := to.Subscribe(pattern, func(m Message) { got <- m }); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []Subject{At("trip", "t0", KindCtl, "t1"), At("trip", "t0", KindMean, "t1").WithBucket(1, 2),
		At("trip", "t0", "", "t1").OfModule("net")} {
		if err := from.Publish(s.String(), []byte(s.Kind)); err != nil {
			t.Fatal(err)
		}
		select {
		case m := <-got:
			if parsed, err := m.Parse(); err != nil || parsed != s || string(m.Data) != s.Kind {
				t.Errorf("got %q on %q", m.Data, m.Text())
			}
		case <-guarded(t).Done():
			t.Fatalf("%s did not arrive", s)
		}
	}
}

func TestRoundTrip(t *testing.T) { overBoth(t, testRoundTrip) }

func testRoundTrip(t *testing.T) {
	server := startServer(t, ServerConfig{})
	inside, outside := dial(t, Config{Server: server}), dial(t, Config{URL: server.URL()})
	t.Run("out", func(t *testing.T) { roundTrip(t, inside, outside) })
	t.Run("in", func(t *testing.T) { roundTrip(t, outside, inside) })
}

// Bulk and control never share a connection.
func TestLinesAreApart(t *testing.T) { overBoth(t, testLinesAreApart) }

func testLinesAreApart(t *testing.T) {
	server := startServer(t, ServerConfig{})
	conn := dial(t, Config{URL: server.URL()})
	for kind, at := range map[string]lineIndex{
		KindDense: bulkLine, KindSparse: bulkLine, KindReduce: bulkLine, KindMean: bulkLine, KindRows: bulkLine,
		KindModule: bulkLine,
		KindLookup: controlLine, KindPull: controlLine, KindAck: controlLine, KindCtl: controlLine,
		KindHeartbeat: controlLine,
	} {
		before, subject := sent(conn.lines[at]), At("j", "t0", kind, "s0")
		if kind == KindModule {
			subject = subject.OfModule("net")
		}
		if err := conn.Publish(subject.String(), nil); err != nil {
			t.Fatal(err)
		}
		if after := sent(conn.lines[at]); after != before+1 {
			t.Errorf("%s did not leave on the %s line", kind, at)
		}
	}
}

func TestPublishErrors(t *testing.T) { overBoth(t, testPublishErrors) }

func testPublishErrors(t *testing.T) {
	server := startServer(t, ServerConfig{PayloadBytesMax: 1000})
	conn := dial(t, Config{URL: server.URL()})
	if got := conn.PayloadBytesMax(); got != 1000 {
		t.Errorf("PayloadBytesMax %d, want 1000", got)
	}
	subject := At("j", "t0", KindDense, "s0").WithBucket(3, 1).String()
	if err := conn.Publish(subject, make([]byte, 1000)); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	wantError(t, conn.Publish(subject, make([]byte, 1001)), ErrPayload, subject, "1001", "1000")
	wantError(t, conn.Publish("gradbus.v1.j.t0.dense.*", nil), ErrSubject, "dense.*")
	wantError(t, conn.Subscribe("gradbus.v1.j.T0", nil), ErrSubject)
	if got := conn.Stats(); got.MessagesSent != 1 || got.BytesSent != 1000 || got.Reconnects != 0 {
		t.Errorf("stats %+v", got)
	}
	conn.Close()
	wantError(t, conn.Publish(subject, nil), ErrClosed, subject)
	wantError(t, conn.Subscribe("gradbus.v1.j.*.ack.t0", func(Message) {}), ErrClosed)
	wantError(t, conn.Err(), ErrClosed)
	wantError(t, conn.Flush(t.Context()), ErrClosed)
	conn.Close() // again
}

// A handler gets its messages one at a time, in order, whole.
func TestHandlersRunInOrder(t *testing.T) { overBoth(t, testHandlersRunInOrder) }

func testHandlersRunInOrder(t *testing.T) {
	server := startServer(t, ServerConfig{})
	from, to := dial(t, Config{URL: server.URL()}), dial(t, Config{URL: server.URL()})
	const messages = 2000
	var got []uint64
	done := make(chan struct{})
	err := to.Subscribe(Pattern("j", Any, Any, "s0", true), func(m Message) {
		s, err := m.Parse()
		if err != nil || !bytes.Equal(m.Data, bytes.Repeat([]byte{byte(s.Batch)}, int(s.Batch)%5000)) {
			t.Errorf("%s: %v", m.Text(), err)
		}
		got = append(got, s.Batch)
		if len(got) == messages {
			close(done)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 5000)
	for i := range uint64(messages) {
		data := buffer[:i%5000]
		for j := range data { // refilled at once: Publish has copied it
			data[j] = byte(i)
		}
		kind := []string{KindDense, KindSparse}[i%2]
		if err := from.Publish(At("j", "t0", kind, "s0").WithBatch(i).String(), data); err != nil {
			t.Fatal(err)
		}
	}
	<-done
	if !slices.IsSorted(got) {
		t.Error("out of order")
	}
}

// Two members of the same name, one server, two jobs: each hears its own job only.
func TestJobsAreApart(t *testing.T) { overBoth(t, testJobsAreApart) }

func testJobsAreApart(t *testing.T) {
	server := startServer(t, ServerConfig{})
	jobs := []string{"red", "blue"}
	heard := make([][]string, len(jobs))
	conns := make([]*Conn, len(jobs))
	marks := make([]chan struct{}, len(jobs))
	for i, job := range jobs {
		conns[i] = dial(t, Config{URL: server.URL(), Name: job + "/t0"})
		marks[i] = make(chan struct{})
		err := conns[i].Subscribe(Pattern(job, Any, Any, "t0", true), func(m Message) {
			if string(m.Data) == "end" {
				close(marks[i])
				return
			}
			heard[i] = append(heard[i], string(m.Data))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	say := func(from int, job, what string) {
		if err := conns[from].Publish(At(job, "s0", KindMean, "t0").WithBucket(1, 1).String(), []byte(what)); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 3 {
		for i, job := range jobs {
			say(i, job, fmt.Sprintf("%s %d", job, n))
		}
	}
	for i, job := range jobs {
		say(i, job, "end")
		<-marks[i]
		if want := []string{job + " 0", job + " 1", job + " 2"}; !slices.Equal(heard[i], want) {
			t.Errorf("%s heard %q, want %q", job, heard[i], want)
		}
	}
}

// states records what OnState is told.
type states struct {
	mu   sync.Mutex
	told []State
}

func (s *states) add(state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, state)
}

func (s *states) are(want ...State) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Equal(s.told, want)
}

// isBack says that the connection was lost and came back, as often as that happened.
func (s *states) isBack() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.told) > 2 && slices.Equal(s.told[:3], []State{Connected, Lost, Back}) && s.told[len(s.told)-1] == Back
}

func TestLostAndBack(t *testing.T) { overBoth(t, testLostAndBack) }

func testLostAndBack(t *testing.T) {
	server := startServer(t, ServerConfig{})
	port := fabrictest.PortOf(t, server.URL())
	var told states
	conn := dial(t, Config{URL: server.URL(), OnState: told.add})
	var heard counter
	if err := conn.Subscribe("gradbus.v1.j.*.beat.all", func(Message) { heard.add() }); err != nil {
		t.Fatal(err)
	}
	subject := At("j", "t0", KindHeartbeat, "all").String()
	eventually(t, "connected", func() bool { return told.are(Connected) })
	server.Close()
	eventually(t, "lost", func() bool { return told.are(Connected, Lost) })
	// Lost is told when the first line is; the other may take what is published for a moment longer.
	eventually(t, "control is lost too", func() bool { return conn.lines[controlLine].isLost() })
	wantError(t, conn.Publish(subject, nil), ErrLost, subject)
	wantError(t, conn.Subscribe("gradbus.v1.j.*.ack.t0", func(Message) {}), ErrLost)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	wantError(t, conn.Flush(ctx), ErrLost)
	if err := conn.Err(); err != nil {
		t.Errorf("Err while lost: %v", err)
	}
	restart(t, ServerConfig{Port: port})
	eventually(t, "back", func() bool { return told.are(Connected, Lost, Back) })
	if err := conn.Publish(subject, nil); err != nil {
		t.Errorf("publish when back: %v", err)
	}
	eventually(t, "the subscription is back", func() bool { return heard.is(1) })
	if got := conn.Stats(); got.Reconnects != 3 {
		t.Errorf("stats %+v; want one reconnection of each line", got)
	}
	conn.Close()
	if !told.are(Connected, Lost, Back, Closed) {
		t.Errorf("states %v", told.told)
	}
}

func TestServerComesBackWithAnotherToken(t *testing.T) {
	overBoth(t, testServerComesBackWithAnotherToken)
}

func testServerComesBackWithAnotherToken(t *testing.T) {
	server := startServer(t, ServerConfig{Token: "one"})
	port := fabrictest.PortOf(t, server.URL())
	var told states
	conn := dial(t, Config{URL: server.URL(), Token: "one", OnState: told.add})
	server.Close()
	restart(t, ServerConfig{Port: port, Token: "two"})
	eventually(t, "closed", func() bool { return told.are(Connected, Lost, Closed) })
	wantError(t, conn.Err(), ErrRefused)
	eventually(t, "publish says so", func() bool {
		return errors.Is(conn.Publish(At("j", "t0", KindHeartbeat, "all").String(), nil), ErrRefused)
	})
}

func TestCloseWhileLost(t *testing.T) { overBoth(t, testCloseWhileLost) }

func testCloseWhileLost(t *testing.T) {
	server := startServer(t, ServerConfig{})
	conn := dial(t, Config{URL: server.URL()})
	server.Close()
	conn.Close()
	wantError(t, conn.Publish(At("j", "t0", KindHeartbeat, "all").String(), nil), ErrClosed)
}

// A handler that does not keep up loses messages, which are counted.
func TestSlowHandlerIsCounted(t *testing.T) {
	server := startServer(t, ServerConfig{})
	conn := dial(t, Config{URL: server.URL(), PendingBytesMax: 10_000, Log: discard(), Plain: true})
	release := make(chan struct{})
	var heard counter
	err := conn.Subscribe("gradbus.v1.j.*.mean.>", func(Message) {
		<-release
		heard.add()
	})
	if err != nil {
		t.Fatal(err)
	}
	const messages = 50
	for range messages {
		if err := conn.Publish(At("j", "s0", KindMean, "all").WithBatch(1).String(), make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all arrived", func() bool { return conn.Stats().MessagesReceived == messages })
	dropped := conn.Stats().Dropped
	if dropped < messages-10_000/1000-1 || dropped >= messages {
		t.Errorf("dropped %d of %d", dropped, messages)
	}
	close(release)
	eventually(t, "the others were heard", func() bool { return heard.is(messages - int64(dropped)) })
	conn.Close()
	if got := conn.Stats().Dropped; got != dropped {
		t.Errorf("dropped after Close: %d, want %d", got, dropped)
	}
}

func TestAsk(t *testing.T) {
	answers := make(chan int, 1)
	asked := 0
	got, err := Ask(guarded(t), time.Millisecond, func() error {
		switch asked++; asked {
		case 1:
			return fmt.Errorf("publish: %w", ErrLost)
		case 3:
			answers <- 42
		}
		return nil
	}, answers)
	if got != 42 || err != nil || asked != 3 {
		t.Errorf("Ask = %d, %v after %d", got, err, asked)
	}
	_, err = Ask(t.Context(), time.Millisecond, func() error { return fmt.Errorf("publish: %w", ErrPayload) }, answers)
	wantError(t, err, ErrPayload)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	asked = 0
	_, err = Ask(ctx, time.Millisecond, func() error {
		if asked++; asked == 2 {
			cancel(why)
		}
		return fmt.Errorf("publish: %w", ErrLost)
	}, answers)
	wantError(t, err, why, "2 requests")
	wantError(t, err, ErrLost)
	close(answers)
	_, err = Ask(t.Context(), time.Millisecond, func() error { return nil }, answers)
	wantError(t, err, ErrClosed)
}
