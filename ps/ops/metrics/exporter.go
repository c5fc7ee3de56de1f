// Package metrics exports figures of a ps to Prometheus: of the jobs that it coordinates with their trainers, of its
// shards, of its process, memory, disks and GPUs, and of its problems.
//
// It reads the status and the reports that the status was made from. A scrape asks no GPU, no shard and no network. An
// unknown value is absent, never 0; NaN and infinite losses are exported as they are.
//
// # Which ps exports what
//
// Job, trainer and shard series are exported by exactly one ps, so that sums over all ps of a cluster count each once:
// a job and its trainers by the ps that coordinates the job, a shard by the ps that has it. GPU and problem series may
// come from several ps: aggregate those with max.
//
// Labels are bounded: job_name (Prometheus has a label job of its own, which would win), member (t3, s0: as in
// subjects and logs), gpu (its UUID), host, and short lists of names. No batch, run or address is a label of anything
// but the _info families, which have one series for each subject.
//
// # Families
//
// families.txt has a line for each family: name, type, labels in the order in which put receives them, and help.
// docs/metrics.md describes them. A new figure is a line there and a call of put.
package metrics

import (
	_ "embed"
	"maps"
	"net/http"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"gradbus/ps/ops/status"
	"gradbus/schema"
)

// Config is the sources of an Exporter. Their functions must not block.
type Config struct {
	Version string                // of gradbus
	Status  func() *status.Status // of all jobs, the latest; nil before the first
	Age     func() time.Duration  // of that; nil is 0
	Alive   func() time.Time      // when the control loop last turned; may be nil, or zero before it does
	Ops     func() Ops            // what observing costs; may be nil
	Now     func() time.Time      // nil is time.Now
}

// Ops is the cost of the HTTP side of a ps.
type Ops struct {
	StreamClients  int    // that follow the stream of updates now
	UpdatesDropped uint64 // that a client was too slow for
	ReportsDropped uint64 // that came faster than the status took them
	Requests       uint64
}

// staleAfter is the age from which a trainer's report says nothing of the moment any more. Reports come once a second.
const staleAfter = 10 * time.Second

// scrapesMax is the number of scrapes that are answered at once: a pair of Prometheus servers, a person, and one to
// spare.
const scrapesMax = 4

// Bounds of lists that a GPU's report carries, so that no driver and no trainer can make labels without end.
const (
	throttlesMax = 16
	xidsMax      = 64
	nameBytesMax = 40 // of a throttling reason, an XID's code
	problemsMax  = 200
)

// families is a table of all families but those of Go and the process.
//
//go:embed families.txt
var families string

// family is one metric: its description, its type and its labels.
type family struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	labels []string
}

// Exporter answers scrapes. It is safe for concurrent use.
type Exporter struct {
	config   Config
	families map[string]family // by name
	registry *prometheus.Registry
	handler  http.Handler

	mutex   sync.Mutex // a leaf: nothing is called under it
	scrapes uint64
	seconds float64 // spent on them
}

// New is an Exporter that has answered no scrape yet.
func New(c Config) *Exporter {
	if c.Now == nil {
		c.Now = time.Now
	}
	e := &Exporter{config: c, families: map[string]family{}, registry: prometheus.NewRegistry()}
	for line := range strings.Lines(families) {
		part := strings.SplitN(strings.TrimSpace(line), " ", 4)
		f := family{kind: prometheus.GaugeValue}
		if part[2] != "-" {
			f.labels = strings.Split(part[2], ",")
		}
		if part[1] == "counter" {
			f.kind = prometheus.CounterValue
		}
		f.desc = prometheus.NewDesc(part[0], part[3], f.labels, nil)
		e.families[part[0]] = f
	}
	e.registry.MustRegister(collectors.NewGoCollector(), e,
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	e.handler = promhttp.HandlerFor(e, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapesMax, DisableCompression: true})
	return e
}

// ServeHTTP implements http.Handler: the text format of Prometheus, not compressed, since a scrape crosses a local
// network and compressing it would take as long again as making it.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.handler.ServeHTTP(w, r) }

// Gather implements prometheus.Gatherer.
func (e *Exporter) Gather() ([]*dto.MetricFamily, error) {
	from := time.Now()
	all, err := e.registry.Gather()
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.scrapes++
	e.seconds += time.Since(from).Seconds()
	return all, err
}

// Describe implements prometheus.Collector.
func (e *Exporter) Describe(out chan<- *prometheus.Desc) {
	for _, f := range e.families {
		out <- f.desc
	}
}

// Collect implements prometheus.Collector.
func (e *Exporter) Collect(out chan<- prometheus.Metric) {
	view := e.config.Status()
	s := &scrape{Exporter: e, out: out, view: view, now: e.config.Now(), seen: map[string]bool{}}
	s.put("gradbus_build_info", 1, e.config.Version, runtime.Version())
	s.ops()
	if view == nil {
		return
	}
	s.problems()
	if own := view.Own; own != nil && own.Server != nil {
		s.server(own)
		s.shards(own.Server)
		s.gpus(own, own.Server.GPUs)
		s.disks(own, own.Server.Disks)
		for i := range own.Server.Jobs {
			if j := &own.Server.Jobs[i]; j == coordinated(own.Server, j.Name) {
				s.job(j, shownJob(view, j))
			}
		}
	}
}

// coordinated is the job of that name in the ps's own report.
func coordinated(own *schema.ServerReport, name schema.JobName) (found *schema.JobReport) {
	for i := range own.Jobs { // one of that name may have ended, and the next be under way
		if j := &own.Jobs[i]; j.Name == name && (found == nil || found.Phase == schema.PhaseEnded) {
			found = j
		}
	}
	return found
}

// shownJob is the job as the status has it; empty where it has not.
func shownJob(view *status.Status, j *schema.JobReport) *status.Job {
	for i := range view.Jobs {
		if s := &view.Jobs[i]; s.Name == string(j.Name) && s.RunID == strconv.FormatUint(uint64(j.RunID), 10) {
			return s
		}
	}
	return &status.Job{}
}

// scrape is one Collect.
type scrape struct {
	*Exporter
	out  chan<- prometheus.Metric
	view *status.Status
	now  time.Time
	seen map[string]bool // samples by name and labels: a second one of the same would spoil the whole scrape
}

// put writes a sample: a number, a truth value, or a pointer to a number, of which nil is absent.
func (s *scrape) put(name string, value any, labels ...string) {
	v := reflect.ValueOf(value)
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return
		}
		v = v.Elem()
	}
	f := 0.0
	switch {
	case v.CanInt():
		f = float64(v.Int())
	case v.CanUint():
		f = float64(v.Uint())
	case v.CanFloat():
		f = v.Float()
	case v.Bool():
		f = 1
	}
	s.send(name, labels, func(of family) prometheus.Metric {
		return prometheus.MustNewConstMetric(of.desc, of.kind, f, labels...)
	})
}

// summary writes a number of observations and their sum, without quantiles.
func (s *scrape) summary(name string, count uint64, sum float64, labels ...string) {
	s.send(name, labels, func(of family) prometheus.Metric {
		return prometheus.MustNewConstSummary(of.desc, count, sum, nil, labels...)
	})
}

// send makes labels fit, UTF-8 and no longer than texts of the protocol, and writes a sample once.
func (s *scrape) send(name string, labels []string, metric func(family) prometheus.Metric) {
	for i := range labels {
		labels[i] = schema.Clip(labels[i])
	}
	key := name + "\xff" + strings.Join(labels, "\xff")
	if !s.seen[key] {
		s.seen[key] = true
		s.out <- metric(s.families[name])
	}
}

// known writes what may not be known: positive values alone.
func (s *scrape) known(name string, value float64, labels ...string) {
	if value > 0 {
		s.put(name, value, labels...)
	}
}

func seconds(ms int64) float64 { return float64(ms) / 1000 }

// ops tells what observing costs; the scrape under way is not in it.
func (s *scrape) ops() {
	s.mutex.Lock()
	scrapes, spent := s.scrapes, s.seconds
	s.mutex.Unlock()
	s.summary("gradbus_ops_scrape_seconds", scrapes, spent)
	if s.config.Ops != nil {
		o := s.config.Ops()
		s.put("gradbus_ops_stream_clients", o.StreamClients)
		s.put("gradbus_ops_updates_dropped_total", o.UpdatesDropped)
		s.put("gradbus_ops_reports_dropped_total", o.ReportsDropped)
		s.put("gradbus_ops_requests_total", o.Requests)
	}
}

// problems writes the problems of the whole cluster, as every ps sees them. Every code is present, 0 or not, so that
// alerts see a change.
func (s *scrape) problems() {
	type coded struct {
		code  string
		level status.Level
	}
	counts := map[coded]int{}
	for _, c := range status.Codes() {
		counts[coded{c.Code, c.Level}] = 0
	}
	for i := range s.view.Problems[:min(len(s.view.Problems), problemsMax)] {
		p := &s.view.Problems[i]
		counts[coded{p.Code, p.Level}]++
		s.put("gradbus_problem_info", 1, p.Code, string(p.Level), p.Job, p.Member, p.GPU)
	}
	for c, n := range counts {
		s.put("gradbus_problem", n, c.code, string(c.level))
	}
}

// server writes the figures of this ps.
func (s *scrape) server(own *schema.Telemetry) {
	r := own.Server
	s.put("gradbus_ps_info", 1, r.ID, own.Host, r.Backend)
	turned := time.Time{}
	if s.config.Alive != nil {
		turned = s.config.Alive()
	}
	if turned.IsZero() {
		turned = s.now
	}
	s.put("gradbus_ps_control_loop_age_seconds", max(0, s.now.Sub(turned).Seconds()))
	s.put("gradbus_ps_deadline_seconds", r.Deadline)
	s.put("gradbus_ps_control_lost", r.ControlLost)
	for _, phase := range phases() {
		n := 0
		for i := range r.Jobs {
			if r.Jobs[i].Phase == phase {
				n++
			}
		}
		s.put("gradbus_ps_jobs", n, phase)
	}
	s.put("gradbus_ps_frames_total", r.Frames)
	s.put("gradbus_ps_frame_bytes_total", r.Bytes)
	for reason := schema.ReasonOK + 1; int(reason) < schema.ReasonCount; reason++ { // 0 or not: else there is no increase
		s.put("gradbus_ps_frames_refused_total", r.Reasons[reason.String()], reason.String())
	}
	for backend, n := range r.Calls {
		s.put("gradbus_ps_calls_total", n, backend)
	}
	s.put("gradbus_ps_dropped_messages_total", r.Dropped)
	s.put("gradbus_ps_slow_readers_total", r.SlowReaders)
	s.traffic("gradbus_ps", &r.Traffic)
	s.put("gradbus_ps_memory_promised_bytes", r.Memory.PromisedBytes)
	s.put("gradbus_ps_memory_limit_bytes", r.Memory.MaxBytes)
	s.put("gradbus_ps_cpus", r.Process.CPUs)
	s.verification("gradbus_ps", &r.Verification)
	if b := r.Primary; b != nil {
		if !b.Peers {
			s.put("gradbus_ps_standby_reached", b.Reached)
		}
		for _, h := range b.Jobs {
			s.put("gradbus_ps_standby_job_ready", h.Version > 0, string(h.Job))
			s.put("gradbus_ps_standby_job_version", h.Version, string(h.Job))
		}
	}
}

func phases() []string {
	return []string{schema.PhaseGathering, schema.PhaseRunning, schema.PhaseEnded}
}

// traffic tells what went over all connections of a member.
func (s *scrape) traffic(of string, t *schema.Traffic, labels ...string) {
	to := func(direction string) []string { return append(slices.Clone(labels), direction) }
	s.put(of+"_network_bytes_total", t.BytesSent, to("sent")...)
	s.put(of+"_network_bytes_total", t.BytesReceived, to("received")...)
	s.put(of+"_network_messages_total", t.MessagesSent, to("sent")...)
	s.put(of+"_network_messages_total", t.MessagesReceived, to("received")...)
	s.put(of+"_network_reconnects_total", t.Reconnects, labels...)
}

// verification tells what a member has computed again; nothing where it computes nothing again.
func (s *scrape) verification(of string, v *schema.VerifyReport, labels ...string) {
	if v.OneIn > 0 {
		s.put(of+"_verified_blocks_total", v.Blocks, labels...)
		s.put(of+"_verify_mismatches_total", v.Mismatches, labels...)
		s.put(of+"_verify_interval_blocks", v.OneIn, labels...)
	}
}

// shards writes the figures of the shards of this ps.
func (s *scrape) shards(own *schema.ServerReport) {
	for i := range own.Shards {
		r := &own.Shards[i]
		job, member := string(r.Job), string(schema.ShardMember(r.Shard))
		put := func(name string, value any) { s.put("gradbus_shard_"+name, value, job, member) }
		put("ready", r.Ready)
		put("version", r.Version)
		put("rounds_total", r.Rounds)
		put("frames_total", r.Frames)
		put("frame_bytes_total", r.Bytes)
		put("acks_total", r.Acks)
		put("lookups_total", r.Lookups)
		put("pulls_total", r.Pulls)
		put("repeats_total", r.Repeats)
		put("staged_bytes", r.StagedBytes)
		put("staged_limit_bytes", r.StagedBytesMax)
		put("queue_frames", r.QueueFrames)
		put("queue_bytes", r.QueueBytes)
		put("held_bytes", r.HeldBytes)
		put("memory_bytes", r.MemoryBytes)
		awaited := 0
		if r.Waiting != nil {
			awaited = len(r.Waiting.Members)
		}
		put("awaited_trainers", awaited)
		put("step_seconds_total", r.StepSeconds)
		put("publish_seconds_total", r.PublishSeconds)
		put("kernel_seconds_total", r.ApplySeconds)
		put("kernel_bytes_total", r.ApplyBytes)
		s.buckets(job, member, r.Buckets)
	}
}

func (s *scrape) buckets(job, member string, buckets []schema.BucketReport) {
	for i := range buckets {
		b := &buckets[i]
		labels := []string{job, member, strconv.FormatUint(uint64(b.Bucket), 10), "dense"}
		if b.Sparse {
			labels[3] = "sparse"
		}
		for name, sum := range map[string]schema.Real{"straggler": b.StragglerSeconds, "batch": b.BatchSeconds,
			"arrival": b.ArrivalSeconds, "average": b.AverageSeconds} {
			s.summary("gradbus_shard_bucket_"+name+"_seconds", b.Rounds, float64(sum), labels...)
		}
		s.put("gradbus_shard_bucket_straggler_max_seconds", b.StragglerMaxSeconds, labels...)
		s.put("gradbus_shard_bucket_batch_max_seconds", b.BatchMaxSeconds, labels...)
	}
}

// job writes the figures of a job that this ps coordinates: from its report, and from the status.
func (s *scrape) job(j *schema.JobReport, shown *status.Job) {
	name, running := string(j.Name), j.Phase == schema.PhaseRunning
	put := func(name string, value any, labels ...string) {
		s.put("gradbus_job_"+name, value, append([]string{string(j.Name)}, labels...)...)
	}
	put("info", 1, strconv.FormatUint(uint64(j.RunID), 10), j.Workload, j.Consistency, j.Apply, j.Reduce)
	for _, phase := range phases() {
		put("phase", j.Phase == phase, phase)
	}
	end := j.End
	if shown.End != "" { // another ps may have gone on with it
		end = shown.End
	}
	for _, of := range schema.Ends() {
		if end != "" {
			put("end", end == of, string(of))
		}
	}
	missing := 0
	for i := range j.Members {
		if m := &j.Members[i]; j.Phase != schema.PhaseEnded && (m.Host == "" || m.Left || m.Lost) {
			missing++
		}
	}
	put("trainers", j.Trainers)
	put("trainers_missing", missing)
	put("shards", j.Shards)
	put("lanes", j.Lanes)
	put("parameters", j.Parameters)
	put("batch", j.Batch)
	s.known("gradbus_job_start_timestamp_seconds", seconds(j.StartedMS), name)
	s.known("gradbus_job_end_timestamp_seconds", seconds(j.EndedMS), name)
	if running {
		put("loss", shown.Loss)
	}
	if shown.Replicas != nil && len(shown.Replicas.Digests) > 1 {
		put("replicas_equal", shown.Replicas.Equal)
	}
	s.durability(name, shown.Durability)
	s.replica(name, shown.Replica)
	s.trainers(j, shown)
}

// durability tells how durable a job is.
func (s *scrape) durability(job string, d *status.Durability) {
	if d == nil {
		return
	}
	s.put("gradbus_job_checkpoints_enabled", d.Off == "", job)
	if d.Off != "" {
		return
	}
	s.put("gradbus_job_checkpoint_late_seconds", seconds(d.LateMS), job)
	s.put("gradbus_job_checkpoint_failing", d.Failure != "", job)
	s.put("gradbus_job_checkpoint_failures_total", d.Failures, job)
	if d.Version > 0 {
		s.put("gradbus_job_durable_version", d.Version, job)
		s.put("gradbus_job_durable_age_seconds", seconds(d.AgeMS), job)
		s.put("gradbus_job_checkpoint_bytes", d.Bytes, job)
		s.known("gradbus_job_checkpoint_seconds", float64(d.TookSeconds), job)
	}
}

// replica writes the replica of a job; nothing if no ps has ever held a replica, or none can.
func (s *scrape) replica(job string, b *status.Replica) {
	if b == nil || b.Off != "" {
		return
	}
	s.put("gradbus_job_standby_ready", b.Ready, job)
	s.put("gradbus_job_standby_bytes_total", b.Bytes, job)
	s.put("gradbus_job_standby_unready_seconds", seconds(b.UnreadyMS), job)
	s.put("gradbus_job_standby_late_seconds", seconds(b.LateMS), job)
	if b.Version > 0 {
		s.put("gradbus_job_standby_version", b.Version, job)
		s.put("gradbus_job_standby_age_seconds", seconds(b.AgeMS), job)
		s.put("gradbus_job_standby_seconds", b.TookSeconds, job)
	}
}

// trainers writes the figures of the trainers of a job: those of their coordinator, and those of their own reports.
func (s *scrape) trainers(j *schema.JobReport, shown *status.Job) {
	for i := range j.Members {
		m := &j.Members[i]
		var out *status.Trainer
		if i < len(shown.Trainers) && shown.Trainers[i].Member == string(m.Member) {
			out = &shown.Trainers[i]
		}
		labels := []string{string(j.Name), string(m.Member)}
		if m.Host != "" && !m.Left && j.Phase != schema.PhaseEnded {
			s.slot(m, out, labels)
		}
		if out == nil || out.Report == nil {
			continue
		}
		age := time.Duration(s.view.NowMS-out.HeardMS) * time.Millisecond // the machine's clock may be set in between
		if s.config.Age != nil {
			age += s.config.Age()
		}
		s.trainer(out.Report, max(0, age), labels)
		if age <= staleAfter && j.Phase != schema.PhaseEnded {
			s.moment(out.Report.Trainer, labels)
			s.gpus(out.Report, out.Report.Trainer.GPUs)
			s.disks(out.Report, out.Report.Trainer.Disks)
		}
	}
}

// slot writes what the coordinator of a running job reports of a trainer. A trainer that was given up is silent for ever,
// and no trainer waits for it.
func (s *scrape) slot(m *schema.MemberReport, shown *status.Trainer, labels []string) {
	s.put("gradbus_trainer_lost", m.Lost, labels...)
	if m.Lost {
		return
	}
	awaited := 0.0
	if m.Waited {
		awaited = seconds(m.WaitedMS)
	}
	s.put("gradbus_trainer_silent_seconds", seconds(m.SilentMS), labels...)
	s.put("gradbus_trainer_awaited_seconds", awaited, labels...)
	s.put("gradbus_trainer_awaited_first", m.Waited && m.First, labels...)
	s.put("gradbus_trainer_disconnected", m.Gone, labels...)
}

// trainer writes the figures of a trainer that stay true: of its last report, however old, until the job is forgotten.
func (s *scrape) trainer(p *schema.Telemetry, age time.Duration, labels []string) {
	t := p.Trainer
	put := func(name string, value any, more ...string) {
		s.put("gradbus_trainer_"+name, value, slices.Concat(labels, more)...)
	}
	put("info", 1, p.Host, t.Backend)
	put("start_timestamp_seconds", seconds(p.StartedMS))
	put("report_age_seconds", age.Seconds())
	put("batches_total", t.Batches)
	put("samples_total", t.Samples)
	put("behind_versions_total", t.Behind)
	s.summary("gradbus_trainer_sample_loss", t.Loss.Samples, float64(t.Loss.Sum), slices.Clone(labels)...)
	put("bad_loss_batches_total", t.Loss.Bad)
	put("phase_seconds_total", t.KeysSeconds, "keys")
	put("phase_seconds_total", t.LookupSeconds, "lookup")
	put("phase_seconds_total", t.ComputeSeconds, "compute")
	put("phase_seconds_total", t.SendSeconds, "send")
	put("phase_seconds_total", t.ResultSeconds, "result")
	s.traffic("gradbus_trainer", &t.Traffic, labels...)
	put("network_dropped_messages_total", t.Traffic.Dropped)
	put("gradient_frames_total", t.GradientFrames)
	put("gradient_frames_resent_total", t.Resent)
	put("results_total", t.Results)
	put("results_repeated_total", t.ResultsRepeated)
	put("lanes_skipped_total", t.LanesSkipped)
	put("lookups_repeated_total", t.LookupsRepeated)
	put("pulls_total", t.Pulls)
	s.verification("gradbus_trainer", &t.Verification, labels...)
	put("cpu_seconds_total", t.Process.CPUSeconds)
}

// moment writes the figures of a trainer that are true for a moment only.
func (s *scrape) moment(t *schema.TrainerReport, labels []string) {
	put := func(name string, value any, more ...string) {
		s.put("gradbus_trainer_"+name, value, slices.Concat(labels, more)...)
	}
	put("batch", t.Batch)
	s.known("gradbus_trainer_end_batch", float64(t.Planned), slices.Clone(labels)...)
	if t.Batches > 0 {
		put("loss", t.Loss.Last)
	}
	put("gradient_norm", t.GradientNorm)
	if t.Doing.Known() { // the label is bounded, whatever the report says
		put("doing_seconds", seconds(t.DoingMS), string(t.Doing))
	}
	put("connected", t.Traffic.Connected)
	var pending, window int64
	var trip schema.Real
	for i := range t.Links {
		l := &t.Links[i]
		pending, window, trip = pending+l.PendingBytes, window+l.WindowBytes, max(trip, l.RoundTrip)
	}
	put("pending_bytes", pending)
	put("window_bytes", window)
	s.known("gradbus_trainer_round_trip_seconds", float64(trip), slices.Clone(labels)...)
	put("resident_bytes", t.Process.ResidentBytes)
	put("heap_bytes", t.Process.HeapBytes)
	put("goroutines", t.Process.Goroutines)
	put("cpus", t.Process.CPUs)
}

// disks writes the file systems that this ps and the trainers of its jobs write to, each path of a machine once.
func (s *scrape) disks(of *schema.Telemetry, disks []schema.DiskReport) {
	for i := range disks {
		d := &disks[i]
		s.put("gradbus_disk_free_bytes", d.FreeBytes, of.Host, d.Path)
		s.put("gradbus_disk_size_bytes", d.TotalBytes, of.Host, d.Path)
		s.put("gradbus_disk_needed_bytes", d.NeedBytes, of.Host, d.Path)
		if d.SampleMS > 0 {
			s.put("gradbus_disk_sample_age_seconds", max(0, seconds(s.now.UnixMilli()-d.SampleMS)), of.Host, d.Path)
		}
	}
}

// names are those of a list that are fit for labels: short, each once, in order, and not too many.
func names(of []string, most int) []string {
	of = slices.DeleteFunc(slices.Clone(of), func(name string) bool {
		return name == "" || len(name) > nameBytesMax || schema.Clip(name) != name
	})
	slices.Sort(of)
	of = slices.Compact(of)
	return of[:min(len(of), most)]
}

// gpus writes the figures of GPUs, each once: the report of this ps comes first.
func (s *scrape) gpus(of *schema.Telemetry, gpus []schema.GPUReport) {
	for i := range gpus {
		s.gpu(&gpus[i], of.Host)
	}
}

func (s *scrape) gpu(g *schema.GPUReport, host string) {
	name := g.UUID
	if name == "" { // the driver does not tell it
		name = "index-" + strconv.Itoa(g.Index)
	}
	put := func(of string, value any, labels ...string) {
		s.put("gradbus_gpu_"+of, value, append([]string{name, host}, labels...)...)
	}
	put("info", 1, strconv.Itoa(g.Index), g.Name, g.PCI, g.Driver)
	for _, state := range []schema.GPUState{schema.GPUAbsent, schema.GPUUnknown, schema.GPUHealthy, schema.GPUDegraded,
		schema.GPUUnhealthy} {
		put("state", g.State == state, string(state))
	}
	if g.Code != "" {
		put("problem", 1, g.Code)
	}
	s.known("gradbus_gpu_state_since_timestamp_seconds", seconds(g.SinceMS), name, host)
	if g.SampleMS > 0 {
		put("sample_age_seconds", max(0, seconds(s.now.UnixMilli()-g.SampleMS)))
	}
	put("used", g.Used)
	put("injected", g.Injected)
	for _, reason := range names(g.Throttled, throttlesMax) {
		put("throttled", 1, reason)
	}
	for _, code := range names(slices.Collect(maps.Keys(g.XIDs)), xidsMax) {
		put("xid_events_total", g.XIDs[code], code)
	}
	put("ecc_errors_total", g.ECCCorrected, "corrected")
	put("ecc_errors_total", g.ECCUncorrected, "uncorrected")
	put("temperature_celsius", g.Temperature)
	put("thermal_margin_celsius", g.ThermalMargin)
	put("power_watts", g.PowerWatts)
	put("power_limit_watts", g.PowerLimitWatts)
	put("utilisation_ratio", g.Utilisation)
	put("memory_used_bytes", g.MemoryUsed)
	put("memory_size_bytes", g.MemoryTotal)
	put("sm_clock_hertz", g.SMClockHz)
	put("memory_clock_hertz", g.MemoryClockHz)
	put("remapped_rows_total", g.RowsRemapped)
	put("retired_pages_total", g.RetiredPages)
	put("pcie_replays_total", g.PCIeReplays)
	put("pcie_lanes", g.PCIeWidth)
	put("pcie_lanes_max", g.PCIeWidthMax)
	put("nvlink_errors_total", g.NVLinkErrors)
}
