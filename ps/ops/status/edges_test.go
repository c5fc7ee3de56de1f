package status_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/ps/ops/status/statustest"
	"gradbus/schema"
)

// altered plays seconds in which something is changed in what is said.
func altered(c *statustest.Cluster, t *status.Tracker, seconds int, change func(*schema.Telemetry)) (u status.Update) {
	for range seconds {
		for _, h := range c.Second() {
			change(h.Telemetry)
			t.Take(c.Now, h.Job, h.From, h.Telemetry)
		}
		u = t.Tick(c.Now)
	}
	return u
}

func has(u *status.Update, code string) bool { return slices.Contains(codesOf(&u.Status), code) }

// A report that comes twice, and one of a life that is over, are no sign of life.
func TestOldReports(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{})
	tracker := c.NewTracker()
	c.Play(tracker, 5)
	var last statustest.Heard
	for _, last = range c.Second() {
		tracker.Take(c.Now, last.Job, last.From, last.Telemetry)
	}
	tracker.Tick(c.Now)
	late := c.Now.Add(2 * time.Second)
	tracker.Take(late, last.Job, last.From, last.Telemetry)
	before := *last.Telemetry
	before.StartedMS, before.PID, before.Serial = before.StartedMS-1, 7, 1000
	tracker.Take(late, last.Job, last.From, &before)
	u := tracker.Tick(late)
	if tr := u.Status.Jobs[0].Trainers[1]; tr.PID == 7 || tr.AgeMS < 1500 {
		t.Errorf("%d ms old, of pid %d", tr.AgeMS, tr.PID)
	}
	after := *last.Telemetry
	after.StartedMS, after.PID, after.Serial = after.StartedMS+1, 8, 1
	tracker.Take(late, last.Job, last.From, &after)
	if tr := tracker.Tick(late).Status.Jobs[0].Trainers[1]; tr.PID != 8 || tr.AgeMS != 0 {
		t.Errorf("%d ms old, of pid %d after it was started again", tr.AgeMS, tr.PID)
	}
}

// A ps that is not heard of is shown for ten minutes.
func TestServersAreForgotten(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Servers: 2})
	c.NoJob = true
	tracker := c.NewTracker()
	c.Play(tracker, 5)
	c.Servers[1].Stopped = true
	for _, step := range []struct{ seconds, servers int }{{595, 2}, {10, 1}} {
		if u := c.Play(tracker, step.seconds); len(u.Status.Servers) != step.servers {
			t.Errorf("%d ps, want %d", len(u.Status.Servers), step.servers)
		}
	}
}

// Two replicas are enough to differ.
func TestTwoReplicasDiffer(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Apply: "mean"})
	tracker := c.NewTracker()
	if u := c.Play(tracker, 5); u.Status.Jobs[0].Replicas == nil || !u.Status.Jobs[0].Replicas.Equal {
		t.Errorf("%+v", u.Status.Jobs[0].Replicas)
	}
	c.Digests = map[string]uint32{"t1": 7}
	if u := c.Play(tracker, 5); u.Status.Jobs[0].Replicas.Equal || !has(&u, status.CodeReplicas) {
		t.Errorf("%+v, problems %q", u.Status.Jobs[0].Replicas, codesOf(&u.Status))
	}
}

// Who has gone beyond what was planned has nothing left to do.
func TestNothingIsLeft(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{})
	tracker := c.NewTracker()
	if u := c.Play(tracker, 20); u.Status.Jobs[0].LeftMS < 60_000 {
		t.Errorf("%d ms left", u.Status.Jobs[0].LeftMS)
	}
	u := altered(c, tracker, 5, func(p *schema.Telemetry) {
		if p.Trainer != nil {
			p.Trainer.Planned = p.Trainer.Batch - 3
		}
	})
	if left := u.Status.Jobs[0].LeftMS; left != 0 {
		t.Errorf("%d ms left", left)
	}
}

// A trainer holds others up after a third of the deadline; one that has left, after a second.
func TestWhoHoldsOthersUp(t *testing.T) {
	for _, c := range []struct {
		batch  float64 // seconds that trainers compute for one
		left   bool
		waited int64
		code   string
		want   bool
	}{
		{0.1, false, 9900, status.CodeHeldUp, false}, {0.1, false, 10_100, status.CodeHeldUp, true},
		{0.1, true, 900, status.CodeLeftEarly, false}, {0.1, true, 1000, status.CodeLeftEarly, true},
	} {
		cluster := statustest.NewCluster(statustest.Options{BatchSeconds: c.batch})
		tracker := cluster.NewTracker()
		cluster.Play(tracker, 20)
		u := altered(cluster, tracker, 1, func(p *schema.Telemetry) {
			if p.Server != nil {
				m := &p.Server.Jobs[0].Members[1]
				m.Waited, m.First, m.WaitedMS, m.Left = true, true, c.waited, c.left
			}
		})
		if got := has(&u, c.code); got != c.want {
			t.Errorf("batches of %v s, left %v, waited for %d ms: %q", c.batch, c.left, c.waited, codesOf(&u.Status))
		}
	}
}

// A shard that is not ready is a problem once all trainers are there; before, they are what is missing.
func TestShardsNotReady(t *testing.T) {
	for _, away := range []bool{false, true} {
		c := statustest.NewCluster(statustest.Options{})
		c.Phase, c.Servers[0].NotReady, c.Trainers[1].Away = schema.PhaseGathering, true, away
		if u := c.Play(c.NewTracker(), 8); has(&u, status.CodeShardUnready) == away {
			t.Errorf("a trainer away %v: %q", away, codesOf(&u.Status))
		}
	}
}

// Disks are full, or nearly, by bytes, where these are a small share: a hundredth of a large one is much, and a small
// one may be nearly empty.
func TestDisks(t *testing.T) {
	for _, c := range []struct {
		free, total int64
		code        string
	}{
		{300 << 30, 500 << 30, ""}, {9 << 20, 1 << 30, status.CodeDiskFull}, {60 << 20, 1 << 30, status.CodeDiskFull},
		{70 << 20, 1 << 30, status.CodeDiskLow},
		{200 << 20, 1 << 30, ""}, {1<<30 - 1, 1 << 40, status.CodeDiskLow}, {1 << 30, 1 << 40, ""}, {60 << 20, 64 << 20, ""},
		{6 << 20, 64 << 20, status.CodeDiskFull}, {0, 0, ""},
	} {
		cluster := statustest.NewCluster(statustest.Options{})
		cluster.Servers[0].Disk = schema.DiskReport{Path: "/data", FreeBytes: c.free, TotalBytes: c.total}
		u := cluster.Play(cluster.NewTracker(), 3)
		if got := codesOf(&u.Status); c.code == "" && len(got) > 0 || c.code != "" && !slices.Equal(got, []string{c.code}) {
			t.Errorf("%d of %d bytes free: %q, want %q", c.free, c.total, got, c.code)
		}
	}
}

// What a member that is silent said of a GPU does not outweigh who still speaks of it.
func TestOldWordsOfAGPU(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{})
	tracker := c.NewTracker()
	gpu := statustest.GPU("box-0", 0)
	c.Servers[0].GPUs = []schema.GPUReport{gpu}
	gpu.State = schema.GPUDegraded
	c.Trainers[1].GPUs = []schema.GPUReport{gpu}
	if u := c.Play(tracker, 5); u.Status.GPUs[0].State != schema.GPUDegraded {
		t.Errorf("%+v", u.Status.GPUs[0])
	}
	c.Trainers[1].Stopped = true
	if u := c.Play(tracker, 5); u.Status.GPUs[0].State != schema.GPUHealthy || u.Status.GPUs[0].Server != "p-box-4222" {
		t.Errorf("%+v", u.Status.GPUs[0])
	}
}

// A wrong bit that was asked for is marked wherever it is told of, as faults of GPUs are; one that was not is not.
func TestInjectedMismatch(t *testing.T) {
	for _, injected := range []bool{true, false} {
		for _, of := range []string{"a ps", "a trainer"} {
			c := statustest.NewCluster(statustest.Options{})
			tracker := c.NewTracker()
			c.Play(tracker, 5)
			v := schema.VerifyReport{OneIn: 1, Blocks: 40, Mismatches: 1, Injected: injected}
			u := altered(c, tracker, 5, func(p *schema.Telemetry) {
				switch {
				case of == "a ps" && p.Server != nil:
					p.Server.Verification = v
				case of == "a trainer" && p.Trainer != nil:
					p.Trainer.Verification = v
				}
			})
			if why := u.Status.Why; why.Code != status.CodeVerification || u.Status.Injected != injected ||
				strings.Contains(why.Text, " (injected) than when computed again") != injected {
				t.Errorf("%s, injected %v: marked %v, %+v", of, injected, u.Status.Injected, why)
			}
		}
	}
}
