package cuda

import "sync"

// lowered does convolutions by matrix products, for libraries that have no convolutions: the windows of an image are
// copied into a matrix, [C*KernelH*KernelW, places] in NCHW, [places, KernelH*KernelW*C] in NHWC. Images follow each
// other, and what they add up to is added in their order.
type lowered struct {
	product func(*Gemm) error
	memory  *sync.Pool // of *[]float32
}

func newLowered(product func(*Gemm) error) lowered { return lowered{product, newFloatsPool()} }

// room is memory for so many values, to be given back.
func (l *lowered) room(n int) (*[]float32, []float32) {
	m := l.memory.Get().(*[]float32)
	*m = grow(*m, n)
	return m, *m
}

// matrix is the size of an image's matrix of windows.
func (c *Conv2d) matrix() (terms, places int) {
	return c.C * c.KernelH * c.KernelW, c.outHeight() * c.outWidth()
}

// image is image i of values, which are n images.
func image(values []float32, i, n int) []float32 {
	size := len(values) / n
	return values[i*size:][:size]
}

// lastChannels writes the weight [Out, C, KernelH, KernelW] as [Out, KernelH, KernelW, C].
func (c *Conv2d) lastChannels(to, from []float32) {
	plane := c.KernelH * c.KernelW
	goMaps{}.relayout(&Relayout{N: c.Out, C: c.C, Plane: plane, From: NCHW, To: NHWC, X: from, Y: to})
}

func (l *lowered) convForward(a *Conv2dForward) error {
	terms, places := a.matrix()
	windows, columns := l.room(terms*places + len(a.Weight))
	defer l.memory.Put(windows)
	matrix, weight := columns[:terms*places], a.Weight
	if a.Layout == NHWC {
		weight = columns[terms*places:]
		a.lastChannels(weight, a.Weight)
	}
	for i := range a.N {
		a.gather(matrix, image(a.X, i, a.N))
		y := image(a.Y, i, a.N)
		g := Gemm{M: a.Out, N: places, K: terms, A: weight, B: matrix, C: y}
		if a.Layout == NHWC {
			g = Gemm{M: places, N: a.Out, K: terms, TransB: true, A: matrix, B: weight, Bias: a.Bias, C: y}
		}
		if err := l.product(&g); err != nil {
			return err
		}
		if a.Layout == NCHW && a.Bias != nil {
			for o, b := range a.Bias {
				plane := y[o*places:][:places]
				for p := range plane {
					plane[p] += b
				}
			}
		}
	}
	if a.ReLU {
		goMaps{}.reluForward(a.Y, a.Y)
	}
	return nil
}

func (l *lowered) convBackwardInput(a *Conv2dBackwardInput) error {
	terms, places := a.matrix()
	windows, columns := l.room(terms*places + len(a.Weight))
	defer l.memory.Put(windows)
	matrix, weight := columns[:terms*places], a.Weight
	if a.Layout == NHWC {
		weight = columns[terms*places:]
		a.lastChannels(weight, a.Weight)
	}
	clear(a.GradX)
	for i := range a.N {
		y := image(a.GradY, i, a.N)
		g := Gemm{M: terms, N: places, K: a.Out, TransA: true, A: weight, B: y, C: matrix}
		if a.Layout == NHWC {
			g = Gemm{M: places, N: terms, K: a.Out, A: y, B: weight, C: matrix}
		}
		if err := l.product(&g); err != nil {
			return err
		}
		a.scatter(image(a.GradX, i, a.N), matrix)
	}
	return nil
}

func (l *lowered) convBackwardParams(a *Conv2dBackwardParams) error {
	terms, places := a.matrix()
	windows, columns := l.room(terms*places + len(a.GradWeight))
	defer l.memory.Put(windows)
	matrix, weight := columns[:terms*places], a.GradWeight
	if a.Layout == NHWC {
		weight = columns[terms*places:]
	}
	clear(a.GradBias)
	for i := range a.N {
		a.gather(matrix, image(a.X, i, a.N))
		y := image(a.GradY, i, a.N)
		g := Gemm{M: a.Out, N: terms, K: places, TransB: true, A: y, B: matrix, C: weight, Accumulate: i > 0}
		if a.Layout == NHWC {
			g = Gemm{M: a.Out, N: terms, K: places, TransA: true, A: y, B: matrix, C: weight, Accumulate: i > 0}
		}
		if err := l.product(&g); err != nil {
			return err
		}
		a.addBiasOf(y, places)
	}
	if a.Layout == NHWC {
		goMaps{}.relayout(&Relayout{N: a.Out, C: a.C, Plane: a.KernelH * a.KernelW, From: NHWC, To: NCHW, X: weight,
			Y: a.GradWeight})
	}
	return nil
}

// addBiasOf adds the sums of an image's gradient over its places to GradBias, each in canonical order.
func (a *Conv2dBackwardParams) addBiasOf(y []float32, places int) {
	if a.GradBias == nil {
		return
	}
	if a.Layout == NCHW {
		for o := range a.GradBias {
			a.GradBias[o] += sumValues(y[o*places:][:places])
		}
		return
	}
	sums := make([]float32, a.Out)
	goMaps{}.columnSums(&ColumnSums{Rows: places, Columns: a.Out, X: y, Out: sums})
	add(a.GradBias, sums)
}

// inside is the windows [lo, hi) along one side whose value at the kernel's offset k lies inside the image.
func inside(n, count, k, stride, pad int) (lo, hi int) {
	if k < pad {
		lo = (pad - k + stride - 1) / stride
	}
	if n+pad-k > 0 {
		hi = min((n+pad-k-1)/stride+1, count)
	}
	return min(lo, count), max(hi, min(lo, count))
}

// gather copies the windows of one image into the matrix; what lies outside the image is zero.
func (c *Conv2d) gather(matrix, x []float32) {
	oh, ow := c.outHeight(), c.outWidth()
	if c.PadH > 0 || c.PadW > 0 {
		clear(matrix)
	}
	for kh := range c.KernelH {
		top, bottom := inside(c.H, oh, kh, c.StrideH, c.PadH)
		for kw := range c.KernelW {
			left, right := inside(c.W, ow, kw, c.StrideW, c.PadW)
			for h := top; h < bottom; h++ {
				row := (h*c.StrideH + kh - c.PadH) * c.W
				for w := left; w < right; w++ {
					from, place := row+w*c.StrideW+kw-c.PadW, h*ow+w
					if c.Layout == NHWC {
						copy(matrix[((place*c.KernelH+kh)*c.KernelW+kw)*c.C:][:c.C], x[from*c.C:][:c.C])
						continue
					}
					for channel := range c.C {
						matrix[((channel*c.KernelH+kh)*c.KernelW+kw)*oh*ow+place] = x[channel*c.H*c.W+from]
					}
				}
			}
		}
	}
}

// scatter adds the matrix's values to the places of one image that gather took them from.
func (c *Conv2d) scatter(x, matrix []float32) {
	oh, ow := c.outHeight(), c.outWidth()
	for kh := range c.KernelH {
		top, bottom := inside(c.H, oh, kh, c.StrideH, c.PadH)
		for kw := range c.KernelW {
			left, right := inside(c.W, ow, kw, c.StrideW, c.PadW)
			for h := top; h < bottom; h++ {
				row := (h*c.StrideH + kh - c.PadH) * c.W
				for w := left; w < right; w++ {
					to, place := row+w*c.StrideW+kw-c.PadW, h*ow+w
					if c.Layout == NHWC {
						add(x[to*c.C:][:c.C], matrix[((place*c.KernelH+kh)*c.KernelW+kw)*c.C:][:c.C])
						continue
					}
					for channel := range c.C {
						x[channel*c.H*c.W+to] += matrix[((channel*c.KernelH+kh)*c.KernelW+kw)*oh*ow+place]
					}
				}
			}
		}
	}
}
