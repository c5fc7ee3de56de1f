package shard

import (
	"context"
	"testing"

	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// Rows that trainers have are told of a version that the job was resumed with, and of no other: whoever asks for
// another, or for none, is refused.
func TestRowsOfTrainersThatAreNotHere(t *testing.T) {
	job := shardtest.SmallJob("rows", 1, 1)
	job.Apply, job.Tables[0].Replicated = schema.ApplyMean, true
	p := shardtest.New(t, job)
	s, err := New(context.Background(), Config{Job: job, Placement: schema.NewPlacement(job, 1), RunID: shardtest.RunID,
		Generation: shardtest.Generation, Backend: p.Backend, Contributors: round.ContributorsOf(job),
		StagedBytesMax: 1 << 20, ParkedBytesMax: 1 << 20})
	must(t, err)
	defer s.Close()
	for _, version := range []schema.Batch{0, 1, 1 << 40} {
		f := shardtest.NewFrame(t, schema.Layout{Kind: schema.KindPull, Keys: 1, Sections: 1})
		f.SetHead(schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Lanes: 1, Batch: version,
			Flags: schema.FlagParameters})
		f.SetSection(0, schema.Section{Table: 0, Dim: uint32(job.Tables[0].Dim), Count: 1})
		outputs, _, err := s.Step("t0", shardtest.View(t, f.Seal()), nil)
		if err != nil || len(outputs) != 1 || outputs[0].Reason != schema.ReasonStaleBatch {
			t.Errorf("version %d: %+v, %v, want a refusal: stale_batch", version, outputs, err)
		}
	}
}
