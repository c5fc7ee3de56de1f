package state

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/schema"
)

// rule is an optimizer of a manifest, made ready for the kernels. It is the one place that knows which optimizer of
// package cuda a kind is, what it keeps and how its numbers change from version to version. A rule belongs to one table
// or chunk and is not safe for concurrent use: at changes it in place, so that a batch allocates nothing.
type rule struct {
	named   schema.Optimizer
	slots   []slotShape
	initial float32 // of every value of every slot
	changes *LRChanges
	start   schema.Version // schedules count from it
	marks   bool           // the first step of a value or row differs from the others
	exact   bool           // a row that sits a step out has to make up for it
	clip    cuda.Clip      // by value or by the norm of a row; that of all gradients is a factor of each step

	optimizer cuda.Optimizer // points to the one below that the kind names
	sgd       cuda.SGD
	adagrad   cuda.Adagrad
	rowwise   cuda.RowwiseAdagrad
	adam      cuda.Adam
	adamw     cuda.AdamW
	ftrl      cuda.FTRL
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
func newRule(o schema.Optimizer, changes *LRChanges, start schema.Version) (*rule, error) {
	o = o.WithDefaults()
	r := &rule{named: o, initial: o.InitialAccumulator, changes: changes, start: start}
	switch o.Kind {
	case schema.OptimizerSGD:
		r.sgd = cuda.SGD{Momentum: o.Momentum, Dampening: o.Dampening, WeightDecay: o.WeightDecay, Nesterov: o.Nesterov}
		r.optimizer, r.marks = &r.sgd, o.Momentum != 0
		r.exact = o.Exact && (o.Momentum != 0 || o.WeightDecay != 0) // else a gradient of zero moves nothing
	case schema.OptimizerAdagrad:
		r.adagrad = cuda.Adagrad{Eps: o.Eps, WeightDecay: o.WeightDecay}
		r.optimizer = &r.adagrad
	case schema.OptimizerRowwiseAdagrad:
		r.rowwise = cuda.RowwiseAdagrad{Eps: o.Eps, WeightDecay: o.WeightDecay}
		r.optimizer = &r.rowwise
	case schema.OptimizerAdam:
		r.adam = cuda.Adam{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay}
		r.optimizer = &r.adam
	case schema.OptimizerAdamW:
		r.adamw = cuda.AdamW{Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay}
		r.optimizer = &r.adamw
	case schema.OptimizerFTRL:
		r.ftrl = cuda.FTRL{Beta: o.Beta, L1: o.L1, L2: o.L2}
		r.optimizer = &r.ftrl
	default:
		return nil, fmt.Errorf("optimizer %q is not known", o.Kind)
	}
	switch c := o.Clip; {
	case c == nil:
	case c.Kind == schema.ClipValue:
		r.clip = cuda.Clip{Kind: cuda.ClipValue, By: c.Max}
	case c.Kind == schema.ClipRow:
		r.clip = cuda.Clip{Kind: cuda.ClipRow, By: c.Max}
	}
	for _, name := range r.at(0, 0).SlotNames() {
		r.slots = append(r.slots, slotShape{name: name, perRow: o.Kind == schema.OptimizerRowwiseAdagrad})
	}
	return r, nil
}

// at is the optimizer for the step that makes the next version of v, where steps have been done before it. It is valid
// until the next call.
func (r *rule) at(v schema.Version, steps uint64) cuda.Optimizer {
	lr := r.named.Rate(uint64(max(v, r.start)-r.start)) * r.changes.scale(v)
	r.sgd.LR, r.adagrad.LR, r.rowwise.LR, r.adam.LR, r.adamw.LR, r.ftrl.LR = lr, lr, lr, lr, lr, lr
	r.adam.Step, r.adamw.Step = steps+1, steps+1
	return r.optimizer
}

// clipped is how the gradient of a step is bounded: as the optimizer says, or by a factor that follows from all
// gradients.
func (r *rule) clipped(scale float32) cuda.Clip {
	if scale == 1 {
		return r.clip
	}
	return cuda.Clip{Kind: cuda.ClipScale, By: scale}
}

// SlotBytes is what an optimizer keeps of a tensor, or of a table of so many rows: the bytes of its slots, and those
// that tell which steps a row has had, or whether it is drawn.
func SlotBytes(o schema.Optimizer, rows, dim int64) (slots, marks int64) {
	r, err := newRule(o, nil, 0)
	if err != nil {
		return 0, 0 // registration refuses it
	}
	for _, s := range r.slots {
		slots += rows * int64(s.width(int(dim))) * valueBytes
	}
	marks = drawnBytes(rows, dim)
	switch {
	case r.exact:
		marks += rows * stepBytes
	case r.marks:
		marks += rows
	}
	return slots, marks
}

const (
	valueBytes = 4
	stepBytes  = 8
)
