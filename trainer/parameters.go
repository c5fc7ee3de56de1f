package trainer

import (
	"fmt"
	"slices"

	"gradbus/cuda"
	"gradbus/philox"
	"gradbus/schema"
)

// parameters are the dense parameters in two versions: the one that the batch under way is computed on, and the next,
// which results build chunk by chunk. They lie in one flat space in the order in which buckets are sent.
//
// Where the trainers own the optimizer (apply "mean"), it has its momentum here, likewise in two versions.
type parameters struct {
	specs []schema.Parameter // in flat order
	spans []span             // of each
	index map[string]int     // by name

	backend  cuda.Backend
	sgd      cuda.Optimizer
	values   [2][]float32
	momentum [2][]float32 // nil where there is none
	slots    [1]cuda.Slot // the momentum, as the call under way sees it
	now      int          // which of the two is the current version
	stepped  bool         // the optimizer has run: momentum means something
}

// newParameters draws the initial values, which every trainer does alike.
func newParameters(job *schema.Job, backend cuda.Backend, specs []schema.Parameter, spans []span) (*parameters, error) {
	p := &parameters{specs: specs, spans: spans, index: map[string]int{}, backend: backend}
	sgd := sgdOf(job.Optimizer)
	p.sgd = sgd
	size := 0
	if len(spans) > 0 {
		size = spans[len(spans)-1].hi
	}
	keepsMomentum := job.Apply == schema.ApplyMean && sgd.Momentum != 0
	for i := range p.values {
		p.values[i] = make([]float32, size)
		if keepsMomentum {
			p.momentum[i] = make([]float32, size)
		}
	}
	for i, s := range specs {
		p.index[s.Name] = i
		if err := philox.FillTensor(p.value(i), s.Init.Kind, s.Init.Scale, job.Seed, s.Name); err != nil {
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
func (p *parameters) value(i int) []float32 { return p.values[p.now][p.spans[i].lo:p.spans[i].hi] }

// set takes values of the next version as they are.
func (p *parameters) set(at span, values []float32) { copy(p.values[1-p.now][at.lo:at.hi], values) }

// keep makes values of the next version those of the current one.
func (p *parameters) keep(at span) {
	for _, v := range [2]*[2][]float32{&p.values, &p.momentum} {
		if v[0] != nil {
			copy(v[1-p.now][at.lo:at.hi], v[p.now][at.lo:at.hi])
		}
	}
}

// apply makes values of the next version from a mean gradient.
func (p *parameters) apply(at span, mean []float32) error {
	a := cuda.ApplyDense{Optimizer: p.sgd, Weight: 1, First: !p.stepped, Grad: cuda.Float32s(mean),
		Param: cuda.Float32s(p.values[p.now][at.lo:at.hi]), Out: cuda.Float32s(p.values[1-p.now][at.lo:at.hi])}
	if p.momentum[0] != nil {
		p.slots[0] = cuda.Slot{Name: "momentum", Before: cuda.Float32s(p.momentum[p.now][at.lo:at.hi]),
			After: cuda.Float32s(p.momentum[1-p.now][at.lo:at.hi])}
		a.Slots = p.slots[:]
	}
	return p.backend.ApplyDense(a)
}

// commit makes the next version the current one, once it is whole.
func (p *parameters) commit(weight float64) {
	p.now = 1 - p.now
	p.stepped = p.stepped || weight > 0
}
