package trainer

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gradbus/checkpoint"
	"gradbus/fabric"
	"gradbus/internal/testkit"
	"gradbus/ps"
	"gradbus/schema"
)

// One of several ps that stand by for each other is killed, or the one that coordinates, or one after the other: the
// job goes on with the weights of one in which nothing has happened, and nothing is on any disk. Where one does not
// stand by the job goes on from its newest durable version.
func TestPeersGoOnWithTheJob(t *testing.T) {
	testkit.Beside(t)
	for _, c := range []struct {
		name   string
		shards []int
		kills  []int // how many jobs the ps coordinates that is killed
		at     []uint64
		alone  bool // one does not stand by
	}{
		{"one of three", []int{2, 1, 1}, []int{0}, []uint64{400}, false},
		{"one of two", []int{1, 2}, []int{0}, []uint64{400}, false},
		{"the one that coordinates", []int{1, 1, 2}, []int{1}, []uint64{400}, false},
		{"two, one after the other", []int{1, 1, 1, 1}, []int{0, 0}, []uint64{400, 800}, false},
		{"one that nobody stands by for", []int{1, 1, 1}, []int{0}, []uint64{600}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			testkit.Waits(t, func(t *testing.T) { goOnAmongPeers(t, c.shards, c.kills, c.at, c.alone) })
		})
	}
}

func goOnAmongPeers(t *testing.T, shards, kills []int, at []uint64, alone bool) {
	const batches, trainers, lanes = 1000, 3, 5
	control := startControl(t, fabric.ServerConfig{Bus: bus})
	config := ps.Config{NATS: control.URL(), Deadline: shortDeadline}
	if alone {
		config.Checkpoints = checkpoint.Policy{Dir: t.TempDir(), Every: time.Second, Keep: 100}
	}
	var servers []*ps.Server
	var hosts []*fabric.Bus
	for i, n := range shards {
		config.ID, config.Shards, config.Replicas = fmt.Sprint("ps-", i), n, 1
		if alone && i == 0 {
			config.Replicas = 0
		}
		hosts = append(hosts, bus.Host())
		servers = append(servers, startOn(t, hosts[i], config))
	}
	job := toyJob("among-peers", trainers, lanes, schema.ApplyUpdate)
	job.Policy = schema.PolicyRecover
	want, _ := toyOutcome(t, lanes, batches)
	var next atomic.Int32
	var all sync.WaitGroup
	out := make([]outlivedPeers, trainers)
	killed := func(b uint64) {
		n := next.Load()
		if int(n) == len(kills) || b < at[n] || !next.CompareAndSwap(n, n+1) {
			return
		}
		i := slices.IndexFunc(servers, func(s *ps.Server) bool {
			stats := s.Stats()
			return stats.Memory > 0 && len(stats.Jobs) == kills[n]
		})
		hosts[i].Kill()
		all.Go(func() { _ = servers[i].RestartNATS(servers[i].Close) }) // which cannot be heard, nor started again
	}
	for i := range out {
		all.Go(func() { out[i] = outliveAmongPeers(t, controlConfig(t, control.URL()), job, batches, killed) })
	}
	all.Wait()
	for i, o := range out {
		switch last, resumed := at[len(at)-1], uint64(o.resumed); {
		case o.err != nil:
			t.Errorf("trainer %d: %v", i, o.err)
		case o.digest != want:
			t.Errorf("trainer %d: weights %x, want %x", i, o.digest[:8], want[:8])
		case alone && !wasDurable(config.Checkpoints.Dir, job.Name, o.resumed):
			t.Errorf("trainer %d has begun anew with version %d, which was not durable", i, resumed)
		case resumed == 0 || resumed > last+100 || resumed < last/2 && !alone: // how far behind depends on the machine
			t.Errorf("trainer %d has begun anew with version %d, and a ps was killed at %d", i, resumed, last)
		}
	}
}

// wasDurable reports whether a version is among those that were kept.
func wasDurable(dir string, name schema.JobName, v schema.Version) bool {
	all, _ := checkpoint.List(dir, name)
	return slices.ContainsFunc(all, func(f checkpoint.Found) bool { return f.Manifest != nil && f.ID.Version == v })
}

type outlivedPeers struct {
	digest  [32]byte
	resumed schema.Version
	err     error
}

// outliveAmongPeers trains to the end of a job.
func outliveAmongPeers(t *testing.T, config Config, job *schema.Job, batches uint64,
	progress func(uint64)) (o outlivedPeers) {
	config.ReconnectTimeout = 2 * time.Second
	session, err := Join(testContext(t), config, job)
	if err != nil {
		o.err = err
		return o
	}
	left := batches - min(batches, uint64(session.Version()))
	o.err = session.Run(testContext(t), newToy(t, job), left, func(p Progress) {
		time.Sleep(10 * time.Millisecond)
		progress(uint64(p.Version))
	})
	if o.err == nil {
		o.digest, o.err = session.Digest(testContext(t))
		o.resumed = session.joined.Resumed
	}
	_ = session.Abort(o.err)
	return o
}
