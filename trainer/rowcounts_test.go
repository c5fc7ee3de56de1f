package trainer

import (
	"fmt"
	"slices"
	"testing"

	"gradbus/schema"
)

// Behind each row is how often the lane's keys name it, also a row that comes first or alone.
func TestRowCounts(t *testing.T) {
	tables := newTables([]schema.TableSpec{{Name: "a", Rows: 9, Dim: 1}, {Name: "b", Rows: 9, Dim: 2, PerRow: true}}, 2)
	tables.used[1], tables.ends[1] = []uint64{5, 5, 3, 5, 8}, []int{3, 5}
	if err := tables.find(); err != nil {
		t.Fatal(err)
	}
	c := &rowCounts{tables: tables}
	for lane, want := range [][]float32{{1, 2, 1, 3, 4, 2}, {1, 2, 1, 3, 4, 1}} {
		r := &rows{}
		r.set([]uint64{uint64(lane), uint64(lane + 1)}, []float32{1, 2, 3, 4})
		if c.add(1, lane, r); !slices.Equal(r.values, want) {
			t.Errorf("lane %d: %v, want %v", lane, r.values, want)
		}
	}
	r := &rows{}
	if r.set([]uint64{0}, []float32{7}); c.dim(0, 1) != 1 || c.dim(1, 3) != 2 {
		t.Error("a row has another width than the table")
	}
	if c.add(0, 0, r); !slices.Equal(r.values, []float32{7}) {
		t.Errorf("a table that is divided by samples has counts: %v", r.values)
	}
}

// Rows that are divided by their own number have the bits of the oracle on any number of trainers and shards, kept by
// either.
func TestRowsDividedByTheirCount(t *testing.T) {
	const lanes, batches = 5, 6
	config := []Config{testConfig(t, startServer(t, 1)), testConfig(t, startServer(t, 2))}
	seen := map[string]bool{}
	for _, both := range []bool{false, true} {
		o := newOracle(t, toyJob("rows", 1, lanes, schema.ApplyUpdate))
		o.job.Tables[0].PerRow, o.job.Tables[1].PerRow = true, both
		w := newToy(t, o.job)
		for b := range schema.Batch(batches) {
			o.step(t, w, b)
		}
		want := fmt.Sprintf("%x", o.digest(t))
		for i, c := range []struct {
			shards, trainers int
			apply, reduce    string
			replicated       bool
		}{{1, 1, schema.ApplyUpdate, "", false}, {2, 4, schema.ApplyUpdate, "", false}, {2, 2, schema.ApplyMean, "", true},
			{1, 4, schema.ApplyMean, schema.ReduceTrainers, true}, {2, 2, schema.ApplyMean, schema.ReduceTrainers, false}} {
			job := toyJob(fmt.Sprintf("rows-%v-%d", both, i), c.trainers, lanes, c.apply)
			job.Reduce = c.reduce
			for k := range job.Tables {
				job.Tables[k].Replicated, job.Tables[k].PerRow = c.replicated, k == 0 || both
			}
			for k, o := range trainAll(t, config[c.shards-1], job, batches) {
				got := fmt.Sprintf("%x", o.digest)
				if o.err != nil || got != want {
					t.Errorf("both %v, %+v, trainer %d: %s, want %s: %v", both, c, k, got, want, o.err)
				}
			}
		}
		seen[want] = true
	}
	if len(seen) != 2 {
		t.Error("the second table's counts make no difference")
	}
}
