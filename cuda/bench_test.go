package cuda

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// Benchmarks of every backend at the sizes of a small text model: 256 samples of ten ids, rows of 64, 58 classes.
//
//	go test -tags native -run xxx -bench . ./cuda/

func benchEach(b *testing.B, bytes int, body func(b *testing.B, k Backend)) {
	for _, k := range backends(b) {
		b.Run(fmt.Sprintf("%s-%s", k.Name(), k.ISA()), func(b *testing.B) {
			b.SetBytes(int64(bytes))
			b.ReportAllocs()
			for b.Loop() {
				body(b, k)
			}
		})
	}
}

func fail(b *testing.B, err error) {
	if err != nil {
		b.Fatal(err)
	}
}

func noise(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func benchBags(r *rand.Rand) (ids, offsets []int64) {
	offsets = []int64{0}
	for range 256 {
		for range 10 {
			ids = append(ids, r.Int64N(1500))
		}
		offsets = append(offsets, int64(len(ids)))
	}
	return ids, offsets
}

// BenchmarkCall is the cost of a call that does nothing.
func BenchmarkCall(b *testing.B) {
	none := []int64{0}
	benchEach(b, 0, func(b *testing.B, k Backend) {
		fail(b, k.BagForward(BagForward{Dim: 1, Padding: NoPadding, Offsets: Int64s(none)}))
	})
}

func BenchmarkBagForward(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	rows, out := noise(r, 1500*64), make([]float32, 256*64)
	ids, offsets := benchBags(r)
	benchEach(b, (2560+256)*64*4, func(b *testing.B, k Backend) {
		fail(b, k.BagForward(bagForward(64, Mean, NoPadding, rows, ids, offsets, out)))
	})
}

func BenchmarkBagBackward(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	ids, offsets := benchBags(r)
	grad, keys, out := noise(r, 256*64), make([]int64, len(ids)), make([]float32, len(ids)*64)
	benchEach(b, (2560+1250)*64*4, func(b *testing.B, k Backend) {
		_, err := k.BagBackward(bagBackward(64, Mean, NoPadding, 1500, ids, offsets, grad, keys, out))
		fail(b, err)
	})
}

func benchTerms(r *rand.Rand, terms int) ([]RowsTerm, int) {
	var all []RowsTerm
	total := 0
	for i := range terms {
		var keys []uint64
		for key := uint64(0); key < 3000; key++ {
			if r.IntN(2) == 0 {
				keys = append(keys, key)
			}
		}
		total += len(keys)
		all = append(all, rowsTerm(uint16(i), 1, keys, noise(r, len(keys)*64)))
	}
	return all, total
}

func BenchmarkMerge(b *testing.B) {
	for _, n := range []int{1, 2, 8, 16} {
		terms, total := benchTerms(rand.New(rand.NewPCG(1, 1)), n)
		keys, out := make([]uint64, total), make([]float32, total*64)
		b.Run(fmt.Sprintf("%dterms", n), func(b *testing.B) {
			benchEach(b, total*64*4, func(b *testing.B, k Backend) {
				_, err := k.Merge(merge(64, n, terms, keys, out))
				fail(b, err)
			})
		})
	}
}

func BenchmarkApplyRows(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	const n = 1500
	table, m, g, out, outM := noise(r, 2*n*64), noise(r, 2*n*64), noise(r, n*64), make([]float32, n*64),
		make([]float32, n*64)
	index, first := make([]int64, n), make([]uint8, n)
	for i := range index {
		index[i] = int64(i * 2)
	}
	a := applyRows(64, SGD{LR: 0.1, Momentum: 0.9}, 512, table, index, first, g, out, slot("momentum", m, outM))
	benchEach(b, 5*n*64*4, func(b *testing.B, k Backend) { fail(b, k.ApplyRows(a)) })
}

func BenchmarkApplyDense(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	const n = 65536
	p, g, m, out := noise(r, n), noise(r, n), noise(r, n), make([]float32, n)
	a := applyDense(SGD{LR: 0.1, Momentum: 0.9}, 510, false, p, g, out, slot("momentum", m, m))
	benchEach(b, 5*n*4, func(b *testing.B, k Backend) { fail(b, k.ApplyDense(a)) })
}

func BenchmarkAverage(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	const n = 65536
	for _, count := range []int{2, 8} {
		var terms []Term
		for i := range count {
			terms = append(terms, term(uint16(i), 1, noise(r, n)))
		}
		out := make([]float32, n)
		b.Run(fmt.Sprintf("%dterms", count), func(b *testing.B) {
			benchEach(b, (count+1)*n*4, func(b *testing.B, k Backend) { fail(b, k.Average(average(count, 510, terms, out))) })
		})
	}
}

func BenchmarkMatMul(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, c := range []struct{ m, n, k int }{{64, 58, 64}, {256, 58, 64}, {256, 64, 58}, {64, 58, 256}, {256, 256, 256}} {
		for _, t := range []string{"nn", "tn", "nt"} {
			x, w, y := noise(r, c.m*c.k), noise(r, c.k*c.n), make([]float32, c.m*c.n)
			b.Run(fmt.Sprintf("%dx%dx%d%s", c.m, c.n, c.k, t), func(b *testing.B) {
				benchEach(b, 2*c.m*c.n*c.k, func(b *testing.B, k Backend) { // MB/s reads as Mflop/s
					fail(b, k.MatMul(matMul(c.m, c.n, c.k, t[0] == 't', t[1] == 't', x, w, nil, y)))
				})
			})
		}
	}
}

func BenchmarkSoftmaxCrossEntropy(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	logits, targets, loss, grad := noise(r, 256*58), make([]int32, 256), make([]float32, 256), make([]float32, 256*58)
	benchEach(b, 256*58*4, func(b *testing.B, k Backend) {
		fail(b, k.SoftmaxCrossEntropy(softmax(58, logits, targets, loss, grad, nil)))
	})
}

func BenchmarkFirstNonFinite(b *testing.B) {
	x := noise(rand.New(rand.NewPCG(1, 1)), 65536)
	benchEach(b, 65536*4, func(b *testing.B, k Backend) {
		if k.FirstNonFinite(Float32s(x)) != -1 {
			b.Fatal("found one")
		}
	})
}
