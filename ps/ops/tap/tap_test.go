package tap

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const guard = time.Minute

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(guard); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", guard, what)
		}
	}
}

// bus is a NATS server and a connection that publishes to it.
func bus(t *testing.T) (server *fabric.Server, conn *fabric.Conn) {
	t.Helper()
	server, err := fabric.StartServer(fabric.ServerConfig{JetStream: true,
		Guard: &fabric.Guard{Publish: []string{fabric.All}, Member: func(string) int { return 1 << 20 }}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	if conn, err = fabric.Dial(t.Context(), fabric.Config{Server: server, Name: "t0"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return server, conn
}

// gate is a terminal that shows nothing until it is opened.
type gate struct {
	open, reached chan struct{} // reached is closed with the first line
	once          sync.Once
	text          testkit.Text
}

func newGate() *gate { return &gate{open: make(chan struct{}), reached: make(chan struct{})} }

func (g *gate) Write(p []byte) (int, error) {
	g.once.Do(func() { close(g.reached) })
	<-g.open
	return g.text.Write(p)
}

// run taps until stop is called, which returns what was shown.
func run(t *testing.T, server *fabric.Server, c Config, out *gate) (stop func() Result) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c.Server, c.Out = fabric.Config{URL: server.URL(), Name: "tap"}, out
	var result Result
	var err error
	var over sync.WaitGroup
	over.Go(func() { result, err = Run(ctx, c) })
	return func() Result {
		t.Helper()
		cancel()
		over.Wait()
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
}

func opened() *gate {
	g := newGate()
	close(g.open)
	return g
}

// Filters by sender, receiver, kind, batch and bucket choose lines, and only those.
func TestFilters(t *testing.T) {
	server, conn := bus(t)
	batch, bucket, other := uint64(7), uint32(2), uint64(8)
	dense, ack, pull := golden(t, "dense"), golden(t, "ack"), golden(t, "pull")
	for name, c := range map[string]struct {
		config Config
		want   []string // parts, one for each line
	}{
		"all": {Config{}, []string{"demo t1 > s0 dense batch 7", "s0 > t1 ack", "t1 > s0 pull batch 7",
			"other t0 > s0 dense"}},
		"job":         {Config{Job: "other"}, []string{"other t0"}},
		"from":        {Config{From: "s0"}, []string{"ack"}},
		"to":          {Config{To: "s0", Job: "demo"}, []string{"dense", "pull"}},
		"kind":        {Config{Kind: "dense"}, []string{"demo", "other"}},
		"batch":       {Config{Batch: &batch, Job: "demo"}, []string{"dense", "pull"}},
		"other batch": {Config{Batch: &other}, []string{"other"}},
		"bucket":      {Config{Bucket: &bucket}, []string{"demo"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := opened()
			stop := run(t, server, c.config, out)
			round := func() {
				for _, m := range []struct {
					at   string
					data []byte
				}{{"demo.t1.dense.s0.7.2", dense}, {"demo.s0.ack.t1", ack}, {"demo.t1.pull.s0", pull},
					{"other.t0.dense.s0.8.3", dense}} {
					if err := conn.Publish("gradbus.v1."+m.at, m.data); err != nil {
						t.Fatal(err)
					}
				}
			}
			eventually(t, "each line is there", func() bool {
				round()
				for _, part := range c.want {
					if !strings.Contains(out.text.String(), part) {
						return false
					}
				}
				return true
			})
			stop()
			for line := range strings.Lines(out.text.String()) {
				known := false
				for _, part := range c.want {
					known = known || strings.Contains(line, part)
				}
				if !known || strings.Contains(line, "BAD") {
					t.Errorf("it shows %q", line)
				}
			}
		})
	}
}

// A terminal that takes nothing holds nobody up: frames pass, a bounded number wait for it, and how many it missed is
// said.
func TestSlowTerminal(t *testing.T) {
	server, conn := bus(t)
	out := newGate()
	stop := run(t, server, Config{Kind: "dense"}, out)
	l, frame := 0, golden(t, "dense")
	publish := func() {
		if err := conn.Publish(fmt.Sprint("gradbus.v1.demo.t0.dense.s0.", l, ".0"), frame); err != nil {
			t.Fatal(err)
		}
		l++
	}
	eventually(t, "it shows the first", func() bool {
		publish()
		select {
		case <-out.reached:
			return true
		default:
			return false
		}
	})
	for range 4 * linesMax {
		publish()
	}
	if err := conn.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := server.SlowConsumers(); n != 0 {
		t.Errorf("%d readers were cut off", n)
	}
	close(out.open)
	eventually(t, "what it missed is said, and what waited is shown", func() bool {
		text := out.text.String()
		return strings.Contains(text, "frames missed") && strings.Count(text, "\n") > linesMax
	})
	if r := stop(); r.Missed == 0 || r.Shown+int(r.Missed) > l || r.Shown < linesMax {
		t.Errorf("of %d frames it shows %d and missed %d", l, r.Shown, r.Missed)
	}
}

// It ends after so many frames.
func TestCount(t *testing.T) {
	server, conn := bus(t)
	out := opened()
	done := make(chan Result)
	go func() {
		r, err := Run(t.Context(), Config{Server: fabric.Config{URL: server.URL(), Name: "tap"}, Out: out, Count: 3,
			JSON: true})
		if err != nil {
			t.Error(err)
		}
		done <- r
	}()
	frame := golden(t, "dense")
	for {
		select {
		case r := <-done:
			if text := out.text.String(); r.Shown != 3 || strings.Count(text, "\n") != 3 ||
				!strings.HasPrefix(text, `{"time":`) {
				t.Errorf("%+v: %s", r, text)
			}
			return
		default:
			if err := conn.Publish("gradbus.v1.demo.t0.dense.s0.1.0", frame); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestConfigRefused(t *testing.T) {
	for name, c := range map[string]Config{"job": {Job: "a.b"}, "from": {From: "T0"},
		"count": {Count: -1}} {
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := Run(t.Context(), Config{Server: fabric.Config{URL: "nats://127.0.0.1:1"}, Out: opened()})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("no server: %v", err)
	}
}
