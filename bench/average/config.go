package average

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"gradbus/bench/harness"
	"gradbus/cuda"
	"gradbus/internal/config"
	"gradbus/schema"
)

// Config is what a run of the benchmark is told. Names in the comments are those of the flags, and of errors.
type Config struct {
	harness.Flags

	Trainers, Servers int
	// (server-kind) how servers add up: average, as gradients arrive, or average-batch, when the last is there
	Server            string
	Hook              string // (hook) who averages what: allreduce, hybrid, rpc or sparse-rpc
	Epochs, BatchSize int
	DataFile          string // (data) a configuration of DummyData, a name, FILE or FILE:ID; empty is DummyData
	ModelFile         string // (model) a configuration of DummyModel, likewise
	Sparse            *bool  // (sparse) instead of what the model's configuration says; nil leaves that
	FirstBucketBytes  int    // (first-bucket-bytes) size of the bucket that is ready first; 0 is 1 MiB
	BucketBytes       int    // (bucket-bytes) of the others; 0 is 25 MiB
	LR                float64
	Mean              string        // (mean) what a mean weighs alike: samples, or lanes, which are the trainers' batches
	Timeout           time.Duration // (rpc-timeout) how long a member may be silent or out of reach before the run ends
	Criterion         string
	Preprocess        string
	IterationStep     string
	Device            string // (backend) of trainers: cpu or cuda
	ServerDevice      string // (server-backend) of servers: cpu or cuda
	CSV               string // (csv) folder for the tables; empty for none
	Trace             string // (trace) file for the timeline; empty for none
}

// DefaultConfig is the setting of the original: two trainers and a server, by the rpc hook.
func DefaultConfig() Config {
	return Config{Flags: harness.DefaultFlags("average"), Trainers: 2, Servers: 1, Server: servers[0].name, Hook: "rpc",
		Epochs: 1, BatchSize: 32,
		LR: 1e-4, Mean: means[0].name, Timeout: 30 * time.Second, Criterion: criteria[0].name,
		Preprocess:    preprocessings[0].name,
		IterationStep: iterationSteps[0].name, Device: deviceCPU, ServerDevice: deviceCPU}
}

// Devices of trainers and servers.
const (
	deviceCPU  = "cpu"
	deviceCUDA = "cuda"
)

// devices are the backends of the devices.
var devices = choice[string]{{deviceCPU, "auto"}, {deviceCUDA, "cuda"}}

// servers are when servers add up: schema.Job.Sum.
var servers = choice[string]{{"average", schema.SumFused}, {"average-batch", schema.SumClose}}

// hook says who averages what.
type hook struct {
	dense  string // schema.Job.Reduce
	sparse string // schema.TableSpec.Reduce
}

var hooks = choice[hook]{
	{"allreduce", hook{schema.ReduceTrainers, schema.ReduceTrainers}},
	{"hybrid", hook{schema.ReduceTrainers, schema.ReduceTrainers}},
	{"rpc", hook{schema.ReduceShards, schema.ReduceShards}},
	{"sparse-rpc", hook{schema.ReduceTrainers, schema.ReduceShards}},
}

// seconds is a flag that takes a time with its unit, or a number of seconds.
type seconds time.Duration

func (s *seconds) String() string { return time.Duration(*s).String() }
func (s *seconds) Type() string   { return "seconds" }
func (s *seconds) Set(text string) error {
	d, err := time.ParseDuration(text)
	if v, e := strconv.ParseFloat(text, 64); e == nil && math.Abs(v) < 1e9 {
		d, err = time.Duration(v*float64(time.Second)), nil
	}
	if err != nil {
		return fmt.Errorf("want seconds, as in 30, or a time with its unit, as in 500ms")
	}
	*s = seconds(d)
	return nil
}

// maybe is a flag that is true or false, or was not given.
type maybe struct{ to **bool }

func (m maybe) String() string {
	if m.to == nil || *m.to == nil {
		return ""
	}
	return strconv.FormatBool(**m.to)
}
func (m maybe) Type() string { return "bool" }
func (m maybe) Set(text string) error {
	v, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("want true or false")
	}
	*m.to = &v
	return nil
}

// AddTo gives a command the flags, with what is in c as their defaults.
func (c *Config) AddTo(set *pflag.FlagSet) {
	set.IntVar(&c.Trainers, "trainers", c.Trainers, "`N`: trainers")
	set.IntVar(&c.Servers, "servers", c.Servers,
		"`N`: servers, which share the buckets; 0 for the hooks allreduce and hybrid")
	set.StringVar(&c.Server, "server-kind", c.Server,
		"`KIND`: average adds gradients as they arrive; average-batch when the last has arrived")
	set.StringVar(&c.Hook, "hook", c.Hook,
		"`NAME`: what averages: allreduce, hybrid, rpc or sparse-rpc; hybrid is allreduce with a metric for rows")
	set.IntVar(&c.Epochs, "epochs", c.Epochs, "`N`: epochs")
	set.IntVar(&c.BatchSize, "trainer-batch", c.BatchSize,
		"`N`: samples in a batch; batches are dealt to the trainers in turn")
	set.StringVar(&c.DataFile, "input", c.DataFile,
		"`NAME`: data configuration: DummyData, Small, a file, or FILE:ID of a file with several")
	set.StringVar(&c.ModelFile, "model", c.ModelFile,
		"`NAME`: model configuration: DummyModel, DummyModelSparse, Small, a file, or FILE:ID of a file with several")
	set.VarPF(maybe{&c.Sparse}, "sparse", "", "send the embedding's gradient as rows, or whole with =false; "+
		"default is what the model says").NoOptDefVal = "true"
	set.IntVar(&c.FirstBucketBytes, "first-bucket-bytes", c.FirstBucketBytes,
		"`BYTES`: size of the dense bucket that is ready first; 0 is 1 MiB")
	set.IntVar(&c.BucketBytes, "bucket-bytes", c.BucketBytes,
		"`BYTES`: size of the other dense buckets; 0 is 25 MiB")
	set.Float64Var(&c.LR, "lr", c.LR, "`RATE`: learning rate of SGD")
	set.StringVar(&c.Mean, "mean", c.Mean, harness.MeanUsage)
	set.Var((*seconds)(&c.Timeout), "rpc-timeout",
		"`SECONDS`: a member that is silent for this long ends the run")
	set.StringVar(&c.Criterion, "criterion", c.Criterion,
		"`NAME`: loss: cel, or nll, which leaves out the second softmax")
	set.StringVar(&c.Preprocess, "preprocess", c.Preprocess,
		"`NAME`: preprocessing of the data: preprocess_dummy_data or sort_ids")
	set.StringVar(&c.IterationStep, "iteration-step", c.IterationStep,
		"`NAME`: basic_iteration_step, or sequential_iteration_step, which sends after the backward pass")
	set.StringVar(&c.Device, "backend", c.Device, "`NAME`: arithmetic of the trainers: cpu or cuda")
	set.StringVar(&c.ServerDevice, "server-backend", c.ServerDevice,
		"`NAME`: arithmetic of the servers: cpu or cuda")
	set.StringVar(&c.CSV, "csv", c.CSV, "`DIR`: write the tables of metrics to this folder")
	set.StringVar(&c.Trace, "trace", c.Trace,
		"`PATH`: write a timeline for chrome://tracing or Perfetto to this file")
	c.Flags.AddTo(set)
}

// Limits of a run.
const (
	trainersMax = 256
	serversMax  = 64
	epochsMax   = 1 << 20
	batchMax    = 1 << 20
	timeoutMin  = time.Second
	timeoutMax  = time.Hour
	runsMax     = 1000
)

// Validate says what is wrong first: the flag, its value and what would be right.
func (c *Config) Validate() error {
	if err := cmp.Or(
		harness.Between("trainers", c.Trainers, 1, trainersMax),
		harness.Between("servers", c.Servers, 0, serversMax),
		harness.Between("epochs", c.Epochs, 1, epochsMax),
		harness.Between("trainer-batch", c.BatchSize, 1, batchMax),
		harness.Between("runs", c.Runs, 1, runsMax),
	); err != nil {
		return err
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"first-bucket-bytes", c.FirstBucketBytes}, {"bucket-bytes", c.BucketBytes}} {
		if n.value != 0 && (n.value < schema.BucketBytesMin || n.value > schema.BucketBytesMax || n.value%4 != 0) {
			return fmt.Errorf("%s %d: want %d to %d, a multiple of 4, or 0", n.name, n.value, schema.BucketBytesMin,
				schema.BucketBytesMax)
		}
	}
	if c.Timeout < timeoutMin || c.Timeout > timeoutMax {
		return fmt.Errorf("rpc-timeout %v: want %v to %v", c.Timeout, timeoutMin, timeoutMax)
	}
	if !(c.LR >= 0) || c.LR > math.MaxFloat32 {
		return fmt.Errorf("lr %v: want a number, at least 0", c.LR)
	}
	for _, find := range []func() error{
		func() error { _, err := servers.find("server-kind", c.Server); return err },
		func() error { _, err := hooks.find("hook", c.Hook); return err },
		func() error { _, err := means.find("mean", c.Mean); return err },
		func() error { _, err := criteria.find("criterion", c.Criterion); return err },
		func() error { _, err := preprocessings.find("preprocess", c.Preprocess); return err },
		func() error { _, err := iterationSteps.find("iteration-step", c.IterationStep); return err },
		func() error { _, err := devices.find("backend", c.Device); return err },
		func() error { _, err := devices.find("server-backend", c.ServerDevice); return err },
	} {
		if err := find(); err != nil {
			return err
		}
	}
	if kind := config.Meant(strings.TrimPrefix(c.Way.Server, "nats://"), servers.names()); kind != "" {
		return fmt.Errorf("server %q: want the address of a ps that runs (did you mean --server-kind %s?)", c.Way.Server,
			kind)
	}
	if c.Servers == 0 && c.reduce(schema.ByShards) {
		return fmt.Errorf("servers 0: want 1 to %d with hook %s, by which servers average; 0 is for allreduce and hybrid",
			serversMax, c.Hook)
	}
	return c.Flags.Validate(c.Trainers)
}

// aboutServers are the flags that say what is started beside the trainers.
var aboutServers = []string{"servers", "server-backend"}

// Idle are the flags that change nothing as these are.
func (c *Config) Idle() []config.Idle {
	return append(c.Flags.Idle(c.reduce(schema.ByTrainers)),
		config.Idle{When: !c.reduce(schema.ByShards), Flags: []string{"server-kind"},
			Why: "with hook " + c.Hook + " no server adds anything up: want --hook rpc or sparse-rpc with it"},
		config.Idle{When: c.Joined() && len(c.Hosts) == 0, Flags: aboutServers,
			Why: "the ps at --server run already, as they were started: leave it out"})
}

// reduce tells whether a party adds anything up. Of a job that cannot be, which its run says, both do.
func (c *Config) reduce(by schema.Party) bool {
	s, err := c.system()
	if err != nil {
		return true
	}
	j, err := s.job(c.Job, "")
	return err != nil || j.Plan().Reduces(by)
}

// Layout is what runs where.
func (c *Config) Layout() harness.Layout {
	l := harness.Layout{Trainers: c.Trainers, Shards: max(1, c.Servers), Reduces: c.reduce(schema.ByTrainers),
		Server: []string{"--deadline", c.Timeout.String()}, Serving: aboutServers}
	if c.ServerDevice != deviceCPU {
		l.Server = append(l.Server, "--backend", c.ServerDevice)
	}
	return l
}

// checkDevices opens each device once, so that one that is not there is one clear error, before anything is started.
func (c *Config) checkDevices() error {
	for _, d := range []struct{ flag, name string }{{"backend", c.Device}, {"server-backend", c.ServerDevice}} {
		if d.name == deviceCPU {
			continue
		}
		b, err := cuda.Open(cuda.Options{Name: d.name})
		if err != nil {
			return fmt.Errorf("%s %s: %w", d.flag, d.name, err)
		}
		if err := b.Close(); err != nil {
			return fmt.Errorf("%s %s: %w", d.flag, d.name, err)
		}
	}
	return nil
}

// system is what trainers and servers are told: the parts of a Config that follow from files, loaded and checked.
type system struct {
	Trainers      int         `json:"trainers"`
	Server        string      `json:"server"`
	Hook          string      `json:"hook"`
	Epochs        int         `json:"epochs"`
	BatchSize     int         `json:"batch_size"`
	Data          dataConfig  `json:"data"`
	Model         modelConfig `json:"model"`
	Seed          uint64      `json:"seed"`
	LR            float32     `json:"lr"`
	Mean          string      `json:"mean"`
	FirstBucket   int         `json:"first_bucket_bytes"`
	Bucket        int         `json:"bucket_bytes"`
	Criterion     string      `json:"criterion"`
	Preprocess    string      `json:"preprocess"`
	IterationStep string      `json:"iteration_step"`
}

// system loads the configurations.
func (c *Config) system() (s system, err error) {
	s = system{Trainers: c.Trainers, Server: c.Server, Hook: c.Hook, Epochs: c.Epochs, BatchSize: c.BatchSize,
		Seed: c.Seed, LR: float32(c.LR), Mean: c.Mean, FirstBucket: c.FirstBucketBytes, Bucket: c.BucketBytes,
		Criterion: c.Criterion, Preprocess: c.Preprocess, IterationStep: c.IterationStep}
	if s.Model, err = loadModel(c.ModelFile); err != nil {
		return s, err
	}
	if c.Sparse != nil {
		s.Model.Sparse = *c.Sparse
	}
	if s.Data, err = loadData(c.DataFile); err != nil {
		return s, err
	}
	return s, s.Data.fits(s.Model)
}

func (s *system) dealt() dealt { return dealt{s.Data.SampleCount, s.BatchSize, s.Trainers} }

// steps is how many batches a run of the job has.
func (s *system) steps() uint64 { return uint64(s.dealt().steps()) * uint64(s.Epochs) }

// chunkBytes is the size of values in a frame: with its head it is what the NATS server reads at once, which is what
// goes fastest.
const chunkBytes = 65024

// job is the manifest of one run. Each trainer has one lane: its batches. dense names the library of their matrix
// products, on which bits depend.
func (s *system) job(name, dense string) (*schema.Job, error) {
	model, err := json.Marshal(s.Model)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(s.Data)
	if err != nil {
		return nil, err
	}
	by, err := hooks.find("hook", s.Hook)
	if err != nil {
		return nil, err
	}
	sum, err := servers.find("server-kind", s.Server)
	if err != nil {
		return nil, err
	}
	j := &schema.Job{Name: schema.JobName(name), Workload: "average", Seed: s.Seed, Trainers: s.Trainers,
		Lanes: s.Trainers,
		Settings: map[string]string{"model": string(model), "data": string(data), "hook": s.Hook, "criterion": s.Criterion,
			"preprocess": s.Preprocess, "mean": s.Mean, "dense": dense,
			"batch_size": fmt.Sprint(s.BatchSize), "epochs": fmt.Sprint(s.Epochs)},
		Consistency: schema.ConsistencySync, Reduce: by.dense, Sum: sum, Apply: schema.ApplyMean, Policy: schema.PolicyFail,
		ChunkBytes:       chunkBytes,
		FirstBucketBytes: s.FirstBucket, BucketBytes: s.Bucket,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: s.LR}}
	j.Parameters, j.Tables = s.Model.tensors()
	for i := range j.Tables {
		j.Tables[i].Reduce = by.sparse
	}
	if !j.NeedsShards() { // no server adds anything up
		j.Sum = ""
	}
	if err := j.Validate(); err != nil {
		return nil, err
	}
	return j, nil
}
