package round

import (
	"context"
	"fmt"

	"gradbus/schema"
)

// Results are the frames that results over dense chunks are published in, of several versions of each chunk. A result
// is written where it is sent from. If the owner has parameters, they live here.
//
// Version v of a chunk is what v results have made of it, and lies at v modulo the number of versions that are kept.
type Results struct {
	head   schema.Head
	chunks []resultChunk
}

type resultChunk struct {
	Chunk
	frames []*schema.Frame
}

// newResults makes zeroed frames for a number of versions of each chunk. head is what the results' heads have in
// common: run id, generation, lanes and flags. ctx only cuts that short.
func newResults(ctx context.Context, chunks []Chunk, versions int, head schema.Head) (*Results, error) {
	r := &Results{head: head, chunks: make([]resultChunk, len(chunks))}
	for i := range r.chunks {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		c := &r.chunks[i]
		c.Chunk, c.frames = chunks[i], make([]*schema.Frame, versions)
		for v := range c.frames {
			f, err := schema.NewFrame(schema.Layout{Kind: schema.KindMean, Values: 4 * c.Elements})
			if err != nil {
				return nil, fmt.Errorf("bucket %d chunk %d: %w", c.Bucket, c.Chunk.Chunk, err)
			}
			c.frames[v] = f
		}
	}
	return r, nil
}

func (r *Results) at(i int, v schema.Version) int {
	return int(v % schema.Version(len(r.chunks[i].frames)))
}

// Values is where the values of a version of the i-th chunk lie. Once sealed they may not be changed until they are too
// old to be asked for.
func (r *Results) Values(i int, v schema.Version) []float32 {
	return r.chunks[i].frames[r.at(i, v)].Float32s()
}

// Seal gives a version of the i-th chunk its head, as the result of a batch, and its checksum. h says batch, weight,
// node and further flags. The frame is valid until its memory is needed for a later version.
func (r *Results) Seal(i int, v schema.Version, h schema.Head) *schema.Frame {
	c := &r.chunks[i]
	full := r.head
	full.Batch, full.Weight, full.Node, full.Flags = h.Batch, h.Weight, h.Node, full.Flags|h.Flags
	full.Bucket, full.Chunk, full.Chunks, full.Offset = c.Bucket, c.Chunk.Chunk, c.Chunks, c.Offset
	f := r.sealed(i, v)
	f.SetHead(full)
	f.Seal()
	return f
}

// sealed is where a version of the i-th chunk is sealed.
func (r *Results) sealed(i int, v schema.Version) *schema.Frame {
	return r.chunks[i].frames[r.at(i, v)]
}

// of is the result of a batch over the i-th chunk as it was sealed; nil where it was not made here, as one of before
// the job was resumed.
func (r *Results) of(i int, b schema.Batch) *schema.Frame {
	f := r.sealed(i, schema.Version(b)+1)
	v := f.View()
	if h := v.Head(); h.Chunks == 0 || h.Batch != b { // never sealed, or as another's
		return nil
	}
	return f
}
