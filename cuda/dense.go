package cuda

import (
	"math"
)

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

// Gemm is C = op(A) x op(B) + Bias, or C += that with Accumulate: A is [M, K] ([K, M] where TransA), B [K, N] ([N, K]
// where TransB), Bias [N] or none, added to each row, C [M, N]. With K = 0 the product is zero. With ReLU, C is max(C,
// 0) in the end; not with Accumulate.
//
//	A = {{1, 2}}, B = {{3, 4}, {5, 6}}, Bias = {10, 20}   ->   C = {{23, 36}}
type Gemm struct {
	M, N, K        int
	TransA, TransB bool
	Accumulate     bool
	ReLU           bool
	A, B, Bias, C  []float32
}

func (a *Gemm) check() error {
	const op = "gemm"
	if err := firstOf(tensor(op, "a", a.A, a.M, a.K), tensor(op, "b", a.B, a.K, a.N),
		tensor(op, "c", a.C, a.M, a.N)); err != nil {
		return err
	}
	if a.Bias != nil {
		if err := tensor(op, "bias", a.Bias, a.N); err != nil {
			return err
		}
	}
	if a.ReLU && a.Accumulate {
		return argumentError(op, "ReLU and Accumulate together")
	}
	return separate(op, "c", a.C, a.A, a.B, a.Bias)
}

// Gemm: see the type.
func (d *Dense) Gemm(a Gemm) error {
	if err := a.check(); err != nil {
		return err
	}
	if len(a.C) == 0 {
		return nil
	}
	if a.K == 0 {
		a.zeroProduct()
		return nil
	}
	return d.products.gemm(&a)
}

// zeroProduct is a product over nothing: the bias alone.
func (a *Gemm) zeroProduct() {
	if !a.Accumulate {
		clear(a.C)
	}
	if a.Bias != nil {
		for m := range a.M {
			add(a.C[m*a.N:][:a.N], a.Bias)
		}
	}
	if a.ReLU {
		goMaps{}.reluForward(a.C, a.C)
	}
}

// addBias is Y = X + Bias for each row: X and Y [Rows, Columns], Bias [Columns]. Y may be X.
//
//	X = {{1, 2}, {3, 4}}, Bias = {10, 20}   ->   Y = {{11, 22}, {13, 24}}
type addBias struct {
	rows, columns int
	x, bias, y    []float32
}

// addBias: see the type.
func (d *Dense) addBias(a addBias) error {
	const op = "add bias"
	if err := firstOf(tensor(op, "x", a.x, a.rows, a.columns), tensor(op, "bias", a.bias, a.columns),
		tensor(op, "y", a.y, a.rows, a.columns), separate(op, "y", a.y, a.bias), inPlace(op, "y", a.y, a.x)); err != nil {
		return err
	}
	d.maps.addBias(&a)
	return nil
}

// ColumnSums is Out[j] = the sum over i of X[i, j], in canonical order; X is [Rows, Columns], Out [Columns]. It is the
// gradient of a bias.
//
//	X = {{1, 2}, {3, 4}}   ->   Out = {4, 6}
type ColumnSums struct {
	Rows, Columns int
	X, Out        []float32
}

// ColumnSums: see the type.
func (d *Dense) ColumnSums(a ColumnSums) error {
	const op = "column sums"
	if err := firstOf(tensor(op, "x", a.X, a.Rows, a.Columns), tensor(op, "out", a.Out, a.Columns),
		separate(op, "out", a.Out, a.X)); err != nil {
		return err
	}
	if a.Columns > 0 {
		d.maps.columnSums(&a)
	}
	return nil
}

// Layout is the order of the values of a batch of images.
type Layout uint32

const (
	NCHW Layout = 0 // [N, channels, H, W], PyTorch's
	NHWC Layout = 1 // [N, H, W, channels], "channels last"
)

// Conv2d is the geometry of a convolution (cross-correlation, as in PyTorch): X is N images of C channels of H x W, Y
// is N images of Out channels of the outHeight x outWidth that the kernel gives. Weight is [Out, C, KernelH, KernelW]
// in either layout. A stride of 0 is 1; Pad values of zeros stand on each side.
type Conv2d struct {
	N, C, H, W       int
	Out              int
	KernelH, KernelW int
	StrideH, StrideW int
	PadH, PadW       int
	Layout           Layout // of X and Y and their gradients
}

// outHeight is (H + 2 PadH - KernelH) / StrideH + 1.
func (c *Conv2d) outHeight() int { return windows(c.H, c.KernelH, c.StrideH, c.PadH) }

// outWidth is (W + 2 PadW - KernelW) / StrideW + 1.
func (c *Conv2d) outWidth() int { return windows(c.W, c.KernelW, c.StrideW, c.PadW) }

// windows counts the positions of a kernel along one side.
func windows(n, kernel, stride, pad int) int { return (n+2*pad-kernel)/max(stride, 1) + 1 }

// checkWindow refuses what a kernel along one side may not be.
func checkWindow(op, side string, n, kernel, stride, pad int) error {
	switch {
	case n < 1 || n > sideMax:
		return shapeError(op, "%s of the image is %d, want 1 to %d", side, n, sideMax)
	case kernel < 1 || kernel > sideMax:
		return shapeError(op, "%s of the kernel is %d, want 1 to %d", side, kernel, sideMax)
	case stride < 0 || stride > sideMax:
		return shapeError(op, "stride along the %s is %d, want 1 to %d", side, stride, sideMax)
	case pad < 0 || pad >= kernel:
		return shapeError(op, "padding along the %s is %d, want 0 to %d, less than the kernel", side, pad, kernel-1)
	case n+2*pad < kernel:
		return shapeError(op, "%s of the kernel is %d, more than the padded image's %d", side, kernel, n+2*pad)
	}
	return nil
}

const sideMax = 1 << 16

func (l Layout) check(op string) error {
	if l > NHWC {
		return argumentError(op, "layout %d, want NCHW or NHWC", l)
	}
	return nil
}

// check checks the geometry and the tensors that are not nil.
func (c *Conv2d) check(op string, x, weight, y []float32) error {
	if err := firstOf(c.Layout.check(op), checkWindow(op, "height", c.H, c.KernelH, c.StrideH, c.PadH),
		checkWindow(op, "width", c.W, c.KernelW, c.StrideW, c.PadW)); err != nil {
		return err
	}
	c.StrideH, c.StrideW = max(c.StrideH, 1), max(c.StrideW, 1)
	if c.C < 1 || c.Out < 1 {
		return shapeError(op, "%d channels to %d", c.C, c.Out)
	}
	return firstOf(tensor(op, "x", x, c.N, c.C, c.H, c.W), tensor(op, "weight", weight, c.Out, c.C, c.KernelH, c.KernelW),
		tensor(op, "y", y, c.N, c.Out, c.outHeight(), c.outWidth()))
}

func checkBias(op string, bias []float32, n int) error {
	if bias == nil {
		return nil
	}
	return tensor(op, "bias", bias, n)
}

// Conv2dForward is Y = conv(X, Weight) + Bias; Bias is [Out] or nil. With ReLU, Y is max(Y, 0).
type Conv2dForward struct {
	Conv2d
	ReLU               bool
	X, Weight, Bias, Y []float32
}

// Conv2dForward: see the type.
func (d *Dense) Conv2dForward(a Conv2dForward) error {
	const op = "conv2d forward"
	if err := firstOf(a.check(op, a.X, a.Weight, a.Y), checkBias(op, a.Bias, a.Out),
		separate(op, "y", a.Y, a.X, a.Weight, a.Bias)); err != nil || a.N == 0 {
		return err
	}
	return d.products.convForward(&a)
}

// Conv2dBackwardInput is GradX, the gradient with respect to X, from GradY and Weight.
type Conv2dBackwardInput struct {
	Conv2d
	GradY, Weight, GradX []float32
}

// Conv2dBackwardInput: see the type.
func (d *Dense) Conv2dBackwardInput(a Conv2dBackwardInput) error {
	const op = "conv2d backward input"
	if err := firstOf(a.check(op, a.GradX, a.Weight, a.GradY),
		separate(op, "the gradient", a.GradX, a.GradY, a.Weight)); err != nil || a.N == 0 {
		return err
	}
	return d.products.convBackwardInput(&a)
}

// Conv2dBackwardParams is GradWeight, laid out as Weight, and GradBias [Out], which may be nil, summed over the N
// images; both are zero where there is none.
type Conv2dBackwardParams struct {
	Conv2d
	X, GradY, GradWeight, GradBias []float32
}

// Conv2dBackwardParams: see the type.
func (d *Dense) Conv2dBackwardParams(a Conv2dBackwardParams) error {
	const op = "conv2d backward params"
	if err := firstOf(a.check(op, a.X, a.GradWeight, a.GradY), checkBias(op, a.GradBias, a.Out),
		separate(op, "the gradient of the weight", a.GradWeight, a.X, a.GradY, a.GradBias),
		separate(op, "the gradient of the bias", a.GradBias, a.X, a.GradY)); err != nil {
		return err
	}
	if a.N == 0 {
		clear(a.GradWeight)
		clear(a.GradBias)
		return nil
	}
	return d.products.convBackwardParams(&a)
}

// Relayout copies N images of C channels of Plane = H*W values from one layout into the other: X in From, Y in To.
//
//	N = 1, C = 2, Plane = 3, NCHW to NHWC: {1, 2, 3, 10, 20, 30}   ->   {1, 10, 2, 20, 3, 30}
type Relayout struct {
	N, C, Plane int
	From, To    Layout
	X, Y        []float32
}

// Relayout: see the type.
func (d *Dense) Relayout(a Relayout) error {
	const op = "relayout"
	if err := firstOf(a.From.check(op), a.To.check(op), tensor(op, "x", a.X, a.N, a.C, a.Plane),
		tensor(op, "y", a.Y, a.N, a.C, a.Plane), separate(op, "y", a.Y, a.X)); err != nil {
		return err
	}
	if a.From == a.To || a.C == 1 || a.Plane == 1 {
		copy(a.Y, a.X)
		return nil
	}
	d.maps.relayout(&a)
	return nil
}

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
