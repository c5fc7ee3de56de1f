package average

import (
	"fmt"
	"testing"

	"gradbus/nn"
)

// One step of a trainer at the sizes of DummyModel: the parts that are of a trainer's own, on one thread.
func BenchmarkPass(b *testing.B) {
	for _, sparse := range []bool{false, true} {
		b.Run(fmt.Sprintf("sparse=%v", sparse), func(b *testing.B) {
			e := testEnv(b)
			config, err := loadModel("")
			if err != nil {
				b.Fatal(err)
			}
			config.Sparse = sparse
			m, err := newModel(config, "cel", e)
			if err != nil {
				b.Fatal(err)
			}
			params, err := nn.Initial(config.module(), 1)
			if err != nil {
				b.Fatal(err)
			}
			grads := make([][]float32, len(params))
			for i := range params {
				grads[i] = make([]float32, len(params[i]))
			}
			d, _ := loadData("")
			data := newData(d, 1)
			bags := nn.Bags{Offsets: []int64{0}}
			for i := range 32 {
				for _, id := range data.IDs[i*data.Length : (i+1)*data.Length] {
					bags.IDs = append(bags.IDs, int64(id))
				}
				bags.Offsets = append(bags.Offsets, int64(len(bags.IDs)))
			}
			if sparse {
				bags.Rows = make([]float32, config.NumEmbeddings*config.EmbeddingDim)
			}
			b.ReportMetric(0, e.Dense.Name())
			b.Run("forward", func(b *testing.B) {
				for b.Loop() {
					if _, err := m.forward(params, bags, data.Targets[:32]); err != nil {
						b.Fatal(err)
					}
				}
			})
			b.Run("both", func(b *testing.B) {
				for b.Loop() {
					if _, err := m.forward(params, bags, data.Targets[:32]); err != nil {
						b.Fatal(err)
					}
					if _, err := m.backward(params, func(i int) []float32 { return grads[i] }, nil); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
