package state

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/schema"
)

// rule is an optimizer of a manifest, made ready for the kernels. It is the one place that knows which optimizer of package
// cuda a kind is, what it keeps and how its numbers change from version to version. A rule belongs to one owner of state and
// is not safe for concurrent use: at changes it in place, so that a batch allocates nothing.
type rule struct {
	named schema.Optimizer
	slots []slotShape
	marks bool // the first step of a value or row differs from the others

	optimizer cuda.Optimizer // points to the one below that the kind names
	sgd       cuda.SGD
}

// slotShape is a named state of an optimizer: as many values as the row or tensor has, or one a row.
type slotShape struct {
	name   string
	perRow bool
}

// width is how many values of the slot a row of dim values has.
func (s slotShape) width(dim int) int {
	if s.perRow {
		return 1
	}
	return dim
}

// newRule fails on a kind that Validate refuses. Fields of o that are 0 get their defaults.
func newRule(o schema.Optimizer) (*rule, error) {
	o = o.WithDefaults()
	r := &rule{named: o}
	switch o.Kind {
	case schema.OptimizerSGD:
		r.sgd = cuda.SGD{LR: o.LR, Momentum: o.Momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay, Nesterov: o.Nesterov}
		r.optimizer, r.marks = &r.sgd, o.Momentum != 0
	default:
		return nil, fmt.Errorf("optimizer %q is not known", o.Kind)
	}
	for _, name := range r.optimizer.SlotNames() {
		r.slots = append(r.slots, slotShape{name: name})
	}
	return r, nil
}

// at is the optimizer for the step that makes the next version of v, where steps have been done before it. It is valid until
// the next call.
func (r *rule) at(v schema.Version, steps uint64) cuda.Optimizer {
	_, _ = v, steps // no kind depends on them yet
	return r.optimizer
}

// SlotBytes is what an optimizer keeps of a tensor, or of a table of so many rows: the slots' bytes, and a mark for each row
// where its first step differs.
func SlotBytes(o schema.Optimizer, rows, dim int64) (slots, marks int64) {
	r, err := newRule(o)
	if err != nil {
		return 0, 0
	}
	for _, s := range r.slots {
		slots += rows * int64(s.width(int(dim))) * valueBytes
	}
	if r.marks {
		marks = rows
	}
	return slots, marks
}

const valueBytes = 4
