package ps

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// startNATS starts a NATS server with JetStream that is not of gradbus, and is somebody who may do anything there.
func startNATS(t testing.TB) (*server.Server, jetstream.JetStream) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		JetStream: true, StoreDir: t.TempDir()})
	must(t, err)
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(patience) {
		t.Fatal("the NATS server is not ready")
	}
	return s, streams(t, s.ClientURL())
}

// streams is what a server keeps, for somebody who may do anything there.
func streams(t testing.TB, url string, options ...nats.Option) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, options...)
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	return js
}

// The same in the server that a ps embeds, and the first job runs on.
func TestLostEmbeddedBucketIsMadeAgain(t *testing.T) {
	const token = "the-token-of-peers"
	s := startServer(t, Config{Shards: 2, ControlToken: token})
	p := shardtest.New(t, shardtest.SmallJob("before", 1, 1))
	m := gather(t, s, p, "j-a")[0]
	m.batch(0)
	must(t, streams(t, s.URL(), nats.Token(token)).DeleteStream(t.Context(), "KV_"+schema.JobsBucket))
	second := gather(t, s, shardtest.New(t, shardtest.SmallJob("after", 1, 1)), "j-b")[0]
	for b := range schema.Batch(3) {
		m.batch(b + 1)
		second.batch(b)
	}
	eventually(t, "both jobs are written down", func() bool { return keysOf(t, s) == 2 })
	m.leave("")
	second.leave("")
	eventually(t, "the jobs are freed", func() bool { return len(s.Stats().Jobs) == 0 })
}

func isStarted(c schema.Control) bool { return c.Start != nil || c.Joined != nil && c.Joined.Started }

func registryCheck(s *Server) Check {
	all := s.Checks()
	return all[slices.IndexFunc(all, func(c Check) bool { return c.Name == "registry" })]
}

// Either bucket may be lost while the other is there. It is made anew with what there was, and jobs go on and can be
// joined.
func TestLostBucketIsMadeAgain(t *testing.T) {
	for _, bucket := range []string{schema.JobsBucket, schema.ServersBucket} {
		t.Run(bucket, func(t *testing.T) {
			control, js := startNATS(t)
			url := control.ClientURL()
			a := mustStart(t, Config{NATS: url, ID: "a"})
			first := newControlClient(t, url, shardtest.SmallJob("before", 2, 2), "j-a")
			run := first.join().RunID
			must(t, js.DeleteStream(t.Context(), "KV_"+bucket))

			newControlClient(t, url, shardtest.SmallJob("after", 1, 1), "j-b").hear("the start of a new job", isStarted)
			second := newControlClient(t, url, shardtest.SmallJob("before", 2, 2), "j-c")
			if again := second.join(); again.RunID != run {
				t.Errorf("the second trainer was given run %d, want that of before, %d", again.RunID, run)
			}
			second.hear("the start of the job of before", isStarted)
			eventually(t, "the bucket is there", func() bool {
				_, err := js.Stream(t.Context(), "KV_"+bucket)
				return err == nil
			})
			servers, jobs := buckets(t, url, leaseTime)
			eventually(t, "the ps is announced and both jobs are written down", func() bool {
				return slices.Equal(announced(t, servers), []string{"a"}) &&
					slices.Equal(running(t, jobs), []string{"after", "before"})
			})
			eventually(t, "the ps is ready", func() bool { return registryCheck(a).OK })
		})
	}
}

// Jobs are written down again though nobody joins: a name that another ps finds free would be another job.
func TestLostJobsAreWrittenAgain(t *testing.T) {
	control, js := startNATS(t)
	url := control.ClientURL()
	a, b := mustStart(t, Config{NATS: url, ID: "a"}), mustStart(t, Config{NATS: url, ID: "b"})
	c := newControlClient(t, url, shardtest.SmallJob("kept", 2, 2), "j-a")
	run := c.join().RunID
	whoCoordinates(t, a, b)
	must(t, js.DeleteStream(t.Context(), "KV_"+schema.JobsBucket))
	eventually(t, "the job is written down again", func() bool {
		m, err := js.Stream(t.Context(), "KV_"+schema.JobsBucket)
		if err != nil {
			return false
		}
		_, err = m.GetLastMsgForSubject(t.Context(), "$KV."+schema.JobsBucket+".kept")
		return err == nil
	})
	if again := newControlClient(t, url, shardtest.SmallJob("kept", 2, 2), "j-b").join(); again.RunID != run {
		t.Errorf("run %d, want that of before, %d", again.RunID, run)
	}
}

// A bucket that cannot be made anew is told of, and what is asked meanwhile is asked in vain but now and then: joins
// cost next to nothing. When it can be made again everything is as it was.
func TestLostBucketThatStaysLost(t *testing.T) {
	control, js := startNATS(t)
	url := control.ClientURL()
	log := &testkit.Text{}
	a, err := Start(context.Background(), Config{NATS: url, ID: "a", Deadline: unhurried},
		Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	must(t, err)
	t.Cleanup(a.Close)
	must(t, js.DeleteStream(t.Context(), "KV_"+schema.JobsBucket))
	_, err = js.CreateStream(context.Background(), jetstream.StreamConfig{Name: "squatter",
		Subjects: []string{"$KV." + schema.JobsBucket + ".>"}, Storage: jetstream.MemoryStorage})
	must(t, err)
	eventually(t, "the ps says which it is", func() bool {
		c := registryCheck(a)
		return !c.OK && strings.Contains(c.Text, "no job can be registered") && strings.Contains(c.Text, schema.JobsBucket)
	})
	before := messagesIn(t, control)
	const joins = 5
	c := newControlClient(t, url, shardtest.SmallJob("early", 1, 1), "j-a")
	for n := range joins {
		c.say(c.name, 0, schema.Control{Join: &schema.Join{Job: c.job, Host: "test"}})
		eventually(t, "the join was tried", func() bool { return strings.Count(log.String(), "job not registered yet") > n })
	}
	if n := messagesIn(t, control) - before; n > 400*joins {
		t.Errorf("%d messages for %d joins", n, joins)
	}
	must(t, js.DeleteStream(t.Context(), "squatter"))
	c.hear("the start", isStarted)
	eventually(t, "the ps is ready", func() bool { return registryCheck(a).OK })
}

func messagesIn(t testing.TB, s *server.Server) int64 {
	t.Helper()
	v, err := s.Varz(nil)
	must(t, err)
	return v.InMsgs
}

// A ps whose lease is gone has others write their jobs down before it takes a name for free: whoever was faster has
// made the bucket anew, and the control server may have lost everything.
func TestRegistrySettlesWhereItsLeaseIsGone(t *testing.T) {
	control := startControl(t, fabric.ServerConfig{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var all []*registry
	for i, id := range []string{"a", "b"} {
		c, err := fabric.DialControl(ctx, fabric.Config{URL: control.URL(), Name: "ps/" + id})
		must(t, err)
		t.Cleanup(c.Close)
		r := newRegistry(c, leaseRecord{ID: id, Incarnation: uint64(i + 1), Shards: 1}, time.Hour,
			func() int64 { return 0 }, func(schema.JobName) schema.RunID { return 0 }, slog.New(slog.DiscardHandler))
		must(t, r.open(ctx))
		must(t, r.renew(ctx))
		if !r.remade.IsZero() {
			t.Fatal("a registry that nobody has lost is remade")
		}
		all = append(all, r)
	}
	control.Stop()
	must(t, control.Start())
	for _, r := range all {
		eventually(t, "it is announced again", func() bool { return r.renew(ctx) == nil })
		soon, done := context.WithTimeout(ctx, time.Millisecond)
		if err := r.settle(soon); !errors.Is(err, fabric.ErrLost) {
			t.Errorf("ps %s takes names at once: %v", r.self.ID, err)
		}
		done()
	}
}
