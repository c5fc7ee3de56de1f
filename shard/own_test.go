package shard

import (
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// Of a trainer that runs the shard itself nothing is counted: its contributions lie in its own memory. The others have
// the budget, and hear what they may do about it.
func TestOwnContributionsTakeNoRoom(t *testing.T) {
	job := shardtest.SmallJob("own", 2, 2)
	job.Apply, job.Reduce, job.Tables = schema.ApplyMean, schema.ReduceTrainers, nil
	p := shardtest.New(t, job)
	place := schema.NewPlacement(job, 0)
	var leases shardtest.Leases
	s, err := New(t.Context(), Config{Job: job, Placement: place, Index: 0, RunID: shardtest.RunID,
		Generation: shardtest.Generation,
		Backend:    p.Backend, Contributors: round.ContributorsOf(job), StagedBytesMax: 5000, Own: "t0", Advice: "send less"})
	must(t, err)
	defer s.Close()
	step := func(trainer int, c *shardtest.Contribution, want schema.Reason) []Output {
		t.Helper()
		v := shardtest.View(t, c.Frame.Seal())
		payload := round.Payload(nil)
		if trainer > 0 {
			payload = leases.Of(v.Bytes())
		}
		outputs, reason, err := s.Step(schema.TrainerMember(trainer), v, payload)
		must(t, err)
		if reason != want {
			t.Fatalf("chunk %d of t%d: %v, want %v", v.Head().Chunk, trainer, reason, want)
		}
		return outputs
	}
	var of [2][]shardtest.Contribution // of the chunks that t0 adds up
	for trainer := range of {
		for _, c := range p.Frames(t, place, shardtest.RunID, 0, lane.Node{First: lane.Lane(trainer), Count: 1}) {
			v := c.Frame.View()
			h := v.Head()
			if h.Weight = 1; place.OwnerOfChunk(h.Bucket, h.Chunk) == 0 {
				c.Frame.SetHead(h)
				of[trainer] = append(of[trainer], c)
			}
		}
	}
	own, others := of[0], of[1]
	if len(own) < 2 || s.Idle() {
		t.Fatalf("t0 adds up %d chunks", len(own))
	}
	step(0, &own[0], schema.ReasonOK)
	if n := s.StagedBytes(); n != 0 {
		t.Errorf("%d bytes are counted of a trainer's own", n)
	}
	step(1, &others[1], schema.ReasonOK)
	held := s.StagedBytes()
	if held == 0 || held != s.HeldBytes(1) {
		t.Errorf("%d bytes are counted, %d of t1", held, s.HeldBytes(1))
	}
	if outputs := step(1, &others[0], schema.ReasonOverBudget); !strings.HasSuffix(outputs[0].Text, "; send less") {
		t.Errorf("told %q", outputs[0].Text)
	}
	outputs := step(0, &own[1], schema.ReasonOK) // whatever is held: its round closes
	if len(outputs) != 1 || outputs[0].Built == nil || s.StagedBytes() != 0 {
		t.Errorf("%d results, %d bytes are counted", len(outputs), s.StagedBytes())
	}
}
