package update

import (
	"encoding/json"
	"fmt"

	"gradbus/bench/crew"
	"gradbus/nn"
	"gradbus/schema"
)

// The models.
const (
	Linear  = "linear"
	Convnet = "convnet"
)

// Config is what the benchmark is told. The zero value is not usable: begin with DefaultConfig.
type Config struct {
	crew.Flags
	Trainers   int
	Batches    int // of each trainer, measured
	Warmup     int // of each trainer before these
	In, Out    int // of the linear model
	BatchSize  int // samples of each trainer in a batch
	LR         float64
	Momentum   float64
	UpdateSize int // requests that make an update; 0 is the number of trainers
	Model      string
	Log        bool // say what happens, line by line
}

// DefaultConfig is the small setting.
func DefaultConfig() Config {
	return Config{Flags: crew.DefaultFlags("update"), Trainers: 3, Batches: 200, Warmup: 20, In: 100, Out: 30, BatchSize: 20, LR: 0.001,
		Momentum: 0.9, Model: Linear}
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
	between := func(name string, value, low, high int) error {
		if value < low || value > high {
			return fmt.Errorf("%s %d: want %d to %d", name, value, low, high)
		}
		return nil
	}
	for _, err := range []error{
		between("trainers", c.Trainers, 1, trainersMax),
		between("batches", c.Batches, 1, batchesMax),
		between("warmup", c.Warmup, 0, batchesMax),
		between("in", c.In, 1, sizeMax),
		between("out", c.Out, 1, sizeMax),
		between("batch-size", c.BatchSize, 1, batchSizeMax),
	} {
		if err != nil {
			return err
		}
	}
	if c.UpdateSize < 0 || c.UpdateSize > c.Trainers {
		return fmt.Errorf("update-size %d: want 1 to %d, the number of trainers, or 0 for as many", c.UpdateSize, c.Trainers)
	}
	if c.Model != Linear && c.Model != Convnet {
		return fmt.Errorf("model %q: want %s or %s", c.Model, Linear, Convnet)
	}
	if !(c.LR >= 0) || !(c.Momentum >= 0) || c.LR > 1e30 || c.Momentum > 1e30 {
		return fmt.Errorf("lr %v and momentum %v: want finite numbers, at least 0", c.LR, c.Momentum)
	}
	if _, err := c.module(); err != nil {
		return err
	}
	if err := c.Job("update").Validate(); err != nil {
		return err
	}
	return c.Flags.Validate(c.Trainers)
}

// model is what a module is trained on.
type model struct {
	nn.Module
	in []int // shape of a sample
	// loss is the sum over the samples of each one's mean over its outputs.
	loss func(y, target, grad []float32, divisor float32) (float64, error)
	out  int
}

// module is the model by its name.
func (c *Config) module() (m model, err error) {
	switch c.Model {
	case Linear:
		m = model{in: []int{c.In}, loss: nn.L1, out: c.Out}
		m.Module = nn.LinearLayer{In: c.In, Out: c.Out}
	default:
		return m, fmt.Errorf("model %q: not there", c.Model)
	}
	return m, nil
}

// Job is the manifest that all trainers agree on. Each hosts one lane.
func (c *Config) Job(name string) *schema.Job {
	j := &schema.Job{
		Name: schema.JobName(name), Workload: "update", Seed: c.Seed, Trainers: c.Trainers, Lanes: c.Trainers,
		Settings: map[string]string{
			"model": c.Model, "batch_size": fmt.Sprint(c.BatchSize), "warmup": fmt.Sprint(c.Warmup), "batches": fmt.Sprint(c.Batches),
		},
		Consistency: schema.ConsistencyGrouped, Group: c.UpdateSize, Apply: schema.ApplyUpdate, Policy: schema.PolicyFail,
		ChunkBytes: schema.ChunkBytes,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerSGD, LR: float32(c.LR), Momentum: float32(c.Momentum)},
	}
	if j.Group == 0 {
		j.Group = c.Trainers
	}
	m, err := c.module()
	if err != nil {
		return j
	}
	for _, p := range m.Parameters() {
		j.Parameters = append(j.Parameters, schema.Parameter{Name: p.Name, Shape: p.Shape, Init: schema.Init{Kind: p.Kind, Scale: p.Scale}})
	}
	return j
}

// settings are those of one member, as they travel.
type settings struct {
	URL    string          `json:"url"`
	Config json.RawMessage `json:"config"`
}
