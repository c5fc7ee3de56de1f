package trainer

import (
	"math/rand/v2"
	"testing"

	"gradbus/lane"
	"gradbus/schema"
)

// given is a workload whose gradients follow from batch and lane alone, and not from what they are computed on: so its
// outcome is one in every mode in which batches are applied one after the other.
type given struct{}

const givenKeys = 5

func (given) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	r := rand.New(rand.NewPCG(uint64(b), uint64(l)))
	for range givenKeys {
		keys[0] = append(keys[0], r.Uint64N(50))
	}
	return 1, keys
}

func (given) Lane(step *LaneStep) (float64, error) {
	r := rand.New(rand.NewPCG(uint64(step.Batch), uint64(step.Lane)+100))
	grad := step.Grad("w")
	for i := range grad {
		grad[i] = float32(r.NormFloat64())
	}
	rows := make([]float32, givenKeys*3)
	for i := range rows {
		rows[i] = float32(r.NormFloat64())
	}
	step.BagGrad(0, 0, nil, rows)
	return 1, nil
}

func givenJob(trainers, ahead int) *schema.Job {
	job := &schema.Job{Name: "given", Trainers: trainers, Lanes: 6, Seed: 3, ChunkBytes: schema.ChunkBytesMin,
		Optimizer:  schema.Optimizer{Kind: schema.OptimizerAdam, LR: 0.01},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{1500}, Init: schema.Normal(1)}},
		Tables:     []schema.TableSpec{{Name: "t", Rows: 50, Dim: 3, Init: schema.Normal(1)}}}
	if ahead > 0 {
		job.Consistency, job.Ahead = schema.ConsistencyBounded, ahead
	}
	return job.WithDefaults()
}

// digestAfter is what the first of all trainers of a job takes for its weights, after so many batches.
func digestAfter(t *testing.T, sessions []*Session, w Workload, batches uint64) [32]byte {
	t.Helper()
	trainTo(t, sessions, w, batches)
	return digestsOf(t, sessions)[0]
}

// trainTo has all trainers of a job train until so many batches are done.
func trainTo(t *testing.T, sessions []*Session, w Workload, batches uint64) {
	t.Helper()
	for i, err := range runAll(testContext(t), sessions, w, batches-uint64(sessions[0].Version())) {
		if err != nil {
			t.Fatalf("trainer %d: %v", i, err)
		}
	}
}
