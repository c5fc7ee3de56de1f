package nn

import "math"

// naive computes modules forward in float64, one sample after the other, from the definitions alone. Central differences of
// it are what the gradients of the layers are held to.
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
