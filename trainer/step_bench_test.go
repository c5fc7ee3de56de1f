package trainer

import (
	"math/rand/v2"
	"testing"

	"gradbus/trainer/shuffle"
)

// BenchmarkStep is a factorisation with rows and batches of the size of examples/packages, by callbacks and by steps:
// what names, samples and gradients that begin at zero cost beside them.
func BenchmarkStep(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	all := make([]rating, 1<<16)
	for i := range all {
		all[i] = rating{random.Uint64N(textRows), random.Uint64N(textRows), random.Float32()}
	}
	data := Samples(all, textBatch, 1, ratingKeys)
	for _, by := range []string{"callbacks", "steps"} {
		b.Run(by, func(b *testing.B) {
			job := NewJob("step-"+by, 1).LR(0.1).Lanes(textLanes)
			job.Table("users", textRows, textDim).Normal(0.1)
			job.Table("items", textRows, textDim).Normal(0.1)
			manifest, err := job.Manifest()
			if err != nil {
				b.Fatal(err)
			}
			s, err := Join(b.Context(), testConfig(b, startServer(b, 1)), manifest)
			if err != nil {
				b.Fatal(err)
			}
			var w Workload
			if by == "steps" {
				w, err = newSampled(s.Job(), data, factors)
			} else {
				shuffler, failed := shuffle.New(1, len(all), textBatch, textLanes)
				w, err = &called{items: all, shuffler: shuffler}, failed
			}
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			if err := s.Run(b.Context(), w, uint64(b.N), nil); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			b.ReportMetric(1e6*float64(s.Stats().ComputeSeconds)/float64(b.N), "compute-us")
			if err := s.Close(); err != nil {
				b.Error(err)
			}
		})
	}
}
