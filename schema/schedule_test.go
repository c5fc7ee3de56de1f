package schema

import (
	"encoding/json"
	"math"
	"os"
	"testing"
)

func TestScheduleLiterals(t *testing.T) {
	linear := &Schedule{Kind: ScheduleLinear, Warmup: 2, Total: 6}
	cosine := &Schedule{Kind: ScheduleCosine, Total: 4, Final: 0.5}
	steps := &Schedule{Kind: scheduleSteps, Steps: []uint64{2, 4}, Gamma: 0.5}
	for _, c := range []struct {
		name string
		s    *Schedule
		want []float32
	}{
		{"none", nil, []float32{2, 2, 2}},
		{"constant", &Schedule{Kind: scheduleConstant, Warmup: 4}, []float32{0.5, 1, 1.5, 2, 2}},
		{"linear", linear, []float32{1, 2, 2, 1.5, 1, 0.5, 0, 0}},
		{"cosine", cosine, []float32{2, 1.5 + math.Sqrt2/4, 1.5, 1.5 - math.Sqrt2/4, 1, 1}},
		{"steps", steps, []float32{2, 2, 1, 1, 0.5, 0.5}},
		{"steps in a warm-up", &Schedule{Kind: scheduleSteps, Warmup: 4, Steps: []uint64{1}, Gamma: 0.5},
			[]float32{0.5, 1, 1.5, 2, 1}},
	} {
		for v, want := range c.want {
			if got := c.s.lr(2, uint64(v)); got != want {
				t.Errorf("%s: %v at version %d, want %v", c.name, got, v, want)
			}
		}
	}
	if got := linear.lr(2, math.MaxUint64); got != 0 {
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

// The rates are those of PyTorch's schedulers (testdata/schedules.py), up to one rounding to float32; PyTorch's cosine
// is made step by step from the one before it, in float64, which adds some 1e-15 a batch.
func TestSchedulesAsInPyTorch(t *testing.T) {
	text, err := os.ReadFile("testdata/schedules.json")
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Base  float32
		Cases []struct {
			Schedule Schedule
			Rates    []float64
		}
	}
	if err := json.Unmarshal(text, &golden); err != nil || len(golden.Cases) != 6 {
		t.Fatalf("%d cases, %v", len(golden.Cases), err)
	}
	for _, c := range golden.Cases {
		if len(c.Rates) != 60 {
			t.Fatalf("%d rates of %+v", len(c.Rates), c.Schedule)
		}
		for v, want := range c.Rates {
			got := float64(c.Schedule.lr(golden.Base, uint64(v)))
			if math.Abs(got-want) > want*0x1p-23+1e-12 { // the base is rounded, and the product
				t.Errorf("%+v at version %d: %v, want %v", c.Schedule, v, got, want)
			}
		}
	}
}
