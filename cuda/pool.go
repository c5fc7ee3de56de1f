package cuda

// MaxPool2d is the geometry of a max-pooling: each of N images of C channels of H x W is covered by windows of KernelH
// x KernelW, a stride of 0 being the kernel's side; Pad values of -Inf stand on each side, at most half of the
// kernel's. Windows that do not fit are left out. XLayout is that of X and its gradient, YLayout of Y and its gradient.
type MaxPool2d struct {
	N, C, H, W       int
	KernelH, KernelW int
	StrideH, StrideW int
	PadH, PadW       int
	XLayout, YLayout Layout
}

// outHeight is (H + 2 PadH - KernelH) / StrideH + 1.
func (p *MaxPool2d) outHeight() int { return windows(p.H, p.KernelH, p.strideH(), p.PadH) }

// outWidth is (W + 2 PadW - KernelW) / StrideW + 1.
func (p *MaxPool2d) outWidth() int { return windows(p.W, p.KernelW, p.strideW(), p.PadW) }

func (p *MaxPool2d) strideH() int {
	if p.StrideH == 0 {
		return p.KernelH
	}
	return p.StrideH
}

func (p *MaxPool2d) strideW() int {
	if p.StrideW == 0 {
		return p.KernelW
	}
	return p.StrideW
}

// MaxPool2dForward is Y, the largest value of each window, and ArgMax (or nil), where it was found: h*W + w in the
// channel's plane. ArgMax has Y's length and, whatever Y's, the layout XLayout. Of equal values the first counts, by h,
// then w; the first NaN counts as the largest.
type MaxPool2dForward struct {
	MaxPool2d
	X, Y   []float32
	ArgMax []int32
}

// MaxPool2dBackward is GradX: each value of GradY is added where ArgMax says, in order of windows; elsewhere GradX is
// zero. ArgMax is that of MaxPool2dForward.
type MaxPool2dBackward struct {
	MaxPool2d
	GradY  []float32
	ArgMax []int32
	GradX  []float32
}

func (p *MaxPool2d) check(op string, x, y []float32, argmax []int32) error {
	p.StrideH, p.StrideW = p.strideH(), p.strideW()
	if err := firstOf(p.XLayout.check(op), p.YLayout.check(op),
		checkWindow(op, "height", p.H, p.KernelH, p.StrideH, p.PadH),
		checkWindow(op, "width", p.W, p.KernelW, p.StrideW, p.PadW)); err != nil {
		return err
	}
	if 2*p.PadH > p.KernelH || 2*p.PadW > p.KernelW {
		return shapeError(op, "padding of %d x %d is more than half of the kernel's %d x %d", p.PadH, p.PadW,
			p.KernelH, p.KernelW)
	}
	if p.H*p.W > extentMax {
		return shapeError(op, "a plane of %d x %d: its places are numbered in 31 bits", p.H, p.W)
	}
	if argmax != nil && len(argmax) != len(y) {
		return shapeError(op, "argmax has %d values, want %d", len(argmax), len(y))
	}
	return firstOf(tensor(op, "x", x, p.N, p.C, p.H, p.W), tensor(op, "y", y, p.N, p.C, p.outHeight(), p.outWidth()))
}

// MaxPool2dForward: see the type.
func (d *Dense) MaxPool2dForward(a MaxPool2dForward) error {
	const op = "max pool forward"
	if err := firstOf(a.check(op, a.X, a.Y, a.ArgMax), separate(op, "y", a.Y, a.X)); err != nil || len(a.Y) == 0 {
		return err
	}
	d.maps.poolForward(&a)
	return nil
}

// MaxPool2dBackward: see the type.
func (d *Dense) MaxPool2dBackward(a MaxPool2dBackward) error {
	const op = "max pool backward"
	if err := firstOf(a.check(op, a.GradX, a.GradY, a.ArgMax), separate(op, "the gradient", a.GradX, a.GradY)); err !=
		nil || len(a.GradY) == 0 {
		return err
	}
	if a.ArgMax == nil {
		return shapeError(op, "no argmax: give MaxPool2dForward's")
	}
	if at := d.maps.poolBackward(&a); at >= 0 {
		return &idError{op: op, position: at, id: int64(a.ArgMax[at]), limit: int64(a.H * a.W)}
	}
	return nil
}

// places gives where value (image, channel, place) of N images of C channels of so many places lies.
type places struct{ image, channel, place int }

func placesOf(l Layout, channels, plane int) places {
	if l == NHWC {
		return places{channels * plane, 1, channels}
	}
	return places{channels * plane, plane, 1}
}

func (goMaps) poolForward(a *MaxPool2dForward) {
	oh, ow := a.outHeight(), a.outWidth()
	in, out, at := placesOf(a.XLayout, a.C, a.H*a.W), placesOf(a.YLayout, a.C, oh*ow), placesOf(a.XLayout, a.C, oh*ow)
	for image := range a.N {
		for channel := range a.C {
			x := a.X[image*in.image+channel*in.channel:]
			for window := range oh * ow {
				top, place := a.largestOf(x, in.place, window/ow*a.StrideH-a.PadH, window%ow*a.StrideW-a.PadW)
				a.Y[image*out.image+channel*out.channel+window*out.place] = top
				if a.ArgMax != nil {
					a.ArgMax[image*at.image+channel*at.channel+window*at.place] = int32(place)
				}
			}
		}
	}
}

// largestOf is the largest value of the window that begins at (row, column) of the plane x, and its place.
func (a *MaxPool2dForward) largestOf(x []float32, step, row, column int) (top float32, place int) {
	place = -1
	for h := max(row, 0); h < min(row+a.KernelH, a.H); h++ {
		for w := max(column, 0); w < min(column+a.KernelW, a.W); w++ {
			v := x[(h*a.W+w)*step]
			if place < 0 || v > top || v != v && top == top {
				top, place = v, h*a.W+w
			}
		}
	}
	return top, place
}

func (goMaps) poolBackward(a *MaxPool2dBackward) int {
	for i, at := range a.ArgMax {
		if uint(at) >= uint(a.H*a.W) {
			return i
		}
	}
	windows := a.outHeight() * a.outWidth()
	in, out, at := placesOf(a.XLayout, a.C, a.H*a.W), placesOf(a.YLayout, a.C, windows), placesOf(a.XLayout, a.C, windows)
	clear(a.GradX)
	for image := range a.N {
		for channel := range a.C {
			x := a.GradX[image*in.image+channel*in.channel:]
			for window := range windows {
				place := a.ArgMax[image*at.image+channel*at.channel+window*at.place]
				x[int(place)*in.place] += a.GradY[image*out.image+channel*out.channel+window*out.place]
			}
		}
	}
	return -1
}

func (goMaps) relayout(a *Relayout) {
	from, to := placesOf(a.From, a.C, a.Plane), placesOf(a.To, a.C, a.Plane)
	for image := range a.N {
		for channel := range a.C {
			x, y := a.X[image*from.image+channel*from.channel:], a.Y[image*to.image+channel*to.channel:]
			for p := range a.Plane {
				y[p*to.place] = x[p*from.place]
			}
		}
	}
}
