package cuda

import "math"

// MatMul: see the interface.
func (r *reference) MatMul(a MatMul) error {
	if err := a.check(); err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	b := a.B
	if a.TransB {
		s.values = grow(s.values, len(a.B))
		b = s.values
		transpose(b, a.B, a.N, a.K)
	}
	for m := range a.M {
		row := a.A[min(m*a.K, len(a.A)):]
		if a.TransA {
			s.row = grow(s.row, a.K)
			row = s.row
			for k := range row {
				row[k] = a.A[k*a.M+m]
			}
		}
		c := a.C[m*a.N:][:a.N]
		s.product(c, row[:a.K], b)
		if a.Bias != nil {
			add(c, a.Bias)
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
	samples, err := a.check()
	if err != nil {
		return err
	}
	s := r.borrow()
	defer r.giveBack(s)
	s.row = grow(s.row, a.Classes)
	for i := range samples {
		logits := a.Logits[i*a.Classes:][:a.Classes]
		top := largest(logits)
		for c, x := range logits {
			s.row[c] = exp(x - top)
		}
		total := sumValues(s.row)
		if a.Loss != nil {
			a.Loss[i] = log(total) - (logits[a.Targets[i]] - top)
		}
		if a.Probabilities == nil && a.Grad == nil {
			continue
		}
		divide(s.row, s.row, total)
		if a.Probabilities != nil {
			copy(a.Probabilities[i*a.Classes:], s.row)
		}
		if a.Grad != nil {
			grad := a.Grad[i*a.Classes:][:a.Classes]
			copy(grad, s.row)
			grad[a.Targets[i]] -= 1
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
func (r *reference) FirstNonFinite(values []float32) int { return firstNonFinite(values) }

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
