package metrics

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
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
