package nn

import (
	"fmt"

	"gradbus/cuda"
)

// plan says for each layer what it takes and gives: shapes, layouts of images, and which of them compute a ReLU along
// the way. Layers that take any layout keep the one that they are handed, but for a pool, which writes the one that is
// wanted behind it.
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

// wanted is the layout that the next layer that is particular about it takes; the Net's output is NCHW.
func wanted(layers []placed, fast cuda.Layout) cuda.Layout {
	for _, l := range layers {
		if must, only := l.layout(fast); only {
			return must
		}
	}
	return cuda.NCHW
}

// withReLU says whether layer i is followed by a ReLU that it computes, or is that ReLU.
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

// relayoutWork moves images from one layout into the other, and their gradients back.
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
