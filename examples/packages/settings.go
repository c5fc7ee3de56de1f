package packages

import (
	"encoding/hex"
	"errors"
	"strconv"

	"gradbus/examples/packages/corpus"
	"gradbus/internal/settings"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer/shuffle"
)

// Name is the workload's name in manifests and on command lines.
const Name = "packages"

// Names of the model's tensors, in manifests and in saved files; PyTorch's for modules called embedding and linear.
const (
	embeddingName = "embedding.weight"
	weightName    = "linear.weight"
	biasName      = "linear.bias"
)

const (
	partitions     = 64   // of the table
	embeddingScale = 0.05 // standard deviation of the table's initial values
)

// ErrSettings says that settings are not usable; the text lists every one of them.
var ErrSettings = errors.New("invalid settings")

// Settings are the user's choices. All trainers of a job must choose alike; Job puts them into the manifest.
type Settings struct {
	settings.Shared
	Batch int // most samples in a batch, from 1
	Dim   int // values in an embedding row, from 1

	// Placement divides the table over the shards: "tables" (whole on one shard) and "columns" pool there, in sync and
	// with reduce "shards"; "rows" pools in the trainers. "" means tables if possible, else rows: columns send every
	// key to every shard, which does not pay for one table of this size. With gradients in float32 no bit depends on
	// it.
	Placement string
}

// Defaults are the settings of the measured figures.
func Defaults() Settings {
	return Settings{Shared: settings.Shared{Job: Name, Trainers: 1, Epochs: 4, LR: 20, Seed: 1, Apply: schema.ApplyUpdate},
		Batch: 256, Dim: 64}
}

// Limits that keep a slip of the finger from asking for the moon.
const (
	batchMax = 1 << 20
	dimMax   = 4096
)

// Validate lists everything that is wrong, each with the field, its value and what would be right.
func (s Settings) Validate() error {
	var c settings.Check
	s.CheckPlace(&c)
	c.Between("batch", s.Batch, 1, batchMax)
	c.Between("dim", s.Dim, 1, dimMax)
	s.CheckTraining(&c)
	s.CheckTables(&c)
	switch s.Placement {
	case "", schema.PlacementRows:
	case schema.PlacementColumns, schema.PlacementTables:
		if !s.poolsOnShards() {
			c.Add("placement %q with consistency %q and reduce %q: want %q, or consistency %q and reduce %q", s.Placement,
				s.Consistency, s.Reduce, schema.PlacementRows, schema.ConsistencySync, schema.ReduceShards)
		}
	default:
		c.Add("placement %q: want %q, %q or %q", s.Placement, schema.PlacementColumns, schema.PlacementTables,
			schema.PlacementRows)
	}
	return c.Err(ErrSettings)
}

// poolsOnShards says whether shards can pool the table of such a job.
func (s Settings) poolsOnShards() bool {
	return s.Reduce != schema.ReduceTrainers && (s.Consistency == "" || s.Consistency == schema.ConsistencySync)
}

// placement returns the placement of the table, with the default filled in.
func (s Settings) placement() string {
	if s.Placement == "" && s.poolsOnShards() {
		return schema.PlacementTables
	}
	return s.Placement
}

// BatchesPerEpoch is the number of batches that n training examples are cut into.
func (s Settings) BatchesPerEpoch(n int) int { return shuffle.PerEpoch(n, s.Batch) }

// Batches is the number of batches of a whole run.
func (s Settings) Batches(data *corpus.Data) uint64 {
	return uint64(s.Epochs) * uint64(s.BatchesPerEpoch(data.Train.Len()))
}

// Job is the manifest that all trainers of the job must agree on: the settings, the shapes that follow from the data,
// and the digest of the data itself, so that a trainer with other examples is refused. s must be valid.
func Job(s Settings, data *corpus.Data) *schema.Job {
	classes := len(data.Classes)
	bound := nn.NewLinear(nil, s.Dim, classes).InitBound()
	job := s.Manifest(Name)
	job.Settings = map[string]string{
		"batch":     strconv.Itoa(s.Batch),
		"data":      hex.EncodeToString(data.Digest[:]),
		"epochs":    strconv.Itoa(s.Epochs),
		"tokenizer": corpus.Tokenizer,
	}
	job.Parameters = []schema.Parameter{
		{Name: weightName, Shape: []int{classes, s.Dim}, Init: schema.Init{Kind: philox.Uniform, Scale: bound}},
		{Name: biasName, Shape: []int{classes}, Init: schema.Init{Kind: philox.Uniform, Scale: bound}},
	}
	job.Tables = []schema.TableSpec{
		{Name: embeddingName, Rows: corpus.Rows, Dim: s.Dim, Partitions: partitions,
			Replicated: s.Reduce == schema.ReduceTrainers,
			Placement:  s.placement(), Pooling: schema.PoolingMean,
			Init: schema.Init{Kind: philox.Normal, Scale: embeddingScale}, Optimizer: s.TableOptimizer()},
	}
	return job.WithDefaults()
}
