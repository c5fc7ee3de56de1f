package cuda

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
)

// DenseOptions of OpenDense. The zero value takes the fastest library that this machine has.
type DenseOptions struct {
	// Library computes products and convolutions: "auto" (or empty), "onednn", "openblas", "cublas" or "own". Own is the
	// backend's MatMul, in canonical order, and always there. Auto is onednn where it is installed, then openblas, then
	// own; it is own on the backend go, which stands for portable bits.
	Library string
	// Path is the file of the library, where the system's own is not wanted: to test or measure another build of it.
	Path string
	// Log, where set, gets one line with what was chosen and why.
	Log *slog.Logger
}

// DenseNames are the values that DenseOptions.Library may have.
func DenseNames() []string { return []string{"auto", "onednn", "openblas", "own", "cublas"} }

// Dense is the dense linear algebra of layers: matrix products and convolutions by a library that is made for them and
// opened at run time, and pooling and elementwise operations, which are written here. Everything is float32 and
// row-major.
//
// Products and convolutions of a library have its bits, which depend on its version, the instruction set and the
// shapes, but neither on the number of threads nor on what else runs: every call computes on its caller's thread alone.
// Name says whose bits they are. The library own has the bits of Backend.MatMul on every backend. The operations that
// are not of the library (pooling, ReLU, softmax, sums of columns ...) have the same bits on every backend and with
// every library.
//
// Methods may be called from several goroutines at once. They leave their outputs untouched when they return an error,
// which wraps one of the errors of cuda.go. Inputs and outputs may not overlap unless the operation says so.
type Dense struct {
	backend  Backend
	products products
	maps     maps
	why      string
}

// products are the operations of a library. The arguments were checked, and no length is zero.
type products interface {
	name() string
	gemm(*Gemm) error
	convForward(*Conv2dForward) error
	convBackwardInput(*Conv2dBackwardInput) error
	convBackwardParams(*Conv2dBackwardParams) error
	close()
}

// maps are the operations that are written here. The arguments were checked.
type maps interface {
	reluForward(x, y []float32)
	reluBackward(y, gradY, gradX []float32)
	addBias(*addBias)
	columnSums(*ColumnSums)
	scale(*Scale)
	poolForward(*MaxPool2dForward)
	poolBackward(*MaxPool2dBackward) int // -1, or the position of a place outside the plane
	relayout(*Relayout)
	softmaxForward(*RowSoftmax)
	softmaxBackward(*RowSoftmaxBackward)
}

// OpenDense gives the dense operations beside a backend, or an error that wraps ErrNoBackend or ErrArgument and says
// what would work. A Dense is closed before its backend.
func OpenDense(b Backend, o DenseOptions) (*Dense, error) {
	d, err := openDense(b, o)
	if err != nil {
		return nil, fmt.Errorf("open dense library %q: %w", o.Library, err)
	}
	if o.Log != nil {
		o.Log.Info("dense library chosen", "library", d.Name(), "reason", d.why)
	}
	return d, nil
}

func openDense(b Backend, o DenseOptions) (*Dense, error) {
	d := &Dense{backend: b, maps: goMaps{}}
	if b.Name() != "go" {
		d.maps = nativeMaps(b.ISA())
	}
	var err error
	switch {
	case o.Path != "" && !slices.Contains([]string{"onednn", "openblas", "cublas"}, o.Library):
		err = fmt.Errorf("%w: path %q goes with onednn, openblas or cublas", ErrArgument, o.Path)
	case o.Library == "" || o.Library == "auto":
		d.products, d.why = autoProducts(b)
	case o.Library == "own":
		d.products, d.why = newOwnProducts(b), "asked for"
	case slices.Contains(DenseNames(), o.Library):
		d.products, err = openProducts(o.Library, o.Path)
		d.why = "asked for"
	default:
		err = fmt.Errorf("%w: want one of %q", ErrArgument, DenseNames())
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// autoProducts takes the first library that opens, and says why not the ones before it.
func autoProducts(b Backend) (products, string) {
	switch {
	case b.Name() == "go":
		return newOwnProducts(b), "auto: the backend go stands for portable bits"
	case !nativeBuilt:
		return newOwnProducts(b), "auto: this build has no native library (" + howToBuild + ")"
	}
	why := "auto"
	for _, name := range []string{"onednn", "openblas"} {
		p, err := openProducts(name, "")
		if err == nil {
			return p, why
		}
		why += fmt.Sprintf(": no %s: %v", name, err)
	}
	return newOwnProducts(b), why
}

// Name says whose bits products and convolutions are, for manifests: "onednn 2.6.3 avx512_core", "openblas 0.3.21 zen"
// or "own".
func (d *Dense) Name() string { return d.products.name() }

// Reason is why this library was chosen, for a log.
func (d *Dense) Reason() string { return d.why }

// Layout is the layout of images in which convolutions are fastest, with every library so far. All operations take
// both.
func (d *Dense) Layout() Layout { return NHWC }

// Close gives back what the library holds. No call may be under way.
func (d *Dense) Close() error {
	d.products.close()
	return nil
}

// tensor refuses a tensor of another length.
func tensor(op, name string, values []float32, dims ...int) error {
	n := 1
	for _, d := range dims {
		if d < 0 || d > extentMax {
			return shapeError(op, "%s is %s", name, times(dims))
		}
		if n *= d; n > elementsMax {
			return shapeError(op, "%s is %s, more than 2^40 values", name, times(dims))
		}
	}
	if len(values) != n {
		return shapeError(op, "%s has %d values, want %s", name, len(values), times(dims))
	}
	return nil
}

const (
	extentMax   = 1<<31 - 1 // of one dimension: the libraries count in 32 bits
	elementsMax = 1 << 40
)

// times writes dims as "3 x 4".
func times(dims []int) string {
	text := ""
	for i, d := range dims {
		if i > 0 {
			text += " x "
		}
		text += fmt.Sprint(d)
	}
	return text
}

// separate refuses an output that shares memory with an input.
func separate(op, name string, out []float32, others ...[]float32) error {
	for _, o := range others {
		if overlaps(Float32s(out), Float32s(o)) {
			return fmt.Errorf("%s: %w: %s shares memory with another argument", op, ErrOverlap, name)
		}
	}
	return nil
}

// inPlace refuses an output that overlaps an input without being it.
func inPlace(op, name string, out, in []float32) error {
	if a, b := Float32s(out), Float32s(in); !a.is(b) && overlaps(a, b) {
		return fmt.Errorf("%s: %w: %s is shifted against its input", op, ErrOverlap, name)
	}
	return nil
}

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

// ownProducts are products and convolutions by the backend's MatMul, in canonical order: the same bits on every
// backend. A convolution becomes products of matrices whose rows are the windows of an image: for each image, in turn,
// Y [Out, places] = Weight [Out, C*KernelH*KernelW] times the windows. What several images add up to is added image by
// image.
type ownProducts struct {
	lowered
	backend Backend
	sums    *sync.Pool // of *[]float32, where a product is before it is accumulated
}

func newOwnProducts(b Backend) *ownProducts {
	o := &ownProducts{backend: b, sums: newFloatsPool()}
	o.lowered = newLowered(o.gemm)
	return o
}

func newFloatsPool() *sync.Pool { return &sync.Pool{New: func() any { return new([]float32) }} }

func (o *ownProducts) name() string { return "own" }
func (o *ownProducts) close()       {}

func (o *ownProducts) gemm(a *Gemm) error {
	call := MatMul{M: a.M, N: a.N, K: a.K, TransA: a.TransA, TransB: a.TransB, A: Float32s(a.A), B: Float32s(a.B),
		Bias: Float32s(a.Bias), C: Float32s(a.C)}
	if !a.Accumulate {
		err := o.backend.MatMul(call)
		if err == nil && a.ReLU {
			goMaps{}.reluForward(a.C, a.C)
		}
		return err
	}
	sum := o.sums.Get().(*[]float32)
	defer o.sums.Put(sum)
	*sum = grow(*sum, len(a.C))
	call.C = Float32s(*sum)
	err := o.backend.MatMul(call)
	if err == nil {
		add(a.C, *sum)
	}
	return err
}
