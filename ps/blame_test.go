package ps

import (
	"context"
	"testing"
	"time"

	"gradbus/lane"
	"gradbus/round"
	"gradbus/schema"
)

// Where one trainer stalls, others fill their windows and stall too, some of them earlier than others. The one that the
// earliest round waits for is named, whatever its number.
func TestStalledTrainerIsNamedAmongThoseItStalls(t *testing.T) {
	p := newProblem(t, smallJob("blame", 3, 3))
	p.job.Tables = nil // chunks 0, 1 and 2 of one bucket
	place := schema.NewPlacement(p.job, 1)
	s, err := NewShard(context.Background(), ShardConfig{Job: p.job, Placement: place, RunID: 5, Generation: generationFirst,
		Backend: p.backend, Hosts: round.HostsOf(p.job), StagedBytesMax: 1 << 20})
	must(t, err)
	defer s.Close()
	for trainer, chunks := range []int{1, 0, 2} { // t1 has sent nothing, and t0 less than t2
		sent := p.frames(t, place, 5, 0, lane.Node{First: lane.Lane(trainer), Count: 1})
		for _, c := range sent[:chunks] {
			if _, reason, err := s.Step(schema.TrainerMember(trainer), view(t, c.frame.Seal()), nil); err != nil || reason != schema.ReasonOK {
				t.Fatal(reason, err)
			}
		}
	}
	if w := s.Waiting(); len(w.Members) != 2 || len(w.First) != 1 || w.First[0] != "t1" {
		t.Fatalf("waits for %v, first of all for %v", w.Members, w.First)
	}
	c := NewCoordinator(CoordinatorConfig{Job: p.job, RunID: 5, Generation: generationFirst, Deadline: 10 * time.Second,
		Keepers: []Keeper{{Member: "p-a", Server: schema.DataServer{ID: "a", Shards: []int{0}}}}})
	now := time.Unix(1000, 0)
	c.Assign(now)
	for _, joiner := range []schema.Member{"j-a", "j-b", "j-c"} {
		c.Join(now, joiner, &schema.Join{Job: p.job, Host: "test"})
	}
	w := s.Waiting()
	report := &schema.Report{Serial: 1, Ready: true, Waiting: mergeWaiting(nil, &w)}
	for range 12 {
		now = now.Add(time.Second)
		for i := range 3 {
			c.Beat(now, schema.TrainerMember(i), new(schema.Head))
		}
		c.Report(now, "p-a", report)
		c.Tick(now)
	}
	if f := c.Failed(); f == nil || f.Member != "t1" {
		t.Errorf("%+v, want a failure of t1", f)
	}
}
