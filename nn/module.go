package nn

import (
	"fmt"
	"math"

	"gradbus/cuda"
	"gradbus/philox"
)

// Module is a differentiable function from samples to samples with named parameters, which it does not hold: it is
// configuration only, safe to share between goroutines and never changed. A Net computes it. Modules are the layers of
// this package and Sequential of them; Build makes one from its configuration and Config gives that back.
type Module interface {
	// Parameters are what the module is to be handed, in order, named as PyTorch's state_dict of the same module does.
	Parameters() []Parameter
	// OutShape is the shape of one sample that comes out, given that of one that goes in. It fails with ErrShape.
	OutShape(in []int) ([]int, error)

	// append puts the layers of the module behind to, in the order of the forward pass; prefix is what the names of their
	// parameters begin with.
	append(to []placed, prefix string) []placed
	// config is the name and the settings of the module in a configuration.
	config() (name string, settings any)
	// check says which setting is out of its range.
	check() error
}

// Parameter is a tensor that a module is handed: float32, row-major.
type Parameter struct {
	Name  string // "0.weight"
	Shape []int  // [Out, In]
	Kind  string // of the initial values: philox.Uniform or philox.Normal
	Scale float32
}

// Elements is the number of values.
func (p Parameter) Elements() int { return product(p.Shape) }

// Initial draws the initial values of all parameters of m, as a job with this seed draws those of its own: a pure
// function of (seed, name, element), with the distributions that PyTorch's modules have by default.
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

// uniform is a parameter that begins uniform in [-bound, bound), bound = 1/sqrt(fanIn): PyTorch's default of weights
// and biases of linear and convolutional layers (kaiming_uniform_ with a = sqrt(5)).
func uniform(name string, fanIn int, shape ...int) Parameter {
	return Parameter{Name: name, Shape: shape, Kind: philox.Uniform, Scale: float32(1 / math.Sqrt(float64(fanIn)))}
}

// layer is a module that is not made of others.
type layer interface {
	Module
	// parameters are Parameters without the names' prefix.
	parameters() []Parameter
	// layout is the layout of images that the layer takes and gives, where it must be a certain one; fast is the
	// library's.
	layout(fast cuda.Layout) (l cuda.Layout, must bool)
	// work gives the memory of one pass.
	work(e Env, s site) work
}

// site is where a layer stands in a Net.
type site struct {
	at                  int   // place among the layers of the module
	in, out             []int // shapes of a sample, which OutShape accepted
	inLayout, outLayout cuda.Layout
	relu                bool // the layer before a ReLU computes it too, and the ReLU goes without
}

// placed is a layer, and what the names of its parameters begin with.
type placed struct {
	layer
	prefix string
}

// flatten gives the layers of a module.
func flatten(m Module) []placed { return m.append(nil, "") }

// parametersOf gives the parameters of a module, named.
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

// Sequential is modules one after the other; the parameters of the i-th are named "i." and what it names them.
//
//	nn.Sequential(nn.LinearLayer{In: 784, Out: 128}, nn.ReLU{}, nn.LinearLayer{In: 128, Out: 10})   ->   0.weight, 0.bias, 2.weight, 2.bias
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

// product is the number of values of a shape; that of no dimensions is 1.
func product(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
