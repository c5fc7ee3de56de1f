package simulate

import (
	"math/rand/v2"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer"
)

const (
	rows    = 90
	few     = 3000 // rows of another table, of which few are touched between checkpoints: these are increments
	dim     = 3
	weights = 1500 // more than a chunk
)

// manifest is the job of a seed.
func manifest(r *rand.Rand) *schema.Job {
	job := &schema.Job{Name: "simulated", Workload: "noise", Seed: r.Uint64(), Trainers: 1 + (1+r.IntN(8))/2,
		ChunkBytes: schema.ChunkBytesMin,
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{weights}, Init: schema.Normal(1)}},
		Tables: []schema.TableSpec{{Name: "t", Rows: rows, Dim: dim, Partitions: 8, Init: schema.Normal(1)},
			{Name: "few", Rows: few, Dim: dim, Partitions: 8, Init: schema.Normal(1)}}}
	job.Lanes = job.Trainers + r.IntN(4)
	switch r.IntN(3) {
	case 0:
		job.Optimizer = schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.9}
	case 1:
		job.Optimizer = schema.Optimizer{Kind: "adam", LR: 0.01}
	default:
		job.Optimizer = schema.Optimizer{Kind: "adagrad", LR: 0.1}
	}
	return job.WithDefaults()
}

// noise is a workload whose gradients follow from batch, lane, and the rows and weights that they are computed on, in
// which nothing cancels: a gradient that is lost, counted twice, or computed on another version changes the end. Where
// trainers run ahead versions are others from run to run, and gradients follow from batch and lane alone.
type noise struct {
	seed    uint64
	ahead   bool
	batches uint64
	// seen is told what a lane is computed on: checksums of the weights, and of the rows of its keys in their order.
	seen func(b schema.Batch, l lane.Lane, weights, rows uint32)
}

var _ trainer.Workload = noise{}

func (n noise) draw(b schema.Batch, l lane.Lane) *rand.Rand {
	return rand.New(rand.NewPCG(n.seed, uint64(b)<<16|uint64(l)))
}

// Keys implements trainer.Workload: three lanes in eight are absent, so that some batches have no sample,
// but for the last one: a run that begins with that wants one.
func (n noise) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	r := n.draw(b, l)
	samples := max(0, r.IntN(8)-2)
	if uint64(b) == n.batches-1 {
		samples++
	}
	for range 3 * samples {
		keys[0] = append(keys[0], r.Uint64N(rows))
	}
	for range samples {
		keys[1] = append(keys[1], r.Uint64N(few))
	}
	return samples, keys
}

// Lane implements trainer.Workload.
func (n noise) Lane(step *trainer.LaneStep) (float64, error) {
	r := n.draw(step.Batch, step.Lane)
	w, grad := step.Param("w"), step.Grad("w")
	sum, read := float32(0), []float32(nil)
	for table := range schema.Table(2) {
		of, ids := step.Rows(table), step.IDs(table)
		gradients := make([]float32, len(ids)*dim)
		for i, id := range ids {
			for k := range dim {
				x := of[int(id)*dim+k]
				read = append(read, x)
				sum += float32(x * w[(i*dim+k)%len(w)])
				gradients[i*dim+k] = n.read(x*0.01) + float32(r.NormFloat64())
			}
		}
		step.BagGrad(table, 0, nil, gradients)
	}
	for i := range grad {
		grad[i] = n.read(w[i]*0.001) + n.read(sum*0.0001) + float32(r.NormFloat64())
	}
	n.seen(step.Batch, step.Lane, checksum(w), checksum(read))
	return float64(sum), nil
}

// read is what a gradient has of a value that was read.
func (n noise) read(x float32) float32 {
	if n.ahead {
		return 0
	}
	return float32(x) // rounded, so that nothing is fused
}
