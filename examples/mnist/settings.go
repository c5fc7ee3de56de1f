package mnist

import (
	"encoding/hex"
	"errors"
	"strconv"

	"gradbus/internal/settings"
	"gradbus/nn"
	"gradbus/schema"
	"gradbus/trainer/shuffle"
)

// Name is the workload's name in manifests and on command lines.
const Name = "mnist"

// ErrSettings says that settings are not usable; the text lists every one of them.
var ErrSettings = errors.New("invalid settings")

// Settings are what a person may choose. All trainers of a job must choose alike; Job puts them into the manifest.
type Settings struct {
	settings.Shared
	Batches uint64 // of the whole run; 0 stands for those of Epochs
	Batch   int    // most samples in a batch, from 1
}

// Defaults are the settings of the measured figures: the learning rate is the original's, with momentum, since a batch
// has more samples.
func Defaults() Settings {
	return Settings{Shared: settings.Shared{Job: Name, Trainers: 1, Epochs: 3, LR: 0.03, Momentum: 0.9, Seed: 1,
		Apply: schema.ApplyUpdate}, Batch: 64}
}

// Limits that keep a slip of the finger from asking for the moon.
const (
	batchMax   = 1 << 16
	batchesMax = 1 << 40
)

// Validate lists everything that is wrong, each with the field, its value and what would be right.
func (s Settings) Validate() error {
	var c settings.Check
	s.CheckPlace(&c)
	c.Between("batch", s.Batch, 1, batchMax)
	if s.Batches > batchesMax {
		c.Add("batches %d: want 0 to %d", s.Batches, uint64(batchesMax))
	}
	s.CheckTraining(&c)
	if s.TableOptimizer() != nil {
		c.Add("clip %s: want value or global, since %s has no rows", s.Clip, Name)
	}
	return c.Err(ErrSettings)
}

// BatchesPerEpoch is the number of batches that n training samples are cut into.
func (s Settings) BatchesPerEpoch(n int) int { return shuffle.PerEpoch(n, s.Batch) }

// Run is the number of batches of a whole run.
func (s Settings) Run(data *Data) uint64 {
	if s.Batches > 0 {
		return s.Batches
	}
	return uint64(s.Epochs) * uint64(s.BatchesPerEpoch(data.Train.Len()))
}

// Job is the manifest that all trainers of the job must agree on: the settings, the model's parameters, the digest of
// the data, so that a trainer with other samples is refused, and library, the name of the dense library that computes
// (cuda.Dense.Name), since the gradients have its bits. s must be valid.
func Job(s Settings, data *Data, m nn.Module, library string) *schema.Job {
	job := s.Manifest(Name)
	job.Settings = map[string]string{
		"batch":   strconv.Itoa(s.Batch),
		"data":    hex.EncodeToString(data.Digest[:]),
		"epochs":  strconv.Itoa(s.Epochs),
		"library": library,
		"model":   string(nn.Config(m)),
	}
	job.Parameters = parameters(m)
	return job.WithDefaults()
}

// parameters are those of a module as a job has them.
func parameters(m nn.Module) []schema.Parameter {
	var all []schema.Parameter
	for _, p := range m.Parameters() {
		all = append(all, schema.Parameter{Name: p.Name, Shape: p.Shape, Init: schema.Init{Kind: p.Kind, Scale: p.Scale}})
	}
	return all
}
