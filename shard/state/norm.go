package state

import "math"

// Norm is the norm of gradients that are clipped together: the root of the sum of all squares. Sums are float64, one
// after the other, of a tensor in blocks of normBlock values from its start, each from 0. So it depends on the order of
// the tensors, which the caller has from the manifest, and of rows, which is that of their keys, and not on chunks,
// trainers or shards.
type Norm struct{ squares float64 }

// normBlock is short enough that a sum of squares keeps 40 of its 53 bits.
const normBlock = 4096

// Add takes a tensor, or a row.
func (n *Norm) Add(values []float32) {
	for len(values) > 0 {
		block := values[:min(normBlock, len(values))]
		sum := 0.0
		for _, v := range block {
			sum += float64(v) * float64(v) // exact: twice 24 bits
		}
		n.squares, values = n.squares+sum, values[len(block):]
	}
}

// norm is that of all that was added.
func (n *Norm) norm() float64 { return math.Sqrt(n.squares) }

// Scale is by what every gradient is multiplied so that the norm is at most most: 1 where it is, elsewhere most/(norm +
// 1e-6) as torch.nn.utils.clip_grad_norm_ has it, rounded once. It is 0 where the norm is infinite or none.
func (n *Norm) Scale(most float32) float32 {
	switch scale := float64(most) / (n.norm() + 1e-6); {
	case scale >= 1:
		return 1
	case scale > 0:
		return float32(scale)
	}
	return 0
}
