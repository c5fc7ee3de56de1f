package cuda

import "math"

// The numbers are those of gradbus.h.
const (
	kindSGD      uint32 = 1
	kindAdagrad  uint32 = 2
	kindAdam     uint32 = 3
	slotsMax            = 2
	adagradParts        = 16 // partial sums of a row's squares
)

// SlotNames is "momentum", or nothing where Momentum is 0.
func (h SGD) SlotNames() []string { return hyperOfSGD(h).slotNames() }
func (h SGD) kind() uint32        { return kindSGD }

// SlotNames is "sum".
func (h RowwiseAdagrad) SlotNames() []string { return hyperOfAdagrad(h).slotNames() }
func (h RowwiseAdagrad) kind() uint32        { return kindAdagrad }

// SlotNames is "mean" and "square".
func (h Adam) SlotNames() []string { return hyperOfAdam(h).slotNames() }
func (h Adam) kind() uint32        { return kindAdam }

// hyper is the hyperparameters of any optimizer, so that the hot paths know one plain struct instead of an interface.
type hyper struct {
	kind                                              uint32
	lr, momentum, dampening, decay, eps, beta1, beta2 float32
	nesterov                                          bool
	step                                              uint64
	slots                                             int
	slot                                              [slotsMax]string // canonical order
	keep, keep1, keep2, rate, b2                      float32          // made from the others by derive
}

// hyperOf knows the optimizers of this package, as values and as pointers; it says false for others and for none.
func hyperOf(o Optimizer) (hyper, bool) {
	switch h := o.(type) {
	case SGD:
		return hyperOfSGD(h), true
	case RowwiseAdagrad:
		return hyperOfAdagrad(h), true
	case Adam:
		return hyperOfAdam(h), true
	case *SGD:
		if h != nil {
			return hyperOfSGD(*h), true
		}
	case *RowwiseAdagrad:
		if h != nil {
			return hyperOfAdagrad(*h), true
		}
	case *Adam:
		if h != nil {
			return hyperOfAdam(*h), true
		}
	}
	return hyper{}, false
}

func hyperOfSGD(h SGD) hyper {
	to := hyper{kind: kindSGD, lr: h.LR, momentum: h.Momentum, dampening: h.Dampening, decay: h.WeightDecay, nesterov: h.Nesterov}
	if h.Momentum != 0 {
		to.slots, to.slot[0] = 1, "momentum"
	}
	to.keep = float32(1) - h.Dampening
	return to
}

func hyperOfAdagrad(h RowwiseAdagrad) hyper {
	return hyper{kind: kindAdagrad, lr: h.LR, eps: h.Eps, decay: h.WeightDecay, slots: 1, slot: [slotsMax]string{"sum"}}
}

func hyperOfAdam(h Adam) hyper {
	to := hyper{kind: kindAdam, lr: h.LR, beta1: h.Beta1, beta2: h.Beta2, eps: h.Eps, decay: h.WeightDecay, step: h.Step,
		slots: 2, slot: [slotsMax]string{"mean", "square"}}
	to.keep1, to.keep2 = float32(1)-h.Beta1, float32(1)-h.Beta2
	b1 := float32(1 - power(h.Beta1, h.Step))
	to.rate, to.b2 = h.LR/b1, float32(math.Sqrt(1-power(h.Beta2, h.Step)))
	return to
}

// power is b^n by repeated squaring in float64. The conversions keep products from being fused with what follows.
func power(b float32, n uint64) float64 {
	r := 1.0
	for f := float64(b); n > 0; n >>= 1 {
		if n&1 > 0 {
			r = float64(r * f)
		}
		f = float64(f * f)
	}
	return r
}

func (h hyper) slotNames() []string {
	if h.slots == 0 {
		return nil
	}
	return append([]string(nil), h.slot[:h.slots]...)
}

// rowwise reports whether the optimizer's slot has one value a row.
func (h *hyper) rowwise() bool { return h.kind == kindAdagrad }

func (h *hyper) finite() bool {
	return finite(h.lr) && finite(h.momentum) && finite(h.dampening) && finite(h.decay) && finite(h.eps)
}

// move is the update of one run of values, for row-wise optimizers one row: from p and the slots to out and outSlots,
// which may be the same memory.
func (h *hyper) move(first bool, weight float32, p, g, out []float32, slots, outSlots *[slotsMax][]float32) {
	switch h.kind {
	case kindSGD:
		h.moveSGD(first, weight, p, g, slots[0], out, outSlots[0])
	case kindAdagrad:
		outSlots[0][0] = h.moveAdagrad(weight, p, g, slots[0][0], out)
	case kindAdam:
		h.moveAdam(weight, p, g, slots[0], slots[1], out, outSlots[0], outSlots[1])
	}
}

// moveSGD: momentum is off where m is nil; the weight decay is left out where it is 0, so that parameters which are not
// finite do not spread through 0 * p.
func (h *hyper) moveSGD(first bool, weight float32, p, g, m, out, outM []float32) {
	g, out = g[:len(p)], out[:len(p)]
	lr, decay, mu, keep, nesterov := h.lr, h.decay, h.momentum, h.keep, h.nesterov // not read again for each value
	for i, pv := range p {
		d := g[i] / weight
		if decay != 0 {
			d += float32(decay * pv)
		}
		u := d
		if m != nil {
			mv := d
			if !first {
				mv = float32(mu*m[i]) + float32(keep*d)
			}
			u = mv
			if nesterov {
				u = d + float32(mu*mv)
			}
			outM[i] = mv
		}
		out[i] = pv - float32(lr*u)
	}
}

// moveAdagrad returns the row's new sum.
func (h *hyper) moveAdagrad(weight float32, p, g []float32, sum float32, out []float32) float32 {
	g, out = g[:len(p)], out[:len(p)]
	var part [adagradParts]float32
	for i, pv := range p {
		d := h.gradient(g[i]/weight, pv)
		part[i%adagradParts] += float32(d * d)
	}
	for half := adagradParts / 2; half > 0; half /= 2 {
		for i := range half {
			part[i] += part[i+half]
		}
	}
	sum += part[0] / float32(len(p))
	root := sqrt(sum) + h.eps
	for i, pv := range p {
		d := h.gradient(g[i]/weight, pv)
		out[i] = pv - float32(h.lr*(d/root))
	}
	return sum
}

func (h *hyper) moveAdam(weight float32, p, g, mean, square, out, outMean, outSquare []float32) {
	g, out = g[:len(p)], out[:len(p)]
	for i, pv := range p {
		d := h.gradient(g[i]/weight, pv)
		m := float32(h.beta1*mean[i]) + float32(h.keep1*d)
		q := float32(h.beta2*square[i]) + float32(float32(h.keep2*d)*d)
		outMean[i], outSquare[i] = m, q
		out[i] = pv - float32(h.rate*(m/(sqrt(q)/h.b2+h.eps)))
	}
}

// gradient is d with the weight decay, where there is one.
func (h *hyper) gradient(d, p float32) float32 {
	if h.decay != 0 {
		d += float32(h.decay * p)
	}
	return d
}

// sqrt is the float32 nearest to the root: float64 has more than twice the digits, so rounding twice does no harm.
func sqrt(x float32) float32 { return float32(math.Sqrt(float64(x))) }
