package schema

import (
	"fmt"
	"math"
	"slices"
)

// LRChange is one change of a job's learning rates while it runs: batches from From on are applied with Scale times the
// manifest's rate. Scale replaces that of the change before, so a repeated change has no effect.
type LRChange struct {
	From  Batch   `json:"from"`
	Scale float32 `json:"scale"` // finite, at least 0
}

// LRChangesMax bounds the changes of one job.
const LRChangesMax = 256

// LRScale returns the factor of batch b under changes that ascend by From: 1 before the first.
//
//	LRScale([]LRChange{{From: 10, Scale: 0.1}}, 9)  // 1
//	LRScale([]LRChange{{From: 10, Scale: 0.1}}, 10) // 0.1
func LRScale(changes []LRChange, b Batch) float32 {
	scale := float32(1)
	for _, c := range changes {
		if c.From > b {
			break
		}
		scale = c.Scale
	}
	return scale
}

// Bounds of a scale that is not forced, unless it is 0. A scale outside them is probably a typing error.
const (
	LRScaleMin = 1e-6
	LRScaleMax = 1e6
)

// CheckScale returns why a scale is refused unless it is forced, or nil. now is the scale of the newest change. Scales
// are absolute: only this one multiplies the manifest's rates.
func CheckScale(scale, now float32) error {
	if scale == 0 || scale >= LRScaleMin && scale <= LRScaleMax {
		return nil
	}
	return fmt.Errorf("learning rates would be %v times the manifest's, and are %v times these now: want 0, or %v to %v, "+
		"unless it is forced (--force)", scale, now, float32(LRScaleMin), float32(LRScaleMax))
}

// LR changes the learning rates. A request to the coordinator has one change. From 0 means the first batch that no trainer
// has begun. Any other batch is used as it is, and the request is refused if a trainer has begun it.
//
// The coordinator tells trainers all changes. If they are not final, the last one is proposed: a trainer that has not
// begun its batch answers with LRTaken, and does not begin it before a final LR or another proposal.
type LR struct {
	Serial  int        `json:"serial,omitempty" check:"serial"` // rises with every proposal
	Changes []LRChange `json:"changes" check:"changes"`
	Final   bool       `json:"final,omitempty"`
	// Force accepts rates beyond LRScaleMin and LRScaleMax times the manifest's.
	Force bool `json:"force,omitempty"`
}

// LRTaken answers a proposal. Begun is the number of batches that the trainer has begun; the proposal is valid only if
// that is at most the batch of the change.
type LRTaken struct {
	Serial int   `json:"serial" check:"serial"`
	Begun  Batch `json:"begun"`
}

func checkScale(scale float32) error {
	if v := float64(scale); math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
		return fmt.Errorf("scale %v: want a finite number, at least 0", scale)
	}
	return nil
}

// checkLR checks a list of changes by itself: bounded, ascending, each with a valid scale.
func checkLR(changes []LRChange) error {
	if len(changes) > LRChangesMax {
		return fmt.Errorf("%d changes of the learning rate: want at most %d", len(changes), LRChangesMax)
	}
	for i, c := range changes {
		if err := checkScale(c.Scale); err != nil {
			return err
		}
		if i > 0 && c.From <= changes[i-1].From {
			return fmt.Errorf("change %d from batch %d follows one from batch %d: want them ascending", i, c.From,
				changes[i-1].From)
		}
	}
	return nil
}

// CheckScaleLR returns why the learning rates of a job cannot be changed while it runs, or nil.
func (j *Job) CheckScaleLR() error {
	switch p := j.Plan(); {
	case !p.Clock.Common():
		return fmt.Errorf("job %s is %s, in which trainers do not share the batches that a change begins with: want %s or %s",
			j.Name, j.Consistency,
			ConsistencySync, ConsistencyBounded)
	case p.AsyncTables:
		return fmt.Errorf("the tables of job %s are %s: their batches are each trainer's own", j.Name, ConsistencyAsync)
	case j.Optimizer.Exact ||
		slices.ContainsFunc(j.Tables, func(t TableSpec) bool { return t.Optimizer != nil && t.Optimizer.Exact }):
		return fmt.Errorf("job %s has exact rows, which make up for the steps that they sat out at one rate", j.Name)
	case len(j.Modules) > 0:
		return fmt.Errorf("job %s hosts modules on shards, which step outside batches", j.Name)
	}
	return nil
}
