package metrics

import (
	"fmt"
	"io"
	"math"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// samples are what a scrape of our own families says, as "name{labels}" and value.
func samples(t *testing.T, e *Exporter) map[string]float64 {
	t.Helper()
	all, err := e.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	add := func(name string, m *dto.Metric, v float64) {
		var labels []string
		for _, l := range m.Label {
			labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
		}
		key := name
		if len(labels) > 0 {
			key += "{" + strings.Join(labels, ",") + "}"
		}
		if _, twice := found[key]; twice {
			t.Errorf("%s is there twice", key)
		}
		found[key] = v
	}
	for _, f := range all {
		if !strings.HasPrefix(f.GetName(), "gradbus_") {
			continue
		}
		for _, m := range f.Metric {
			switch {
			case m.Counter != nil:
				add(f.GetName(), m, m.Counter.GetValue())
			case m.Gauge != nil:
				add(f.GetName(), m, m.Gauge.GetValue())
			default:
				add(f.GetName()+"_sum", m, m.Summary.GetSampleSum())
				add(f.GetName()+"_count", m, float64(m.Summary.GetSampleCount()))
			}
		}
	}
	return found
}

func wantSamples(t *testing.T, got map[string]float64, want map[string]float64) {
	t.Helper()
	for key, w := range want {
		if g, ok := got[key]; !ok {
			t.Errorf("no %s", key)
		} else if g != w && !(math.IsNaN(g) && math.IsNaN(w)) {
			t.Errorf("%s is %v, want %v", key, g, w)
		}
	}
}

func absent(t *testing.T, got map[string]float64, prefixes ...string) {
	t.Helper()
	for key := range got {
		for _, p := range prefixes {
			if strings.HasPrefix(key, p) {
				t.Errorf("%s is there", key)
			}
		}
	}
}

func TestScrapeSaysWhatReportsSay(t *testing.T) {
	_, e := full(3, 2)
	got := samples(t, e)
	wantSamples(t, got, map[string]float64{
		`gradbus_ps_frames_refused_total{reason="damaged"}`:                                         7,
		`gradbus_ps_frames_refused_total{reason="malformed"}`:                                       0,
		`gradbus_ps_control_loop_age_seconds`:                                                       0.5,
		`gradbus_ps_memory_limit_bytes`:                                                             1000,
		`gradbus_ps_verify_mismatches_total`:                                                        1,
		`gradbus_trainer_verify_mismatches_total{job_name="words",member="t0"}`:                     2,
		`gradbus_trainer_verified_blocks_total{job_name="words",member="t1"}`:                       20,
		`gradbus_disk_free_bytes{host="a",path="/var/lib/gradbus"}`:                                 10,
		`gradbus_disk_sample_age_seconds{host="a",path="/var/lib/gradbus"}`:                         2,
		`gradbus_disk_needed_bytes{host="a",path="/var/lib/gradbus"}`:                               0,
		`gradbus_disk_free_bytes{host="b",path="/models"}`:                                          20,
		`gradbus_disk_size_bytes{host="b",path="/models"}`:                                          200,
		`gradbus_disk_needed_bytes{host="b",path="/models"}`:                                        30,
		`gradbus_disk_sample_age_seconds{host="b",path="/models"}`:                                  1,
		`gradbus_job_phase{job_name="words",phase="running"}`:                                       1,
		`gradbus_job_phase{job_name="words",phase="ended"}`:                                         0,
		`gradbus_job_loss{job_name="words"}`:                                                        0.25,
		`gradbus_job_replicas_equal{job_name="words"}`:                                              1,
		`gradbus_trainer_awaited_seconds{job_name="words",member="t1"}`:                             1.5,
		`gradbus_trainer_awaited_seconds{job_name="words",member="t0"}`:                             0,
		`gradbus_trainer_silent_seconds{job_name="words",member="t0"}`:                              0.25,
		`gradbus_trainer_loss{job_name="words",member="t0"}`:                                        0.5,
		`gradbus_trainer_loss{job_name="words",member="t1"}`:                                        math.NaN(),
		`gradbus_trainer_sample_loss_sum{job_name="words",member="t0"}`:                             152,
		`gradbus_trainer_sample_loss_count{job_name="words",member="t0"}`:                           608,
		`gradbus_trainer_phase_seconds_total{job_name="words",member="t0",phase="compute"}`:         3,
		`gradbus_trainer_network_bytes_total{direction="received",job_name="words",member="t0"}`:    12,
		`gradbus_trainer_pending_bytes{job_name="words",member="t0"}`:                               200,
		`gradbus_trainer_window_bytes{job_name="words",member="t0"}`:                                2000,
		`gradbus_trainer_round_trip_seconds{job_name="words",member="t0"}`:                          0.002,
		`gradbus_trainer_doing_seconds{doing="result",job_name="words",member="t0"}`:                0.04,
		`gradbus_trainer_info{backend="cpu avx2",host="b",job_name="words",member="t0"}`:            1,
		`gradbus_shard_kernel_seconds_total{job_name="words",member="s1"}`:                          0.5,
		`gradbus_shard_awaited_trainers{job_name="words",member="s0"}`:                              1,
		`gradbus_gpu_state{gpu="GPU-a",host="a",state="degraded"}`:                                  1,
		`gradbus_gpu_state{gpu="GPU-a",host="a",state="healthy"}`:                                   0,
		`gradbus_gpu_state{gpu="GPU-b",host="b",state="degraded"}`:                                  1,
		`gradbus_gpu_utilisation_ratio{gpu="GPU-a",host="a"}`:                                       0.75,
		`gradbus_gpu_xid_events_total{gpu="GPU-a",host="a",xid="63"}`:                               1,
		`gradbus_gpu_sample_age_seconds{gpu="GPU-a",host="a"}`:                                      1,
		`gradbus_problem{code="made-up",level="critical"}`:                                          2,
		`gradbus_problem_info{code="made-up",gpu="",job_name="words",level="critical",member="t1"}`: 1,
		`gradbus_ops_stream_clients`:                                                                2,
	})
	for _, c := range status.Codes() {
		key := fmt.Sprintf("gradbus_problem{code=%q,level=%q}", c.Code, c.Level)
		if v, ok := got[key]; !ok || v != 0 {
			t.Errorf("%s is %v, %v: want 0 where there is no such problem", key, v, ok)
		}
	}
	for reason := schema.ReasonOK + 1; int(reason) < schema.ReasonCount; reason++ {
		if _, ok := got[fmt.Sprintf("gradbus_ps_frames_refused_total{reason=%q}", reason)]; !ok {
			t.Errorf("reason %v is not there", reason)
		}
	}
	if _, ok := got[`gradbus_ps_frames_refused_total{reason="ok"}`]; ok {
		t.Error("frames that were taken count as refused")
	}
}

// What nobody tells is absent, and never 0.
func TestWhatIsNotToldIsAbsent(t *testing.T) {
	c := everything(2, 1)
	c.status.Jobs, c.status.Problems = nil, nil
	c.own.Server.Verification, c.own.Server.Disks = schema.VerifyReport{}, nil
	c.own.Server.GPUs = []schema.GPUReport{{Index: 3, State: schema.GPUUnknown}}
	c.own.Server.Jobs[0].StartedMS = 0
	got := samples(t, c.exporter())
	absent(t, got, "gradbus_ps_veri", "gradbus_disk", "gradbus_problem_info", "gradbus_job_loss", "gradbus_job_replicas",
		"gradbus_job_start", "gradbus_job_end",
		"gradbus_trainer_loss", "gradbus_trainer_batches",
		"gradbus_gpu_temperature", "gradbus_gpu_memory", "gradbus_gpu_ecc", "gradbus_gpu_xid",
		"gradbus_gpu_thr", "gradbus_gpu_problem", "gradbus_gpu_sample_age", "gradbus_gpu_state_since", "gradbus_gpu_pcie")
	wantSamples(t, got, map[string]float64{`gradbus_gpu_state{gpu="index-3",host="a",state="unknown"}`: 1,
		`gradbus_trainer_silent_seconds{job_name="words",member="t0"}`: 0.25})

	nothing := everything(1, 1)
	nothing.own = nil
	none := New(Config{Version: "1", Status: nothing.exporter().config.Status})
	got = samples(t, none)
	absent(t, got, "gradbus_ps", "gradbus_job", "gradbus_ops_stream", "gradbus_ops_req")
	if len(got) == 0 {
		t.Error("before the first report there is nothing, not even the version")
	}
	nothing.status = nil
	absent(t, samples(t, none), "gradbus_ps", "gradbus_job", "gradbus_problem")
}

// Of a job of which a version is durable, and a later one is not.
func TestDurable(t *testing.T) {
	_, e := full(1, 1)
	wantSamples(t, samples(t, e), map[string]float64{
		`gradbus_job_checkpoints_enabled{job_name="words"}`:       1,
		`gradbus_job_durable_version{job_name="words"}`:           15,
		`gradbus_job_durable_age_seconds{job_name="words"}`:       12,
		`gradbus_job_checkpoint_bytes{job_name="words"}`:          4096,
		`gradbus_job_checkpoint_seconds{job_name="words"}`:        2.5,
		`gradbus_job_checkpoint_late_seconds{job_name="words"}`:   1.5,
		`gradbus_job_checkpoint_failing{job_name="words"}`:        1,
		`gradbus_job_checkpoint_failures_total{job_name="words"}`: 2,
	})
}

// Of a job of which no version is written, and of one of which none is durable yet, nothing more is told than that.
func TestNothingDurable(t *testing.T) {
	c := everything(1, 1)
	d := c.status.Jobs[0].Durability
	*d = status.Durability{DurabilityReport: schema.DurabilityReport{Off: "this ps keeps no checkpoints"}}
	got := samples(t, c.exporter())
	wantSamples(t, got, map[string]float64{`gradbus_job_checkpoints_enabled{job_name="words"}`: 0})
	absent(t, got, "gradbus_job_durable", "gradbus_job_checkpoint_")

	*d = status.Durability{DurabilityReport: schema.DurabilityReport{EveryMS: 10_000}}
	got = samples(t, c.exporter())
	wantSamples(t, got, map[string]float64{`gradbus_job_checkpoints_enabled{job_name="words"}`: 1,
		`gradbus_job_checkpoint_failing{job_name="words"}`:        0,
		`gradbus_job_checkpoint_failures_total{job_name="words"}`: 0,
		`gradbus_job_checkpoint_late_seconds{job_name="words"}`:   0})
	absent(t, got, "gradbus_job_durable", "gradbus_job_checkpoint_bytes", "gradbus_job_checkpoint_seconds")

	d.Version, d.AgeMS, d.Bytes = 7, 3_600_000, 100 // that the job was resumed from
	absent(t, samples(t, c.exporter()), "gradbus_job_checkpoint_seconds")

	c.status.Jobs[0].Durability = nil // a coordinator that does not say
	absent(t, samples(t, c.exporter()), "gradbus_job_durable", "gradbus_job_checkpoint")
}

// Trainers of jobs that others coordinate, and of other runs, are left to others.
func TestOnlyWhatIsCoordinatedHere(t *testing.T) {
	c, e := full(2, 1)
	here := c.status.Jobs[0]
	there, earlier := here, here
	there.Name, earlier.RunID = "elsewhere", "76"
	c.status.Jobs = []status.Job{there, earlier}
	absent(t, samples(t, e), "gradbus_trainer_batches_total")
	c.status.Jobs = append(c.status.Jobs, here)
	wantSamples(t, samples(t, e), map[string]float64{`gradbus_trainer_batches_total{job_name="words",member="t0"}`: 19})
}

// Places that nobody holds are not silent.
func TestFreePlaces(t *testing.T) {
	c := everything(3, 1)
	c.own.Server.Jobs[0].Members[0].Host, c.own.Server.Jobs[0].Members[1].Left = "", true
	got := samples(t, c.exporter())
	absent(t, got, `gradbus_trainer_silent_seconds{job_name="words",member="t0"}`,
		`gradbus_trainer_silent_seconds{job_name="words",member="t1"}`)
	wantSamples(t, got, map[string]float64{`gradbus_trainer_silent_seconds{job_name="words",member="t2"}`: 0.25,
		`gradbus_job_trainers_missing{job_name="words"}`: 2})
}

// Members vanish with their job; what they counted lasts until then, what was true of a moment does not.
func TestStaleMembersVanish(t *testing.T) {
	c, e := full(2, 1)
	c.now = moment.Add(staleAfter + time.Second)
	got := samples(t, e)
	absent(t, got, "gradbus_trainer_loss", "gradbus_trainer_pending", "gradbus_trainer_doing", "gradbus_trainer_connected",
		`gradbus_gpu_state{gpu="GPU-b"`)
	wantSamples(t, got, map[string]float64{`gradbus_trainer_batches_total{job_name="words",member="t0"}`: 19,
		`gradbus_trainer_report_age_seconds{job_name="words",member="t0"}`: 11})

	c, e = full(2, 1)
	c.own.Server.Jobs[0].Phase, c.own.Server.Jobs[0].EndedMS = "ended", 1_700_000_008_000
	got = samples(t, e)
	absent(t, got, "gradbus_trainer_loss", "gradbus_trainer_silent", "gradbus_job_loss")
	wantSamples(t, got, map[string]float64{`gradbus_trainer_batches_total{job_name="words",member="t0"}`: 19,
		`gradbus_job_end_timestamp_seconds{job_name="words"}`: 1_700_000_008})

	// The next run of that name: nothing of the last one is left, before its trainers speak.
	next := c.own.Server.Jobs[0]
	next.RunID, next.Phase, next.EndedMS = 78, "running", 0
	c.own.Server.Jobs = append(c.own.Server.Jobs, next)
	got = samples(t, e)
	absent(t, got, "gradbus_trainer_batches", "gradbus_job_end", "gradbus_job_loss")
	wantSamples(t, got, map[string]float64{`gradbus_job_phase{job_name="words",phase="running"}`: 1})

	c.own.Server.Jobs[len(c.own.Server.Jobs)-1].Members[0].Lost = true
	got = samples(t, e)
	absent(t, got, `gradbus_trainer_silent_seconds{job_name="words",member="t0"}`,
		`gradbus_trainer_disconnected{job_name="words",member="t0"}`)
	wantSamples(t, got, map[string]float64{`gradbus_trainer_lost{job_name="words",member="t0"}`: 1,
		`gradbus_trainer_lost{job_name="words",member="t1"}`: 0,
		`gradbus_job_trainers_missing{job_name="words"}`:     1})

	c.own.Server.Jobs = nil
	absent(t, samples(t, e), "gradbus_trainer", "gradbus_job")
}

// How old a report is follows from the status, whatever the machine's clock is set to meanwhile.
func TestAgesWithoutTheClock(t *testing.T) {
	c, e := full(1, 1)
	c.now = moment.Add(-time.Hour)
	for _, age := range []time.Duration{0, staleAfter + time.Second} {
		e.config.Age = func() time.Duration { return age }
		got := samples(t, e)
		wantSamples(t, got, map[string]float64{
			`gradbus_trainer_report_age_seconds{job_name="words",member="t0"}`: age.Seconds()})
		if _, there := got[`gradbus_trainer_loss{job_name="words",member="t0"}`]; there != (age == 0) {
			t.Errorf("after %v a trainer's loss is told: %v", age, there)
		}
	}
}

// Whatever is in a report, the scrape stands: labels are unique, short and UTF-8.
func TestHostileReports(t *testing.T) {
	c := everything(2, 1)
	e := c.exporter()
	long := strings.Repeat("x", 100_000)
	p := trainerReport(0, 1)
	p.Host, p.Trainer.Backend, p.Trainer.Doing = "\xff"+long, long, schema.Doing(long)
	g := fullGPU(5)
	g.UUID, g.Name, g.Code, g.Throttled = long, "\xff", long, []string{"a", "a", long, "\xff"}
	g.XIDs = map[string]uint64{long + "1": 1, long + "2": 2, "": 3}
	for i := range 1000 {
		g.XIDs[fmt.Sprint(i)] = 1
		g.Throttled = append(g.Throttled, fmt.Sprint(i))
	}
	other := g
	other.UUID += "y"
	p.Trainer.GPUs = []schema.GPUReport{g, g, other, fullGPU(0)}
	c.heard(0, p)
	disk := schema.DiskReport{Path: "/\xff"}
	c.own.Server.Disks = []schema.DiskReport{disk, disk, {Path: long}, {Path: long + "y"}}
	c.own.Server.Shards = append(c.own.Server.Shards, c.own.Server.Shards[0])
	c.own.Server.Jobs[0].Members = append(c.own.Server.Jobs[0].Members, c.own.Server.Jobs[0].Members[0])
	c.own.Server.Jobs = append(c.own.Server.Jobs, c.own.Server.Jobs[0])
	c.status.Problems = append(c.status.Problems, c.status.Problems...)
	got := samples(t, e)
	for key := range got {
		if len(key) > 8*schema.TextBytesMax {
			t.Errorf("%.100s... has %d bytes", key, len(key))
		}
	}
	if n := len(got); n > 1000 {
		t.Errorf("%d samples: a GPU's lists are not bounded", n)
	}
	pedantic(t, e)
}

func pedantic(t *testing.T, e *Exporter) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(e); err != nil {
		t.Fatal(err)
	}
	if _, err := registry.Gather(); err != nil {
		t.Error(err)
	}
}

// The strictest registry and the linter of client_golang find nothing.
func TestFamiliesAreWellFormed(t *testing.T) {
	_, e := full(3, 2)
	pedantic(t, e)
	answer := httptest.NewRecorder()
	e.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	if answer.Code != 200 || !strings.HasPrefix(answer.Header().Get("Content-Type"), "text/plain; version=0.0.4") {
		t.Fatalf("answered %d, %s", answer.Code, answer.Header())
	}
	problems, err := promlint.New(answer.Body).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	all, _ := e.Gather()
	if !slices.IsSortedFunc(all, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) }) {
		t.Error("families are not in order")
	}
	told := map[string]bool{}
	for _, f := range all {
		told[f.GetName()] = true
	}
	c := everything(1, 1) // an ended job says what a running one does not
	c.own.Server.Jobs[0].Phase, c.own.Server.Jobs[0].EndedMS, c.own.Server.Jobs[0].End = "ended", 1, schema.EndStopped
	for key := range samples(t, c.exporter()) {
		told[strings.SplitN(key, "{", 2)[0]] = true
	}
	for name := range e.families {
		if !told[name] {
			t.Errorf("%s is never told in these tests", name)
		}
	}
}

// Scrapes, reports and pages at once; the race detector looks on.
func TestScrapesWhileReportsCome(t *testing.T) {
	c, e := full(2, 1)
	c.status.Own = c.own
	var latest atomic.Pointer[status.Status]
	latest.Store(c.status)
	e.config.Status = latest.Load
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			next := *c.status
			next.Jobs = slices.Clone(next.Jobs)
			next.Jobs[0].Trainers = slices.Clone(next.Jobs[0].Trainers)
			next.Jobs[0].Trainers[i%2].Report = trainerReport(i%2, 1)
			latest.Store(&next)
		}
	}()
	for range 20 {
		answer := httptest.NewRecorder()
		e.ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
		if answer.Code != 200 {
			t.Fatalf("answered %d", answer.Code)
		}
	}
	<-done
}

// BenchmarkScrape is one scrape of 64 trainers and 16 shards; it has to stay far below 20 ms.
func BenchmarkScrape(b *testing.B) {
	_, e := full(64, 16)
	request := httptest.NewRequest("GET", "/metrics", nil)
	size := 0
	for b.Loop() {
		answer := httptest.NewRecorder()
		answer.Body = nil
		counted := &counting{ResponseRecorder: answer}
		e.ServeHTTP(counted, request)
		size = counted.n
	}
	b.ReportMetric(float64(size), "bytes")
}

type counting struct {
	*httptest.ResponseRecorder
	n int
}

func (c *counting) Write(p []byte) (int, error) { c.n += len(p); return len(p), nil }

var _ io.Writer = (*counting)(nil)
