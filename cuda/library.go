package cuda

import (
	"fmt"
	"log/slog"
	"slices"
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
// which wraps one of errors.go's. Inputs and outputs may not overlap unless the operation says so.
type Dense struct {
	backend  Backend
	products products
	maps     maps
	why      string
}

// products is what a library does. The arguments were checked, and no length is zero.
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
