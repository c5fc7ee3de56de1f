package status_test

import (
	"math"
	"testing"

	"gradbus/ps/ops/status/statustest"
)

// The loss of a job is not that of the last second in which it was a number: it is not a number.
func TestLossOfTheJobIsNotANumber(t *testing.T) {
	c := statustest.NewCluster(statustest.Options{Trainers: 2})
	tracker := c.NewTracker()
	loss := func(seconds int) float64 {
		u := c.Play(tracker, seconds)
		if l := u.Status.Jobs[0].Loss; l != nil {
			return float64(*l)
		}
		t.Fatalf("%+v has no loss", u.Status.Jobs[0])
		return 0
	}
	if l := loss(20); !(l > 1 && l < 3) {
		t.Fatalf("loss %v at first", l)
	}
	c.Trainers[1].Loss = math.NaN()
	if l := loss(5); !math.IsNaN(l) {
		t.Errorf("loss %v, where that of one of two trainers is NaN", l)
	}
	if s, _ := tracker.Series("", 0); !math.IsNaN(float64(*s.Columns["loss"][len(s.AtMS)-1])) {
		t.Errorf("the last point is %v", *s.Columns["loss"][len(s.AtMS)-1])
	}
	c.Trainers[0].Loss = math.NaN()
	if l := loss(5); !math.IsNaN(l) {
		t.Errorf("loss %v, where that of both trainers is NaN", l)
	}
	c.Trainers[0].Loss, c.Trainers[1].Loss = 0, 0
	if l := loss(2); !(l > 1 && l < 3) {
		t.Errorf("loss %v after it", l)
	}
}
