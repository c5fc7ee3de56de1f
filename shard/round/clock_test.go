package round

import (
	"fmt"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// clockOf makes the clock of a job of two trainers with a lane each and one chunk of three values, whose shards
// average.
func clockOf(t *testing.T, consistency string, ahead, group int) (Clock, *Held) {
	t.Helper()
	job := &schema.Job{Name: "clocks", Workload: "test", Trainers: 2, Lanes: 2, Consistency: consistency,
		Ahead: ahead, Group: group,
		Apply: schema.ApplyUpdate, Policy: schema.PolicyFail, ChunkBytes: schema.ChunkBytesMin,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerSGD, LR: 1},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{3}, Init: schema.Zeros()}}}
	if err := job.Validate(); err != nil {
		t.Fatal(err)
	}
	held := NewHeld(2)
	c, err := NewClock(t.Context(), ClockConfig{Backend: open(t), Job: job, Place: schema.NewPlacement(job, 1),
		Contributors: ContributorsOf(job),
		Head:         schema.Head{Job: 5, Generation: 1}, Held: held, Chunks: []Chunk{{Chunks: 1, Elements: 3}},
		Version: func(int) schema.Version { return 1 }})
	if err != nil {
		t.Fatal(err)
	}
	return c, held
}

// contributed takes a trainer's part in one of its batches, without samples, and says what came of it: who hears of
// which round, or why it was refused.
func contributed(t *testing.T, c Clock, contributor int, b schema.Batch) string {
	t.Helper()
	e, refused := c.Reach(contributor, b)
	if refused != nil {
		return refused.Reason.String()
	}
	part := Contribution{Batch: e.Round, Node: lane.Node{First: lane.Lane(contributor), Count: 1},
		Contributor: contributor}
	if !e.Fresh {
		if refused := e.Line.Dense.Check(&part, e.Line.Weights(e.Round)); refused != nil {
			return refused.Reason.String()
		}
	}
	c.Enter(e)
	if err := e.Line.Dense.Add(&part, e.Line.Weights(e.Round)); err != nil {
		t.Fatal(err)
	}
	text := []string{"taken"}
	for closing, ok := e.Line.Dense.Next(0); ok; closing, ok = e.Line.Dense.Next(0) {
		if err := c.Begin(closing.Batch); err != nil {
			t.Fatal(err)
		}
		e.Line.Dense.Finish(0, e.Line.Weights(closing.Batch), closing.Weight)
		for _, to := range c.Closed(e.Line, closing.Batch) {
			text = append(text, fmt.Sprintf("%s hears of %d", to.Member, to.Batch))
		}
	}
	return strings.Join(text, ", ")
}

// pulled says what a trainer that has begun a batch gets when it asks for its result again.
func pulled(c Clock, contributor int, b schema.Batch) string {
	e, kept, refused := c.Pull(contributor, b, true)
	switch {
	case refused != nil:
		return refused.Reason.String()
	case !kept:
		return "nothing yet"
	case e.Round >= e.Line.Dense.Closed(0):
		return "open"
	}
	return fmt.Sprint("round ", e.Round)
}

// The clocks, side by side: what two trainers' contributions to their batches lead to, in one order.
func TestClocks(t *testing.T) {
	type step struct {
		contributor int
		batch       schema.Batch
		want        string
	}
	for _, c := range []struct {
		consistency  string
		ahead, group int
		steps        []step
		waiting      string     // for whom, after all of these
		pulls        [][]string // of each trainer, by batch
	}{
		{schema.ConsistencySync, 0, 0, []step{
			{0, 0, "taken"}, {0, 1, "early_batch"}, {0, 0, "duplicate"}, {1, 0, "taken, all hears of 0"}, {1, 0,
				"duplicate"},
			{0, 1, "taken"}, {1, 0, "stale_batch"},
		}, "batch 1: [t1]", [][]string{{"round 0", "open", "early_batch"}, {"round 0", "open", "early_batch"}}},
		{schema.ConsistencyBounded, 1, 0, []step{
			{0, 0, "taken"}, {0, 1, "taken"}, {0, 2, "early_batch"}, {1, 0, "taken, all hears of 0"}, {0, 2, "taken"},
			{1, 2, "taken"}, {1, 1, "taken, all hears of 1, all hears of 2"},
		}, "batch 2: []", [][]string{{"round 0", "round 1", "round 2", "nothing yet", "nothing yet", "early_batch"}}},
		{schema.ConsistencyAsync, 0, 0, []step{
			{0, 0, "taken, t0 hears of 0"}, {0, 1, "taken, t0 hears of 1"}, {0, 1, "duplicate"}, {1, 0,
				"taken, t1 hears of 0"},
			{1, 2, "early_batch"}, {0, 0, "stale_batch"},
		}, "batch 1: []", [][]string{{"round 0", "round 1", "nothing yet"}, {"round 0", "nothing yet", "early_batch"}}},
		{schema.ConsistencyGrouped, 0, 1, []step{
			{0, 0, "taken, t0 hears of 0"}, {0, 1, "taken, t0 hears of 1"}, {1, 0, "taken, t1 hears of 0"}, {1, 2,
				"early_batch"},
			{0, 0, "stale_batch"}, {1, 0, "duplicate"},
		}, "batch 3: []", [][]string{{"stale_batch", "round 1", "nothing yet"}, {"round 2", "nothing yet",
			"early_batch"}}},
		{schema.ConsistencyGrouped, 0, 2, []step{
			{0, 0, "taken"}, {0, 1, "early_batch"}, {1, 0, "taken, all hears of 0"}, {1, 1, "taken"},
		}, "batch 1: [t0]", [][]string{{"round 0", "nothing yet"}, {"stale_batch", "open"}}},
	} {
		name := fmt.Sprintf("%s ahead %d group %d", c.consistency, c.ahead, c.group)
		clock, held := clockOf(t, c.consistency, c.ahead, c.group)
		for i, s := range c.steps {
			if got := contributed(t, clock, s.contributor, s.batch); got != s.want {
				t.Errorf("%s: step %d, batch %d of t%d: %s, want %s", name, i, s.batch, s.contributor, got, s.want)
			}
		}
		if w := clock.Waiting(); fmt.Sprintf("batch %d: %v", w.Batch, w.Members) != c.waiting {
			t.Errorf("%s: waiting for %+v, want %s", name, w, c.waiting)
		}
		for contributor, want := range c.pulls {
			for b := range want {
				if got := pulled(clock, contributor, schema.Batch(b)); got != want[b] {
					t.Errorf("%s: t%d pulls the result of its batch %d: %s, want %s", name, contributor, b, got, want[b])
				}
			}
		}
		if held.Bytes() != 0 {
			t.Errorf("%s: %d bytes are held", name, held.Bytes())
		}
	}
}
