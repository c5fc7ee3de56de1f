package mnist

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"

	"gradbus/lane"
	"gradbus/nn"
	"gradbus/schema"
)

// Name is the workload's name in manifests and on command lines.
const Name = "mnist"

// ErrSettings says that settings are not usable; the text lists every one of them.
var ErrSettings = errors.New("invalid settings")

// Settings are what a person may choose. All trainers of a job must choose alike; Job puts them into the manifest.
type Settings struct {
	Job      string  // name of the job, [a-z0-9-]{1,63}
	Trainers int     // how many trainers take part, from 1
	Lanes    int     // into how many lanes each batch is cut, at least Trainers; 0 stands for Trainers
	Epochs   int     // how often the training set is gone through, from 1
	Batches  uint64  // of the whole run; 0 stands for those of Epochs
	Batch    int     // most samples of a lane in a batch, from 1
	LR       float64 // learning rate, above 0
	Momentum float64 // of SGD, in [0, 1); 0 keeps no velocity
	Seed     uint64  // of initial values, order and dropout
	Apply    string  // who owns the parameters and their optimizer: "update" is the shards, "mean" the trainers
	Reduce   string  // who adds gradients up: "shards" (also ""), or "trainers"; that needs "mean"

	Consistency string // mode of the job: "sync" (also ""), "bounded" or "async"
	Ahead       int    // batches that a trainer may run ahead, 1 to 16 in bounded, else 0

	Wire schema.Wire // how gradients travel; the zero value is float32
}

// Defaults are the settings of the measured figures: the learning rate is the original's, with momentum, since a step is
// over the samples of all lanes.
func Defaults() Settings {
	return Settings{Job: Name, Trainers: 1, Epochs: 3, Batch: 32, LR: 0.03, Momentum: 0.9, Seed: 1, Apply: schema.ApplyUpdate}
}

// Limits that keep a slip of the finger from asking for the moon.
const (
	epochsMax  = 100_000
	batchMax   = 1 << 16
	batchesMax = 1 << 40
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
	if s.Batches > batchesMax {
		add("batches %d: want 0 to %d", s.Batches, uint64(batchesMax))
	}
	if lr := float64(float32(s.LR)); !(lr > 0) || math.IsInf(lr, 0) {
		add("lr %v: want a finite number above 0", s.LR)
	}
	if m := float64(float32(s.Momentum)); !(m >= 0 && m < 1) {
		add("momentum %v: want at least 0 and below 1", s.Momentum)
	}
	s.validateMode(add)
	if g := s.Wire.Gradients; g != "" && g != schema.GradientsFloat32 && s.Wire.DType() == schema.DTypeFloat32 {
		add("wire %q: want %q, %q or %q", g, schema.GradientsFloat32, schema.GradientsBFloat16, schema.GradientsFloat16)
	} else if s.Wire.ErrorFeedback && s.Wire.DType() == schema.DTypeFloat32 {
		add("error feedback with wire %s: want %s or %s", schema.GradientsFloat32, schema.GradientsBFloat16, schema.GradientsFloat16)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%w: %w", ErrSettings, errors.Join(wrong...))
	}
	return nil
}

// validateMode lists what is wrong with who applies, who adds up, and the mode of consistency.
func (s Settings) validateMode(add func(format string, args ...any)) {
	if s.Apply != schema.ApplyUpdate && s.Apply != schema.ApplyMean {
		add("apply %q: want %q or %q", s.Apply, schema.ApplyUpdate, schema.ApplyMean)
	}
	switch {
	case s.Reduce != "" && s.Reduce != schema.ReduceShards && s.Reduce != schema.ReduceTrainers:
		add("reduce %q: want %q or %q", s.Reduce, schema.ReduceShards, schema.ReduceTrainers)
	case s.Reduce == schema.ReduceTrainers && s.Apply != schema.ApplyMean:
		add("apply %q with reduce %q: want %q", s.Apply, s.Reduce, schema.ApplyMean)
	}
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

// BatchesPerEpoch is the number of batches that n training samples are dealt into.
func (s Settings) BatchesPerEpoch(n int) int { return batchesPerEpoch(n, s.Batch, s.lanes()) }

// Run is the number of batches of a whole run.
func (s Settings) Run(data *Data) uint64 {
	if s.Batches > 0 {
		return s.Batches
	}
	return uint64(s.Epochs) * uint64(s.BatchesPerEpoch(data.Train.Len()))
}

// Job is the manifest that all trainers of the job must agree on: the settings, the model's parameters, the digest of the
// data, so that a trainer with other samples is refused, and library, the name of the dense library that computes
// (cuda.Dense.Name), since the gradients have its bits. s must be valid.
func Job(s Settings, data *Data, m nn.Module, library string) *schema.Job {
	return &schema.Job{
		Name:     schema.JobName(s.Job),
		Workload: Name,
		Settings: map[string]string{
			"batch":   strconv.Itoa(s.Batch),
			"data":    hex.EncodeToString(data.Digest[:]),
			"epochs":  strconv.Itoa(s.Epochs),
			"library": library,
			"model":   string(nn.Config(m)),
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
		Parameters:  Parameters(m),
	}
}

// Parameters are those of a module as a job has them.
func Parameters(m nn.Module) []schema.Parameter {
	var all []schema.Parameter
	for _, p := range m.Parameters() {
		all = append(all, schema.Parameter{Name: p.Name, Shape: p.Shape, Init: schema.Init{Kind: p.Kind, Scale: p.Scale}})
	}
	return all
}
