package state

import (
	"fmt"
	"math"
	"sync/atomic"

	"gradbus/cuda"
	"gradbus/schema"
)

// rule is a manifest's optimizer, prepared for the kernels. It alone knows which optimizer of package cuda belongs to a
// kind, what it stores and how its numbers change from version to version. A rule belongs to one table or chunk and is
// not safe for concurrent use: at changes it in place, so that a batch allocates nothing.
type rule struct {
	named   schema.Optimizer
	slots   []slotShape
	initial float32 // of every value of every slot
	changes *LRChanges
	start   schema.Version // schedules count from it
	marks   bool           // the first step of a value or row differs from the others
	exact   bool           // a row that misses a step has to catch up on it
	clip    cuda.Clip      // by value or by the norm of a row; a clip of all gradients is a factor of each step

	optimizer cuda.Optimizer // points to the field below that the kind names
	sgd       cuda.SGD
	adagrad   cuda.Adagrad
	rowwise   cuda.RowwiseAdagrad
	adam      cuda.Adam
	adamw     cuda.AdamW
	ftrl      cuda.FTRL
}

// slotShape is a named state of an optimizer: one value for each value of the row or tensor, or one for each row.
type slotShape struct {
	name   string
	perRow bool
}

// width returns the number of values of the slot for a row of dim values.
func (s slotShape) width(dim int) int {
	if s.perRow {
		return 1
	}
	return dim
}

// newRule fails for a kind that Validate refuses. Zero fields of o get their defaults.
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

// at returns the optimizer of the step that makes the version after v, after a number of earlier steps. It is valid
// until the next call.
func (r *rule) at(v schema.Version, steps uint64) cuda.Optimizer {
	lr := r.named.Rate(uint64(max(v, r.start)-r.start)) * r.changes.scale(v)
	r.sgd.LR, r.adagrad.LR, r.rowwise.LR, r.adam.LR, r.adamw.LR, r.ftrl.LR = lr, lr, lr, lr, lr, lr
	r.adam.Step, r.adamw.Step = steps+1, steps+1
	return r.optimizer
}

// clipped returns how a step bounds its gradient: as the optimizer says, or by a factor that was computed from all
// gradients.
func (r *rule) clipped(scale float32) cuda.Clip {
	if scale == 1 {
		return r.clip
	}
	return cuda.Clip{Kind: cuda.ClipScale, By: scale}
}

// SlotBytes returns the bytes that an optimizer stores for a tensor or a table: those of its slots, and those of the
// marks of rows (their steps, and whether they are drawn).
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

// SlotShape is a slot of an optimizer in snapshots, for readers that need sizes before the first piece arrives.
type SlotShape struct {
	Name   string
	PerRow bool // one value for each row of a table; a dense parameter has one for each element
}

// Width returns the number of values of the slot for a row with a number of columns.
func (s SlotShape) Width(columns int) int {
	if s.PerRow {
		return 1
	}
	return columns
}

// SlotsOf returns the slots of a tensor's pieces with this optimizer, in the optimizer's order; none for an unknown
// kind.
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

// MarksRows reports whether rows of a table with this optimizer have marks (Rows.Last).
func MarksRows(o schema.Optimizer) bool {
	r, err := newRule(o, nil, 0)
	return err == nil && (r.exact || r.marks)
}

// LRChanges has the changes of a job's learning rates while it runs, for all state of one member. Set them before a
// step of the first batch of a new change; steps of earlier batches may run concurrently. A nil *LRChanges has none.
type LRChanges struct {
	all atomic.Pointer[[]schema.LRChange]
}

// Set replaces the changes. They ascend by batch, and must not be modified afterwards.
func (c *LRChanges) Set(changes []schema.LRChange) { c.all.Store(&changes) }

// scale returns the factor of the step that makes the version after v.
func (c *LRChanges) scale(v schema.Version) float32 {
	if c == nil {
		return 1
	}
	if all := c.all.Load(); all != nil {
		return schema.LRScale(*all, v)
	}
	return 1
}

// Norm computes the norm of gradients that are clipped together: the root of the sum of all squares. Sums are float64,
// one after the other, of a tensor in blocks of normBlock values from its start, each from 0. So the result depends
// only on the order of the tensors, which follows from the manifest, and of rows, which is that of their keys; not on
// chunks, trainers or shards.
type Norm struct{ squares float64 }

// normBlock is short enough that a sum of squares keeps 40 of its 53 bits.
const normBlock = 4096

// Add adds a tensor or a row.
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

// norm returns the norm of everything that was added.
func (n *Norm) norm() float64 { return math.Sqrt(n.squares) }

// Scale returns the factor that brings the norm to at most most: 1 if it already is, else most/(norm + 1e-6), as
// torch.nn.utils.clip_grad_norm_ computes it, rounded once. It is 0 if the norm is infinite or NaN.
func (n *Norm) Scale(most float32) float32 {
	switch scale := float64(most) / (n.norm() + 1e-6); {
	case scale >= 1:
		return 1
	case scale > 0:
		return float32(scale)
	}
	return 0
}

// NonFiniteError reports that a value computed from finite gradients is not finite: a mean, a parameter, or a slot of
// an optimizer. It must not be published, whatever the job does about gradients that are not finite
// (schema.Job.OnNonfinite).
type NonFiniteError struct {
	name  string // of the value, for people
	value float32
}

// Error implements error. It begins with the reason for which such gradients are refused.
func (e *NonFiniteError) Error() string {
	return fmt.Sprintf("%v: %s would be %v, and all gradients were finite; begin with an earlier model, and lower the "+
		"learning rate or clip gradients", schema.ReasonNonFinite, e.name, e.value)
}

// CheckFinite returns an error for the first value that is not finite. name returns the name of a value.
func CheckFinite(backend cuda.Backend, values []float32, name func(at int) string) error {
	if at := backend.FirstNonFinite(cuda.Float32s(values)); at >= 0 {
		return &NonFiniteError{name(at), values[at]}
	}
	return nil
}

// checkOutcome checks the values and slots of a chunk's next version.
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
		next := c.slotValues[(c.version+1)%schema.Version(len(c.slotValues))]
		err = CheckFinite(d.config.Backend, next[s],
			func(at int) string { return fmt.Sprintf("%s of %s", c.rule.slots[s].name, name(at)) })
	}
	return err
}

// checkOutcome checks new values of the rows of keys, and of their slots, before they replace the rows.
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
