package harness

import (
	"math"
	"slices"
)

// Median is the middle value, or the mean of the two in the middle; 0 where there are none.
func Median(values []float64) float64 { return Percentile(values, 50) }

// Percentile is the value below which p of 100 lie, between neighbours in proportion; 0 where there are none.
func Percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := p / 100 * float64(len(sorted)-1)
	low := int(math.Floor(at))
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}
