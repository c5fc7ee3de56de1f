package hybrid

import (
	"cmp"
	"fmt"

	"gradbus/bench/harness"
	"gradbus/internal/config"
	"gradbus/schema"
)

// Config has the settings of the benchmark. The zero value is not usable: begin with DefaultConfig.
type Config struct {
	Trainers   int     `flag:"trainers" default:"8" range:"1 64" help:"N: trainers"`
	Servers    int     `flag:"servers" default:"8" range:"1 64" help:"N: ps processes, each with one shard"`
	Embeddings int     `flag:"embeddings" default:"300" range:"1 16777216" help:"ROWS: rows of the table, or of each server's table"`
	Dim        int     `flag:"dim" default:"64" help:"N: columns on each server; the dense part has servers*N inputs"`
	Epochs     int     `flag:"epochs" default:"100" range:"1 1048576" help:"N: measured epochs"`
	Warmup     int     `flag:"warmup" default:"5" range:"0 1048576" help:"N: epochs before the measured ones"`
	Batches    int     `flag:"batches" default:"10" range:"1 1048576" help:"N: batches of each trainer in an epoch"`
	LR         float64 `flag:"lr" default:"0.05" range:"0 3.4e38" help:"RATE: learning rate"`

	// Mode is when gradients of tables are applied, Mean what a mean over the trainers' batches weighs alike.
	Mode string `flag:"mode" default:"async" words:"async sync" help:"MODE: table gradients are applied on arrival (async) or as their mean once per batch (sync)"`
	Mean string `flag:"mean" default:"samples" words:"samples lanes" help:"NAME: a mean gives equal weight to: samples, or lanes (as DDP to trainers)"`

	Placement  string `flag:"placement" default:"columns" words:"columns rows tables" help:"HOW: embeddings are placed by columns, rows or tables"`
	Dense      string `flag:"library" default:"auto" words:"auto onednn openblas own" help:"NAME: dense library: auto, onednn, openblas or own"`
	ChunkBytes int    `flag:"chunk" help:"BYTES: dense gradients in one message; 0 picks"`
	harness.Device
	harness.Flags
}

// The words of Config.Mode.
const (
	modeAsync = "async" // each trainer's gradients of tables are applied when they arrive
	modeSync  = "sync"  // their mean over all trainers, once a batch
)

// DefaultConfig is the setting of the original.
func DefaultConfig() (c Config) {
	harness.SetDefaults(&c)
	c.Job = "hybrid"
	return c
}

// What a batch is drawn from, and what it is classified into.
const (
	idsMin, idsMax = 20, 50 // ids of a batch
	bagMax         = 10     // most of a bag
	classes        = 8
)

// Idle are the flags that change nothing as these are.
func (c *Config) Idle() []config.Idle {
	return c.Flags.Idle(true)
}

// Layout returns the processes of the benchmark, for spreading it over hosts.
func (c *Config) Layout() harness.Layout {
	return harness.Layout{Trainers: c.Trainers, Shards: c.Servers, Reduces: true}
}

// Validate returns an error for the first wrong setting: the flag, its value and what would be right.
func (c *Config) Validate() error {
	if err := cmp.Or(c.Device.Validate(), c.Flags.Validate(c, c.Trainers)); err != nil {
		return err
	}
	if most := schema.DimMax / c.Servers; c.Dim < 1 || c.Dim > most {
		return fmt.Errorf("dim %d: want 1 to %d", c.Dim, most)
	}
	return c.job().Validate()
}
