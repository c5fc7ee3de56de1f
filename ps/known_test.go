package ps

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// known runs the attacks of docs/memory.md with the figures that it names.
var known = flag.Bool("known", false, "run the attacks that are known: not all fail to do harm yet")

func skipKnown(t *testing.T, why string) {
	t.Helper()
	if !*known {
		t.Skip(why + "; run it with -known")
	}
}

// Connections that subscribe and do not read make a ps hold no more than its formula says, whatever another publishes.
func TestKnownReadersThatDoNotRead(t *testing.T) {
	skipKnown(t, "known, and not fixed: nats-server limits this for single connections from 2.15.3 on")
	const readers, messages = 30, 96
	s := startServer(t, Config{})
	writer := newStranger(t, s, "writer") // of the first guests, whose messages may be large
	for range readers {
		r := newStranger(t, s, "reader")
		r.say("SUB gradbus.v1.nobody.> 1\r\nPING\r\n")
		r.pong()
	}
	data := strings.Repeat("x", 1<<20)
	for i := range messages {
		writer.say(fmt.Sprintf("PUB gradbus.v1.nobody.t0.dense.s0.%d.0 %d\r\n%s\r\n", i, len(data), data))
	}
	writer.say("PING\r\n")
	writer.pong()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	held, most := int64(m.Sys-m.HeapReleased), ProcessBytes(s.config)
	t.Logf("%d MiB of memory, the formula says %d MiB", held>>20, most>>20)
	if held > most {
		t.Errorf("%d bytes of memory, want at most the formula's %d", held, most)
	}
}

// A coordinator is heard of while as many connections greet at once as there may be.
func TestKnownGreetings(t *testing.T) {
	skipKnown(t, "8,000 sockets; fabric.TestClientsDoNotWaitForTheCallout holds the same with one")
	const greeting = 3900
	s := startServer(t, Config{Deadline: 10 * time.Minute})
	gather(t, s, shardtest.New(t, shardtest.SmallJob("victim", 1, 2)), "j-a")
	var last, longest atomic.Int64 // when the coordinator was heard, and the longest silence, nanoseconds
	last.Store(time.Now().UnixNano())
	silence := func() {
		now := time.Now().UnixNano()
		longest.Store(max(longest.Load(), now-last.Swap(now)))
	}
	must(t, s.control.Subscribe(fabric.Pattern("victim", string(schema.Coordinator), fabric.KindHeartbeat,
		string(schema.All), false), func(fabric.Message) { silence() }))
	var conns []net.Conn
	for range greeting {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "nats://"))
		must(t, err)
		defer conn.Close()
		must(t, conn.SetDeadline(time.Now().Add(patience)))
		conns = append(conns, conn)
	}
	began := time.Now()
	var all sync.WaitGroup
	for _, conn := range conns { // in the name of a trainer, of which one after the other has too many connections
		all.Go(func() {
			_, _ = io.WriteString(conn, "CONNECT {\"verbose\":false,\"name\":\"victim/t0\"}\r\nPING\r\n")
			for in := bufio.NewReader(conn); ; { // until it is shown out, or its greeting was answered
				if line, err := in.ReadString('\n'); err != nil || strings.HasPrefix(line, "PONG") {
					return
				}
			}
		})
	}
	all.Wait()
	silence()
	t.Logf("all have greeted within %v", time.Since(began))
	t.Logf("the coordinator was silent for %v at most", time.Duration(longest.Load()))
	if most := 5 * tickEvery; time.Duration(longest.Load()) > most {
		t.Errorf("the coordinator was silent for %v, want at most %v", time.Duration(longest.Load()), most)
	}
}
