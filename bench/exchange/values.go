package exchange

import (
	"fmt"

	"gradbus/schema"
)

// Gradients are made of small whole numbers, which every wire type holds, so that sums and means of powers of two of
// them are exact.
const (
	patternMax = 255 // of a value
	stampMax   = 128 // stamps run from 0 to below this
)

// pattern is the value at an element of the flat space of a member's gradient, 0 to patternMax.
func pattern(member, element int) float32 {
	return float32((uint32(element)*2654435761 + uint32(member)*40503*65536) >> 24 & patternMax)
}

// stamp tells one batch's gradient from the next one's.
func stamp(b schema.Batch) float32 { return float32(b % stampMax) }

// mean is what the shard makes of the values of all members at an element, each being a sum over one sample.
func mean(members, element int) float32 {
	sum := float32(0)
	for m := range members {
		sum += pattern(m, element)
	}
	return sum / float32(members)
}

// layers gives a model whose parameters take the given number of bytes: square layers with a bias as far as they fit,
// and the rest in front. 37,781,504 bytes are an embedding of 1024 by 1024 and eight layers of 1024 by 1024.
func layers(bytes int) []schema.Parameter {
	const side = 1024
	elements := bytes / 4
	var p []schema.Parameter
	count := elements / (side*side + side)
	if rest := elements - count*(side*side+side); rest > 0 {
		p = append(p, schema.Parameter{Name: "front", Shape: []int{rest}, Init: schema.Init{Kind: schema.InitZeros}})
	}
	for i := range count {
		p = append(p, schema.Parameter{Name: fmt.Sprintf("layer%d.weight", i), Shape: []int{side, side},
			Init: schema.Init{Kind: schema.InitZeros}},
			schema.Parameter{Name: fmt.Sprintf("layer%d.bias", i), Shape: []int{side},
				Init: schema.Init{Kind: schema.InitZeros}})
	}
	return p
}

// jobOf is the job of a measure: trainers with a lane each, shards that average.
func jobOf(name string, trainers, bytes, chunkBytes int) *schema.Job {
	return &schema.Job{Name: schema.JobName(name), Workload: "psbench", Seed: 1, Trainers: trainers, Lanes: trainers,
		Consistency: schema.ConsistencySync, Apply: schema.ApplyMean,
		Policy:     schema.PolicyFail,
		ChunkBytes: chunkBytes, Optimizer: schema.Optimizer{Kind: schema.OptimizerSGD, LR: 1}, Parameters: layers(bytes)}
}

// Requests are for rows of this table: two rows of two values are 16 bytes, and so are the keys of two.
const (
	askRows, askDim = 4096, 2
	askKeys         = 2
	askPartitions   = 64
)

// withTable adds the table that requests ask for, and with it a small sparse round to every batch.
func withTable(j *schema.Job) *schema.Job {
	j.Tables = []schema.TableSpec{{Name: "asked", Rows: askRows, Dim: askDim, Partitions: askPartitions,
		Init: schema.Init{Kind: schema.InitZeros}}}
	return j
}
