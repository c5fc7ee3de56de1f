package cuda

import (
	"math"
)

// Optimizer is the rule by which a gradient moves parameters: SGD, Adagrad, RowwiseAdagrad, Adam, AdamW or FTRL. For
// each value, with the gradient g, d = g/weight, clipped where a Clip says so, and d += WeightDecay*p where that is not
// 0. All is float32; a product is rounded before it is added. NaN in d, p or a slot makes the value and its slots NaN,
// but for what the momentum of a first step replaces; Inf likewise, or it ends as one of both.
type Optimizer interface {
	// SlotNames are the slots that a call must give, in the order of its documentation.
	SlotNames() []string
	kind() uint32
}

// ClipKind is the kind of a Clip.
type ClipKind uint32

// The kinds of clipping.
const (
	ClipNone  ClipKind = iota
	ClipScale          // d *= By
	ClipValue          // d to [-By, By]
	ClipRow            // a row's d *= By/norm where its norm is above By; not of dense tensors, which have no rows
)

// Clip bounds d = g/weight, before weight decay; the zero value leaves it as it is. By is finite and above 0, of
// ClipScale at least 0, and 0 of ClipNone. The norm of a row is sqrt(columns(d*d)), see RowwiseAdagrad. NaN stays NaN;
// a row whose norm is Inf becomes 0 where it is finite and NaN where it is not; ClipValue makes Inf a bound. What
// NonFinite counts is d before it.
type Clip struct {
	Kind ClipKind
	By   float32
}

// SGD in PyTorch's form. On a row's first step m = d, else m = Momentum*m + (1-Dampening)*d; p -= LR * (Nesterov ?
// d + Momentum*m : m). Its slot is "momentum", as large as the parameters; with Momentum 0 there is none, and p -=
// LR*d.
//
// Source: torch.optim.SGD (Sutskever et al. 2013, with the learning rate outside the velocity).
type SGD struct {
	LR, Momentum, Dampening, WeightDecay float32
	Nesterov                             bool
}

// RowwiseAdagrad keeps one number a row, in the float32 slot "sum": s += columns(d*d)/dim; p -= LR * (d/(sqrt(s) +
// Eps)). columns adds x[j], x[j+16], ... to the j-th of 16 partial sums, each from +0, and those pairwise: i with i+8,
// i+4, i+2, i+1; a fixed order that suits vectors of every width.
//
// Source: Duchi et al. 2011, one accumulator a row as in FBGEMM's table batched embeddings.
type RowwiseAdagrad struct {
	LR, Eps, WeightDecay float32
}

// Adagrad, with the slot "sum" as large as the parameters: s += d*d; p -= LR * (d/(sqrt(s) + Eps)). What s begins with
// is the caller's.
//
// Source: Duchi et al. 2011; torch.optim.Adagrad.
type Adagrad struct {
	LR, Eps, WeightDecay float32
}

// Adam, with the slots "mean" and "square" as large as the parameters: mean = Beta1*mean + (1-Beta1)*d; square =
// Beta2*square + ((1-Beta2)*d)*d; p -= (LR/b1) * (mean/(sqrt(square)/b2 + Eps)), where b1 = 1 - Beta1^Step and b2 =
// sqrt(1
// - Beta2^Step) are made in float64 by repeated squaring and rounded once. Step counts from 1; sparse rows share it.
//
// Source: Kingma and Ba 2015; torch.optim.Adam, and torch.optim.SparseAdam for rows.
type Adam struct {
	LR, Beta1, Beta2, Eps, WeightDecay float32
	Step                               uint64
}

// AdamW is Adam whose decay does not pass through the means: p *= 1 - LR*WeightDecay, which is made in float64 and
// rounded once, in place of d += WeightDecay*p.
//
// Source: Loshchilov and Hutter 2019; torch.optim.AdamW.
type AdamW struct {
	LR, Beta1, Beta2, Eps, WeightDecay float32
	Step                               uint64
}

// FTRL is FTRL-proximal, with the slots "z" and "n" as large as the parameters, both 0 at first:
//
//	n' = n + d*d;  z' = (z + LR*d) - (sqrt(n') - sqrt(n))*p
//	p = 0 where |z'| <= LR*L1, else (sign(z')*LR*L1 - z') / (sqrt(n') + (Beta + LR*L2))
//
// z is LR times that of the paper, so that LR may change from step to step. A value with n = 0 has had no gradient: its
// z is taken to be the one that gives p, -(p*(Beta + LR*L2) + sign(p)*LR*L1), so that what is not zero at first need
// not begin again at zero; with n' = 0 it stays.
//
// Source: McMahan et al. 2013, "Ad Click Prediction: a View from the Trenches", algorithm 1, per-coordinate rates.
type FTRL struct {
	LR, Beta, L1, L2 float32
}

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

// rowFactor returns the factor that brings the norm of a row to at most the clip's.
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

// The operations with an optimizer. A row is worked on in float32: in place where it is stored so, else widened into
// scratch memory and narrowed at the end.

// span is a run of values: elements [lo, lo+n) of a tensor, and of a slot with one value a row the element row.
type span struct{ lo, n, row int }

// slot is the part of a slot that belongs to a span.
func (u *update) slot(v Vector, at span) Vector {
	if u.hyper.rowwise() {
		return v.Slice(at.row, at.row+1)
	}
	return v.Slice(at.lo, at.lo+at.n)
}

// move runs the optimizer on one span of the table, or of a dense tensor, and writes the result to a span of out.
// replay steps with a gradient of zero come first; if there are any, first belongs to the first of them.
func (u *update) move(s *scratch, first bool, replay int64, g []float32, from, to span) {
	p := u.table.Slice(from.lo, from.lo+from.n)
	out := u.out.Slice(to.lo, to.lo+to.n)
	oldP, newP := floats32(p, &s.state[0]), room32(out, &s.state[1])
	var old, fresh [slotsMax][]float32
	var after [slotsMax]Vector
	for i := range u.hyper.slots {
		after[i] = u.slot(u.slots[i].After, to)
		old[i] = floats32(u.slot(u.slots[i].Before, from), &s.state[2+2*i])
		fresh[i] = room32(after[i], &s.state[3+2*i])
	}
	if replay > 0 {
		oldP = u.replay(s, first, replay, oldP, &old)
		first = false
	}
	u.hyper.move(first, u.weight, oldP, g, newP, &old, &fresh)
	store32(out, newP)
	for i := range u.hyper.slots {
		store32(after[i], fresh[i])
	}
}

// replay catches up on steps that a row missed, in scratch memory: each as if with a gradient of zero, and stored and
// read again. It ends early if a step changed nothing, since no further one would.
func (u *update) replay(s *scratch, first bool, steps int64, p []float32, slots *[slotsMax][]float32) []float32 {
	copyOf := func(buf *[]float32, x []float32) []float32 {
		*buf = append((*buf)[:0], x...)
		return *buf
	}
	p = copyOf(&s.replayed[0], p)
	for i := range u.hyper.slots {
		slots[i] = copyOf(&s.replayed[1+i], slots[i])
	}
	s.zeros = grow(s.zeros, len(p))
	clear(s.zeros)
	for ; steps > 0; steps-- {
		before := append(s.before[:0], p...)
		for i := range u.hyper.slots {
			before = append(before, slots[i]...)
		}
		s.before = before
		u.hyper.move(first, u.weight, p, s.zeros, p, slots, slots)
		round(p, u.table.dtype)
		same := equalBits(before[:len(p)], p)
		before = before[len(p):]
		for i := range u.hyper.slots {
			round(slots[i], u.slots[i].Before.dtype)
			same = same && equalBits(before[:len(slots[i])], slots[i])
			before = before[len(slots[i]):]
		}
		if same && !first {
			break
		}
		first = false
	}
	return p
}

// nonFinite counts the values of a gradient that are NaN or Inf once divided, and the position of the first.
type nonFinite struct {
	count, at int64
}

// look takes values whose first has the position given.
func (c *nonFinite) look(g []float32, weight float32, position int64) {
	for i, v := range g {
		if !finite(v / weight) {
			if c.count == 0 {
				c.at = position + int64(i)
			}
			c.count++
		}
	}
}

// verdict fills the report and is the error of a call that was to refuse such values. A refused call has skipped
// nothing.
func (u *update) verdict(c *nonFinite, skipped int64, to *Report) error {
	if c.count > 0 && u.nonFinite == Refuse {
		tell(to, Report{nonFinite: c.count})
		return &NonFiniteError{u.op, c.at, c.count}
	}
	tell(to, Report{skipped: skipped, nonFinite: c.count})
	return nil
}

// plain is the vectors of an update as slices, where all are float32: most calls are of that kind, and finding the
// parts of six vectors by their type would cost a row of 64 values a fifth of its time.
type plain struct {
	ok            bool
	table, out    []float32
	before, after [slotsMax][]float32
}

func (u *rowsUpdate) plain() (v plain) {
	if u.table.dtype != Float32 {
		return v
	}
	v.table, v.out = view[float32](u.table), view[float32](u.out)
	for i := range u.hyper.slots {
		s := &u.slots[i]
		if s.Before.dtype != Float32 {
			return v
		}
		v.before[i], v.after[i] = view[float32](s.Before), view[float32](s.After)
	}
	v.ok = true
	return v
}

// moveRow is move for a row of a table: of the gradient g, into row to of the outputs.
func (u *rowsUpdate) moveRow(s *scratch, v *plain, first bool, g []float32, row, to int) {
	replay := int64(0)
	if u.steps.Last.n > 0 {
		last := view[int64](u.steps.Last)[row]
		first = last == 0
		if u.steps.Exact && last >= 0 {
			replay = max(0, u.steps.Step-1-last)
		}
		view[int64](u.steps.LastAfter)[to] = u.steps.Step
	}
	d := u.dim
	if !v.ok || replay > 0 {
		u.move(s, first, replay, g, span{row * d, d, row}, span{to * d, d, to})
		return
	}
	var before, after [slotsMax][]float32
	width := u.slotWidth(d)
	for i := range u.hyper.slots {
		before[i], after[i] = v.before[i][row*width:][:width], v.after[i][to*width:][:width]
	}
	u.hyper.move(first, u.weight, v.table[row*d:][:d], g, v.out[to*d:][:d], &before, &after)
}

// ApplyRows: see the interface.
func (r *reference) ApplyRows(a ApplyRows) error {
	r.calls.n.Add(1)
	tell(a.Report, Report{})
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	u := a.update()
	if err := u.sortSlots(); err != nil {
		return err
	}
	index, news := ints64(a.Index, &s.ids), optional[uint8](a.First)
	gradient := func(i int) []float32 { return floats32(a.Grad.Slice(i*a.Dim, (i+1)*a.Dim), &s.row) }
	v := u.plain()
	var bad nonFinite
	var skipped int64
	for i, row := range index {
		if uint64(row) >= uint64(u.rows) {
			skipped++
		} else if u.nonFinite != Ignore {
			bad.look(gradient(i), a.Weight, int64(i)*int64(a.Dim))
		}
	}
	if err := u.verdict(&bad, skipped, a.Report); err != nil {
		return err
	}
	for i, row := range index {
		if uint64(row) >= uint64(u.rows) {
			continue
		}
		to := i
		if u.inPlace {
			to = int(row)
		}
		u.moveRow(s, &v, news != nil && news[i] != 0, gradient(i), int(row), to)
	}
	return nil
}

// CoalesceApply: see the interface. Where values are to be counted, the sums are made twice.
func (r *reference) CoalesceApply(a CoalesceApply) (int, error) {
	r.calls.n.Add(1)
	tell(a.Report, Report{})
	if err := a.check(); err != nil {
		return 0, err
	}
	s := r.borrow()
	defer r.giveBack(s)
	u := a.update()
	if err := u.sortSlots(); err != nil {
		return 0, err
	}
	sorted, skipped := s.sortKeys(a.Keys, int64(u.rows))
	n := distinct(sorted)
	if n > a.OutKeys.n && (!u.inPlace || a.OutKeys.n > 0) {
		return 0, tooFew(u.op, a.OutKeys.n, n)
	}
	from, v := addends{rows: a.Rows}, u.plain()
	s.row = grow(s.row, a.Dim)
	each := func(use func(rank int, key uint64)) {
		rest := sorted
		for rank := 0; len(rest) > 0; rank++ {
			key := rest[0].key
			var index []int64
			index, rest = s.segment(rest)
			s.sumRows(s.row, &from, index, nil)
			use(rank, key)
		}
	}
	var bad nonFinite
	if u.nonFinite != Ignore {
		each(func(rank int, _ uint64) { bad.look(s.row, a.Weight, int64(rank)*int64(a.Dim)) })
	}
	if err := u.verdict(&bad, skipped, a.Report); err != nil {
		return 0, err
	}
	each(func(rank int, key uint64) {
		if a.OutKeys.n > 0 {
			storeKey(a.OutKeys, rank, key)
		}
		if u.inPlace {
			rank = int(key)
		}
		u.moveRow(s, &v, false, s.row, int(key), rank)
	})
	return n, nil
}

// spans cuts n values into rows, where the optimizer is row-wise, else into tiles that stay in the first-level cache.
func (u *update) spans(n, dim int, visit func(at span)) {
	width := tileValues
	if u.hyper.rowwise() {
		width = u.width(dim)
	}
	for row := 0; row*width < n; row++ {
		lo := row * width
		visit(span{lo, min(width, n-lo), row})
	}
}

// ApplyDense: see the interface.
func (r *reference) ApplyDense(a ApplyDense) error {
	r.calls.n.Add(1)
	tell(a.Report, Report{})
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	u := a.update()
	if err := u.sortSlots(); err != nil {
		return err
	}
	gradient := func(at span) []float32 { return floats32(a.Grad.Slice(at.lo, at.lo+at.n), &s.row) }
	var bad nonFinite
	if u.nonFinite != Ignore {
		u.spans(a.Param.n, a.Dim, func(at span) { bad.look(gradient(at), a.Weight, int64(at.lo)) })
	}
	if err := u.verdict(&bad, 0, a.Report); err != nil {
		return err
	}
	u.spans(a.Param.n, a.Dim, func(at span) { u.move(s, a.First, 0, gradient(at), at, at) })
	return nil
}

// AverageApply: see the interface. Where values are to be counted, the sums are made twice.
func (r *reference) AverageApply(a AverageApply) error {
	r.calls.n.Add(1)
	tell(a.Report, Report{})
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	u := a.update()
	if err := u.sortSlots(); err != nil {
		return err
	}
	s.merge.planOf(a.Lanes, a.Terms)
	sum := func(at span) []float32 { return s.merge.sum(a.Terms, at.lo, at.lo+at.n) }
	var bad nonFinite
	if u.nonFinite != Ignore {
		u.spans(a.Param.n, a.Dim, func(at span) { bad.look(sum(at), a.Weight, int64(at.lo)) })
	}
	if err := u.verdict(&bad, 0, a.Report); err != nil {
		return err
	}
	u.spans(a.Param.n, a.Dim, func(at span) { u.move(s, a.First, 0, sum(at), at, at) })
	return nil
}
