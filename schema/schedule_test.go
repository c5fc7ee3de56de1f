package schema

import (
	"math"
	"testing"
)

func TestScheduleLiterals(t *testing.T) {
	linear := &Schedule{Kind: ScheduleLinear, Warmup: 2, Total: 6}
	cosine := &Schedule{Kind: ScheduleCosine, Total: 4, Final: 0.5}
	steps := &Schedule{Kind: ScheduleSteps, Steps: []uint64{2, 4}, Gamma: 0.5}
	for _, c := range []struct {
		name string
		s    *Schedule
		want []float32
	}{
		{"none", nil, []float32{2, 2, 2}},
		{"constant", &Schedule{Kind: ScheduleConstant, Warmup: 4}, []float32{0.5, 1, 1.5, 2, 2}},
		{"linear", linear, []float32{1, 2, 2, 1.5, 1, 0.5, 0, 0}},
		{"cosine", cosine, []float32{2, 1.5 + math.Sqrt2/4, 1.5, 1.5 - math.Sqrt2/4, 1, 1}},
		{"steps", steps, []float32{2, 2, 1, 1, 0.5, 0.5}},
		{"steps in a warm-up", &Schedule{Kind: ScheduleSteps, Warmup: 4, Steps: []uint64{1}, Gamma: 0.5}, []float32{0.5, 1, 1.5, 2, 1}},
	} {
		for v, want := range c.want {
			if got := c.s.LR(2, uint64(v)); got != want {
				t.Errorf("%s: %v at version %d, want %v", c.name, got, v, want)
			}
		}
	}
	if got := linear.LR(2, math.MaxUint64); got != 0 {
		t.Errorf("%v at the end of time", got)
	}
	o := Optimizer{LR: 2, Schedule: linear}
	if got := o.Rate(3); got != 1.5 {
		t.Errorf("rate %v", got)
	}
}

// The cosine of a schedule is that of package math, but for the last bits.
func TestCosPi(t *testing.T) {
	for i := range 1001 {
		x := float64(i) / 1000
		if got, want := cosPi(x), math.Cos(math.Pi*x); math.Abs(got-want) > 1e-15 {
			t.Errorf("cos(pi*%v) = %v, want %v", x, got, want)
		}
	}
	if cosPi(0) != 1 || cosPi(1) != -1 {
		t.Errorf("ends %v and %v", cosPi(0), cosPi(1))
	}
}
