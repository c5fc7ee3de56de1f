package trainer

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"gradbus/cuda"
	"gradbus/schema"
	"gradbus/shard/state"
)

// parameters has the dense parameters in several versions: the one on which the batch under way is computed, and the
// next ones, which results build chunk by chunk. In sync there are two; a trainer that may run k batches ahead has k+2.
// A version is one flat space, in the order in which buckets are sent.
//
// If the trainers own the optimizer (apply "mean"), state steps the parameters here; else the owners' values are
// stored.
type parameters struct {
	flat   *flatSpace
	index  map[string]int // by name
	values [][]float32    // version v at v % len
	state  *state.Dense   // of the chunks of the space
	now    schema.Version // current version

}

// newParameters draws the initial values, which are the same for every trainer, unless ctx ends first.
func newParameters(ctx context.Context, job *schema.Job, backend cuda.Backend, flat *flatSpace,
	lr *state.LRChanges) (_ *parameters, err error) {
	p := &parameters{values: make([][]float32, job.Ahead+2), flat: flat, index: map[string]int{}}
	size := 0
	if n := len(flat.params); n > 0 {
		size = flat.params[n-1].hi
	}
	for i := range p.values {
		p.values[i] = make([]float32, size)
	}
	for i, s := range flat.specs {
		p.index[s.Name] = i
	}
	c := state.DenseConfig{Backend: backend, Lanes: job.Lanes, LR: lr, Start: job.StartVersion(),
		Values: func(i int, v schema.Version) []float32 { return p.of(v, flat.chunks[i]) }}
	for _, r := range flat.rounds {
		c.Chunks = append(c.Chunks,
			state.PlacedChunk(job, flat.place, r.bucket, r.chunk, flat.place.Plan.Owner == schema.ByTrainers))
	}
	if p.state, err = state.NewDense(c); err != nil {
		return nil, err
	}
	if err = p.state.Draw(ctx); err != nil {
		p.state.Close()
		return nil, err
	}
	return p, nil
}

func (p *parameters) names() []string { return slices.Sorted(maps.Keys(p.index)) }

// named returns the current version of a parameter; nil if the job has none of that name.
func (p *parameters) named(name string) []float32 {
	i, ok := p.index[name]
	if !ok {
		return nil
	}
	return p.value(i)
}

// value returns the current version of a parameter.
func (p *parameters) value(i int) []float32 { return p.of(p.now, p.flat.params[i]) }

// of returns the range at of version v.
func (p *parameters) of(v schema.Version, at span) []float32 {
	return p.values[v%schema.Version(len(p.values))][at.lo:at.hi]
}

// step makes the next version of a chunk from its mean gradient times scale.
func (p *parameters) step(chunk int, mean []float32, scale float32) error {
	if err := p.state.Step(chunk, 1, mean, scale); err != nil {
		return cuda.NameMismatch(err, func(e *cuda.MismatchError) string {
			return p.flat.elementName(p.flat.chunks[chunk].lo + e.Position)
		})
	}
	return nil
}

// keep makes the next version of a chunk equal to the current one, since no lane had a sample.
func (p *parameters) keep(chunk int) {
	p.state.Keep(chunk)
}

// commit makes version v, which is complete, the current one.
func (p *parameters) commit(v schema.Version) { p.now = v }

// flatSpace is the concatenation of all dense parameters of the job: bucket after bucket, in the order in which rounds
// are sent, which is the reverse of the forward pass. Chunks cut it into frames.
type flatSpace struct {
	place  *schema.Placement
	specs  []schema.Parameter // in the order of the space
	params []span             // of specs
	chunks []span
	rounds []denseRound // of chunks
	first  []int        // [bucket] index of its first chunk
}

// denseRound has the frame fields of a chunk.
type denseRound struct {
	owner         int // owner that sums it
	bucket        schema.Bucket
	chunk, chunks schema.Chunk
	offset        uint64 // first element within the bucket
}

func newFlatSpace(job *schema.Job, place *schema.Placement) (*flatSpace, error) {
	f := &flatSpace{place: place}
	base := 0
	for i, b := range place.Buckets {
		if int(b.ID) != i {
			return nil, fmt.Errorf("bucket %d is placed at %d: buckets are numbered from 0", b.ID, i)
		}
		f.first = append(f.first, len(f.chunks))
		for _, p := range b.Spans {
			if err := f.part(&job.Parameters[p.Parameter], base+p.Offset, p.From); err != nil {
				return nil, err
			}
		}
		chunks := place.Chunks(b.ID)
		for c := range chunks {
			offset, elements := place.ChunkRange(b.ID, schema.Chunk(c))
			f.chunks = append(f.chunks, span{base + offset, base + offset + elements})
			f.rounds = append(f.rounds, denseRound{owner: place.OwnerOfChunk(b.ID, schema.Chunk(c)), bucket: b.ID,
				chunk:  schema.Chunk(c),
				chunks: schema.Chunk(chunks), offset: uint64(offset)})
		}
		base += b.Elements
	}
	if n := len(f.specs); n != len(job.Parameters) || n > 0 && f.params[n-1].hi != base {
		return nil, fmt.Errorf("placement covers %d of %d parameters in %d values", n, len(job.Parameters), base)
	}
	return f, nil
}

// part adds a part of a parameter, which begins at the parameter's element first, at position at. The parts of a
// parameter that is larger than a bucket are adjacent, so the parameter is contiguous.
func (f *flatSpace) part(spec *schema.Parameter, at, first int) error {
	if first == 0 {
		f.specs = append(f.specs, *spec)
		f.params = append(f.params, span{at, at + spec.Elements()})
	}
	if n := len(f.specs); n == 0 || f.specs[n-1].Name != spec.Name || f.params[n-1].lo+first != at {
		return fmt.Errorf("element %d of parameter %q does not follow the one before it", first, spec.Name)
	}
	return nil
}

// find returns the index of the chunk that a frame names.
func (f *flatSpace) find(bucket schema.Bucket, chunk schema.Chunk) (int, bool) {
	if int(bucket) >= len(f.first) {
		return 0, false
	}
	at := f.first[bucket]
	if chunk >= f.rounds[at].chunks {
		return 0, false
	}
	return at + int(chunk), true
}

// elementName names the value at a position of the space, for messages.
func (f *flatSpace) elementName(at int) string {
	for i, s := range f.params {
		if at >= s.lo && at < s.hi {
			return fmt.Sprintf("parameter %q, element %d", f.specs[i].Name, at-s.lo)
		}
	}
	return fmt.Sprintf("value %d of no parameter", at)
}
