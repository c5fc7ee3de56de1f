// Package metrics tells Prometheus of a ps: of the jobs it coordinates with their trainers, of the shards it keeps, of
// its process, memory, disks and GPUs, and of what is wrong.
//
// It reads the status, with the reports that it was made of, and nothing else: a scrape asks no GPU, no shard and no
// network, and takes no lock that anybody else holds for longer than it takes to copy pointers. What a report does not
// tell is absent, never 0; a loss that is not a number is exported as NaN.
//
// # Who exports what
//
// Sums over all ps of a cluster must count everything once. So a job and its trainers are exported by the ps that
// coordinates the job, shards by the ps that keeps them, processes by themselves. GPUs are exported by every ps that
// sees them, as are problems: aggregate those with max.
//
// Labels are bounded: job_name (Prometheus has a label job of its own, which would win), member (t3, s0: as in subjects
// and logs), gpu (its UUID), host, and short lists of names. No batch, run or address is a label of anything but of the
// _info families, which have one series for each subject.
//
// # Families
//
// A family is a row of a table: name, type, help, labels and the function that reads it from its subject (trainer.go,
// shard.go, ...). The golden file testdata/families.txt and docs/metrics.md are written from these tables. Samples are
// put into the data model of client_golang directly, not through its Collector interface, which hashes and sorts every
// sample again; a pedantic registry checks the same families in tests.
//
// Whoever adds a figure adds a row here, runs the tests of this package with -rewrite, and reads the difference.
package metrics

import (
	"cmp"
	"net/http"
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

// Config is what an Exporter reads. Nothing of it may block.
type Config struct {
	Version string                // of gradbus
	Status  func() *status.Status // of all jobs, the latest; nil before the first
	Age     func() time.Duration  // of that; nil is 0
	Alive   func() time.Time      // when the control loop last turned; may be nil, or zero before it does
	Ops     func() Ops            // what observing costs; may be nil
	Now     func() time.Time      // nil is time.Now
}

// Ops is what the HTTP side of a ps costs.
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

// Exporter answers scrapes. It is safe for concurrent use.
type Exporter struct {
	config  Config
	tables  tables
	process *prometheus.Registry // of Go and the process
	handler http.Handler

	mutex   sync.Mutex // a leaf: nothing is called under it
	scrapes uint64
	seconds float64 // spent on them
}

// tables are all that is told, and the sheets it is written on.
type tables struct {
	sheets
	build   table[string]
	server  table[server]
	ops     table[ops]
	problem table[*status.Status]
	job     table[job]
	place   table[place]
	trainer table[trainer]
	moment  table[trainer]
	shard   table[shard]
	bucket  table[*schema.BucketReport]
	gpu     table[gpu]
	disk    table[disk]
}

func newTables() (t tables) {
	var at []*int
	t.build, t.server = enter(&t, &at, buildTable()), enter(&t, &at, serverTable())
	t.ops, t.problem = enter(&t, &at, opsTable()), enter(&t, &at, problemTable())
	t.job, t.place = enter(&t, &at, jobTable()), enter(&t, &at, placeTable())
	t.trainer, t.moment = enter(&t, &at, trainerTable()), enter(&t, &at, momentTable())
	t.shard, t.bucket = enter(&t, &at, shardTable()), enter(&t, &at, bucketTable())
	t.gpu, t.disk = enter(&t, &at, gpuTable()), enter(&t, &at, diskTable())
	slices.SortFunc(at, func(a, b *int) int { return cmp.Compare(t.of[*a].name, t.of[*b].name) })
	sorted := make([]family, len(at))
	for i, index := range at {
		sorted[i], *index = t.of[*index], i
	}
	t.of = sorted
	return t
}

// enter adds a table's families to all of them. at are the indices of families in all, to be set once these are in
// order.
func enter[T any](t *tables, at *[]*int, from table[T]) table[T] {
	for i := range from.figures {
		f := &from.figures[i]
		f.at = len(t.of)
		all := f.family
		all.labels = slices.Concat(from.labels, f.labels)
		t.of, *at = append(t.of, all), append(*at, &f.at)
	}
	return from
}

// New is an Exporter that has answered no scrape yet.
func New(c Config) *Exporter {
	if c.Now == nil {
		c.Now = time.Now
	}
	e := &Exporter{config: c, tables: newTables(), process: prometheus.NewRegistry()}
	e.process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	e.handler = promhttp.HandlerFor(e, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError,
		MaxRequestsInFlight: scrapesMax, DisableCompression: true})
	return e
}

// ServeHTTP implements http.Handler: the text format of Prometheus, not compressed, since a scrape crosses a local
// network and compressing it would take as long again as making it.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.handler.ServeHTTP(w, r) }

// coordinated is the job of that name in the ps's own report.
func coordinated(own *schema.ServerReport, name schema.JobName) (found *schema.JobReport) {
	for i := range own.Jobs { // one of that name may have ended, and the next be under way
		if j := &own.Jobs[i]; j.Name == name && (found == nil || found.Phase == schema.PhaseEnded) {
			found = j
		}
	}
	return found
}

// Gather implements prometheus.Gatherer.
func (e *Exporter) Gather() ([]*dto.MetricFamily, error) {
	from := time.Now()
	s := e.tables.new()
	e.write(s)
	all := s.filled()
	process, err := e.process.Gather()
	all = append(all, process...)
	slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.scrapes++
	e.seconds += time.Since(from).Seconds()
	return all, err
}

// write puts all that is known on a sheet.
func (e *Exporter) write(s *sheet) {
	now, view := e.config.Now(), e.config.Status()
	t := &e.tables
	t.build.write(s, e.config.Version)
	t.ops.write(s, e.cost())
	if view == nil {
		return
	}
	t.problem.write(s, view)
	own := view.Own
	if own == nil || own.Server == nil {
		return
	}
	t.server.write(s, server{own, own.Server, e.loopAge(now)})
	for i := range own.Server.Shards {
		sh := &own.Server.Shards[i]
		member := string(schema.ShardMember(sh.Shard))
		t.shard.write(s, shard{sh, shownShard(view, sh.Job, member)}, string(sh.Job), member)
		t.writeBuckets(s, sh.Job, member, sh.Buckets)
	}
	for i := range own.Server.Ended {
		sh := &own.Server.Ended[i]
		t.writeBuckets(s, sh.Job, string(schema.ShardMember(sh.Shard)), sh.Buckets)
	}
	e.writeGPUs(s, own, own.Server.GPUs, now)
	e.writeDisks(s, own, own.Server.Disks, now)
	for i := range own.Server.Jobs {
		if j := &own.Server.Jobs[i]; j == coordinated(own.Server, j.Name) {
			subject := job{j, shown(view, j)}
			t.job.write(s, subject, string(j.Name))
			e.writeTrainers(s, subject, now)
		}
	}
}

// writeTrainers puts the trainers of a job on a sheet.
func (e *Exporter) writeTrainers(s *sheet, j job, now time.Time) {
	for i := range j.Members {
		m := &j.Members[i]
		labels := []string{string(j.Name), string(m.Member)}
		out := shownTrainer(j.shown, i, string(m.Member))
		if m.Host != "" && !m.Left && j.Phase != schema.PhaseEnded {
			e.tables.place.write(s, place{m, out}, labels...)
		}
		if out == nil || out.Report == nil {
			continue
		}
		p := out.Report
		subject := trainer{p, p.Trainer, e.heard(out)}
		e.tables.trainer.write(s, subject, labels...)
		if subject.age <= staleAfter && j.Phase != schema.PhaseEnded {
			e.tables.moment.write(s, subject, labels...)
			e.writeGPUs(s, p, p.Trainer.GPUs, now)
			e.writeDisks(s, p, p.Trainer.Disks, now)
		}
	}
}

// heard is how long ago a trainer was, by the clock of the status: the machine's may be set meanwhile.
func (e *Exporter) heard(t *status.Trainer) time.Duration {
	age := time.Duration(e.config.Status().NowMS-t.HeardMS) * time.Millisecond
	if e.config.Age != nil {
		age += e.config.Age()
	}
	return max(0, age)
}

// loopAge is how long ago the control loop last turned.
func (e *Exporter) loopAge(now time.Time) time.Duration {
	if e.config.Alive == nil {
		return 0
	}
	last := e.config.Alive()
	if last.IsZero() {
		return 0
	}
	return max(0, now.Sub(last))
}

// writeGPUs puts GPUs on a sheet, each once: what this ps itself says of one comes first.
func (e *Exporter) writeGPUs(s *sheet, of *schema.Telemetry, gpus []schema.GPUReport, now time.Time) {
	for i := range gpus {
		g := gpu{&gpus[i], now}
		e.tables.gpu.write(s, g, g.name(), of.Host)
	}
}

// shown is the job as the status has it.
func shown(view *status.Status, j *schema.JobReport) *status.Job {
	at := slices.IndexFunc(view.Jobs, func(s status.Job) bool {
		return s.Name == string(j.Name) && s.RunID == strconv.FormatUint(uint64(j.RunID), 10)
	})
	if at < 0 {
		return nil
	}
	return &view.Jobs[at]
}

// shownTrainer is the i-th trainer of a job as the status has it.
func shownTrainer(j *status.Job, i int, member string) *status.Trainer {
	if j == nil || i >= len(j.Trainers) || j.Trainers[i].Member != member {
		return nil
	}
	return &j.Trainers[i]
}

// shownShard is a shard of the run of that name that has not ended, as the status has it.
func shownShard(view *status.Status, name schema.JobName, member string) *status.Shard {
	for i := range view.Jobs {
		j := &view.Jobs[i]
		if j.Name != string(name) || j.Phase == schema.PhaseEnded {
			continue
		}
		at := slices.IndexFunc(j.Shards, func(s status.Shard) bool { return s.Member == member })
		if at >= 0 {
			return &j.Shards[at]
		}
	}
	return nil
}

// family is one metric: its name, its type and what it says.
type family struct {
	name   string
	kind   dto.MetricType
	help   string
	labels []string // besides those of its subject
}

// figure is a family that is read from a T.
type figure[T any] struct {
	family
	read func(T, *row)
	at   int // index in the sheet
}

// table is what is told of subjects of one sort.
type table[T any] struct {
	labels  []string // that name the subject
	figures []figure[T]
}

// counter and gauge are families with one sample for each subject.
func counter[T any](name, help string, read func(T) float64) figure[T] {
	return figure[T]{family: family{name: name, kind: dto.MetricType_COUNTER, help: help},
		read: func(s T, r *row) { r.value(read(s)) }}
}

func gauge[T any](name, help string, read func(T) float64) figure[T] {
	return figure[T]{family: family{name: name, kind: dto.MetricType_GAUGE, help: help},
		read: func(s T, r *row) { r.value(read(s)) }}
}

// counters and gauges are families with any number of samples for each subject, told apart by labels.
func counters[T any](name, help string, labels []string, read func(T, *row)) figure[T] {
	return figure[T]{family: family{name, dto.MetricType_COUNTER, help, labels}, read: read}
}

func gauges[T any](name, help string, labels []string, read func(T, *row)) figure[T] {
	return figure[T]{family: family{name, dto.MetricType_GAUGE, help, labels}, read: read}
}

// summary is a number of observations and their sum, without quantiles.
func summary[T any](name, help string, read func(T) (count uint64, sum float64)) figure[T] {
	return figure[T]{family: family{name: name, kind: dto.MetricType_SUMMARY, help: help},
		read: func(s T, r *row) { r.summary(read(s)) }}
}

// row takes the samples of one family and one subject.
type row struct {
	on     *sheet
	into   *dto.MetricFamily
	kind   dto.MetricType
	base   []*dto.LabelPair // of the subject, by name
	labels []string
}

// value adds a sample. values are those of the family's own labels, in their order.
func (r *row) value(v float64, values ...string) {
	s := r.on.sample()
	s.value, s.metric.Label = v, r.pairs(values)
	if r.kind == dto.MetricType_COUNTER {
		s.counter.Value, s.metric.Counter = &s.value, &s.counter
	} else {
		s.gauge.Value, s.metric.Gauge = &s.value, &s.gauge
	}
	r.into.Metric = append(r.into.Metric, &s.metric)
}

// summary adds a sample of a summary.
func (r *row) summary(count uint64, sum float64) {
	r.into.Metric = append(r.into.Metric,
		&dto.Metric{Label: r.pairs(nil), Summary: &dto.Summary{SampleCount: &count, SampleSum: &sum}})
}

// pairs are the subject's labels and these, by name.
func (r *row) pairs(values []string) []*dto.LabelPair {
	if len(values) != len(r.labels) {
		// the tables and their readers are of this package
		panic("metrics: " + r.into.GetName() + " has other labels than it says")
	}
	if len(values) == 0 {
		return r.base
	}
	all := append(make([]*dto.LabelPair, 0, len(r.base)+len(values)), r.base...)
	return byName(appendPairs(all, r.labels, values))
}

func appendPairs(all []*dto.LabelPair, names, values []string) []*dto.LabelPair {
	for i := range names {
		value := label(values[i])
		all = append(all, &dto.LabelPair{Name: &names[i], Value: &value})
	}
	return all
}

func byName(pairs []*dto.LabelPair) []*dto.LabelPair {
	slices.SortFunc(pairs, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return pairs
}

// label makes a value fit for a label: UTF-8, and no longer than texts of the protocol.
func label(value string) string { return schema.Clip(value) }

// sheet is one scrape: a family for every row of every table, in the order of their names.
type sheet struct {
	families []*dto.MetricFamily
	samples  []sample        // made together, since a scrape has thousands
	seen     map[string]bool // subjects that are on it: a second of the same labels would spoil the whole scrape
}

// sample is a sample with all that it points to.
type sample struct {
	metric  dto.Metric
	gauge   dto.Gauge
	counter dto.Counter
	value   float64
}

// samplesAtOnce is how many are made together: some tens of KiB.
const samplesAtOnce = 128

func (s *sheet) sample() *sample {
	if len(s.samples) == 0 {
		s.samples = make([]sample, samplesAtOnce)
	}
	first := &s.samples[0]
	s.samples = s.samples[1:]
	return first
}

// sheets makes empty ones.
type sheets struct{ of []family }

func (s *sheets) new() *sheet {
	out := &sheet{families: make([]*dto.MetricFamily, len(s.of)), seen: map[string]bool{}}
	all := make([]dto.MetricFamily, len(s.of))
	for i := range s.of {
		f := &s.of[i]
		all[i].Name, all[i].Help, all[i].Type = &f.name, &f.help, &f.kind
		out.families[i] = &all[i]
	}
	return out
}

// filled are the families that have samples.
func (s *sheet) filled() []*dto.MetricFamily {
	return slices.DeleteFunc(s.families, func(f *dto.MetricFamily) bool { return len(f.Metric) == 0 })
}

// write puts a subject on the sheet, once. values are those of the table's labels, and are made fit for them.
func (t *table[T]) write(to *sheet, subject T, values ...string) {
	if len(t.figures) == 0 {
		return
	}
	for i := range values {
		values[i] = label(values[i]) // before they are compared
	}
	key := t.figures[0].name + "\xff" + strings.Join(values, "\xff")
	if to.seen[key] {
		return
	}
	to.seen[key] = true
	base := byName(appendPairs(nil, t.labels, values))
	r := &row{on: to, base: base}
	for i := range t.figures {
		f := &t.figures[i]
		r.into, r.kind, r.labels = to.families[f.at], f.kind, f.labels
		f.read(subject, r)
	}
}

// truth is a bool as Prometheus has it.
func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// ops is what observing costs.
type ops struct {
	Ops
	known   bool // whether the HTTP side tells
	scrapes uint64
	seconds float64
}

// cost is what observing has cost so far; the scrape under way is not in it.
func (e *Exporter) cost() ops {
	o := ops{}
	if e.config.Ops != nil {
		o.Ops, o.known = e.config.Ops(), true
	}
	e.mutex.Lock()
	defer e.mutex.Unlock()
	o.scrapes, o.seconds = e.scrapes, e.seconds
	return o
}

// ifServed is a value that the HTTP side tells; nothing where it does not.
func ifServed(read func(Ops) float64) func(ops, *row) {
	return func(o ops, r *row) {
		if o.known {
			r.value(read(o.Ops))
		}
	}
}

// opsTable tells what observing costs.
func opsTable() table[ops] {
	return table[ops]{nil, []figure[ops]{
		summary("gradbus_ops_scrape_seconds", "Scrapes answered before this one, and the time spent on gathering them.",
			func(o ops) (uint64, float64) { return o.scrapes, o.seconds }),
		gauges("gradbus_ops_stream_clients", "Clients that follow the stream of updates.", nil,
			ifServed(func(o Ops) float64 { return float64(o.StreamClients) })),
		counters("gradbus_ops_updates_dropped_total", "Updates of the stream that a client was too slow for.", nil,
			ifServed(func(o Ops) float64 { return float64(o.UpdatesDropped) })),
		counters("gradbus_ops_reports_dropped_total", "Reports that came faster than they could be shown.", nil,
			ifServed(func(o Ops) float64 { return float64(o.ReportsDropped) })),
		counters("gradbus_ops_requests_total", "HTTP requests that were answered.", nil,
			ifServed(func(o Ops) float64 { return float64(o.Requests) })),
	}}
}

// problemsMax bounds the problems that are told one by one; the worst come first.
const problemsMax = 200

// problemTable tells what is wrong, in all the cluster, as every ps sees it.
func problemTable() table[*status.Status] {
	type view = *status.Status
	return table[view]{nil, []figure[view]{
		gauges("gradbus_problem", "Problems there are, by code; 0 for those that are not.", []string{"code", "level"},
			countProblems),
		gauges("gradbus_problem_info", "Each problem there is and what it is about; always 1.",
			[]string{"code", "level", "job_name", "member", "gpu"}, listProblems),
	}}
}

// coded is a kind of problem.
type coded struct {
	code  string
	level status.Level
}

// countProblems has every code there is, 0 or not, so that alerts see a change.
func countProblems(s *status.Status, r *row) {
	codes := status.Codes()
	order, known := make([]coded, 0, len(codes)), make(map[coded]bool, len(codes))
	for _, c := range codes {
		order = append(order, coded{c.Code, c.Level})
		known[order[len(order)-1]] = true
	}
	counts := map[coded]int{}
	for i := range s.Problems {
		c := coded{s.Problems[i].Code, s.Problems[i].Level}
		if !known[c] && len(order) < len(codes)+problemsMax { // some are less bad at times
			order = append(order, c)
			known[c] = true
		}
		counts[c]++
	}
	for _, c := range order {
		r.value(float64(counts[c]), c.code, string(c.level))
	}
}

func listProblems(s *status.Status, r *row) {
	type about struct {
		coded
		job, member, gpu string
	}
	seen := map[about]bool{}
	for i := range s.Problems {
		p := &s.Problems[i]
		a := about{coded{p.Code, p.Level}, p.Job, p.Member, p.GPU}
		if seen[a] || len(seen) == problemsMax {
			continue
		}
		seen[a] = true
		r.value(1, p.Code, string(p.Level), p.Job, p.Member, p.GPU)
	}
}
