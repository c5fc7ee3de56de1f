package state

import "gradbus/schema"

// PlacedChunk is a chunk of a job's dense bucket as placement cuts it. With steps it is stepped where it lies, by the
// optimizer that its parameters have in common; else its values are set.
func PlacedChunk(job *schema.Job, place *schema.Placement, bucket schema.Bucket, chunk schema.Chunk, steps bool) Chunk {
	offset, elements := place.ChunkRange(bucket, chunk)
	c := Chunk{Elements: elements}
	for _, s := range place.Buckets[bucket].Spans {
		from, to := max(s.Offset, offset), min(s.Offset+s.Elements, offset+elements)
		if from >= to {
			continue
		}
		p := &job.Parameters[s.Parameter]
		c.Pieces = append(c.Pieces, Piece{Name: p.Name, Init: p.Init, Seed: job.Seed, From: s.From + from - s.Offset,
			Offset: from - offset, Elements: to - from})
	}
	if steps {
		o := place.OptimizerOf(bucket)
		c.Optimizer = &o
	}
	return c
}
