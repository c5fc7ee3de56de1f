package state

import (
	"fmt"
	"math"
	"sync/atomic"

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

// SlotShape is a slot of an optimizer as snapshots have it, for who must know their sizes before the first piece comes.
type SlotShape struct {
	Name   string
	PerRow bool // one value a row of a table; of a dense parameter every slot has one an element
}

// Width is how many values of the slot a row of so many columns has.
func (s SlotShape) Width(columns int) int {
	if s.PerRow {
		return 1
	}
	return columns
}

// SlotsOf is the slots that pieces of a tensor with this optimizer have, in the optimizer's order; none of one that is
// not known.
//
//	SlotsOf(schema.Optimizer{Kind: schema.OptimizerSGD, Momentum: 0.9}) // []SlotShape{{Name: "momentum"}}
func SlotsOf(o schema.Optimizer) []SlotShape {
	r, err := newRule(o, nil, 0)
	if err != nil {
		return nil // registration refuses it
	}
	var shapes []SlotShape
	for _, s := range r.slots {
		shapes = append(shapes, SlotShape{s.name, s.perRow})
	}
	return shapes
}

// MarksRows says whether rows of a table with this optimizer have marks (Rows.Last).
func MarksRows(o schema.Optimizer) bool {
	r, err := newRule(o, nil, 0)
	return err == nil && (r.exact || r.marks)
}

// LRChanges is the changes of a job's learning rates while it runs, for all state of one member. They are set before a
// step of the first batch of a new one; steps of earlier batches may run at the same time. A nil *LRChanges is none.
type LRChanges struct {
	all atomic.Pointer[[]schema.LRChange]
}

// Set replaces the changes. They ascend by batch, and are not to be changed afterwards.
func (c *LRChanges) Set(changes []schema.LRChange) { c.all.Store(&changes) }

// scale is the factor for the step that makes the next version of v.
func (c *LRChanges) scale(v schema.Version) float32 {
	if c == nil {
		return 1
	}
	if all := c.all.Load(); all != nil {
		return schema.LRScale(*all, v)
	}
	return 1
}

// Norm is the norm of gradients that are clipped together: the root of the sum of all squares. Sums are float64, one
// after the other, of a tensor in blocks of normBlock values from its start, each from 0. So it depends on the order of
// the tensors, which the caller has from the manifest, and of rows, which is that of their keys, and not on chunks,
// trainers or shards.
type Norm struct{ squares float64 }

// normBlock is short enough that a sum of squares keeps 40 of its 53 bits.
const normBlock = 4096

// Add takes a tensor, or a row.
func (n *Norm) Add(values []float32) {
	for len(values) > 0 {
		block := values[:min(normBlock, len(values))]
		sum := 0.0
		for _, v := range block {
			sum += float64(v) * float64(v) // exact: twice 24 bits
		}
		n.squares, values = n.squares+sum, values[len(block):]
	}
}

// norm is that of all that was added.
func (n *Norm) norm() float64 { return math.Sqrt(n.squares) }

// Scale is by what every gradient is multiplied so that the norm is at most most: 1 where it is, elsewhere most/(norm +
// 1e-6) as torch.nn.utils.clip_grad_norm_ has it, rounded once. It is 0 where the norm is infinite or none.
func (n *Norm) Scale(most float32) float32 {
	switch scale := float64(most) / (n.norm() + 1e-6); {
	case scale >= 1:
		return 1
	case scale > 0:
		return float32(scale)
	}
	return 0
}

// NonFiniteError says that what was computed of finite gradients is not finite: a mean, a value, or what an optimizer
// keeps of one. It must not be published, whatever the job does about gradients that are not finite
// (schema.Job.OnNonfinite).
type NonFiniteError struct {
	name  string // of the value, for people
	value float32
}

// Error implements error. It begins with the reason that such gradients are refused for.
func (e *NonFiniteError) Error() string {
	return fmt.Sprintf("%v: %s would be %v, and all gradients were finite; begin with an earlier model, and lower the "+
		"learning rate or clip gradients", schema.ReasonNonFinite, e.name, e.value)
}

// CheckFinite looks for the first value that is not finite. name names it.
func CheckFinite(backend cuda.Backend, values []float32, name func(at int) string) error {
	if at := backend.FirstNonFinite(cuda.Float32s(values)); at >= 0 {
		return &NonFiniteError{name(at), values[at]}
	}
	return nil
}

// checkOutcome checks what a step, or an assignment, has made of a chunk: values and slots of its next version.
func (d *Dense) checkOutcome(i int, out []float32, slots bool) error {
	pieces := d.config.Chunks[i].Pieces
	name := func(at int) string {
		for _, p := range pieces {
			if at >= p.Offset && at < p.Offset+p.Elements {
				return fmt.Sprintf("parameter %q, element %d", p.Name, p.From+at-p.Offset)
			}
		}
		return fmt.Sprintf("chunk %d, element %d", i, at)
	}
	err := CheckFinite(d.config.Backend, out, name)
	c := &d.chunks[i]
	for s := 0; slots && s < len(c.rule.slots) && err == nil; s++ {
		next := c.kept[(c.version+1)%schema.Version(len(c.kept))]
		err = CheckFinite(d.config.Backend, next[s],
			func(at int) string { return fmt.Sprintf("%s of %s", c.rule.slots[s].name, name(at)) })
	}
	return err
}

// checkOutcome checks what was made of the rows of keys, and of their slots, before it takes their place.
func (t *Array) checkOutcome(keys []uint64, slots bool) error {
	name := func(at, width int) string {
		return fmt.Sprintf("table %q, row %d, column %d", t.config.Spec.Name, keys[at/width], t.config.Column+at%width)
	}
	err := CheckFinite(t.config.Backend, t.outcome.rows, func(at int) string { return name(at, t.dim) })
	for i := 0; slots && i < len(t.rule.slots) && err == nil; i++ {
		s := t.rule.slots[i]
		err = CheckFinite(t.config.Backend, t.outcome.slots[i],
			func(at int) string { return fmt.Sprintf("%s of %s", s.name, name(at, s.width(t.dim))) })
	}
	return err
}

// checkRows checks rows of the table.
func (t *Array) checkRows(places []int64) error {
	for _, at := range places {
		row := t.row(int(at))
		for i, v := range row {
			if v-v != 0 { // NaN and infinities
				return &NonFiniteError{fmt.Sprintf("table %q, row %d, column %d", t.config.Spec.Name, t.places.key(int(at)),
					t.config.Column+i), v}
			}
		}
	}
	return nil
}
