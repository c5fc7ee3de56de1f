package fabric

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// busPair is a server on a bus, and two connections to it.
func busPair(t *testing.T, direct bool) (server *Server, a, b *Conn) {
	t.Helper()
	bus := NewBus()
	server = startServer(t, ServerConfig{Bus: bus, JetStream: true})
	conn := func(name string) *Conn {
		c, err := Dial(t.Context(), Config{URL: server.URL(), Bus: bus, Name: name, Direct: direct})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	return server, conn("j/t0"), conn("j/s0")
}

// A bus delivers what NATS delivers: every pattern of a kind that is in use, against every form of subject.
func TestBusMatchesLikeNATS(t *testing.T) {
	patterns := append(ListenAt("j", "s0"), ListenAt(Any, "all")...)
	patterns = append(patterns, All, AllFrom("t0"), Pattern("j", "t0", KindCtl, "s0", false),
		Pattern("j", Any, Any, "s0", true),
		"gradbus.v1.j.*.dense.s0.*.7", "gradbus.v1.j.t0.module.s0.m", "gradbus.v1.j.*.mean.s0.3.>", "gradbus.v1.*.>")
	subjects := []Subject{
		At("j", "t0", KindDense, "s0").WithBucket(3, 7), At("j", "t0", KindDense, "s0").WithBucket(3, 8),
		At("k", "t0", KindDense, "s0").WithBucket(3, 7),
		At("j", "t1", KindLookup, "s0").WithBatch(3), At("j", "t0", KindMean, "s0").WithBatch(3),
		At("j", "t0", KindMean, "s0").WithBucket(3, 1),
		At("j", "t0", KindCtl, "s0"), At("j", "t0", KindCtl, "all"), At("j", "t0", "", "s0").OfModule("m"),
		At("j", "t0", "", "s0").OfModule("n"),
		At("j", "t1", KindAck, "s1"), At("j", "t0", KindAck, "s0"), At("j", "t0", "", "all").OfModule("m"),
	}
	for _, kind := range []string{KindPool, KindDense, KindSparse, KindReduce, KindRows, KindReplica} {
		subjects = append(subjects, At("j", "t2", kind, "s0").WithBatch(4), At("k", "t2", kind, "all").WithBucket(4, 2))
	}
	for _, kind := range []string{KindLookup, KindMean} {
		subjects = append(subjects, At("j", "t2", kind, "all").WithBatch(4), At("j", "t2", kind, "s0").WithBucket(4, 7))
	}
	// Everything is sent twice: a subscription hears in order, so one that hears of the second time has all of the first.
	heard := func(c Config) []string {
		conn := dial(t, c)
		var mu sync.Mutex
		var got []string
		again := map[string]bool{}
		for _, p := range patterns {
			must(t, conn.Subscribe(p, func(m Message) {
				mu.Lock()
				defer mu.Unlock()
				if string(m.Data) == "again" {
					again[p] = true
				} else {
					got = append(got, p+" "+m.Text())
				}
			}))
		}
		for _, data := range []string{"first", "again"} {
			for _, s := range subjects {
				must(t, conn.Send(s, []byte(data)))
				must(t, conn.Flush(t.Context()))
			}
		}
		eventually(t, "every pattern hears", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(again) == len(patterns)
		})
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(got)
		return got
	}
	bus := NewBus()
	ours := heard(Config{URL: startServer(t, ServerConfig{Bus: bus}).URL(), Bus: bus, Name: "a"})
	theirs := heard(Config{Server: startServer(t, ServerConfig{}), Name: "a"})
	if !slices.Equal(ours, theirs) {
		t.Errorf("over a bus\n%s\nover NATS\n%s", strings.Join(ours, "\n"), strings.Join(theirs, "\n"))
	}
}

func TestBusErrors(t *testing.T) {
	server, a, _ := busPair(t, false)
	_, err := Dial(t.Context(), Config{URL: "memory://local:99", Bus: NewBus()})
	wantError(t, err, ErrNoServer, "memory://local:99")
	_, err = Dial(t.Context(), Config{URL: server.URL()})
	if err == nil || !strings.Contains(err.Error(), "want nats://") {
		t.Errorf("without a bus: %v", err)
	}
	_, err = Dial(t.Context(), Config{URL: "nats://127.0.0.1:4222", Bus: NewBus()})
	if err == nil || !strings.Contains(err.Error(), "want memory://") {
		t.Errorf("an address of TCP: %v", err)
	}
	bus := NewBus()
	startServer(t, ServerConfig{Bus: bus, Port: 7})
	_, err = StartServer(ServerConfig{Bus: bus, Port: 7})
	wantError(t, err, ErrPortTaken, ":7")
	err = a.Send(At("j", "t0", KindDense, "s0").WithBucket(1, 1), make([]byte, PayloadBytesMaxDefault+1))
	wantError(t, err, ErrPayload, "smaller chunks")
	a.Close()
	wantError(t, a.Send(At("j", "t0", KindDense, "s0").WithBucket(1, 1), nil), ErrClosed)
	wantError(t, a.Subscribe(Pattern("j", Any, KindAck, "t0", false), func(Message) {}), ErrClosed)
}

// What is sent may be reused at once, and what arrives belongs to who receives; order is kept.
func TestBusDelivers(t *testing.T) {
	_, a, b := busPair(t, false)
	const frames = 500
	got := make(chan []byte, frames)
	must(t, b.Subscribe(Pattern("j", "t0", KindDense, "s0", true), func(m Message) { got <- m.Data }))
	data := make([]byte, 8)
	for i := range frames {
		data[0], data[1] = byte(i), byte(i>>8)
		must(t, a.Send(At("j", "t0", KindDense, "s0").WithBucket(1, 1), data))
	}
	for i := range frames {
		if m := <-got; int(m[0])+int(m[1])<<8 != i {
			t.Fatalf("frame %d arrives in place of %d", int(m[0])+int(m[1])<<8, i)
		}
	}
}

// A direct connection hands over the sender's own bytes, within Send: what is kept is a copy, unless it was lent.
func TestBusDirect(t *testing.T) {
	_, a, b := busPair(t, true)
	at := At("j", "t0", KindDense, "s0").WithBucket(1, 1)
	var seen, kept []byte
	must(t, b.Subscribe(Pattern("j", "t0", KindDense, "s0", true), func(m Message) {
		seen = m.Data
		m.Keep()
		kept = m.Data
	}))
	data := []byte("values")
	must(t, a.Send(at, data))
	if &seen[0] != &data[0] || &kept[0] == &data[0] || !bytes.Equal(kept, data) {
		t.Error("what was sent is not seen where it lies, or is kept there")
	}
	must(t, a.Lend(at, data))
	if &kept[0] != &data[0] {
		t.Error("what was lent is copied")
	}
}

// Who publishes may be within a handler, also in a ring; and Close waits for a handler that somebody else runs.
func TestBusDirectWithinHandlers(t *testing.T) {
	_, a, b := busPair(t, true)
	request, reply := At("j", "t0", KindLookup, "s0").WithBatch(1), At("j", "s0", KindRows, "t0").WithBatch(1)
	answered := 0
	must(t, b.Subscribe(Pattern("j", "t0", KindLookup, "s0", true), func(m Message) { must(t, b.Send(reply, m.Data)) }))
	must(t, a.Subscribe(Pattern("j", "s0", KindRows, "t0", true), func(m Message) {
		if answered++; answered < 10 {
			must(t, a.Send(request, m.Data))
		}
	}))
	must(t, a.Send(request, []byte("k")))
	if answered != 10 {
		t.Errorf("%d answers within the first request, want 10", answered)
	}
	entered, leave, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	must(t, b.Subscribe(Pattern("j", "t0", KindDense, "s0", true), func(Message) { close(entered); <-leave }))
	go func() { _ = a.Send(At("j", "t0", KindDense, "s0").WithBucket(1, 1), nil) }()
	<-entered
	go func() { b.Close(); close(closed) }()
	select {
	case <-closed:
		t.Error("Close returned while a handler ran")
	case <-time.After(20 * time.Millisecond):
	}
	close(leave)
	<-closed
}

// Close may overtake the end of a subscription.
func TestBusClosesWhileSubscriptionsEnd(t *testing.T) {
	server, _, _ := busPair(t, true)
	for range 200 {
		c, err := Dial(t.Context(), Config{URL: server.URL(), Bus: server.config.Bus, Name: "j/t1"})
		must(t, err)
		first, second := Pattern("j", "t0", KindDense, "t1", true), Pattern("j", "t0", KindSparse, "t1", true)
		must(t, c.Subscribe(first, func(Message) {}))
		must(t, c.Subscribe(second, func(Message) {}))
		var both sync.WaitGroup
		both.Go(func() { c.unsubscribe(first) })
		both.Go(c.Close)
		both.Wait()
	}
}

// A server that stops loses what waits and its buckets; who is connected is told, and goes on when it starts again.
func TestBusStopStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewBus()
		server, err := StartServer(ServerConfig{Bus: bus, JetStream: true})
		must(t, err)
		var states []State
		conn, err := Dial(t.Context(),
			Config{URL: server.URL(), Bus: bus, Name: "j/t0", OnState: func(s State) { states = append(states, s) }})
		must(t, err)
		control, err := DialControl(t.Context(), Config{Server: server, Name: "j/t0"})
		must(t, err)
		if names := server.Clients(); !slices.Equal(names, []string{"j/t0"}) {
			t.Errorf("clients %v", names)
		}
		bucket, err := control.OpenBucket(t.Context(), BucketConfig{Name: "b"})
		must(t, err)
		_, err = bucket.Put(t.Context(), "k", nil)
		must(t, err)
		server.Stop()
		synctest.Wait()
		wantError(t, conn.Send(At("j", "t0", KindDense, "s0").WithBucket(1, 1), nil), ErrLost)
		wantError(t, bucket.Look(t.Context()), ErrLost)
		must(t, server.Start())
		synctest.Wait()
		must(t, conn.Send(At("j", "t0", KindDense, "s0").WithBucket(1, 1), nil))
		wantError(t, bucket.Look(t.Context()), ErrNoBucket)
		conn.Close()
		control.Close()
		server.Close()
		if want := []State{Connected, Lost, Back, Closed}; !slices.Equal(states, want) || conn.Stats().Reconnects != 3 {
			t.Errorf("states %v, want %v; %d lines came back", states, want, conn.Stats().Reconnects)
		}
		if names := server.Clients(); len(names) > 0 {
			t.Errorf("clients %v after they have closed", names)
		}
	})
}

// Another server at the address of one that was closed takes its connections over; an address that nobody waits at is
// free.
func TestBusServerInPlaceOfAnother(t *testing.T) {
	bus := NewBus()
	first := startServer(t, ServerConfig{Bus: bus, Port: 5})
	conn := dial(t, Config{URL: first.URL(), Bus: bus, Name: "a"})
	first.Close()
	wantError(t, conn.Send(At("j", "t0", KindDense, "s0").WithBucket(1, 1), nil), ErrLost)
	_, err := Dial(t.Context(), Config{URL: first.URL(), Bus: bus})
	wantError(t, err, ErrNoServer)
	second := startServer(t, ServerConfig{Bus: bus, Port: 5})
	must(t, conn.Send(At("j", "t0", KindDense, "s0").WithBucket(1, 1), nil))
	if names := second.Clients(); !slices.Equal(names, []string{"a"}) {
		t.Errorf("clients %v of the second server", names)
	}
	conn.Close()
	second.Close()
	if n := len(bus.network.servers); n != 0 {
		t.Errorf("%d servers are left", n)
	}
}

// What waits for a slow handler is bounded, and what is beyond is counted.
func TestBusBoundsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewBus()
		server, err := StartServer(ServerConfig{Bus: bus})
		must(t, err)
		conn, err := Dial(t.Context(), Config{Server: server, Name: "slow", PendingBytesMax: 1000})
		must(t, err)
		var got counter
		must(t, conn.Subscribe(Pattern("j", Any, KindMean, "all", true), func(Message) {
			time.Sleep(time.Second)
			got.add()
		}))
		for range 21 {
			must(t, conn.Send(At("j", "s0", KindMean, "all").WithBucket(1, 1), make([]byte, 100)))
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		if dropped := conn.Stats().Dropped; !got.is(11) || dropped != 10 || server.SlowConsumers() != 1 {
			t.Errorf("%d of 21 arrived and %d were dropped, want one at once, ten that fit and ten dropped; %d slow readers",
				got.n.Load(), dropped, server.SlowConsumers())
		}
		conn.Close()
		server.Close()
	})
}

// Buckets are those of JetStream: one test over both.
func TestBusBucket(t *testing.T) {
	bus := NewBus()
	for name, server := range map[string]*Server{"bus": startServer(t, ServerConfig{Bus: bus, JetStream: true}),
		"nats": startServer(t, ServerConfig{JetStream: true})} {
		t.Run(name, func(t *testing.T) {
			c, err := DialControl(t.Context(), Config{Server: server, Name: "a"})
			must(t, err)
			defer c.Close()
			_, err = c.LookBucket(t.Context(), "jobs")
			wantError(t, err, ErrNoBucket, "jobs")
			b, err := c.OpenBucket(t.Context(), BucketConfig{Name: "jobs", BytesMax: 4096})
			must(t, err)
			_, err = b.Get(t.Context(), "k")
			wantError(t, err, ErrNoKey)
			first, err := b.Create(t.Context(), "k", []byte("1"))
			must(t, err)
			_, err = b.Create(t.Context(), "k", []byte("2"))
			wantError(t, err, ErrKeyExists)
			second, err := b.Update(t.Context(), "k", []byte("2"), first)
			must(t, err)
			_, err = b.Update(t.Context(), "k", []byte("3"), first)
			wantError(t, err, ErrKeyExists)
			_, err = b.Update(t.Context(), "none", nil, first)
			wantError(t, err, ErrKeyExists)
			wantError(t, b.Delete(t.Context(), "k", first), ErrKeyExists)
			if e, err := b.Get(t.Context(), "k"); err != nil || string(e.Value) != "2" || e.Revision != second ||
				second <= first {
				t.Errorf("%+v, %v: want value 2 at revision %d", e, err, second)
			}
			_, err = b.Put(t.Context(), "l", []byte("x"))
			must(t, err)
			must(t, b.Delete(t.Context(), "k", second))
			looked, err := c.LookBucket(t.Context(), "jobs")
			must(t, err)
			all, err := looked.All(t.Context())
			if err != nil || len(all) != 1 || all[0].Key != "l" {
				t.Errorf("%+v, %v: want l alone", all, err)
			}
			if _, err = b.Put(t.Context(), "large", make([]byte, 8192)); err == nil {
				t.Error("more than the bucket holds was taken")
			}
		})
	}
}

// A watch has all keys, then every change: also of keys that expire, which take a revision. One test over both.
func TestBucketWatch(t *testing.T) {
	bus := NewBus()
	for name, server := range map[string]*Server{"bus": startServer(t, ServerConfig{Bus: bus, JetStream: true}),
		"nats": startServer(t, ServerConfig{JetStream: true})} {
		t.Run(name, func(t *testing.T) {
			ctx := guarded(t)
			c, err := DialControl(ctx, Config{Server: server, Name: "a"})
			must(t, err)
			defer c.Close()
			b, err := c.OpenBucket(ctx, BucketConfig{Name: "jobs", BytesMax: 4096})
			must(t, err)
			_, err = b.Create(ctx, "first", []byte("1"))
			must(t, err)
			changes := make(chan struct{}, 100)
			w, err := b.Watch(ctx, func() { changes <- struct{}{} })
			must(t, err)
			if all := w.All(); len(all) != 1 || all[0].Key != "first" || string(all[0].Value) != "1" {
				t.Errorf("%+v, want what was there", all)
			}
			for len(changes) > 0 {
				<-changes
			}
			second, err := b.Put(ctx, "second", []byte("2"))
			must(t, err)
			must(t, w.Reach(ctx, second))
			<-changes
			if all := w.All(); len(all) != 2 || string(all[1].Value) != "2" || all[1].Revision != second {
				t.Errorf("%+v, want the second key at revision %d", all, second)
			}
			second, err = b.Update(ctx, "second", []byte("2"), second) // which is no change
			must(t, err)
			must(t, b.Delete(ctx, "second", second))
			must(t, w.Reach(ctx, second+1))
			<-changes
			if all := w.All(); len(all) != 1 || all[0].Key != "first" {
				t.Errorf("%+v, want the first key alone", all)
			}
			third, err := b.Create(ctx, "second", nil)
			must(t, err)
			must(t, w.Reach(ctx, third))
			if w.Close(); third != second+2 || len(w.All()) != 2 {
				t.Errorf("revision %d after %d: %+v", third, second, w.All())
			}
			soon, cancel := context.WithCancel(ctx)
			cancel()
			wantError(t, w.Reach(soon, third+1), ErrLost)

			b, err = c.OpenBucket(ctx, BucketConfig{Name: "leases", BytesMax: 4096, TTL: time.Second})
			must(t, err)
			w, err = b.Watch(ctx, func() {})
			must(t, err)
			defer w.Close()
			first, err := b.Create(ctx, "first", nil)
			must(t, err)
			must(t, w.Reach(ctx, first+1))
			if all := w.All(); len(all) > 0 {
				t.Errorf("%+v is left after its time", all)
			}
			if again, err := b.Create(ctx, "first", nil); err != nil || again != first+2 {
				t.Errorf("revision %d after %d, %v, want one more than that of the end", again, first, err)
			}
		})
	}
}

// Keys of a bucket that has a time run out after it.
func TestBusBucketTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := StartServer(ServerConfig{Bus: NewBus(), JetStream: true})
		must(t, err)
		c, err := DialControl(t.Context(), Config{Server: server, Name: "a"})
		must(t, err)
		b, err := c.OpenBucket(t.Context(), BucketConfig{Name: "b", TTL: 8 * time.Second})
		must(t, err)
		_, err = b.Put(t.Context(), "k", nil)
		must(t, err)
		time.Sleep(8*time.Second - time.Nanosecond)
		_, err = b.Get(t.Context(), "k")
		must(t, err)
		time.Sleep(time.Nanosecond)
		if _, err = b.Get(t.Context(), "k"); !errors.Is(err, ErrNoKey) {
			t.Errorf("after its time: %v", err)
		}
		c.Close()
		server.Close()
	})
}

// What has arrived when a server is closed is handled, since it may be the last word of who has closed it. Where the
// server crashes it is lost.
func TestBusLastWords(t *testing.T) {
	for _, crashes := range []bool{false, true} {
		server, a, b := busPair(t, false)
		var heard atomic.Int32
		first, goOn := make(chan struct{}), make(chan struct{})
		must(t, b.Subscribe(Pattern("j", "t0", KindCtl, "s0", false), func(Message) {
			if heard.Add(1) == 1 {
				close(first)
				<-goOn
			}
		}))
		for range 3 {
			must(t, a.Send(At("j", "t0", KindCtl, "s0"), []byte("x")))
		}
		<-first
		want := int32(3)
		if crashes {
			server.Stop()
			want = 1
		} else {
			server.Close()
		}
		close(goOn)
		b.Close()
		eventually(t, "all is handled that is not lost", func() bool { return heard.Load() >= want })
		if got := heard.Load(); got != want {
			t.Errorf("crash %v: %d of 3 messages are handled, want %d", crashes, got, want)
		}
	}
}
