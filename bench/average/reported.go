package average

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"gradbus/fabric"
	"gradbus/schema"
)

// reported is what the ps at --server say of a shard's buckets in the runs that are measured, when these have ended.
// They keep sums and no samples.
type reported struct {
	rank    int
	sums    sums
	arrival float64 // milliseconds of adding up as gradients came, of all rounds
	rounds  float64
}

// sums is what the samples of metrics come to, in milliseconds.
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

// missing is how many shards have not been heard of.
func (r *reports) missing(runs []run) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range runs {
		n += max(0, run.Shards-len(r.said[run.ID]))
	}
	return n
}

// reportedWithin is how long the ps at --server have to report on a job that has ended, which they do each second.
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

// reported is what was said, by shard.
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
