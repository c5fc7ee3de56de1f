package ps

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/ps/coordinator"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// What is told of a job that another ps holds replicas for, second by second.
func TestReplicaMetrics(t *testing.T) {
	var k coordinator.ReplicaReport
	at := time.UnixMilli(1_700_000_000_000)
	var s replicaStatus
	by := &follower{member: "p-b", host: "box", url: "nats://u:secret@10.0.0.2:4222"}
	gone := ""
	has := func(version schema.Version, failure string) { // what the other ps says
		by.heard.Begin(at)
		if k.Failure, k.Ready = failure, version > 0; version != k.Version {
			k.Version, k.At = version, at
		}
	}
	for _, step := range []struct {
		name string
		do   func()
		want schema.ReplicaReport
	}{
		{"it is told all for the first time", func() { s.batch = 3; has(0, "") }, schema.ReplicaReport{}},
		{"it never has any", func() {}, schema.ReplicaReport{UnreadyMS: 1000}},
		{"it has no room", func() { has(0, "too large") }, schema.ReplicaReport{Failure: "too large", UnreadyMS: 2000}},
		{"and is told anew", func() { has(0, "") }, schema.ReplicaReport{Failure: "too large", UnreadyMS: 3000}},
		{"it has a version, and trainers are at it", func() { has(3, "") }, schema.ReplicaReport{Ready: true, Version: 3}},
		{"trainers are past it", func() { s.batch = 4; has(3, "") }, schema.ReplicaReport{Ready: true, Version: 3}},
		{"still", func() { s.batch = 9; has(3, "") }, schema.ReplicaReport{Ready: true, Version: 3, LateMS: 1000}},
		{"they are past the next one, too", func() { has(8, "") }, schema.ReplicaReport{Ready: true, Version: 8}},
		{"nobody can hold replicas", func() { k.Off = "why"; has(8, "") }, schema.ReplicaReport{Off: "why", Version: 8}},
		{"somebody can", func() { k.Off = ""; has(9, "") }, schema.ReplicaReport{Ready: true, Version: 9}},
		{"it is silent", func() {}, schema.ReplicaReport{Ready: true, Version: 9}},
		{"for too long", func() {}, schema.ReplicaReport{Version: 9}},
		{"and is back", func() { has(9, "") }, schema.ReplicaReport{Ready: true, Version: 9}},
		{"it is gone", func() { by, gone, k = nil, "ps b on box has left", coordinator.ReplicaReport{} },
			schema.ReplicaReport{Failure: "ps b on box has left"}},
		{"still", func() {}, schema.ReplicaReport{Failure: "ps b on box has left", UnreadyMS: 1000}},
		{"another one is told all", func() { by, gone = &follower{member: "p-c", url: "nats://c"}, ""; has(0, "") },
			schema.ReplicaReport{UnreadyMS: 2000}},
		{"and has it", func() { has(12, "") }, schema.ReplicaReport{Ready: true, Version: 12}},
	} {
		at = at.Add(time.Second)
		step.do()
		s.note(at, k, by, gone)
		got := *s.report(at)
		if by != nil && got.Server != by.member.ServerID() || by == nil && got.Server+got.URL != "" ||
			strings.Contains(got.URL, "secret") || (got.ToldMS > 0) != (got.Version > 0) {
			t.Errorf("%s: %+v", step.name, got)
		}
		if got.Server, got.URL, got.ToldMS, got.Kept = "", "", 0, nil; !reflect.DeepEqual(got, step.want) {
			t.Errorf("%s: %+v, want %+v", step.name, got, step.want)
		}
	}
	if p := (&replicaStatus{}).report(at); p != nil {
		t.Errorf("no ps has ever held a replica, and it is told: %+v", p)
	}
	s = replicaStatus{was: true}
	s.note(at, coordinator.ReplicaReport{}, nil, "")
	p := s.report(at.Add(time.Second))
	if p == nil || p.UnreadyMS != 1000 || !strings.Contains(p.Failure, "gone on here") {
		t.Errorf("a job that has gone on here, where no ps has a replica: %+v", p)
	}
}

// trainKept trains a job that somebody may hold replicas for, until stop is called. told waits for what is told of
// that.
func trainKept(t *testing.T, s *Server, l *reportLog) (m *miniTrainer, stop func(),
	told func(what string, ok func(*schema.ReplicaReport) bool) schema.ReplicaReport) {
	job := shardtest.SmallJob("kept", 1, 2)
	job.Policy = schema.PolicyRecover
	m = gather(t, s, shardtest.New(t, job), "j-a")[0]
	return m, m.train(), func(what string, ok func(*schema.ReplicaReport) bool) schema.ReplicaReport {
		t.Helper()
		p := l.own(s, what, func(p *schema.ServerReport) bool {
			return len(p.Jobs) == 1 && p.Jobs[0].Replica != nil && ok(p.Jobs[0].Replica)
		})
		return *p.Jobs[0].Replica
	}
}

// A ps tells which ps has the replica for its job, and that one what it has of it: while it does, when it ends, and
// when another one has no room. A ps that nobody has held replicas for tells nothing of it.
func TestReplicaIsReported(t *testing.T) {
	t.Parallel()
	s, l := startWatched(t, Config{Shards: 2, ID: "a"})
	m, stop, told := trainKept(t, s, l)
	l.own(s, "a job that nobody has held replicas for", func(p *schema.ServerReport) bool {
		return len(p.Jobs) == 1 && p.Jobs[0].Batch > 0 && p.Jobs[0].Replica == nil && p.Primary == nil
	})

	b, lb := startWatched(t, Config{Shards: 1, ID: "b", Replicas: 1, Peer: s.URL()})
	first := told("which ps has the replica", func(p *schema.ReplicaReport) bool { return p.Ready && p.Bytes > 0 })
	if first.Server != "b" || first.URL != b.URL() || first.Version == 0 || first.ToldMS == 0 || first.Bytes == 0 ||
		first.Off+first.Failure != "" || first.UnreadyMS != 0 {
		t.Errorf("%+v", first)
	}
	told("a later version", func(p *schema.ReplicaReport) bool {
		return p.Ready && p.Version > first.Version && p.Bytes > first.Bytes
	})
	held := lb.own(b, "for what it holds replicas", func(p *schema.ServerReport) bool {
		return p.Primary != nil && p.Primary.Reached && len(p.Primary.Jobs) == 1 && p.Primary.Jobs[0].Version > 0
	})
	if h := held.Primary; h.URL != s.URL() || h.Refused != "" || len(held.Jobs) != 0 || h.Jobs[0].Job != "kept" ||
		h.Jobs[0].RunID != m.joined.RunID || h.Jobs[0].Failure+h.Jobs[0].Lost != "" {
		t.Errorf("%+v", h)
	}
	second, ls := startWatched(t, Config{Shards: 1, ID: "second", Replicas: 1, Peer: s.URL()})
	ls.own(second, "that it may not hold replicas", func(p *schema.ServerReport) bool {
		return p.Primary != nil && strings.Contains(p.Primary.Refused, "ps b on ")
	})
	second.Close()

	b.Close()
	gone := told("that no ps has a replica", func(p *schema.ReplicaReport) bool { return p.Server == "" && p.UnreadyMS > 0 })
	if !strings.HasPrefix(gone.Failure, "ps b on ") || gone.Ready || gone.Version != 0 || gone.Bytes < first.Bytes {
		t.Errorf("%+v", gone)
	}
	small, lc := startWatched(t, Config{Shards: 1, ID: "c", Replicas: 1, Peer: s.URL(), MemoryBytesMax: 1 << 20})
	told("that there is no room", func(p *schema.ReplicaReport) bool {
		return p.Server == "c" && !p.Ready && strings.Contains(p.Failure, " are free") && p.UnreadyMS > 0
	})
	lc.own(small, "what there is no room for", func(p *schema.ServerReport) bool {
		return p.Primary != nil && len(p.Primary.Jobs) == 1 && strings.Contains(p.Primary.Jobs[0].Failure, " are free")
	})
	stop()
	m.leave("")
	l.own(s, "the end of the job", func(p *schema.ServerReport) bool {
		return len(p.Jobs) == 1 && p.Jobs[0].Phase == schema.PhaseEnded && p.Jobs[0].Replica == nil
	})
}

// A ps that keeps replicas among those of one NATS server has nobody hold replicas for it.
func TestGroupRefusesAFollower(t *testing.T) {
	t.Parallel()
	nats := startControl(t, fabric.ServerConfig{}).URL()
	group, _ := startWatched(t, Config{Shards: 1, ID: "a", Replicas: 1, NATS: nats})
	by, l := startWatched(t, Config{Shards: 1, ID: "b", Replicas: 1, Peer: nats})
	l.own(by, "that it may not hold replicas", func(p *schema.ServerReport) bool {
		return p.Primary != nil && strings.Contains(p.Primary.Refused, "one NATS server")
	})
	group.Close()
}

// The largest reports there can be still find room in a frame, without what may be left out.
func TestManyHeldJobsFitAReport(t *testing.T) {
	long := strings.Repeat("x", schema.FailureBytesMax)
	report := &schema.ServerReport{ID: "a", Primary: &schema.PrimaryReport{URL: "nats://b", Refused: long}}
	for range schema.TelemetryJobsMax {
		report.Primary.Jobs = append(report.Primary.Jobs, schema.HeldReport{Job: "held", Failure: long, Lost: long})
		report.Jobs = append(report.Jobs, schema.JobReport{Name: "own", Phase: schema.PhaseRunning,
			Replica: &schema.ReplicaReport{Off: long, Failure: long,
				Kept: make([]schema.KeptReport, schema.TelemetryKeptMax)},
			Durability: &schema.DurabilityReport{Off: long, Failure: long}})
	}
	whole := report.Primary
	leaveOutShards(report)
	if _, err := schema.EncodeTelemetry(&schema.Telemetry{EveryMS: 1000, Server: report}); err != nil {
		t.Error(err)
	}
	if len(whole.Jobs) != schema.TelemetryJobsMax || len(report.Primary.Jobs) >= len(whole.Jobs) {
		t.Errorf("%d jobs are left, and %d of what was told", len(report.Primary.Jobs), len(whole.Jobs))
	}
}
