//go:build native

package cuda

import (
	"slices"
	"testing"
	"time"
)

// BenchmarkCrossing is what Go adds to a batch of 64 tiny commands: the same batch submitted by a loop in Go, one
// crossing each, and by a loop in C, one crossing for all, in turn. The figures are medians of the rounds.
func BenchmarkCrossing(b *testing.B) {
	k, err := Open(Options{Name: "cpu"})
	fail(b, err)
	defer k.Close()
	batch := k.NewBatch()
	defer batch.Free()
	out := make([]float32, 64)
	for i := range out {
		fail(b, batch.BagForward(addOne(1, out[i:i+1])))
	}
	// Rounds are short, so that the median is one of those that nothing else of the machine came into, and which of the
	// two comes first changes.
	const times = 50
	var inGo, inC, added []float64
	fromGo := func() float64 {
		start := time.Now()
		for range times {
			_ = k.Submit(batch)
		}
		return float64(time.Since(start)) / times
	}
	fromC := func() float64 {
		start := time.Now()
		fail(b, k.(*native).submit(batch, times))
		return float64(time.Since(start)) / times
	}
	for first := true; b.Loop(); first = !first {
		var g, c float64
		if first {
			g, c = fromGo(), fromC()
		} else {
			c, g = fromC(), fromGo()
		}
		inGo, inC, added = append(inGo, g), append(inC, c), append(added, g-c)
	}
	b.ReportMetric(median(inGo), "ns/submit-from-Go")
	b.ReportMetric(median(inC), "ns/submit-from-C")
	b.ReportMetric(median(added), "ns/crossing")
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(testing.AllocsPerRun(100, func() { _ = k.Submit(batch) }), "allocs/submit")
}

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

func fail(b *testing.B, err error) {
	if err != nil {
		b.Fatal(err)
	}
}
