package trainer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/fabric/fabrictest"
	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

func TestMain(m *testing.M) {
	fabrictest.Main(m)
}

// testTimeout bounds whatever must come. It is reached only by what never does.
const testTimeout = 3 * time.Minute

const (
	// unhurried is the deadline of jobs where none is asked for: on a busy machine all of a process may stand still for a
	// while.
	unhurried = 10 * time.Minute
	// shortDeadline lets tests wait for its end. Who is to be heard meanwhile has all of it for a stall of the machine.
	shortDeadline = 8 * time.Second
)

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(context.Background(), testTimeout, errors.New("the test has taken too long"))
	t.Cleanup(cancel)
	return ctx
}

func startServer(t testing.TB, shards int) *ps.Server {
	t.Helper()
	return startServerWith(t, ps.Config{Shards: shards})
}

// startServerWith is a server within this process where tests are to be quick (-short), and one over TCP else: what
// trainers do is the same. Tests of connections are over TCP in either case.
func startServerWith(t testing.TB, config ps.Config) *ps.Server {
	t.Helper()
	if config.NATS != "" || config.TLS != nil {
		return startOn(t, busOf(config.NATS), config)
	}
	if testing.Short() || testkit.InFakeTime(t) {
		return startOn(t, bus, config)
	}
	return startOn(t, nil, config)
}

func startTCP(t testing.TB, shards int) *ps.Server {
	t.Helper()
	return startOn(t, nil, ps.Config{Shards: shards})
}

func startOn(t testing.TB, bus *fabric.Bus, config ps.Config) *ps.Server {
	t.Helper()
	config.Deadline = cmp.Or(config.Deadline, unhurried)
	server, err := ps.Start(testContext(t), config,
		ps.Options{Bus: bus, Backend: testBackend(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server
}

// bus is the network of servers within this process.
var bus = fabric.NewBus()

// busOf is the network that an address is of; nil is TCP.
func busOf(url string) *fabric.Bus {
	if strings.HasPrefix(url, "memory:") {
		return bus
	}
	return nil
}

func testConfig(t testing.TB, server *ps.Server) Config {
	t.Helper()
	return patient(Config{Server: server.URL(), Bus: busOf(server.URL()), Backend: testBackend(t)})
}

// patient is a configuration for a machine that may be busy: what must come may take long, and what is lost is asked
// for soon.
func patient(c Config) Config {
	c.HeartbeatEvery, c.RetryAfter = 200*time.Millisecond, 300*time.Millisecond
	c.AnswerWithin, c.ReconnectTimeout, c.LeaveWithin = testTimeout, testTimeout, testTimeout
	return c
}

// outcome is what one trainer of a job saw.
type outcome struct {
	digest   [32]byte
	progress []Progress
	stats    schema.TrainerReport
	err      error
}

// trainAll runs a job to its end with all of its trainers in this process.
func trainAll(t testing.TB, config Config, job *schema.Job, batches uint64) []outcome {
	t.Helper()
	out := make([]outcome, job.Trainers)
	var all sync.WaitGroup
	for i := range out {
		c := config
		c.Member = schema.TrainerMember(i)
		all.Go(func() { out[i] = train(testContext(t), c, job, newToy(t, job), batches) })
	}
	all.Wait()
	return out
}

func train(ctx context.Context, c Config, job *schema.Job, w Workload, batches uint64) (o outcome) {
	s, err := Join(ctx, c, job)
	if err != nil {
		return outcome{err: err}
	}
	// In two runs, with a look at the weights in between.
	o.err = s.Run(ctx, w, batches/2, func(p Progress) { o.progress = append(o.progress, p) })
	if o.err == nil {
		_, o.err = s.Lookup(ctx, []Query{{Table: 0, Keys: []uint64{3, 3, 1}}})
	}
	if o.err == nil {
		o.err = s.Run(ctx, w, batches-batches/2, func(p Progress) { o.progress = append(o.progress, p) })
	}
	if o.err == nil {
		o.digest, o.err = s.Digest(ctx)
	}
	o.stats = s.Stats()
	return outcome{o.digest, o.progress, o.stats, errors.Join(o.err, s.Abort(o.err))}
}

// The promise of the whole: equal bits, and those of the oracle, for any number of trainers and shards, whoever runs
// the optimizer, with momentum, uneven and empty lanes and a batch without any sample.
func TestEqualBitsAtAnyPlacement(t *testing.T) {
	const lanes, batches = 6, 7
	want, losses := toyOutcome(t, lanes, batches)
	for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		for shards := 1; shards <= 3; shards++ {
			server := startServer(t, shards)
			for _, trainers := range []int{1, 2, 4} {
				t.Run(fmt.Sprintf("%s/%d shards/%d trainers", apply, shards, trainers), func(t *testing.T) {
					job := toyJob(fmt.Sprintf("equal-%d", trainers), trainers, lanes, apply)
					checkOutcomes(t, trainAll(t, testConfig(t, server), job, batches), want, losses)
				})
			}
			server.Close()
		}
	}
}

func checkOutcomes(t *testing.T, all []outcome, want [32]byte, losses []float64) {
	t.Helper()
	sums := make([]float64, len(losses))
	for i, o := range all {
		if o.err != nil {
			t.Fatalf("trainer %d: %v", i, o.err)
		}
		if o.digest != want {
			t.Errorf("trainer %d: weights %x, want %x", i, o.digest[:6], want[:6])
		}
		if len(o.progress) != len(losses) {
			t.Fatalf("trainer %d reports %d batches, want %d", i, len(o.progress), len(losses))
		}
		for b, p := range o.progress {
			if p.Batch != schema.Batch(b) {
				t.Errorf("trainer %d reports batch %d as number %d", i, p.Batch, b)
			}
			sums[b] += p.Loss * float64(p.Samples)
		}
		if o.stats.Batches != uint64(len(losses)) || o.stats.Traffic.Dropped != 0 {
			t.Errorf("trainer %d: stats %+v", i, o.stats)
		}
	}
	for b, sum := range sums {
		if math.Abs(sum-losses[b]) > 1e-9*math.Abs(losses[b]) { // float64 sums of equal terms in another order
			t.Errorf("batch %d: losses add up to %v, want %v", b, sum, losses[b])
		}
	}
}
