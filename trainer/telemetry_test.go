package trainer

import (
	"errors"
	"io/fs"
	"math"
	"sync"
	"testing"
	"time"

	"gradbus/fabric"
	"gradbus/internal/process"
	"gradbus/lane"
	"gradbus/ps"
	"gradbus/schema"
)

// watched keeps the reports of trainers, as a client of its own that watches: a ps hears four a second at most.
type watched struct {
	t   testing.TB
	mu  sync.Mutex
	all map[schema.Member][]*schema.Telemetry

	bare map[schema.Member]int // heartbeats without a report
}

func (w *watched) take(m fabric.Message) {
	subject, err := m.Parse()
	if err != nil {
		w.t.Error(err)
		return
	}
	v, err := schema.Verify(m.Data, schema.Limits{})
	if err != nil {
		w.t.Error(err)
		return
	}
	if len(v.Body()) == 0 || subject.From == string(schema.Coordinator) {
		w.mu.Lock()
		w.bare[schema.Member(subject.From)]++
		w.mu.Unlock()
		return
	}
	p, err := schema.DecodeTelemetry(&v)
	if err != nil {
		w.t.Error(err)
		return
	}
	from := schema.Member(subject.From)
	if err := p.CheckFrom(schema.JobName(subject.Job), from); err != nil || p.Trainer == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[from] = append(w.all[from], p)
}

// last waits for a trainer's latest report to be as wanted.
func (w *watched) last(m schema.Member, what string, ok func(p *schema.TrainerReport) bool) *schema.TrainerReport {
	w.t.Helper()
	for deadline := time.Now().Add(testTimeout / 2); ; time.Sleep(time.Millisecond) {
		all := w.of(m)
		if len(all) > 0 && ok(all[len(all)-1].Trainer) {
			return all[len(all)-1].Trainer
		}
		if time.Now().After(deadline) {
			if len(all) > 0 {
				w.t.Logf("%s says at last %+v", m, all[len(all)-1].Trainer)
			}
			w.t.Fatalf("never: %s", what)
		}
	}
}

// of is the reports of a trainer, in the order in which they came.
func (w *watched) of(m schema.Member) []*schema.Telemetry {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all[m]
}

func startWatched(t testing.TB, config ps.Config) (*ps.Server, *watched) {
	t.Helper()
	w := &watched{t: t, all: map[schema.Member][]*schema.Telemetry{}, bare: map[schema.Member]int{}}
	server := startServerWith(t, config)
	conn, err := fabric.DialControl(testContext(t),
		fabric.Config{URL: server.URL(), Bus: busOf(server.URL()), Name: "watch"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	if err := conn.Subscribe(fabric.Pattern(fabric.Any, fabric.Any, fabric.KindHeartbeat, string(schema.All), false),
		w.take); err != nil {
		t.Fatal(err)
	}
	return server, w
}

// Trainers tell what their sessions have counted; the last word is everything.
func TestTrainersTellHowTheyFare(t *testing.T) {
	t.Parallel()
	server, w := startWatched(t, ps.Config{Shards: 2})
	config, job := testConfig(t, server), toyJob("told", 2, 4, schema.ApplyUpdate)
	config.TelemetryEvery = 20 * time.Millisecond
	config.GPUs = func() []schema.GPUReport { return []schema.GPUReport{{UUID: "GPU-1", State: schema.GPUHealthy}} }
	const batches = 30
	outcomes := trainAll(t, config, job, batches)
	for i, o := range outcomes {
		if o.err != nil {
			t.Fatal(o.err)
		}
		w.last(schema.TrainerMember(i), "the last word", func(p *schema.TrainerReport) bool { return isLast(p, &o, batches) })
		reports := w.of(schema.TrainerMember(i))
		if len(reports) < 2 {
			t.Fatalf("%d reports of trainer %d", len(reports), i)
		}
		for n, p := range reports {
			if n > 0 && (p.Serial <= reports[n-1].Serial || p.Trainer.Batches < reports[n-1].Trainer.Batches ||
				p.StartedMS != reports[n-1].StartedMS) {
				t.Errorf("report %d of trainer %d: %+v follows %+v", n, i, p, reports[n-1])
			}
		}
		checkLast(t, reports[len(reports)-1], &o)
	}
}

// isLast says that a report has all that the session has counted. Whoever watches may be behind, and hear others that
// came after the last batch.
func isLast(last *schema.TrainerReport, o *outcome, batches uint64) bool {
	return last.Batches == batches && last.Batch == schema.Batch(batches) && last.Planned == 0 &&
		last.Samples == o.stats.Samples &&
		last.GradientFrames == o.stats.GradientFrames && last.Results == o.stats.Results &&
		last.ComputeSeconds == o.stats.ComputeSeconds &&
		last.Doing == schema.DoingOther && last.Traffic.Connected
}

func checkLast(t *testing.T, p *schema.Telemetry, o *outcome) {
	t.Helper()
	last, sum, samples := p.Trainer, 0.0, 0
	for _, b := range o.progress {
		sum, samples = sum+b.Loss*float64(b.Samples), samples+b.Samples
	}
	if last.Traffic.BytesSent == 0 || last.Process.Goroutines == 0 || last.Backend == "" || len(last.GPUs) != 1 ||
		p.EveryMS != 20 {
		t.Errorf("the last report says %+v, and the session %+v", last, o.stats)
	}
	if l := last.Loss; math.Abs(float64(l.Sum)-sum) > 1e-6*math.Abs(sum) || l.Samples != uint64(samples) || l.Bad != 0 {
		t.Errorf("loss %+v: want a sum of %v over %d samples", l, sum, samples)
	}
}

// A trainer tells of the file systems that it writes to, and one that hangs delays neither its batches nor its reports
// nor its end.
func TestTrainersTellWhereTheyWrite(t *testing.T) {
	t.Parallel()
	server, w := startWatched(t, ps.Config{Shards: 1})
	config, job := testConfig(t, server), toyJob("writes", 1, 1, schema.ApplyUpdate)
	config.TelemetryEvery = 5 * time.Millisecond
	hangs := make(chan struct{})
	defer close(hangs)
	config.Writes = []process.Folder{
		{Path: "/far", Use: "curves", Ask: func(string) (schema.DiskReport, error) {
			<-hangs
			return schema.DiskReport{}, fs.ErrClosed
		}},
		{Path: "/full", Use: "models", NeedBytes: 100, Ask: func(string) (schema.DiskReport, error) {
			return schema.DiskReport{FreeBytes: 7, TotalBytes: 1 << 20, Device: "0:44"}, nil
		}},
	}
	s := joinAll(t, config, job)[0]
	p := w.last("t0", "the disk that answers", func(p *schema.TrainerReport) bool { return len(p.Disks) > 0 })
	if err := errors.Join(s.Run(testContext(t), newToy(t, job), 5, nil), s.Close()); err != nil {
		t.Fatal(err)
	}
	w.last("t0", "a word after the last batch",
		func(p *schema.TrainerReport) bool { return p.Batches == 5 && len(p.Disks) == 1 })
	if d := p.Disks[0]; d.SampleMS == 0 ||
		d != (schema.DiskReport{Path: "/full", Use: "models", FreeBytes: 7, TotalBytes: 1 << 20, NeedBytes: 100,
			Device: "0:44", SampleMS: d.SampleMS}) {
		t.Errorf("%+v", d)
	}
}

func TestLossesThatAreNone(t *testing.T) {
	var l schema.TrainLoss
	addLoss(&l, 6, 3)
	addLoss(&l, math.NaN(), 3)
	addLoss(&l, 1, 0) // without samples there is none
	addLoss(&l, math.Inf(1), 3)
	if l.Sum != 6 || l.Samples != 3 || l.Bad != 2 || !math.IsInf(float64(l.Last), 1) {
		t.Errorf("%+v", l)
	}
}

func TestActivity(t *testing.T) {
	epoch := time.Now()
	a := activity{epoch: epoch}
	if d, since := a.now(time.Second); d != schema.DoingJoining || since != time.Second {
		t.Errorf("at first %v for %v", d, since)
	}
	for d, name := range doingNames {
		a.beginAt(doing(d), epoch.Add(3*time.Second))
		if got, since := a.now(5 * time.Second); got != name || since != 2*time.Second {
			t.Errorf("%v for %v, want %v for 2s", got, since, name)
		}
	}
	if _, since := a.now(time.Second); since != 0 { // it was begun meanwhile
		t.Errorf("begun %v ago", since)
	}
}

// While one trainer computes, the other says which shard it waits for, and for how long.
func TestTrainersTellWhatTheyWaitFor(t *testing.T) {
	t.Parallel()
	server, w := startWatched(t, ps.Config{Shards: 2})
	config, job := testConfig(t, server), toyJob("awaited", 2, 6, schema.ApplyUpdate)
	config.TelemetryEvery = 5 * time.Millisecond
	goOn := make(chan struct{})
	var both sync.WaitGroup
	errs := make([]error, 2)
	for i := range 2 {
		c, toy := config, newToy(t, job)
		c.Member = schema.TrainerMember(i)
		if i == 1 {
			toy.enter = func(b schema.Batch, _ lane.Lane) {
				if b == 2 {
					<-goOn
				}
			}
		}
		both.Go(func() { errs[i] = train(testContext(t), c, job, toy, 8).err })
	}
	w.last("t0", "t0 waits for results", func(p *schema.TrainerReport) bool {
		return p.Doing == schema.DoingResult && p.DoingMS > 50 && p.AwaitedShard != nil && *p.AwaitedShard == 0 &&
			p.Batch == 2 && p.Planned == 4
	})
	w.last("t1", "t1 computes", func(p *schema.TrainerReport) bool {
		return p.Doing == schema.DoingCompute && p.DoingMS > 50 && p.AwaitedShard == nil && p.Batch == 2
	})
	close(goOn)
	both.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("trainer %d: %v", i, err)
		}
	}
	p := w.last("t0", "a word at the end", func(p *schema.TrainerReport) bool { return p.Batches == 8 && p.Planned == 0 })
	if len(p.Links) != 2 || p.Links[0].Frames+p.Links[1].Frames != p.GradientFrames {
		t.Errorf("links %+v, and %d frames in all", p.Links, p.GradientFrames)
	}
	for i, l := range p.Links {
		if l.Shard != i || l.Frames == 0 || l.WindowBytes <= 0 || l.PendingBytes < 0 {
			t.Errorf("link %d: %+v", i, l)
		}
	}
}

// A report that is never made holds up no heartbeat.
func TestReportThatHangsHoldsUpNoHeartbeat(t *testing.T) {
	t.Parallel()
	server, w := startWatched(t, ps.Config{Shards: 1})
	config, job := testConfig(t, server), toyJob("hangs", 1, 1, schema.ApplyUpdate)
	config.HeartbeatEvery, config.TelemetryEvery = 20*time.Millisecond, 20*time.Millisecond
	goOn := make(chan struct{})
	config.GPUs = func() []schema.GPUReport {
		<-goOn
		return nil
	}
	s := joinAll(t, config, job)[0]
	defer s.Close()
	defer close(goOn)
	poll(t, "heartbeats without a report", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.bare["t0"] > 5
	})
	if n := len(w.of("t0")); n > 0 {
		t.Errorf("%d reports came", n)
	}
}

// A heartbeat takes the report along: there are no more of them than it takes for either.
func TestHeartbeatsCarryReports(t *testing.T) {
	t.Parallel()
	server, w := startWatched(t, ps.Config{Shards: 1})
	config, job := testConfig(t, server), toyJob("carried", 1, 1, schema.ApplyUpdate)
	config.HeartbeatEvery, config.TelemetryEvery = 400*time.Millisecond, 400*time.Millisecond
	s := joinAll(t, config, job)[0]
	defer s.Close()
	poll(t, "reports", func() bool { return len(w.of("t0")) >= 8 })
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bare["t0"] > 4 { // the first, and where the processor was late
		t.Errorf("%d heartbeats came without a report, %d with one", w.bare["t0"], len(w.all["t0"]))
	}
}

// The gradient of the first batch has one norm, wherever it is added up.
func TestGradientNormIsTold(t *testing.T) {
	t.Parallel()
	var want float64
	for _, c := range []struct {
		name   string
		change func(*schema.Job)
	}{
		{"rows", func(*schema.Job) {}},
		{"uneven", func(j *schema.Job) { j.Apply = schema.ApplyMean }},
		{"reduce", func(j *schema.Job) { j.Apply, j.Reduce = schema.ApplyMean, schema.ReduceTrainers }},
	} {
		server, w := startWatched(t, ps.Config{Shards: 2})
		config, job := testConfig(t, server), toyJob("norm-"+c.name, 1, 6, schema.ApplyUpdate)
		config.TelemetryEvery = 10 * time.Millisecond
		c.change(job)
		s := joinAll(t, config, job)[0]
		// One batch: another would be measured where it began a second later.
		if err := errors.Join(s.Run(testContext(t), newToy(t, job), 1, nil), s.Close()); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		got := w.last("t0", "a word at the end",
			func(p *schema.TrainerReport) bool { return p.Batches == 1 && p.Planned == 0 })
		if got.GradientNorm == nil || got.GradientBatch != 0 || !(*got.GradientNorm > 0) {
			t.Fatalf("%s: norm %v of batch %d", c.name, got.GradientNorm, got.GradientBatch)
		}
		if norm := float64(*got.GradientNorm); want == 0 {
			want = norm
		} else if math.Abs(norm-want) > 1e-6*want {
			t.Errorf("%s: norm %v, want %v", c.name, norm, want)
		}
	}
}
