package shard

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/shard/round"
	"gradbus/shard/shardtest"
)

// Rows that come of finite gradients and are not finite are an error that names row, batch and lanes, where the shard
// steps them and where it gives their mean to trainers.
func TestNonFiniteRows(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*schema.Job)
		want  string
	}{
		"stepped": {func(j *schema.Job) { j.Optimizer.LR = 10 }, `table "words", row 7, column 2`},
		"mean": {func(j *schema.Job) { j.Apply, j.Tables[0].Replicated = schema.ApplyMean, true },
			`the mean gradient of table "words", row 7, column 2`},
	} {
		job := shardtest.SmallJob("rows", 2, 2)
		job.Parameters = nil
		c.spoil(job)
		p := shardtest.New(t, job)
		place := schema.NewPlacement(job, 1)
		s, err := New(context.Background(), Config{Job: job, Placement: place, RunID: shardtest.RunID,
			Generation: shardtest.Generation, Backend: p.Backend, Contributors: round.ContributorsOf(job),
			StagedBytesMax: 1 << 20, ParkedBytesMax: 1 << 20})
		must(t, err)
		for l := range 2 {
			w := &shardtest.LaneWork{Weight: 1, Keys: [][]uint64{{3, 7}, nil}, Rows: [][]float32{make([]float32, 10), nil}}
			w.Rows[0][7] = 3e38
			head := schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Lanes: 2, Weight: 1,
				Node: lane.Node{First: lane.Lane(l), Count: 1}}
			for _, f := range p.SparseFrames(t, place, head, w, 0, 1000) {
				var outputs []Output
				outputs, _, err = s.Step(schema.TrainerMember(l), shardtest.View(t, f.Frame.Seal()), nil)
				if len(outputs) > 0 {
					t.Errorf("%s: %v was put out", name, outputs[0].Kind)
				}
			}
			if l == 0 {
				must(t, err)
			}
		}
		want := "batch 0 of lanes [[0,1) [1,2)]: non_finite: " + c.want
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
		s.Close()
	}
}

// readable makes the only shard of a problem's job, which stays readable.
func readable(t *testing.T, p *shardtest.Problem, place *schema.Placement) *Shard {
	s, err := New(t.Context(), Config{Job: p.Job, Placement: place, RunID: shardtest.RunID, StaysReadable: true,
		Undo: true, Generation: shardtest.Generation, Backend: p.Backend, Contributors: round.ContributorsOf(p.Job),
		StagedBytesMax: 1 << 20, ParkedBytesMax: 1 << 20})
	must(t, err)
	t.Cleanup(s.Close)
	return s
}

// A shard that stays readable takes nothing more of a batch once one value of it is not finite, whatever comes and in
// whatever order: its rows are those of the version before, and who asks for them has them.
func TestNonFiniteStopsTheShard(t *testing.T) {
	nan, large := float32(math.NaN()), float32(3e38)
	for name, values := range map[string][2]float32{"refused": {nan, nan}, "refused last": {1, nan},
		"computed": {large, large}} {
		job := shardtest.SmallJob("stops", 2, 2)
		job.Optimizer.LR = 10
		p := shardtest.New(t, job)
		place := schema.NewPlacement(job, 1)
		s := readable(t, p, place)
		ask := shardtest.LookupFrame(t, job, shardtest.RunID, 0, [][]uint64{{3, 7}, nil}).Seal()
		rows := func() []float32 {
			t.Helper()
			outputs, reason, err := s.Step("t0", shardtest.View(t, ask), nil)
			if err != nil || reason != schema.ReasonOK || len(outputs) != 1 || outputs[0].Kind != schema.KindRows {
				t.Fatalf("%s: %v, %v, %d outputs: want rows", name, err, reason, len(outputs))
			}
			v := outputs[0].Built.View()
			return slices.Clone(v.Float32s())
		}
		before, told := rows(), map[schema.Member]int{}
		for l := range 2 {
			for i, c := range p.Frames(t, place, shardtest.RunID, 0, lane.Node{First: lane.Lane(l), Count: 1}) {
				if i == 0 {
					c.Frame.Float32s()[2] = values[l]
				}
				outputs, reason, err := s.Step(schema.TrainerMember(l), shardtest.View(t, c.Frame.Seal()), nil)
				must(t, err)
				for _, o := range outputs {
					if o.Kind == schema.KindRefusal {
						told[o.To]++
					}
				}
				if stopped := l > 0 || name == "refused"; stopped != (reason == schema.ReasonNonFinite) {
					t.Errorf("%s: frame %d of t%d: %v", name, i, l, reason)
				}
			}
		}
		if !slices.Equal(rows(), before) {
			t.Errorf("%s: rows have changed", name)
		}
		if told["t0"] == 0 || told["t1"] == 0 {
			t.Errorf("%s: %v refusals: want one to each trainer at least", name, told)
		}
	}
}

// A round whose second table has a value that is not finite is rolled back wholly, also in the first.
func TestRoundIsRolledBackWholly(t *testing.T) {
	job := shardtest.SmallJob("rolls-back", 2, 2)
	job.Parameters, job.Optimizer.LR = nil, 10
	p := shardtest.New(t, job)
	place := schema.NewPlacement(job, 1)
	s := readable(t, p, place)
	before := []string{fmt.Sprint(s.tables[0]), fmt.Sprint(s.tables[1])}
	for l := range 2 {
		w := &shardtest.LaneWork{Weight: 1, Keys: [][]uint64{{3, 7}, {4}},
			Rows: [][]float32{make([]float32, 10), make([]float32, 16)}}
		w.Rows[0][7], w.Rows[1][2] = 1, 3e38
		head := schema.Head{Job: shardtest.RunID, Generation: shardtest.Generation, Lanes: 2, Weight: 1,
			Node: lane.Node{First: lane.Lane(l), Count: 1}}
		for _, f := range p.SparseFrames(t, place, head, w, 0, 1000) {
			_, reason, err := s.Step(schema.TrainerMember(l), shardtest.View(t, f.Frame.Seal()), nil)
			if must(t, err); l == 1 && reason != schema.ReasonNonFinite {
				t.Errorf("the last contribution: %v", reason)
			}
		}
	}
	for i, text := range before {
		if now := fmt.Sprint(s.tables[i]); now != text {
			t.Errorf("table %d was %s and is %s", i, text, now)
		}
	}
}

// A trainer that leaves closes no round of a shard that has stopped; and where the round that closes without it has a
// value that is not finite, the shard stops, and the others hear of it.
func TestNonFiniteWithoutALeavingTrainer(t *testing.T) {
	nan, large := float32(math.NaN()), float32(3e38)
	for name, values := range map[string][2]float32{"stopped before": {1, nan}, "stops now": {large, large}} {
		job := shardtest.SmallJob("leaves", 3, 3)
		job.Consistency, job.Group, job.Tables = schema.ConsistencyGrouped, 3, nil
		job.Optimizer.LR = 10
		p := shardtest.New(t, job)
		place := schema.NewPlacement(job, 1)
		s := readable(t, p, place)
		told := map[schema.Member]int{}
		hear := func(outputs []Output) {
			for _, o := range outputs {
				if o.Kind == schema.KindRefusal {
					told[o.To]++
				} else if name == "stopped before" {
					t.Errorf("%s: %v was put out", name, o.Kind)
				}
			}
		}
		for l := range 2 {
			for i, c := range p.Frames(t, place, shardtest.RunID, 0, lane.Node{First: lane.Lane(l), Count: 1}) {
				if i == 0 {
					c.Frame.Float32s()[2] = values[l]
				}
				outputs, _, err := s.Step(schema.TrainerMember(l), shardtest.View(t, c.Frame.Seal()), nil)
				must(t, err)
				hear(outputs)
			}
		}
		leaving := []schema.Member{"t2"}
		if name == "stopped before" {
			leaving = append(leaving, "t1")
		} else if len(told) > 0 {
			t.Errorf("%s: %v refusals before a trainer has left", name, told)
		}
		outputs, err := s.Gone(leaving)
		must(t, err)
		hear(outputs)
		if told["t0"] == 0 || told["t1"] == 0 {
			t.Errorf("%s: %v refusals: want one to each trainer that has contributed", name, told)
		}
	}
}
