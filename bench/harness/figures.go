package harness

import (
	"math"
	"slices"
)

// What a mean over the gradients of a batch weighs alike.
const (
	MeanSamples = "samples" // a lane counts for as many samples as it has
	MeanLanes   = "lanes"   // all lanes that have any count the same: the mean of their means, as DDP takes it of trainers
)

// LaneScale returns the factor of a lane's gradient, the sum over its samples, by which the mean over the samples of
// all lanes becomes MeanLanes: with sizes the samples of each lane, and L lanes that have any,
//
//	sum over lanes of scale*gradient / sum(sizes)  =  sum over lanes of gradient/size / L
//
// It is exactly 1 if all of these have one size.
//
//	LaneScale([]int{4, 2}, 1)   ->   1.5
func LaneScale(sizes []int, lane int) float32 {
	all, lanes := 0, 0
	for _, n := range sizes {
		if n > 0 {
			all, lanes = all+n, lanes+1
		}
	}
	return float32(float64(all) / float64(lanes*sizes[lane]))
}

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
