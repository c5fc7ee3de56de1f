// Package settings holds what a person may choose of a job whatever its workload: who takes part, how it learns, and
// how gradients are added up and travel. A workload embeds Shared in its own Settings, checks both, and fills its
// manifest.
//
// The package knows manifests. It must not know workloads, their data or flags. A newcomer may add a setting here if
// every workload is to have it: with a line in a check, and in Job if trainers must agree on it.
package settings

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"gradbus/lane"
	"gradbus/schema"
)

// Shared are the settings that every workload has.
type Shared struct {
	Job      string  // name of the job, [a-z0-9-]{1,63}
	Trainers int     // how many trainers take part, from 1
	Lanes    int     // into how many lanes each batch is cut, at least Trainers; 0 stands for lane.Default
	Epochs   int     // how often the training set is gone through, from 1
	LR       float64 // learning rate, above 0
	Momentum float64 // of SGD, in [0, 1); 0 keeps no velocity

	Optimizer string // kind and hyperparameters, as "adam:beta1=0.95"; "" is sgd
	Schedule  string // of LR, as "cosine:warmup=100,total=2000"; "" is constant
	Clip      string // of the mean gradient, as "value:0.5"; "" is none

	Seed   uint64 // of initial values, order, and whatever else the workload draws
	Apply  string // who owns the dense parameters and their optimizer: "update" is the shards, "mean" the trainers
	Reduce string // who adds gradients up: "shards" (also ""), or "trainers", who then keep tables too; needs "mean"

	Consistency string // mode of the job: "sync" (also ""), "bounded", "async" or "grouped"
	Staleness   int    // batches that a trainer may run ahead, 1 to 16 in bounded, else 0
	Group       int    // trainers whose gradients make one update in grouped, 0 for all; else 0

	FailurePolicy string // what becomes of the job when a trainer is lost; "" is as schema.Job.WithDefaults says
	OnNonfinite   string // what becomes of a lane whose gradient is not finite: "fail" (also "") or "skip"

	Wire schema.Wire // how gradients travel; the zero value is float32
}

// epochsMax keeps a slip of the finger from asking for the moon.
const epochsMax = 100_000

// Check collects what is wrong, each with the field, its value and what would be right. The zero value is ready.
type Check struct{ wrong []error }

// Add says that something is wrong.
func (c *Check) Add(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Errorf(format, args...))
}

// Between adds a field whose value is not in [low, high].
func (c *Check) Between(field string, value, low, high int) {
	if value < low || value > high {
		c.Add("%s %d: want %d to %d", field, value, low, high)
	}
}

// Err is nil where nothing was added, else kind with all of it.
func (c *Check) Err(kind error) error {
	if len(c.wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", kind, errors.Join(c.wrong...))
}

// CheckPlace adds what is wrong with the job's name and size.
func (s Shared) CheckPlace(c *Check) {
	if err := schema.CheckName("job", s.Job); err != nil {
		c.Add("%w", err)
	}
	c.Between("trainers", s.Trainers, 1, lane.LanesMax)
	if s.Lanes != 0 {
		c.Between("lanes", s.Lanes, 1, lane.LanesMax)
		if s.Lanes >= 1 && s.Trainers > s.Lanes {
			c.Add("trainers %d: want at most as many as lanes, %d", s.Trainers, s.Lanes)
		}
	}
	c.Between("epochs", s.Epochs, 1, epochsMax)
}

// CheckTraining adds what is wrong with the optimizer, who applies and adds up, the mode, and as what gradients travel.
func (s Shared) CheckTraining(c *Check) {
	if lr := float64(float32(s.LR)); !(lr > 0) || math.IsInf(lr, 0) {
		c.Add("lr %v: want a finite number above 0", s.LR)
	}
	if m := float64(float32(s.Momentum)); !(m >= 0 && m < 1) {
		c.Add("momentum %v: want at least 0 and below 1", s.Momentum)
	}
	s.checkOptimizer(c)
	if s.Apply != schema.ApplyUpdate && s.Apply != schema.ApplyMean {
		c.Add("apply %q: want %q or %q", s.Apply, schema.ApplyUpdate, schema.ApplyMean)
	}
	if s.OnNonfinite != "" && s.OnNonfinite != schema.NonfiniteFail && s.OnNonfinite != schema.NonfiniteSkip {
		c.Add("on nonfinite %q: want %q or %q", s.OnNonfinite, schema.NonfiniteFail, schema.NonfiniteSkip)
	}
	s.checkMode(c)
	switch {
	case s.Reduce != "" && s.Reduce != schema.ReduceShards && s.Reduce != schema.ReduceTrainers:
		c.Add("reduce %q: want %q or %q", s.Reduce, schema.ReduceShards, schema.ReduceTrainers)
	case s.Reduce == schema.ReduceTrainers && s.Apply != schema.ApplyMean:
		c.Add("apply %q with reduce %q: want %q", s.Apply, s.Reduce, schema.ApplyMean)
	}
	if g := s.Wire.Gradients; g != "" && g != schema.GradientsFloat32 && s.Wire.DType() == schema.DTypeFloat32 {
		c.Add("wire %q: want %q, %q or %q", g, schema.GradientsFloat32, schema.GradientsBFloat16, schema.GradientsFloat16)
	} else if s.Wire.DType() != schema.DTypeFloat32 && s.Apply == schema.ApplyMean {
		c.Add("wire %q with apply %q: want %q", g, s.Apply, schema.GradientsFloat32)
	} else if s.Wire.ErrorFeedback && s.Wire.DType() == schema.DTypeFloat32 {
		c.Add("error feedback with wire %s: want %s or %s", schema.GradientsFloat32, schema.GradientsBFloat16,
			schema.GradientsFloat16)
	}
}

// checkMode adds what is wrong with the mode of consistency.
func (s Shared) checkMode(c *Check) {
	least, most := 0, 0
	switch s.consistency() {
	case schema.ConsistencySync:
	case schema.ConsistencyBounded:
		least, most = 1, schema.AheadMax
	case schema.ConsistencyAsync, schema.ConsistencyGrouped:
	default:
		c.Add("consistency %q: want %q, %q, %q or %q", s.Consistency, schema.ConsistencySync, schema.ConsistencyBounded,
			schema.ConsistencyAsync, schema.ConsistencyGrouped)
	}
	if s.consistency() != schema.ConsistencySync && s.Apply == schema.ApplyMean {
		c.Add("apply %q with consistency %q: want %q", s.Apply, s.Consistency, schema.ApplyUpdate)
	}
	if s.Consistency == schema.ConsistencyGrouped {
		c.Between("group", s.Group, 0, max(1, s.Trainers))
	} else if s.Group != 0 {
		c.Add("group %d with consistency %q: want 0, or consistency %q", s.Group, s.consistency(), schema.ConsistencyGrouped)
	}
	if s.Staleness < least || s.Staleness > most {
		c.Add("staleness %d with consistency %q: want %d to %d", s.Staleness, s.consistency(), least, most)
	}
}

// CheckTables adds what is wrong with the mode of a workload that has tables.
func (s Shared) CheckTables(c *Check) {
	if s.Consistency == schema.ConsistencyGrouped {
		c.Add("consistency %q: want %q, %q or %q, since this workload has tables, and groups update dense parameters alone",
			s.Consistency, schema.ConsistencySync, schema.ConsistencyBounded, schema.ConsistencyAsync)
	}
}

// LaneCount is the number of lanes, the default filled in.
func (s Shared) LaneCount() int {
	if s.Lanes == 0 {
		return lane.Default(s.Trainers)
	}
	return s.Lanes
}

// consistency is the mode, the default filled in.
func (s Shared) consistency() string {
	if s.Consistency == "" {
		return schema.ConsistencySync
	}
	return s.Consistency
}

// Record is the settings as text, as files of trained models keep them for people.
func (s Shared) Record() map[string]string {
	record := map[string]string{"epochs": strconv.Itoa(s.Epochs), "lanes": strconv.Itoa(s.LaneCount()),
		"lr": Number(s.LR), "momentum": Number(s.Momentum), "seed": strconv.FormatUint(s.Seed, 10)}
	for name, text := range map[string]string{"optimizer": s.Optimizer, "schedule": s.Schedule, "clip": s.Clip} {
		if text != "" {
			record[name] = text
		}
	}
	return record
}

// Number is the shortest text that gives x again.
func Number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// Manifest is the manifest of a workload's job as far as these settings go: without its own settings, parameters and
// tables. s must be valid.
func (s Shared) Manifest(workload string) *schema.Job {
	optimizer, _ := s.optimizer()
	if s.clipsRows() {
		optimizer.Clip = nil // see TableOptimizer
	}
	group := s.Group
	if group == 0 && s.Consistency == schema.ConsistencyGrouped {
		group = s.Trainers
	}
	return &schema.Job{
		Name:        schema.JobName(s.Job),
		Workload:    workload,
		Seed:        s.Seed,
		Trainers:    s.Trainers,
		Lanes:       s.LaneCount(),
		Consistency: s.consistency(),
		Ahead:       s.Staleness,
		Group:       group,
		Wire:        s.Wire,
		Apply:       s.Apply,
		Reduce:      s.Reduce,
		OnNonfinite: s.OnNonfinite,
		Policy:      s.FailurePolicy,
		ChunkBytes:  schema.ChunkBytes,
		Optimizer:   optimizer,
	}
}
