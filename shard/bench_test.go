package shard

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// BenchmarkShardBatch is what one of two shards does for a batch of two trainers, each of which looks up and pushes
// 1300 rows of 64 values: two lookups of two frames, two contributions of two frames, a dense chunk of 64 Ki values,
// and the commit. Frames are verified, as a server does, but not sent.
func BenchmarkShardBatch(b *testing.B) {
	const rows, dim = 1300, 64
	job := &schema.Job{
		Name: "bench", Workload: "test", Seed: 1, Trainers: 2, Lanes: 2, Consistency: schema.ConsistencySync,
		Apply:  schema.ApplyUpdate,
		Policy: schema.PolicyFail, ChunkBytes: schema.ChunkBytes,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.01, Momentum: 0.9},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{1 << 16}, Init: schema.Init{Kind: schema.InitZeros}}},
		Tables: []schema.TableSpec{{Name: "t", Rows: 1 << 17, Dim: dim, Partitions: 64,
			Init: schema.Init{Kind: schema.InitUniform, Scale: 0.1}}},
	}
	backend, err := cuda.Open(cuda.Options{})
	must(b, err)
	defer backend.Close()
	place := schema.NewPlacement(job, 2)
	s, err := New(context.Background(),
		Config{Job: job, Placement: place, RunID: shardtest.RunID, Generation: shardtest.Generation,
			Backend: backend, Contributors: round.ContributorsOf(job), StagedBytesMax: 64 << 20})
	must(b, err)
	defer s.Close()

	r := rand.New(rand.NewPCG(1, 1))
	var lookups, pushes []delivery
	for i, h := range s.config.Contributors {
		var keys []uint64
		for len(keys) < rows {
			if key := r.Uint64N(1 << 17); place.OwnerOfKey(0, key) == 0 {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		w := &shardtest.LaneWork{Weight: 32, Keys: [][]uint64{keys}, Rows: [][]float32{make([]float32, len(keys)*dim)}}
		for k := range w.Rows[0] {
			w.Rows[0][k] = float32(r.NormFloat64())
		}
		p := &shardtest.Problem{Job: job}
		node := lane.Node{First: lane.Lane(i), Count: 1}
		half := len(keys) / 2
		for c, own := range [][]uint64{keys[:half], keys[half:]} {
			f := shardtest.LookupFrame(b, job, shardtest.RunID, 0, [][]uint64{own})
			h0 := schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Chunk: schema.Chunk(c), Chunks: 2}
			f.SetHead(h0)
			lookups = append(lookups, delivery{h.Member, 0, f})
		}
		for _, f := range p.SparseFrames(b, place, schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation,
			Node: node, Lanes: 2, Weight: 32}, w, 0, 1000) {
			pushes = append(pushes, delivery{h.Member, 0, f.Frame})
		}
		f := shardtest.NewFrame(b, schema.Layout{Kind: schema.KindDense, Values: 4 << 16})
		f.SetHead(schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Node: node, Lanes: 2,
			Weight: 32, Chunks: 1})
		pushes = append(pushes, delivery{h.Member, 0, f})
	}
	b.ReportAllocs()
	batch := schema.Batch(0)
	for b.Loop() {
		for _, all := range [][]delivery{lookups, pushes} {
			for _, d := range all {
				rebatch(b, d.frame, batch)
				v, err := schema.Verify(d.frame.Seal(), schema.Limits{})
				must(b, err)
				if _, reason, err := s.Step(d.from, &v, nil); err != nil || reason != schema.ReasonOK {
					b.Fatalf("%v %v", reason, err)
				}
			}
		}
		batch++
	}
}

// rebatch gives a frame another batch and leaves the rest of its head.
func rebatch(b testing.TB, f *schema.Frame, batch schema.Batch) {
	v, err := schema.Verify(f.Seal(), schema.Limits{})
	must(b, err)
	h := v.Head()
	h.Batch = batch
	f.SetHead(h)
}
