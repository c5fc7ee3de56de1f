package cuda

// sgdStep is the update of one run of values. Momentum is off where m is nil; the weight decay is left out where it is
// 0, so that parameters which are not finite do not spread through 0 * p.
//
// Source: torch.optim.SGD (Sutskever et al. 2013, with the learning rate outside the velocity).
func (h SGD) sgdStep(first bool, weight float32, p, g, m, out, outM []float32) {
	g, out = g[:len(p)], out[:len(p)]
	keep := float32(1) - h.Dampening
	for i, pv := range p {
		d := g[i] / weight
		if h.WeightDecay != 0 {
			d += float32(h.WeightDecay * pv)
		}
		u := d
		if m != nil {
			mv := d
			if !first {
				mv = float32(h.Momentum*m[i]) + float32(keep*d)
			}
			u = mv
			if h.Nesterov {
				u = d + float32(h.Momentum*mv)
			}
			outM[i] = mv
		}
		out[i] = pv - float32(h.LR*u)
	}
}

// ApplyRows: see the interface.
func (r *reference) ApplyRows(a ApplyRows) error {
	if err := a.check(); err != nil {
		return err
	}
	d := a.Dim
	for i, row := range a.Index {
		p, g, out := a.Table[int(row)*d:][:d], a.Grad[i*d:][:d], a.Out[i*d:][:d]
		if a.SGD.Momentum == 0 {
			a.SGD.sgdStep(false, a.Weight, p, g, nil, out, nil)
			continue
		}
		a.SGD.sgdStep(a.First[i] != 0, a.Weight, p, g, a.Momentum[int(row)*d:][:d], out, a.OutMomentum[i*d:][:d])
	}
	return nil
}

// ApplyDense: see the interface.
func (r *reference) ApplyDense(a ApplyDense) error {
	if err := a.check(); err != nil {
		return err
	}
	if len(a.Param) > 0 {
		a.SGD.sgdStep(a.First, a.Weight, a.Param, a.Grad, a.Momentum, a.Out, a.OutMomentum)
	}
	return nil
}
