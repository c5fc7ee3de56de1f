package simulate

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"gradbus/lane"
	"gradbus/schema"
	"gradbus/trainer"
)

// recoveryJobs are the jobs of the recovery table, by the words of their manifests: consistency, apply, reduce and the
// placement of the table, one job for each shape of plan, and then one job for each further feature.
var recoveryJobs = []string{
	"sync update shards none", "sync update shards rows", "sync update shards columns", "sync update shards whole",
	"sync mean shards none", "sync mean shards rows", "sync mean shards columns", "sync mean shards whole",
	"sync mean shards replicated", "sync mean trainers none",
	"sync mean trainers rows", "sync mean trainers rows async",
	"sync mean trainers columns", "sync mean trainers columns async",
	"sync mean trainers whole", "sync mean trainers whole async",
	"sync mean trainers replicated", "sync mean trainers replicated:shards",
	"bounded update shards none", "bounded update shards rows",
	"async update shards none", "async update shards rows",
	"grouped update shards none",

	"sync update shards rows bfloat16", "sync update shards rows feedback", "sync update shards rows exact",
	"sync mean shards replicated clip", "sync update shards rows start", "sync update shards rows modules",
}

const (
	recoveryLanes   = 4
	recoveryBatches = 28
	recoveryRows    = 40 // of the table that gradients depend on
	recoveryCounts  = recoveryBatches * recoveryLanes
)

// recoveryJob is the job with these words. Its parameter and its table named counts have one element for each lane of
// each batch, to which only that lane contributes: they show how often it was applied.
func recoveryJob(words string, trainers int) *schema.Job {
	w := strings.Fields(words)
	has := map[string]bool{}
	for _, word := range w[4:] {
		has[word] = true
	}
	counting := &schema.Optimizer{Kind: schema.OptimizerSGD, LR: 1}
	job := &schema.Job{Name: "recovery", Workload: "counted", Seed: 11, Trainers: trainers, Lanes: recoveryLanes,
		Consistency: w[0], Apply: w[1], Reduce: w[2], ChunkBytes: schema.ChunkBytesMin,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.125, Momentum: 0.5},
		Parameters: []schema.Parameter{{Name: "w", Shape: []int{weights}, Init: schema.Normal(1)},
			{Name: "counts", Shape: []int{recoveryCounts}, Init: schema.Zeros(), Optimizer: counting}}}
	switch w[0] {
	case schema.ConsistencyBounded:
		job.Ahead = 2
	case schema.ConsistencyGrouped:
		job.Group = min(2, trainers)
	}
	if has["async"] {
		job.TableConsistency = schema.ConsistencyAsync
	}
	if has["bfloat16"] || has["feedback"] {
		job.Wire.Gradients, job.Wire.ErrorFeedback = schema.GradientsBFloat16, has["feedback"]
	}
	job.Optimizer.Exact = has["exact"]
	if has["clip"] {
		job.Optimizer.Clip = &schema.Clipping{Kind: schema.ClipGlobal, Max: 1}
	}
	if has["modules"] {
		job.Modules = []schema.ModuleSpec{{Name: "head", Seed: 3, In: []int{4}, Samples: 1, Contexts: recoveryLanes,
			Module: `[{"linear":{"in":4,"out":3}}]`}}
	}
	placement, reduce, _ := strings.Cut(w[3], ":")
	if placement != "none" {
		table := schema.TableSpec{Dim: 4, Partitions: 8, Pooling: schema.PoolingSum, Init: schema.Zeros()}
		table.Replicated = placement == "replicated"
		table.Reduce = reduce
		switch placement {
		case "columns":
			table.Placement = schema.PlacementColumns
		case "whole":
			table.Placement = schema.PlacementTables
		}
		values, counts := table, table
		values.Name, values.Rows, values.Init = "t", recoveryRows, schema.Normal(1)
		counts.Name, counts.Rows, counts.Optimizer = "u", recoveryCounts, counting
		job.Tables = []schema.TableSpec{values, counts}
	}
	job.Policy = schema.PolicyRecover
	if job = job.WithDefaults(); job.Validate() != nil { // a lost trainer ends it, or the others go on
		job.Policy = schema.PolicyFail
	}
	return job
}

// sharesDigest reports whether every run of a job ends with the same bits; rounded says that this is so at one number
// of trainers.
func sharesDigest(job *schema.Job) (shares, rounded bool) {
	p := job.Plan()
	return p.Sync() && !p.AsyncTables && len(job.Modules) == 0, p.DType != schema.DTypeFloat32
}

// startValues are those that a job with start values begins with.
func startValues() map[string][]float32 {
	w := make([]float32, weights)
	for i := range w {
		w[i] = float32(i%7) / 8
	}
	return map[string][]float32{"w": w, "counts": make([]float32, recoveryCounts)}
}

// counted is the workload of the recovery table. In sync, gradients depend on the weights and rows that they are
// computed on; in other modes on batch and lane alone. A lane has a power of four of samples, which is its own, so that
// the mean over any set of lanes shows how often each of them has contributed.
type counted struct {
	ctx    context.Context
	job    *schema.Job
	module *trainer.Module                   // nil: the job hosts none
	enter  func(b schema.Batch, l lane.Lane) // called when a lane begins
}

var _ trainer.Bagged = counted{}

func (c counted) draw(b schema.Batch, l lane.Lane) *rand.Rand {
	return rand.New(rand.NewPCG(c.job.Seed, uint64(b)<<16|uint64(l)))
}

func samplesOf(l lane.Lane) int { return 1 << (2 * l) }

func countOf(b schema.Batch, l lane.Lane) int { return int(b)*recoveryLanes + int(l) }

// Keys implements trainer.Workload.
func (c counted) Keys(b schema.Batch, l lane.Lane, keys [][]uint64) (int, [][]uint64) {
	if len(keys) > 0 {
		r := c.draw(b, l)
		for range 3 {
			keys[0] = append(keys[0], r.Uint64N(recoveryRows))
		}
		keys[1] = append(keys[1], uint64(countOf(b, l)))
	}
	return samplesOf(l), keys
}

// Bags implements trainer.Bagged: of three keys one bag has two.
func (c counted) Bags(_ schema.Batch, _ lane.Lane, offsets [][]int64) [][]int64 {
	offsets[0] = append(offsets[0], 0, 2, 3)
	offsets[1] = append(offsets[1], 0, 1)
	return offsets
}

// Lane implements trainer.Workload.
func (c counted) Lane(step *trainer.LaneStep) (float64, error) {
	c.enter(step.Batch, step.Lane)
	r := c.draw(step.Batch, step.Lane)
	reads := float32(0)
	if shares, _ := sharesDigest(c.job); shares {
		reads = 1
	}
	w, sum := step.Param("w"), float32(0)
	if len(c.job.Tables) > 0 {
		pooled := step.Pooled(0)
		gradients := make([]float32, len(pooled))
		for i, x := range pooled {
			sum += float32(x * w[i])
			gradients[i] = float32(reads*x*0.125) + float32(r.NormFloat64())
		}
		step.PooledGrad(0, gradients)
		step.PooledGrad(1, []float32{1, 1, 1, 1})
	}
	if c.module != nil {
		if err := c.pass(step, w[:4]); err != nil {
			return 0, err
		}
	}
	grad, counts := step.Grad("w"), step.Grad("counts")
	for i := range grad {
		grad[i] = float32(reads*w[i]*0.125) + float32(reads*sum*0.125) + float32(r.NormFloat64())
	}
	clear(counts)
	counts[countOf(step.Batch, step.Lane)] = 1
	return float64(sum), nil
}

// pass has a lane's pass through the hosted module, which steps with the batch.
func (c counted) pass(step *trainer.LaneStep, x []float32) error {
	pass, y, err := c.module.Forward(c.ctx, step.Batch, step.Lane, slices.Clone(x))
	if err != nil {
		return err
	}
	if _, err := pass.BackwardInput(c.ctx, slices.Clone(y)); err != nil {
		return err
	}
	step.Step(pass)
	return nil
}

// timesApplied is how often a lane contributed to an element of counts: 0, 1, or 2 for more often than once. A
// contribution moves it by 1 over the samples of the round, which are those of a set of lanes that it is one of.
func timesApplied(value float32, l lane.Lane) int {
	if value == 0 {
		return 0
	}
	for lanes := range 1 << recoveryLanes {
		samples := 0
		for other := range lane.Lane(recoveryLanes) {
			if lanes>>other&1 == 1 {
				samples += samplesOf(other)
			}
		}
		if lanes>>l&1 == 1 && math.Abs(float64(value)*float64(samples)+1) < 1e-4 {
			return 1
		}
	}
	return 2
}
