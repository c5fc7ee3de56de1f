package cuda

import "math"

// The numbers are those of gradbus.h.
const (
	kindSGD     uint32 = 1
	kindRowwise uint32 = 2
	kindAdam    uint32 = 3
	kindAdagrad uint32 = 4
	kindAdamW   uint32 = 5
	kindFTRL    uint32 = 6
	slotsMax           = 2
	columnSums         = 16 // partial sums of a row's squares
)

// SlotNames is "momentum", or nothing where Momentum is 0.
func (h SGD) SlotNames() []string { return hyperOfSGD(h).slotNames() }
func (h SGD) kind() uint32        { return kindSGD }

// SlotNames is "sum".
func (h RowwiseAdagrad) SlotNames() []string {
	return hyperOfAdagrad(kindRowwise, Adagrad(h)).slotNames()
}
func (h RowwiseAdagrad) kind() uint32 { return kindRowwise }

// SlotNames is "sum".
func (h Adagrad) SlotNames() []string { return hyperOfAdagrad(kindAdagrad, h).slotNames() }
func (h Adagrad) kind() uint32        { return kindAdagrad }

// SlotNames is "mean" and "square".
func (h Adam) SlotNames() []string { return hyperOfAdam(kindAdam, h).slotNames() }
func (h Adam) kind() uint32        { return kindAdam }

// SlotNames is "mean" and "square".
func (h AdamW) SlotNames() []string { return hyperOfAdam(kindAdamW, Adam(h)).slotNames() }
func (h AdamW) kind() uint32        { return kindAdamW }

// SlotNames is "z" and "n".
func (h FTRL) SlotNames() []string { return hyperOfFTRL(h).slotNames() }
func (h FTRL) kind() uint32        { return kindFTRL }

// hyper is the hyperparameters of any optimizer, so that the hot paths know one plain struct instead of an interface.
type hyper struct {
	kind                                              uint32
	lr, momentum, dampening, decay, eps, beta1, beta2 float32
	nesterov                                          bool
	step                                              uint64
	slots                                             int
	slot                                              [slotsMax]string // canonical order
	keep, keep1, keep2, rate, b2                      float32          // made from the others
	shrink                                            float32          // of adam and adamw: 1 - lr*decay, 1 for adam
	l1, base                                          float32          // of ftrl: lr*L1, and Beta + lr*L2
	clip                                              Clip
	factor                                            float32 // of a row that is clipped by its norm
}

// hyperOf knows the optimizers of this package, as values and as pointers; it says false for others and for none.
func hyperOf(o Optimizer, c Clip) (h hyper, known bool) {
	h, known = hyperOfKind(o)
	h.clip = c
	return h, known
}

func hyperOfKind(o Optimizer) (hyper, bool) {
	switch h := o.(type) {
	case SGD:
		return hyperOfSGD(h), true
	case RowwiseAdagrad:
		return hyperOfAdagrad(kindRowwise, Adagrad(h)), true
	case Adagrad:
		return hyperOfAdagrad(kindAdagrad, h), true
	case Adam:
		return hyperOfAdam(kindAdam, h), true
	case AdamW:
		return hyperOfAdam(kindAdamW, Adam(h)), true
	case FTRL:
		return hyperOfFTRL(h), true
	case *SGD:
		return pointed(h)
	case *RowwiseAdagrad:
		return pointed(h)
	case *Adagrad:
		return pointed(h)
	case *Adam:
		return pointed(h)
	case *AdamW:
		return pointed(h)
	case *FTRL:
		return pointed(h)
	}
	return hyper{}, false
}

func pointed[O Optimizer](h *O) (hyper, bool) {
	if h == nil {
		return hyper{}, false
	}
	return hyperOfKind(*h)
}

func hyperOfSGD(h SGD) hyper {
	to := hyper{kind: kindSGD, lr: h.LR, momentum: h.Momentum, dampening: h.Dampening, decay: h.WeightDecay,
		nesterov: h.Nesterov}
	if h.Momentum != 0 {
		to.slots, to.slot[0] = 1, "momentum"
	}
	to.keep = float32(1) - h.Dampening
	return to
}

func hyperOfAdagrad(kind uint32, h Adagrad) hyper {
	return hyper{kind: kind, lr: h.LR, eps: h.Eps, decay: h.WeightDecay, slots: 1, slot: [slotsMax]string{"sum"}}
}

func hyperOfAdam(kind uint32, h Adam) hyper {
	to := hyper{kind: kind, lr: h.LR, beta1: h.Beta1, beta2: h.Beta2, eps: h.Eps, decay: h.WeightDecay,
		step: h.Step, shrink: 1,
		slots: 2, slot: [slotsMax]string{"mean", "square"}}
	to.keep1, to.keep2 = float32(1)-h.Beta1, float32(1)-h.Beta2
	b1 := float32(1 - power(h.Beta1, h.Step))
	to.rate, to.b2 = h.LR/b1, float32(math.Sqrt(1-power(h.Beta2, h.Step)))
	if kind == kindAdamW {
		to.shrink, to.decay = float32(1-float64(float64(h.LR)*float64(h.WeightDecay))), 0
	}
	return to
}

func hyperOfFTRL(h FTRL) hyper {
	return hyper{kind: kindFTRL, lr: h.LR, l1: float32(h.LR * h.L1), base: h.Beta + float32(h.LR*h.L2), slots: 2,
		slot: [slotsMax]string{"z", "n"}}
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
func (h *hyper) rowwise() bool { return h.kind == kindRowwise }

func (h *hyper) finite() bool {
	return finite(h.lr) && finite(h.momentum) && finite(h.dampening) && finite(h.decay) && finite(h.eps) &&
		finite(h.shrink) &&
		finite(h.l1) && finite(h.base)
}

// move is the update of one run of values, where rows count one row: from p and the slots to out and outSlots, which
// may be the same memory.
func (h *hyper) move(first bool, weight float32, p, g, out []float32, slots, outSlots *[slotsMax][]float32) {
	if h.clip.Kind == ClipRow {
		h.factor = h.rowFactor(weight, g)
	}
	switch h.kind {
	case kindSGD:
		h.moveSGD(first, weight, p, g, slots[0], out, outSlots[0])
	case kindRowwise:
		outSlots[0][0] = h.moveRowwise(weight, p, g, slots[0][0], out)
	case kindAdagrad:
		h.moveAdagrad(weight, p, g, slots[0], out, outSlots[0])
	case kindFTRL:
		h.moveFTRL(weight, p, g, slots[0], slots[1], out, outSlots[0], outSlots[1])
	default:
		h.moveAdam(weight, p, g, slots[0], slots[1], out, outSlots[0], outSlots[1])
	}
}

// moveSGD: momentum is off where m is nil; the weight decay is left out where it is 0, so that parameters which are not
// finite do not spread through 0 * p.
func (h *hyper) moveSGD(first bool, weight float32, p, g, m, out, outM []float32) {
	g, out = g[:len(p)], out[:len(p)]
	lr, decay, mu, keep, nesterov := h.lr, h.decay, h.momentum, h.keep, h.nesterov // not read again for each value
	clips := h.clip.Kind != ClipNone
	for i, pv := range p {
		d := g[i] / weight
		if clips {
			d = h.clipped(d)
		}
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

// moveRowwise returns the row's new sum.
func (h *hyper) moveRowwise(weight float32, p, g []float32, sum float32, out []float32) float32 {
	g, out = g[:len(p)], out[:len(p)]
	var part [columnSums]float32
	for i, pv := range p {
		d := h.gradient(g[i]/weight, pv)
		part[i%columnSums] += float32(d * d)
	}
	sum += folded(&part) / float32(len(p))
	root := sqrt(sum) + h.eps
	for i, pv := range p {
		d := h.gradient(g[i]/weight, pv)
		out[i] = pv - float32(h.lr*(d/root))
	}
	return sum
}

// folded adds partial sums pairwise: i with i+8, i+4, i+2, i+1.
func folded(part *[columnSums]float32) float32 {
	for half := columnSums / 2; half > 0; half /= 2 {
		for i := range half {
			part[i] += part[i+half]
		}
	}
	return part[0]
}

// rowFactor is what a row is multiplied by so that its norm is at most the clip's.
func (h *hyper) rowFactor(weight float32, g []float32) float32 {
	var part [columnSums]float32
	for i, v := range g {
		d := v / weight
		part[i%columnSums] += float32(d * d)
	}
	if norm := sqrt(folded(&part)); norm > h.clip.By {
		return h.clip.By / norm
	}
	return 1
}

func (h *hyper) moveAdagrad(weight float32, p, g, sum, out, outSum []float32) {
	g, out = g[:len(p)], out[:len(p)]
	for i, pv := range p {
		d := h.gradient(g[i]/weight, pv)
		s := sum[i] + float32(d*d)
		outSum[i] = s
		out[i] = pv - float32(h.lr*(d/(sqrt(s)+h.eps)))
	}
}

func (h *hyper) moveFTRL(weight float32, p, g, z, n, out, outZ, outN []float32) {
	g, out = g[:len(p)], out[:len(p)]
	for i, pv := range p {
		out[i], outZ[i], outN[i] = h.ftrl(h.gradient(g[i]/weight, pv), pv, z[i], n[i])
	}
}

// ftrl is the step of one value.
func (h *hyper) ftrl(d, p, z, n float32) (newP, newZ, newN float32) {
	if n == 0 { // no gradient before this one: the z that gives p
		z = -(float32(p*h.base) + h.threshold(p))
	}
	newN = n + float32(d*d)
	root := sqrt(newN)
	newZ = z + float32(h.lr*d) - float32((root-sqrt(n))*p)
	switch {
	case newN == 0:
		newP = p
	case newZ >= -h.l1 && newZ <= h.l1:
		newP = 0
	default:
		newP = (h.threshold(newZ) - newZ) / (root + h.base)
	}
	return newP, newZ, newN
}

// threshold is l1 with the sign of x; where x has none, x itself.
func (h *hyper) threshold(x float32) float32 {
	switch {
	case x > 0:
		return h.l1
	case x < 0:
		return -h.l1
	}
	return x
}

func (h *hyper) moveAdam(weight float32, p, g, mean, square, out, outMean, outSquare []float32) {
	g, out = g[:len(p)], out[:len(p)]
	for i, pv := range p {
		d := h.gradient(g[i]/weight, pv)
		m := float32(h.beta1*mean[i]) + float32(h.keep1*d)
		q := float32(h.beta2*square[i]) + float32(float32(h.keep2*d)*d)
		outMean[i], outSquare[i] = m, q
		out[i] = float32(pv*h.shrink) - float32(h.rate*(m/(sqrt(q)/h.b2+h.eps)))
	}
}

// gradient is d clipped, and with the weight decay, where there is one.
func (h *hyper) gradient(d, p float32) float32 {
	if h.clip.Kind != ClipNone {
		d = h.clipped(d)
	}
	if h.decay != 0 {
		d += float32(h.decay * p)
	}
	return d
}

// clipped leaves NaN as it is.
func (h *hyper) clipped(d float32) float32 {
	switch h.clip.Kind {
	case ClipScale:
		return float32(d * h.clip.By)
	case ClipRow:
		return float32(d * h.factor)
	}
	if d > h.clip.By {
		return h.clip.By
	}
	if d < -h.clip.By {
		return -h.clip.By
	}
	return d
}

// sqrt is the float32 nearest to the root: float64 has more than twice the digits, so rounding twice does no harm.
func sqrt(x float32) float32 { return float32(math.Sqrt(float64(x))) }
