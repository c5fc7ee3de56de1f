package nn

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"

	"gradbus/cuda"
)

// goldenLayers is what testdata/layers.py wrote.
type goldenLayers struct {
	Losses struct {
		Y, Target    []float32
		Classes      []int32
		L1, MSE, NLL goldenLoss
		CrossEntropy goldenLoss `json:"cross_entropy"`
	}
	Cases []struct {
		Name   string
		Config json.RawMessage
		In     []int
		X      []float32
		Y      []float64
		GradY  []float32 `json:"grad_y"`
		GradX  []float64 `json:"grad_x"`
		Names  []string
		Bounds []float64
		Params [][]float32
		Grads  [][]float64
	}
}

type goldenLoss struct {
	Loss float64
	Grad []float64
}

func readGolden(t *testing.T) (g goldenLayers) {
	t.Helper()
	text, err := os.ReadFile("testdata/layers.json")
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Cases) != 10 {
		t.Fatalf("%d cases, want 10", len(g.Cases))
	}
	return g
}

// libraries are the dense libraries that this machine has for a backend, and own.
func libraries(t *testing.T) []Env {
	t.Helper()
	var all []Env
	for _, name := range []string{"go", "auto"} {
		b, err := cuda.Open(cuda.Options{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		for _, library := range cuda.DenseNames() {
			d, err := cuda.OpenDense(b, cuda.DenseOptions{Library: library})
			if err != nil {
				t.Logf("without %s: %v", library, err)
				continue
			}
			t.Cleanup(func() { d.Close() })
			all = append(all, Env{Backend: b, Dense: d})
		}
	}
	if len(all) < 2 {
		t.Fatalf("%d libraries", len(all))
	}
	return all
}

// Modules give what PyTorch gives, with every library and in both layouts of images.
func TestGoldenLayers(t *testing.T) {
	g := readGolden(t)
	for _, e := range libraries(t) {
		for _, layout := range []cuda.Layout{cuda.NCHW, cuda.NHWC} {
			for _, c := range g.Cases {
				t.Run(e.Backend.Name()+" "+e.Dense.Name()+"/"+c.Name, func(t *testing.T) {
					m, err := Build(c.Config)
					if err != nil {
						t.Fatal(err)
					}
					n, err := netIn(m, c.In, e, layout)
					if err != nil {
						t.Fatal(err)
					}
					n.GradX = true
					y, err := n.Forward(c.Params, c.X, Mode{})
					if err != nil {
						t.Fatal(err)
					}
					wantClose(t, "y", y, c.Y)
					grads := gradients(n)
					gradX, err := n.Backward(c.Params, c.GradY, func(i int) []float32 { return grads[i] }, nil)
					if err != nil {
						t.Fatal(err)
					}
					wantClose(t, "gradX", gradX, c.GradX)
					for i, p := range n.Parameters() {
						wantClose(t, p.Name, grads[i], c.Grads[i])
					}
				})
			}
		}
	}
}

// Names and bounds are PyTorch's: the largest of the thousands of values that it drew is just below the bound.
func TestGoldenParameters(t *testing.T) {
	for _, c := range readGolden(t).Cases {
		m, err := Build(c.Config)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for i, p := range m.Parameters() {
			names = append(names, p.Name)
			if low, high := c.Bounds[i], c.Bounds[i]*1.01; float64(p.Scale) < low*(1-1e-6) || float64(p.Scale) > high {
				t.Errorf("%s: %s begins within %v, PyTorch's values within %v", c.Name, p.Name, p.Scale, low)
			}
		}
		if !slices.Equal(names, c.Names) {
			t.Errorf("%s: parameters %v, want %v", c.Name, names, c.Names)
		}
	}
}

func TestGoldenLosses(t *testing.T) {
	g := readGolden(t).Losses
	grad := make([]float32, len(g.Y))
	check := func(name string, want goldenLoss, loss float64, err error) {
		t.Helper()
		if err != nil || math.Abs(loss-want.Loss) > tolerance {
			t.Errorf("%s = %v, %v, want %v", name, loss, err, want.Loss)
		}
		wantNear(t, name+" gradient", grad, want.Grad)
	}
	loss, err := L1(g.Y, g.Target, grad, 1)
	check("l1", g.L1, loss, err)
	loss, err = MSE(g.Y, g.Target, grad, 1)
	check("mse", g.MSE, loss, err)
	loss, err = NLL(g.Y, 4, g.Classes, grad)
	check("nll", g.NLL, loss, err)
	loss, err = NewCrossEntropy(testBackend(t), 4).Loss(g.Y, g.Classes, grad)
	check("cross-entropy", g.CrossEntropy, loss, err)
}

// Once warm, a net allocates nothing of its own, forward or backward. (The portable library may.)
func TestNetReusesMemory(t *testing.T) {
	m := Sequential(Conv2d{In: 1, Out: 2, Kernel: 3}, ReLU{}, MaxPool2d{Kernel: 2}, dropout2d{P: 0.25}, Flatten{},
		LinearLayer{In: 2, Out: 3},
		ReLU{}, Dropout{P: 0.5}, logSoftmax{})
	n := mustNet(t, m, 1, 4, 4)
	params, err := Initial(m, 1)
	if err != nil {
		t.Fatal(err)
	}
	grads := gradients(n)
	grad, done := func(i int) []float32 { return grads[i] }, func(int) {}
	var first []float32
	for _, samples := range []int{3, 2, 3} {
		y, err := n.Forward(params, make([]float32, samples*16), Mode{Train: true})
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = y
		} else if !same(first, y) {
			t.Errorf("y moved")
		}
		if _, err := n.Backward(params, make([]float32, samples*3), grad, done); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.Bytes(8); got < 8*4*(16+8) || got > 8*4*200 {
		t.Errorf("memory for 8 samples: %d bytes", got)
	}
}

// What dropout drops follows from the pass's key alone, and is as much as it should be.
func TestDropoutIsKeyed(t *testing.T) {
	n := mustNet(t, Sequential(Dropout{P: 0.25}), 1000)
	x := slices.Repeat([]float32{3}, 2000)
	run := func(mode Mode) []float32 {
		y, err := n.Forward(nil, x, mode)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(y)
	}
	wantValues(t, "evaluation", run(Mode{}), x)
	key := Random{Seed: 1, Batch: 2, Lane: 3}
	first := run(Mode{Train: true, Random: key})
	wantValues(t, "the same key", run(Mode{Train: true, Random: key}), first)
	for _, other := range []Random{{2, 2, 3}, {1, 3, 3}, {1, 2, 4}} {
		if slices.Equal(run(Mode{Train: true, Random: other}), first) {
			t.Errorf("key %v drops what %v does", other, key)
		}
	}
	dropped := 0
	for _, y := range first {
		switch y {
		case 0:
			dropped++
		case 4: // 3 / (1 - 0.25)
		default:
			t.Fatalf("3 became %v", y)
		}
	}
	// Of 2000 with probability 1/4: 500, give or take five standard deviations of 19.4.
	if dropped < 403 || dropped > 597 {
		t.Errorf("%d of 2000 dropped", dropped)
	}
}
