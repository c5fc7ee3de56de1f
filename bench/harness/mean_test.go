package harness

import (
	"math"
	"testing"
)

// Each lane's mean counts as one of those there are: scale*size over all samples is 1/L.
func TestLaneScale(t *testing.T) {
	for _, c := range []struct {
		sizes []int
		want  []float32
	}{
		{[]int{4, 2}, []float32{0.75, 1.5}},
		{[]int{4, 0, 2}, []float32{0.75, 0, 1.5}}, // the one without samples is absent
		{[]int{7, 7, 7}, []float32{1, 1, 1}},
		{[]int{3}, []float32{1}},
		{[]int{1, 2, 3, 10}, []float32{4, 2, 4.0 / 3, 0.4}},
	} {
		all, lanes := 0, 0
		for _, n := range c.sizes {
			if all += n; n > 0 {
				lanes++
			}
		}
		for l, n := range c.sizes {
			if n == 0 {
				continue
			}
			got := LaneScale(c.sizes, l)
			if share := float64(got) * float64(n) / float64(all); got != c.want[l] || math.Abs(share*float64(lanes)-1) > 1e-7 {
				t.Errorf("sizes %v, lane %d: %v, its mean counts as %v; want %v, 1 of %d", c.sizes, l, got, share,
					c.want[l], lanes)
			}
		}
	}
}
