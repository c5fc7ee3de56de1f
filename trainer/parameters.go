package trainer

import (
	"context"
	"maps"
	"slices"

	"gradbus/cuda"
	"gradbus/schema"
	"gradbus/shard/state"
)

// parameters are the dense parameters in several versions: the one that the batch under way is computed on, and the
// next ones, which results build chunk by chunk. In sync there are two; where a trainer may run k batches ahead, k+2.
// They lie in one flat space in the order in which buckets are sent.
//
// Where the trainers own the optimizer (apply "mean"), the state steps them here; else the owners' values are set.
type parameters struct {
	flat   *flatSpace
	index  map[string]int // by name
	values [][]float32    // version v at v % len
	state  *state.Dense   // of the chunks of the space
	now    schema.Version // the current one

}

// newParameters draws the initial values, which every trainer does alike, unless ctx ends before.
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

// named is the current version of a parameter; nil where the job has none of that name.
func (p *parameters) named(name string) []float32 {
	i, ok := p.index[name]
	if !ok {
		return nil
	}
	return p.value(i)
}

// value is the current version of a parameter.
func (p *parameters) value(i int) []float32 { return p.of(p.now, p.flat.params[i]) }

// of is a stretch of a version.
func (p *parameters) of(v schema.Version, at span) []float32 {
	return p.values[v%schema.Version(len(p.values))][at.lo:at.hi]
}

// step makes the next version of a chunk by its mean gradient, times scale.
func (p *parameters) step(chunk int, mean []float32, scale float32) error {
	if err := p.state.Step(chunk, 1, mean, scale); err != nil {
		return cuda.NameMismatch(err, func(e *cuda.MismatchError) string {
			return p.flat.elementName(p.flat.chunks[chunk].lo + e.Position)
		})
	}
	return nil
}

// keep makes the next version of a chunk what it is: nobody had a sample.
func (p *parameters) keep(chunk int) {
	p.state.Keep(chunk)
}

// commit makes version v the current one, once it is whole.
func (p *parameters) commit(v schema.Version) { p.now = v }
