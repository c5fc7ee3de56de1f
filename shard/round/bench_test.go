package round

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
)

// BenchmarkDense is what an owner does with the contributions of T trainers to chunks of 256 KiB, but for verifying
// them: 152 chunks, 38 MB, so that values come from memory and sums are still in the cache or not as they would be. All
// of a chunk's contributions come one after the other ("close"), or chunk after chunk from one trainer after the other
// ("apart"), the last trainer's closing everything. Bytes are those that come in.
func BenchmarkDense(b *testing.B) {
	backend := open(b)
	for _, trainers := range []int{2, 4, 8} {
		for _, apart := range []bool{false, true} {
			for _, summing := range []schema.Summing{schema.SummingFused, schema.SummingAtClose} {
				name := fmt.Sprintf("trainers=%d/apart=%v/sum=%v", trainers, apart, summing)
				b.Run(name, func(b *testing.B) { benchDense(b, backend, trainers, apart, summing) })
			}
		}
	}
}

func benchDense(b *testing.B, backend cuda.Backend, trainers int, apart bool, summing schema.Summing) {
	const chunks, elements = 152, 64 << 10
	c := denseConfig{backend: backend, lanes: trainers, summing: summing, held: NewHeld(trainers)}
	for i := range chunks {
		c.chunks = append(c.chunks, Chunk{Bucket: 0, Chunk: schema.Chunk(i), Chunks: chunks, Elements: elements})
	}
	d := newDense(c)
	made, err := newResults(b.Context(), c.chunks, 2, schema.Head{Lanes: uint16(trainers)})
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	values := make([][][]float32, trainers)
	for t := range values {
		values[t] = make([][]float32, chunks)
		for i := range values[t] {
			values[t][i] = make([]float32, elements)
			for k := range values[t][i] {
				values[t][i][k] = r.Float32() / 1024 // sums in place stay finite
			}
		}
	}
	var w Weights
	batch := schema.Batch(0)
	add := func(t, i int) {
		c := Contribution{Batch: batch, Chunk: i, Node: lane.Node{First: lane.Lane(t), Count: 1}, Weight: 8,
			Values: cuda.Float32s(values[t][i]), Contributor: t, Bytes: 4 * elements}
		if d.Check(&c, &w) != nil || d.CheckFinite(&c) != nil || d.Add(&c, &w) != nil {
			b.Fatal("not taken")
		}
		for {
			c, ok := d.Next(i)
			if !ok {
				return
			}
			err := backend.Average(cuda.Average{Lanes: trainers, Weight: float32(c.Weight), Terms: c.Terms,
				Out: cuda.Float32s(made.Values(i, c.Batch+1))})
			if err != nil {
				b.Fatal(err)
			}
			d.Finish(i, &w, c.Weight)
			made.Seal(i, c.Batch+1, schema.Head{Batch: c.Batch, Weight: c.Weight, Node: lane.Root(trainers)})
		}
	}
	b.SetBytes(int64(trainers * chunks * elements * 4))
	b.ReportAllocs()
	for b.Loop() {
		if apart {
			for t := range trainers {
				for i := range chunks {
					add(t, i)
				}
			}
		} else {
			for i := range chunks {
				for t := range trainers {
					add(t, i)
				}
			}
		}
		w.reset()
		batch++
	}
}
