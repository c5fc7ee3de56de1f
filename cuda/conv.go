package cuda

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
