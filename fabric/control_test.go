package fabric

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

func dialControl(t *testing.T, config Config) *Control {
	t.Helper()
	if config.Log == nil {
		config.Log = testLog(t)
	}
	c, err := DialControl(guarded(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Of many who create one key at once exactly one succeeds, and every later step says what it finds.
func TestBucket(t *testing.T) {
	server := startServer(t, ServerConfig{JetStream: true})
	ctx := guarded(t)
	const many = 8
	buckets := make([]*Bucket, many)
	for i := range buckets {
		c := dialControl(t, Config{URL: server.URL(), Name: fmt.Sprint("c", i)})
		var err error
		if buckets[i], err = c.OpenBucket(ctx, BucketConfig{Name: "things", BytesMax: 1 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	var won [many]uint64
	for i, b := range buckets {
		all.Go(func() {
			revision, err := b.Create(ctx, "a", []byte{byte(i)})
			if err == nil {
				won[i] = revision
			} else if !errors.Is(err, ErrKeyExists) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	winner, winners := 0, 0
	for i, revision := range won {
		if revision > 0 {
			winner, winners = i, winners+1
		}
	}
	if winners != 1 {
		t.Fatalf("%d created the key, want 1", winners)
	}
	b := buckets[(winner+1)%many]
	e, err := b.Get(ctx, "a")
	if err != nil || e.Key != "a" || len(e.Value) != 1 || int(e.Value[0]) != winner || e.Revision != won[winner] {
		t.Fatalf("got %+v, %v, want what %d wrote", e, err, winner)
	}
	if _, err := b.Get(ctx, "b"); !errors.Is(err, ErrNoKey) {
		t.Errorf("get of no key: %v", err)
	}
	if _, err := b.Update(ctx, "a", []byte("x"), e.Revision+5); !errors.Is(err, ErrKeyExists) {
		t.Errorf("update of another revision: %v", err)
	}
	if err := b.Delete(ctx, "a", e.Revision+5); !errors.Is(err, ErrKeyExists) {
		t.Errorf("delete of another revision: %v", err)
	}
	revision, err := b.Update(ctx, "a", []byte("x"), e.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "b", []byte("y")); err != nil {
		t.Fatal(err)
	}
	entries, err := b.All(ctx)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%+v, %v, want a and b", entries, err)
	}
	if err := b.Delete(ctx, "a", revision); err != nil {
		t.Fatal(err)
	}
	if entries, err = b.All(ctx); err != nil || len(entries) != 1 || entries[0].Key != "b" ||
		string(entries[0].Value) != "y" {
		t.Errorf("%+v, %v, want b alone", entries, err)
	}
	if _, err := b.Create(ctx, "a", nil); err != nil { // the name of a deleted key is free
		t.Error(err)
	}
}

// A marker of a deleted key, whoever has left it, is no key, and the name is free. A key that was written again stays,
// whoever deletes what it was before. The marker of a key that was deleted here does not stay.
func TestMarkersAreNoKeys(t *testing.T) {
	server := startServer(t, ServerConfig{JetStream: true})
	ctx := guarded(t)
	c := dialControl(t, Config{Server: server, Name: "c"})
	b, err := c.OpenBucket(ctx, BucketConfig{Name: "things", BytesMax: 1 << 20})
	must(t, err)
	first, err := b.Create(ctx, "a", []byte("first"))
	must(t, err)
	must(t, b.Delete(ctx, "a", first))
	marker, err := b.stream.GetLastMsgForSubject(ctx, "$KV.things.a")
	if err != nil || marker.Header.Get("Nats-TTL") != markerTTL.String() {
		t.Errorf("%+v, %v, want a marker for %v", marker, err, markerTTL)
	}
	_, err = b.Create(ctx, "a", []byte("again"))
	must(t, err)
	wantError(t, b.Delete(ctx, "a", first), ErrKeyExists)
	for _, key := range []string{"deleted", "purged"} {
		_, err := b.Put(ctx, key, nil)
		must(t, err)
	}
	must(t, b.kv.Delete(ctx, "deleted"))
	must(t, b.kv.Purge(ctx, "purged"))
	all, err := b.All(ctx)
	if err != nil || len(all) != 1 || all[0].Key != "a" || string(all[0].Value) != "again" {
		t.Errorf("%+v, %v, want a alone", all, err)
	}
}

// A server that cannot tell of keys that expire is refused, with its version.
func TestOldServerIsRefused(t *testing.T) {
	server := startServer(t, ServerConfig{})
	old, err := nats.Connect(server.URL())
	must(t, err)
	defer old.Close()
	_, err = old.Subscribe("$JS.API.INFO", func(m *nats.Msg) { _ = m.Respond([]byte(`{"api":{"level":0}}`)) })
	must(t, err)
	must(t, old.Flush())
	_, err = dialControl(t, Config{URL: server.URL(), Name: "c"}).OpenBucket(guarded(t), BucketConfig{Name: "things"})
	if want := "nats-server " + old.ConnectedServerVersion() + " at "; err == nil ||
		!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "2.11 or newer") {
		t.Errorf("%v, want %q and the version that is needed", err, want)
	}
}

// A key that nobody writes any more is gone after its time.
func TestBucketForgets(t *testing.T) {
	server := startServer(t, ServerConfig{JetStream: true})
	ctx := guarded(t)
	c := dialControl(t, Config{Server: server, Name: "c"})
	b, err := c.OpenBucket(ctx, BucketConfig{Name: "leases", BytesMax: 1 << 20, TTL: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "a", nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the key is gone", func() bool {
		_, err := b.Get(ctx, "a")
		return errors.Is(err, ErrNoKey)
	})
}

// Where there is no JetStream the error says so and what to do; where there is no bucket likewise, also after the
// server was started anew, since buckets are in memory.
func TestNoBuckets(t *testing.T) {
	ctx := guarded(t)
	plain := dialControl(t, Config{Server: startServer(t, ServerConfig{}), Name: "c"})
	if _, err := plain.OpenBucket(ctx, BucketConfig{Name: "things"}); !errors.Is(err, ErrNoJetStream) ||
		!strings.Contains(err.Error(), "-js") {
		t.Errorf("%v, want ErrNoJetStream and what to set", err)
	}
	if _, err := plain.LookBucket(ctx, "things"); !errors.Is(err, ErrNoJetStream) {
		t.Errorf("%v, want ErrNoJetStream", err)
	}
	server := startServer(t, ServerConfig{JetStream: true})
	c := dialControl(t, Config{Server: server, Name: "c"})
	if _, err := c.LookBucket(ctx, "things"); !errors.Is(err, ErrNoBucket) {
		t.Errorf("%v, want ErrNoBucket", err)
	}
	b, err := c.OpenBucket(ctx, BucketConfig{Name: "things", BytesMax: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.js.DeleteKeyValue(ctx, "things"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "a", nil); !errors.Is(err, ErrNoBucket) {
		t.Errorf("put: %v, want ErrNoBucket", err)
	}
	if _, err := b.Get(ctx, "a"); !errors.Is(err, ErrNoBucket) {
		t.Errorf("get: %v, want ErrNoBucket", err)
	}
	if _, err := b.Create(ctx, "a", nil); !errors.Is(err, ErrNoBucket) {
		t.Errorf("create: %v, want ErrNoBucket", err)
	}
	if _, err := b.All(ctx); !errors.Is(err, ErrNoBucket) {
		t.Errorf("all: %v, want ErrNoBucket", err)
	}
	if err := b.Delete(ctx, "a", 1); !errors.Is(err, ErrNoBucket) {
		t.Errorf("delete: %v, want ErrNoBucket", err)
	}
	if err := b.Look(ctx); !errors.Is(err, ErrNoBucket) {
		t.Errorf("look: %v, want ErrNoBucket", err)
	}
	_, err = c.OpenBucket(ctx, BucketConfig{Name: "things", BytesMax: 1 << 20})
	must(t, err)
	wantError(t, b.Look(ctx), ErrNoBucket) // another one
}

// A question is given up when the connection is cut off by which its answer would have come, and the next one is
// answered.
func TestBucketCutOff(t *testing.T) {
	server := startServer(t, ServerConfig{JetStream: true})
	way := newCutter(t, strings.TrimPrefix(server.URL(), "nats://"))
	ctx := guarded(t)
	b, err := dialControl(t, Config{URL: way.url(), Name: "c"}).OpenBucket(ctx, BucketConfig{Name: "things",
		BytesMax: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(ctx, "a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func() error{
		"all":    func() error { _, err := b.All(ctx); return err },
		"get":    func() error { _, err := b.Get(ctx, "a"); return err },
		"look":   func() error { return b.Look(ctx) },
		"create": func() error { _, err := b.Create(ctx, "b", nil); return err },
	} {
		way.mute.Store(true)
		answer := make(chan error, 1)
		go func() { answer <- ask() }()
		eventually(t, "the question is lost", func() bool { return way.lost.Swap(0) > 0 })
		way.cut()
		select { // the context has no end that comes in time
		case err := <-answer:
			if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "cut off") {
				t.Errorf("%s: %v, want ErrLost, cut off", name, err)
			}
		case <-ctx.Done():
			t.Fatalf("%s: no answer", name)
		}
		eventually(t, "the next question is answered", func() bool { return b.Look(ctx) == nil })
	}
}

// cutter is a way to a server that can lose what members send, and be cut.
type cutter struct {
	listener net.Listener
	mute     atomic.Bool
	lost     atomic.Int64 // bytes
	mu       sync.Mutex
	sockets  []net.Conn
}

func newCutter(t *testing.T, to string) *cutter {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: listener}
	go func() {
		for {
			member, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				member.Close()
				return
			}
			c.mu.Lock()
			c.sockets = append(c.sockets, member, server)
			c.mu.Unlock()
			go func() { _, _ = io.Copy(member, server) }()
			go func() { _, _ = io.Copy(losing{c, server}, member) }()
		}
	}()
	t.Cleanup(func() { listener.Close(); c.cut() })
	return c
}

func (c *cutter) url() string { return "nats://" + c.listener.Addr().String() }

// cut ends all connections. Those that come after it lose nothing.
func (c *cutter) cut() {
	c.mute.Store(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sockets {
		s.Close()
	}
	c.sockets = nil
}

// losing is a socket on whose way all is lost while the cutter is mute.
type losing struct {
	*cutter
	socket net.Conn
}

func (l losing) Write(b []byte) (int, error) {
	if l.mute.Load() {
		l.lost.Add(int64(len(b)))
		return len(b), nil
	}
	return l.socket.Write(b)
}

// Messages arrive in order, one that is too large is refused with what to set, and the password of an address is not
// told.
func TestControlMessages(t *testing.T) {
	server := startServer(t, ServerConfig{PayloadBytesMax: 1 << 10})
	a, b := dialControl(t, Config{URL: server.URL(), Name: "a"}), dialControl(t, Config{URL: server.URL(), Name: "b"})
	var got counter
	want := int64(0)
	if err := b.Subscribe(Pattern("job", Any, KindCtl, "coordinator", false), func(m Message) {
		if string(m.Data) != fmt.Sprint(got.n.Load()) {
			t.Errorf("message %d: %q", got.n.Load(), m.Data)
		}
		got.add()
	}); err != nil {
		t.Fatal(err)
	}
	for ; want < 100; want++ {
		if err := a.Publish(At("job", "t0", KindCtl, "coordinator").String(), []byte(fmt.Sprint(want))); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all messages", func() bool { return got.is(want) })
	if err := a.Publish(At("job", "t0", KindCtl, "coordinator").String(), make([]byte, 1<<10+1)); !errors.Is(err,
		ErrPayload) || !strings.Contains(err.Error(), "max_payload") {
		t.Errorf("%v, want ErrPayload and what to set", err)
	}
	_, err := DialControl(guarded(t), Config{URL: "nats://me:secret@127.0.0.1:1,nats://me:secret@127.0.0.1:2", Name: "c"})
	if !errors.Is(err, ErrNoServer) || strings.Contains(err.Error(), "secret") ||
		!strings.Contains(err.Error(), "127.0.0.1:2") {
		t.Errorf("%v, want the addresses without the password", err)
	}
	if _, err := DialControl(guarded(t), Config{URL: "me:secret@there", Name: "c"}); err == nil ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("%v, want no password in it", err)
	}
}

// A server with JetStream leaves no folder behind, and while it runs none either.
func TestJetStreamLeavesNoFolder(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	server := startServer(t, ServerConfig{JetStream: true})
	c := dialControl(t, Config{Server: server, Name: "c"})
	b, err := c.OpenBucket(guarded(t), BucketConfig{Name: "things", BytesMax: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Put(guarded(t), "a", nil); err != nil {
		t.Fatal(err)
	}
	if names, err := os.ReadDir(folder); err != nil || len(names) != 0 {
		t.Errorf("%v, %v, want nothing", names, err)
	}
}
