package nn

import (
	"fmt"
	"math"

	"gradbus/cuda"
)

// CrossEntropy computes softmax cross-entropy over a number of classes.
type CrossEntropy struct {
	classes int

	backend cuda.Backend
	losses  []float32
}

// NewCrossEntropy returns a loss for a number of classes; it panics if that is below 1.
func NewCrossEntropy(backend cuda.Backend, classes int) *CrossEntropy {
	if classes < 1 {
		panic(fmt.Sprintf("nn: cross-entropy over %d classes", classes))
	}
	return &CrossEntropy{classes: classes, backend: backend}
}

// Loss returns the sum over the samples of -log softmax(logits)[target], and writes its gradient with respect to the
// logits, softmax - onehot, to grad; neither is divided. logits and grad are [n, Classes], targets [n] in [0, Classes).
// grad may not overlap logits. The losses are float32 each and added up in float64, sample after sample. It fails with
// ErrShape, or with an error of the backend.
//
//	logits = {{0, 0}}, targets = {1}   ->   0.6931472, grad = {{0.5, -0.5}}
func (c *CrossEntropy) Loss(logits []float32, targets []int32, grad []float32) (float64, error) {
	n := len(targets)
	if err := want("logits", logits, n, c.classes); err != nil {
		return 0, fmt.Errorf("cross-entropy: %w", err)
	}
	if err := want("grad", grad, n, c.classes); err != nil {
		return 0, fmt.Errorf("cross-entropy: %w", err)
	}
	c.losses = grown(c.losses, n)
	err := c.backend.SoftmaxCrossEntropy(cuda.SoftmaxCrossEntropy{Classes: c.classes, Logits: cuda.Float32s(logits),
		Targets: cuda.Int32s(targets), Loss: cuda.Float32s(c.losses), Grad: cuda.Float32s(grad)})
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, l := range c.losses {
		sum += float64(l)
	}
	return sum, nil
}

// Probabilities writes softmax(logits) to out; both are [n, Classes] and may not overlap. It fails with ErrShape, or
// with an error of the backend.
//
//	logits = {{0, 0}}   ->   out = {{0.5, 0.5}}
func (c *CrossEntropy) Probabilities(logits, out []float32) error {
	n := len(logits) / c.classes
	if err := want("logits", logits, n, c.classes); err != nil {
		return fmt.Errorf("softmax: %w", err)
	}
	if err := want("out", out, n, c.classes); err != nil {
		return fmt.Errorf("softmax: %w", err)
	}
	return c.backend.SoftmaxCrossEntropy(cuda.SoftmaxCrossEntropy{Classes: c.classes,
		Logits: cuda.Float32s(logits), Probabilities: cuda.Float32s(out)})
}

// L1 returns the sum of |y - target| over all elements, divided by divisor, and writes its gradient, sign(y - target) /
// divisor, to grad; for two equal values it is 0. y, target and grad have the same length, and grad may be y. L1 does
// not divide by the number of samples: the caller that knows the weight of the whole batch does that, once. So a job
// with divisor the number of elements of a sample computes PyTorch's l1_loss with reduction "mean"; with 1 it computes
// the sum. Losses are added up in float64, element after element. It fails with ErrShape.
//
//	y = {1, -2}, target = {0, 0}, divisor 2   ->   1.5, grad = {0.5, -0.5}
func L1(y, target, grad []float32, divisor float32) (float64, error) {
	if err := elementwise("l1", y, target, grad, divisor); err != nil {
		return 0, err
	}
	// The sign is copied bit by bit: a branch would be mispredicted half of the time.
	sum, step := 0.0, math.Float32bits(1/divisor)
	y, grad = y[:len(target)], grad[:len(target)]
	for i, t := range target {
		d := y[i] - t
		sum += math.Abs(float64(d))
		g := math.Float32frombits(math.Float32bits(d)&(1<<31) | step)
		if d == 0 || math.IsNaN(float64(d)) {
			g = d
		}
		grad[i] = g
	}
	return sum / float64(divisor), nil
}

// MSE returns the sum of (y - target)^2 over all elements, divided by divisor, and writes its gradient, 2 (y - target)
// / divisor, to grad. Lengths, aliasing, sums and errors are as for L1. The gradient is the difference times 2/divisor,
// rounded once.
//
//	y = {1, -2}, target = {0, 0}, divisor 2   ->   2.5, grad = {1, -2}
func MSE(y, target, grad []float32, divisor float32) (float64, error) {
	if err := elementwise("mse", y, target, grad, divisor); err != nil {
		return 0, err
	}
	sum, scale := 0.0, 2/divisor
	for i, t := range target {
		d := y[i] - t
		sum += float64(float64(d) * float64(d))
		grad[i] = d * scale
	}
	return sum / float64(divisor), nil
}

// NLL returns the sum over the samples of -y[target], for y [n, classes] from logSoftmax and targets [n] in [0,
// classes), and writes its gradient with respect to y, -onehot, to grad [n, classes], which may not overlap y. It does
// not divide: the caller that knows the weight of the whole batch does that, once. It fails with ErrShape, also for a
// target out of range, which it names; then nothing is written.
//
//	y = {{-1, -0.5}}, targets = {1}   ->   0.5, grad = {{0, -1}}
func NLL(y []float32, classes int, targets []int32, grad []float32) (float64, error) {
	n := len(targets)
	if err := firstError(want("y", y, n, classes), want("grad", grad, n, classes)); err != nil {
		return 0, fmt.Errorf("nll: %w", err)
	}
	for i, t := range targets {
		if t < 0 || int(t) >= classes {
			return 0, fmt.Errorf("nll: %w: target %d of sample %d: want 0 to %d", ErrShape, t, i, classes-1)
		}
	}
	sum := 0.0
	clear(grad)
	for i, t := range targets {
		sum -= float64(y[i*classes+int(t)])
		grad[i*classes+int(t)] = -1
	}
	return sum, nil
}

func elementwise(loss string, y, target, grad []float32, divisor float32) error {
	if len(target) != len(y) || len(grad) != len(y) {
		return fmt.Errorf("%s: %w: y has %d values, target %d, grad %d: want as many", loss, ErrShape, len(y),
			len(target), len(grad))
	}
	if !(divisor > 0) || math.IsInf(float64(divisor), 0) {
		return fmt.Errorf("%s: %w: divisor %v: want a finite number above 0", loss, ErrShape, divisor)
	}
	return nil
}
