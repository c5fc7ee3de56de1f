package trainer

import (
	"context"
	"fmt"
	"slices"

	"gradbus/cuda"
	"gradbus/philox"
	"gradbus/schema"
)

// parameters are the dense parameters in several versions: the one that the batch under way is computed on, and the next
// ones, which results build chunk by chunk. In sync there are two; where a trainer may run k batches ahead, k+2. They lie in
// one flat space in the order in which buckets are sent.
//
// Where the trainers own the optimizer (apply "mean"), it has its momentum here, likewise by version.
type parameters struct {
	specs []schema.Parameter // in flat order
	spans []span             // of each
	index map[string]int     // by name

	backend  cuda.Backend
	sgd      cuda.Optimizer
	values   [][]float32    // version v at v % len
	momentum [][]float32    // likewise; empty where there is none
	slots    [1]cuda.Slot   // the momentum, as the call under way sees it
	now      schema.Version // the current one
}

// newParameters draws the initial values, which every trainer does alike, unless ctx ends before.
func newParameters(ctx context.Context, job *schema.Job, backend cuda.Backend, specs []schema.Parameter, spans []span) (*parameters, error) {
	versions := job.Ahead + 2
	p := &parameters{values: make([][]float32, versions), specs: specs, spans: spans, index: map[string]int{}, backend: backend}
	sgd := sgdOf(job.Optimizer)
	p.sgd = sgd
	size := 0
	if len(spans) > 0 {
		size = spans[len(spans)-1].hi
	}
	for i := range p.values {
		p.values[i] = make([]float32, size)
	}
	if job.Apply == schema.ApplyMean && sgd.Momentum != 0 {
		for range versions {
			p.momentum = append(p.momentum, make([]float32, size))
		}
	}
	for i, s := range specs {
		p.index[s.Name] = i
		filler, err := philox.NewFiller(s.Init.Kind, s.Init.Scale, job.Seed, s.Name)
		if err == nil {
			err = filler.Draw(ctx, p.value(i), 0)
		}
		if err != nil {
			return nil, fmt.Errorf("parameter %q: %w", s.Name, err)
		}
	}
	return p, nil
}

func sgdOf(o schema.Optimizer) cuda.SGD {
	return cuda.SGD{LR: o.LR, Momentum: o.Momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay, Nesterov: o.Nesterov}
}

func (p *parameters) names() []string {
	names := make([]string, 0, len(p.specs))
	for _, s := range p.specs {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	return names
}

// value is the current version of a parameter.
func (p *parameters) value(i int) []float32 {
	return p.of(p.values, p.now, p.spans[i])
}

// of is a stretch of a version of what is kept by version.
func (p *parameters) of(kept [][]float32, v schema.Version, at span) []float32 {
	return kept[v%schema.Version(len(kept))][at.lo:at.hi]
}

// set takes values of version v as they are.
func (p *parameters) set(v schema.Version, at span, values []float32) {
	copy(p.of(p.values, v, at), values)
}

// keep makes values of version v those of the one before.
func (p *parameters) keep(v schema.Version, at span) {
	copy(p.of(p.values, v, at), p.of(p.values, v-1, at))
	if len(p.momentum) > 0 {
		copy(p.of(p.momentum, v, at), p.of(p.momentum, v-1, at))
	}
}

// apply makes values of version v from those of the one before and a mean gradient. first says that the optimizer has
// never run on them.
func (p *parameters) apply(v schema.Version, at span, mean []float32, first bool) error {
	a := cuda.ApplyDense{Optimizer: p.sgd, Weight: 1, First: first, Grad: cuda.Float32s(mean),
		Param: cuda.Float32s(p.of(p.values, v-1, at)), Out: cuda.Float32s(p.of(p.values, v, at))}
	if len(p.momentum) > 0 {
		p.slots[0] = cuda.Slot{Name: "momentum", Before: cuda.Float32s(p.of(p.momentum, v-1, at)),
			After: cuda.Float32s(p.of(p.momentum, v, at))}
		a.Slots = p.slots[:]
	}
	return cuda.NameMismatch(p.backend.ApplyDense(a), func(e *cuda.MismatchError) string {
		return elementName(p.specs, p.spans, at.lo+e.Position)
	})
}

// elementName names the value at a place of the flat space, for people.
func elementName(specs []schema.Parameter, spans []span, at int) string {
	for i, s := range spans {
		if at >= s.lo && at < s.hi {
			return fmt.Sprintf("parameter %q, element %d", specs[i].Name, at-s.lo)
		}
	}
	return fmt.Sprintf("value %d of no parameter", at)
}

// commit makes version v the current one, once it is whole.
func (p *parameters) commit(v schema.Version) { p.now = v }
