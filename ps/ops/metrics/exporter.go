package metrics

import (
	"cmp"
	"maps"
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

	"gradbus/ps/ops/overview"
	"gradbus/schema"
)

// Config is what an Exporter reads. Nothing of it may block.
type Config struct {
	Version string                  // of gradbus
	Own     func() *schema.Pulse    // of this ps, the latest; nil before the first
	Status  func() *overview.Status // of all jobs, the latest; nil before the first
	Ops     func() Ops              // what observing costs; may be nil
	Now     func() time.Time        // nil is time.Now
}

// Ops is what the HTTP side of a ps costs.
type Ops struct {
	StreamClients  int    // that follow the stream of updates now
	UpdatesDropped uint64 // that a client was too slow for
	PulsesDropped  uint64 // that came faster than the overview took them
	Requests       uint64
}

// staleAfter is the age from which a trainer's pulse says nothing of the moment any more. Pulses come once a second.
const staleAfter = 10 * time.Second

// sweepEvery is how often trainers of jobs that are over are forgotten, where no scrape does so.
const sweepEvery = time.Minute

// bytesMax bounds the pulses that are kept, in bytes of memory: as many and as large ones as the overview keeps.
const bytesMax = 2 * overview.TrainersBytesMax

// scrapesMax is the number of scrapes that are answered at once: a pair of Prometheus servers, a person, and one to spare.
const scrapesMax = 4

// Exporter answers scrapes. It is safe for concurrent use.
type Exporter struct {
	config  Config
	tables  tables
	process *prometheus.Registry // of Go and the process
	handler http.Handler

	mutex    sync.Mutex // a leaf: nothing is called under it
	trainers map[who]heard
	bytes    int // of their pulses
	swept    time.Time
	scrapes  uint64
	seconds  float64 // spent on them
}

// who is a trainer.
type who struct {
	job    schema.JobName
	member schema.Member
}

// heard is the last pulse of a trainer.
type heard struct {
	pulse *schema.Pulse
	at    time.Time
	bytes int
}

// tables are all that is told, and the sheets it is written on.
type tables struct {
	sheets
	build   table[string]
	server  table[server]
	ops     table[ops]
	problem table[*overview.Status]
	job     table[job]
	place   table[place]
	trainer table[trainer]
	moment  table[trainer]
	shard   table[shard]
	gpu     table[gpu]
	disk    table[disk]
}

func newTables() (t tables) {
	t.build, t.server, t.ops, t.problem = buildTable(), serverTable(), opsTable(), problemTable()
	t.job, t.place, t.trainer, t.moment = jobTable(), placeTable(), trainerTable(), momentTable()
	t.shard, t.gpu, t.disk = shardTable(), gpuTable(), diskTable()
	var at []*int
	enter(&t, &at, &t.build)
	enter(&t, &at, &t.server)
	enter(&t, &at, &t.ops)
	enter(&t, &at, &t.problem)
	enter(&t, &at, &t.job)
	enter(&t, &at, &t.place)
	enter(&t, &at, &t.trainer)
	enter(&t, &at, &t.moment)
	enter(&t, &at, &t.shard)
	enter(&t, &at, &t.gpu)
	enter(&t, &at, &t.disk)
	order := make([]int, len(at))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(t.of[a].name, t.of[b].name) })
	sorted := make([]family, len(order))
	for i, from := range order {
		sorted[i], *at[from] = t.of[from], i
	}
	t.of = sorted
	return t
}

// enter adds a table's families to all of them. at are the places to write a family's index to, once they are in order.
func enter[T any](t *tables, at *[]*int, from *table[T]) {
	for i := range from.figures {
		f := &from.figures[i]
		all := f.family
		all.labels = slices.Concat(from.labels, f.labels)
		t.of, *at = append(t.of, all), append(*at, &f.at)
	}
}

// New is an Exporter that has heard of no trainer yet.
func New(c Config) *Exporter {
	if c.Now == nil {
		c.Now = time.Now
	}
	e := &Exporter{config: c, tables: newTables(), process: prometheus.NewRegistry(), trainers: map[who]heard{}}
	e.process.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	e.handler = promhttp.HandlerFor(e, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: scrapesMax, DisableCompression: true})
	return e
}

// ServeHTTP implements http.Handler: the text format of Prometheus, not compressed, since a scrape crosses a local network
// and compressing it would take as long again as making it.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.handler.ServeHTTP(w, r) }

// Take is given every pulse that is heard, of which it keeps those of trainers of jobs that this ps coordinates. It has the
// form of ps.Options.Pulses. p must not change afterwards. One that is larger than the overview takes, or for which there is no room beside
// the others, is passed over.
func (e *Exporter) Take(name schema.JobName, from schema.Member, p *schema.Pulse) {
	if p == nil || p.Trainer == nil {
		return
	}
	own := e.config.Own()
	j := coordinated(own, name)
	if j == nil || j.RunID != p.Trainer.RunID || !has(j, from) {
		return
	}
	now, bytes := e.config.Now(), p.MemoryBytes()
	e.mutex.Lock()
	defer e.mutex.Unlock()
	was := e.trainers[who{name, from}].bytes
	if bytes > overview.TrainerBytesMax || e.bytes-was+bytes > bytesMax {
		return
	}
	e.bytes += bytes - was
	e.trainers[who{name, from}] = heard{p, now, bytes}
	if now.Sub(e.swept) >= sweepEvery { // also where nobody scrapes
		e.swept = now
		e.sweep(own)
	}
}

// sweep forgets the trainers of jobs that this ps does not coordinate any more. The mutex is held.
func (e *Exporter) sweep(own *schema.Pulse) {
	maps.DeleteFunc(e.trainers, func(w who, h heard) bool {
		j := coordinated(own, w.job)
		over := j == nil || j.RunID != h.pulse.Trainer.RunID
		if over {
			e.bytes -= h.bytes
		}
		return over
	})
}

// coordinated is the job of that name in the ps's own pulse, nil where it has none.
func coordinated(own *schema.Pulse, name schema.JobName) *schema.JobPulse {
	if own == nil || own.Server == nil {
		return nil
	}
	var found *schema.JobPulse
	for i := range own.Server.Jobs { // one of that name may have ended, and the next be under way
		if j := &own.Server.Jobs[i]; j.Name == name && (found == nil || found.Phase == schema.PhaseEnded) {
			found = j
		}
	}
	return found
}

func has(j *schema.JobPulse, m schema.Member) bool {
	return slices.ContainsFunc(j.Members, func(p schema.MemberPulse) bool { return p.Member == m })
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
	now, own, status := e.config.Now(), e.config.Own(), e.config.Status()
	t := &e.tables
	t.build.write(s, e.config.Version)
	t.ops.write(s, e.cost())
	if status != nil {
		t.problem.write(s, status)
	}
	if own == nil || own.Server == nil {
		return
	}
	t.server.write(s, server{own, own.Server, max(0, now.Sub(time.UnixMilli(own.NowMS)))})
	for i := range own.Server.Shards {
		sh := &own.Server.Shards[i]
		member := string(schema.ShardMember(sh.Shard))
		t.shard.write(s, shard{sh, shownShard(status, sh.Job, member)}, string(sh.Job), member)
	}
	e.writeGPUs(s, own, own.Server.GPUs, now)
	e.writeDisks(s, own, own.Server.Disks, now)
	pulses := e.current(own)
	for i := range own.Server.Jobs {
		if j := &own.Server.Jobs[i]; j == coordinated(own, j.Name) {
			subject := job{j, shown(status, j)}
			t.job.write(s, subject, string(j.Name))
			e.writeTrainers(s, subject, pulses, now)
		}
	}
}

// writeTrainers puts the trainers of a job on a sheet.
func (e *Exporter) writeTrainers(s *sheet, j job, pulses map[who]heard, now time.Time) {
	for i := range j.Members {
		m := &j.Members[i]
		labels := []string{string(j.Name), string(m.Member)}
		if m.Host != "" && !m.Left && j.Phase != schema.PhaseEnded {
			e.tables.place.write(s, place{m, shownTrainer(j.shown, i, string(m.Member))}, labels...)
		}
		h, ok := pulses[who{j.Name, m.Member}]
		if !ok {
			continue
		}
		subject := trainer{h.pulse, h.pulse.Trainer, max(0, now.Sub(h.at))}
		e.tables.trainer.write(s, subject, labels...)
		if subject.age <= staleAfter && j.Phase != schema.PhaseEnded {
			e.tables.moment.write(s, subject, labels...)
			e.writeGPUs(s, h.pulse, h.pulse.Trainer.GPUs, now)
			e.writeDisks(s, h.pulse, h.pulse.Trainer.Disks, now)
		}
	}
}

// writeGPUs puts GPUs on a sheet, each once: what this ps itself says of one comes first.
func (e *Exporter) writeGPUs(s *sheet, of *schema.Pulse, gpus []schema.GPUPulse, now time.Time) {
	for i := range gpus {
		g := gpu{&gpus[i], now}
		e.tables.gpu.write(s, g, g.name(), of.Host)
	}
}

// current are the pulses of trainers of jobs that this ps coordinates still.
func (e *Exporter) current(own *schema.Pulse) map[who]heard {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.sweep(own)
	return maps.Clone(e.trainers)
}

// shown is the job as the overview has it.
func shown(status *overview.Status, j *schema.JobPulse) *overview.Job {
	if status == nil {
		return nil
	}
	run := strconv.FormatUint(uint64(j.RunID), 10)
	for i := range status.Jobs {
		if s := &status.Jobs[i]; s.Name == string(j.Name) && (s.RunID == run || strings.TrimLeft(s.RunID, "0") == run) {
			return s
		}
	}
	return nil
}

// shownTrainer is the i-th trainer of a job as the overview has it.
func shownTrainer(j *overview.Job, i int, member string) *overview.Trainer {
	if j == nil || i >= len(j.Trainers) || j.Trainers[i].Member != member {
		return nil
	}
	return &j.Trainers[i]
}

// shownShard is a shard of the run of that name that has not ended, as the overview has it.
func shownShard(status *overview.Status, name schema.JobName, member string) *overview.Shard {
	if status == nil {
		return nil
	}
	for i := range status.Jobs {
		j := &status.Jobs[i]
		if j.Name != string(name) || j.Phase == schema.PhaseEnded {
			continue
		}
		at := slices.IndexFunc(j.Shards, func(s overview.Shard) bool { return s.Member == member })
		if at >= 0 {
			return &j.Shards[at]
		}
	}
	return nil
}
