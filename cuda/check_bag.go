package cuda

import "fmt"

// pooling is what BagForward and BagBackward have in common.
type pooling struct {
	op                            string
	dim                           int
	mode                          Mode
	padding, limit                int64 // ids are in [0, limit)
	skip, open                    bool
	ids, offsets, weights, argmax Vector
}

// bags is their number.
func (p *pooling) bags() int {
	if p.open {
		return p.offsets.n
	}
	return p.offsets.n - 1
}

// shape checks everything but the rows.
func (p *pooling) shape() error {
	if err := checkDim(p.op, p.dim); err != nil {
		return err
	}
	if p.mode > Max {
		return fmt.Errorf("%s: %w: mode %d is neither sum (0) nor mean (1) nor max (2)", p.op, ErrUnsupported, p.mode)
	}
	if p.padding < NoPadding {
		return argumentError(p.op, "padding id %d (-1 for none)", p.padding)
	}
	if p.weights.n > 0 && p.mode != Sum {
		return argumentError(p.op, "weights with mode %d: only a sum (0) has weights", p.mode)
	}
	if p.argmax.n > 0 && p.mode != Max {
		return argumentError(p.op, "argmax with mode %d: only the maximum (2) has one", p.mode)
	}
	if err := firstOf(typed(p.op, "ids", p.ids, indexes), typed(p.op, "offsets", p.offsets, indexes),
		typed(p.op, "weights", p.weights, only(Float32)), typed(p.op, "argmax", p.argmax, only(Int32)),
		checkFew(p.op, "ids", p.ids.n)); err != nil {
		return err
	}
	if p.offsets.n == 0 && (!p.open || p.ids.n > 0) {
		return shapeError(p.op, "no offsets, want one more than bags, or one a bag where they are open")
	}
	if p.weights.n > 0 && p.weights.n != p.ids.n {
		return shapeError(p.op, "%d weights, want %d, the number of ids", p.weights.n, p.ids.n)
	}
	if p.argmax.n > 0 {
		return exactRows(p.op, "argmax", p.argmax.n, p.bags(), p.dim)
	}
	return nil
}

// data: offsets, then ids.
func (p *pooling) data() error {
	var err error
	switch {
	case p.offsets.n == 0:
	case p.offsets.dtype == Int32:
		err = checkOffsets(p, view[int32](p.offsets))
	default:
		err = checkOffsets(p, view[int64](p.offsets))
	}
	if err != nil || p.skip {
		return err
	}
	return checkIDs(p.op, p.ids, p.limit, p.padding)
}

// checkOffsets: the first 0, never falling, the last the number of ids, or, where they are open, not beyond it.
func checkOffsets[T int32 | int64](p *pooling, offsets []T) error {
	if offsets[0] != 0 {
		return shapeError(p.op, "offsets start at %d, want 0", offsets[0])
	}
	for i := 1; i < len(offsets); i++ {
		if offsets[i] < offsets[i-1] {
			return shapeError(p.op, "offsets fall from %d to %d at %d", offsets[i-1], offsets[i], i)
		}
	}
	if last := int64(offsets[len(offsets)-1]); last != int64(p.ids.n) && (!p.open || last > int64(p.ids.n)) {
		return shapeError(p.op, "offsets end at %d, want %d, the number of ids", last, p.ids.n)
	}
	return nil
}

func (a *BagForward) pooling() pooling {
	return pooling{"bag forward", a.Dim, a.Mode, a.Padding, int64(a.Rows.n / max(a.Dim, 1)), a.SkipBadIDs, a.OpenOffsets,
		a.IDs, a.Offsets, a.Weights, a.ArgMax}
}

func (a *BagForward) shape() error {
	p := a.pooling()
	if err := p.shape(); err != nil {
		return err
	}
	if _, err := rowsOf(p.op, "rows", a.Rows.n, a.Dim); err != nil {
		return err
	}
	if err := firstOf(typed(p.op, "rows", a.Rows, floats), typed(p.op, "out", a.Out, float32Or(a.Rows)),
		exactRows(p.op, "out", a.Out.n, p.bags(), a.Dim)); err != nil {
		return err
	}
	if err := apart(p.op, "out", a.Out, a.Rows, a.IDs, a.Offsets, a.Weights, a.ArgMax); err != nil {
		return err
	}
	return apart(p.op, "argmax", a.ArgMax, a.Rows, a.IDs, a.Offsets, a.Weights)
}

func (a *BagForward) data() error {
	p := a.pooling()
	return p.data()
}

func (a *BagForward) check() error {
	if err := a.shape(); err != nil {
		return err
	}
	return a.data()
}

func (a *BagBackward) pooling() pooling {
	return pooling{"bag backward", a.Dim, a.Mode, a.Padding, a.R, a.SkipBadIDs, a.OpenOffsets, a.IDs, a.Offsets,
		a.Weights, a.ArgMax}
}

func (a *BagBackward) shape() error {
	p := a.pooling()
	if err := p.shape(); err != nil {
		return err
	}
	if a.R < 0 {
		return shapeError(p.op, "%d rows", a.R)
	}
	if err := firstOf(typed(p.op, "grad out", a.GradOut, floats), typed(p.op, "keys", a.Keys, only(Int64)),
		typed(p.op, "out", a.Out, float32Or(a.GradOut)), exactRows(p.op, "grad out", a.GradOut.n, p.bags(), a.Dim),
		roomFor(p.op, a.Keys.n, a.Out.n, a.Dim)); err != nil {
		return err
	}
	if a.Mode == Max {
		if err := exactRows(p.op, "argmax", a.ArgMax.n, p.bags(), a.Dim); err != nil {
			return err
		}
	}
	if err := apart(p.op, "out", a.Out, a.GradOut, a.IDs, a.Offsets, a.Weights, a.ArgMax, a.Keys); err != nil {
		return err
	}
	return apart(p.op, "keys", a.Keys, a.GradOut, a.IDs, a.Offsets, a.Weights, a.ArgMax)
}

func (a *BagBackward) data() error {
	p := a.pooling()
	return p.data()
}

func (a *BagBackward) check() error {
	if err := a.shape(); err != nil {
		return err
	}
	return a.data()
}
