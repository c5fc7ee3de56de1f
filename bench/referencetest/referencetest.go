// Package referencetest trains the models of the reference systems in float64, by plain loops and from their
// definitions alone. The tests of these systems compare the losses of whole runs with it.
//
// It draws initial values and dropout masks from package philox, as jobs do. It must not know package nn, whose layers
// it is there to check, nor the configurations of the systems: each test states its model again.
package referencetest

import (
	"fmt"
	"math"

	"gradbus/philox"
)

// Layer computes one sample after the other. backward belongs to the last forward.
type Layer interface {
	// parameters draws the initial values.
	parameters(draw func(name string, fanIn, n int) []float64) []*parameter
	// begin readies the layer for the samples of a lane of a batch.
	begin(p Pass)
	forward(x []float64) []float64
	backward(gradY []float64) (gradX []float64)
}

// parameter is values with their gradient and momentum, which the first Backward makes.
type parameter struct{ values, grad, momentum []float64 }

// Pass names a lane of a batch: the key of what dropout drops. In evaluation nothing is dropped.
type Pass struct {
	Seed, Batch, Lane uint64
	Evaluate          bool
}

// Model is layers one after the other.
type Model struct {
	layers []Layer
	all    []*parameter
}

// New draws the initial values of layers as a job with this seed does. name gives the name of a parameter, "weight" or
// "bias", of the layer at a place.
func New(seed uint64, name func(place int, parameter string) string, layers ...Layer) *Model {
	m := &Model{layers: layers}
	for place, l := range layers {
		m.all = append(m.all, l.parameters(func(parameter string, fanIn, n int) []float64 {
			drawn := make([]float32, n)
			bound := float32(1 / math.Sqrt(float64(fanIn)))
			if err := philox.FillTensor(drawn, philox.Uniform, bound, seed, name(place, parameter)); err != nil {
				panic(err) // the kind is a constant
			}
			return Wide(drawn)
		})...)
	}
	return m
}

// Numbered names parameters as nn.Sequential does.
func Numbered(place int, parameter string) string { return fmt.Sprintf("%d.%s", place, parameter) }

// Set gives the model the values of its parameters, in the order of its layers.
func (m *Model) Set(values ...[]float32) {
	for i, v := range values {
		copy(m.all[i].values, Wide(v))
	}
}

// Wide is values as float64.
func Wide(values []float32) []float64 {
	wide := make([]float64, len(values))
	for i, v := range values {
		wide[i] = float64(v)
	}
	return wide
}

// Begin readies the model for the samples of a lane of a batch.
func (m *Model) Begin(p Pass) {
	for _, l := range m.layers {
		l.begin(p)
	}
}

// Forward computes a sample.
func (m *Model) Forward(x []float64) []float64 {
	for _, l := range m.layers {
		x = l.forward(x)
	}
	return x
}

// Backward goes back through the last Forward, adds to the gradients, and returns that of the sample.
func (m *Model) Backward(gradY []float64) []float64 {
	for _, p := range m.all {
		if p.grad == nil {
			p.grad, p.momentum = make([]float64, len(p.values)), make([]float64, len(p.values))
		}
	}
	for i := len(m.layers) - 1; i >= 0; i-- {
		gradY = m.layers[i].backward(gradY)
	}
	return gradY
}

// Step takes one step of SGD by the gradients, divided by weight, and zeroes them.
func (m *Model) Step(weight, lr, momentum float64) {
	for _, p := range m.all {
		for i, g := range p.grad {
			p.momentum[i] = momentum*p.momentum[i] + g/weight
			p.values[i] -= lr * p.momentum[i]
			p.grad[i] = 0
		}
	}
}

// Linear is y = W x + b.
type Linear struct {
	In, Out int

	w, b *parameter
	x    []float64
}

func (l *Linear) parameters(draw func(string, int, int) []float64) []*parameter {
	l.w, l.b = newParameter(draw("weight", l.In, l.In*l.Out)), newParameter(draw("bias", l.In, l.Out))
	return []*parameter{l.w, l.b}
}

func newParameter(values []float64) *parameter { return &parameter{values: values} }

func (l *Linear) begin(Pass) {}

func (l *Linear) forward(x []float64) []float64 {
	l.x = x
	y := make([]float64, l.Out)
	for o := range y {
		sum := l.b.values[o]
		for i, w := range l.w.values[o*l.In:][:l.In] {
			sum += w * x[i]
		}
		y[o] = sum
	}
	return y
}

func (l *Linear) backward(gradY []float64) []float64 {
	gradX := make([]float64, l.In)
	for o, g := range gradY {
		l.b.grad[o] += g
		w, gradW := l.w.values[o*l.In:][:l.In], l.w.grad[o*l.In:][:l.In]
		for i, x := range l.x {
			gradW[i] += g * x
			gradX[i] += g * w[i]
		}
	}
	return gradX
}

// Conv is a convolution of square images [In, Side, Side] with zeros around them.
type Conv struct {
	In, Out, Side, Kernel, Stride, Padding int

	w, b *parameter
	x    []float64
}

func (l *Conv) parameters(draw func(string, int, int) []float64) []*parameter {
	fanIn := l.In * l.Kernel * l.Kernel
	l.w, l.b = newParameter(draw("weight", fanIn, l.Out*fanIn)), newParameter(draw("bias", fanIn, l.Out))
	return []*parameter{l.w, l.b}
}

func (l *Conv) begin(Pass) {}

func (l *Conv) outSide() int { return (l.Side+2*l.Padding-l.Kernel)/l.Stride + 1 }

// visit calls of with every place of y and, of each row of the kernel that lies on the image there, the first place in
// x and in the weights, and how many follow.
func (l *Conv) visit(of func(y, x, w, n int)) {
	side := l.outSide()
	for o := range l.Out {
		for i := range side {
			for j := range side {
				left := j*l.Stride - l.Padding
				from, to := max(0, -left), min(l.Kernel, l.Side-left)
				for c := range l.In {
					for a := range l.Kernel {
						row := i*l.Stride + a - l.Padding
						if row >= 0 && row < l.Side {
							of((o*side+i)*side+j, (c*l.Side+row)*l.Side+left+from, ((o*l.In+c)*l.Kernel+a)*l.Kernel+from, to-from)
						}
					}
				}
			}
		}
	}
}

func (l *Conv) forward(x []float64) []float64 {
	l.x = x
	plane := l.outSide() * l.outSide()
	y := make([]float64, l.Out*plane)
	for at := range y {
		y[at] = l.b.values[at/plane]
	}
	l.visit(func(at, from, w, n int) {
		sum := 0.0
		for k, v := range x[from : from+n] {
			sum += v * l.w.values[w+k]
		}
		y[at] += sum
	})
	return y
}

func (l *Conv) backward(gradY []float64) []float64 {
	plane := l.outSide() * l.outSide()
	for at, g := range gradY {
		l.b.grad[at/plane] += g
	}
	gradX := make([]float64, len(l.x))
	l.visit(func(at, from, w, n int) {
		g := gradY[at]
		if g == 0 { // of most outputs behind a pooling layer
			return
		}
		for k := range n {
			l.w.grad[w+k] += g * l.x[from+k]
			gradX[from+k] += g * l.w.values[w+k]
		}
	})
	return gradX
}

// MaxPool is the largest of each square of 2 x 2 values, the first of equal ones.
type MaxPool struct {
	Side int // of the images that go in

	from []int
	n    int
}

func (l *MaxPool) parameters(func(string, int, int) []float64) []*parameter { return nil }
func (l *MaxPool) begin(Pass)                                               {}

func (l *MaxPool) forward(x []float64) []float64 {
	half := l.Side / 2
	channels := len(x) / (l.Side * l.Side)
	y := make([]float64, channels*half*half)
	l.from, l.n = make([]int, len(y)), len(x)
	for at := range y {
		c, i, j := at/(half*half), at/half%half, at%half
		best := (c*l.Side+2*i)*l.Side + 2*j
		for _, other := range []int{best + 1, best + l.Side, best + l.Side + 1} {
			if x[other] > x[best] {
				best = other
			}
		}
		y[at], l.from[at] = x[best], best
	}
	return y
}

func (l *MaxPool) backward(gradY []float64) []float64 {
	gradX := make([]float64, l.n)
	for at, from := range l.from {
		gradX[from] += gradY[at]
	}
	return gradX
}

// ReLU is max(x, 0).
type ReLU struct{ y []float64 }

func (l *ReLU) parameters(func(string, int, int) []float64) []*parameter { return nil }
func (l *ReLU) begin(Pass)                                               {}

func (l *ReLU) forward(x []float64) []float64 {
	l.y = make([]float64, len(x))
	for i, v := range x {
		l.y[i] = max(v, 0)
	}
	return l.y
}

func (l *ReLU) backward(gradY []float64) []float64 {
	gradX := make([]float64, len(gradY))
	for i, g := range gradY {
		if l.y[i] > 0 {
			gradX[i] = g
		}
	}
	return gradX
}

// Dropout drops each of Groups equal parts of a sample with probability P, and multiplies the others by 1/(1-P).
type Dropout struct {
	P      float64
	Groups int // channels of images, or every value
	Place  int // among the layers of the module, which keys its random numbers

	source philox.Source
	idle   bool
	scale  []float64 // of each group of the last sample
}

func (l *Dropout) parameters(func(string, int, int) []float64) []*parameter { return nil }

func (l *Dropout) begin(p Pass) {
	l.source, l.idle = philox.New(p.Seed, "dropout", p.Batch, p.Lane, uint64(l.Place)), p.Evaluate
}

func (l *Dropout) forward(x []float64) []float64 {
	l.scale = make([]float64, l.Groups)
	for i := range l.scale {
		switch {
		case l.idle:
			l.scale[i] = 1
		case float64(l.source.Uniform()) >= l.P:
			l.scale[i] = 1 / (1 - l.P)
		}
	}
	return l.backward(x)
}

func (l *Dropout) backward(gradY []float64) []float64 {
	out, size := make([]float64, len(gradY)), len(gradY)/l.Groups
	for i, v := range gradY {
		out[i] = v * l.scale[i/size]
	}
	return out
}

// Softmax is exp(x) / sum(exp(x)).
type Softmax struct{ y []float64 }

func (l *Softmax) parameters(func(string, int, int) []float64) []*parameter { return nil }
func (l *Softmax) begin(Pass)                                               {}

func (l *Softmax) forward(x []float64) []float64 {
	l.y = make([]float64, len(x))
	total := 0.0
	for i, v := range x {
		l.y[i] = math.Exp(v)
		total += l.y[i]
	}
	for i := range l.y {
		l.y[i] /= total
	}
	return l.y
}

func (l *Softmax) backward(gradY []float64) []float64 {
	dot, gradX := 0.0, make([]float64, len(gradY))
	for i, g := range gradY {
		dot += g * l.y[i]
	}
	for i, g := range gradY {
		gradX[i] = l.y[i] * (g - dot)
	}
	return gradX
}

// NegativeLog is -log y[target] of probabilities, with its gradient.
func NegativeLog(y []float64, target int) (loss float64, gradY []float64) {
	gradY = make([]float64, len(y))
	gradY[target] = -1 / y[target]
	return -math.Log(y[target]), gradY
}

// L1 is the mean of |y - target|, with its gradient.
func L1(y, target []float64) (loss float64, gradY []float64) {
	gradY = make([]float64, len(y))
	for i, v := range y {
		loss += math.Abs(v-target[i]) / float64(len(y))
		gradY[i] = math.Copysign(1, v-target[i]) / float64(len(y))
	}
	return loss, gradY
}

// MSE is the mean of (y - target)^2, with its gradient.
func MSE(y, target []float64) (loss float64, gradY []float64) {
	gradY = make([]float64, len(y))
	for i, v := range y {
		loss += (v - target[i]) * (v - target[i]) / float64(len(y))
		gradY[i] = 2 * (v - target[i]) / float64(len(y))
	}
	return loss, gradY
}
