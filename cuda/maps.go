package cuda

// goMaps are the elementwise operations in portable Go: the oracle of the native ones, with the same bits.
type goMaps struct{}

// ReLUForward writes y = x where x > 0 and +0 where x <= 0; NaN passes on. y may be x.
//
//	x = {-1, 2}   ->   y = {0, 2}
func (d *Dense) ReLUForward(x, y []float32) error {
	const op = "relu forward"
	if err := firstOf(tensor(op, "y", y, len(x)), inPlace(op, "y", y, x)); err != nil {
		return err
	}
	d.maps.reluForward(x, y)
	return nil
}

// ReLUBackward writes gradX = gradY where y > 0, else +0, from the y of ReLUForward (or its x: the sign is the same).
// gradX may be gradY or y.
//
//	y = {0, 2}, gradY = {5, 7}   ->   gradX = {0, 7}
func (d *Dense) ReLUBackward(y, gradY, gradX []float32) error {
	const op = "relu backward"
	if err := firstOf(tensor(op, "gradY", gradY, len(y)), tensor(op, "gradX", gradX, len(y)),
		inPlace(op, "gradX", gradX, gradY), inPlace(op, "gradX", gradX, y)); err != nil {
		return err
	}
	d.maps.reluBackward(y, gradY, gradX)
	return nil
}

// Scale is Out = X times By, one factor for each image and channel: X and Out are N images of C channels of Plane
// values, in Layout, By is [N, C]. With Plane = 1 it multiplies elementwise. Out may be X. It is dropout, forward and
// backward, with By drawn by philox.Source.Mask.
//
//	N = 1, C = 2, Plane = 2, NCHW, By = {0, 2}: {1, 2, 3, 4}   ->   {0, 0, 6, 8}
type Scale struct {
	N, C, Plane int
	Layout      Layout
	X, By, Out  []float32
}

// Scale: see the type.
func (d *Dense) Scale(a Scale) error {
	const op = "scale"
	if err := firstOf(a.Layout.check(op), tensor(op, "x", a.X, a.N, a.C, a.Plane), tensor(op, "by", a.By, a.N, a.C),
		tensor(op, "out", a.Out, a.N, a.C, a.Plane), inPlace(op, "out", a.Out, a.X), a.apart(op)); err != nil {
		return err
	}
	if len(a.X) > 0 {
		d.maps.scale(&a)
	}
	return nil
}

// apart lets out be by where every value has its own factor.
func (a *Scale) apart(op string) error {
	if a.Plane == 1 {
		return inPlace(op, "out", a.Out, a.By)
	}
	return separate(op, "out", a.Out, a.By)
}

func (goMaps) reluForward(x, y []float32) {
	y = y[:len(x)]
	for i, v := range x {
		if v <= 0 {
			v = 0
		}
		y[i] = v
	}
}

func (goMaps) reluBackward(y, gradY, gradX []float32) {
	gradY, gradX = gradY[:len(y)], gradX[:len(y)]
	for i, v := range y {
		g := gradY[i]
		if !(v > 0) {
			g = 0
		}
		gradX[i] = g
	}
}

func (goMaps) addBias(a *addBias) {
	for i := range a.rows {
		x, y := a.x[i*a.columns:][:a.columns], a.y[i*a.columns:][:a.columns]
		for j, b := range a.bias {
			y[j] = x[j] + b
		}
	}
}

func (goMaps) columnSums(a *ColumnSums) {
	n := a.Columns
	levels := make([]float32, 2*n)
	block, super := levels[:n], levels[n:]
	clear(a.Out)
	for lo := 0; lo < a.Rows; lo += superTerms {
		end := min(lo+superTerms, a.Rows)
		clear(super)
		for at := lo; at < end; at += blockTerms {
			clear(block)
			for i := at; i < min(at+blockTerms, end); i++ {
				add(block, a.X[i*n:][:n])
			}
			add(super, block)
		}
		add(a.Out, super)
	}
}

func (goMaps) scale(a *Scale) {
	if a.Layout == NHWC || a.Plane == 1 {
		for i := range a.N {
			by := a.By[i*a.C:][:a.C]
			for p := range a.Plane {
				at := (i*a.Plane + p) * a.C
				x, out := a.X[at:][:a.C], a.Out[at:][:a.C]
				for c, f := range by {
					out[c] = x[c] * f
				}
			}
		}
		return
	}
	for i, f := range a.By {
		x, out := a.X[i*a.Plane:][:a.Plane], a.Out[i*a.Plane:][:a.Plane]
		for p, v := range x {
			out[p] = v * f
		}
	}
}
