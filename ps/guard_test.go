package ps

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"gradbus/fabric"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// stranger is a connection to a server's port that says whatever it is told to.
type stranger struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

func newStranger(t testing.TB, s *Server, name string) *stranger {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "nats://"))
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	r := &stranger{t, conn, bufio.NewReader(conn)}
	r.say(fmt.Sprintf("CONNECT {\"verbose\":false,\"protocol\":1,\"name\":%q,\"auth_token\":%q}\r\nPING\r\n", name,
		s.config.Token))
	r.pong()
	return r
}

func (r *stranger) say(text string) {
	r.t.Helper()
	_, err := io.WriteString(r.conn, text)
	must(r.t, err)
}

// pong waits until the server has taken in what was said, and gives its complaints.
func (r *stranger) pong() (complaints []string) {
	r.t.Helper()
	for {
		line, err := r.in.ReadString('\n')
		must(r.t, err)
		switch {
		case strings.HasPrefix(line, "PONG"):
			return complaints
		case strings.HasPrefix(line, "-ERR"):
			complaints = append(complaints, strings.TrimSpace(line))
		}
	}
}

// Whoever is no ps writes nothing into the registry, by whichever way, and does not speak as a ps: a job and its ps go
// on.
func TestStrangersDoNotWriteTheRegistry(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", "the-trainers-token"} {
		s := startServer(t, Config{ID: "a", Token: token, ControlToken: "the-token-of-peers"})
		p := shardtest.New(t, shardtest.SmallJob("victim", 1, 2))
		m := newMiniTrainer(t, s, p, "j-a")
		m.join()
		m.start()
		forged, err := json.Marshal(leaseRecord{ID: "a", Incarnation: 1, Shards: 1, Host: "there"})
		must(t, err)
		before, err := s.registry.jobs.Get(context.Background(), "victim")
		must(t, err)
		r := newStranger(t, s, "victim/t0")
		publish := func(subject, data string) { r.say(fmt.Sprintf("PUB %s %d\r\n%s\r\n", subject, len(data), data)) }
		denied := []string{
			"$KV.gradbus-servers.a", "$KV.gradbus-jobs.victim", "$JS.API.STREAM.PURGE.KV_gradbus-jobs",
			"$JS.API.STREAM.DELETE.KV_gradbus-servers",
			"$SYS.REQ.SERVER.PING", "$JS.ACK.x", "gradbus.v1.victim.coordinator.ctl.all",
			"gradbus.v1.victim.coordinator.ctl.p-a",
			"gradbus.v1.victim.s0.mean.all.0.0", "gradbus.v1.victim.p-a.ctl.coordinator", "_INBOX.x",
		}
		for range 3 {
			for _, subject := range denied {
				publish(subject, string(forged))
			}
		}
		r.say("PING\r\n")
		if complaints := r.pong(); len(complaints) != 3*len(denied) {
			t.Errorf("%d of %d were refused: %q", len(complaints), 3*len(denied), complaints)
		}
		haveAnswered(t, s, denied)
		if after, err := s.registry.jobs.Get(context.Background(), "victim"); err != nil ||
			after.Revision != before.Revision {
			t.Errorf("the record of the job: %+v, %v, want revision %d", after, err, before.Revision)
		}
		renewed := s.registry.renewed.get()
		eventually(t, "its lease is renewed", func() bool {
			must(t, s.Err())
			return s.registry.renewed.get().After(renewed)
		})
		m.batch(0)
	}
}

// haveAnswered asks a ps all that it answers for answers at subjects that are not the asker's, and waits until it has
// seen the questions. The server, which sends traces of messages, is asked for those.
func haveAnswered(t *testing.T, s *Server, at []string) {
	t.Helper()
	plain, err := nats.Connect(s.URL(), nats.Token(s.config.Token))
	must(t, err)
	defer plain.Close()
	for _, question := range []string{"$SRV.PING", "$SRV.INFO." + serviceName, "$SRV.STATS", serviceName + ".a.report"} {
		for _, reply := range at {
			must(t, plain.PublishRequest(question, reply, nil))
			m := nats.NewMsg(question)
			m.Header.Set("Nats-Trace-Dest", reply)
			must(t, plain.PublishMsg(m))
		}
		_, err := plain.Request(question, nil, patience)
		must(t, err)
	}
}

// Another ps uses this one as control server if it has its control token, and is told what to do if it has not.
func TestPeersHaveATokenOfTheirOwn(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"", "the-trainers-token"} {
		a := startServer(t, Config{ID: "a", Token: token, ControlToken: "the-token-of-peers"})
		closed := startServer(t, Config{ID: "closed", Token: token})
		for _, at := range []*Server{a, closed} {
			_, err := startAt(t, Config{ID: "b", Token: token, NATS: at.URL()})
			if !errors.Is(err, fabric.ErrDenied) || !strings.Contains(err.Error(), "--control-token-file") ||
				strings.Contains(err.Error(), "\n") {
				t.Errorf("without the control token: %v, want one line that says what to do", err)
			}
		}
		b, err := startAt(t, Config{ID: "b", Token: token, ControlToken: "the-token-of-peers", NATS: a.URL()})
		must(t, err)
		eventually(t, "a knows of b", func() bool { return !a.registry.alone.Load() })
		b.Close()
	}
	if err := (Config{Token: "one-and-the-same", ControlToken: "one-and-the-same"}).Validate(); err == nil ||
		!strings.Contains(err.Error(), "control_token") {
		t.Errorf("one secret for both: %v", err)
	}
}

// Tools of NATS need no token of their own where the server has none.
func TestToolsOfNATSAreLetIn(t *testing.T) {
	s := startServer(t, Config{ID: "a"})
	plain, err := nats.Connect(s.URL())
	must(t, err)
	defer plain.Close()
	eventually(t, "the service of the ps answers", func() bool { // once the server knows what it listens to
		_, err := plain.Request("$SRV.PING", nil, patience)
		return err == nil
	})
}

// heapNow is what lives on the heap.
func heapNow() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// What strangers make the server hold stays within what the formula has for them: subscriptions as many and as long as
// they can be, messages of which the end never comes, and connections that take the names of members, while a job runs.
func TestStrangersStayWithinTheFormula(t *testing.T) {
	s := startServer(t, Config{Shards: 1})
	p := shardtest.New(t, shardtest.SmallJob("victim", 1, 2))
	m := newMiniTrainer(t, s, p, "j-a")
	m.join()
	m.start()
	before := heapNow()
	for i := range 60 {
		r := newStranger(t, s, []string{"nobody", "victim/t0", "victim/t1", "victim/j-a"}[i%4])
		r.say(fmt.Sprintf("PUB gradbus.v1.victim.t0.dense.s0.0.0 %d\r\nx", 8<<20-1))
	}
	greedy := newStranger(t, s, "nobody")
	var subjects strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&subjects, "SUB gradbus.%d.%s %d\r\n", i, strings.Repeat("x", 1000), i+1)
	}
	go func() { _, _ = io.WriteString(greedy.conn, subjects.String()+"PING\r\n") }()
	if complaints := greedy.pong(); len(complaints) != 10000-fabric.SubsMax ||
		!strings.Contains(complaints[0], "maximum subscriptions exceeded") {
		t.Errorf("%d of 10000 subscriptions were refused, want all but %d", len(complaints), fabric.SubsMax)
	}
	subjects.Reset()
	over := heapNow() - before
	if most := fabric.AnonymousBytes(fabric.ConnectionsMaxDefault) +
		2*fabric.MemberBytes(s.config.messageBytes(p.Job)); over > most || over > 64<<20 {
		t.Errorf("%d bytes are held for strangers, want at most %d, and of so few 64 MiB", over, most)
	}
	m.batch(0)
	if name := schema.TrainerMember(0); s.messageBytesOf("victim/"+string(name)) == 0 ||
		s.messageBytesOf("victim/t1") != 0 || s.messageBytesOf("victim/t00") != 0 || s.messageBytesOf("other/t0") != 0 {
		t.Error("who is a member is not known")
	}
}

// The heap may hold what guests who are there can make the server hold, and no more: else garbage would take the room
// of those who are not.
func TestHeapFollowsGuests(t *testing.T) {
	var limit atomic.Int64
	s, err := Start(context.Background(), Config{Deadline: unhurried},
		Options{Log: slog.New(slog.DiscardHandler), LimitHeap: limit.Store})
	must(t, err)
	t.Cleanup(s.Close)
	eventually(t, "the heap has a limit", func() bool { return limit.Load() > 0 })
	alone, all := limit.Load(), fabric.AnonymousBytes(fabric.ConnectionsMaxDefault)
	if most := ProcessBytes(Config{}) - all; alone > most {
		t.Fatalf("the heap of a server without guests may hold %d bytes, want at most %d", alone, most)
	}
	var guests []*fabric.Control
	for i := range 64 {
		conn, err := fabric.DialControl(t.Context(), fabric.Config{URL: s.URL(), Name: fmt.Sprint("guest-", i)})
		must(t, err)
		guests = append(guests, conn)
	}
	eventually(t, "there is room for what they can hold", func() bool { return limit.Load() > alone+all/8 })
	if more := limit.Load() - alone; more > all {
		t.Errorf("%d bytes for 64 guests, want at most the %d of all", more, all)
	}
	for _, conn := range guests {
		conn.Close()
	}
	eventually(t, "the room is given back", func() bool { return limit.Load() == alone })
}
