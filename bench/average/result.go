package average

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"gradbus/bench/harness"
	"gradbus/schema"
)

// Result is what a run of the benchmark found, as JSON. Times are in milliseconds, medians over the batches of all
// trainers that were started here, or over the rounds of all servers. Those of servers that were running before are
// means, since these keep sums and no samples. A figure that was not measured is null: those of servers where gradients
// went between trainers alone.
type Result struct {
	Hook          string   `json:"hook"`
	Server        string   `json:"server"`
	Trainers      int      `json:"trainers"`
	Servers       int      `json:"servers"`
	Sparse        bool     `json:"sparse"`
	Device        string   `json:"device"`
	ServerDevice  string   `json:"server_device"`
	Dense         string   `json:"dense"` // the trainers' library of matrix products
	Runs          int      `json:"runs"`
	Batches       uint64   `json:"batches"` // of the trainers here, in one run
	Samples       uint64   `json:"samples"`
	BatchAllMS    float64  `json:"batch_all_ms"`
	ForwardMS     float64  `json:"forward_ms"`
	BackwardMS    float64  `json:"backward_ms"`
	StragglerMS   *float64 `json:"straggler_ms"`
	BatchMS       *float64 `json:"batch_ms"`
	AverageMS     *float64 `json:"average_ms"`
	ArrivalMS     *float64 `json:"arrival_ms"` // adding up before a bucket closed; the original has no such figure
	Seconds       float64  `json:"seconds"`    // of one run, the longest of the trainers
	BytesSent     uint64   `json:"bytes_sent"` // by the trainers here, in one run
	LossFirst     float64  `json:"loss_first"`
	LossLast      float64  `json:"loss_last"`
	WeightsSHA256 string   `json:"weights_sha256"`

	served            bool // servers have averaged something
	trainers, servers []ranked
	reported          []reported // of servers that were running before
	processes         []process
}

// newResult sums up what the members found. It fails where replicas or runs ended with different weights.
func newResult(c *Config, s *system, trained []trainerResult, served []serverResult) (*Result, error) {
	r := &Result{Hook: c.Hook, Server: c.Server, Trainers: c.Trainers, Servers: c.Servers, Sparse: s.Model.Sparse,
		Device:       c.Device,
		ServerDevice: c.ServerDevice, Runs: c.Runs, served: c.reduce(schema.ByShards)}
	if c.Joined() && len(trained) > 0 {
		r.Servers = trained[0].Runs[0].Run.Shards
	}
	slices.SortFunc(trained, func(a, b trainerResult) int { return cmp.Compare(a.Rank, b.Rank) })
	if len(trained) > 0 {
		r.Dense = trained[0].Dense
	}
	var seconds, sent []float64
	for run := range c.Runs {
		longest, bytes := 0.0, uint64(0)
		r.Batches, r.Samples, r.LossFirst, r.LossLast = 0, 0, 0, 0
		trainersWithLoss := 0
		for _, t := range trained {
			one := &t.Runs[run]
			if r.WeightsSHA256 = cmp.Or(r.WeightsSHA256, one.Weights); one.Weights != r.WeightsSHA256 {
				return nil,
					fmt.Errorf("weights of t%d in run %d are %.16s..., those of t%d in the first %.16s...: they have to be equal",
						t.Rank, run+1, one.Weights, trained[0].Rank, r.WeightsSHA256)
			}
			longest, bytes = max(longest, one.Seconds), bytes+one.BytesSent
			r.Batches, r.Samples = r.Batches+one.Batches, r.Samples+one.Samples
			if one.Batches > 0 {
				r.LossFirst, r.LossLast, trainersWithLoss = r.LossFirst+one.LossFirst, r.LossLast+one.LossLast, trainersWithLoss+1
			}
		}
		n := float64(max(1, trainersWithLoss))
		r.LossFirst, r.LossLast = r.LossFirst/n, r.LossLast/n
		seconds, sent = append(seconds, longest), append(sent, float64(bytes))
	}
	r.Seconds, r.BytesSent = harness.Median(seconds), uint64(harness.Median(sent))
	for _, t := range trained {
		var metrics []metrics
		p := process{name: fmt.Sprintf("trainer %d", t.Rank)}
		for _, one := range t.Runs {
			metrics, p.spans = append(metrics, one.Metrics), append(p.spans, one.Spans...)
		}
		r.trainers, r.processes = append(r.trainers, ranked{t.Rank, merged(metrics)}), append(r.processes, p)
	}
	for _, s := range served {
		r.servers = append(r.servers, ranked{s.Rank, s.Metrics})
		r.processes = append(r.processes, process{fmt.Sprintf("server %d", s.Rank), s.Spans})
	}
	r.medians(served)
	return r, nil
}

func (r *Result) medians(served []serverResult) {
	all := allOf(r.trainers)
	r.BatchAllMS, r.ForwardMS, r.BackwardMS = harness.Median(all[metricBatch]), harness.Median(all[metricForward]),
		harness.Median(all[metricBackward])
	all = allOf(r.servers)
	var onArrival []float64
	for i := range served {
		onArrival = append(onArrival, served[i].OnArrival...)
	}
	for _, of := range []struct {
		to     **float64
		values []float64
	}{{&r.StragglerMS, all[metricStraggler]}, {&r.BatchMS, all[metricAnswered]}, {&r.AverageMS, all[metricAverage]},
		{&r.ArrivalMS, onArrival}} {
		if len(of.values) > 0 {
			v := harness.Median(of.values)
			*of.to = &v
		}
	}
}

// allOf is the samples of all ranks together.
func allOf(ranks []ranked) metrics {
	var all []metrics
	for _, r := range ranks {
		all = append(all, r.metrics)
	}
	return merged(all)
}

// save writes the tables and the timeline where they are wanted.
func (r *Result) save(c *Config) error {
	if c.CSV != "" {
		for _, kind := range r.tables() {
			if err := kind.save(c.CSV); err != nil {
				return err
			}
		}
	}
	if c.Trace != "" {
		return saveTrace(c.Trace, r.processes)
	}
	return nil
}

// Print writes a table for each rank and one for all, of trainers and of servers, and what they come to.
func (r *Result) Print(to io.Writer) error {
	for _, kind := range r.tables() {
		if err := kind.print(to); err != nil {
			return err
		}
	}
	buckets, figures := "", "medians"
	if len(r.reported) > 0 {
		figures = "means"
	}
	if r.BatchMS != nil {
		buckets = fmt.Sprintf("buckets    %.2f ms: straggler %.2f, sums on arrival %.2f, average computation %.2f "+
			"(%s)\n", *r.BatchMS, *r.StragglerMS, *r.ArrivalMS, *r.AverageMS, figures)
	}
	server := ""
	if r.served {
		server = ", server " + r.Server
	}
	_, err := fmt.Fprintf(to, "\nhook       %s%s, trainers %d, servers %d\nbatch      %.2f ms: forward %.2f, "+
		"backward %.2f (medians)\n%sloss       %.6f, then %.6f\nsent       %.1f MB in %d batches, %.2f s\nweights "+
		"   sha256 %s\n",
		r.Hook, server, r.Trainers, r.Servers, r.BatchAllMS, r.ForwardMS, r.BackwardMS, buckets, r.LossFirst,
		r.LossLast, float64(r.BytesSent)/1e6, r.Batches, r.Seconds, r.WeightsSHA256)
	return err
}

func printTable(to io.Writer, title string, t Table) error {
	if len(t) == 0 {
		_, err := fmt.Fprintf(to, "%s: none\n", title)
		return err
	}
	return t.print(to, title)
}
