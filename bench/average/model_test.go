package average

import (
	"maps"
	"math"
	"runtime"
	"slices"
	"testing"

	"gradbus/nn"
	"gradbus/philox"
)

// naiveLoss is the sum of the losses in float64, from its definition: mean of rows, layers, softmax, and cross-entropy
// of that, or the negative logarithm of it.
func naiveLoss(c modelConfig, criterion string, params [][]float64, ids [][]int64, targets []int32) float64 {
	sum := 0.0
	for s, of := range ids {
		x := make([]float64, c.EmbeddingDim)
		for _, id := range of {
			for j := range x {
				x[j] += params[0][int(id)*c.EmbeddingDim+j] / float64(len(of))
			}
		}
		for l := range c.DenseLayersCount {
			w, b, y := params[1+2*l], params[2+2*l], make([]float64, c.DenseOutputSize)
			for o := range y {
				y[o] = b[o]
				for i := range x {
					y[o] += x[i] * w[o*len(x)+i]
				}
			}
			x = y
		}
		x = naiveSoftmax(x)
		if criterion == "cel" {
			x = naiveSoftmax(x)
		}
		sum -= math.Log(x[targets[s]])
	}
	return sum
}

func naiveSoftmax(x []float64) []float64 {
	y, sum := make([]float64, len(x)), 0.0
	for i := range x {
		y[i] = math.Exp(x[i])
		sum += y[i]
	}
	for i := range y {
		y[i] /= sum
	}
	return y
}

// Loss and gradients agree with float64 and its central differences. The bound: losses are about 6, float32 gives 1e-6
// of that; the differences, of step 1e-4, are exact to 1e-7, and gradients of at most about 1 have errors of some 1e-6.
func TestModelAgainstDifferences(t *testing.T) {
	c := modelConfig{NumEmbeddings: 6, EmbeddingDim: 4, DenseInputSize: 4, DenseOutputSize: 4, DenseLayersCount: 2}
	ids, targets := [][]int64{{0, 1, 1}, {5, 2, 0}, {3, 3, 3}}, []int32{1, 0, 3}
	bags := nn.Bags{Offsets: []int64{0, 3, 6, 9}}
	for _, of := range ids {
		bags.IDs = append(bags.IDs, of...)
	}
	for _, criterion := range slices.Sorted(maps.Keys(criteria)) {
		m, err := newModel(c, criterion, testEnv(t))
		if err != nil {
			t.Fatal(err)
		}
		var params, grads [][]float32
		var wide [][]float64
		for _, p := range m.net.Parameters() {
			v := make([]float32, p.Elements())
			if err := philox.FillTensor(v, p.Kind, 1, 3, p.Name); err != nil {
				t.Fatal(err)
			}
			w := make([]float64, len(v))
			for i := range v {
				w[i] = float64(v[i])
			}
			params, grads, wide = append(params, v), append(grads, make([]float32, len(v))), append(wide, w)
		}
		loss, err := m.forward(params, bags, targets)
		if err != nil {
			t.Fatal(err)
		}
		if want := naiveLoss(c, criterion, wide, ids, targets); math.Abs(loss-want) > 1e-5 {
			t.Errorf("%s: loss %v, want %v", criterion, loss, want)
		}
		if _, err := m.backward(params, func(i int) []float32 { return grads[i] }, nil); err != nil {
			t.Fatal(err)
		}
		for p := range wide {
			for i, v := range wide[p] {
				const h = 1e-4
				wide[p][i] = v + h
				up := naiveLoss(c, criterion, wide, ids, targets)
				wide[p][i] = v - h
				down := naiveLoss(c, criterion, wide, ids, targets)
				wide[p][i] = v
				if want := (up - down) / (2 * h); math.Abs(float64(grads[p][i])-want) > 1e-5 {
					t.Errorf("%s: gradient of %s[%d] is %v, want %v", criterion, m.names[p], i, grads[p][i], want)
				}
			}
		}
	}
}

func TestNegativeLogarithmByHand(t *testing.T) {
	grad := make([]float32, 2)
	loss, err := negativeLogarithm(&model{classes: 2}, []float32{0.25, 0.75}, []int32{1}, grad)
	if err != nil || math.Abs(loss-0.2876821) > 1e-7 || grad[0] != 0 || grad[1] != -1/float32(0.75) {
		t.Errorf("loss %v, gradient %v, %v", loss, grad, err)
	}
	if _, err := negativeLogarithm(&model{classes: 2}, []float32{1, 0}, []int32{1}, grad); err != nil ||
		math.IsInf(float64(grad[1]), 0) {
		t.Errorf("gradient at zero %v, %v", grad, err)
	}
}

// A pass keeps its memory: what it allocates does not grow with the model, whose activations are 32 KiB here, and
// gradients 512.
func TestPassKeepsItsMemory(t *testing.T) {
	c := modelConfig{NumEmbeddings: 256, EmbeddingDim: 256, DenseInputSize: 256, DenseOutputSize: 256, DenseLayersCount: 2}
	m, err := newModel(c, "cel", testEnv(t))
	if err != nil {
		t.Fatal(err)
	}
	var params, grads [][]float32
	for _, p := range m.net.Parameters() {
		params, grads = append(params, make([]float32, p.Elements())), append(grads, make([]float32, p.Elements()))
	}
	const samples = 32
	bags, targets := nn.Bags{Offsets: []int64{0}}, make([]int32, samples)
	for i := range int64(samples) {
		bags.IDs, bags.Offsets = append(bags.IDs, 2*i, 2*i+1), append(bags.Offsets, 2*(i+1))
	}
	grad := func(i int) []float32 { return grads[i] }
	pass := func() {
		if _, err := m.forward(params, bags, targets); err != nil {
			t.Fatal(err)
		}
		if _, err := m.backward(params, grad, nil); err != nil {
			t.Fatal(err)
		}
	}
	pass()
	least := uint64(math.MaxUint64) // of several, since whatever else ends in this process allocates too
	for range 10 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		pass()
		runtime.ReadMemStats(&after)
		least = min(least, after.TotalAlloc-before.TotalAlloc)
	}
	if least > 8<<10 {
		t.Errorf("%d bytes allocated in a pass, want less than 8 KiB", least)
	}
}
