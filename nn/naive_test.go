package nn

import (
	"math"

	"gradbus/philox"
)

// naive computes modules forward in float64, one sample after the other, from the definitions alone. Central
// differences of it are what the gradients of the layers are held to.
type naive struct {
	mode Mode
	bags Bags
	rows []float64 // of a served bag
	kink float64   // how near a value came to where a layer has no derivative
}

// forward gives y of n samples x of shape in.
func (v *naive) forward(m Module, params [][]float64, x []float64, n int, in []int) []float64 {
	shape, size := in, product(in)
	v.kink = math.Inf(1)
	for at, l := range flatten(m) {
		count := len(l.parameters())
		out, err := l.OutShape(shape)
		if err != nil {
			panic(err)
		}
		outSize := product(out)
		y := make([]float64, n*outSize)
		for s := range n {
			var sample []float64
			if x != nil {
				sample = x[s*size : (s+1)*size]
			}
			v.layer(l.layer, at, params[:count], s, sample, shape, y[s*outSize:(s+1)*outSize], out)
		}
		x, shape, size, params = y, out, outSize, params[count:]
	}
	return x
}

func (v *naive) layer(l layer, at int, params [][]float64, s int, x []float64, in []int, y []float64, out []int) {
	switch l := l.(type) {
	case LinearLayer:
		for o := range y {
			if !l.NoBias {
				y[o] = params[1][o]
			}
			for i, xi := range x {
				y[o] += params[0][o*l.In+i] * xi
			}
		}
	case BagLayer:
		v.pool(l, params, s, y)
	case ReLU:
		for i := range x {
			y[i] = math.Max(x[i], 0)
			v.kink = min(v.kink, math.Abs(x[i]))
		}
	case Flatten:
		copy(y, x)
	case Conv2d:
		convolve(l, params, x, in, y, out)
	case MaxPool2d:
		v.maxPool(l, x, in, y, out)
	case Dropout:
		v.drop(l.P, at, s, len(x), x, y)
	case dropout2d:
		v.drop(l.P, at, s, in[0], x, y)
	case Softmax:
		total := 0.0
		for i := range x {
			total += math.Exp(x[i])
		}
		for i := range x {
			y[i] = math.Exp(x[i]) / total
		}
	case logSoftmax:
		total := 0.0
		for i := range x {
			total += math.Exp(x[i])
		}
		for i := range x {
			y[i] = x[i] - math.Log(total)
		}
	default:
		panic("no naive version of this layer")
	}
}

func (v *naive) pool(l BagLayer, params [][]float64, s int, y []float64) {
	rows := v.rows
	if !l.Served {
		rows = params[0]
	}
	bag := v.bags.IDs[v.bags.Offsets[s]:v.bags.Offsets[s+1]]
	for _, id := range bag {
		for d := range y {
			part := rows[int(id)*l.Dim+d]
			if l.Mode == BagMean {
				part /= float64(len(bag))
			}
			y[d] += part
		}
	}
}

// at is x[c, i, j] of an image, and outside of it there stands beyond.
func at(x []float64, in []int, c, i, j int, beyond float64) float64 {
	if i < 0 || j < 0 || i >= in[1] || j >= in[2] {
		return beyond
	}
	return x[(c*in[1]+i)*in[2]+j]
}

func convolve(l Conv2d, params [][]float64, x []float64, in []int, y []float64, out []int) {
	stride, k := max(l.Stride, 1), l.Kernel
	for o := range out[0] {
		for i := range out[1] {
			for j := range out[2] {
				sum := 0.0
				if !l.NoBias {
					sum = params[1][o]
				}
				for c := range in[0] {
					for a := range k {
						for b := range k {
							sum += params[0][((o*l.In+c)*k+a)*k+b] * at(x, in, c, i*stride+a-l.Padding, j*stride+b-l.Padding, 0)
						}
					}
				}
				y[(o*out[1]+i)*out[2]+j] = sum
			}
		}
	}
}

func (v *naive) maxPool(l MaxPool2d, x []float64, in []int, y []float64, out []int) {
	for c := range out[0] {
		for i := range out[1] {
			for j := range out[2] {
				top, second := math.Inf(-1), math.Inf(-1)
				for a := range l.Kernel {
					for b := range l.Kernel {
						value := at(x, in, c, i*l.stride()+a-l.Padding, j*l.stride()+b-l.Padding, math.Inf(-1))
						top, second = max(top, value), max(second, min(top, value))
					}
				}
				v.kink = min(v.kink, top-second)
				y[(c*out[1]+i)*out[2]+j] = top
			}
		}
	}
}

// drop draws the masks of all samples up to s, groups of each.
func (v *naive) drop(p float32, layer, s, groups int, x, y []float64) {
	r := v.mode.Random
	source := philox.New(r.Seed, "dropout", r.Batch, r.Lane, uint64(layer))
	for range s * groups {
		source.Uniform()
	}
	plane := len(x) / groups
	for g := range groups {
		kept := source.Uniform() >= p || !v.mode.Train
		for i := g * plane; i < (g+1)*plane; i++ {
			y[i] = 0
			if kept && v.mode.Train {
				y[i] = x[i] / (1 - float64(p))
			} else if kept {
				y[i] = x[i]
			}
		}
	}
}
