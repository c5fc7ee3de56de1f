package shard

import (
	"context"
	"testing"

	"gradbus/cuda"
	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// denseFlow feeds one shard with the dense chunks of batch after batch, each of them from all trainers.
type denseFlow struct {
	shard        *Shard
	contributors []Contributor
	frames       [][]*schema.Frame // [chunk][trainer]
	heads        [][]schema.Head   // of frames, but for the batch
	batch        schema.Batch
	lease        shardtest.Lease
}

func newDenseFlow(t testing.TB, apply string, wire schema.Wire, trainers, chunks, chunkBytes int) *denseFlow {
	job := &schema.Job{
		Name: "flow", Workload: "test", Seed: 1, Trainers: trainers, Lanes: trainers, Consistency: schema.ConsistencySync,
		Apply: apply, Wire: wire,
		Policy: schema.PolicyFail, ChunkBytes: chunkBytes, Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.01,
			Momentum: 0.9},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{chunks, chunkBytes / 4},
			Init: schema.Init{Kind: schema.InitZeros}}},
	}
	backend, err := cuda.Open(cuda.Options{})
	must(t, err)
	f := &denseFlow{contributors: round.ContributorsOf(job)}
	place := schema.NewPlacement(job, 1)
	f.shard, err = New(context.Background(),
		Config{Job: job, Placement: place, RunID: shardtest.RunID, Generation: shardtest.Generation,
			Backend: backend, Contributors: f.contributors, StagedBytesMax: 1 << 30})
	must(t, err)
	t.Cleanup(func() {
		f.shard.Close()
		must(t, backend.Close())
	})
	for _, bucket := range place.Buckets {
		for c := range place.Chunks(bucket.ID) {
			offset, elements := place.ChunkRange(bucket.ID, schema.Chunk(c))
			var all []*schema.Frame
			var heads []schema.Head
			for i := range trainers {
				frame := shardtest.NewFrame(t,
					schema.Layout{Kind: schema.KindDense, DType: wire.DType(), Values: wire.DType().Bytes() * elements})
				heads = append(heads, schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation,
					Node:  lane.Node{First: lane.Lane(i), Count: 1},
					Lanes: uint16(trainers), Weight: 32, Bucket: bucket.ID, Chunk: schema.Chunk(c),
					Chunks: schema.Chunk(place.Chunks(bucket.ID)),
					Offset: uint64(offset)})
				all = append(all, frame)
			}
			f.frames, f.heads = append(f.frames, all), append(f.heads, heads)
		}
	}
	return f
}

// step runs a batch through the shard. Frames are verified, as a server does, but not sent.
func (f *denseFlow) step(t testing.TB) {
	closed := 0
	for c, chunk := range f.frames {
		for i, frame := range chunk {
			h := f.heads[c][i]
			h.Batch = f.batch
			frame.SetHead(h)
			v, err := schema.Verify(frame.Seal(), schema.Limits{})
			must(t, err)
			outputs, reason, err := f.shard.Step(f.contributors[i].Member, &v, &f.lease)
			if err != nil || reason != schema.ReasonOK {
				t.Fatalf("%v %v", reason, err)
			}
			closed += len(outputs)
		}
	}
	if closed != len(f.frames) {
		t.Fatalf("%d chunks closed, want %d", closed, len(f.frames))
	}
	f.batch++
}

// In steady state a dense chunk costs a shard no allocation, from its verification to its result, whatever becomes of
// it.
func TestDenseChunksAllocateNothing(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates; make test-all runs this without it")
	}
	for _, apply := range []string{schema.ApplyUpdate, schema.ApplyMean} {
		for _, gradients := range []string{schema.GradientsFloat32, schema.GradientsBFloat16, schema.GradientsFloat16} {
			f := newDenseFlow(t, apply, schema.Wire{Gradients: gradients}, 4, 3, schema.ChunkBytesMin)
			f.step(t)
			f.step(t)
			if n := testing.AllocsPerRun(20, func() { f.step(t) }); n != 0 {
				t.Errorf("%s, %s: %v allocations for a batch of %d chunks", apply, gradients, n, len(f.frames))
			}
		}
	}
}
