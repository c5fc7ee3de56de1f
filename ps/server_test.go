package ps

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/fabric/fabrictest"
	"gradbus/internal/testkit"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

func TestMain(m *testing.M) { fabrictest.Main(m) }

// unhurried is the deadline where none is asked for: trainers of these tests give no signs of life by themselves.
const unhurried = 10 * time.Minute

func startServer(t testing.TB, c Config) *Server {
	t.Helper()
	c.Deadline = cmp.Or(c.Deadline, unhurried)
	s, err := Start(context.Background(), c, Options{Bus: network(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

// bus is the network of servers in fake time.
var bus = fabric.NewBus()

// network is what servers of a test are on; nil is TCP.
func network(t testing.TB) *fabric.Bus {
	if testkit.InFakeTime(t) {
		return bus
	}
	return nil
}

// eventually polls until a condition holds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// A job joins, runs, is read back and leaves: every value is, bit for bit, that of the naive model.
func TestServerRunsAJob(t *testing.T) {
	s := startServer(t, Config{Shards: 2})
	p := shardtest.New(t, shardtest.SmallJob("first", 2, 4))
	const batches = 5
	want := p.Model(t)
	for b := range schema.Batch(batches) {
		want.Step(t, b)
	}
	trainers := []*miniTrainer{newMiniTrainer(t, s, p, "j-a"), newMiniTrainer(t, s, p, "j-b")}
	for _, m := range trainers {
		m.join()
	}
	var wg sync.WaitGroup
	for _, m := range trainers {
		m.start()
		wg.Go(func() {
			for b := range schema.Batch(batches) {
				m.batch(b)
			}
		})
	}
	wg.Wait()
	for _, m := range trainers {
		for i := range p.Job.Parameters {
			if d := shardtest.FirstDifference(m.params[i], want.Params[i]); d != "" {
				t.Errorf("%s: parameter %s: %s", m.member(), p.Job.Parameters[i].Name, d)
			}
		}
		for i := range p.Job.Tables {
			if d := shardtest.FirstDifference(m.table(batches, i), want.Tables[i]); d != "" {
				t.Errorf("%s: table %s: %s", m.member(), p.Job.Tables[i].Name, d)
			}
		}
		m.leave("")
	}
	eventually(t, "the job is freed", func() bool { return len(s.Stats().Jobs) == 0 && s.Stats().Memory == 0 })
}
