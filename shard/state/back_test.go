package state

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"gradbus/cuda"
	"gradbus/schema"
)

// A table that goes back is what it was before the last Commit, and the same steps then make of it what they had made.
// So it is where another one has adopted it.
func TestBackUndoesTheLastCommit(t *testing.T) {
	for _, o := range []schema.Optimizer{
		{Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.9}, {Kind: "adam", LR: 0.01}, {Kind: "rowwise_adagrad", LR: 0.1},
		{Kind: "ftrl", LR: 0.1},
	} {
		t.Run(o.Kind, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			job := (&schema.Job{Name: "back", Optimizer: o,
				Tables: []schema.TableSpec{{Name: "t", Rows: 40, Dim: 3, Init: schema.Normal(1)}}}).WithDefaults()
			backend := testBackend(t)
			another := func(late, touches bool) *Array { return goesBack(t, backend, job, late, touches) }
			table := another(false, false)
			if another(true, true).Adopts(table) {
				t.Error("one that does not note when rows change is adopted by one that does")
			}
			if table.GoesBack() {
				t.Error("version 0 goes back")
			}
			commit := func(seed uint64) {
				r := rand.New(rand.NewPCG(seed, 3))
				keys := make([]uint64, r.IntN(10))
				for i, at := range r.Perm(40)[:len(keys)] {
					keys[i] = uint64(at)
				}
				sums := make([]float32, 3*len(keys))
				for i := range sums {
					sums[i] = float32(r.NormFloat64())
				}
				if err := table.Apply(RowGradient{Keys: keys, Sums: cuda.Float32s(sums), Weight: 2, Scale: 1}); err != nil {
					t.Fatal(err)
				}
				table.Commit()
			}
			for seed := range uint64(30) {
				before := everything(t, table)
				commit(seed)
				after := everything(t, table)
				if !table.GoesBack() {
					t.Fatalf("version %d does not go back", table.Version())
				}
				if r.IntN(2) == 0 { // an open round is no part of any version
					if err := table.Apply(RowGradient{Keys: []uint64{3}, Sums: cuda.Float32s([]float32{1, 2, 3}), Weight: 1,
						Scale: 1}); err != nil {
						t.Fatal(err)
					}
				}
				if r.IntN(2) == 0 {
					heir := another(true, false)
					if !heir.Adopts(table) {
						t.Fatal("it is not adopted")
					}
					heir.Adopt(table)
					table.Close()
					table = heir
				}
				table.Back()
				if got := everything(t, table); got != before {
					t.Fatalf("version %d is\n%s\nand was\n%s", table.Version(), got, before)
				}
				if table.GoesBack() {
					t.Error("it goes back twice")
				}
				commit(seed)
				if got := everything(t, table); got != after {
					t.Fatalf("version %d is\n%s\nand was\n%s", table.Version(), got, after)
				}
			}
		})
	}
}

// goesBack is the table of a job, which goes back.
func goesBack(t *testing.T, backend cuda.Backend, job *schema.Job, late, touches bool) *Array {
	t.Helper()
	table, err := NewArray(context.Background(), ArrayConfig{Backend: backend, Spec: &job.Tables[0],
		Optimizer: job.OptimizerOf(0), LR: &LRChanges{}, Seed: 7, Here: func(schema.Partition) bool { return true },
		Columns: 3, GoesBack: true, Undo: true, Late: late, Touches: touches})
	must(t, err)
	t.Cleanup(table.Close)
	return table
}

// everything is all that a table has.
func everything(t *testing.T, table *Array) (text string) {
	must(t, table.Snapshot(1000, func(rows Rows) error {
		text += fmt.Sprintf("%+v", rows)
		return nil
	}))
	return text
}
