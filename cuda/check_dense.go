package cuda

import (
	"fmt"

	"gradbus/lane"
)

func (a *ApplyDense) check() error {
	const op = "apply dense"
	if err := checkSGD(op, a.SGD, a.Weight); err != nil {
		return err
	}
	n := len(a.Param)
	if len(a.Grad) != n || len(a.Out) != n {
		return shapeError(op, "param has %d values, grad %d, out %d: want them equal", n, len(a.Grad), len(a.Out))
	}
	if a.SGD.Momentum == 0 {
		if a.Momentum != nil || a.OutMomentum != nil {
			return shapeError(op, "momentum is 0, so momentum and out momentum must be nil")
		}
	} else if len(a.Momentum) != n || len(a.OutMomentum) != n {
		return shapeError(op, "momentum has %d values, out momentum %d: want %d", len(a.Momentum), len(a.OutMomentum), n)
	}
	if !same(a.Out, a.Param) {
		if err := apart(op, "out", a.Out, a.Param); err != nil {
			return err
		}
	}
	if !same(a.OutMomentum, a.Momentum) {
		if err := apart(op, "out momentum", a.OutMomentum, a.Momentum); err != nil {
			return err
		}
	}
	if err := apart(op, "out", a.Out, a.Grad, a.Momentum, a.OutMomentum); err != nil {
		return err
	}
	return apart(op, "out momentum", a.OutMomentum, a.Grad, a.Param)
}

func (a *Average) check() error {
	const op = "average"
	if !finite(a.Weight) || a.Weight <= 0 {
		return fmt.Errorf("%s: %w: weight %v, want a finite number above 0", op, ErrArgument, a.Weight)
	}
	if len(a.Terms) == 0 {
		return shapeError(op, "no terms: a round without a term has no average")
	}
	if err := checkNodes(op, a.Lanes, func(i int) lane.Node { return a.Terms[i].node() }, len(a.Terms)); err != nil {
		return err
	}
	for i := range a.Terms {
		v := a.Terms[i].Values
		if len(v) != len(a.Out) {
			return shapeError(op, "term %d has %d values, out %d", i, len(v), len(a.Out))
		}
		if !same(v, a.Out) && overlaps(v, a.Out) {
			return fmt.Errorf("%s: %w: out is shifted against term %d", op, ErrOverlap, i)
		}
	}
	return nil
}

// extent refuses a matrix that does not have rows x cols values.
func extent(op, name string, n, rows, cols int) error {
	if rows < 0 || cols < 0 || rows > 1<<31 || cols > 1<<31 {
		return shapeError(op, "%s is %d x %d", name, rows, cols)
	}
	if n != rows*cols {
		return shapeError(op, "%s has %d values, want %d x %d", name, n, rows, cols)
	}
	return nil
}

func (a *MatMul) check() error {
	const op = "matmul"
	if err := extent(op, "a", len(a.A), a.M, a.K); err != nil {
		return err
	}
	if err := extent(op, "b", len(a.B), a.K, a.N); err != nil {
		return err
	}
	if err := extent(op, "c", len(a.C), a.M, a.N); err != nil {
		return err
	}
	if a.Bias != nil && len(a.Bias) != a.N {
		return shapeError(op, "bias has %d values, want %d", len(a.Bias), a.N)
	}
	return apart(op, "c", a.C, a.A, a.B, a.Bias)
}

func (a *SoftmaxCrossEntropy) shape() (samples int, err error) {
	const op = "softmax cross entropy"
	if a.Classes < 1 || a.Classes > dimMax {
		return 0, shapeError(op, "%d classes, want 1 to %d", a.Classes, dimMax)
	}
	if samples, err = rowsOf(op, "logits", len(a.Logits), a.Classes); err != nil {
		return
	}
	if a.Loss != nil && len(a.Loss) != samples {
		return 0, shapeError(op, "loss has %d values, want %d", len(a.Loss), samples)
	}
	if a.Grad != nil && len(a.Grad) != len(a.Logits) {
		return 0, shapeError(op, "grad has %d values, want %d", len(a.Grad), len(a.Logits))
	}
	if a.Probabilities != nil && len(a.Probabilities) != len(a.Logits) {
		return 0, shapeError(op, "probabilities have %d values, want %d", len(a.Probabilities), len(a.Logits))
	}
	if (a.Targets != nil || a.Loss != nil || a.Grad != nil) && len(a.Targets) != samples {
		return 0, shapeError(op, "targets has %d values, want %d", len(a.Targets), samples)
	}
	if err = apart(op, "loss", a.Loss, a.Logits, a.Grad, a.Probabilities); err != nil {
		return
	}
	if err = apart(op, "grad", a.Grad, a.Logits, a.Probabilities); err != nil {
		return
	}
	return samples, apart(op, "probabilities", a.Probabilities, a.Logits)
}

func (a *SoftmaxCrossEntropy) check() (samples int, err error) {
	if samples, err = a.shape(); err != nil {
		return
	}
	for i, t := range a.Targets {
		if uint32(t) >= uint32(a.Classes) {
			return 0, &IDError{"softmax cross entropy", i, int64(t), int64(a.Classes)}
		}
	}
	return samples, nil
}
