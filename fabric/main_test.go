package fabric

import (
	"context"
	"flag"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/fabric/fabrictest"
)

var seedFlag = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one and prints it")

func TestMain(m *testing.M) { fabrictest.Main(m) }

// newRand gives the generator of a test, and prints the seed that repeats it.
func newRand(t *testing.T) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-seed=%d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// guard bounds every wait for what must come. It is reached only by what never does.
const guard = 3 * time.Minute

// eventually polls until the condition holds, and fails with what the last look saw.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(guard)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", guard, what)
		}
		time.Sleep(time.Millisecond) // the pause between two looks
	}
}

// guarded ends what would otherwise hang a test.
func guarded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	t.Cleanup(cancel)
	return ctx
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

func startServer(t *testing.T, config ServerConfig) *Server {
	t.Helper()
	config.Log = testLog(t)
	server, err := StartServer(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

// overBoth runs a test over nats.go alone and over data connections: what dial and tryDial make there.
func overBoth(t *testing.T, body func(*testing.T)) {
	for _, lines := range []string{"data", "plain"} {
		t.Run(lines, body)
	}
}

func plain(t *testing.T) bool {
	_, lines, _ := strings.Cut(t.Name(), "/")
	return strings.HasPrefix(lines, "plain")
}

// tryDial is Dial over the lines that the test is about.
func tryDial(t *testing.T, config Config) (*Conn, error) {
	t.Helper()
	config.Plain = config.Plain || plain(t)
	return Dial(guarded(t), config)
}

// sent counts a line's messages.
func sent(l line) uint64 {
	var s Stats
	l.count(&s)
	return s.MessagesSent
}

func dial(t *testing.T, config Config) *Conn {
	t.Helper()
	if config.Log == nil {
		config.Log = testLog(t)
	}
	conn, err := tryDial(t, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// counter counts calls from any goroutine.
type counter struct{ n atomic.Int64 }

func (c *counter) add()            { c.n.Add(1) }
func (c *counter) is(n int64) bool { return c.n.Load() == n }

// discard is for tests that provoke what would be logged.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
