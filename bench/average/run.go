package average

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/internal/atomicfile"
	"gradbus/internal/connect"
	"gradbus/nn"
	"gradbus/ps"
	"gradbus/schema"
	"gradbus/trainer"
)

// Names of the roles.
const (
	trainerRoleName = "average-trainer"
	serverRoleName  = "average-server"
)

// Roles returns the roles of members of this system.
func Roles() map[string]harness.Role {
	return map[string]harness.Role{trainerRoleName: trainerRole, serverRoleName: serverRole}
}

// Run runs the benchmark: servers and trainers, a whole run to warm up, and the runs that count. It prints the tables
// to out, or the result as one line of JSON, and saves what was asked for. What is for people goes to errs where out
// gets JSON.
func Run(ctx context.Context, c Config, out, errs io.Writer) error {
	found, err := Measure(ctx, c, out, errs)
	if found == nil {
		return err
	}
	return errors.Join(err, found.save(&c), c.Show(out, found))
}

// Measure is Run without what it prints and saves in the end. It gives a result and an error where only the figures of
// servers are missing.
func Measure(ctx context.Context, c Config, out, errs io.Writer) (found *Result, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s, err := c.system()
	if err != nil {
		return nil, err
	}
	if _, err := s.job(c.jobs()[0], ""); err != nil {
		return nil, err
	}
	if err := c.checkDevices(); err != nil {
		return nil, err
	}
	if err := c.checkOutputs(); err != nil {
		return nil, err
	}
	members := c.Flags.Harness("average", Roles(), out, errs)
	defer func() {
		if e := members.Close(); err == nil {
			err = e
		}
	}()
	d := &driver{config: &c, system: s, members: members}
	return d.run(ctx)
}

// checkOutputs finds out that results could not be written before they are there.
func (c *Config) checkOutputs() error {
	if c.CSV != "" {
		if err := os.MkdirAll(c.CSV, 0o755); err != nil {
			return fmt.Errorf("csv %q: want a folder that can be written: %w", c.CSV, reason(err))
		}
	}
	if c.Trace != "" {
		if err := atomicfile.Check(c.Trace); err != nil {
			return fmt.Errorf("trace %q: want a file that can be written: %w", c.Trace, reason(err))
		}
	}
	return nil
}

// jobs are the names of the jobs that a run of the benchmark has: one to warm up, and those that count.
func (c *Config) jobs() []string {
	names := []string{c.Job + "-warmup", c.Job}
	for i := 2; i <= c.Runs; i++ {
		names = append(names, fmt.Sprintf("%s-%d", c.Job, i))
	}
	return names
}

type driver struct {
	config  *Config
	system  system
	members *harness.Harness
}

func (d *driver) run(ctx context.Context) (*Result, error) {
	var servers []*harness.Handle
	url, err := d.config.Address()
	if err != nil {
		return nil, err
	}
	if url == "" {
		if servers, url, err = d.startServers(ctx); err != nil {
			return nil, err
		}
	}
	trainers, err := d.members.Start(ctx, d.trainerSpecs(url)...)
	if err != nil {
		return nil, err
	}
	var trained []trainerResult
	for _, h := range trainers {
		var r trainerResult
		if err := h.Result(ctx, &r); err != nil {
			return nil, err
		}
		trained = append(trained, r)
	}
	served := make([]serverResult, len(servers))
	if err := d.members.StopServersAs(ctx, servers, func(i int) any { return &served[i] }); err != nil {
		return nil, err
	}
	found, err := newResult(d.config, &d.system, trained, served[:min(len(served), d.config.Servers)])
	if err != nil || !d.config.Joined() || !found.served {
		return found, err
	}
	var runs []run
	for i := range trained[0].Runs {
		runs = append(runs, trained[0].Runs[i].Run)
	}
	all, err := d.config.askServers(ctx, runs)
	found.meansOf(all)
	return found, err
}

func (d *driver) startServers(ctx context.Context) ([]*harness.Handle, string, error) {
	processes := max(1, d.config.Servers) // with none there is a ps all the same, at which the trainers meet
	return d.members.StartServersAs(ctx, serverRoleName, processes, func(i int, its harness.ServerSettings) any {
		its.Backend, its.Deadline = devices[d.config.ServerDevice], d.config.Timeout
		return serverSettings{Server: its, Rank: i,
			Jobs: d.config.jobs()[1:], Timeline: d.config.Trace != ""}
	})
}

// trainerSpecs are the trainers that run here.
func (d *driver) trainerSpecs(url string) []harness.Spec {
	c := d.config
	return c.TrainerSpecs(trainerRoleName, c.Trainers, url, func(way connect.Flags, member schema.Member) any {
		return trainerSettings{System: d.system, Way: way, Member: member, Jobs: c.jobs(), Device: c.Device,
			Timeout: c.Timeout, Timeline: c.Trace != ""}
	})
}

// serverSettings are those of one server.
type serverSettings struct {
	Server   harness.ServerSettings `json:"server"`
	Rank     int                    `json:"rank"`
	Jobs     []string               `json:"jobs"` // that are measured
	Timeline bool                   `json:"timeline"`
}

// serverResult is the result of a server for the measured jobs.
type serverResult struct {
	Rank    int     `json:"rank"`
	Metrics metrics `json:"metrics"`
	Spans   []Span  `json:"spans"`
	// OnArrival is the time spent adding gradients before a bucket closed, in milliseconds. The original has no name
	// for it, so it is in no table.
	OnArrival []float64 `json:"on_arrival"`
}

// rounds records the rounds of a server.
type rounds struct {
	jobs     []string
	timeline bool

	mu    sync.Mutex // guards found: shards report from goroutines of their own
	found serverResult
}

func (r *rounds) record(t ps.RoundTimes) {
	if !slices.Contains(r.jobs, string(t.Job)) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.found.Metrics
	m.add(metricStraggler, t.Straggler())
	m.add(metricAnswered, t.Turnaround())
	m.add(metricAverage, t.Average)
	r.found.OnArrival = append(r.found.OnArrival, float64(t.OnArrival)/float64(time.Millisecond))
	if !r.timeline {
		return
	}
	track := fmt.Sprintf("bucket %d", t.Bucket)
	r.found.Spans = append(r.found.Spans,
		span(track, "param_index_batch", uint64(t.Batch), t.FirstGradient, t.Answered, 0),
		span(track, "param_index_straggler", uint64(t.Batch), t.FirstGradient, t.LastGradient, 0),
		span(track+" receiving", "receive", uint64(t.Batch), t.First, t.LastGradient, t.Bytes),
		span(track+" averaging", "average computation", uint64(t.Batch), t.Answered.Add(-t.Average), t.Answered, 0))
}

// serverRole is a ps process that records its rounds.
func serverRole(ctx context.Context, m *harness.Member) (any, error) {
	var s serverSettings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	r := &rounds{jobs: s.Jobs, timeline: s.Timeline, found: serverResult{Rank: s.Rank, Metrics: metrics{}}}
	if err := harness.Serve(ctx, m, s.Server, func(o *ps.Options) { o.Rounds = r.record }); err != nil {
		return nil, err
	}
	return &r.found, nil // the server is gone, and with it the recorder
}

// trainerSettings are those of one trainer.
type trainerSettings struct {
	System   system        `json:"system"`
	Way      connect.Flags `json:"way"`
	Member   schema.Member `json:"member"` // to ask for; empty is the next that is free
	Jobs     []string      `json:"jobs"`   // one after the other; the first is to warm up
	Device   string        `json:"device"`
	Timeout  time.Duration `json:"timeout"`
	Timeline bool          `json:"timeline"` // spans are wanted
}

// trainerResult is the result of a trainer for all runs but the first.
type trainerResult struct {
	Rank  int          `json:"rank"`
	Dense string       `json:"dense"` // whose matrix products
	Runs  []trainerRun `json:"runs"`
}

type trainerRun struct {
	Metrics   metrics `json:"metrics"`
	Spans     []Span  `json:"spans"`
	Batches   uint64  `json:"batches"`
	Samples   uint64  `json:"samples"`
	LossFirst float64 `json:"loss_first"` // mean over this trainer's samples of its first batch
	LossLast  float64 `json:"loss_last"`
	Seconds   float64 `json:"seconds"`
	BytesSent uint64  `json:"bytes_sent"`
	Weights   string  `json:"weights"` // SHA-256
	Run       run     `json:"run"`
}

// trainerRole trains the jobs, in this order.
func trainerRole(ctx context.Context, m *harness.Member) (result any, err error) {
	var s trainerSettings
	if err := m.Settings(&s); err != nil {
		return nil, err
	}
	e, end, err := openEnv(s.Device)
	if err != nil {
		return nil, err
	}
	defer func() {
		if e := end(); err == nil {
			err = e
		}
	}()
	w, err := newWorkload(&s.System, e)
	if err != nil {
		return nil, err
	}
	found := trainerResult{Dense: e.Dense.Name()}
	for i, job := range s.Jobs {
		r := &recorder{workload: w, hook: hookMetrics(s.System.Hook), spans: s.Timeline}
		rank, err := r.run(ctx, m, &s, e, job, i)
		if err != nil {
			return nil, err
		}
		if found.Rank = rank; i > 0 {
			found.Runs = append(found.Runs, r.found)
		}
	}
	return found, nil
}

// openEnv opens what a trainer computes with on a device: a backend, and the library of matrix products that goes with
// it.
func openEnv(device string) (e nn.Env, end func() error, err error) {
	var o cuda.DenseOptions
	if device == deviceCUDA {
		o.Library = "cublas"
	}
	if e.Backend, err = cuda.Open(cuda.Options{Name: devices[device]}); err != nil {
		return e, nil, err
	}
	if e.Dense, err = cuda.OpenDense(e.Backend, o); err != nil {
		return e, nil, errors.Join(err, e.Backend.Close())
	}
	return e, func() error { return errors.Join(e.Dense.Close(), e.Backend.Close()) }, nil
}

// run joins a job, trains it and leaves it.
func (r *recorder) run(ctx context.Context, m *harness.Member, s *trainerSettings, e nn.Env, name string,
	number int) (rank int, err error) {
	job, err := s.System.job(name, e.Dense.Name())
	if err != nil {
		return 0, err
	}
	config, err := s.Way.Config(slog.New(slog.DiscardHandler))
	if err != nil {
		return 0, err
	}
	config.Member, config.Backend, config.Timeline = s.Member, e.Backend, true
	config.ReconnectTimeout, config.LeaveWithin = s.Timeout, s.Timeout
	session, err := trainer.Join(ctx, config, job)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, session.Abort(err)) }()
	if _, err := fmt.Sscanf(string(session.Member()), "t%d", &rank); err != nil {
		return 0, fmt.Errorf("member %q: %w", session.Member(), err)
	}
	steps := s.System.steps()
	r.found.Metrics, r.found.Run = metrics{}, run{session.RunID(), session.Shards()}
	began, sent := time.Now(), session.Stats().Traffic.BytesSent
	err = session.Run(ctx, r, steps, func(p trainer.Progress) {
		r.record(&p)
		m.Progress(number*int(steps)+int(p.Done), len(s.Jobs)*int(steps))
	})
	if err != nil {
		return rank, err
	}
	r.found.Seconds, r.found.BytesSent = time.Since(began).Seconds(), session.Stats().Traffic.BytesSent-sent
	sum, err := session.Digest(ctx)
	if err != nil {
		return rank, err
	}
	r.found.Weights = hex.EncodeToString(sum[:])
	return rank, nil
}

// Result is the result of a run of the benchmark, as JSON. Times are in milliseconds, medians over the batches of all
// trainers that were started here, or over the rounds of all servers. Those of servers that were running before are
// means, because these keep sums and no samples. A figure that was not measured is null: those of servers if gradients
// went between trainers only.
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
