package nn

import (
	"errors"
	"math"
	"testing"
)

// The examples of the comments.
func TestLossesByHand(t *testing.T) {
	y, target, grad := []float32{1, -2}, []float32{0, 0}, make([]float32, 2)
	if loss, err := L1(y, target, grad, 2); err != nil || loss != 1.5 {
		t.Errorf("l1 = %v, %v", loss, err)
	}
	wantValues(t, "l1 gradient", grad, []float32{0.5, -0.5})
	if loss, err := L1(y, y, grad, 1); err != nil || loss != 0 {
		t.Errorf("l1 of equals = %v, %v", loss, err)
	}
	wantValues(t, "l1 gradient of equals", grad, []float32{0, 0})
	if loss, err := MSE(y, target, grad, 2); err != nil || loss != 2.5 {
		t.Errorf("mse = %v, %v", loss, err)
	}
	wantValues(t, "mse gradient", grad, []float32{1, -2})
	if loss, err := NLL([]float32{-1, -0.5}, 2, []int32{1}, grad); err != nil || loss != 0.5 {
		t.Errorf("nll = %v, %v", loss, err)
	}
	wantValues(t, "nll gradient", grad, []float32{0, -1})
	if _, err := L1([]float32{float32(math.NaN())}, []float32{0}, grad[:1], 1); err != nil ||
		!math.IsNaN(float64(grad[0])) {
		t.Errorf("l1 gradient of NaN = %v, %v", grad[0], err)
	}
}

func TestLossesRefuse(t *testing.T) {
	f := func(n int) []float32 { return make([]float32, n) }
	grad := []float32{7, 7}
	_, short := L1(f(2), f(1), f(2), 1)
	_, narrow := MSE(f(2), f(2), f(1), 1)
	_, zero := MSE(f(2), f(2), f(2), 0)
	_, infinite := L1(f(2), f(2), f(2), float32(math.Inf(1)))
	_, classes := NLL(f(3), 2, []int32{0}, f(2))
	_, above := NLL(f(2), 2, []int32{2}, grad)
	_, below := NLL(f(2), 2, []int32{-1}, grad)
	for i, err := range []error{short, narrow, zero, infinite, classes, above, below} {
		if !errors.Is(err, ErrShape) {
			t.Errorf("%d: %v, want ErrShape", i, err)
		}
	}
	wantValues(t, "gradient of refused targets", grad, []float32{7, 7})
}
