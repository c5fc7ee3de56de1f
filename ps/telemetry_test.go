package ps

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"gradbus/fabric"
	"gradbus/internal/process"
	"gradbus/schema"
	"gradbus/shard/shardtest"
)

// reportLog keeps what Options.Telemetry is told, and sees that it is never told twice at once.
type reportLog struct {
	t     testing.TB
	busy  sync.Mutex
	mu    sync.Mutex
	last  map[[2]string]*schema.Telemetry // by job and member
	count map[[2]string]int
}

func newReportLog(t testing.TB) *reportLog {
	return &reportLog{t: t, last: map[[2]string]*schema.Telemetry{}, count: map[[2]string]int{}}
}

func (l *reportLog) take(job schema.JobName, from schema.Member, p *schema.Telemetry) {
	if !l.busy.TryLock() {
		l.t.Error("two reports are told at once")
		return
	}
	defer l.busy.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	key := [2]string{string(job), string(from)}
	l.last[key] = p
	l.count[key]++
}

// of is the last report of a member; nil before the first.
func (l *reportLog) of(job schema.JobName, from schema.Member) *schema.Telemetry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[[2]string{string(job), string(from)}]
}

func (l *reportLog) senders() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.last)
}

func startWatched(t testing.TB, c Config) (*Server, *reportLog) {
	t.Helper()
	l := newReportLog(t)
	writes := []process.Folder{{Path: "/state", Use: "state of GPUs", Ask: func(string) (schema.DiskReport, error) {
		return schema.DiskReport{FreeBytes: 1, TotalBytes: 10, Device: "8:1"}, nil
	}}}
	c.Deadline = cmp.Or(c.Deadline, unhurried)
	s, err := Start(context.Background(), c,
		Options{Bus: network(t), Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Telemetry: l.take,
			Page: "http://page", Writes: writes,
			GPUs: func() []schema.GPUReport { return []schema.GPUReport{{UUID: "GPU-1", State: schema.GPUHealthy}} }})
	must(t, err)
	t.Cleanup(s.Close)
	return s, l
}

// own waits for a report of the server itself that is as wanted.
func (l *reportLog) own(s *Server, what string, ok func(*schema.ServerReport) bool) *schema.ServerReport {
	l.t.Helper()
	var found *schema.ServerReport
	eventually(l.t, what, func() bool {
		p := l.of(schema.TelemetryJob, s.member)
		if p == nil || !ok(p.Server) {
			return false
		}
		found = p.Server
		return true
	})
	return found
}

// calls are the operations that a server's arithmetic has done.
func calls(p *schema.ServerReport) (n uint64) {
	for _, of := range p.Calls {
		n += of
	}
	return n
}

// A job from its first join to a while after its end, as its server's reports tell it.
func TestReportsTellOfAJob(t *testing.T) {
	t.Parallel()
	s, l := startWatched(t, Config{Shards: 2})
	idle := l.own(s, "a report without a job", func(p *schema.ServerReport) bool { return true })
	if idle.ID != s.registry.self.ID || idle.URL != s.URL() || idle.Page != "http://page" || len(idle.GPUs) != 1 ||
		time.Duration(float64(idle.Deadline)*1e9) != unhurried || idle.ControlLost ||
		idle.Memory.PromisedBytes != 0 || idle.Memory.MaxBytes == 0 || !idle.Traffic.Connected ||
		len(idle.Reasons) != schema.ReasonCount-1 {
		t.Errorf("an idle server says %+v", idle)
	}
	l.own(s, "the disk that it writes to", func(p *schema.ServerReport) bool {
		return len(p.Disks) == 1 && p.Disks[0].Path == "/state" && p.Disks[0].FreeBytes == 1 && p.Disks[0].SampleMS > 0
	})
	p := shardtest.New(t, shardtest.SmallJob("told", 2, 4))
	a, b := newMiniTrainer(t, s, p, "j-a"), newMiniTrainer(t, s, p, "j-b")
	a.join()
	gathering := l.own(s, "a job that gathers",
		func(p *schema.ServerReport) bool { return len(p.Jobs) == 1 && p.Jobs[0].Members[0].Host != "" })
	if j := gathering.Jobs[0]; j.Phase != schema.PhaseGathering || j.StartedMS != 0 || j.Members[1].Host != "" ||
		j.Trainers != 2 || j.Shards != 2 || j.Lanes != 4 {
		t.Errorf("while it gathers: %+v", j)
	}
	b.join()
	a.start()
	b.start()
	const batches = 5
	var wg sync.WaitGroup
	train := func(n schema.Batch) {
		for _, m := range []*miniTrainer{a, b} {
			wg.Go(func() { m.batch(n) })
		}
		wg.Wait()
	}
	for n := range schema.Batch(batches) {
		train(n)
	}
	running := l.own(s, "all rounds are closed", func(p *schema.ServerReport) bool {
		return len(p.Jobs) == 1 && len(p.Shards) == 2 && p.Shards[0].Version == batches && p.Shards[1].Version == batches
	})
	if j := running.Jobs[0]; j.Phase != schema.PhaseRunning || j.StartedMS == 0 || j.Parameters == 0 ||
		!slices.Equal(j.Keepers, []string{idle.ID}) || min(running.Memory.PromisedBytes, int64(calls(running))) == 0 {
		t.Errorf("while it runs: %+v, %v operations", j, running.Calls)
	}
	for _, shard := range running.Shards {
		if shard.Job != "told" || !shard.Ready || shard.Rounds == 0 || shard.Rounds%batches != 0 ||
			shard.Frames < shard.Rounds || shard.Bytes == 0 || shard.Acks == 0 ||
			shard.Repeats != 0 || shard.StepSeconds <= 0 || shard.ApplySeconds <= 0 || shard.ApplySeconds > shard.StepSeconds ||
			shard.ApplyBytes == 0 || shard.PublishSeconds <= 0 || shard.StagedBytes != 0 || shard.MemoryBytes == 0 ||
			shard.Waiting != nil {
			t.Errorf("shard %d: %+v", shard.Shard, shard)
		}
	}
	checkBuckets(t, running.Shards, batches)
	train(batches)
	a.leave("")
	b.leave("disk full")
	ended := l.own(s, "the job has ended",
		func(p *schema.ServerReport) bool { return len(p.Jobs) == 1 && p.Jobs[0].Phase == schema.PhaseEnded })
	if j := ended.Jobs[0]; j.Failed == nil || j.Failed.Member != b.joined.Member || j.EndedMS < j.StartedMS ||
		!j.Members[0].Left || len(ended.Shards) != 0 {
		t.Errorf("after its end: %+v", j)
	}
}

// checkBuckets checks what shards tell of their buckets after so many batches of two trainers.
func checkBuckets(t *testing.T, shards []schema.ShardReport, batches uint64) {
	t.Helper()
	for _, shard := range shards {
		if len(shard.Buckets) == 0 {
			t.Errorf("shard %d tells of no bucket", shard.Shard)
		}
		for _, k := range shard.Buckets {
			if k.Rounds != batches || k.StragglerMaxSeconds > k.StragglerSeconds || k.BatchSeconds < k.StragglerSeconds ||
				k.BatchMaxSeconds > k.BatchSeconds || k.StragglerSeconds <= 0 || k.AverageSeconds <= 0 {
				t.Errorf("shard %d: %+v", shard.Shard, k)
			}
		}
	}
}

// Whatever is sent as a report, nobody is told of what is not one, or not its sender's; and the server's own go on.
func TestHostileReports(t *testing.T) {
	t.Parallel()
	// others are not let speak for shards and coordinators
	s, l := startWatched(t, Config{ControlToken: "the-token-of-peers"})
	conn, err := fabric.Dial(context.Background(),
		fabric.Config{URL: s.URL(), Name: "hostile", Token: "the-token-of-peers"})
	must(t, err)
	t.Cleanup(conn.Close)
	trainer := &schema.Telemetry{Serial: 1, EveryMS: 1000,
		Trainer: &schema.TrainerReport{RunID: 7, Doing: schema.DoingKeys}}
	server := &schema.Telemetry{Serial: 1, EveryMS: 1000, Server: &schema.ServerReport{ID: "other"}}
	frame := func(job schema.RunID, p *schema.Telemetry) []byte {
		return encodeReport(t, schema.Head{Job: job}, p)
	}
	damaged := frame(7, trainer)
	damaged[len(damaged)-1] ^= 1
	for _, c := range []struct {
		job, from string
		data      []byte
	}{
		{"j", "t0", damaged},
		{"j", "t1", []byte("noise")},
		{"j", "t2", nil},
		{"j", "t3", frame(8, trainer)},             // of another run than its head's
		{"j", "s0", frame(7, trainer)},             // a shard has none
		{"j", "p-other", frame(0, server)},         // a ps not where they are
		{"ps", "p-another", frame(0, server)},      // another's
		{"ps", string(s.member), frame(0, server)}, // in our name
		{"j", "coordinator", frame(7, trainer)},    //
		{"j", "t4", encodeHeartbeat(t, schema.Head{Job: 7}, []byte(`{"serial":1}`))}, // not a report
	} {
		must(t, conn.Publish(fabric.At(c.job, c.from, fabric.KindHeartbeat, "all").String(), c.data))
	}
	must(t, conn.Publish(fabric.At("j", "t9", fabric.KindHeartbeat, "all").String(), frame(7, trainer)))
	must(t, conn.Publish(fabric.At("ps", "p-other", fabric.KindHeartbeat, "all").String(), frame(0, server)))
	eventually(t, "the right ones are told", func() bool { return l.of("j", "t9") != nil && l.of("ps", "p-other") != nil })
	l.own(s, "the wrong ones are counted", func(p *schema.ServerReport) bool {
		r := p.Reasons
		return r["damaged"] == 1 && r["malformed"] == 3 && r["foreign_job"] == 1 && r["wrong_sender"] == 4 &&
			p.Dropped == 0
	})
	if n := l.senders(); n != 3 {
		t.Errorf("reports of %d senders are told, want 3: t9, p-other and the server's own", n)
	}
}

func encodeReport(t testing.TB, h schema.Head, p *schema.Telemetry) []byte {
	t.Helper()
	report, err := schema.EncodeTelemetry(p)
	must(t, err)
	return encodeHeartbeat(t, h, report)
}

func encodeHeartbeat(t testing.TB, h schema.Head, report []byte) []byte {
	t.Helper()
	frame, err := schema.EncodeHeartbeat(h, report)
	must(t, err)
	return frame
}

// A heartbeat counts whatever its report is.
func TestHeartbeatWithABadReportCounts(t *testing.T) {
	t.Parallel()
	s, l := startWatched(t, Config{})
	m := gather(t, s, shardtest.New(t, shardtest.SmallJob("alive", 1, 1)), "j-a")[0]
	at := fabric.At("alive", m.member(), fabric.KindHeartbeat, "all").String()
	must(t,
		m.conn.Publish(at, encodeHeartbeat(t, schema.Head{Job: m.joined.RunID, Generation: 1, Batch: 5}, []byte("{}"))))
	l.own(s, "the batch of the heartbeat, and its report refused", func(p *schema.ServerReport) bool {
		return len(p.Jobs) == 1 && p.Jobs[0].Members[0].Batch == 5 && p.Reasons["malformed"] == 1
	})
}

// Of a report that no frame has room for only the heartbeat is left.
func TestHeartbeatGoesWithoutAReportThatIsTooLarge(t *testing.T) {
	t.Parallel()
	s, l := startWatched(t, Config{ID: "large"})
	l.own(s, "a report", func(*schema.ServerReport) bool { return true })
	backend := strings.Repeat("x", schema.TextBytesMax+1)
	frame, err := s.reporter.encode(&schema.Telemetry{EveryMS: 1,
		Server: &schema.ServerReport{ID: "large", Backend: backend}})
	v, bad := schema.Verify(frame, schema.Limits{})
	if err == nil || bad != nil || v.Head().Kind != schema.KindHeartbeat || len(v.Body()) != 0 {
		t.Errorf("%v; the frame is %v, %v with a body of %d", err, bad, v.Head().Kind, len(v.Body()))
	}
}

// Of one ps the pages of all show everything.
func TestReportsOfSeveralServers(t *testing.T) {
	t.Parallel()
	a, la := startWatched(t, Config{ID: "a", ControlToken: "the-token-of-peers"})
	b, lb := startWatched(t, Config{ID: "b", ControlToken: "the-token-of-peers", NATS: a.URL()})
	eventually(t, "each hears the other", func() bool {
		return la.of(schema.TelemetryJob, b.member) != nil && lb.of(schema.TelemetryJob, a.member) != nil
	})
	if p := lb.of(schema.TelemetryJob, a.member); p.Server.ID != "a" || p.Server.URL != a.URL() {
		t.Errorf("b hears of a: %+v", p.Server)
	}
	// Out of reach of the others it goes on to tell of itself.
	must(t, a.RestartNATS(func() {
		lb.own(b, "b says that control is lost",
			func(p *schema.ServerReport) bool { return p.ControlLost && !p.Traffic.Connected })
	}))
	lb.own(b, "b says that control is back",
		func(p *schema.ServerReport) bool { return !p.ControlLost && p.Traffic.Reconnects > 0 })
	before := lb.of(schema.TelemetryJob, a.member).Serial
	eventually(t, "a is heard again", func() bool { return lb.of(schema.TelemetryJob, a.member).Serial > before })
}

// Who is in the registry is known; who only says that he is there is not.
func TestAnnouncedServers(t *testing.T) {
	t.Parallel()
	a, la := startWatched(t, Config{ID: "a", ControlToken: "the-token-of-peers"})
	b, _ := startWatched(t, Config{ID: "b", ControlToken: "the-token-of-peers", NATS: a.URL()})
	conn, err := fabric.Dial(context.Background(),
		fabric.Config{URL: a.URL(), Name: "hostile", Token: "the-token-of-peers"})
	must(t, err)
	t.Cleanup(conn.Close)
	frame := encodeReport(t, schema.Head{},
		&schema.Telemetry{Serial: 1, EveryMS: 1000, Server: &schema.ServerReport{ID: "other"}})
	must(t, conn.Publish(fabric.At("ps", "p-other", fabric.KindHeartbeat, "all").String(), frame))
	eventually(t, "all are heard", func() bool { return la.of("ps", "p-other") != nil && la.of("ps", b.member) != nil })
	for _, s := range []*Server{a, b} {
		eventually(t, "both are in the registry", func() bool { return slices.Equal(s.Announced(), []string{"a", "b"}) })
	}
}

// The largest job there may be fits a report, with those of whom something is to be said.
func TestLargeReportsFit(t *testing.T) {
	job := schema.JobReport{Name: "large", Phase: schema.PhaseRunning, Members: make([]schema.MemberReport, 4096)}
	for i := range job.Members {
		job.Members[i] = schema.MemberReport{Member: schema.TrainerMember(i), Host: string(make([]byte, 200))}
	}
	job.Members[4000].Gone = true
	s := &schema.ServerReport{ID: "a", Jobs: []schema.JobReport{job, job}}
	leaveOutQuiet(s)
	if len(s.Jobs) != 2 || len(s.Jobs[1].Members) != 1 || s.Jobs[1].Members[0].Member != "t4000" ||
		len(job.Members) != 4096 {
		t.Errorf("%d members left: %+v", len(s.Jobs[1].Members), s.Jobs[1].Members)
	}
	if _, err := schema.EncodeTelemetry(&schema.Telemetry{EveryMS: 1, Server: s}); err != nil {
		t.Error(err)
	}
}

// Tools that know nothing of gradbus find the servers, and what their shards do.
func TestServersAreFoundAsServices(t *testing.T) {
	t.Parallel()
	a, _ := startWatched(t, Config{ID: "a", Shards: 3, ControlToken: "the-token-of-peers"})
	b, _ := startWatched(t, Config{ID: "b", ControlToken: "the-token-of-peers", NATS: a.URL()})
	plain, err := nats.Connect(a.URL())
	must(t, err)
	t.Cleanup(plain.Close)
	answers := plain.NewInbox()
	inbox, err := plain.SubscribeSync(answers)
	must(t, err)
	found := map[string]micro.Info{}
	for began := time.Now(); len(found) < 2; {
		m, err := inbox.NextMsg(100 * time.Millisecond)
		if errors.Is(err, nats.ErrTimeout) && time.Since(began) < patience { // one may not have begun to listen
			must(t, plain.PublishRequest("$SRV.INFO."+serviceName, answers, nil))
			continue
		}
		must(t, err)
		var info micro.Info
		must(t, json.Unmarshal(m.Data, &info))
		found[info.Metadata["id"]] = info
	}
	if m := found["a"].Metadata; m["url"] != a.URL() || m["shards"] != "3" || m["page"] != "http://page" ||
		found["b"].Metadata["url"] != b.URL() {
		t.Errorf("found %+v", found)
	}
	eventually(t, "its last report is there", func() bool {
		m, err := plain.Request(found["b"].Endpoints[0].Subject, nil, patience)
		var p schema.Telemetry
		return err == nil && json.Unmarshal(m.Data, &p) == nil && p.Server != nil && p.Server.ID == "b"
	})
}

// Reports that wait to be read are bounded in number and in bytes: what finds no room is dropped and counted.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	frame := encodeReport(t, schema.Head{Job: 7}, &schema.Telemetry{Serial: 1, EveryMS: 1000,
		Trainer: &schema.TrainerReport{RunID: 7, Doing: schema.DoingKeys}})
	view, err := schema.Verify(frame, schema.Limits{})
	must(t, err)
	p := &reporter{server: &Server{}, hear: func(schema.JobName, schema.Member, *schema.Telemetry) {},
		heard: make(chan *heardReport, 2)}
	from := fabric.At("j", "t0", fabric.KindHeartbeat, "all")
	for range 5 {
		p.receive(&from, &view)
	}
	if n := p.server.ReportsDropped(); n != 3 || p.bytes.Load() != 2*int64(len(frame)) {
		t.Errorf("%d are dropped, and %d bytes wait", n, p.bytes.Load())
	}
	<-p.heard
	p.bytes.Store(reportBytesMax)
	if p.receive(&from, &view); p.server.ReportsDropped() != 4 {
		t.Errorf("%d are dropped beyond the bytes", p.server.ReportsDropped())
	}
}
