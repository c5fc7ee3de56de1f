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
	linearModel = "linear"
	convnet     = "convnet"
)

// Config has the settings of the benchmark. The zero value is not usable: begin with DefaultConfig.
type Config struct {
	Trainers int `flag:"trainers" default:"3" range:"1 256" help:"N: trainers"`
	Batches  int `flag:"batches" default:"200" range:"1 16777216" help:"N: measured batches of each trainer"`
	Warmup   int `flag:"warmup" default:"20" range:"0 16777216" help:"N: batches of each trainer before the measured ones"`
	In       int `flag:"in" default:"100" range:"1 65536" help:"N: inputs of the linear model"`
	Out      int `flag:"out" default:"30" range:"1 65536" help:"N: outputs of the linear model"`

	BatchSize  int     `flag:"trainer-batch" default:"20" range:"1 16384" help:"N: samples in a batch of one trainer"`
	LR         float64 `flag:"lr" default:"0.001" range:"0 1e30" help:"RATE: learning rate of the server's SGD"`
	Momentum   float64 `flag:"momentum" default:"0.9" range:"0 1e30" help:"MOMENTUM: momentum of the server's SGD"`
	UpdateSize int     `flag:"update-size" help:"N: gradients that make an update; 0 is the number of trainers"`
	Model      string  `flag:"model" default:"linear" words:"linear convnet" help:"NAME: linear (L1 loss) or convnet (squared error)"`
	Load       string  `flag:"load" help:"PATH: safetensors file with the server's initial weights; empty draws them"`
	harness.Device
	Log bool `flag:"log" help:"log every step"`

	Procs          int           `flag:"procs" default:"1" hidden:"yes" help:"N: GOMAXPROCS of each process; 0 is the number of processors"`
	TelemetryEvery time.Duration `flag:"telemetry-every" default:"1s" hidden:"yes" help:"DURATION: between two telemetry reports of a trainer"`
	HeartbeatEvery time.Duration `flag:"heartbeat-every" default:"1s" hidden:"yes" help:"DURATION: between two heartbeats of a trainer"`
	harness.Flags
}

// DefaultConfig is the small setting.
func DefaultConfig() (c Config) {
	harness.SetDefaults(&c)
	c.Flags.Job = "update"
	return c
}

// Validate returns an error for the first wrong setting: the flag, its value, and what would be right.
func (c *Config) Validate() error {
	if err := cmp.Or(c.Device.Validate(), c.Flags.Validate(c, c.Trainers)); err != nil {
		return err
	}
	if c.UpdateSize < 0 || c.UpdateSize > c.Trainers {
		return fmt.Errorf("update-size %d: want 1 to %d, the number of trainers, or 0 for as many", c.UpdateSize, c.Trainers)
	}
	if err := c.job("update").Validate(); err != nil {
		return err
	}
	_, err := c.weights() // so that what is wrong with them is said once, before anything is started
	return err
}

// Idle are the flags that change nothing as these are.
func (c *Config) Idle() []config.Idle {
	return append(c.Flags.Idle(false), config.Idle{When: c.Model == convnet, Flags: []string{"in", "out"},
		Why: "the convolutional model has images and classes of its own: want --model linear with it"})
}

// Layout returns the processes of the benchmark, for spreading it over hosts.
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

// model is the data and shape that a module is trained on.
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
	if c.Model == linearModel {
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
