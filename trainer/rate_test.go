package trainer

import (
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// summed has 1 sample in lane 0 and 3 in lane 1. A sample of lane l has gradient l+1 for w and 1 for row l of the
// table; a lane gives the sums.
type summed struct{}

func (summed) Keys(_ schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	if len(keys) > 0 {
		keys[0] = append(keys[0], uint64(l))
	}
	return 1 + 2*int(l), keys
}

func (summed) Lane(step *LaneStep) (float64, error) {
	n := float32(step.Samples)
	step.Grad("w")[0] = n * float32(step.Lane+1)
	if len(step.compute.tables.specs) > 0 {
		step.RowGrad(0, step.IDs(0), []float32{n})
	}
	return 0, nil
}

// The rate is one for the mean over samples: of all lanes of the batch where trainers keep step, of those that make an
// update elsewhere.
func TestLearningRateIsOfTheMean(t *testing.T) {
	server := startServer(t, 2)
	for _, c := range []struct {
		name            string
		change          func(*schema.Job)
		w, first, other float32 // after a batch, with a rate of 0.5: of the gradient, and of rows 0 and 1
	}{
		// (1*1 + 3*2)/4 samples; a row has 1/4 and 3/4.
		{"sync", func(*schema.Job) {}, -0.5 * 7 / 4, -0.5 * 1 / 4, -0.5 * 3 / 4},
		{"mean", func(j *schema.Job) { j.Apply = schema.ApplyMean }, -0.5 * 7 / 4, -0.5 * 1 / 4, -0.5 * 3 / 4},
		// Each trainer's is divided by its own samples: 1/1 and then 6/3.
		{"async", func(j *schema.Job) { j.Consistency = schema.ConsistencyAsync }, -0.5 * (1 + 2), -0.5, -0.5},
		{"grouped", func(j *schema.Job) { j.Consistency, j.Group, j.Tables = schema.ConsistencyGrouped, 1, nil },
			-0.5 * (1 + 2), 0, 0},
		{"grouped-two", func(j *schema.Job) { j.Consistency, j.Group, j.Tables = schema.ConsistencyGrouped, 2, nil },
			-0.5 * 7 / 4, 0, 0},
		{"table-async", func(j *schema.Job) {
			j.Apply, j.Reduce, j.TableConsistency = schema.ApplyMean, schema.ReduceTrainers, schema.ConsistencyAsync
		}, -0.5 * 7 / 4, -0.5, -0.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := toyJob("rate-"+c.name, 2, 2, schema.ApplyUpdate)
			job.Optimizer = schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.5}
			job.Parameters = []schema.Parameter{{Name: "w", Shape: []int{1}, Init: schema.Init{Kind: schema.InitZeros}}}
			job.Tables = []schema.TableSpec{{Name: "t", Rows: 2, Dim: 1, Partitions: 2,
				Init: schema.Init{Kind: schema.InitZeros}}}
			c.change(job)
			sessions := joinAll(t, testConfig(t, server), job)
			for i, err := range runAll(testContext(t), sessions, summed{}, 1) {
				if err != nil {
					t.Fatalf("trainer %d: %v", i, err)
				}
			}
			// in async and grouped, that of who was the last to be answered
			w := min(sessions[0].Param("w")[0], sessions[1].Param("w")[0])
			if w != c.w {
				t.Errorf("w is %v, want %v", w, c.w)
			}
			if len(job.Tables) == 0 {
				return
			}
			rows, err := sessions[0].Lookup(testContext(t), []Query{{Table: 0, Keys: []uint64{0, 1}}})
			if err != nil || rows[0][0] != c.first || rows[0][1] != c.other {
				t.Errorf("rows %v, %v, want %v and %v", rows, err, c.first, c.other)
			}
		})
	}
}

// Who writes a workload reads how the rate and 16 bits count where they are chosen.
func TestWhatUsersHaveToKnowIsSaid(t *testing.T) {
	for _, c := range []struct{ file, says string }{
		{"workload.go", "number of samples in the batch"},
		{"../schema/optimizer.go", "number of samples in the batch"},
		{"../schema/job.go", "bits depend on the number of trainers"},
		{"doc.go", "trainer/shuffle"},
	} {
		text, err := os.ReadFile(c.file)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), c.file, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for _, group := range file.Comments {
			all.WriteString(strings.Join(strings.Fields(group.Text()), " ") + "\n")
		}
		if !strings.Contains(all.String(), c.says) {
			t.Errorf("%s does not say that %q", c.file, c.says)
		}
	}
}
