package packages

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"

	"gradbus/lane"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
	"gradbus/trainer/packages/corpus"
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

// Settings are what a person may choose. All trainers of a job must choose alike; Job puts them into the manifest.
type Settings struct {
	Job      string  // name of the job, [a-z0-9-]{1,63}
	Trainers int     // how many trainers take part, from 1
	Lanes    int     // into how many lanes each batch is cut, at least Trainers; 0 stands for Trainers
	Epochs   int     // how often the training set is gone through, from 1
	Batch    int     // most samples in a batch, from 1
	Dim      int     // values in an embedding row, from 1
	LR       float64 // learning rate, above 0
	Momentum float64 // of SGD, in [0, 1); 0 keeps no velocity
	Seed     uint64  // of initial values and order
	Apply    string  // who owns the linear layer and its optimizer: "update" is the shards, "mean" the trainers
	Reduce   string  // who adds gradients up: "shards" (also ""), or "trainers", who then keep the table too; needs "mean"

	Consistency string // mode of the job: "sync", "bounded" or "async"; empty means sync
	Ahead       int    // batches that a trainer may run ahead, 1 to 16 in bounded, else 0

	Wire schema.Wire // how gradients travel; the zero value is float32 and rows
}

// Defaults are the settings of the measured figures.
func Defaults() Settings {
	return Settings{Job: Name, Trainers: 1, Epochs: 4, Batch: 256, Dim: 64, LR: 20, Seed: 1, Apply: schema.ApplyUpdate}
}

// Limits that keep a slip of the finger from asking for the moon.
const (
	epochsMax = 100_000
	batchMax  = 1 << 20
	dimMax    = 4096
)

// Validate lists everything that is wrong, each with the field, its value and what would be right.
func (s Settings) Validate() error {
	var wrong []error
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	between := func(field string, value, low, high int) {
		if value < low || value > high {
			add("%s %d: want %d to %d", field, value, low, high)
		}
	}
	if err := schema.CheckName("job", s.Job); err != nil {
		wrong = append(wrong, err)
	}
	between("trainers", s.Trainers, 1, lane.LanesMax)
	if s.Lanes != 0 {
		between("lanes", s.Lanes, 1, lane.LanesMax)
		if s.Lanes >= 1 && s.Trainers > s.Lanes {
			add("trainers %d: want at most as many as lanes, %d", s.Trainers, s.Lanes)
		}
	}
	between("epochs", s.Epochs, 1, epochsMax)
	between("batch", s.Batch, 1, batchMax)
	between("dim", s.Dim, 1, dimMax)
	if lr := float64(float32(s.LR)); !(lr > 0) || math.IsInf(lr, 0) {
		add("lr %v: want a finite number above 0", s.LR)
	}
	if m := float64(float32(s.Momentum)); !(m >= 0 && m < 1) {
		add("momentum %v: want at least 0 and below 1", s.Momentum)
	}
	if s.Apply != schema.ApplyUpdate && s.Apply != schema.ApplyMean {
		add("apply %q: want %q or %q", s.Apply, schema.ApplyUpdate, schema.ApplyMean)
	}
	s.validateMode(add)
	s.validateReduce(add)
	if g := s.Wire.Gradients; g != "" && g != schema.GradientsFloat32 && s.Wire.DType() == schema.DTypeFloat32 {
		add("wire %q: want %q, %q or %q", g, schema.GradientsFloat32, schema.GradientsBFloat16, schema.GradientsFloat16)
	} else if s.Wire.ErrorFeedback && s.Wire.DType() == schema.DTypeFloat32 {
		add("error feedback with wire %s: want %s or %s", schema.GradientsFloat32, schema.GradientsBFloat16, schema.GradientsFloat16)
	}
	if f := s.Wire.Sparse; f != "" && f != schema.SparseRows && f != schema.SparseBags && f != schema.SparseAuto {
		add("sparse %q: want %q, %q or %q", f, schema.SparseRows, schema.SparseBags, schema.SparseAuto)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: %w", ErrSettings, errors.Join(wrong...))
	}
	return nil
}

// validateReduce checks who adds up.
func (s Settings) validateReduce(add func(format string, args ...any)) {
	switch {
	case s.Reduce != "" && s.Reduce != schema.ReduceShards && s.Reduce != schema.ReduceTrainers:
		add("reduce %q: want %q or %q", s.Reduce, schema.ReduceShards, schema.ReduceTrainers)
	case s.Reduce == schema.ReduceTrainers && s.Apply != schema.ApplyMean:
		add("apply %q with reduce %q: want %q", s.Apply, s.Reduce, schema.ApplyMean)
	}
}

// lanes is the number of lanes, the default filled in.
func (s Settings) lanes() int {
	if s.Lanes == 0 {
		return s.Trainers
	}
	return s.Lanes
}

// consistency is the mode, the default filled in.
func (s Settings) consistency() string {
	if s.Consistency == "" {
		return schema.ConsistencySync
	}
	return s.Consistency
}

// validateMode lists what is wrong with the mode of consistency.
func (s Settings) validateMode(add func(format string, args ...any)) {
	least, most := 0, 0
	switch s.consistency() {
	case schema.ConsistencySync:
	case schema.ConsistencyBounded:
		least, most = 1, schema.AheadMax
	case schema.ConsistencyAsync:
		if s.Apply == schema.ApplyMean {
			add("apply %q with consistency %q: want %q", s.Apply, s.Consistency, schema.ApplyUpdate)
		}
	default:
		add("consistency %q: want %q, %q or %q", s.Consistency, schema.ConsistencySync, schema.ConsistencyBounded, schema.ConsistencyAsync)
	}
	if s.Ahead < least || s.Ahead > most {
		add("ahead %d with consistency %q: want %d to %d", s.Ahead, s.consistency(), least, most)
	}
}

// BatchesPerEpoch is the number of batches that n training examples are dealt into.
func (s Settings) BatchesPerEpoch(n int) int { return (n + s.Batch - 1) / s.Batch }

// Batches is the number of batches of a whole run.
func (s Settings) Batches(data *corpus.Data) uint64 {
	return uint64(s.Epochs) * uint64(s.BatchesPerEpoch(data.Train.Len()))
}

// Job is the manifest that all trainers of the job must agree on: the settings, the shapes that follow from the data, and
// the digest of the data itself, so that a trainer with other examples is refused. s must be valid.
func Job(s Settings, data *corpus.Data) *schema.Job {
	classes := len(data.Classes)
	bound := nn.NewLinear(nil, s.Dim, classes).InitBound()
	return &schema.Job{
		Name:     schema.JobName(s.Job),
		Workload: Name,
		Settings: map[string]string{
			"batch":     strconv.Itoa(s.Batch),
			"data":      hex.EncodeToString(data.Digest[:]),
			"epochs":    strconv.Itoa(s.Epochs),
			"tokenizer": corpus.Tokenizer,
		},
		Seed:        s.Seed,
		Trainers:    s.Trainers,
		Lanes:       s.lanes(),
		Consistency: s.consistency(),
		Ahead:       s.Ahead,
		Wire:        s.Wire,
		Apply:       s.Apply,
		Reduce:      s.Reduce,
		Policy:      schema.PolicyFail,
		ChunkBytes:  schema.ChunkBytes,
		Optimizer:   schema.Optimizer{Kind: schema.OptimizerSGD, LR: float32(s.LR), Momentum: float32(s.Momentum)},
		Parameters: []schema.Parameter{
			{Name: weightName, Shape: []int{classes, s.Dim}, Init: schema.Init{Kind: philox.Uniform, Scale: bound}},
			{Name: biasName, Shape: []int{classes}, Init: schema.Init{Kind: philox.Uniform, Scale: bound}},
		},
		Tables: []schema.TableSpec{
			{Name: embeddingName, Rows: corpus.Rows, Dim: s.Dim, Partitions: partitions, Replicated: s.Reduce == schema.ReduceTrainers,
				Init: schema.Init{Kind: philox.Normal, Scale: embeddingScale}},
		},
	}
}
