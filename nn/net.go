package nn

import (
	"errors"
	"fmt"
	"slices"

	"gradbus/cuda"
)

// ErrOrder says that a Backward has no Forward before it. Nothing was written.
var ErrOrder = errors.New("backward without forward")

// Env is what a Net computes with: bags by Backend, everything else by Dense. A nil Dense stands for the library own,
// whose sums are canonical and slower.
type Env struct {
	Backend cuda.Backend
	Dense   *cuda.Dense
}

// Mode is how a forward pass runs. The zero value is evaluation.
type Mode struct {
	Train  bool   // dropout drops
	Random Random // what it drops; of no effect without Train
}

// Random keys the random numbers of a pass, so that a pass can be repeated anywhere: layer i draws from
// philox.New(Seed, "dropout", Batch, Lane, i), i being its place among all layers of the module.
type Random struct {
	Seed, Batch, Lane uint64
}

// Bags are what a module that begins with a BagLayer pools: sample b is the rows IDs[Offsets[b]:Offsets[b+1]]. Offsets
// [n+1] begin with 0, never fall, and end with the number of IDs. Rows [R, Dim] are those of a served table and nil
// with a local one, whose rows are a parameter.
type Bags struct {
	Rows         []float32
	IDs, Offsets []int64
}

// Net is a module and the memory of one pass: what its layers compute, kept from the forward pass for the backward one
// and reused from call to call, so that nothing is allocated after the first call with the most samples. It is not safe
// for concurrent use; several Nets of one module run in parallel.
type Net struct {
	// GradX makes Backward give the gradient of its input too: of x, or of a served BagLayer's output.
	GradX bool

	layers []placed
	steps  []step
	first  []int // index of each layer's first parameter; one more, the number of parameters
	params []Parameter
	in     []int
	out    []int

	pass    pass
	forward bool // a forward pass is there to go back through
	y       []float32
}

// step is one piece of work of a pass: a layer's, or moving images from one layout into the other before it.
type step struct {
	work
	layer  int
	before int // parameters of the layers before it
}

// pass is what the layers are told of the pass under way.
type pass struct {
	n    int // samples
	mode Mode
	bags Bags

	params   [][]float32 // of the layer at hand
	from     int         // index of the first of them
	grad     func(i int) []float32
	done     func(i int)
	wantX    bool
	mayWrite bool // the layer may write over what it is handed
}

// finish says that parameter i of the layer at hand has its gradient.
func (p *pass) finish(i int) {
	if p.done != nil {
		p.done(p.from + i)
	}
}

// gradOf is where the gradient of parameter i of the layer at hand goes; nil where it is not wanted.
func (p *pass) gradOf(i int) ([]float32, error) {
	if p.grad == nil {
		return nil, nil
	}
	g := p.grad(p.from + i)
	if g != nil && len(g) != len(p.params[i]) {
		return nil, fmt.Errorf("%w: gradient of parameter %d has %d values, want %d", ErrShape, p.from+i, len(g),
			len(p.params[i]))
	}
	return g, nil
}

// work is the memory of one layer of a Net.
type work interface {
	// forward gives y [n, out] from x [n, in]. y is the work's own, or x itself, which it may change only where
	// p.mayWrite.
	forward(p *pass, x []float32) (y []float32, err error)
	// backward writes the gradients of the parameters from gradY [n, out], says of each that it is final, and then gives
	// gradX [n, in] where p.wantX. gradX is the work's own, or gradY itself, which it may change only where p.mayWrite.
	backward(p *pass, gradY []float32) (gradX []float32, err error)
	// keepsY says that the backward pass reads y again, so that the next layer may not write over it.
	keepsY() bool
	// values is how many values of memory a sample takes at most.
	values() int
}

// NewNet gives the memory of a pass of m over samples of the shape in, which is nil where m begins with a BagLayer. It
// fails with ErrShape where the module cannot take such samples, and with ErrConfig where a layer's settings are wrong.
//
//	net, err := nn.NewNet(module, []int{1, 28, 28}, nn.Env{Backend: backend})
func NewNet(m Module, in []int, e Env) (*Net, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	if e.Backend == nil {
		return nil, errors.New("net without a backend")
	}
	if e.Dense == nil {
		own, err := cuda.OpenDense(e.Backend, cuda.DenseOptions{Library: "own"}) // holds nothing that is to be closed
		if err != nil {
			return nil, err
		}
		e.Dense = own
	}
	return netIn(m, in, e, e.Dense.Layout())
}

// netIn is NewNet with the layout of images in which convolutions are to run.
func netIn(m Module, in []int, e Env, fast cuda.Layout) (*Net, error) {
	n := &Net{layers: flatten(m), params: m.Parameters(), in: slices.Clone(in)}
	sites, err := plan(n.layers, n.in, fast)
	if err != nil {
		return nil, err
	}
	n.out = n.in
	layout, from := cuda.NCHW, 0 // of x, and of what comes out
	for i, l := range n.layers {
		s := sites[i]
		n.relayout(e, step{nil, i, from}, s.in, layout, s.inLayout)
		n.steps = append(n.steps, step{l.work(e, s), i, from})
		n.first = append(n.first, from)
		n.out, layout, from = s.out, s.outLayout, from+len(l.parameters())
	}
	n.relayout(e, step{nil, len(n.layers) - 1, from}, n.out, layout, cuda.NCHW)
	n.first = append(n.first, from)
	return n, nil
}

// relayout adds the step that moves images from one layout into the other, where they differ.
func (n *Net) relayout(e Env, s step, shape []int, from, to cuda.Layout) {
	if from != to && len(shape) == 3 && shape[0] > 1 {
		s.work = &relayoutWork{dense: e.Dense, channels: shape[0], plane: shape[1] * shape[2], from: from, to: to}
		n.steps = append(n.steps, s)
	}
}

// In and Out are the shapes of a sample; Parameters are the module's.
func (n *Net) In() []int               { return n.in }
func (n *Net) Out() []int              { return n.out }
func (n *Net) Parameters() []Parameter { return n.params }

// Forward computes y [n, Out] from x [n, In] with params, one slice for each of Parameters, which are read only. x and
// params must stay as they are until Backward; y is the Net's and valid until the next Forward. Samples do not
// influence each other. It fails with ErrShape, or with an error of the backend.
func (n *Net) Forward(params [][]float32, x []float32, mode Mode) (y []float32, err error) {
	if n.pools() {
		return nil, fmt.Errorf("%w: the module pools embedding rows: want ForwardBags", ErrShape)
	}
	size := product(n.in)
	if len(x)%size != 0 {
		return nil, fmt.Errorf("forward: %w: x has %d values, want a multiple of %d, of samples %v", ErrShape,
			len(x), size, n.in)
	}
	return n.run(params, x, len(x)/size, mode, Bags{})
}

// ForwardBags is Forward of a module that begins with a BagLayer.
func (n *Net) ForwardBags(params [][]float32, bags Bags, mode Mode) (y []float32, err error) {
	if !n.pools() {
		return nil, fmt.Errorf("%w: the module pools no embedding rows: want Forward", ErrShape)
	}
	if len(bags.Offsets) == 0 {
		return nil, fmt.Errorf("forward: %w: no offsets: want one more than samples", ErrShape)
	}
	return n.run(params, nil, len(bags.Offsets)-1, mode, bags)
}

func (n *Net) pools() bool {
	if len(n.layers) == 0 {
		return false
	}
	_, pools := n.layers[0].layer.(BagLayer)
	return pools
}

func (n *Net) run(params [][]float32, x []float32, samples int, mode Mode, bags Bags) ([]float32, error) {
	n.forward = false
	if err := n.checkParams(params); err != nil {
		return nil, fmt.Errorf("forward: %w", err)
	}
	n.pass = pass{n: samples, mode: mode, bags: bags}
	mayWrite := false // x is the caller's
	for _, s := range n.steps {
		n.enter(s.layer, params, mayWrite)
		y, err := s.forward(&n.pass, x)
		if err != nil {
			return nil, fmt.Errorf("forward of layer %d: %w", s.layer, err)
		}
		mayWrite = (mayWrite || !same(x, y)) && !s.keepsY()
		x = y
	}
	n.forward, n.y = true, x
	return x, nil
}

// Backward goes back through the last Forward, with the same params: from gradY [n, Out], the gradient of the loss with
// respect to y, it writes the gradient of parameter i to grad(i), which it overwrites, and calls done(i) as soon as
// that is final, while the rest is still to be computed. Parameters come in reverse order of layers. Gradients are sums
// over the samples, never divided. grad is asked once for each parameter and may give nil where the gradient is not
// wanted; done may be nil. gradX [n, In] is nil unless the field GradX is set; it is the Net's and valid until the next
// call. It fails with ErrOrder, with ErrShape, or with an error of the backend.
func (n *Net) Backward(params [][]float32, gradY []float32, grad func(i int) []float32,
	done func(i int)) (gradX []float32, err error) {
	if !n.forward {
		return nil, ErrOrder
	}
	if err := n.checkParams(params); err != nil {
		return nil, fmt.Errorf("backward: %w", err)
	}
	if len(gradY) != len(n.y) {
		return nil, fmt.Errorf("backward: %w: gradY has %d values, want %d", ErrShape, len(gradY), len(n.y))
	}
	n.pass.grad, n.pass.done = grad, done
	n.forward = false // layers write over what they kept
	mayWrite := false // gradY is the caller's
	for _, s := range slices.Backward(n.steps) {
		n.enter(s.layer, params, mayWrite)
		n.pass.wantX = s.before > 0 || n.GradX
		gradX, err := s.backward(&n.pass, gradY)
		if err != nil {
			return nil, fmt.Errorf("backward of layer %d: %w", s.layer, err)
		}
		if !n.pass.wantX {
			return nil, nil
		}
		mayWrite = mayWrite || !same(gradX, gradY)
		gradY = gradX
	}
	return gradY, nil
}

// enter sets the pass up for layer i.
func (n *Net) enter(i int, params [][]float32, mayWrite bool) {
	n.pass.params, n.pass.from, n.pass.mayWrite = params[n.first[i]:n.first[i+1]], n.first[i], mayWrite
}

func (n *Net) checkParams(params [][]float32) error {
	if len(params) != len(n.params) {
		return fmt.Errorf("%w: %d parameters, want %d", ErrShape, len(params), len(n.params))
	}
	for i, p := range n.params {
		if len(params[i]) != p.Elements() {
			return fmt.Errorf("%w: %s has %d values, want %d, shape %v", ErrShape, p.Name, len(params[i]), p.Elements(), p.Shape)
		}
	}
	return nil
}

// Bytes is the memory that the Net takes for passes over so many samples, beside parameters and their gradients, and
// beside what the library of Env.Dense takes while it computes.
func (n *Net) Bytes(samples int) int64 {
	total := int64(0)
	for _, s := range n.steps {
		total += int64(s.values()) * int64(samples) * 4
	}
	return total + total/4 // grown's reserve
}

// same says whether a and b are the same memory.
func same(a, b []float32) bool { return len(a) > 0 && len(b) > 0 && &a[0] == &b[0] }
