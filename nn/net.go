package nn

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"gradbus/cuda"
	"gradbus/philox"
)

// ErrOrder reports a Backward without a Forward before it. Nothing was written.
var ErrOrder = errors.New("backward without forward")

// Env is the arithmetic of a Net: Backend for bags, Dense for everything else. A nil Dense selects the library "own",
// whose sums are canonical and slower.
type Env struct {
	Backend cuda.Backend
	Dense   *cuda.Dense
}

// Mode is the mode of a forward pass. The zero value is evaluation.
type Mode struct {
	Train  bool   // enable dropout
	Random Random // keys of dropout's random numbers; ignored without Train
}

// Random keys the random numbers of a pass, so that a pass can be repeated anywhere: layer i draws from
// philox.New(Seed, "dropout", Batch, Lane, i), i being its index among all layers of the module.
type Random struct {
	Seed, Batch, Lane uint64
}

// Bags is the input of a module that begins with a BagLayer: sample b is the rows IDs[Offsets[b]:Offsets[b+1]]. Offsets
// [n+1] begin with 0, do not decrease, and end with the number of IDs. Rows [R, Dim] are those of a served table, and
// nil with a local one, whose rows are a parameter.
type Bags struct {
	Rows         []float32
	IDs, Offsets []int64
}

// Net is a module and the memory of one pass. It stores what the backward pass needs of the forward pass, and reuses
// the memory, so it allocates nothing once it has seen its largest batch. It is not safe for concurrent use; several
// Nets of one module may run in parallel.
type Net struct {
	// GradX makes Backward also return the gradient of its input: of x, or of a served BagLayer's output.
	GradX bool

	layers []placed
	steps  []step
	first  []int // index of each layer's first parameter, and at the end the number of parameters
	params []Parameter
	in     []int
	out    []int

	pass    pass
	forward bool // Backward may follow
	y       []float32
}

// step is one piece of work of a pass: a layer, or a change of the layout of images before it.
type step struct {
	work
	layer  int
	before int // parameters of earlier layers
}

// pass is the state of a pass for the layers.
type pass struct {
	n    int // samples
	mode Mode
	bags Bags

	params   [][]float32 // parameters of the current layer
	from     int         // index of the first of them
	grad     func(i int) []float32
	done     func(i int)
	wantX    bool
	mayWrite bool // the layer may overwrite its input
}

// finish reports that parameter i of the current layer has its gradient.
func (p *pass) finish(i int) {
	if p.done != nil {
		p.done(p.from + i)
	}
}

// gradOf returns the memory for the gradient of parameter i of the current layer; nil if it is not wanted.
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

// work is one layer of a Net with its memory.
type work interface {
	// forward returns y [n, out] from x [n, in]. y is the work's own memory, or x itself, which it may change only if
	// p.mayWrite.
	forward(p *pass, x []float32) (y []float32, err error)
	// backward writes the gradients of the parameters from gradY [n, out], reports each as final, and then returns
	// gradX [n, in] if p.wantX. gradX is the work's own memory, or gradY itself, which it may change only if
	// p.mayWrite.
	backward(p *pass, gradY []float32) (gradX []float32, err error)
	// keepsY reports whether the backward pass reads y again, so that the next layer must not overwrite it.
	keepsY() bool
	// values returns the largest number of values of memory that a sample needs.
	values() int
}

// NewNet returns a Net of m for samples of the shape in, which is nil if m begins with a BagLayer. It fails with
// ErrShape if the module cannot take such samples, and with ErrConfig if a layer's settings are invalid.
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
		own, err := cuda.OpenDense(e.Backend, cuda.DenseOptions{Library: "own"}) // has nothing to close
		if err != nil {
			return nil, err
		}
		e.Dense = own
	}
	return netIn(m, in, e, e.Dense.Layout())
}

// netIn is NewNet with the layout of images in which convolutions run.
func netIn(m Module, in []int, e Env, fast cuda.Layout) (*Net, error) {
	n := &Net{layers: flatten(m), params: m.Parameters(), in: slices.Clone(in)}
	sites, err := plan(n.layers, n.in, fast)
	if err != nil {
		return nil, err
	}
	n.out = n.in
	layout, from := cuda.NCHW, 0 // of x, and of the output
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

// relayout adds the step that changes the layout of images, if necessary.
func (n *Net) relayout(e Env, s step, shape []int, from, to cuda.Layout) {
	if from != to && len(shape) == 3 && shape[0] > 1 {
		s.work = &relayoutWork{dense: e.Dense, channels: shape[0], plane: shape[1] * shape[2], from: from, to: to}
		n.steps = append(n.steps, s)
	}
}

// In returns the shape of an input sample.
func (n *Net) In() []int { return n.in }

// Out returns the shape of an output sample.
func (n *Net) Out() []int { return n.out }

// Parameters returns the module's parameters.
func (n *Net) Parameters() []Parameter { return n.params }

// Forward computes y [n, Out] from x [n, In] with params, one read-only slice for each of Parameters. The caller must
// not change x and params until Backward. The Net owns y, which is valid until the next Forward. Samples do not
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

// ForwardBags is Forward for a module that begins with a BagLayer.
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
	mayWrite := false // x belongs to the caller
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

// Backward runs the backward pass of the last Forward, with the same params. gradY [n, Out] is the gradient of the loss
// with respect to y. Backward writes the gradient of parameter i to grad(i), which it overwrites, and calls done(i) as
// soon as it is final, while the rest is being computed. Parameters come in reverse order of layers. Gradients are sums
// over the samples, never divided. grad is called once per parameter, and may return nil for a gradient that is not
// needed; done may be nil. gradX [n, In] is nil unless the field GradX is set; the Net owns it, and it is valid until
// the next call. It fails with ErrOrder, with ErrShape, or with an error of the backend.
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
	n.forward = false // layers overwrite what they kept
	mayWrite := false // gradY belongs to the caller
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

// enter prepares the pass for layer i.
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

// Bytes returns the memory of the Net for passes over a number of samples, without parameters, their gradients, and the
// workspace of the library in Env.Dense.
func (n *Net) Bytes(samples int) int64 {
	total := int64(0)
	for _, s := range n.steps {
		total += int64(s.values()) * int64(samples) * 4
	}
	return total + total/4 // grown's reserve
}

// same reports whether a and b are the same memory.
func same(a, b []float32) bool { return len(a) > 0 && len(b) > 0 && &a[0] == &b[0] }

// ErrConfig reports an invalid configuration of a module: it names the layer, the field, the value and what would be
// valid.
var ErrConfig = errors.New("bad module")

// Limits of a configuration.
const (
	sizeMax       = 1 << 24 // size of a linear layer or a table
	channelsMax   = 1 << 16 // of images
	kernelMax     = 1 << 10 // side of a kernel, its stride and padding
	layersMax     = 1024
	depthMax      = 8       // of sequential within sequential
	configMax     = 1 << 20 // bytes
	parametersMax = 1 << 30 // values of all parameters
	sampleMax     = 1 << 28 // values of one sample between two layers
)

// Build makes a module from its configuration, a JSON list of layers, each an object with the layer's name and its
// settings. Omitted settings have their zero value, and unknown ones are refused. It fails with ErrConfig. The size of
// the result is bounded for any configuration, so it may come from an untrusted source.
//
//	[{"conv2d":{"in":1,"out":32,"kernel":3}}, {"relu":{}}, {"flatten":{}}, {"linear":{"in":21632,"out":10}}]
func Build(config []byte) (Module, error) {
	if len(config) > configMax {
		return nil, fmt.Errorf("%w: %d bytes of configuration: want at most %d", ErrConfig, len(config), configMax)
	}
	b := builder{kinds: kinds()}
	m, err := b.build(config, 1)
	if err != nil {
		return nil, err
	}
	if err := m.check(); err != nil {
		return nil, err
	}
	total := 0
	for _, p := range m.Parameters() { // each has at most 2^52 values, which an int holds
		if total += p.Elements(); p.Elements() > parametersMax || total > parametersMax {
			return nil, fmt.Errorf("%w: parameters up to %s have over %d values: want fewer", ErrConfig, p.Name, parametersMax)
		}
	}
	return m, nil
}

// Config returns the configuration from which Build makes m.
func Config(m Module) []byte {
	text, err := json.Marshal(listed(m))
	if err != nil {
		panic(fmt.Sprintf("nn: configuration of %v: %v", m, err)) // settings are numbers and words
	}
	return text
}

// listed returns a module as a list of layers.
func listed(m Module) []map[string]any {
	all, ok := m.(sequence)
	if !ok {
		all = sequence{m}
	}
	list := make([]map[string]any, len(all))
	for i, m := range all {
		name, settings := m.config()
		list[i] = map[string]any{name: settings}
	}
	return list
}

func (s sequence) config() (string, any) { return sequentialName, listed(s) }

const sequentialName = "sequential"

// builder makes the layers of one module.
type builder struct {
	kinds  []kind
	layers int // layers read so far
}

// build reads one list of layers.
func (b *builder) build(config []byte, depth int) (Module, error) {
	if depth > depthMax {
		return nil, fmt.Errorf("%w: %s is nested over %d deep: want fewer", ErrConfig, sequentialName, depthMax)
	}
	var list []map[string]json.RawMessage
	if err := strict(config, &list); err != nil {
		return nil, fmt.Errorf("%w: %w: want a list of layers, each {\"name\": {settings}}", ErrConfig, err)
	}
	s := make(sequence, 0, min(len(list), layersMax))
	for i, entry := range list {
		if b.layers++; b.layers > layersMax {
			return nil, fmt.Errorf("%w: over %d layers: want fewer", ErrConfig, layersMax)
		}
		if len(entry) != 1 {
			return nil, fmt.Errorf("layer %d: %w: %d names: want one, as in {\"relu\": {}}", i, ErrConfig, len(entry))
		}
		for name, settings := range entry {
			m, err := b.buildLayer(name, settings, depth)
			if err != nil {
				return nil, fmt.Errorf("layer %d: %w", i, err)
			}
			s = append(s, m)
		}
	}
	return s, nil
}

func (b *builder) buildLayer(name string, settings json.RawMessage, depth int) (Module, error) {
	if name == sequentialName {
		return b.build(settings, depth+1)
	}
	i := slices.IndexFunc(b.kinds, func(k kind) bool { return k.name == name })
	if i < 0 {
		var known []string
		for _, k := range b.kinds {
			known = append(known, k.name)
		}
		return nil, fmt.Errorf("%w: unknown layer %q: want one of %s, %s", ErrConfig, name, strings.Join(known, ", "),
			sequentialName)
	}
	m, err := b.kinds[i].decode(settings)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrConfig, name, err)
	}
	return m, nil
}

// kind is a layer that a configuration can name.
type kind struct {
	name   string
	decode func(settings []byte) (Module, error)
}

// kinds lists all layers but sequential.
func kinds() []kind {
	return []kind{
		kindOf[LinearLayer](), kindOf[BagLayer](), kindOf[Conv2d](), kindOf[MaxPool2d](), kindOf[ReLU](), kindOf[Dropout](),
		kindOf[dropout2d](), kindOf[Flatten](), kindOf[Softmax](), kindOf[logSoftmax](),
	}
}

func kindOf[M layer]() kind {
	var zero M
	name, _ := zero.config()
	return kind{name, func(settings []byte) (Module, error) {
		var m M
		err := strict(settings, &m)
		return m, err
	}}
}

// strict decodes one JSON value and refuses unknown fields and anything after it.
func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the value")
	}
	return nil
}

// between refuses a setting outside of its range.
func between(layer, field string, value, low, high int) error {
	if value < low || value > high {
		return fmt.Errorf("%w: %s %s %d: want %d to %d", ErrConfig, layer, field, value, low, high)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// badInput returns the error that names the samples that a layer needs.
func badInput(layer string, in []int, want string, args ...any) error {
	return fmt.Errorf("%w: %s of samples of shape %v: want %s", ErrShape, layer, in, fmt.Sprintf(want, args...))
}

// sampleSize refuses samples beyond the limit.
func sampleSize(shape []int) error {
	n := 1
	for _, d := range shape {
		if n *= d; n > sampleMax {
			return fmt.Errorf("%w: samples of shape %v: want at most %d values", ErrShape, shape, sampleMax)
		}
	}
	return nil
}

// plan computes the input and output of each layer: shapes, layouts of images, and which layers compute a following
// ReLU. Layers that accept any layout keep that of their input, except a pool, which writes the layout that is wanted
// after it.
func plan(layers []placed, in []int, fast cuda.Layout) ([]site, error) {
	sites := make([]site, len(layers))
	shape, layout := in, cuda.NCHW
	for i, l := range layers {
		if _, bags := l.layer.(BagLayer); bags && i > 0 {
			return nil, fmt.Errorf("%w: layer %d pools embedding rows: want it first", ErrShape, i)
		}
		out, err := l.OutShape(shape)
		if err == nil {
			err = sampleSize(out)
		}
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		s := site{at: i, in: shape, out: out, inLayout: layout}
		if must, only := l.layout(fast); only {
			s.inLayout = must
		}
		s.outLayout = s.inLayout
		if _, pool := l.layer.(MaxPool2d); pool {
			s.outLayout = wanted(layers[i+1:], fast)
		}
		s.relu = withReLU(layers, i)
		sites[i], shape, layout = s, out, s.outLayout
	}
	return sites, nil
}

// wanted returns the layout that the next layer with a fixed layout needs; the Net's output is NCHW.
func wanted(layers []placed, fast cuda.Layout) cuda.Layout {
	for _, l := range layers {
		if must, only := l.layout(fast); only {
			return must
		}
	}
	return cuda.NCHW
}

// withReLU reports whether layer i computes the ReLU that follows it, or is that ReLU.
func withReLU(layers []placed, i int) bool {
	if _, relu := layers[i].layer.(ReLU); relu {
		return i > 0 && makesReLU(layers[i-1])
	}
	if i+1 == len(layers) || !makesReLU(layers[i]) {
		return false
	}
	_, relu := layers[i+1].layer.(ReLU)
	return relu
}

func makesReLU(l placed) bool {
	switch l.layer.(type) {
	case LinearLayer, Conv2d:
		return true
	}
	return false
}

// relayoutWork changes the layout of images, and that of their gradients back.
type relayoutWork struct {
	dense           *cuda.Dense
	channels, plane int
	from, to        cuda.Layout
	y, gradX        []float32
}

func (w *relayoutWork) keepsY() bool { return false }
func (w *relayoutWork) values() int  { return 2 * w.channels * w.plane }

func (w *relayoutWork) forward(p *pass, x []float32) ([]float32, error) {
	w.y = grown(w.y, len(x))
	return w.y,
		w.dense.Relayout(cuda.Relayout{N: p.n, C: w.channels, Plane: w.plane, From: w.from, To: w.to, X: x, Y: w.y})
}

func (w *relayoutWork) backward(p *pass, gradY []float32) ([]float32, error) {
	if !p.wantX {
		return nil, nil
	}
	w.gradX = grown(w.gradX, len(gradY))
	return w.gradX,
		w.dense.Relayout(cuda.Relayout{N: p.n, C: w.channels, Plane: w.plane, From: w.to, To: w.from, X: gradY, Y: w.gradX})
}

// Module is a differentiable function from samples to samples with named parameters. It is only configuration: it
// stores no parameters, is immutable, and safe for concurrent use. A Net computes it. The modules are the layers of
// this package and Sequential of them; Build makes one from its configuration, and Config returns the configuration.
type Module interface {
	// Parameters lists the parameters that the module needs, in order, with their names in PyTorch's state_dict of the
	// same module.
	Parameters() []Parameter
	// OutShape returns the shape of an output sample for that of an input sample. It fails with ErrShape.
	OutShape(in []int) ([]int, error)

	// append appends the layers of the module to to, in the order of the forward pass; prefix begins the names of their
	// parameters.
	append(to []placed, prefix string) []placed
	// config returns the name and the settings of the module in a configuration.
	config() (name string, settings any)
	// check returns an error for a setting outside of its range.
	check() error
}

// Parameter is a tensor that a module needs: float32, row-major.
type Parameter struct {
	Name  string  // "0.weight"
	Shape []int   // [Out, In]
	Kind  string  // kind of the initial values: philox.Uniform or philox.Normal
	Scale float32 // scale of the initial values
}

// Elements returns the number of values.
func (p Parameter) Elements() int { return product(p.Shape) }

// Initial draws the initial values of all parameters of m, as a job with this seed draws its own: a pure function of
// (seed, name, element), with the default distributions of PyTorch's modules.
func Initial(m Module, seed uint64) ([][]float32, error) {
	parameters := m.Parameters()
	values := make([][]float32, len(parameters))
	for i, p := range parameters {
		values[i] = make([]float32, p.Elements())
		if err := philox.FillTensor(values[i], p.Kind, p.Scale, seed, p.Name); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// uniform returns a parameter whose initial values are uniform in [-bound, bound), bound = 1/sqrt(fanIn): PyTorch's
// default for weights and biases of linear and convolutional layers (kaiming_uniform_ with a = sqrt(5)).
func uniform(name string, fanIn int, shape ...int) Parameter {
	return Parameter{Name: name, Shape: shape, Kind: philox.Uniform, Scale: float32(1 / math.Sqrt(float64(fanIn)))}
}

// layer is a module that is not composed of others.
type layer interface {
	Module
	// parameters returns Parameters without the names' prefix.
	parameters() []Parameter
	// layout returns the layout of images that the layer reads and writes, if it must be a certain one; fast is the
	// library's.
	layout(fast cuda.Layout) (l cuda.Layout, must bool)
	// work makes the memory of one pass.
	work(e Env, s site) work
}

// site is the position of a layer in a Net.
type site struct {
	at                  int   // index among the layers of the module
	in, out             []int // shapes of a sample, which OutShape accepted
	inLayout, outLayout cuda.Layout
	relu                bool // the layer before a ReLU computes it, too, and the ReLU is skipped
}

// placed is a layer, and the prefix of the names of its parameters.
type placed struct {
	layer
	prefix string
}

// flatten lists the layers of a module.
func flatten(m Module) []placed { return m.append(nil, "") }

// parametersOf lists the parameters of a module with their names.
func parametersOf(m Module) []Parameter {
	var all []Parameter
	for _, l := range flatten(m) {
		for _, p := range l.parameters() {
			p.Name = l.prefix + p.Name
			all = append(all, p)
		}
	}
	return all
}

// Sequential returns the composition of modules; the parameters of the i-th are named "i." and the module's own names.
//
//	nn.Sequential(nn.LinearLayer{In: 784, Out: 128}, nn.ReLU{}, nn.LinearLayer{In: 128, Out: 10})
//	->   0.weight, 0.bias, 2.weight, 2.bias
func Sequential(modules ...Module) Module { return sequence(append([]Module(nil), modules...)) }

type sequence []Module

func (s sequence) Parameters() []Parameter { return parametersOf(s) }

func (s sequence) OutShape(in []int) ([]int, error) {
	for i, m := range s {
		out, err := m.OutShape(in)
		if err != nil {
			return nil, fmt.Errorf("layer %d: %w", i, err)
		}
		in = out
	}
	return in, nil
}

func (s sequence) append(to []placed, prefix string) []placed {
	for i, m := range s {
		to = m.append(to, fmt.Sprintf("%s%d.", prefix, i))
	}
	return to
}

func (s sequence) check() error {
	if len(s) == 0 {
		return fmt.Errorf("%w: no layers: want at least one", ErrConfig)
	}
	for i, m := range s {
		if err := m.check(); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return nil
}

// product returns the number of values of a shape; without dimensions it is 1.
func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
