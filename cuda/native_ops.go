//go:build native

package cuda

import (
	"cmp"
	"errors"
	"fmt"
)

// The operations, each one crossing into the library. Where the library refuses offsets, the check in Go runs once
// more, for its wording.

// BagForward: see the interface.
func (n *native) BagForward(a BagForward) error {
	if err := a.shape(); err != nil {
		return err
	}
	c := n.begin()
	e := n.encoding(c, 0)
	e.bagForward(&a)
	if _, err := n.run(c, &e, a.Report); err != nil {
		return inGo(err, a.data)
	}
	return nil
}

// BagBackward: see the interface.
func (n *native) BagBackward(a BagBackward) (int, error) {
	if err := a.shape(); err != nil {
		return 0, err
	}
	c := n.begin()
	e := n.encoding(c, 0)
	e.bagBackward(&a)
	count, err := n.run(c, &e, a.Report)
	if err != nil {
		return 0, inGo(err, a.data)
	}
	return count, nil
}

// Coalesce: see the interface.
func (n *native) Coalesce(a Coalesce) (int, error) {
	if err := a.shape(); err != nil {
		return 0, err
	}
	c := n.begin()
	e := n.encoding(c, 0)
	e.coalesce(&a)
	return n.run(c, &e, nil)
}

// Merge: see the interface.
func (n *native) Merge(a Merge) (int, error) {
	if err := a.shape(); err != nil {
		return 0, err
	}
	c := n.begin()
	e := n.encoding(c, rowsTermBytes(a.Terms))
	e.merge(&a)
	return n.run(c, &e, nil)
}

// ApplyRows: see the interface.
func (n *native) ApplyRows(a ApplyRows) error {
	if err := a.shape(); err != nil {
		return err
	}
	c := n.begin()
	e := n.encoding(c, 0)
	e.applyRows(&a)
	_, err := n.run(c, &e, a.Report)
	return err
}

// CoalesceApply: see the interface.
func (n *native) CoalesceApply(a CoalesceApply) (int, error) {
	if err := a.shape(); err != nil {
		return 0, err
	}
	c := n.begin()
	e := n.encoding(c, 0)
	e.coalesceApply(&a)
	return n.run(c, &e, a.Report)
}

// ApplyDense: see the interface.
func (n *native) ApplyDense(a ApplyDense) error {
	if err := a.shape(); err != nil {
		return err
	}
	c := n.begin()
	e := n.encoding(c, 0)
	e.applyDense(&a)
	_, err := n.run(c, &e, a.Report)
	return err
}

// Average: see the interface.
func (n *native) Average(a Average) error {
	if err := a.shape(); err != nil {
		return err
	}
	c := n.begin()
	e := n.encoding(c, termBytes(a.Terms))
	e.average(&a)
	_, err := n.run(c, &e, nil)
	return err
}

// AverageApply: see the interface.
func (n *native) AverageApply(a AverageApply) error {
	if err := a.shape(); err != nil {
		return err
	}
	c := n.begin()
	e := n.encoding(c, termBytes(a.Terms))
	e.averageApply(&a)
	_, err := n.run(c, &e, a.Report)
	return err
}

// MatMul: see the interface.
func (n *native) MatMul(a MatMul) error {
	if err := a.shape(); err != nil {
		return err
	}
	c := n.begin()
	e := n.encoding(c, 0)
	e.matMul(&a)
	_, err := n.run(c, &e, nil)
	return err
}

// SoftmaxCrossEntropy: see the interface.
func (n *native) SoftmaxCrossEntropy(a SoftmaxCrossEntropy) error {
	if err := a.shape(); err != nil {
		return err
	}
	c := n.begin()
	e := n.encoding(c, 0)
	e.softmaxCrossEntropy(&a)
	_, err := n.run(c, &e, nil)
	return err
}

// Gather: see the interface. A backend with a device lacks it: what lies in the host's memory is no business of a
// device.
func (n *native) Gather(a Gather) error {
	if n.cpu != nil && !n.lost.Load() {
		return n.cpu.Gather(a)
	}
	if n.lost.Load() {
		return fmt.Errorf("gather: %w before", ErrDevice)
	}
	if !n.gathers {
		return a.inGo()
	}
	if err := a.shape(); err != nil {
		return err
	}
	c := n.begin()
	e := n.encoding(c, 0)
	e.gather(&a)
	if _, err := n.run(c, &e, nil); err != nil {
		return inGo(err, a.data)
	}
	return nil
}

// Copy: see the interface.
func (n *native) Copy(to, from Vector) error {
	if err := copyShape(to, from); err != nil {
		return err
	}
	c := n.begin()
	e := n.encoding(c, 0)
	e.copy(to, from)
	_, err := n.run(c, &e, nil)
	return err
}

// FirstNonFinite: see the interface. There is nowhere to report a failed device, so then Go looks; and it always does
// at 16-bit values, which it reads four at a time.
func (n *native) FirstNonFinite(values Vector) int {
	if values.dtype == Float16 || values.dtype == BFloat16 {
		return firstNonFinite16(values)
	}
	c := n.begin()
	e := n.encoding(c, 0)
	e.firstNonFinite(values)
	if _, err := n.cross(c, &e); err != nil {
		n.calls.Put(c)
		return firstNonFinite(view[float32](values))
	}
	at := int(e.report().position)
	n.calls.Put(c)
	return at
}

// inGo words an error of the library's checks of data as Go's checks do.
func inGo(err error, data func() error) error {
	if errors.Is(err, ErrShape) || errors.Is(err, ErrID) {
		return cmp.Or(data(), err)
	}
	return err
}
