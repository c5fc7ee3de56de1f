package shuffle

import (
	"math"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// Ten samples in batches of at most four to two lanes, as the example of New says.
func TestDeal(t *testing.T) {
	d, err := New(1, 10, 4, 2)
	if err != nil {
		t.Fatal(err)
	}
	if d.PerEpoch() != 3 {
		t.Errorf("%d batches an epoch, want 3", d.PerEpoch())
	}
	seen := map[int32]bool{}
	for b, want := range [][2]int{{1, 2}, {1, 2}, {2, 2}} {
		for l, n := range want {
			samples := d.Samples(schema.Batch(b), lane.Lane(l))
			if len(samples) != n {
				t.Errorf("batch %d lane %d: %v, want %d samples", b, l, samples, n)
			}
			for _, i := range samples {
				seen[i] = true
			}
		}
	}
	if len(seen) != 10 {
		t.Errorf("an epoch shows %d samples of 10", len(seen))
	}
}

// What cannot be shuffled is an error that says what would be right.
func TestDealRefuses(t *testing.T) {
	for _, c := range []struct {
		samples, batch, lanes int
		says                  string
	}{
		{10, 0, 4, "shuffle 10 samples into batches of 0 to 4 lanes: want batch of 1 to 2147483647"},
		{10, -1, 4, "want batch"},
		{10, math.MaxInt, 4, "want batch"},
		{0, 4, 4, "want samples of 1 to"},
		{math.MaxInt32 + 1, 4, 4, "want samples"},
		{10, 4, 0, "want lanes of 1 to"},
		{10, 4, lane.LanesMax + 1, "want lanes"},
	} {
		if d, err := New(1, c.samples, c.batch, c.lanes); err == nil || d != nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%d samples, batch %d, %d lanes: %v, want it to say %q", c.samples, c.batch, c.lanes, err, c.says)
		}
	}
}
