package status_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"gradbus/ps/ops/status"
	"gradbus/ps/ops/status/statustest"
	"gradbus/schema"
)

// withReplica plays a cluster of one trainer. change may change what its ps says each second.
func withReplica(shards, seconds int, change func(*statustest.Cluster, *schema.ServerReport)) status.Update {
	c := statustest.NewCluster(statustest.Options{Trainers: 1, Shards: shards})
	tracker := c.NewTracker()
	var u status.Update
	for range seconds {
		for _, h := range c.Second() {
			if h.Telemetry.Server != nil {
				change(c, h.Telemetry.Server)
			}
			tracker.Take(c.Now, h.Job, h.From, h.Telemetry)
		}
		u = tracker.Tick(c.Now)
	}
	return u
}

// A version is late after a minute, and where telling takes long, after three times that.
func TestLateReplica(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		took schema.Real
		late int64
		want bool
	}{
		"a minute":              {0.01, 59_000, false},
		"more than that":        {0.01, 61_000, true},
		"telling takes 40 s":    {40, 119_000, false},
		"and it is later still": {40, 121_000, true},
	} {
		u := withReplica(1, 60, func(_ *statustest.Cluster, p *schema.ServerReport) {
			p.Jobs[0].Replica = &schema.ReplicaReport{Server: "b", Ready: true, Version: 7, TookSeconds: c.took,
				LateMS: c.late}
		})
		if got := slices.Contains(codesOf(&u.Status), status.CodeNoReplica); got != c.want {
			t.Errorf("%s: a problem %v, want %v: %+v", name, got, c.want, u.Status.Problems)
		}
	}
}

// What a ps says of the one for which it holds replicas is shown, and once it is silent that is in reach no more.
func TestPrimaryIsShown(t *testing.T) {
	t.Parallel()
	said := &schema.PrimaryReport{URL: "nats://b:4222", Reached: true, SilentMS: 200, Jobs: []schema.HeldReport{
		{Job: "digits", RunID: 7, Version: 12},
		{Job: "large", RunID: 8, Of: []string{"c"}, Failure: "too large"}}}
	c := statustest.NewCluster(statustest.Options{Trainers: 1, Shards: 1})
	c.NoJob, c.Servers[0].Primary = true, said
	tracker := c.NewTracker()
	s := c.Play(tracker, 5).Status
	b := s.Servers[0].Primary
	if b == nil || b.URL != said.URL || !b.Reached || b.SilentMS != 200 || len(b.Jobs) != 2 ||
		!reflect.DeepEqual(b.Jobs, said.Jobs) || len(s.Jobs)+len(s.Problems) != 0 {
		t.Errorf("%+v of %+v", b, s)
	}
	c.Servers[0].Stopped = true
	if b = c.Play(tracker, 10).Status.Servers[0].Primary; b == nil || b.Reached {
		t.Errorf("of a ps that is silent: %+v", b)
	}
}

// A ps that cannot hold replicas as it was told to is a problem after half a minute, whether it was ever able to or
// not.
func TestPrimaryUnreachedIsAProblem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said    schema.PrimaryReport
		seconds int
		want    bool
	}{
		"in reach":                        {schema.PrimaryReport{Reached: true, SilentMS: 200}, 40, false},
		"never in reach, for a while":     {schema.PrimaryReport{}, 25, false},
		"never in reach":                  {schema.PrimaryReport{}, 40, true},
		"out of reach":                    {schema.PrimaryReport{SilentMS: 90_000}, 40, true},
		"refused":                         {schema.PrimaryReport{Reached: true, Refused: "ps c on box does"}, 40, true},
		"several, of which jobs say that": {schema.PrimaryReport{Peers: true}, 40, false},
	} {
		u := withReplica(1, c.seconds, func(_ *statustest.Cluster, p *schema.ServerReport) {
			c.said.URL = "nats://b:4222"
			p.Primary = &c.said
		})
		if got := slices.Contains(codesOf(&u.Status), status.CodePrimaryUnreached); got != c.want {
			t.Errorf("%s: a problem %v, want %v: %+v", name, got, c.want, u.Status.Problems)
		}
	}
}

// A job whose ps is lost, and that may continue only with more than half of its trainers, names those that are missing.
func TestMajorityMissing(t *testing.T) {
	t.Parallel()
	u := withReplica(1, 5, func(_ *statustest.Cluster, p *schema.ServerReport) {
		p.Primary = &schema.PrimaryReport{URL: "nats://b:4222", Jobs: []schema.HeldReport{{Job: "films", Version: 7,
			Lost: "it is silent", Missing: []schema.Member{"t1", "t2"}}}}
	})
	i := slices.IndexFunc(u.Status.Problems, func(p status.Problem) bool { return p.Code == "majority-missing" })
	if i < 0 || u.Status.Problems[i].Job != "films" ||
		!strings.Contains(u.Status.Problems[i].Text, "more than half of its trainers; not joined: t1 and t2") {
		t.Errorf("problems %+v", u.Status.Problems)
	}
	if got := u.Status.Servers[0].Primary.Jobs[0].Missing; !slices.Equal(got, []schema.Member{"t1", "t2"}) {
		t.Errorf("shown are %q", got)
	}
}
