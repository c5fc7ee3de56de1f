package average

import "math"

// negativeLogarithm is -log y[target], summed up over the samples in their order, for probabilities y: what remains of
// cross-entropy where the softmax is not taken twice. A target's probability below the smallest normal number counts as
// that, so that the gradient is finite.
//
//	y = {{0.25, 0.75}}, targets = {1}   ->   0.2876821, grad = {{0, -1.3333334}}
func negativeLogarithm(m *model, y []float32, targets []int32, grad []float32) (float64, error) {
	const least = 0x1p-126
	sum := 0.0
	clear(grad)
	for i, t := range targets {
		at := i*m.classes + int(t)
		p := max(y[at], least)
		sum -= math.Log(float64(p))
		grad[at] = -1 / p
	}
	return sum, nil
}
