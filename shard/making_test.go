package shard

import (
	"context"
	"testing"

	"gradbus/philox"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// Whoever makes the dense parameters of a shard looks again and again whether they are still wanted.
func TestMakingAShardEndsWithItsContext(t *testing.T) {
	job := shardtest.SmallJob("dense", 1, 2)
	job.ChunkBytes, job.Tables = 32<<10, nil
	job.Parameters = []schema.Parameter{{Name: "wide", Shape: []int{4, philox.DrawPiece},
		Init: schema.Init{Kind: schema.InitNormal, Scale: 1}}}
	chunks := 4 * philox.DrawPiece / (job.ChunkBytes / 4)
	p := shardtest.New(t, job)
	for _, c := range []struct {
		at    string
		looks int
	}{{"results", 3}, {"values", chunks + 3}} {
		ctx := &shardtest.Fading{Context: context.Background()}
		ctx.Looks.Store(int64(c.looks))
		s, err := New(ctx, Config{Job: job, Placement: schema.NewPlacement(job, 1), Backend: p.Backend,
			Contributors: round.ContributorsOf(job)})
		if err == nil || ctx.Looks.Load() < -2 { // the second one reads the cause
			t.Errorf("%s: %v after %d looks too many", c.at, err, -1-ctx.Looks.Load())
		}
		if s != nil {
			s.Close()
		}
	}
}
