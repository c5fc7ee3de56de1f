package hosted

import (
	"cmp"
	"fmt"

	"gradbus/bench/harness"
	"gradbus/examples/mnist"
	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/schema"
)

// Modes: who computes.
const (
	remote = "remote" // the server
	pull   = "pull"   // the trainers
)

// Ways in which trainers keep together in Pull.
const (
	async   = "async"   // every gradient is applied as it comes, without waiting
	Sync    = "sync"    // a step for every batch of all
	bounded = "bounded" // likewise, computed on the version before the last
	reduce  = "reduce"  // as sync, added up between trainers
)

// Config has the settings of the benchmark. The zero value is not usable: begin with DefaultConfig.
type Config struct {
	Trainers int    `flag:"trainers" default:"2" range:"1 64" help:"N: trainers, each with its share of the data"`
	Epochs   int    `flag:"epochs" default:"1" range:"1 10000" help:"N: epochs"`
	Batches  int    `flag:"batches" range:"0 16777216" help:"N: measured batches of each trainer, in place of --epochs"`
	Warmup   int    `flag:"warmup" default:"5" range:"0 16777216" help:"N: batches of each trainer before the measured ones"`
	Mode     string `flag:"mode" default:"remote" words:"remote pull" help:"MODE: remote: the server computes; pull: trainers pull parameters, compute and push gradients"`
	Sync     string `flag:"sync" default:"async" words:"async sync bounded reduce" help:"MODE: consistency in --mode pull: async, sync, bounded, or reduce (between trainers)"`
	harness.Device
	Data      string  `flag:"input" default:"mnist" words:"mnist fashion synthetic" help:"NAME: data: mnist, fashion, or synthetic (generated)"`
	DataDir   string  `flag:"data-dir" help:"DIR: folder with the idx files of mnist or fashion; empty is data/NAME"`
	BatchSize int     `flag:"trainer-batch" default:"32" range:"1 1024" help:"N: samples in a batch of one trainer"`
	LR        float64 `flag:"lr" default:"0.03" help:"RATE: learning rate of SGD"`
	Momentum  float64 `flag:"momentum" help:"MOMENTUM: momentum of SGD"`
	LocalStep bool    `flag:"local-step" hidden:"yes" help:"measure a training step in this process instead"`
	harness.Flags
}

// DefaultConfig is the original's setting.
func DefaultConfig() (c Config) {
	harness.SetDefaults(&c)
	c.Job = "hosted"
	return c
}

// Validate returns an error for the first wrong setting: the flag, its value, and what would be right.
func (c *Config) Validate() error {
	if err := cmp.Or(c.Device.Validate(), c.Flags.Validate(c, c.Trainers)); err != nil {
		return err
	}
	if !(c.LR > 0) || c.LR > 1e30 || !(c.Momentum >= 0) || c.Momentum >= 1 {
		return fmt.Errorf("lr %v and momentum %v: want a finite number above 0, and 0 or more and below 1", c.LR, c.Momentum)
	}
	return nil
}

// Idle are the flags that change nothing as these are.
func (c *Config) Idle() []config.Idle {
	local := []string{"trainers", "epochs", "mode", "sync", "gpus", "momentum", "runs", "job", "in-process", "server",
		"hosts"}
	return append(c.Flags.Idle(c.reduces()),
		config.Idle{When: c.LocalStep, Flags: local, Why: "--local-step is one process and no server: leave it out"},
		config.Idle{When: c.Mode == remote, Flags: []string{"sync"},
			Why: "in mode remote the server steps for each gradient as it comes: want --mode pull with it"},
		config.Idle{When: c.Batches > 0, Flags: []string{"epochs"}, Why: "--batches says how long: give one of the two"},
		config.Idle{When: c.Data == mnist.DataSynthetic, Flags: []string{"data-dir"},
			Why: "synthetic images are generated: want --input mnist or fashion with it"})
}

// reduces tells whether trainers listen to each other.
func (c *Config) reduces() bool { return c.Mode == pull && c.Sync == reduce }

// Layout returns the processes of the benchmark, for spreading it over hosts.
func (c *Config) Layout() harness.Layout {
	return harness.Layout{Trainers: c.Trainers, Shards: 1, Reduces: c.reduces()}
}

// moduleName is the hosted module's.
const moduleName = "mnist"

// evaluationSamples is the number of samples that are evaluated at once.
const evaluationSamples = 100

// remoteJob is the manifest in which a shard hosts the model.
func (c *Config) remoteJob(data *mnist.Data) *schema.Job {
	return &schema.Job{
		Name: schema.JobName(c.Job), Workload: "hosted", Seed: c.Seed, Trainers: c.Trainers, Lanes: c.Trainers,
		Settings: map[string]string{"data": fmt.Sprintf("%x", data.Digest), "batch": fmt.Sprint(c.BatchSize)},
		// A trainer that is lost takes its contexts with it and nothing else.
		Consistency: schema.ConsistencyAsync, Apply: schema.ApplyUpdate, Policy: schema.PolicyFail,
		ChunkBytes: schema.ChunkBytes,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerSGD, LR: float32(c.LR), Momentum: float32(c.Momentum)},
		Modules: []schema.ModuleSpec{{Name: moduleName, Seed: c.Seed, In: mnist.Input(), Module: mnist.Config,
			Samples: max(c.BatchSize, evaluationSamples), Contexts: 2}},
	}
}

// pullSettings are those of the workload that computes on trainers.
func (c *Config) pullSettings() mnist.Settings {
	s := mnist.Defaults()
	s.Job, s.Trainers, s.Lanes, s.Epochs, s.LR, s.Momentum, s.Seed = c.Job, c.Trainers, c.Trainers, c.Epochs, c.LR,
		c.Momentum, c.Seed
	s.Batch = c.BatchSize * c.Trainers
	s.Apply, s.Consistency = schema.ApplyUpdate, schema.ConsistencyAsync
	switch c.Sync {
	case Sync:
		s.Consistency = schema.ConsistencySync
	case bounded:
		s.Consistency, s.Staleness = schema.ConsistencyBounded, 1
	case reduce:
		s.Consistency, s.Apply, s.Reduce = schema.ConsistencySync, schema.ApplyMean, schema.ReduceTrainers
	}
	return s
}

// settings are those of one member, as they travel.
type settings struct {
	Way    connect.Flags `json:"way"`
	Member schema.Member `json:"member"` // to ask for; empty is the next that is free
	Config Config        `json:"config"`
	Part   int           `json:"part"` // of the test set, among the trainers that were started here
}

// batches returns the number of batches of each trainer, and how many of them come before the measured ones.
func (c *Config) batches(perEpoch int) (all, warmup int) {
	if c.Batches > 0 {
		return c.Warmup + c.Batches, c.Warmup
	}
	all = c.Epochs * perEpoch
	return all, min(c.Warmup, all-1)
}
