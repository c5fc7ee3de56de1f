package cuda

// RowSoftmax is, for each of Rows rows of Columns values, with m the largest of x and s the canonical sum of e = exp(x
// - m): y = e / s, or, with Log, y = (x - m) - log(s). Y may be X.
//
//	X = {{0, 0}}   ->   Y = {{0.5, 0.5}}, with Log {{-0.6931472, -0.6931472}}
type RowSoftmax struct {
	Rows, Columns int
	Log           bool
	X, Y          []float32
}

// RowSoftmaxBackward is the gradient of RowSoftmax with respect to X, from its Y and the gradient of that:
// gradX = y * (gradY - sum(gradY * y)), or, with Log, gradX = gradY - exp(y) * sum(gradY); the sums over a row are
// canonical. GradX may be GradY.
type RowSoftmaxBackward struct {
	Rows, Columns   int
	Log             bool
	Y, GradY, GradX []float32
}

// Softmax: see RowSoftmax.
func (d *Dense) Softmax(a RowSoftmax) error {
	const op = "softmax"
	if err := firstOf(tensor(op, "x", a.X, a.Rows, a.Columns), tensor(op, "y", a.Y, a.Rows, a.Columns),
		inPlace(op, "y", a.Y, a.X)); err != nil || len(a.X) == 0 {
		return err
	}
	d.maps.softmaxForward(&a)
	return nil
}

// SoftmaxBackward: see RowSoftmaxBackward.
func (d *Dense) SoftmaxBackward(a RowSoftmaxBackward) error {
	const op = "softmax backward"
	if err := firstOf(tensor(op, "y", a.Y, a.Rows, a.Columns), tensor(op, "gradY", a.GradY, a.Rows, a.Columns),
		tensor(op, "gradX", a.GradX, a.Rows, a.Columns), separate(op, "gradX", a.GradX, a.Y),
		inPlace(op, "gradX", a.GradX, a.GradY)); err != nil || len(a.Y) == 0 {
		return err
	}
	d.maps.softmaxBackward(&a)
	return nil
}

func (goMaps) softmaxForward(a *RowSoftmax) {
	e := make([]float32, a.Columns)
	for i := range a.Rows {
		x, y := a.X[i*a.Columns:][:a.Columns], a.Y[i*a.Columns:][:a.Columns]
		top := largest(x)
		for c, v := range x {
			e[c] = exp(v - top)
		}
		total := sumValues(e)
		if !a.Log {
			divide(y, e, total)
			continue
		}
		by := log(total)
		for c, v := range x {
			y[c] = (v - top) - by
		}
	}
}

func (goMaps) softmaxBackward(a *RowSoftmaxBackward) {
	terms := make([]float32, a.Columns)
	for i := range a.Rows {
		at := i * a.Columns
		y, gradY, gradX := a.Y[at:][:a.Columns], a.GradY[at:][:a.Columns], a.GradX[at:][:a.Columns]
		if a.Log {
			total := sumValues(gradY)
			for c, v := range y {
				gradX[c] = gradY[c] - float32(exp(v)*total)
			}
			continue
		}
		for c, v := range y {
			terms[c] = gradY[c] * v
		}
		total := sumValues(terms)
		for c, v := range y {
			gradX[c] = float32(v * (gradY[c] - total))
		}
	}
}
