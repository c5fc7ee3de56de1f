package cuda

import (
	"fmt"

	"gradbus/lane"
)

// checkTerms checks the terms of a sum along the lane tree; each has n values. It returns one of them, for its type.
func checkTerms(op string, lanes int, terms []Term, n int) (Vector, error) {
	if len(terms) == 0 {
		return Vector{}, shapeError(op, "no terms: a round without a term has no average")
	}
	if err := checkNodes(op, lanes, func(i int) lane.Node { return terms[i].node() }, len(terms)); err != nil {
		return Vector{}, err
	}
	like := terms[0].Values
	for i := range terms {
		v := terms[i].Values
		if v.n != n {
			return like, shapeError(op, "term %d has %d values, out %d", i, v.n, n)
		}
		if err := typed(op, "a term", v, floats&only(like.dtype)); err != nil {
			return like, err
		}
	}
	return like, nil
}

func (a *Average) shape() error {
	const op = "average"
	if err := checkDivisor(op, a.Weight, false); err != nil {
		return err
	}
	like, err := checkTerms(op, a.Lanes, a.Terms, a.Out.n)
	if err != nil {
		return err
	}
	types := float32Or(like)
	if like.dtype == Float32 {
		types = floats // one term of weight 1 rounds a tensor for storage
	}
	if err := typed(op, "out", a.Out, types); err != nil {
		return err
	}
	for i := range a.Terms {
		if v := a.Terms[i].Values; !v.is(a.Out) && overlaps(v, a.Out) {
			return fmt.Errorf("%s: %w: out is shifted against term %d", op, ErrOverlap, i)
		}
	}
	return nil
}

func (a *Average) check() error { return a.shape() }

func (a *AverageApply) shape() error {
	u := a.update()
	if err := u.dense(a.Dim); err != nil {
		return err
	}
	if _, err := checkTerms(u.op, a.Lanes, a.Terms, a.Param.n); err != nil {
		return err
	}
	for i := range a.Terms {
		if err := u.apart(a.Terms[i].Values); err != nil {
			return fmt.Errorf("term %d: %w", i, err)
		}
	}
	return nil
}

func (a *AverageApply) check() error { return a.shape() }

// extent refuses a matrix that does not have rows x cols values of float32.
func extent(op, name string, v Vector, rows, cols int) error {
	if rows < 0 || cols < 0 || rows > 1<<31 || cols > 1<<31 {
		return shapeError(op, "%s is %d x %d", name, rows, cols)
	}
	if v.n != rows*cols {
		return shapeError(op, "%s has %d values, want %d x %d", name, v.n, rows, cols)
	}
	return typed(op, name, v, only(Float32))
}

func (a *MatMul) shape() error {
	const op = "matmul"
	if err := firstOf(extent(op, "a", a.A, a.M, a.K), extent(op, "b", a.B, a.K, a.N), extent(op, "c", a.C, a.M, a.N),
		typed(op, "bias", a.Bias, only(Float32))); err != nil {
		return err
	}
	if a.Bias.n != 0 && a.Bias.n != a.N {
		return shapeError(op, "bias has %d values, want %d", a.Bias.n, a.N)
	}
	return apart(op, "c", a.C, a.A, a.B, a.Bias)
}

func (a *MatMul) check() error { return a.shape() }

func (a *SoftmaxCrossEntropy) shape() error {
	const op = "softmax cross entropy"
	if a.Classes < 1 || a.Classes > dimMax {
		return shapeError(op, "%d classes, want 1 to %d", a.Classes, dimMax)
	}
	samples, err := rowsOf(op, "logits", a.Logits.n, a.Classes)
	if err != nil {
		return err
	}
	for _, v := range [...]struct {
		name   string
		v      Vector
		n      int
		needed bool
		types  typeSet
	}{
		{"logits", a.Logits, a.Logits.n, true, only(Float32)},
		{"loss", a.Loss, samples, false, only(Float32)},
		{"grad", a.Grad, a.Logits.n, false, only(Float32)},
		{"probabilities", a.Probabilities, a.Logits.n, false, only(Float32)},
		{"targets", a.Targets, samples, a.Loss.n > 0 || a.Grad.n > 0, only(Int32)},
	} {
		if v.v.n != v.n && (v.v.n > 0 || v.needed) {
			return shapeError(op, "%s has %d values, want %d", v.name, v.v.n, v.n)
		}
		if err := typed(op, v.name, v.v, v.types); err != nil {
			return err
		}
	}
	if err := apart(op, "loss", a.Loss, a.Logits, a.Targets, a.Grad, a.Probabilities); err != nil {
		return err
	}
	if err := apart(op, "grad", a.Grad, a.Logits, a.Targets, a.Probabilities); err != nil {
		return err
	}
	return apart(op, "probabilities", a.Probabilities, a.Logits, a.Targets)
}

func (a *SoftmaxCrossEntropy) data() error {
	return checkIDs("softmax cross entropy", a.Targets, int64(a.Classes), NoPadding)
}

func (a *SoftmaxCrossEntropy) check() error {
	if err := a.shape(); err != nil {
		return err
	}
	return a.data()
}
