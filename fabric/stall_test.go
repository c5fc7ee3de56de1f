package fabric

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/internal/testkit"
)

// logBuffer is a log that a test reads.
type logBuffer struct{ testkit.Text }

func (l *logBuffer) has(words string) bool { return strings.Contains(l.String(), words) }

func (l *logBuffer) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// A reader that takes nothing is cut off, counted and logged, and others go on.
func TestServerCutsOffWhoDoesNotRead(t *testing.T) { overBoth(t, testServerCutsOffWhoDoesNotRead) }

func testServerCutsOffWhoDoesNotRead(t *testing.T) {
	var log logBuffer
	server, err := StartServer(ServerConfig{PayloadBytesMax: 1 << 20, PendingBytesMax: 8 << 20, Log: log.log()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	stuck, err := net.Dial("tcp", strings.TrimPrefix(server.URL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	fmt.Fprintf(stuck, "CONNECT {\"verbose\":false,\"name\":\"stuck\"}\r\nSUB gradbus.v1.> 1\r\nPING\r\n")
	for lines := bufio.NewScanner(stuck); lines.Scan() && lines.Text() != "PONG"; {
	}
	conn := dial(t, Config{URL: server.URL()})
	var heard counter
	if err := conn.Subscribe("gradbus.v1.j.*.mean.>", func(Message) { heard.add() }); err != nil {
		t.Fatal(err)
	}
	sent := int64(0)
	for eventuallySent := time.Now().Add(guard); server.SlowConsumers() == 0; sent++ {
		if time.Now().After(eventuallySent) {
			t.Fatal("the reader was not cut off")
		}
		if err := conn.Publish(At("j", "s0", KindMean, "all").WithBatch(1).String(), make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the other reader heard it", func() bool { return heard.is(sent + 1) })
	}
	eventually(t, "it is said that it was given up, and nobody else",
		func() bool { return slices.Equal(server.Faded(), []string{"stuck"}) })
	conn.Close()
	if names := server.Faded(); !slices.Equal(names, []string{"stuck"}) {
		t.Errorf("given up: %v, want only who did not read", names)
	}
	eventually(t, "the log says so", func() bool { return log.has("level=WARN") && log.has("Slow Consumer") })
}

func TestConnectionsMax(t *testing.T) { overBoth(t, testConnectionsMax) }

func testConnectionsMax(t *testing.T) {
	server := startServer(t, ServerConfig{connectionsMax: 1})
	_, err := tryDial(t, Config{URL: server.URL(), Log: discard()})
	wantError(t, err, ErrNoServer, "no room for more connections")
}

// stuckServer greets as NATS does, and takes nothing after the first bytes of a publication, of which it tells.
func stuckServer(t *testing.T) (at string, publishing <-chan struct{}) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	done, begun := make(chan struct{}), make(chan struct{}, 2)
	wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				fmt.Fprintf(c, "INFO {\"server_id\":\"x\",\"version\":\"2.15.2\",\"proto\":1,\"max_payload\":8388608}\r\n")
				lines := bufio.NewReaderSize(c, 16)
				for line := ""; !strings.HasPrefix(line, "PING"); {
					if line, err = lines.ReadString('\n'); err != nil {
						return
					}
				}
				fmt.Fprintf(c, "PONG\r\n")
				if command, _ := lines.ReadString(' '); command == "PUB " {
					begun <- struct{}{}
				}
				<-done
			})
		}
	})
	t.Cleanup(func() { // after the connection's own cleanup, which hangs up
		listener.Close()
		close(done)
		wg.Wait()
	})
	return "nats://" + listener.Addr().String(), begun
}

// Close ends a Publish that waits for a full socket, and does not wait for it for ever.
func TestCloseEndsABlockedPublish(t *testing.T) { overBoth(t, testCloseEndsABlockedPublish) }

func testCloseEndsABlockedPublish(t *testing.T) {
	at, publishing := stuckServer(t)
	conn := dial(t, Config{URL: at, Log: discard()})
	failed := make(chan error, 1)
	go func() {
		for { // the first already is more than a socket holds
			if err := conn.Publish(At("j", "t0", KindDense, "s0").WithBatch(1).String(), make([]byte, 8<<20)); err != nil {
				failed <- err
				return
			}
		}
	}()
	<-publishing
	conn.Close()
	select {
	case err := <-failed:
		wantError(t, err, ErrClosed)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Close waited until Publish gave up by itself: %v", err)
		}
	case <-guarded(t).Done():
		t.Fatal("Publish goes on after Close")
	}
}

func TestCloseDoesNotWaitForAHandlerForEver(t *testing.T) {
	overBoth(t, testCloseDoesNotWaitForAHandlerForEver)
}

func testCloseDoesNotWaitForAHandlerForEver(t *testing.T) {
	var log logBuffer
	server := startServer(t, ServerConfig{})
	conn := dial(t, Config{URL: server.URL(), Log: log.log()})
	conn.patience = time.Millisecond
	running, release := make(chan struct{}), make(chan struct{})
	err := conn.Subscribe("gradbus.v1.j.*.beat.all", func(Message) {
		close(running)
		<-release
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Publish(At("j", "t0", KindHeartbeat, "all").String(), nil); err != nil {
		t.Fatal(err)
	}
	<-running
	conn.Close()
	if !log.has("a handler still runs") {
		t.Error("the log does not say that a handler still runs")
	}
	close(release)
}
