package state

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/schema"
)

// BenchmarkRound measures a round over rows of a table much larger than the caches: the step of its rows and the
// commit, with and without the records that keep the version before readable.
//
//	go test -tags native ./shard/state -run '^$' -bench Round
func BenchmarkRound(b *testing.B) {
	backend, err := cuda.Open(cuda.Options{})
	must(b, err)
	defer backend.Close()
	const rows, dim = 1 << 19, 64
	for _, name := range []string{"sgd", "adagrad", "adam"} {
		for _, n := range []int{1 << 10, 1 << 14} {
			for _, keeps := range []bool{false, true} {
				b.Run(fmt.Sprintf("%s/rows=%d/keeps=%v", name, n, keeps), func(b *testing.B) {
					spec := schema.TableSpec{Name: "t", Rows: rows, Dim: dim, Partitions: 64, Init: schema.Uniform(1)}
					a, err := NewArray(b.Context(), ArrayConfig{Backend: backend, Spec: &spec, Optimizer: testOptimizers()[name],
						Here: everywhere, Columns: dim, Undo: keeps})
					must(b, err)
					defer a.Close()
					r := rand.New(rand.NewPCG(1, 2))
					batches := make([][]uint64, 16)
					for i := range batches {
						for range n {
							batches[i] = append(batches[i], r.Uint64N(rows))
						}
						slices.Sort(batches[i])
						batches[i] = slices.Compact(batches[i])
					}
					sums := make([]float32, n*dim)
					for i := range sums {
						sums[i] = float32(r.NormFloat64())
					}
					for i := 0; b.Loop(); i++ {
						keys := batches[i%len(batches)]
						must(b, a.Apply(RowGradient{Keys: keys, Sums: cuda.Float32s(sums[:len(keys)*dim]), Weight: 32, Scale: 1}))
						a.Commit()
					}
				})
			}
		}
	}
}
