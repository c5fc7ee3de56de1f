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
				if name == "n" && r.IntN(4) == 0 {
					v[i] = 0 // no step yet
				}
				if name == "sum" || name == "square" || name == "n" {
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
func (s *naiveState) step(o Optimizer, c Clip, first bool, weight float32, row int, g []float32) {
	p := s.p[row]
	if c.Kind != ClipNone {
		g, weight = naiveClip(c, weight, g), 1
	}
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
	case Adagrad:
		for i := range p {
			d := decayed(g[i], weight, h.WeightDecay, p[i])
			slots[0][i] += float32(d * d)
			quotient := d / (naiveRoot(slots[0][i]) + h.Eps)
			p[i] -= float32(h.LR * quotient)
		}
	case Adam:
		for i := range p {
			p[i], slots[0][i], slots[1][i] = naiveAdam(h, weight, p[i], g[i], slots[0][i], slots[1][i])
		}
	case AdamW:
		plain := Adam(h)
		plain.WeightDecay = 0
		less := float32(1 - float64(h.LR)*float64(h.WeightDecay)) // a product of two float32 is exact in float64
		for i := range p {
			p[i], slots[0][i], slots[1][i] = naiveAdam(plain, weight, float32(p[i]*less), g[i], slots[0][i], slots[1][i])
		}
	case FTRL:
		for i := range p {
			p[i], slots[0][i], slots[1][i] = naiveFTRL(h, p[i], g[i]/weight, slots[0][i], slots[1][i])
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

// naiveClip is the gradient divided and clipped.
func naiveClip(c Clip, weight float32, g []float32) []float32 {
	d := make([]float32, len(g))
	for i := range d {
		d[i] = g[i] / weight
	}
	factor := c.By
	if c.Kind == ClipRow {
		squares := make([]float32, len(d))
		for i := range d {
			squares[i] = d[i] * d[i]
		}
		factor = 1
		if norm := naiveRoot(naiveColumns(squares)); norm > c.By {
			factor = c.By / norm
		}
	}
	for i, v := range d {
		switch {
		case c.Kind != ClipValue:
			d[i] = v * factor
		case v == v:
			d[i] = min(max(v, -c.By), c.By)
		}
	}
	return d
}

func naiveRoot(x float32) float32 { return float32(math.Sqrt(float64(x))) }

func naiveFTRL(h FTRL, p, d, z, n float32) (newP, newZ, newN float32) {
	l1, base := float32(h.LR*h.L1), h.Beta+float32(h.LR*h.L2)
	if n == 0 {
		z = -float32(p * base)
		if p > 0 {
			z -= l1
		} else if p < 0 {
			z += l1
		}
	}
	newN = n + float32(d*d)
	sigma := float32((naiveRoot(newN) - naiveRoot(n)) * p)
	newZ = z + float32(h.LR*d)
	newZ -= sigma
	switch over := float32(math.Abs(float64(newZ))) - l1; {
	case newN == 0:
		return p, newZ, newN
	case over <= 0:
		return 0, newZ, newN
	default:
		newP = over / (naiveRoot(newN) + base)
		if newZ > 0 {
			newP = -newP
		}
		return newP, newZ, newN
	}
}

// naiveColumns adds 16 columns, and those pairwise.
func naiveColumns(x []float32) float32 {
	columns := make([]float32, 16)
	for j := range columns {
		for i := j; i < len(x); i += 16 {
			columns[j] += x[i]
		}
	}
	for len(columns) > 1 {
		half := len(columns) / 2
		for i := range half {
			columns[i] += columns[i+half]
		}
		columns = columns[:half]
	}
	return columns[0]
}

func naiveAdagrad(h RowwiseAdagrad, weight float32, p, g []float32, sum *float32) {
	squares := make([]float32, len(p))
	for i := range p {
		d := decayed(g[i], weight, h.WeightDecay, p[i])
		squares[i] = d * d
	}
	*sum += naiveColumns(squares) / float32(len(p))
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
	rowwise := RowwiseAdagrad{pick(0.1, 0.0317, -1), pick(1e-8, 1e-3, 0.5), pick(0, 0.01)}
	adam := Adam{pick(0.1, 1e-3), pick(0.9, 0.5, 0), pick(0.999, 0.9), pick(1e-8, 0.1), pick(0, 0.01),
		[]uint64{1, 2, 3, 77, 1 << 20, 1 << 40}[r.IntN(6)]}
	ftrl := FTRL{pick(0.1, 0.0317, 0), pick(1, 0.3, 0), pick(0, 0.1, 2), pick(0, 0.1, 2)}
	return []Optimizer{sgd, rowwise, Adagrad(rowwise), adam, AdamW(adam), ftrl}[r.IntN(6)], weight
}

// randomClip is none in half of the cases.
func randomClip(r *rand.Rand, rows bool) Clip {
	by := []float32{0.1, 0.5, 1, 3.17, 1e3}[r.IntN(5)]
	switch c := r.IntN(6); {
	case c == 0 && rows:
		return Clip{ClipRow, by}
	case c == 1:
		return Clip{ClipValue, by}
	case c == 2:
		return Clip{ClipScale, []float32{0, 0.25, 0.0317}[r.IntN(3)]}
	}
	return Clip{}
}

// hasExact reports whether an optimizer can make up for steps that a row sat out.
func hasExact(o Optimizer) bool {
	switch o.(type) {
	case Adam, AdamW, FTRL:
		return false
	}
	return true
}

// stepped moves one row as the operations on rows must: the steps it sat out first, where exact.
func (s *naiveState) stepped(o Optimizer, c Clip, steps *Steps, first bool, weight float32, row int, g []float32) {
	if steps.Last.n > 0 {
		last := s.last[row]
		first = last == 0
		for missed := last + 1; steps.Exact && last >= 0 && missed < steps.Step; missed++ {
			s.step(o, c, missed == 1, weight, row, make([]float32, s.dim))
			first = false
		}
		s.last[row] = steps.Step
	}
	s.step(o, c, first, weight, row, g)
}

func describe(o Optimizer) string { return fmt.Sprintf("%T%+v", o, o) }
