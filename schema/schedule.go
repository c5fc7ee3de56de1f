package schema

import "math"

// The kinds of schedules.
const (
	scheduleConstant = "constant"
	ScheduleLinear   = "linear"
	ScheduleCosine   = "cosine"
	scheduleSteps    = "steps"
)

// scheduleStepsMax is the most entries of Schedule.Steps.
const scheduleStepsMax = 64

// Schedule says by what the learning rate of an optimizer is multiplied at version v, the number of batches applied: a
// pure function. In async and grouped, v counts the updates that the owner of the values has applied.
//
//	v < Warmup   (v+1) / Warmup, whatever the kind; after it
//	constant     1
//	linear       1 - t + t*Final, where t = (v-Warmup) / (Total-Warmup), and from Total on Final
//	cosine       Final + (1-Final) * (1 + cos(pi*t)) / 2, with the same t
//	steps        Gamma to the power of how many of Steps are at most v
//
// They are LambdaLR, LinearLR, CosineAnnealingLR and MultiStepLR of PyTorch, stepped after each batch.
type Schedule struct {
	Kind   string `json:"kind"`             // scheduleConstant, ScheduleLinear, ScheduleCosine or scheduleSteps
	Warmup uint64 `json:"warmup,omitempty"` // batches in which the rate rises to LR; 0 for none
	// of linear and cosine: the version at which the rate is Final*LR; above Warmup
	Total uint64   `json:"total,omitempty"`
	Final float32  `json:"final,omitempty"` // of linear and cosine: 0 to 1
	Steps []uint64 `json:"steps,omitempty"` // of steps: versions, ascending
	Gamma float32  `json:"gamma,omitempty"` // of steps: above 0
}

// lr is the rate at a version, computed in float64 and rounded once; base where s is nil. It has the same bits on every
// processor: no product is fused with a sum, and the cosine is this package's own.
//
//	(&Schedule{Kind: ScheduleLinear, Warmup: 2, Total: 6}).LR(1, 4) == 0.5
func (s *Schedule) lr(base float32, version uint64) float32 {
	if s == nil {
		return base
	}
	return float32(float64(base) * s.factor(version))
}

func (s *Schedule) factor(version uint64) float64 {
	if version < s.Warmup {
		return float64(version+1) / float64(s.Warmup)
	}
	final := float64(s.Final)
	t := 1.0
	if version < s.Total {
		t = float64(version-s.Warmup) / float64(s.Total-s.Warmup)
	}
	switch s.Kind {
	case ScheduleLinear:
		return 1 - t + float64(t*final)
	case ScheduleCosine:
		return final + float64((1-final)*(1+cosPi(t)))/2
	case scheduleSteps:
		factor := 1.0
		for _, at := range s.Steps {
			if version >= at {
				factor = float64(factor * float64(s.Gamma))
			}
		}
		return factor
	}
	return 1
}

// cosPi is cos(pi*t) for t in [0, 1], within 1e-15, by its series: math.Cos may differ by a bit from one processor to
// another.
func cosPi(t float64) float64 {
	if t > 0.5 {
		return -cosPi(1 - t)
	}
	square := float64(math.Pi*t) * float64(math.Pi*t)
	sum := 1.0
	for n := 22.0; n > 0; n -= 2 { // Horner: 1 - x²/(1*2) * (1 - x²/(3*4) * ...)
		sum = 1 - float64(square*sum)/float64(n*(n-1))
	}
	return sum
}
