package trainer

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/internal/client"
	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

// startPair is a server, and one that holds replicas for it.
func startPair(t *testing.T, shards, replicaShards int, memory int64) (server, replica *ps.Server) {
	server = startServerWith(t, ps.Config{Shards: shards, ID: "a"})
	return server, startServerWith(t, ps.Config{Shards: replicaShards, ID: "b", Replicas: 1, Peer: server.URL(),
		MemoryBytesMax: memory})
}

// outlived is what a trainer has seen that has come to its end.
type outlived struct {
	digest  [32]byte
	server  string
	resumed schema.Version
	err     error
}

// outlive trains to the end of a job, wherever that is, and calls end once somebody holds the replica and a batch or
// two more are complete.
func outlive(t *testing.T, config Config, job *schema.Job, batches uint64, end func()) (o outlived) {
	session, err := Join(testContext(t), config, job)
	if err != nil {
		o.err = err
		return o
	}
	at, left := uint64(0), batches-min(batches, uint64(session.Version()))
	o.err = session.Run(testContext(t), newToy(t, job), left, func(p Progress) {
		time.Sleep(10 * time.Millisecond)
		if end == nil || session.joined.Resumed > 0 {
			return
		}
		if at == 0 && session.replicaAt() != "" {
			at = uint64(p.Version) + 2
		}
		switch uint64(p.Version) {
		case at:
			end()
		case batches - 1:
			if at == 0 {
				t.Error("no ps held a replica until the end")
			}
		}
	})
	if o.err == nil {
		o.digest, o.err = session.Digest(testContext(t))
		o.server, o.resumed = session.config.Server, session.joined.Resumed
	}
	o.err = errors.Join(o.err, session.Abort(o.err))
	return o
}

// Who comes to a ps with replicas is sent on to where the job is.
func TestNewcomersAreSentOn(t *testing.T) {
	testkit.Waits(t, func(t *testing.T) {
		server, replica := startPair(t, 1, 1, 0)
		job := toyJob("sent-on", 2, 2, schema.ApplyUpdate)
		job.Policy = schema.PolicyRecover
		var all sync.WaitGroup
		var out [2]outlived
		for i, at := range []*ps.Server{server, replica} {
			if i > 0 { // once the job is there, and the other ps knows
				time.Sleep(2 * time.Second)
			}
			all.Go(func() { out[i] = outlive(t, testConfig(t, at), job, 5, nil) })
		}
		all.Wait()
		for i, o := range out {
			if o.err != nil || o.server != server.URL() {
				t.Errorf("trainer %d ended at %s (%v): want %s", i, o.server, o.err, server.URL())
			}
		}
	})
}

// Without memory for a job no ps holds replicas for it, and it trains as ever.
func TestReplicaWithoutRoom(t *testing.T) {
	testkit.Waits(t, func(t *testing.T) {
		server, _ := startPair(t, 1, 1, 1<<20)
		job := toyJob("no-room", 1, 2, schema.ApplyUpdate)
		job.Policy = schema.PolicyRecover
		session, err := Join(testContext(t), testConfig(t, server), job)
		if err != nil {
			t.Fatal(err)
		}
		err = session.Run(testContext(t), newToy(t, job), 150, func(Progress) { time.Sleep(20 * time.Millisecond) })
		if at := session.replicaAt(); err != nil || at != "" {
			t.Errorf("%v, and %q holds the replica", err, at)
		}
		if err := session.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A job whose ps is out of reach and whose trainers are gone waits: a new trainer has no vote. An operator lets it
// continue with its replica.
func TestOperatorContinuesAJob(t *testing.T) {
	testkit.Waits(t, func(t *testing.T) {
		const batches, lanes = 150, 3
		server, replica := startPair(t, 1, 1, 0)
		job := toyJob("taken-over", 1, lanes, schema.ApplyUpdate)
		job.Policy = schema.PolicyRecover
		want, _ := toyOutcome(t, lanes, batches)
		ctx, die := context.WithCancel(testContext(t))
		short := testConfig(t, server)
		short.ReconnectTimeout, short.LeaveWithin = time.Second, time.Second
		session, err := Join(testContext(t), short, job)
		if err != nil {
			t.Fatal(err)
		}
		at := uint64(0)
		err = session.Run(ctx, newToy(t, job), batches, func(p Progress) {
			time.Sleep(10 * time.Millisecond)
			if at == 0 && session.replicaAt() != "" {
				at = uint64(p.Version) + 2
			}
			if at == uint64(p.Version) {
				_ = server.RestartNATS(server.Close) // which cannot be heard, nor started again
				die()
			}
		})
		_ = session.Abort(err)
		config := testConfig(t, replica)
		operator := operatorOf(config)
		if err := operator.Takeover(testContext(t), "another"); !errors.Is(err, client.ErrRefused) {
			t.Errorf("of a job that is not there: %v", err)
		}
		var decided atomic.Bool
		var all sync.WaitGroup
		all.Go(func() {
			time.Sleep(10 * time.Second)
			decided.Store(true)
			if err := operator.Takeover(testContext(t), job.Name); err != nil {
				t.Error(err)
			}
		})
		o := outlive(t, config, job, batches, nil)
		all.Wait()
		if o.err != nil || o.resumed == 0 || o.digest != want || !decided.Load() {
			t.Errorf("the job continues with version %d, decided %v: %v, weights %x, want %x", o.resumed, decided.Load(), o.err,
				o.digest[:8], want[:8])
		}
	})
}
