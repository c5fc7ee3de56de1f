package state

import (
	"fmt"

	"gradbus/cuda"
	"gradbus/schema"
)

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
