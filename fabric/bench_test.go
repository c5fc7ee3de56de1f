package fabric

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// BenchmarkRequestReply is the time from publishing a request to the answer in the asker's handler: four hops through
// the server and two handlers.
func BenchmarkRequestReply(b *testing.B) {
	for _, c := range []struct {
		name      string
		inProcess bool // the answering side, as in ./bin/ps
		bulk      bool // while 256 KiB frames stream the same way
		kind      string
		bytes     int
	}{
		{"tcp/ctl/128B", false, false, KindCtl, 128},
		{"tcp/mean/128B", false, false, KindMean, 128},
		{"in-process/mean/128B", true, false, KindMean, 128},
		{"tcp/lookup/4KiB", false, false, KindLookup, 4 << 10},
		{"tcp/lookup/256KiB", false, false, KindLookup, 256 << 10},
		{"tcp/ctl-behind-bulk/128B", false, true, KindCtl, 128},
		{"in-process/ctl/128B", true, false, KindCtl, 128},
		{"in-process/lookup/256KiB", true, false, KindLookup, 256 << 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			server, asker, answerer := benchPair(b, c.inProcess)
			_ = server
			if c.bulk {
				defer stream(b, asker, answerer)()
			}
			request := At("j", "t0", c.kind, "s0").WithBatch(1).String()
			reply := At("j", "s0", c.kind, "t0").WithBatch(1).String()
			payload := make([]byte, c.bytes)
			arrived := make(chan struct{}, 1)
			must(b, answerer.Subscribe(Pattern("j", "t0", c.kind, "s0", true), func(m Message) {
				_ = answerer.Publish(reply, m.Data)
			}))
			must(b, asker.Subscribe(Pattern("j", "s0", c.kind, "t0", true), func(Message) { arrived <- struct{}{} }))
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				must(b, asker.Publish(request, payload))
				<-arrived
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-µs")
		})
	}
}

// BenchmarkWindow is the throughput of frames through an Outbox and an Inbox, acks and all.
func BenchmarkWindow(b *testing.B) {
	for _, c := range []struct {
		name      string
		inProcess bool
		bytes     int
	}{
		{"tcp/4KiB", false, 4 << 10},
		{"tcp/64KiB", false, 65024 + 128},
		{"tcp/256KiB", false, 256 << 10},
		{"tcp/1MiB", false, 1 << 20},
		{"in-process/64KiB", true, 65024 + 128},
		{"in-process/256KiB", true, 256 << 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			_, from, to := benchPair(b, c.inProcess)
			o := benchWindow(b, from, to)
			subject := At("j", "t0", KindDense, "s0").WithBucket(1, 1)
			var frames [SpanMax + 1]Payload // so that none is sent again while it is under way
			for i := range frames {
				memory := make([]byte, HeadroomBytes+c.bytes+TailroomBytes)
				frames[i] = NewPayload(memory, HeadroomBytes, HeadroomBytes+c.bytes)
			}
			b.SetBytes(int64(c.bytes))
			for i := 0; b.Loop(); i++ {
				must(b, o.Send(b.Context(), subject, frames[i%len(frames)]))
			}
			must(b, o.Drained(b.Context()))
		})
	}
}

// BenchmarkInPlace is BenchmarkWindow out of the server's process, of frames with and without room around them.
func BenchmarkInPlace(b *testing.B) {
	for _, size := range []int{32<<10 - 256, 65024 + 128, 256 << 10} {
		for _, room := range []bool{false, true} {
			b.Run(fmt.Sprintf("%dKiB/room=%v", size>>10, room), func(b *testing.B) {
				_, to, from := benchPair(b, true)
				o := benchWindow(b, from, to)
				subject := At("j", "t0", KindDense, "s0").WithBucket(1, 1)
				var frames [SpanMax + 1]Payload
				for i := range frames {
					frames[i] = WithoutRoom(make([]byte, size))
					if room {
						memory := make([]byte, HeadroomBytes+size+TailroomBytes)
						frames[i] = NewPayload(memory, HeadroomBytes, HeadroomBytes+size)
					}
				}
				b.SetBytes(int64(size))
				for i := 0; b.Loop(); i++ {
					must(b, o.Send(b.Context(), subject, frames[i%len(frames)]))
				}
				must(b, o.Drained(b.Context()))
			})
		}
	}
}

func benchWindow(b *testing.B, from, to *Conn) *Outbox {
	in := NewInbox(8 << 20)
	acks := At("j", "s0", KindAck, "t0").String()
	must(b, to.Subscribe(Pattern("j", "t0", KindDense, "s0", true), func(m Message) {
		sequence, _ := envelope{}.Sequence(m.Data)
		if fresh, _ := in.AcceptBytes(sequence, len(m.Data)); fresh {
			in.Free(len(m.Data))
		}
		m.Release()
		_ = to.Publish(acks, encodeAck(in.Ack()))
	}))
	o := NewOutbox(OutboxConfig{Envelope: envelope{}, Publish: from.SendInPlace})
	must(b, from.Subscribe(Pattern("j", Any, KindAck, "t0", false), func(m Message) { _ = o.Ack(decodeAck(m.Data)) }))
	return o
}

// benchPair is a server with one connection over TCP and one of the given sort.
func benchPair(b *testing.B, inProcess bool) (server *Server, a, z *Conn) {
	server, err := StartServer(ServerConfig{})
	must(b, err)
	b.Cleanup(server.Close)
	a, err = Dial(b.Context(), Config{URL: server.URL(), Name: "j/t0"})
	must(b, err)
	b.Cleanup(a.Close)
	config := Config{URL: server.URL(), Name: "j/s0"}
	if inProcess {
		config = Config{Server: server, Name: "j/s0"}
	}
	z, err = Dial(b.Context(), config)
	must(b, err)
	b.Cleanup(z.Close)
	return server, a, z
}

// stream keeps the bulk line from one to the other full, until the returned function is called.
func stream(b *testing.B, from, to *Conn) (stop func()) {
	o := benchWindow(b, from, to)
	var wg sync.WaitGroup
	subject := At("j", "t0", KindDense, "s0").WithBucket(1, 1)
	wg.Go(func() {
		for o.Send(b.Context(), subject, WithoutRoom(make([]byte, 256<<10))) == nil {
		}
	})
	return func() {
		o.Close(nil)
		wg.Wait()
	}
}

func must(b testing.TB, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
