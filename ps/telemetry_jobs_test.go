package ps

import (
	"strings"
	"testing"
	"time"

	"gradbus/ps/coordinator"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// A job of two from its first join until one is lost, as its coordinator tells it, on a clock of the test's own.
func TestCoordinatorReport(t *testing.T) {
	at := time.UnixMilli(1700000000000)
	job := shardtest.SmallJob("told", 2, 4)
	c := coordinator.New(coordinator.Config{Job: job, RunID: 7, Generation: 1, Deadline: 10 * time.Second,
		ShardServers: []coordinator.ShardServer{{Member: "p-a", Server: schema.DataServer{ID: "a", Shards: []int{0}}},
			{Member: "p-b", Server: schema.DataServer{ID: "b", Shards: []int{1}}}}})
	c.Assign(at)
	c.Tick(at)
	c.Join(at, "j-1", &schema.Join{Job: job, Host: "one"})
	after := func(d time.Duration) time.Time { return at.Add(d) }
	p := c.Telemetry(after(400 * time.Millisecond))
	if p.Phase != schema.PhaseGathering || p.StartedMS != 0 || p.Name != "told" || p.Workload != job.Workload ||
		job.Workload == "" || p.RunID != 7 || p.Shards != 2 || p.Trainers != 2 || len(p.Keepers) != 2 || p.Keepers[1] != "b" {
		t.Errorf("gathering: %+v", p)
	}
	if m := p.Members[0]; m != (schema.MemberReport{Member: "t0", Host: "one", SilentMS: 400}) {
		t.Errorf("who has joined: %+v", m)
	}
	if m := p.Members[1]; m != (schema.MemberReport{Member: "t1"}) {
		t.Errorf("a free place: %+v", m)
	}

	c.Join(after(time.Second), "j-2", &schema.Join{Job: job, Host: "two"})
	for _, server := range []schema.Member{"p-a", "p-b"} {
		c.Report(after(time.Second), server, &schema.Report{Serial: 1, Ready: true})
	}
	both := []string{"told/t0", "told/t1"}
	c.Connections(both)
	c.Heartbeat(after(2*time.Second), "t0", &schema.Head{Generation: 1, Batch: 17})
	c.Heartbeat(after(2*time.Second), "t1", &schema.Head{Generation: 1, Batch: 17})
	c.Tick(after(2 * time.Second))
	if p = c.Telemetry(after(2 * time.Second)); p.Phase != schema.PhaseRunning || p.StartedMS != at.UnixMilli()+1000 ||
		p.Batch != 17 || p.Members[1].Waited {
		t.Errorf("running: %+v", p)
	}

	// Both shards wait for t1; the earliest round of all for it alone.
	c.Report(after(3*time.Second), "p-a",
		&schema.Report{Serial: 1, Ready: true,
			Waiting: []schema.Waiting{{Batch: 18, Bucket: 1, Members: []schema.Member{"t0", "t1"},
				First: []schema.Member{"t0"}}}})
	c.Report(after(3*time.Second), "p-b", &schema.Report{Serial: 1, Ready: true,
		Waiting: []schema.Waiting{{Batch: 17, Members: []schema.Member{"t1"}, First: []schema.Member{"t1"}}}})
	c.Heartbeat(after(3*time.Second), "t0", &schema.Head{Generation: 1, Batch: 18})
	c.Connections(both[:1])
	c.Tick(after(3 * time.Second))
	p = c.Telemetry(after(4500 * time.Millisecond))
	if m := p.Members[1]; m != (schema.MemberReport{Member: "t1", Host: "two", Batch: 17, SilentMS: 2500, Gone: true,
		Waited: true, First: true, WaitedBatch: 17, WaitedMS: 1500}) {
		t.Errorf("who is waited for: %+v", m)
	}
	if m := p.Members[0]; m != (schema.MemberReport{Member: "t0", Host: "one", Batch: 18, SilentMS: 1500, Waited: true,
		WaitedBatch: 18, WaitedMS: 1500}) {
		t.Errorf("who is waited for later: %+v", m)
	}

	for s := 4 * time.Second; !c.State().IsOver() && s < time.Minute; s += time.Second {
		c.Report(after(s), "p-a", &schema.Report{Serial: 1, Ready: true})
		c.Report(after(s), "p-b", &schema.Report{Serial: 1, Ready: true})
		c.Heartbeat(after(s), "t0", &schema.Head{Generation: 1, Batch: 18})
		c.Tick(after(s))
	}
	if p = c.Telemetry(after(time.Minute)); p.Phase != schema.PhaseEnded || p.Failed == nil || p.Failed.Member != "t1" {
		t.Errorf("ended: %+v", p)
	}
}

// However much a trainer says of why it ended, and its machine's name, the ps can still tell of itself.
func TestLongReasonsFitAReport(t *testing.T) {
	at := time.UnixMilli(1700000000000)
	long := strings.Repeat("x", schema.TextBytesMax)
	job := shardtest.SmallJob("told", 2, 4)
	c := coordinator.New(coordinator.Config{Job: job, RunID: 7, Generation: 1, Deadline: 10 * time.Second,
		ShardServers: []coordinator.ShardServer{{Member: "p-a", Server: schema.DataServer{ID: "a", Shards: []int{0}}}}})
	c.Assign(at)
	c.Tick(at)
	c.Join(at, "j-1", &schema.Join{Job: job, Host: long})
	c.Join(at, "j-2", &schema.Join{Job: job, Host: "two"})
	c.Report(at, "p-a", &schema.Report{Serial: 1, Ready: true})
	c.Tick(at)
	c.Leave(at, "t0", 1, &schema.Leave{Reason: long})
	p := c.Telemetry(at)
	if p.Failed == nil || p.Failed.Member != "t0" {
		t.Fatalf("%+v", p.Failed)
	}
	server := &schema.ServerReport{ID: "a", Jobs: []schema.JobReport{p}}
	if _, err := schema.EncodeTelemetry(&schema.Telemetry{EveryMS: 1000, Server: server}); err != nil {
		t.Error(err)
	}
}

// Where the control loop has not looked for a while, silences have grown; but not those of ended jobs, nor of free
// places.
func TestJobReportsAge(t *testing.T) {
	at := time.UnixMilli(1700000000000)
	p := &jobReports{when: at, jobs: []schema.JobReport{
		{Name: "a", Phase: schema.PhaseRunning, Members: []schema.MemberReport{{Member: "t0", Host: "h", SilentMS: 100},
			{Member: "t1"}}},
		{Name: "b", Phase: schema.PhaseEnded, Members: []schema.MemberReport{{Member: "t0", Host: "h", SilentMS: 100}}},
	}}
	later := p.at(at.Add(2 * time.Second))
	if a, b := later[0].Members, later[1].Members; a[0].SilentMS != 2100 || a[1].SilentMS != 0 || b[0].SilentMS != 100 ||
		p.jobs[0].Members[0].SilentMS != 100 {
		t.Errorf("2 s later: %+v, before: %+v", later, p.jobs)
	}
}

// What ended jobs are told of is bounded, in number and in time, and gives way to a new run of the name.
func TestEndedJobsAreShownForAWhile(t *testing.T) {
	at := time.UnixMilli(1700000000000)
	l := &controlLoop{server: &Server{}, jobs: jobTable{}}
	l.server.reporter = &reporter{wake: make(chan struct{}, 1)}
	ended := func(name string) *job {
		manifest := shardtest.SmallJob(name, 1, 1)
		return &job{manifest: manifest, coordinator: coordinator.New(coordinator.Config{Job: manifest})}
	}
	names := func(now time.Time) (all []schema.JobName) {
		l.report(now)
		for _, j := range l.server.reporter.jobs.Load().jobs {
			all = append(all, j.Name)
		}
		return all
	}
	for i := range endedShownMax + 1 {
		l.shown.add(ended(string(rune('a'+i))), at.Add(time.Duration(i)*time.Second))
	}
	if all := names(at.Add(time.Minute)); len(all) != endedShownMax || all[0] != "b" {
		t.Errorf("of %d ended jobs %v are told", endedShownMax+1, all)
	}
	l.jobs["c"] = ended("c")
	if all := names(at.Add(time.Minute)); len(all) != endedShownMax || all[0] != "c" || all[1] != "b" || all[2] != "d" {
		t.Errorf("with a new run of c: %v", all)
	}
	delete(l.jobs, "c")
	if all := names(at.Add(endedShown + 10*time.Second)); len(all) != endedShownMax-9 {
		t.Errorf("after a while %v are told", all)
	}
}

// What a probe asks of a server: everything is as it must be, until its control server is out of reach, and once it
// ends.
func TestChecks(t *testing.T) {
	t.Parallel()
	a, b := startServer(t, Config{ID: "a", ControlToken: "the-token-of-peers"}), (*Server)(nil)
	b = startServer(t, Config{ID: "b", ControlToken: "the-token-of-peers", NATS: a.URL()})
	wrong := func(s *Server) (all []string) {
		for _, c := range s.Checks() {
			if c.Text == "" {
				t.Errorf("check %s says nothing", c.Name)
			}
			if !c.OK {
				all = append(all, c.Name)
			}
		}
		return all
	}
	if n := len(b.Checks()); n != 4 {
		t.Errorf("%d checks: %+v", n, b.Checks())
	}
	eventually(t, "all is well", func() bool { return len(wrong(b)) == 0 })
	eventually(t, "the control loop iterated a moment ago", func() bool { return time.Since(b.Alive()) < aliveWithin })
	must(t, a.RestartNATS(func() {
		eventually(t, "control is missed", func() bool { all := wrong(b); return len(all) == 1 && all[0] == "control" })
	}))
	eventually(t, "control is back", func() bool { return len(wrong(b)) == 0 })
	b.Close()
	if all := wrong(b); len(all) == 0 || all[len(all)-1] != "server" {
		t.Errorf("after Close: %v", all)
	}
}

// The last report of a ps that is asked to end says so, and how its jobs have ended.
func TestLastReport(t *testing.T) {
	t.Parallel()
	s, l := startWatched(t, Config{Shards: 1})
	m := newMiniTrainer(t, s, shardtest.New(t, shardtest.SmallJob("asked", 1, 1)), "j-a")
	m.join()
	m.start()
	l.own(s, "a job that runs", func(p *schema.ServerReport) bool {
		return p.State == "" && len(p.Jobs) == 1 && p.Jobs[0].Phase == schema.PhaseRunning && p.Jobs[0].End == ""
	})
	s.Drain(t.Context())
	s.Close()
	last := l.of(schema.TelemetryJob, s.member).Server
	if last.State != schema.ServerEnded || len(last.Jobs) != 1 || len(last.Shards) != 0 {
		t.Fatalf("the last report: %+v", last)
	}
	if j := last.Jobs[0]; j.Phase != schema.PhaseEnded || j.End != schema.EndStopped || j.Failed == nil ||
		j.Failed.End != schema.EndStopped || j.Failed.Back || j.EndedMS == 0 {
		t.Errorf("the job that nobody goes on with: %+v, %+v", j, j.Failed)
	}
}

// A run says which runs it goes on from, the latest first.
func TestReportFollows(t *testing.T) {
	job := shardtest.SmallJob("follows", 1, 1)
	config := coordinator.Config{Job: job, RunID: 99, Generation: 1, Deadline: time.Second}
	for id := range schema.RunID(schema.TelemetryFollowsMax + 3) {
		config.Rejoining = append(config.Rejoining, id+1)
	}
	got := coordinator.New(config).Telemetry(time.Now()).Follows
	if len(got) != schema.TelemetryFollowsMax || got[0] != 1 {
		t.Errorf("follows %v, want the first %d", got, schema.TelemetryFollowsMax)
	}
}

// A shard that a job has nothing for is promised what may be under way to it, holds nothing, and its report says why.
func TestIdleShardReport(t *testing.T) {
	t.Parallel()
	job := shardtest.SmallJob("idle", 1, 1)
	for i := range job.Tables {
		job.Tables[i].Placement, job.Tables[i].Pooling = schema.PlacementTables, schema.PoolingSum
	}
	job.Tables, job.ChunkBytes, job.Policy = job.Tables[:1], 256<<10, schema.PolicyRecover
	one, two := MemoryOf(Config{}, job, 1, 1), MemoryOf(Config{}, job, 2, 2)
	if one.Parked == 0 || one.Copies == 0 || two.Parked != one.Parked || two.Copies != one.Copies {
		t.Errorf("with an idle shard more %+v, want no more lookups and copies than %+v", two, one)
	}
	s, l := startWatched(t, Config{Shards: 2})
	m := newMiniTrainer(t, s, shardtest.New(t, job), "j-a")
	m.join()
	p := l.own(s, "both shards", func(p *schema.ServerReport) bool { return len(p.Shards) == 2 && p.Shards[0].Ready })
	busy, idle := &p.Shards[0], &p.Shards[1]
	table := int64(job.Tables[0].Rows) * int64(job.Tables[0].Dim) * valueBytes
	if busy.Idle != "" || busy.HeldBytes < table || busy.MemoryBytes < busy.HeldBytes {
		t.Errorf("the shard that has all: %+v, want at least %d bytes", busy, table)
	}
	if !strings.Contains(idle.Idle, "is whole on s0") || idle.HeldBytes != 0 || idle.MemoryBytes >= busy.MemoryBytes {
		t.Errorf("the shard that has nothing: %+v", idle)
	}
	if sum := busy.MemoryBytes + idle.MemoryBytes; sum > p.Memory.PromisedBytes {
		t.Errorf("shards are promised %d bytes, all jobs %d", sum, p.Memory.PromisedBytes)
	}
}
