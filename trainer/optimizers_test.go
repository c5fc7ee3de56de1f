package trainer

import (
	"fmt"
	"testing"

	"gradbus/schema"
)

// optimizerJobs are jobs of each optimizer, for all or for some, by which digests must not depend on anything else.
var optimizerJobs = map[string]func(*schema.Job){
	"adagrad": func(j *schema.Job) { j.Optimizer = schema.Optimizer{Kind: schema.OptimizerAdagrad, LR: 0.1} },
	"rowwise_adagrad": func(j *schema.Job) {
		j.Optimizer = schema.Optimizer{Kind: schema.OptimizerRowwiseAdagrad, LR: 0.1}
	},
	"adam": func(j *schema.Job) { j.Optimizer = schema.Optimizer{Kind: schema.OptimizerAdam, LR: 0.1} },
	"adamw": func(j *schema.Job) {
		j.Optimizer = schema.Optimizer{Kind: schema.OptimizerAdamW, LR: 0.1,
			Schedule: &schema.Schedule{Kind: schema.ScheduleCosine, Warmup: 2, Total: 6, Final: 0.1}}
	},
	"ftrl": func(j *schema.Job) { j.Optimizer = schema.Optimizer{Kind: schema.OptimizerFTRL, LR: 0.1, L1: 0.001} },
	"exact rows, and by value": func(j *schema.Job) {
		j.Optimizer.Clip = &schema.Clipping{Kind: schema.ClipValue, Max: 0.05}
		j.Tables[0].Optimizer = &schema.Optimizer{Kind: schema.OptimizerSGD, LR: 0.1, Momentum: 0.9, WeightDecay: 0.01,
			Exact: true}
	},
	"of its own": func(j *schema.Job) {
		j.Parameters[1].Optimizer = &schema.Optimizer{Kind: schema.OptimizerAdam, LR: 0.1}
		j.Tables[0].Optimizer = &schema.Optimizer{Kind: schema.OptimizerRowwiseAdagrad, LR: 0.1,
			Clip: &schema.Clipping{Kind: schema.ClipRow, Max: 0.01}}
		j.Tables[1].Optimizer = &schema.Optimizer{Kind: schema.OptimizerFTRL, LR: 0.1}
	},
}

// Gradients that are clipped by the norm of all of them together are held until all are there. The norm does not depend
// on chunks, trainers, shards or the way that they take.
func TestGlobalClippingGivesEqualBits(t *testing.T) {
	const lanes, batches = 5, 7
	config := []Config{testConfig(t, startServer(t, 1)), testConfig(t, startServer(t, 2))}
	digests := map[string]bool{}
	for at, clip := range []*schema.Clipping{nil, {Kind: schema.ClipGlobal, Max: 1e9},
		{Kind: schema.ClipGlobal, Max: 0.05}} {
		want := ""
		for i, c := range []struct {
			shards, trainers int
			reduce           string
			chunks           int
		}{{1, 1, "", 4 << 10}, {2, 2, "", 64 << 10}, {2, 4, schema.ReduceTrainers, 4 << 10},
			{1, 2, schema.ReduceTrainers, 16 << 10}} {
			job := toyJob(fmt.Sprintf("clip-%d-%d", at, i), c.trainers, lanes, schema.ApplyMean)
			job.Reduce, job.ChunkBytes, job.Optimizer.Clip = c.reduce, c.chunks, clip
			for k := range job.Tables {
				job.Tables[k].Replicated = true
			}
			job.Parameters[2].Optimizer = &schema.Optimizer{Kind: schema.OptimizerAdam, LR: 0.1} // and is not clipped
			for k, o := range trainAll(t, config[c.shards-1], job, batches) {
				got := fmt.Sprintf("%x", o.digest)
				if want == "" {
					want = got
				}
				if o.err != nil || got != want {
					t.Errorf("%+v, %+v, trainer %d: %s, want %s: %v", clip, c, k, got, want, o.err)
				}
			}
		}
		digests[want] = true
	}
	if len(digests) != 2 {
		t.Errorf("%d outcomes: want one where the norm is within the bound, and another where it is clipped", len(digests))
	}
}
