package ps

import (
	"context"
	"testing"
	"time"

	"gradbus/lane"
	"gradbus/ps/coordinator"
	"gradbus/schema"
	"gradbus/shard"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// Where one trainer stalls, others fill their windows and stall too, some of them earlier than others. The one that the
// earliest round waits for is named, whatever its number.
func TestStalledTrainerIsNamedAmongThoseItStalls(t *testing.T) {
	p := shardtest.New(t, shardtest.SmallJob("blame", 3, 3))
	p.Job.Tables = nil // chunks 0, 1 and 2 of one bucket
	place := schema.NewPlacement(p.Job, 1)
	s, err := shard.New(context.Background(),
		shard.Config{Job: p.Job, Placement: place, RunID: 5, Generation: generationFirst,
			Backend: p.Backend, Contributors: round.ContributorsOf(p.Job), StagedBytesMax: 1 << 20})
	must(t, err)
	defer s.Close()
	for trainer, chunks := range []int{1, 0, 2} { // t1 has sent nothing, and t0 less than t2
		sent := p.Frames(t, place, 5, 0, lane.Node{First: lane.Lane(trainer), Count: 1})
		for _, c := range sent[:chunks] {
			if _, reason, err := s.Step(schema.TrainerMember(trainer), shardtest.View(t, c.Frame.Seal()), nil); err != nil ||
				reason != schema.ReasonOK {
				t.Fatal(reason, err)
			}
		}
	}
	if w := s.Waiting(); len(w.Members) != 2 || len(w.First) != 1 || w.First[0] != "t1" {
		t.Fatalf("waits for %v, first of all for %v", w.Members, w.First)
	}
	c := coordinator.New(coordinator.Config{Job: p.Job, RunID: 5, Generation: generationFirst, Deadline: 10 * time.Second,
		StallTimeout: 10 * time.Second,
		ShardServers: []coordinator.ShardServer{{Member: "p-a", Server: schema.DataServer{ID: "a", Shards: []int{0}}}}})
	now := time.Unix(1000, 0)
	c.Assign(now)
	for _, joiner := range []schema.Member{"j-a", "j-b", "j-c"} {
		c.Join(now, joiner, &schema.Join{Job: p.Job, Host: "test"})
	}
	w := s.Waiting()
	report := &schema.Report{Serial: 1, Ready: true, Waiting: mergeWaiting(nil, &w.Waiting)}
	for range 12 {
		now = now.Add(time.Second)
		for i := range 3 {
			c.Heartbeat(now, schema.TrainerMember(i), &schema.Head{Generation: 1})
		}
		c.Report(now, "p-a", report)
		c.Tick(now)
	}
	if f := c.Outcome().Failed; f == nil || f.Member != "t1" {
		t.Errorf("%+v, want a failure of t1", f)
	}
}
