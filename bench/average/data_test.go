package average

import (
	"slices"
	"testing"
)

func TestData(t *testing.T) {
	c := dataConfig{MaxVal: 64, SampleCount: 50, SampleLength: 40, SparsityPercentage: 25}
	d := newData(c, 7)
	ids := slices.Compact(slices.Sorted(slices.Values(d.IDs)))
	if len(ids) != 48 || ids[0] < 0 || ids[47] >= 64 { // 2000 draws leave none of 48 out, but for one in 10^17
		t.Errorf("%d ids, want 48 of [0, 64): %v", len(ids), ids)
	}
	if len(d.Targets) != 50 || slices.Min(d.Targets) < 0 || slices.Max(d.Targets) >= 64 {
		t.Errorf("targets %v, want 50 in [0, 64)", d.Targets)
	}
	if again := newData(c, 7); !slices.Equal(again.IDs, d.IDs) || !slices.Equal(again.Targets, d.Targets) {
		t.Error("the same seed gives other data")
	}
	if other := newData(c, 8); slices.Equal(other.IDs, d.IDs) {
		t.Error("another seed gives the same data")
	}
	sorted := newData(c, 7)
	sortIDs(sorted)
	for i := range 50 {
		a, b := slices.Clone(d.IDs[i*40:(i+1)*40]), sorted.IDs[i*40:(i+1)*40]
		slices.Sort(a)
		if !slices.Equal(a, b) {
			t.Fatalf("sample %d has ids %v, want %v", i, b, a)
		}
	}
}

// 10 samples in batches of 3 are 4 batches; 3 trainers take them in 2 steps, the last of which one trainer has.
func TestDealt(t *testing.T) {
	d := dealt{10, 3, 3}
	if d.batches() != 4 || d.steps() != 2 {
		t.Errorf("%d batches in %d steps, want 4 in 2", d.batches(), d.steps())
	}
	for step, want := range [][3][2]int{{{0, 3}, {3, 6}, {6, 9}}, {{9, 10}, {10, 10}, {10, 10}},
		{{0, 3}, {3, 6}, {6, 9}}} {
		for trainer := range 3 {
			if lo, hi := d.of(uint64(step), trainer); lo != want[trainer][0] || hi != want[trainer][1] {
				t.Errorf("step %d trainer %d has [%d, %d), want %v", step, trainer, lo, hi, want[trainer])
			}
		}
	}
}
