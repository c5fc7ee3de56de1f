package module

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"gradbus/cuda"
	"gradbus/nn"
	"gradbus/schema"
)

// tensors is the memory of all parameters of a module, or of their gradients: one block, in which each parameter begins
// at a multiple of 64 bytes, so that the optimizer runs over all of it in one call.
type tensors struct {
	flat  []float32
	parts [][]float32 // of each parameter, in the module's order
}

const tensorAlign = 16 // values

// aligned returns the number of values rounded up to the alignment.
func aligned(values int) int { return (values + tensorAlign - 1) / tensorAlign * tensorAlign }

func newTensors(parameters []nn.Parameter) *tensors {
	at, starts := 0, make([]int, len(parameters))
	for i, p := range parameters {
		starts[i] = at
		at += aligned(p.Elements())
	}
	room := make([]float32, at+tensorAlign)
	skip := 0
	for uintptr(unsafe.Pointer(unsafe.SliceData(room[skip:])))%(4*tensorAlign) != 0 {
		skip++
	}
	t := &tensors{flat: room[skip : skip+at : skip+at]}
	for i, p := range parameters {
		n := starts[i] + p.Elements()
		t.parts = append(t.parts, t.flat[starts[i]:n:n])
	}
	return t
}

// read copies values [offset, offset+len(to)) of all parameters laid end to end.
func (t *tensors) read(offset int, to []float32) {
	for _, p := range t.parts {
		if offset >= len(p) {
			offset -= len(p)
			continue
		}
		n := copy(to, p[offset:])
		if to, offset = to[n:], 0; len(to) == 0 {
			return
		}
	}
}

// version is the parameters of a module after a number of steps. It is not written while it has readers.
type version struct {
	*tensors
	number  schema.Version
	readers int // who pin it; the newest version counts as pinned once more
}

// pin returns the newest version, which does not change until unpin.
func (d *hosted) pin() *version {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.newest.readers++
	return d.newest
}

func (d *hosted) unpin(v *version) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unpinLocked(v)
}

func (d *hosted) unpinLocked(v *version) {
	if v == nil {
		return
	}
	if v.readers--; v.readers == 0 {
		d.idle = append(d.idle, v.tensors)
	}
}

// room returns uninitialized memory for parameters or gradients.
func (d *hosted) room() *tensors {
	d.mu.Lock()
	if n := len(d.idle); n > 0 {
		t := d.idle[n-1]
		d.idle[n-1], d.idle = nil, d.idle[:n-1]
		d.mu.Unlock()
		return t
	}
	d.mu.Unlock()
	return newTensors(d.parameters)
}

// step makes the next version from the newest one by the gradient sum, divided once by weight. Steps of a module are
// sequential.
func (d *hosted) step(sum *tensors, weight float64) (schema.Version, error) {
	d.stepLock.Lock()
	defer d.stepLock.Unlock()
	now, next := d.newest, d.room() // the step lock keeps others from replacing it
	d.next = next
	if err := d.state.Step(0, weight, sum.flat, 1); err != nil {
		d.giveBack(next)
		return 0, cuda.NameMismatch(err, func(e *cuda.MismatchError) string { return d.elementName(e.Position) })
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.newest = &version{tensors: next, number: now.number + 1, readers: 1}
	d.unpinLocked(now)
	return d.newest.number, nil
}

// elementName returns the name of a value by its position in tensors.
func (d *hosted) elementName(at int) string {
	for _, p := range d.parameters {
		switch {
		case at < p.Elements():
			return fmt.Sprintf("module %q, parameter %q, element %d", d.spec.Name, p.Name, at)
		case at < aligned(p.Elements()):
			return fmt.Sprintf("module %q, behind parameter %q", d.spec.Name, p.Name)
		}
		at -= aligned(p.Elements())
	}
	return fmt.Sprintf("module %q, behind all parameters", d.spec.Name)
}

func (d *hosted) giveBack(t *tensors) {
	if t == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idle = append(d.idle, t)
}

// net returns an unused net.
func (d *hosted) net() (*nn.Net, error) {
	d.mu.Lock()
	if n := len(d.nets); n > 0 {
		net := d.nets[n-1]
		d.nets = d.nets[:n-1]
		d.mu.Unlock()
		return net, nil
	}
	d.mu.Unlock()
	return nn.NewNet(d.module, slices.Clone(d.spec.In), d.env)
}

func (d *hosted) giveNet(n *nn.Net) {
	if n == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nets = append(d.nets, n)
}

// refusedBy returns the refusal for an error of a net or optimizer that the request caused, else nil.
func refusedBy(err error) *refusal {
	if bad, ok := errors.AsType[*cuda.NonFiniteError](err); ok {
		return schema.Refuse(schema.ReasonNonFinite,
			"the gradient of the parameters: %v; where the loss had been growing, a smaller learning rate helps", bad)
	}
	if errors.Is(err, nn.ErrShape) {
		return schema.Refuse(schema.ReasonWrongShape, "%v", err)
	}
	return nil
}
