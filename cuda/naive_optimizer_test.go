package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// A naive second implementation of the optimizers: one row at a time, value by value, as the formulas stand.

// naiveState is rows of parameters and slots as their types hold them, row by row.
type naiveState struct {
	dim           int
	dtype         DType // of the parameters
	slotTypes     []DType
	p             [][]float32
	slots         [][][]float32 // [slot][row]
	last          []int64
	slotNames     []string
	slotsPerValue bool // dim values a row rather than one
}

// drawState draws rows for an optimizer; the squares of Adam and the sums of Adagrad are not negative.
func drawState(r *rand.Rand, o Optimizer, rows, dim int, special bool) *naiveState {
	s := &naiveState{dim: dim, dtype: floatTypes[r.IntN(3)], slotNames: o.SlotNames(), last: make([]int64, rows)}
	_, rowwise := o.(RowwiseAdagrad)
	s.slotsPerValue = !rowwise
	values := func(dtype DType, n int) (rows []float32) { return unpacked(awkwardOf(r, dtype, n, special)) }
	for range rows {
		s.p = append(s.p, values(s.dtype, dim))
	}
	for _, name := range s.slotNames {
		dtype, width := floatTypes[r.IntN(3)], dim
		if rowwise {
			dtype, width = Float32, 1
		}
		var slot [][]float32
		for range rows {
			v := values(dtype, width)
			for i := range v {
				if name != "momentum" && name != "mean" {
					v[i] = float32(math.Abs(float64(v[i])))
				}
			}
			slot = append(slot, v)
		}
		s.slots, s.slotTypes = append(s.slots, slot), append(s.slotTypes, dtype)
	}
	return s
}

func (s *naiveState) clone() *naiveState {
	to := *s
	to.last = slices.Clone(s.last)
	deep := func(rows [][]float32) (to [][]float32) {
		for _, row := range rows {
			to = append(to, slices.Clone(row))
		}
		return to
	}
	to.p, to.slots = deep(s.p), nil
	for _, slot := range s.slots {
		to.slots = append(to.slots, deep(slot))
	}
	return &to
}

// only is a state of which one row may be moved; the others are shared.
func (s *naiveState) only(row int) *naiveState {
	to := *s
	to.p, to.last, to.slots = slices.Clone(s.p), slices.Clone(s.last), nil
	to.p[row] = slices.Clone(s.p[row])
	for _, slot := range s.slots {
		slot = slices.Clone(slot)
		slot[row] = slices.Clone(slot[row])
		to.slots = append(to.slots, slot)
	}
	return &to
}

// table and slot vectors of the whole state.
func (s *naiveState) table() Vector     { return packed(s.dtype, slices.Concat(s.p...)) }
func (s *naiveState) slot(i int) Vector { return packed(s.slotTypes[i], slices.Concat(s.slots[i]...)) }
func (s *naiveState) width(i int) int   { return len(s.slots[i][0]) }
func (s *naiveState) compact(rows int) []Slot {
	var slots []Slot
	for i, name := range s.slotNames {
		slots = append(slots, Slot{name, s.slot(i), cleared(s.slotTypes[i], rows*s.width(i))})
	}
	return slots
}
func (s *naiveState) inPlace() []Slot {
	var slots []Slot
	for i, name := range s.slotNames {
		v := s.slot(i)
		slots = append(slots, Slot{name, v, v})
	}
	return slots
}

// step moves one row by a gradient.
func (s *naiveState) step(o Optimizer, first bool, weight float32, row int, g []float32) {
	p := s.p[row]
	slots := make([][]float32, len(s.slots))
	for i := range slots {
		slots[i] = s.slots[i][row]
	}
	switch h := o.(type) {
	case SGD:
		for i := range p {
			var m float32
			if h.Momentum != 0 {
				m = slots[0][i]
			}
			p[i], m = naiveSGD(h, first, weight, p[i], g[i], m)
			if h.Momentum != 0 {
				slots[0][i] = m
			}
		}
	case RowwiseAdagrad:
		naiveAdagrad(h, weight, p, g, &slots[0][0])
	case Adam:
		for i := range p {
			p[i], slots[0][i], slots[1][i] = naiveAdam(h, weight, p[i], g[i], slots[0][i], slots[1][i])
		}
	}
	copy(p, naiveRounds(s.dtype, p))
	for i := range slots {
		copy(slots[i], naiveRounds(s.slotTypes[i], slots[i]))
	}
}

func decayed(g, weight, decay, p float32) float32 {
	d := g / weight
	if decay == 0 {
		return d
	}
	return d + float32(decay*p)
}

func naiveAdagrad(h RowwiseAdagrad, weight float32, p, g []float32, sum *float32) {
	columns := make([]float32, 16)
	for j := range columns {
		for i := j; i < len(p); i += 16 {
			d := decayed(g[i], weight, h.WeightDecay, p[i])
			columns[j] += float32(d * d)
		}
	}
	for len(columns) > 1 {
		half := len(columns) / 2
		for i := range half {
			columns[i] += columns[i+half]
		}
		columns = columns[:half]
	}
	*sum += columns[0] / float32(len(p))
	root := float32(math.Sqrt(float64(*sum))) + h.Eps
	for i := range p {
		quotient := decayed(g[i], weight, h.WeightDecay, p[i]) / root
		p[i] -= float32(h.LR * quotient)
	}
}

func naiveAdam(h Adam, weight, p, g, mean, square float32) (newP, newMean, newSquare float32) {
	pow := func(beta float32) float64 { // by squaring, from the lowest bit
		r := 1.0
		for b, n := float64(beta), h.Step; n > 0; b, n = float64(b*b), n/2 {
			if n%2 == 1 {
				r = float64(r * b)
			}
		}
		return r
	}
	d := decayed(g, weight, h.WeightDecay, p)
	mean = float32(h.Beta1*mean) + float32((1-h.Beta1)*d)
	square = float32(h.Beta2*square) + float32(float32((1-h.Beta2)*d)*d)
	b1, b2 := float32(1-pow(h.Beta1)), float32(math.Sqrt(1-pow(h.Beta2)))
	rate := h.LR / b1
	denominator := float32(math.Sqrt(float64(square)))/b2 + h.Eps
	quotient := mean / denominator
	return p - float32(rate*quotient), mean, square
}

func randomOptimizer(r *rand.Rand) (Optimizer, float32) {
	pick := func(x ...float32) float32 { return x[r.IntN(len(x))] }
	sgd, weight := randomSGD(r)
	switch r.IntN(3) {
	case 0:
		return sgd, weight
	case 1:
		return RowwiseAdagrad{pick(0.1, 0.0317, -1), pick(1e-8, 1e-3, 0.5), pick(0, 0.01)}, weight
	}
	return Adam{pick(0.1, 1e-3), pick(0.9, 0.5, 0), pick(0.999, 0.9), pick(1e-8, 0.1), pick(0, 0.01),
		[]uint64{1, 2, 3, 77, 1 << 20, 1 << 40}[r.IntN(6)]}, weight
}

// stepped moves one row as the operations on rows must: the steps it sat out first, where exact.
func (s *naiveState) stepped(o Optimizer, steps *Steps, first bool, weight float32, row int, g []float32) {
	if steps.Last.n > 0 {
		last := s.last[row]
		first = last == 0
		for missed := last + 1; steps.Exact && last >= 0 && missed < steps.Step; missed++ {
			s.step(o, missed == 1, weight, row, make([]float32, s.dim))
			first = false
		}
		s.last[row] = steps.Step
	}
	s.step(o, first, weight, row, g)
}

func describe(o Optimizer) string { return fmt.Sprintf("%T%+v", o, o) }
