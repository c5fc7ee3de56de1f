package hybrid

import (
	"fmt"
	"strconv"

	"gradbus/nn"
	"gradbus/schema"
)

// inputs is the width of the dense part's input: every server's columns side by side.
func (c *Config) inputs() int { return c.Servers * c.Dim }

// model is the dense part.
func (c *Config) model() nn.Module {
	return nn.Sequential(nn.LinearLayer{In: c.inputs(), Out: 256}, nn.LinearLayer{In: 256, Out: 128}, nn.ReLU{},
		nn.LinearLayer{In: 128, Out: 64}, nn.LinearLayer{In: 64, Out: 32}, nn.LinearLayer{In: 32, Out: classes})
}

// job is the manifest. One table as wide as all servers, cut by columns or rows, or one table for each server: what
// goes into the dense part is as wide in each case.
func (c *Config) job() *schema.Job {
	j := &schema.Job{Name: schema.JobName(c.Job), Workload: "hybrid", Seed: c.Seed, Trainers: c.Trainers,
		Lanes:       c.Trainers,
		Consistency: schema.ConsistencySync, Reduce: schema.ReduceTrainers, Apply: schema.ApplyMean,
		Policy:    schema.PolicyFail,
		Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: float32(c.LR)},
		Settings:  map[string]string{"batches": strconv.Itoa(c.Batches), "dense": c.Dense, "mean": c.Mean}}
	values := 0
	for _, p := range c.model().Parameters() {
		j.Parameters = append(j.Parameters,
			schema.Parameter{Name: p.Name, Shape: p.Shape, Init: schema.Init{Kind: p.Kind, Scale: p.Scale}})
		values += p.Elements()
	}
	if c.Mode == modeAsync {
		j.TableConsistency = schema.ConsistencyAsync
	}
	j.ChunkBytes = chunkBytes(c.ChunkBytes, 4*values, c.Trainers)
	table := schema.TableSpec{Name: "embedding", Rows: uint64(c.Embeddings), Dim: c.inputs(),
		Partitions: schema.Partitions,
		Init:       schema.Init{Kind: schema.InitNormal, Scale: 1}, Placement: c.Placement, Pooling: schema.PoolingSum}
	if c.Placement != schema.PlacementTables {
		j.Tables = []schema.TableSpec{table}
		return j
	}
	for i := range c.Servers {
		table.Name, table.Dim = fmt.Sprintf("embedding.%d", i), c.Dim
		j.Tables = append(j.Tables, table)
	}
	return j
}

// chunkBytes returns the requested size, or room for all dense gradients, or for half of them with more than a few
// trainers: one or two trainers then add up for all. The bytes sent are the same with any chunk, 2 (T-1) times the
// gradients, but there are T times fewer messages than with a reduce range for each trainer, and messages are the cost
// if processes outnumber cores. With a single owner, 7 others would wait for one process, on one core.
func chunkBytes(wanted, bytes, trainers int) int {
	const unit, few = 64, 3
	if trainers > few {
		bytes = (bytes + 1) / 2
	}
	if wanted == 0 {
		wanted = (bytes/unit + 1) * unit
	}
	return min(max(wanted, schema.ChunkBytesMin), schema.ChunkBytesMax)
}
