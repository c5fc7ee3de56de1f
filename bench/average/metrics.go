package average

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"gradbus/fabric"
	"gradbus/internal/atomicfile"
	"gradbus/internal/regular"
	"gradbus/schema"
	"gradbus/trainer"
)

// Names of metrics: a group and what is measured, as in tables and files.
const (
	// from the start of a batch to the new version
	metricBatch   = "batch_level_metric,batch_all"
	metricForward = "forward_metric,forward_pass" // with the loss
	// with what is left of communication, and the optimizer
	metricBackward = "backward_metric,backward"
	// of a bucket, from its first trainer's whole gradient to its last one's
	metricStraggler = "parameter_server_straggler_metric,param_index_straggler"
	// of a bucket, from its first whole gradient until all were answered
	metricAnswered = "parameter_server_batch_metric,param_index_batch"
	// of a bucket, what a server computes once all gradients are there: the division, and of what it has not added up
	// before, the sum
	metricAverage = "method_metric,average computation"

	hookFuture = "hook_future_metric," // of a bucket, from the first byte sent to the whole result applied; asynchronous
	hookC10D   = "hook_c10d_metric,"   // the same of the second group
	transport  = "nats"                // what carries gradients here, in the place of gloo and nccl
)

// metrics are samples by name, each in milliseconds on the clock of one process.
type metrics map[string][]float64

func (m metrics) add(name string, d time.Duration) {
	m[name] = append(m[name], float64(d)/float64(time.Millisecond))
}

// merged is the samples of several together.
func merged(all []metrics) metrics {
	out := metrics{}
	for _, m := range all {
		for name, values := range m {
			out[name] = append(out[name], values...)
		}
	}
	return out
}

// Row is a line of a table: what the samples of one metric come to.
type Row struct {
	Name            string
	Min, Max, Mean  float64
	Variance, Stdev float64 // over n-1; NaN where there is one sample alone
}

// Table is rows in the order of their names.
type Table []Row

// table sums up metrics.
func (m metrics) table() Table {
	var t Table
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if values := m[name]; len(values) > 0 {
			t = append(t, rowOf(name, values))
		}
	}
	return t
}

// rowOf needs at least one sample.
func rowOf(name string, values []float64) Row {
	mean := 0.0
	for _, v := range values {
		mean += v
	}
	mean /= float64(len(values))
	squares := 0.0
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	variance := squares / float64(len(values)-1) // 0/0 is NaN
	return Row{Name: name, Min: slices.Min(values), Max: slices.Max(values), Mean: mean, Variance: variance,
		Stdev: math.Sqrt(variance)}
}

// numbers are the columns behind the name.
func (r Row) numbers() []float64 {
	return []float64{r.Min, r.Max, r.Mean, r.Variance, r.Stdev}
}

// columns name a table's columns.
var columns = [...]string{"name", "min", "max", "mean", "variance", "stdev"}

// save writes the table as a CSV file, numbers with all their digits. What a table lacks is an empty field.
func (t Table) save(path string) error {
	if err := atomicfile.Write(path, 0o666, t.write); err != nil {
		return fmt.Errorf("save table %s: %w", path, err)
	}
	return nil
}

func (t Table) write(to io.Writer) error {
	w := csv.NewWriter(to)
	_ = w.Write(columns[:]) // what fails is found by Error below
	for _, r := range t {
		fields := []string{r.Name}
		for _, v := range r.numbers() {
			text := ""
			if !math.IsNaN(v) {
				text = strconv.FormatFloat(v, 'g', -1, 64)
			}
			fields = append(fields, text)
		}
		_ = w.Write(fields)
	}
	w.Flush()
	return w.Error()
}

// loadTable reads a file that Save wrote. Errors name the file, the line and what would be right.
func loadTable(path string) (Table, error) {
	f, err := regular.Open(path)
	if err != nil {
		return nil, fmt.Errorf("table %q: want a CSV file that --csv wrote: %w", path, reason(err))
	}
	defer f.Close()
	r := csv.NewReader(io.LimitReader(f, fileBytesMax))
	r.FieldsPerRecord = -1
	var t Table
	for {
		fields, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		line, _ := r.FieldPos(0)
		switch {
		case line == 1 && !slices.Equal(fields, columns[:]):
			return nil, fmt.Errorf("%s: line 1: %.60q: want the columns %s", path, strings.Join(fields, ","),
				strings.Join(columns[:], ","))
		case line == 1:
			continue
		case len(fields) != len(columns):
			return nil, fmt.Errorf("%s: line %d: %d fields: want %d", path, line, len(fields), len(columns))
		}
		row, err := parseRow(fields)
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, line, err)
		}
		t = append(t, row)
	}
	if t == nil {
		return nil, fmt.Errorf("%s: no metrics: want a CSV file that --csv wrote", path)
	}
	return t, nil
}

func parseRow(fields []string) (Row, error) {
	r := Row{Name: fields[0]}
	for i, to := range []*float64{&r.Min, &r.Max, &r.Mean, &r.Variance, &r.Stdev} {
		*to = math.NaN()
		if text := fields[1+i]; text != "" {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return r, fmt.Errorf("%s %q: want a number, or nothing", columns[1+i], text)
			}
			*to = v
		}
	}
	return r, nil
}

// difference is one table less another.
type difference struct {
	Table                          // in the order of the first, under its names
	Other                 []string // what the second calls each row of Table
	OnlyFirst, OnlySecond []string // metrics of the first, and of the second, that the other lacks
}

// diff is a less b, metric by metric. The name of an all-reduce has in it what carried the gradients: nats here, gloo
// or nccl in the original. A metric whose name b lacks is taken with one whose name is the same but for that.
func diff(a, b Table) (d difference) {
	other, taken := make([]int, len(a)), make([]bool, len(b)) // of b, by row of a: -1 for none
	for i := range other {
		other[i] = -1
	}
	for _, of := range []func(name string) string{func(name string) string { return name }, anyTransport} {
		for i := range a {
			for at := 0; at < len(b) && other[i] < 0; at++ {
				if !taken[at] && of(a[i].Name) == of(b[at].Name) {
					other[i], taken[at] = at, true
				}
			}
		}
	}
	for i, r := range a {
		if other[i] < 0 {
			d.OnlyFirst = append(d.OnlyFirst, r.Name)
			continue
		}
		o := b[other[i]]
		d.Other = append(d.Other, o.Name)
		d.Table = append(d.Table, Row{r.Name, r.Min - o.Min, r.Max - o.Max, r.Mean - o.Mean, r.Variance - o.Variance,
			r.Stdev - o.Stdev})
	}
	for i, r := range b {
		if !taken[i] {
			d.OnlySecond = append(d.OnlySecond, r.Name)
		}
	}
	return d
}

// anyTransport is the name of a metric without what carries the gradients.
//
//	hook_future_metric,nats_dense_allreduce   ->   hook_future_metric,_dense_allreduce
func anyTransport(name string) string {
	group, metric, _ := strings.Cut(name, ",")
	if at := strings.IndexByte(metric, '_'); at > 0 && strings.HasSuffix(metric, "_allreduce") {
		return group + "," + metric[at:]
	}
	return name
}

// DiffFiles prints the difference of two files, and saves it where output is not empty.
func DiffFiles(a, b, output string, to io.Writer) error {
	first, err := loadTable(a)
	if err != nil {
		return err
	}
	second, err := loadTable(b)
	if err != nil {
		return err
	}
	d := diff(first, second)
	if output != "" {
		if err := d.save(output); err != nil {
			return err
		}
	}
	if err := d.print(to, fmt.Sprintf("%s less %s (ms)", a, b)); err != nil {
		return err
	}
	var notes strings.Builder
	for i, r := range d.Table {
		if r.Name != d.Other[i] {
			fmt.Fprintf(&notes, "%s: less %s\n", r.Name, d.Other[i])
		}
	}
	for _, only := range []struct {
		file  string
		names []string
	}{{a, d.OnlyFirst}, {b, d.OnlySecond}} {
		for _, name := range only.names {
			fmt.Fprintf(&notes, "only in %s: %s\n", only.file, name)
		}
	}
	_, err = io.WriteString(to, notes.String())
	return err
}

// saveTables writes the tables of one kind of member into a folder: each rank's, and that of all.
func (t *tables) save(folder string) error {
	if len(t.ranks) == 0 {
		return nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("save tables: %w", err)
	}
	for i, rank := range t.ranks {
		if err := t.each[i].save(filepath.Join(folder, fmt.Sprintf("%s_%d.csv", t.kind, rank))); err != nil {
			return err
		}
	}
	return t.all.save(filepath.Join(folder, t.kind+"_all.csv"))
}

// ranked is the metrics of one member.
type ranked struct {
	rank    int
	metrics metrics
}

// print draws the table as a grid under its title.
func (t Table) print(to io.Writer, title string) error {
	rows := make([][]string, len(t))
	for i, r := range t {
		rows[i] = append(rows[i], r.Name)
		for _, v := range r.numbers() {
			rows[i] = append(rows[i], cell(v))
		}
	}
	_, err := fmt.Fprintf(to, "%s\n%s", title, grid(columns[:], rows))
	return err
}

func cell(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 4, 64)
}

// grid draws cells in boxes, the head set off from the rest; the first column is text, the others numbers.
func grid(head []string, rows [][]string) string {
	widths := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, text := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	var out strings.Builder
	rule := func(of string) {
		for _, w := range widths {
			out.WriteString("+" + strings.Repeat(of, w+2))
		}
		out.WriteString("+\n")
	}
	line := func(row []string) {
		for i, text := range row {
			left := 0
			if gap := widths[i] - utf8.RuneCountInString(text); i > 0 {
				left = gap
			}
			fmt.Fprintf(&out, "| %s%-*s ", strings.Repeat(" ", left), widths[i]-left, text)
		}
		out.WriteString("|\n")
	}
	rule("-")
	line(head)
	rule("=")
	for _, row := range rows {
		line(row)
		rule("-")
	}
	return out.String()
}

// Span is a stretch of time in one member, for a timeline. Times are nanoseconds since 1970 on the host's clock, so
// that spans of the processes of one host share one axis.
type Span struct {
	Track string `json:"track"` // spans of one track follow or hold each other
	Name  string `json:"name"`
	Batch uint64 `json:"batch"`
	From  int64  `json:"from"`
	To    int64  `json:"to"`
	Bytes int64  `json:"bytes,omitempty"`
}

func span(track, name string, batch uint64, from, to time.Time, bytes int64) Span {
	return Span{track, name, batch, from.UnixNano(), max(from.UnixNano(), to.UnixNano()), bytes}
}

// process is one member of a timeline.
type process struct {
	name  string
	spans []Span
}

// event is one of Chrome's trace events: ph X is a complete one, with its duration, and ph M names a process or a
// track. Times are in microseconds.
//
// Source: Trace Event Format, the sections on complete events and metadata events.
type event struct {
	Name string         `json:"name"`
	Cat  string         `json:"cat,omitempty"`
	Ph   string         `json:"ph"`
	TS   float64        `json:"ts"`
	Dur  *float64       `json:"dur,omitempty"`
	PID  int            `json:"pid"`
	TID  int            `json:"tid"`
	Args map[string]any `json:"args,omitempty"`
}

// saveTrace writes a timeline that chrome://tracing and Perfetto open: a process for each member, a track for what each
// does, and for each of its buckets.
func saveTrace(path string, processes []process) error {
	begin := int64(0)
	for _, p := range processes {
		for _, s := range p.spans {
			if begin == 0 || s.From < begin {
				begin = s.From
			}
		}
	}
	events := []event{}
	for pid, p := range processes {
		events = append(events, event{Name: "process_name", Ph: "M", PID: pid, Args: map[string]any{"name": p.name}},
			event{Name: "process_sort_index", Ph: "M", PID: pid, Args: map[string]any{"sort_index": pid}})
		events = append(events, eventsOf(pid, p, begin)...)
	}
	err := atomicfile.Write(path, 0o666, func(w io.Writer) error {
		return json.NewEncoder(w).Encode(struct {
			TraceEvents     []event `json:"traceEvents"`
			DisplayTimeUnit string  `json:"displayTimeUnit"`
		}{events, "ms"})
	})
	if err != nil {
		return fmt.Errorf("save trace: %w", err)
	}
	return nil
}

func eventsOf(pid int, p process, begin int64) []event {
	var tracks []string
	for _, s := range p.spans {
		if !slices.Contains(tracks, s.Track) {
			tracks = append(tracks, s.Track)
		}
	}
	var events []event
	for tid, name := range tracks {
		events = append(events, event{Name: "thread_name", Ph: "M", PID: pid, TID: tid, Args: map[string]any{"name": name}},
			event{Name: "thread_sort_index", Ph: "M", PID: pid, TID: tid, Args: map[string]any{"sort_index": tid}})
	}
	spans := slices.Clone(p.spans)
	slices.SortStableFunc(spans,
		func(a, b Span) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(b.To, a.To)) })
	for _, s := range spans {
		dur := float64(s.To-s.From) / 1e3
		args := map[string]any{"batch": s.Batch}
		if s.Bytes > 0 {
			args["bytes"] = s.Bytes
		}
		events = append(events, event{Name: s.Name, Cat: "gradbus", Ph: "X", TS: float64(s.From-begin) / 1e3,
			Dur: &dur, PID: pid,
			TID: slices.Index(tracks, s.Track), Args: args})
	}
	return events
}

// recorder is a workload of one run, with what is measured of it.
type recorder struct {
	*workload
	hook  func(b *trainer.BucketTimes) string
	spans bool
	found trainerRun
}

// hookMetrics names the metric of a bucket by who averages it. The second group of the hybrid hook has its own.
func hookMetrics(hook string) func(b *trainer.BucketTimes) string {
	return func(b *trainer.BucketTimes) string {
		kind := "dense"
		if b.Sparse {
			kind = "sparse"
		}
		switch {
		case b.Reduce == schema.ByShards:
			return hookFuture + "rpc_" + kind
		case hook == "hybrid" && b.Sparse:
			return hookC10D + transport + "_sparse_allreduce"
		}
		return hookFuture + transport + "_" + kind + "_allreduce"
	}
}

// record takes what is known of a batch when it is complete. A batch in which this trainer has no samples is none of
// its own.
func (r *recorder) record(p *trainer.Progress) {
	if p.Samples == 0 {
		return
	}
	began, now := p.Began, p.Began.Add(p.BatchTime)
	f, t := &r.found, &r.times
	f.Metrics.add(metricBatch, p.BatchTime)
	f.Metrics.add(metricForward, t.forward.Sub(t.begun))
	f.Metrics.add(metricBackward, now.Sub(t.forward))
	if f.Batches == 0 {
		f.LossFirst = p.Loss
	}
	f.Batches, f.Samples, f.LossLast = f.Batches+1, f.Samples+uint64(p.Samples), p.Loss
	if r.spans {
		b := uint64(p.Batch)
		f.Spans = append(f.Spans, span("compute", "batch_all", b, began, now, 0),
			span("compute", "forward_pass", b, t.begun, t.forward, 0),
			span("compute", "backward", b, t.forward, now, 0), span("compute", "backward pass", b, t.forward, t.backward, 0))
	}
	for i := range p.Buckets {
		k := &p.Buckets[i]
		name := r.hook(k)
		f.Metrics.add(name, k.Complete.Sub(k.Begun))
		if r.spans {
			track := fmt.Sprintf("bucket %d", k.Bucket)
			f.Spans = append(f.Spans, span(track, name, uint64(p.Batch), k.Begun, k.Complete, k.Bytes),
				span(track, "send", uint64(p.Batch), k.Begun, k.Sent, k.Bytes))
		}
	}
}

// reported is the report of the ps at --server on a shard's buckets in the measured runs, after these have ended. It
// has sums and no samples.
type reported struct {
	rank    int
	sums    sums
	arrival float64 // milliseconds of adding up as gradients came, of all rounds
	rounds  float64
}

// sums are the sums of the samples of metrics, in milliseconds.
type sums map[string]sum

type sum struct{ n, total, squares, least, most float64 }

// add takes a metric of some rounds of a bucket, in seconds.
func (s sums) add(name string, rounds uint64, total, squares, least, most schema.Real) {
	const ms = 1000
	s.merge(name, sum{float64(rounds), ms * float64(total), ms * ms * float64(squares), ms * float64(least),
		ms * float64(most)})
}

func (s sums) merge(name string, o sum) {
	x, is := s[name]
	if !is {
		x.least = math.Inf(1)
	}
	s[name] = sum{x.n + o.n, x.total + o.total, x.squares + o.squares, min(x.least, o.least), max(x.most, o.most)}
}

func (s sums) table() Table {
	var t Table
	for _, name := range slices.Sorted(maps.Keys(s)) {
		x := s[name]
		variance := math.NaN()
		if x.n > 1 {
			variance = max(0, (x.squares-x.total*x.total/x.n)/(x.n-1))
		}
		t = append(t, Row{name, x.least, x.most, x.total / x.n, variance, math.Sqrt(variance)})
	}
	return t
}

// allReported is all shards together.
func allReported(all []reported) reported {
	total := reported{sums: sums{}}
	for _, r := range all {
		for name, x := range r.sums {
			total.sums.merge(name, x)
		}
		total.arrival, total.rounds = total.arrival+r.arrival, total.rounds+r.rounds
	}
	return total
}

// run is a run of a job, as the ps name it.
type run struct {
	ID     schema.RunID `json:"id,string"`
	Shards int          `json:"shards"` // that hold the job
}

// reports listens at --server until its ps have said how each shard of some runs has fared.
type reports struct {
	mu   sync.Mutex // guards said
	said map[schema.RunID]map[int]schema.EndedShard
	news chan struct{} // has room for one
}

// hear takes the report of a ps, which comes each second. What is none is not for this program to judge.
func (r *reports) hear(m fabric.Message) {
	view, err := schema.Verify(m.Data, schema.Limits{})
	if err != nil {
		return
	}
	report, err := schema.DecodeTelemetry(&view)
	if err != nil || report.Server == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, shard := range report.Server.Ended {
		if of := r.said[shard.Run]; of != nil {
			of[shard.Shard] = shard
		}
	}
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// missing returns the number of shards without a report.
func (r *reports) missing(runs []run) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range runs {
		n += max(0, run.Shards-len(r.said[run.ID]))
	}
	return n
}

// reportedWithin bounds the time for which the ps at --server may take to report on an ended job, which they do each
// second.
const reportedWithin = 15 * time.Second

// askServers listens for the figures of runs that have ended at the servers, by shard. The servers keep them for a
// while (--start-timeout of ps).
func (c *Config) askServers(ctx context.Context, runs []run) ([]reported, error) {
	way, err := c.Way.Config(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	conn, err := fabric.DialControl(ctx, fabric.Config{URL: way.Server, Name: "psbench", Token: way.Token,
		CredsFile: way.CredsFile, TLS: way.TLS})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	r := &reports{said: map[schema.RunID]map[int]schema.EndedShard{}, news: make(chan struct{}, 1)}
	for _, run := range runs {
		r.said[run.ID] = map[int]schema.EndedShard{}
	}
	if err := conn.Subscribe(fabric.Pattern(string(schema.TelemetryJob), fabric.Any, fabric.KindHeartbeat,
		string(schema.All), false), r.hear); err != nil {
		return nil, err
	}
	late := time.NewTimer(reportedWithin)
	defer late.Stop()
	for r.missing(runs) > 0 {
		select {
		case <-r.news:
		case <-late.C:
			return nil, fmt.Errorf("figures of servers: %d shards were not reported on within %v after the job", r.missing(runs),
				reportedWithin)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return r.reported(), nil
}

// reported returns the reports by shard.
func (r *reports) reported() []reported {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := map[int]*reported{}
	for _, shards := range r.said {
		for rank, shard := range shards {
			if of[rank] == nil {
				of[rank] = &reported{rank: rank, sums: sums{}}
			}
			to := of[rank]
			for _, b := range shard.Buckets {
				to.sums.add(metricStraggler, b.Rounds, b.StragglerSeconds, b.StragglerSquaredSeconds, b.StragglerMinSeconds,
					b.StragglerMaxSeconds)
				to.sums.add(metricAnswered, b.Rounds, b.BatchSeconds, b.BatchSquaredSeconds, b.BatchMinSeconds, b.BatchMaxSeconds)
				to.sums.add(metricAverage, b.Rounds, b.AverageSeconds, b.AverageSquaredSeconds, b.AverageMinSeconds,
					b.AverageMaxSeconds)
				to.arrival, to.rounds = to.arrival+1000*float64(b.ArrivalSeconds), to.rounds+float64(b.Rounds)
			}
		}
	}
	var all []reported
	for _, rank := range slices.Sorted(maps.Keys(of)) {
		all = append(all, *of[rank])
	}
	return all
}

// meansOf gives a result the figures that servers elsewhere reported.
func (r *Result) meansOf(all []reported) {
	if r.reported = all; len(all) == 0 {
		return
	}
	total := allReported(all)
	mean := func(sum, n float64) *float64 {
		if n == 0 {
			return nil
		}
		v := sum / n
		return &v
	}
	for name, to := range map[string]**float64{metricStraggler: &r.StragglerMS, metricAnswered: &r.BatchMS,
		metricAverage: &r.AverageMS} {
		*to = mean(total.sums[name].total, total.sums[name].n)
	}
	r.ArrivalMS = mean(total.arrival, total.rounds)
}

// tables are a table for each member of a kind, and one for all.
type tables struct {
	kind  string // "trainer" or "server"
	ranks []int
	each  []Table
	all   Table
}

func (r *Result) tables() []tables {
	all := []tables{{kind: "trainer"}, {kind: "server"}}
	for i, ranks := range [][]ranked{r.trainers, r.servers} {
		for _, one := range ranks {
			all[i].ranks, all[i].each = append(all[i].ranks, one.rank), append(all[i].each, one.metrics.table())
		}
		all[i].all = allOf(ranks).table()
	}
	if len(r.reported) > 0 {
		for _, one := range r.reported {
			all[1].ranks, all[1].each = append(all[1].ranks, one.rank), append(all[1].each, one.sums.table())
		}
		all[1].all = allReported(r.reported).sums.table()
	}
	return all
}

// print writes the tables of a kind.
func (t *tables) print(to io.Writer) error {
	for i, rank := range t.ranks {
		if err := printTable(to, fmt.Sprintf("metrics for %s=%d (ms)", t.kind, rank), t.each[i]); err != nil {
			return err
		}
	}
	if len(t.ranks) == 0 {
		return nil
	}
	return printTable(to, fmt.Sprintf("metrics for all %ss (ms)", t.kind), t.all)
}
