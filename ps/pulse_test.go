package ps

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"gradbus/fabric"
	"gradbus/internal/process"
	"gradbus/schema"
)

// pulseLog keeps what Options.Pulses is told, and sees that it is never told twice at once.
type pulseLog struct {
	t     testing.TB
	busy  sync.Mutex
	mu    sync.Mutex
	last  map[[2]string]*schema.Pulse // by job and member
	count map[[2]string]int
}

func newPulseLog(t testing.TB) *pulseLog {
	return &pulseLog{t: t, last: map[[2]string]*schema.Pulse{}, count: map[[2]string]int{}}
}

func (l *pulseLog) take(job schema.JobName, from schema.Member, p *schema.Pulse) {
	if !l.busy.TryLock() {
		l.t.Error("two pulses are told at once")
		return
	}
	defer l.busy.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	key := [2]string{string(job), string(from)}
	l.last[key] = p
	l.count[key]++
}

// of is the last pulse of a member; nil before the first.
func (l *pulseLog) of(job schema.JobName, from schema.Member) *schema.Pulse {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[[2]string{string(job), string(from)}]
}

func (l *pulseLog) senders() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.last)
}

func startWatched(t testing.TB, c Config) (*Server, *pulseLog) {
	t.Helper()
	l := newPulseLog(t)
	writes := []process.Folder{{Path: "/state", Use: "state of GPUs", Ask: func(string) (schema.DiskPulse, error) {
		return schema.DiskPulse{FreeBytes: 1, TotalBytes: 10, Device: "8:1"}, nil
	}}}
	c.Deadline = cmp.Or(c.Deadline, unhurried)
	s, err := Start(context.Background(), c, Options{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Pulses: l.take, Page: "http://page", Writes: writes,
		GPUs: func() []schema.GPUPulse { return []schema.GPUPulse{{UUID: "GPU-1", State: schema.GPUHealthy}} }})
	must(t, err)
	t.Cleanup(s.Close)
	return s, l
}

// own waits for a pulse of the server itself that is as wanted.
func (l *pulseLog) own(s *Server, what string, ok func(*schema.ServerPulse) bool) *schema.ServerPulse {
	l.t.Helper()
	var found *schema.ServerPulse
	eventually(l.t, what, func() bool {
		p := l.of(schema.PulseJob, s.member)
		if p == nil || !ok(p.Server) {
			return false
		}
		found = p.Server
		return true
	})
	return found
}

// A job from its first join to a while after its end, as its server's pulses tell it.
func TestPulsesTellOfAJob(t *testing.T) {
	t.Parallel()
	s, l := startWatched(t, Config{Shards: 2})
	idle := l.own(s, "a pulse without a job", func(p *schema.ServerPulse) bool { return true })
	if idle.ID != s.registry.self.ID || idle.URL != s.URL() || idle.Page != "http://page" || len(idle.GPUs) != 1 || time.Duration(float64(idle.Deadline)*1e9) != unhurried || idle.ControlLost ||
		idle.Memory.PromisedBytes != 0 || idle.Memory.MaxBytes == 0 || !idle.Traffic.Connected || len(idle.Reasons) != schema.ReasonCount-1 {
		t.Errorf("an idle server says %+v", idle)
	}
	l.own(s, "the disk that it writes to", func(p *schema.ServerPulse) bool {
		return len(p.Disks) == 1 && p.Disks[0].Path == "/state" && p.Disks[0].FreeBytes == 1 && p.Disks[0].SampleMS > 0
	})
	p := newProblem(t, smallJob("told", 2, 4))
	a, b := newMiniTrainer(t, s, p, "j-a"), newMiniTrainer(t, s, p, "j-b")
	a.join()
	gathering := l.own(s, "a job that gathers", func(p *schema.ServerPulse) bool { return len(p.Jobs) == 1 && p.Jobs[0].Members[0].Host != "" })
	if j := gathering.Jobs[0]; j.Phase != schema.PhaseGathering || j.StartedMS != 0 || j.Members[1].Host != "" || j.Trainers != 2 || j.Shards != 2 || j.Lanes != 4 {
		t.Errorf("while it gathers: %+v", j)
	}
	b.join()
	a.start()
	b.start()
	const batches = 5
	var wg sync.WaitGroup
	for _, m := range []*miniTrainer{a, b} {
		wg.Go(func() {
			for n := range schema.Batch(batches) {
				m.batch(n)
			}
		})
	}
	wg.Wait()
	running := l.own(s, "all rounds are closed", func(p *schema.ServerPulse) bool {
		return len(p.Jobs) == 1 && len(p.Shards) == 2 && p.Shards[0].Version == batches && p.Shards[1].Version == batches
	})
	j := running.Jobs[0]
	if j.Phase != schema.PhaseRunning || j.StartedMS == 0 || j.Parameters == 0 || len(j.Keepers) != 1 || j.Keepers[0] != idle.ID || running.Memory.PromisedBytes == 0 {
		t.Errorf("while it runs: %+v", j)
	}
	for _, shard := range running.Shards {
		if shard.Job != "told" || !shard.Ready || shard.Rounds == 0 || shard.Rounds%batches != 0 || shard.Frames < shard.Rounds || shard.Bytes == 0 || shard.Acks == 0 ||
			shard.Repeats != 0 || shard.StepSeconds <= 0 || shard.ApplySeconds <= 0 || shard.ApplySeconds > shard.StepSeconds || shard.ApplyBytes == 0 || shard.PublishSeconds <= 0 || shard.StagedBytes != 0 || shard.MemoryBytes == 0 || shard.Waiting != nil {
			t.Errorf("shard %d: %+v", shard.Shard, shard)
		}
	}
	a.leave("")
	b.leave("disk full")
	ended := l.own(s, "the job has ended", func(p *schema.ServerPulse) bool { return len(p.Jobs) == 1 && p.Jobs[0].Phase == schema.PhaseEnded })
	if j := ended.Jobs[0]; j.Failed == nil || j.Failed.Member != b.joined.Member || j.EndedMS < j.StartedMS || !j.Members[0].Left || len(ended.Shards) != 0 {
		t.Errorf("after its end: %+v", j)
	}
}

// Whatever is sent as a pulse, nobody is told of what is not one, or not its sender's; and the server's own go on.
func TestHostilePulses(t *testing.T) {
	t.Parallel()
	s, l := startWatched(t, Config{ControlToken: "the-token-of-peers"}) // others are not let speak for shards and coordinators
	conn, err := fabric.Dial(context.Background(), fabric.Config{URL: s.URL(), Name: "hostile", Token: "the-token-of-peers"})
	must(t, err)
	t.Cleanup(conn.Close)
	trainer := &schema.Pulse{Serial: 1, EveryMS: 1000, Trainer: &schema.TrainerPulse{RunID: 7, Doing: schema.DoingKeys}}
	server := &schema.Pulse{Serial: 1, EveryMS: 1000, Server: &schema.ServerPulse{ID: "other"}}
	frame := func(job schema.RunID, p *schema.Pulse) []byte {
		data, err := schema.EncodePulse(schema.Head{Job: job}, p)
		must(t, err)
		return data
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
		{"j", "t3", frame(8, trainer)},                                        // of another run than its head's
		{"j", "s0", frame(7, trainer)},                                        // a shard has none
		{"j", "p-other", frame(0, server)},                                    // a ps not where they are
		{"ps", "p-another", frame(0, server)},                                 // another's
		{"ps", string(s.member), frame(0, server)},                            // in our name
		{"j", "coordinator", frame(7, trainer)},                               //
		{"j", "t4", newFrame(t, schema.Layout{Kind: schema.KindBeat}).Seal()}, // not a pulse
	} {
		must(t, conn.Publish(fabric.At(c.job, c.from, fabric.KindPulse, "all").String(), c.data))
	}
	for range 20 { // of which four pass in a second
		must(t, conn.Publish(fabric.At("j", "t9", fabric.KindPulse, "all").String(), frame(7, trainer)))
	}
	must(t, conn.Publish(fabric.At("ps", "p-other", fabric.KindPulse, "all").String(), frame(0, server)))
	eventually(t, "the right ones are told", func() bool { return l.of("j", "t9") != nil && l.of("ps", "p-other") != nil })
	l.own(s, "the wrong ones are counted", func(p *schema.ServerPulse) bool {
		r := p.Reasons
		if p.Dropped < 20-2*pulsesPerSender { // on a machine so slow that the second was over in between
			must(t, conn.Publish(fabric.At("j", "t9", fabric.KindPulse, "all").String(), frame(7, trainer)))
		}
		return r["damaged"] == 1 && r["malformed"] == 2 && r["foreign_job"] == 1 && r["wrong_sender"] == 4 && r["unknown_kind"] == 1 && p.Dropped >= 20-2*pulsesPerSender
	})
	if n := l.senders(); n != 3 {
		t.Errorf("pulses of %d senders are told, want 3: t9, p-other and the server's own", n)
	}
}

// Of one ps the pages of all show everything.
func TestPulsesOfSeveralServers(t *testing.T) {
	t.Parallel()
	a, la := startWatched(t, Config{ID: "a", ControlToken: "the-token-of-peers"})
	b, lb := startWatched(t, Config{ID: "b", ControlToken: "the-token-of-peers", NATS: a.URL()})
	eventually(t, "each hears the other", func() bool { return la.of(schema.PulseJob, b.member) != nil && lb.of(schema.PulseJob, a.member) != nil })
	if p := lb.of(schema.PulseJob, a.member); p.Server.ID != "a" || p.Server.URL != a.URL() {
		t.Errorf("b hears of a: %+v", p.Server)
	}
	// Out of reach of the others it goes on to tell of itself.
	must(t, a.RestartNATS(func() {
		lb.own(b, "b says that control is lost", func(p *schema.ServerPulse) bool { return p.ControlLost && !p.Traffic.Connected })
	}))
	lb.own(b, "b says that control is back", func(p *schema.ServerPulse) bool { return !p.ControlLost && p.Traffic.Reconnects > 0 })
	before := lb.of(schema.PulseJob, a.member).Serial
	eventually(t, "a is heard again", func() bool { return lb.of(schema.PulseJob, a.member).Serial > before })
}

// Who is in the registry is known; who only says that he is there is not.
func TestAnnouncedServers(t *testing.T) {
	t.Parallel()
	a, la := startWatched(t, Config{ID: "a", ControlToken: "the-token-of-peers"})
	b, _ := startWatched(t, Config{ID: "b", ControlToken: "the-token-of-peers", NATS: a.URL()})
	conn, err := fabric.Dial(context.Background(), fabric.Config{URL: a.URL(), Name: "hostile", Token: "the-token-of-peers"})
	must(t, err)
	t.Cleanup(conn.Close)
	frame, err := schema.EncodePulse(schema.Head{}, &schema.Pulse{Serial: 1, EveryMS: 1000, Server: &schema.ServerPulse{ID: "other"}})
	must(t, err)
	must(t, conn.Publish(fabric.At("ps", "p-other", fabric.KindPulse, "all").String(), frame))
	eventually(t, "all are heard", func() bool { return la.of("ps", "p-other") != nil && la.of("ps", b.member) != nil })
	for _, s := range []*Server{a, b} {
		eventually(t, "both are in the registry", func() bool { return slices.Equal(s.Announced(), []string{"a", "b"}) })
	}
}

func TestSenderGate(t *testing.T) {
	var g senderGate
	at := time.Unix(100, 0)
	for i := range 2 * pulsesPerSender {
		if ok := g.allow(at, "j", "t0"); ok != (i < pulsesPerSender) {
			t.Errorf("pulse %d of a second: %v", i, ok)
		}
	}
	if !g.allow(at, "j", "t1") || !g.allow(at, "k", "t0") || !g.allow(at.Add(time.Second), "j", "t0") {
		t.Error("another sender, or another second, is held back")
	}
	g = senderGate{}
	for i := range sendersMax {
		g.allow(at, "j", string(schema.TrainerMember(i)))
	}
	if g.allow(at, "j", "one-more") || !g.allow(at, "j", "t5") {
		t.Error("more senders than there may be, or one that is known, is not told apart")
	}
}

// The largest job there may be fits a pulse, with those of whom something is to be said.
func TestLargePulsesFit(t *testing.T) {
	job := schema.JobPulse{Name: "large", Phase: schema.PhaseRunning, Members: make([]schema.MemberPulse, 4096)}
	for i := range job.Members {
		job.Members[i] = schema.MemberPulse{Member: schema.TrainerMember(i), Host: string(make([]byte, 200))}
	}
	job.Members[4000].Gone = true
	s := &schema.ServerPulse{ID: "a", Jobs: []schema.JobPulse{job, job}}
	leaveOutQuiet(s)
	if len(s.Jobs) != 2 || len(s.Jobs[1].Members) != 1 || s.Jobs[1].Members[0].Member != "t4000" || len(job.Members) != 4096 {
		t.Errorf("%d members left: %+v", len(s.Jobs[1].Members), s.Jobs[1].Members)
	}
	if _, err := schema.EncodePulse(schema.Head{}, &schema.Pulse{EveryMS: 1, Server: s}); err != nil {
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
	inbox, err := plain.SubscribeSync("answers")
	must(t, err)
	must(t, plain.PublishRequest("$SRV.INFO."+serviceName, "answers", nil))
	found := map[string]micro.Info{}
	for len(found) < 2 {
		m, err := inbox.NextMsg(patience)
		must(t, err)
		var info micro.Info
		must(t, json.Unmarshal(m.Data, &info))
		found[info.Metadata["id"]] = info
	}
	if m := found["a"].Metadata; m["url"] != a.URL() || m["shards"] != "3" || m["page"] != "http://page" || found["b"].Metadata["url"] != b.URL() {
		t.Errorf("found %+v", found)
	}
	eventually(t, "its last pulse is there", func() bool {
		m, err := plain.Request(found["b"].Endpoints[0].Subject, nil, patience)
		var p schema.Pulse
		return err == nil && json.Unmarshal(m.Data, &p) == nil && p.Server != nil && p.Server.ID == "b"
	})
}

// BenchmarkPulse is what a ps does once a second for whoever watches, with four shards of a job of 64 trainers.
func BenchmarkPulse(b *testing.B) {
	s, err := Start(context.Background(), Config{Shards: 4}, Options{Pulses: func(schema.JobName, schema.Member, *schema.Pulse) {}})
	must(b, err)
	b.Cleanup(s.Close)
	c := NewCoordinator(CoordinatorConfig{Job: smallJob("large", 64, 64), RunID: 1, Keepers: []Keeper{{"p-a", schema.DataServer{ID: "a", Shards: []int{0, 1, 2, 3}}}}})
	for i := range 64 {
		c.Join(time.Now(), schema.Member(fmt.Sprint("j-", i)), &schema.Join{Job: c.config.Job, Host: "a-machine (pid 12345)"})
	}
	b.ReportAllocs()
	for b.Loop() {
		now := time.Now()
		jobs := &jobPulses{when: now, jobs: []schema.JobPulse{c.Pulse(now)}}
		p := &pulser{server: s, meter: process.NewMeter()}
		p.jobs.Store(jobs)
		pulse := &schema.Pulse{Serial: 1, EveryMS: 1000, Server: p.fill(now)}
		if _, err := p.encode(pulse); err != nil {
			b.Fatal(err)
		}
	}
}
