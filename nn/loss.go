package nn

import (
	"fmt"

	"gradbus/cuda"
)

// CrossEntropy is softmax cross-entropy over a number of classes.
type CrossEntropy struct {
	classes int

	backend cuda.Backend
	losses  []float32
}

// NewCrossEntropy gives a loss for so many classes; it panics where there are none.
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
