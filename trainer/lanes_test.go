package trainer

import (
	"reflect"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// A manifest without a number of lanes gets the default, and one with it stays as it is.
func TestWithLanes(t *testing.T) {
	for _, c := range []struct{ trainers, lanes, want int }{{2, 0, 8}, {9, 0, 16}, {2, 3, 3}, {0, 0, 8},
		{lane.LanesMax + 1, 0, 0}} {
		job := &schema.Job{Trainers: c.trainers, Lanes: c.lanes}
		if got := job.WithDefaults().Lanes; got != c.want || job.Lanes != c.lanes {
			t.Errorf("%d trainers, %d lanes: %d, want %d and the caller's as it was", c.trainers, c.lanes, got, c.want)
		}
	}
}

func TestLanePlanOfFour(t *testing.T) {
	p := newLanePlan(0, 4, 4)
	if p.slots() != 3 {
		t.Errorf("4 lanes need %d slots, want 3", p.slots())
	}
	p.present([]int{1, 1, 1, 1})
	want := []laneSums{
		{slot: 0, closes: -1},
		{slot: 1, adds: []slotSum{{0, 1, lane.Node{First: 0, Count: 1}, lane.Node{First: 1, Count: 1}}}, closes: -1},
		{slot: 1, closes: -1},
		{slot: 2, adds: []slotSum{{1, 2, lane.Node{First: 2, Count: 1}, lane.Node{First: 3, Count: 1}},
			{0, 1, lane.Node{First: 0, Count: 2}, lane.Node{First: 2, Count: 2}}}, closes: 0},
	}
	if !reflect.DeepEqual(p.lanes, want) {
		t.Errorf("plan of 4 lanes = %+v\nwant %+v", p.lanes, want)
	}
}
