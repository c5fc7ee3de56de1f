package fabric

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// visit connects as plain NATS clients do and says words; it returns when the server has answered.
func visit(t *testing.T, s *Server, name, words string) (conn net.Conn, answers []string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(guard)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"name\":%q}\r\n%sPING\r\n", name, words); err != nil {
		return conn, []string{err.Error()} // the server has read enough
	}
	for in := bufio.NewReader(conn); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return conn, append(answers, err.Error())
		}
		if strings.HasPrefix(line, "PONG") {
			return conn, answers
		}
		if strings.HasPrefix(line, "-ERR") {
			answers = append(answers, line)
		}
	}
}

func guardOf(members ...string) *Guard {
	return &Guard{PeerToken: "peers", Publish: []string{All}, Deny: []string{AllFrom("coordinator")},
		Member: func(name string) int {
			if slices.Contains(members, name) {
				return 4 << 20
			}
			return 0
		}}
}

func message(bytes int) string {
	return fmt.Sprintf("PUB gradbus.v1.job.t0.dense.s0 %d\r\n%s\r\n", bytes, strings.Repeat("x", bytes))
}

// Who goes by a member's name sends its messages, on four connections; anybody else only what joining takes, and of
// many only little; connections of this process and of peers what they want.
func TestGuardLimitsMessages(t *testing.T) {
	server := startServer(t, ServerConfig{Guard: guardOf("job/t0")})
	refusedBy := func(server *Server, name string, bytes int) bool {
		_, answers := visit(t, server, name, message(bytes))
		// What the server says last may be lost where it ends a connection that has more to be read.
		return len(answers) > 0 && (strings.Contains(strings.ToLower(answers[0]), "maximum payload violation") ||
			strings.Contains(answers[0], "reset by peer") || strings.Contains(answers[0], "broken pipe"))
	}
	refused := func(name string, bytes int) bool { return refusedBy(server, name, bytes) }
	for i := range memberConnectionsMax {
		if refused("job/t0", 4<<20) {
			t.Errorf("connection %d of a member may not send its messages", i)
		}
	}
	for _, name := range []string{"job/t0", "job/t1", ""} {
		if !refused(name, AnonymousPayloadBytesMax+1) {
			t.Errorf("%q may send what joining does not take", name)
		}
		if refused(name, AnonymousPayloadBytesMax) {
			t.Errorf("%q may not send what joining takes", name)
		}
	}
	// Where no guest has gone whose place is free at some later time.
	many := startServer(t, ServerConfig{Guard: guardOf()})
	for range wideAnonymousMax {
		visit(t, many, "job/j-0", "")
	}
	if !refusedBy(many, "job/j-1", narrowPayloadBytesMax+1) || refusedBy(many, "job/j-1", narrowPayloadBytesMax) {
		t.Error("one of many guests may send as much as the first")
	}
	for _, config := range []Config{{Server: server}, {URL: server.URL(), Token: "peers"}} {
		if err := dial(t, config).Publish("gradbus.v1.job.coordinator.dense.s0", make([]byte, 5<<20)); err != nil {
			t.Error(err)
		}
	}
	if _, answers := visit(t, server, "job/t0", "PUB gradbus.v1.job.coordinator.ctl.all 0\r\n\r\n"); len(answers) != 1 ||
		!strings.Contains(answers[0], "Permissions Violation") {
		t.Errorf("in the coordinator's name: %q", answers)
	}
}

// However many come, there is room for one more guest, and members are not disturbed.
func TestGuardMakesRoomForGuests(t *testing.T) {
	server := startServer(t, ServerConfig{Guard: guardOf("job/t0")})
	member := dial(t, Config{URL: server.URL(), Name: "job/t0"})
	for i := range anonymousMax + 50 {
		if _, answers := visit(t, server, fmt.Sprintf("guest-%d", i), ""); len(answers) > 0 {
			t.Fatalf("guest %d: %q", i, answers)
		}
	}
	eventually(t, "the latest guests are there, and no others", func() bool {
		all := server.Clients()
		return len(all) == anonymousMax+1 && !slices.Contains(all, "guest-0") &&
			slices.Contains(all, fmt.Sprintf("guest-%d", anonymousMax+49))
	})
	if n := member.Stats().Reconnects; n != 0 || member.lines[bulkLine].isLost() {
		t.Errorf("the member has lost its connection %d times", n)
	}
}

// Connections that say nothing do not keep out those that do, for however long they may be silent elsewhere.
func TestSilentConnectionsMakeRoom(t *testing.T) {
	server := startServer(t, ServerConfig{Guard: guardOf(), connectionsMax: 100, greeting: time.Hour})
	for range 100 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL(), "nats://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil { // INFO: the place is taken
			t.Fatal(err)
		}
	}
	eventually(t, "a client is let in", func() bool {
		conn, err := tryDial(t, Config{URL: server.URL(), Name: "job/j-a"})
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// What is not listened to any more costs the server nothing, whichever line it was on.
func TestUnsubscribe(t *testing.T) {
	overBoth(t, func(t *testing.T) {
		server := startServer(t, ServerConfig{})
		conn := dial(t, Config{Server: server})
		before := server.serving().NumSubscriptions()
		var here, there counter
		for to, n := range map[string]*counter{"s0": &here, "s1": &there} {
			for _, pattern := range ListenAt(Any, to) {
				if err := conn.Subscribe(pattern, func(m Message) { m.Release(); n.add() }); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, pattern := range ListenAt(Any, "s1") {
			conn.unsubscribe(pattern)
		}
		eventually(t, "half of the subscriptions are gone", func() bool {
			return server.serving().NumSubscriptions() == before+uint32(len(ListenAt(Any, "s0")))
		})
		for _, to := range []string{"s1", "s0"} {
			for _, subject := range []Subject{At("job", "t0", KindCtl, to), At("job", "t0", KindDense, to).WithBucket(1, 2)} {
				if err := conn.Send(subject, []byte("x")); err != nil {
					t.Fatal(err)
				}
			}
		}
		eventually(t, "what is listened to comes", func() bool { return here.is(2) })
		if !there.is(0) {
			t.Error("what was unsubscribed comes")
		}
	})
}

// The figures of the formula are no less than what things take: subscriptions of the longest subjects with the most
// tokens, and connections that say nothing.
func TestGuardsFormulaHolds(t *testing.T) {
	server := startServer(t, ServerConfig{Guard: guardOf()})
	held := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc + m.StackInuse)
	}
	before := held()
	const anonymous = 64
	var conns []net.Conn
	for i := range anonymous {
		var words strings.Builder
		for j := range SubsMax {
			subject := fmt.Sprintf("%d.%d", i, j)
			for range subTokensMax - 2 {
				subject += "." + strings.Repeat("x", 190)
			}
			fmt.Fprintf(&words, "SUB %s %d\r\n", subject[:min(len(subject), controlLineBytesMax-16)], j+1)
		}
		conn, answers := visit(t, server, "guest", words.String())
		if len(answers) > 0 {
			t.Fatal(answers)
		}
		conns = append(conns, conn)
	}
	if n := server.serving().NumSubscriptions(); n < anonymous*SubsMax {
		t.Fatalf("%d subscriptions, want %d", n, anonymous*SubsMax)
	}
	over := held() - before
	t.Logf("%d bytes a subscription", over/anonymous/SubsMax)
	if most := int64(anonymous * (SubsMax*subscriptionBytes + connectionBytes)); over > most {
		t.Errorf("%d bytes for %d subscriptions, want at most %d", over, anonymous*SubsMax, most)
	}
	before = held()
	const silent = 500
	for range silent {
		conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL(), "nats://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.ReadFull(conn, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	over = held() - before
	t.Logf("%d bytes a silent connection", over/silent)
	if over > silent*connectionBytes {
		t.Errorf("%d bytes for %d silent connections, want at most %d each", over, silent, connectionBytes)
	}
	runtime.KeepAlive(conns)
}

// The callout's account leaves JetStream to the account of everything else.
func TestBucketsUnderAGuard(t *testing.T) {
	server := startServer(t, ServerConfig{JetStream: true, Guard: guardOf()})
	own := dialControl(t, Config{Server: server})
	for _, name := range []string{"servers", "jobs"} {
		bucket, err := own.OpenBucket(guarded(t), BucketConfig{Name: name, BytesMax: 1 << 20})
		must(t, err)
		_, err = bucket.Create(guarded(t), "a", []byte("1"))
		must(t, err)
	}
}

// ofMembers is a guard that knows some keys, until they are revoked, for names of one job.
func ofMembers(keys ...*Key) (guard *Guard, revoke func(*Key)) {
	var revoked sync.Map
	return &Guard{Grant: func(key, name string) *Grant {
		_, gone := revoked.Load(key)
		if gone || !strings.HasPrefix(name, "job/") || !slices.ContainsFunc(keys, func(k *Key) bool { return k.public == key }) {
			return nil
		}
		return &Grant{Publish: []string{All}, Subscribe: []string{All}}
	}}, func(k *Key) { revoked.Store(k.public, true) }
}

func newKey(t *testing.T) *Key {
	k, err := NewKey()
	must(t, err)
	return k
}

// A connection proves a key that the guard knows. One that names the key of another and cannot sign is refused.
func TestMembersProveTheirKeys(t *testing.T) { overBoth(t, testMembersProveTheirKeys) }

func testMembersProveTheirKeys(t *testing.T) {
	mine, other := newKey(t), newKey(t)
	guard, _ := ofMembers(mine)
	server := startServer(t, ServerConfig{Guard: guard})
	conn := dial(t, Config{URL: server.URL(), Name: "job/t0", Key: mine})
	roundTrip(t, conn, conn)
	for what, key := range map[string]*Key{"no key": nil, "a key of no member": other,
		"a key without its seed": {other.pair, mine.public}} {
		if _, err := tryDial(t, Config{URL: server.URL(), Name: "job/t1", Key: key, Log: discard()}); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v, want %v", what, err, ErrRefused)
		}
	}
	_, err := tryDial(t, Config{URL: server.URL(), Name: "another/t1", Key: mine, Log: discard()})
	wantError(t, err, ErrRefused, mine.Public())
}

// While a member is connected under a name, no other key is let in under it.
func TestNameBelongsToAKey(t *testing.T) {
	first, second := newKey(t), newKey(t)
	guard, _ := ofMembers(first, second)
	server := startServer(t, ServerConfig{Guard: guard})
	conn := dial(t, Config{URL: server.URL(), Name: "job/t0", Key: first})
	if _, err := tryDial(t, Config{URL: server.URL(), Name: "job/t0", Key: second, Log: discard()}); !errors.Is(err, ErrRefused) {
		t.Errorf("another key under a name that is held: %v, want %v", err, ErrRefused)
	}
	dial(t, Config{URL: server.URL(), Name: "job/t1", Key: first}) // one key may hold several names
	conn.Close()
	eventually(t, "the name is free", func() bool {
		conn, err := tryDial(t, Config{URL: server.URL(), Name: "job/t0", Key: second, Log: discard()})
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// A revoked key is cut off and let in no more, also one that connects meanwhile; others stay.
func TestRevokedKeysAreCutOff(t *testing.T) {
	first, second := newKey(t), newKey(t)
	guard, revoke := ofMembers(first, second)
	server := startServer(t, ServerConfig{Guard: guard})
	stays := dial(t, Config{URL: server.URL(), Name: "job/t1", Key: second})
	for range 8 { // while others of it connect
		go func() {
			for range 20 {
				conn, err := Dial(t.Context(), Config{URL: server.URL(), Name: "job/j-a", Key: first})
				if err != nil {
					return
				}
				conn.Close()
			}
		}()
	}
	dial(t, Config{URL: server.URL(), Name: "job/t0", Key: first, Log: discard()})
	revoke(first)
	server.Recheck()
	eventually(t, "no connection of the revoked key is there", func() bool {
		return slices.Equal(server.Clients(), []string{"job/t1"})
	})
	if n := stays.Stats().Reconnects; n != 0 {
		t.Errorf("the other member has lost its connection %d times", n)
	}
	if _, err := tryDial(t, Config{URL: server.URL(), Name: "job/t0", Key: first, Log: discard()}); !errors.Is(err, ErrRefused) {
		t.Errorf("the revoked key: %v, want %v", err, ErrRefused)
	}
}

// A key whose grant has changed connects again, with the new one. A grant without subjects allows none.
func TestChangedGrantsEndConnections(t *testing.T) {
	key := newKey(t)
	var narrow atomic.Bool
	server := startServer(t, ServerConfig{Guard: &Guard{Grant: func(string, string) *Grant {
		if narrow.Load() {
			return &Grant{Subscribe: []string{All}}
		}
		return &Grant{All: true}
	}}})
	conn := dial(t, Config{URL: server.URL(), Name: "job/t0", Key: key, Log: discard()})
	roundTrip(t, conn, conn)
	server.Recheck()
	if n := conn.Stats().Reconnects; n != 0 {
		t.Errorf("a connection whose grant is as before was lost %d times", n)
	}
	narrow.Store(true)
	server.Recheck()
	eventually(t, "it has connected again", func() bool { return conn.Stats().Reconnects > 0 })
	if p := permission(nil); !slices.Equal(p.Deny, []string{All}) || len(p.Allow) != 0 {
		t.Errorf("no subjects are %+v, want that all are denied", p)
	}
}

// BenchmarkGreetings is the time in which a server admits 3900 connections of members that greet at once, and the
// longest round trip of a connection of this process meanwhile. Those that are not admitted in time are counted.
func BenchmarkGreetings(b *testing.B) {
	const connections = 3900
	for b.Loop() {
		server, err := StartServer(ServerConfig{Guard: &Guard{PeerToken: "peers", Publish: []string{All},
			Deny: denials(), Member: func(string) int { return 4 << 20 }}})
		must(b, err)
		own, err := Dial(b.Context(), Config{Server: server})
		must(b, err)
		var conns []net.Conn
		for range connections {
			conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL(), "nats://"))
			must(b, err)
			must(b, conn.SetDeadline(time.Now().Add(time.Minute)))
			conns = append(conns, conn)
		}
		var admitted, late counter
		var greeting sync.WaitGroup
		start := time.Now()
		for i, conn := range conns {
			greeting.Go(func() {
				_, _ = fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"lang\":\"go\",\"name\":\"job/t%d\"}\r\nPING\r\n", i/3)
				lines := bufio.NewScanner(conn)
				for lines.Scan() && lines.Text() != "PONG" {
				}
				if lines.Text() == "PONG" {
					admitted.add()
				} else {
					late.add()
				}
			})
		}
		var longest time.Duration
		for admitted.n.Load()+late.n.Load() < connections {
			asked := time.Now()
			must(b, own.Flush(b.Context()))
			longest = max(longest, time.Since(asked))
			time.Sleep(time.Millisecond) // the pause between two questions
		}
		b.ReportMetric(float64(time.Since(start).Microseconds())/connections, "µs/connection")
		b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest-flush")
		b.ReportMetric(float64(late.n.Load()), "late")
		greeting.Wait()
		for _, conn := range conns {
			conn.Close()
		}
		own.Close()
		server.Close()
	}
}

// denials are as many as a ps has.
func denials() (patterns []string) {
	for i := range 64 {
		patterns = append(patterns, AllFrom(fmt.Sprint("s", i)))
	}
	return patterns
}
