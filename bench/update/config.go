package update

import (
	"cmp"
	"fmt"
	"time"

	"gradbus/bench/harness"
	"gradbus/internal/config"
	"gradbus/internal/connect"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer"
)

// The models.
const (
	Linear  = "linear"
	convnet = "convnet"
)

// Config is what the benchmark is told. The zero value is not usable: begin with DefaultConfig.
type Config struct {
	harness.Flags
	harness.Device
	Trainers       int
	Batches        int // of each trainer, measured
	Warmup         int // of each trainer before these
	In, Out        int // of the linear model
	BatchSize      int // samples of each trainer in a batch
	LR             float64
	Momentum       float64
	UpdateSize     int // requests that make an update; 0 is the number of trainers
	Model          string
	Load           string        // safetensors file of the weights that the server begins with; empty draws them
	TelemetryEvery time.Duration // of a trainer, who says then how it fares
	HeartbeatEvery time.Duration // of a trainer, whose reports leave with heartbeats
	Procs          int           // of Go's scheduler in each process; 0 is what Go takes
	Log            bool          // say what happens, line by line
}

// DefaultConfig is the small setting.
func DefaultConfig() Config {
	return Config{Flags: harness.DefaultFlags("update"), Device: harness.DefaultDevice(),
		Trainers: 3, Batches: 200, Warmup: 20, In: 100, Out: 30,
		BatchSize: 20, LR: 0.001,
		Momentum: 0.9, Model: Linear, TelemetryEvery: time.Second, HeartbeatEvery: time.Second, Procs: 1}
}

// Limits of a run.
const (
	trainersMax  = 256
	batchesMax   = 1 << 24
	sizeMax      = 1 << 16
	batchSizeMax = 1 << 14
)

// Validate says what is wrong first: the flag, its value, and what would be right.
func (c *Config) Validate() error {
	if err := cmp.Or(
		harness.Between("trainers", c.Trainers, 1, trainersMax),
		harness.Between("batches", c.Batches, 1, batchesMax),
		harness.Between("warmup", c.Warmup, 0, batchesMax),
		harness.Between("in", c.In, 1, sizeMax),
		harness.Between("out", c.Out, 1, sizeMax),
		harness.Between("trainer-batch", c.BatchSize, 1, batchSizeMax),
		c.Device.Validate(),
	); err != nil {
		return err
	}
	if c.UpdateSize < 0 || c.UpdateSize > c.Trainers {
		return fmt.Errorf("update-size %d: want 1 to %d, the number of trainers, or 0 for as many", c.UpdateSize, c.Trainers)
	}
	if err := harness.OneOf("model", c.Model, Linear, convnet); err != nil {
		return err
	}
	if !(c.LR >= 0) || !(c.Momentum >= 0) || c.LR > 1e30 || c.Momentum > 1e30 {
		return fmt.Errorf("lr %v and momentum %v: want finite numbers, at least 0", c.LR, c.Momentum)
	}
	if err := c.job("update").Validate(); err != nil {
		return err
	}
	if _, err := c.weights(); err != nil { // so that what is wrong with them is said once, before anything is started
		return err
	}
	return c.Flags.Validate(c.Trainers)
}

// Idle are the flags that change nothing as these are.
func (c *Config) Idle() []config.Idle {
	return append(c.Flags.Idle(false), config.Idle{When: c.Model == convnet, Flags: []string{"in", "out"},
		Why: "the convolutional model has images and classes of its own: want --model linear with it"})
}

// Layout is what runs where.
func (c *Config) Layout() harness.Layout { return harness.Layout{Trainers: c.Trainers, Shards: 1} }

// weights are those that the job begins with; nil where it draws them.
func (c *Config) weights() (*trainer.Model, error) {
	if c.Load == "" {
		return nil, nil
	}
	m, err := trainer.OpenWeights(c.Load, c.job(c.Flags.Job))
	if err != nil {
		return nil, fmt.Errorf("load %q: %w", c.Load, err)
	}
	return m, nil
}

// chunkBytes makes a message a read of the NATS server's, which larger ones are put together from (docs/memory.md,
// Copies).
const chunkBytes = 65024

// model is what a module is trained on.
type model struct {
	nn.Module
	in []int // shape of a sample
	// loss is the sum over the samples of each one's mean over its outputs.
	loss func(y, target, grad []float32, divisor float32) (float64, error)
	out  int

	classes bool // labels are one of out; else all are 0
}

// The convolutional model has ResNet-50's first convolution, pooling and halving stages, without its blocks, its
// shortcuts and its normalisation: 0.5 million parameters, which a CPU trains in tens of milliseconds a batch. Images
// and classes are those of the example that it stands beside.
const (
	imageSide = 64
	classes   = 30
)

// module is the model by its name.
func (c *Config) module() model {
	if c.Model == Linear {
		return model{Module: nn.LinearLayer{In: c.In, Out: c.Out}, in: []int{c.In}, loss: nn.L1, out: c.Out}
	}
	layers := nn.Sequential(
		nn.Conv2d{In: 3, Out: 32, Kernel: 7, Stride: 2, Padding: 3}, nn.ReLU{}, nn.MaxPool2d{Kernel: 2},
		nn.Conv2d{In: 32, Out: 64, Kernel: 3, Padding: 1}, nn.ReLU{},
		nn.Conv2d{In: 64, Out: 128, Kernel: 3, Stride: 2, Padding: 1}, nn.ReLU{},
		nn.Conv2d{In: 128, Out: 256, Kernel: 3, Stride: 2, Padding: 1}, nn.ReLU{},
		nn.Flatten{}, nn.LinearLayer{In: 256 * 4 * 4, Out: classes})
	return model{Module: layers, in: []int{3, imageSide, imageSide}, loss: nn.MSE, out: classes, classes: true}
}

// job is the manifest that all trainers agree on. Each hosts one lane.
func (c *Config) job(name string) *schema.Job {
	j := &schema.Job{
		Name: schema.JobName(name), Workload: "update", Seed: c.Seed, Trainers: c.Trainers, Lanes: c.Trainers,
		Settings: map[string]string{
			"model": c.Model, "batch_size": fmt.Sprint(c.BatchSize), "warmup": fmt.Sprint(c.Warmup),
			"batches": fmt.Sprint(c.Batches),
		},
		Consistency: schema.ConsistencyGrouped, Group: c.UpdateSize, Apply: schema.ApplyUpdate, Policy: schema.PolicyFail,
		ChunkBytes: chunkBytes,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerSGD, LR: float32(c.LR), Momentum: float32(c.Momentum)},
	}
	j.GroupEvents = c.Log
	if j.Group == 0 {
		j.Group = c.Trainers
	}
	for _, p := range c.module().Parameters() {
		j.Parameters = append(j.Parameters,
			schema.Parameter{Name: p.Name, Shape: p.Shape, Init: schema.Init{Kind: p.Kind, Scale: p.Scale}})
	}
	return j
}

// settings are those of one member, as they travel.
type settings struct {
	Way    connect.Flags `json:"way"`
	Config Config        `json:"config"`
}
