package status_test

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"gradbus/ps/ops/status"
	"gradbus/ps/ops/status/statustest"
	"gradbus/schema"
)

// decoded is a report as it comes out of a frame, in memory of its own.
func decoded(t *testing.T, p *schema.Telemetry) *schema.Telemetry {
	t.Helper()
	report, err := schema.EncodeTelemetry(p)
	if err != nil {
		t.Fatal(err)
	}
	frame, err := schema.EncodeHeartbeat(schema.Head{}, report)
	if err != nil {
		t.Fatal(err)
	}
	v, err := schema.Verify(frame, schema.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if p, err = schema.DecodeTelemetry(&v); err != nil {
		t.Fatal(err)
	}
	return p
}

// heap is what is in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// invented is a ps that nobody has started, and says half a megabyte.
func invented(i int, serial uint64, members []schema.MemberReport) *schema.Telemetry {
	long := strings.Repeat("x", 80)
	p := &schema.Telemetry{Serial: serial, StartedMS: 1, NowMS: 1000, EveryMS: 1000, Host: strings.Repeat("h", 4000),
		PID: 1, Server: &schema.ServerReport{
			ID: fmt.Sprintf("a-%d", i), Version: "6.6.6", URL: strings.Repeat("u", 4000), Page: strings.Repeat("p", 4000),
			Backend:     strings.Repeat("b", 4000),
			ControlLost: true, Reasons: map[string]uint64{},
			Jobs: []schema.JobReport{{Name: schema.JobName(fmt.Sprintf("a-%d", i)), RunID: 7, Phase: schema.PhaseRunning,
				Trainers: 4096}},
			GPUs: []schema.GPUReport{{UUID: fmt.Sprintf("GPU-%d", i), State: schema.GPUUnhealthy, Used: true}},
		}}
	for k := range 250 {
		p.Server.Reasons[fmt.Sprintf("%s_%d", long[:50], k)] = 1
	}
	p.Server.Jobs[0].Members = slices.Clone(members)
	return p
}

// Reports of ps that are in no registry take nothing: no memory, no room on the page, and none of the status. Those that
// are in the registry are shown, also one that comes only then.
func TestInventedServers(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Servers: 3, Trainers: 4})
	listed := []string{"box-0-4222", "box-1-4222"}
	tracker := status.New(status.Config{Server: "box-0-4222", Version: "0.1.0",
		Registered: func() []string { return listed }})
	honest := len(encoded(t, c.Play(tracker, 20).Status))
	template := jobsOf(c.Now, "a", 1, 4096, 0).Server.Jobs[0].Members
	for i := range template {
		template[i].Host = strings.Repeat("x", 80)
	}
	before := heap()
	var u status.Update
	for second := range 12 {
		for i := range 256 {
			p := invented(i, uint64(second+1), template)
			if i%64 == 0 {
				p = decoded(t, p)
			}
			tracker.Take(c.Now, "ps", schema.ServerMember(p.Server.ID), p)
		}
		if second == 6 {
			listed = append(listed, "box-2-4222")
		}
		u = c.Play(tracker, 1)
	}
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("the reports of ps that there are not take %d bytes", grown)
	}
	var ids []string
	for i := range u.Status.Servers {
		ids = append(ids, u.Status.Servers[i].ID)
	}
	if !slices.Equal(ids, []string{"box-0-4222", "box-1-4222", "box-2-4222"}) {
		t.Errorf("shown are %d ps: %q", len(ids), ids[:min(len(ids), 5)])
	}
	if len(u.Status.Jobs) != 1 || len(u.Status.GPUs) != 0 {
		t.Errorf("shown are %d jobs and %d GPUs", len(u.Status.Jobs), len(u.Status.GPUs))
	}
	if n := len(encoded(t, u.Status)); n > honest+16<<10 {
		t.Errorf("the status has %d bytes, and %d without them", n, honest)
	}
	if len(u.Status.Problems) != 0 {
		t.Errorf("problems %+v", u.Status.Problems)
	}
}

// A ps that is in the registry no more is missed, as any that is silent, and shown for ten minutes.
func TestLostServersAreMissed(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Servers: 2, Trainers: 2})
	listed := []string{"box-0-4222", "box-1-4222"}
	tracker := status.New(status.Config{Server: "box-0-4222", Version: "0.1.0",
		Registered: func() []string { return listed }})
	c.Play(tracker, 20)
	c.Servers[1].Stopped, listed = true, listed[:1]
	u := c.Play(tracker, 30)
	if len(u.Status.Servers) != 2 ||
		!slices.ContainsFunc(u.Status.Problems, func(p status.Problem) bool { return p.Member == "p-box-1-4222" }) {
		t.Errorf("%d ps, problems %+v", len(u.Status.Servers), u.Status.Problems)
	}
}

// jobsOf is a report of a ps that coordinates some jobs of some trainers, with some shards.
func jobsOf(now time.Time, id string, jobs, trainers, shards int) *schema.Telemetry {
	p := &schema.Telemetry{Serial: uint64(now.Unix()), StartedMS: 1, NowMS: now.UnixMilli(), EveryMS: 1000,
		Server: &schema.ServerReport{ID: id}}
	for k := range jobs {
		j := schema.JobReport{Name: schema.JobName(fmt.Sprintf("%s-%d", id, k)), RunID: 1, Phase: schema.PhaseRunning,
			Trainers: trainers, Shards: shards}
		for i := range trainers {
			j.Members = append(j.Members, schema.MemberReport{Member: schema.TrainerMember(i), Host: "box"})
		}
		p.Server.Jobs = append(p.Server.Jobs, j)
		for i := range shards {
			p.Server.Shards = append(p.Server.Shards, schema.ShardReport{Job: j.Name, Shard: i})
		}
	}
	return p
}

// Runs that have ended take no room from others, of whichever ps: where there are too many, those that are shown stay.
func TestEndedRunsBeyondTheBound(t *testing.T) {
	const ended = 10
	c := statustest.NewCluster(statustest.Options{})
	tracker := c.NewTracker()
	shown := func() (names []string) {
		for _, j := range tracker.Tick(c.Now).Status.Jobs {
			names = append(names, j.Name)
		}
		slices.Sort(names)
		return names
	}
	report := func() {
		c.Now = c.Now.Add(time.Second)
		tracker.Take(c.Now, "ps", "p-other", jobsOf(c.Now, "other", 4, 1, 0))
		own := jobsOf(c.Now, "box-4222", status.JobsMax-4-ended/2+ended, 1, 0)
		for i := range own.Server.Jobs[len(own.Server.Jobs)-ended:] {
			j := &own.Server.Jobs[len(own.Server.Jobs)-ended+i]
			j.Phase, j.EndedMS = schema.PhaseEnded, c.Now.UnixMilli()
		}
		tracker.Take(c.Now, "ps", "p-box-4222", own)
	}
	report()
	first := shown()
	events := len(tracker.Events(0))
	if n := len(first); n != status.JobsMax {
		t.Errorf("%d runs are shown, want %d", n, status.JobsMax)
	}
	for range 5 {
		report()
		if now := shown(); !slices.Equal(now, first) {
			t.Fatalf("shown are %v, after %v", now, first)
		}
	}
	if n := len(tracker.Events(0)); n != events {
		t.Errorf("%d events, and %d after the first report: ended runs are told of again", n, events)
	}
}

// One report in the name of another ps makes neither memory nor status large, and takes no row from a job of the ps
// that answers.
func TestInventedMembers(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Job: "real", Trainers: 4})
	tracker := c.NewTracker()
	c.Play(tracker, 10)
	before := heap()
	for range 5 {
		tracker.Take(c.Now, "ps", "p-other", jobsOf(c.Now, "other", 20, 2000, 1000))
		c.Play(tracker, 1)
	}
	u := c.Play(tracker, 1)
	if grown := heap() - before; grown > 64<<20 {
		t.Errorf("one report takes %d bytes", grown)
	}
	trainers, shards := 0, 0
	for _, j := range u.Status.Jobs {
		trainers += len(j.Trainers)
		for i := range j.Shards {
			if j.Shards[i].Server == "other" {
				shards++
			}
		}
	}
	if trainers > status.TrainersMax || shards > status.ShardsMax || shards == 0 {
		t.Errorf("%d trainers and %d shards are shown", trainers, shards)
	}
	if n := len(encoded(t, u.Status)); n > 8<<20 {
		t.Errorf("the status has %d bytes", n)
	}
	at := slices.IndexFunc(u.Status.Jobs, func(j status.Job) bool { return j.Name == "real" })
	if at < 0 || len(u.Status.Jobs[at].Trainers) != 4 || len(u.Status.Jobs[at].Shards) == 0 ||
		u.Status.Jobs[at].Shards[0].AgeMS > 2000 {
		t.Errorf("the real job is not shown as it is")
	}
}

// The latest reports of all members are bounded together, as frames.
func TestLargeReports(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Trainers: 100})
	tracker := c.NewTracker()
	u := altered(c, tracker, 3, func(p *schema.Telemetry) { p.FrameBytes = 1 << 20 })
	shown := 0
	for i := range u.Status.Jobs[0].Trainers {
		if u.Status.Jobs[0].Trainers[i].PID != 0 {
			shown++
		}
	}
	if shown != 63 || !has(&u, status.CodeTooMany) { // and the ps
		t.Errorf("%d trainers are shown, problems %q", shown, codesOf(&u.Status))
	}
}
