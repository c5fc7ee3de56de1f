package cuda

import "math"

// MatMul: see the interface.
func (r *reference) MatMul(a MatMul) error {
	r.calls.n.Add(1)
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	left, b, bias, out := view[float32](a.A), view[float32](a.B), optional[float32](a.Bias), view[float32](a.C)
	if a.TransB {
		s.values = grow(s.values, len(b))
		transpose(s.values, b, a.N, a.K)
		b = s.values
	}
	for m := range a.M {
		row := left[min(m*a.K, len(left)):]
		if a.TransA {
			s.row = grow(s.row, a.K)
			row = s.row
			for k := range row {
				row[k] = left[k*a.M+m]
			}
		}
		c := out[m*a.N:][:a.N]
		s.product(c, row[:a.K], b)
		if bias != nil {
			add(c, bias)
		}
	}
	return nil
}

// transpose writes the rows x cols matrix from, transposed, to to.
func transpose(to, from []float32, rows, cols int) {
	for i := range rows {
		for j, v := range from[i*cols:][:cols] {
			to[j*rows+i] = v
		}
	}
}

// SoftmaxCrossEntropy: see the interface. With m the largest logit and s the canonical sum of e = exp(logit - m):
// probability = e / s, loss = log(s) - (logit of the target - m), gradient = probability - onehot.
func (r *reference) SoftmaxCrossEntropy(a SoftmaxCrossEntropy) error {
	r.calls.n.Add(1)
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	s.row = grow(s.row, a.Classes)
	all, targets := view[float32](a.Logits), view[int32](a.Targets)
	loss, probabilities, gradient := view[float32](a.Loss), view[float32](a.Probabilities), view[float32](a.Grad)
	for i := range len(all) / a.Classes {
		logits := all[i*a.Classes:][:a.Classes]
		top := largest(logits)
		for c, x := range logits {
			s.row[c] = exp(x - top)
		}
		total := sumValues(s.row)
		if len(loss) > 0 {
			loss[i] = log(total) - (logits[targets[i]] - top)
		}
		if len(probabilities) == 0 && len(gradient) == 0 {
			continue
		}
		divide(s.row, s.row, total)
		if len(probabilities) > 0 {
			copy(probabilities[i*a.Classes:], s.row)
		}
		if len(gradient) > 0 {
			grad := gradient[i*a.Classes:][:a.Classes]
			copy(grad, s.row)
			grad[targets[i]] -= 1
		}
	}
	return nil
}

// largest may miss a NaN, which then spoils the sum all the same; of zeros of both signs either may come out, which no
// result shows.
func largest(x []float32) float32 {
	top := x[0]
	for _, v := range x {
		if v > top {
			top = v
		}
	}
	return top
}

// FirstNonFinite: see the interface.
func (r *reference) FirstNonFinite(values Vector) int {
	r.calls.n.Add(1)
	if values.n == 0 {
		return -1
	}
	switch values.dtype {
	case Float32:
		return firstNonFinite(view[float32](values))
	case Float16, BFloat16:
		return firstNonFinite16(values)
	}
	return -1
}

func firstNonFinite(values []float32) int {
	const exponent = 0x7f800000
	at := 0
	for ; len(values)-at >= 8; at += 8 {
		// x - x is 0 for a finite number and NaN for the others, and a NaN stays in the sum.
		v := values[at:][:8]
		sum := (v[0] - v[0]) + (v[1] - v[1]) + (v[2] - v[2]) + (v[3] - v[3]) +
			(v[4] - v[4]) + (v[5] - v[5]) + (v[6] - v[6]) + (v[7] - v[7])
		if sum != 0 {
			break
		}
	}
	for ; at < len(values); at++ {
		if math.Float32bits(values[at])&exponent == exponent {
			return at
		}
	}
	return -1
}
