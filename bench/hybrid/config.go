package hybrid

import (
	"cmp"
	"fmt"
	"math"

	"gradbus/bench/harness"
	"gradbus/internal/config"
	"gradbus/lane"
	"gradbus/schema"
)

// Config is all that can be set. Names in the comments are those of flags.
type Config struct {
	harness.Flags
	harness.Device

	Trainers   int     // trainers
	Servers    int     // servers
	Embeddings int     // embeddings: rows of each server's table
	Dim        int     // dim: columns on each server
	Epochs     int     // epochs that are measured
	Warmup     int     // warmup: epochs before them
	Batches    int     // batches of an epoch and trainer
	LR         float64 // lr
	Mode       string  // mode: modeAsync or modeSync
	Mean       string  // mean: harness.MeanSamples or MeanLanes, over the trainers' batches
	Placement  string  // placement of the table: schema.PlacementColumns, PlacementRows or PlacementTables
	Dense      string  // dense: what multiplies matrices, see cuda.DenseOptions
	ChunkBytes int     // chunk: bytes of dense gradients in one message; 0 is all of them, or half
}

// The words of Config.Mode.
const (
	modeAsync = "async" // each trainer's gradients of tables are applied when they arrive
	modeSync  = "sync"  // their mean over all trainers, once a batch
)

// DefaultConfig is the setting of the original.
func DefaultConfig() Config {
	return Config{Flags: harness.DefaultFlags("hybrid"), Device: harness.DefaultDevice(),
		Trainers: 8, Servers: 8, Embeddings: 300, Dim: 64, Epochs: 100,
		Warmup: 5, Batches: 10,
		LR: 0.05, Mode: modeAsync, Mean: harness.MeanSamples, Placement: schema.PlacementColumns, Dense: "auto"}
}

// What a batch is drawn from, and what it is classified into.
const (
	idsMin, idsMax = 20, 50 // ids of a batch
	bagMax         = 10     // most of a bag
	classes        = 8
)

// Limits of a configuration.
const (
	membersMax = 64
	epochsMax  = 1 << 20
)

// Idle are the flags that change nothing as these are.
func (c *Config) Idle() []config.Idle {
	return c.Flags.Idle(true)
}

// Layout is what runs where.
func (c *Config) Layout() harness.Layout {
	return harness.Layout{Trainers: c.Trainers, Shards: c.Servers, Reduces: true}
}

// Validate says what is wrong: the flag, its value and what would be right.
func (c *Config) Validate() error {
	if err := c.Flags.Validate(c.Trainers); err != nil {
		return err
	}
	if err := cmp.Or(
		harness.Between("trainers", c.Trainers, 1, min(membersMax, lane.LanesMax)),
		harness.Between("servers", c.Servers, 1, membersMax),
		harness.Between("embeddings", c.Embeddings, 1, 1<<24),
		harness.Between("dim", c.Dim, 1, schema.DimMax/max(1, c.Servers)),
		harness.Between("epochs", c.Epochs, 1, epochsMax),
		harness.Between("warmup", c.Warmup, 0, epochsMax),
		harness.Between("batches", c.Batches, 1, epochsMax),
		c.Device.Validate(),
		harness.OneOf("mode", c.Mode, modeAsync, modeSync),
		harness.OneOf("mean", c.Mean, harness.MeanSamples, harness.MeanLanes),
		harness.OneOf("placement", c.Placement, schema.PlacementColumns, schema.PlacementRows, schema.PlacementTables),
		harness.OneOf("library", c.Dense, "auto", "onednn", "openblas", "own"),
	); err != nil {
		return err
	}
	if lr := float32(c.LR); math.IsNaN(c.LR) || lr < 0 || math.IsInf(float64(lr), 0) {
		return fmt.Errorf("lr %v: want a finite number, at least 0", c.LR)
	}
	return c.job().Validate()
}
