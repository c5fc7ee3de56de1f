package nn

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gradbus/cuda"
)

func testEnv(t testing.TB) Env { return Env{Backend: testBackend(t)} }

func mustNet(t testing.TB, m Module, in ...int) *Net {
	t.Helper()
	n, err := NewNet(m, in, testEnv(t))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// gradients is memory for the gradients of a net's parameters, filled with what must not stay.
func gradients(n *Net) [][]float32 {
	all := make([][]float32, len(n.Parameters()))
	for i, p := range n.Parameters() {
		all[i] = slices.Repeat([]float32{float32(math.NaN())}, p.Elements())
	}
	return all
}

func TestSequentialByHand(t *testing.T) {
	m := Sequential(LinearLayer{In: 2, Out: 2}, ReLU{}, LinearLayer{In: 2, Out: 1, NoBias: true})
	var names []string
	for _, p := range m.Parameters() {
		names = append(names, p.Name)
	}
	if want := []string{"0.weight", "0.bias", "2.weight"}; !slices.Equal(names, want) {
		t.Fatalf("parameters %v, want %v", names, want)
	}
	n := mustNet(t, m, 2)
	n.GradX = true
	params := [][]float32{{1, 2, 3, 4}, {10, -20}, {5, 6}}
	y, err := n.Forward(params, []float32{1, 1}, Mode{})
	if err != nil {
		t.Fatal(err)
	}
	wantValues(t, "y", y, []float32{65}) // relu(13, -13) = 13, 0
	grads := gradients(n)
	var order []int
	gradX, err := n.Backward(params, []float32{2}, func(i int) []float32 { return grads[i] },
		func(i int) { order = append(order, i) })
	if err != nil {
		t.Fatal(err)
	}
	wantValues(t, "gradX", gradX, []float32{10, 20})
	wantValues(t, "2.weight", grads[2], []float32{26, 0})
	wantValues(t, "0.weight", grads[0], []float32{10, 10, 0, 0})
	wantValues(t, "0.bias", grads[1], []float32{10, 0})
	if !slices.Equal(order, []int{2, 1, 0}) {
		t.Errorf("gradients became final in the order %v, want 2, 1, 0", order)
	}
	if _, err := n.Backward(params, []float32{2}, nil, nil); !errors.Is(err, ErrOrder) {
		t.Errorf("second backward: %v", err)
	}
}

// A net writes over neither what it is given nor what its layers still need.
func TestNetLeavesArguments(t *testing.T) {
	n := mustNet(t, Sequential(ReLU{}, Flatten{}, ReLU{}, Flatten{}), 3)
	n.GradX = true
	x, gradY := []float32{1, -2, 3}, []float32{1, 1, 1}
	y, err := n.Forward(nil, x, Mode{})
	if err != nil {
		t.Fatal(err)
	}
	gradX, err := n.Backward(nil, gradY, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	wantValues(t, "x", x, []float32{1, -2, 3})
	wantValues(t, "y", y, []float32{1, 0, 3})
	wantValues(t, "gradY", gradY, []float32{1, 1, 1})
	wantValues(t, "gradX", gradX, []float32{1, 0, 1})
}

// layerCase is a module to be held to its naive version.
type layerCase struct {
	name   string
	module Module
	in     []int
	bags   bool
}

func layerCases(r *rand.Rand) []layerCase {
	size := func() int { return 1 + r.IntN(7) }
	a, b, c := size(), size(), size()
	return []layerCase{
		{name: "linear", module: LinearLayer{In: a, Out: b}, in: []int{a}},
		{name: "linear without bias", module: LinearLayer{In: a, Out: b, NoBias: true}, in: []int{a}},
		{name: "relu", module: ReLU{}, in: []int{a, b}},
		{name: "flatten", module: Flatten{}, in: []int{a, b, c}},
		{name: "bag sum", module: BagLayer{Rows: b, Dim: a}, bags: true},
		{name: "bag mean", module: BagLayer{Rows: b, Dim: a, Mode: BagMean}, bags: true},
		{name: "served bag", module: BagLayer{Dim: a, Mode: BagMean, Served: true}, bags: true},
		{name: "conv2d", in: []int{a, 5, 4}, module: Conv2d{In: a, Out: b, Kernel: 3}},
		{name: "conv2d with stride and padding", in: []int{a, 5, 6},
			module: Conv2d{In: a, Out: b, Kernel: 2, Stride: 2, Padding: 1, NoBias: true}},
		{name: "max-pool", in: []int{a, 5, 6}, module: MaxPool2d{Kernel: 2}},
		{name: "max-pool that overlaps", in: []int{a, 5, 4}, module: MaxPool2d{Kernel: 3, Stride: 1, Padding: 1}},
		{name: "dropout", in: []int{a, b, 2}, module: Dropout{P: 0.4}},
		{name: "dropout2d", in: []int{b, a, 2}, module: dropout2d{P: 0.4}},
		{name: "softmax", in: []int{a}, module: Softmax{}},
		{name: "log-softmax", in: []int{a}, module: logSoftmax{}},
		{name: "image to image", in: []int{a, 4, 4}, module: Sequential(Conv2d{In: a, Out: b, Kernel: 2}, Dropout{P: 0.2},
			ReLU{}, MaxPool2d{Kernel: 2, Stride: 1}, dropout2d{P: 0.2})},
		{name: "image model", in: []int{a, 6, 6},
			module: Sequential(Conv2d{In: a, Out: b, Kernel: 3}, ReLU{}, Conv2d{In: b, Out: c, Kernel: 3}, MaxPool2d{Kernel: 2},
				dropout2d{P: 0.25}, Flatten{}, LinearLayer{In: c, Out: a}, ReLU{}, Dropout{P: 0.5}, LinearLayer{In: a, Out: b},
				logSoftmax{})},
		{name: "one parameter", in: []int{a}, module: Sequential(LinearLayer{In: a, Out: b, NoBias: true}, ReLU{},
			Softmax{})},
		{name: "softmax in the middle", in: []int{a},
			module: Sequential(LinearLayer{In: a, Out: b}, Softmax{}, Dropout{P: 0.3}, LinearLayer{In: b, Out: b},
				logSoftmax{}, Dropout{P: 0.3})},
		{name: "several", in: []int{a},
			module: Sequential(LinearLayer{In: a, Out: b}, ReLU{}, Sequential(LinearLayer{In: b, Out: c}, ReLU{}), Flatten{})},
	}
}

// Every layer's outputs against its definition, and its gradients against central differences, both in float64.
func TestLayersAgainstDifferences(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 6 {
		for _, c := range layerCases(r) {
			t.Run(c.name, func(t *testing.T) { checkLayer(t, c, r) })
		}
	}
}

// drawn gives values and the same as float64.
func drawn(r *rand.Rand, n int) ([]float32, []float64) {
	single, double := make([]float32, n), make([]float64, n)
	for i := range single {
		single[i] = float32(r.NormFloat64() * 0.5)
		double[i] = float64(single[i])
	}
	return single, double
}

// checkLayer draws until no value is near to where the module has no derivative.
func checkLayer(t *testing.T, c layerCase, r *rand.Rand) {
	for range 100 {
		if tried(t, c, r) {
			return
		}
	}
	t.Fatal("no values away from the module's kinks in 100 draws")
}

func tried(t *testing.T, c layerCase, r *rand.Rand) bool {
	samples := r.IntN(5)
	e := testEnv(t)
	e.Dense, _ = cuda.OpenDense(e.Backend, cuda.DenseOptions{Library: "own"})
	net, err := netIn(c.module, c.in, e, cuda.Layout(r.IntN(2)))
	if err != nil {
		t.Fatal(err)
	}
	bag, _ := c.module.(BagLayer)
	net.GradX = !c.bags && r.IntN(2) == 0 || bag.Served
	var params [][]float32
	var params64 [][]float64
	for _, p := range net.Parameters() {
		s, d := drawn(r, p.Elements())
		for i := range s {
			s[i], d[i] = s[i]/4, d[i]/4 // exactly; so that values stay near one through several layers
		}
		params, params64 = append(params, s), append(params64, d)
	}
	v := naive{mode: Mode{Train: true, Random: Random{Seed: 1, Batch: 2, Lane: 3}}}
	var x []float32
	var x64 []float64
	if c.bags {
		v.bags = drawBags(r, samples, bag, &v.rows)
	} else {
		x, x64 = drawn(r, samples*product(c.in))
	}
	run := func() []float64 { return v.forward(c.module, params64, x64, samples, c.in) }
	wanted := run()
	if v.kink < 1.0/256 {
		return false
	}
	var y []float32
	if c.bags {
		y, err = net.ForwardBags(params, v.bags, v.mode)
	} else {
		y, err = net.Forward(params, x, v.mode)
	}
	if err != nil {
		t.Fatal(err)
	}
	wantClose(t, "y", y, wanted)
	gradY, gradY64 := drawn(r, len(y))
	grads := gradients(net)
	gradX, err := net.Backward(params, gradY, func(i int) []float32 { return grads[i] }, nil)
	if err != nil {
		t.Fatal(err)
	}
	loss := func() (sum float64) {
		for i, yi := range run() {
			sum += yi * gradY64[i]
		}
		return sum
	}
	for i, p := range net.Parameters() {
		wantClose(t, p.Name, grads[i], differences(params64[i], loss))
	}
	if bag.Served {
		wantClose(t, "gradient of what was pooled", gradX, gradY64)
	} else if net.GradX {
		wantClose(t, "gradX", gradX, differences(x64, loss))
	} else if gradX != nil {
		t.Errorf("gradX of %d values that nobody wants", len(gradX))
	}
	return true
}

// differences gives the derivative of loss by each of at, from four values of it: what that errs by is of the fourth
// order in the step, and no value moves by as much as a kink is away.
func differences(at []float64, loss func() float64) []float64 {
	out := make([]float64, len(at))
	for i, before := range at {
		const step = 1e-5
		value := func(steps float64) float64 {
			at[i] = before + steps*step
			return loss()
		}
		out[i] = (8*(value(1)-value(-1)) - (value(2) - value(-2))) / (12 * step)
		at[i] = before
	}
	return out
}

// wantClose is wantNear for values of any size: the tolerance grows with the largest of them.
func wantClose(t *testing.T, name string, got []float32, want []float64) {
	t.Helper()
	largest := 1.0
	for _, w := range want {
		largest = max(largest, math.Abs(w))
	}
	if len(got) != len(want) {
		t.Fatalf("%s has %d values, want %d", name, len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(float64(got[i])-want[i]) <= tolerance*largest) {
			t.Errorf("%s[%d] = %v, want %v", name, i, got[i], want[i])
		}
	}
}

func drawBags(r *rand.Rand, samples int, l BagLayer, rows64 *[]float64) Bags {
	rows := l.Rows
	bags := Bags{Offsets: []int64{0}}
	if l.Served {
		rows = 3
		bags.Rows, *rows64 = drawn(r, rows*l.Dim)
	}
	for range samples {
		for range r.IntN(4) {
			bags.IDs = append(bags.IDs, int64(r.IntN(rows)))
		}
		bags.Offsets = append(bags.Offsets, int64(len(bags.IDs)))
	}
	return bags
}

func TestBuild(t *testing.T) {
	text := `[{"linear":{"in":2,"out":3,"no_bias":true}},{"sequential":[{"relu":{}},{"flatten":{}}]},{"linear":{"in":3,"out":1}}]`
	m, err := Build([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(Config(m)); got != text {
		t.Errorf("configuration\ngot  %s\nwant %s", got, text)
	}
	if got := m.Parameters(); len(got) != 3 || got[2].Name != "2.bias" || !slices.Equal(got[0].Shape, []int{3, 2}) {
		t.Errorf("parameters %v", got)
	}
}

func TestBuildRefuses(t *testing.T) {
	deep := strings.Repeat(`[{"sequential":`, 9) + `[{"relu":{}}]` + strings.Repeat(`}]`, 9)
	for text, says := range map[string]string{
		``:                               "want a list of layers",
		`{}`:                             "want a list of layers",
		`[]`:                             "no layers: want at least one",
		`[{}]`:                           `layer 0: bad module: 0 names: want one`,
		`[{"relu":{},"flatten":{}}]`:     `layer 0: bad module: 2 names: want one`,
		`[{"relu":{}},{"relo":{}}]`:      `layer 1: bad module: unknown layer "relo": want one of linear, embedding_bag, conv2d`,
		`[{"relu":{"p":1}}]`:             `layer 0: bad module: relu: json: unknown field "p"`,
		`[{"relu":{}}] x`:                "want a list of layers",
		`[{"linear":{"in":0,"out":3}}]`:  `layer 0: bad module: linear in 0: want 1 to 16777216`,
		`[{"linear":{"in":"a"}}]`:        `layer 0: bad module: linear: json: cannot unmarshal string`,
		`[{"linear":{"in":3,"out":-3}}]`: `layer 0: bad module: linear out -3: want 1 to 16777216`,
		`[{"linear":{"in":16777216,"out":16777216}}]`:               "0.weight have over 1073741824 values",
		`[{"embedding_bag":{"dim":3,"rows":2,"served":true}}]`:      "embedding_bag rows 2: want 0 to 0",
		`[{"embedding_bag":{"dim":3,"rows":2,"mode":"max"}}]`:       `embedding_bag mode "max": want "sum" or "mean"`,
		`[{"sequential":[{"sequential":[]}]}]`:                      "layer 0: layer 0: bad module: no layers",
		deep:                                                        "nested over 8 deep",
		"[" + strings.Repeat(`{"relu":{}},`, 1024) + `{"relu":{}}]`: "over 1024 layers",
		strings.Repeat(" ", configMax+1):                            "bytes of configuration",
	} {
		_, err := Build([]byte(text))
		if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60s: %v, want it to say %q", text, err, says)
		}
	}
}

func TestNetRefuses(t *testing.T) {
	f := func(n int) []float32 { return make([]float32, n) }
	linear := LinearLayer{In: 2, Out: 1}
	for name, c := range map[string]struct {
		in   []int
		m    Module
		says string
	}{
		"shape": {[]int{3}, linear, "layer 0: bad shape: linear of samples of shape [3]: want [2]"},
		"rank":  {[]int{1, 2}, Sequential(ReLU{}, linear), "layer 1: bad shape: linear of samples of shape [1 2]: want [2]"},
		"bag":   {[]int{2}, BagLayer{Rows: 1, Dim: 2}, "embedding_bag of samples of shape [2]: want none"},
		"late": {nil, Sequential(BagLayer{Rows: 1, Dim: 2}, BagLayer{Rows: 1, Dim: 2}),
			"layer 1 pools embedding rows: want it first"},
	} {
		if _, err := NewNet(c.m, c.in, testEnv(t)); !errors.Is(err, ErrShape) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want it to say %q", name, err, c.says)
		}
	}
	n := mustNet(t, linear, 2)
	good := [][]float32{f(2), f(1)}
	_, few := n.Forward(good[:1], f(2), Mode{})
	_, wide := n.Forward([][]float32{f(3), f(1)}, f(2), Mode{})
	_, odd := n.Forward(good, f(3), Mode{})
	_, bags := n.ForwardBags(good, Bags{Offsets: []int64{0}}, Mode{})
	if _, err := n.Forward(good, f(2), Mode{}); err != nil {
		t.Fatal(err)
	}
	_, gradY := n.Backward(good, f(2), nil, nil)
	_, short := n.Backward(good, f(1), func(int) []float32 { return f(3) }, nil)
	for i, err := range []error{few, wide, odd, bags, gradY, short} {
		if !errors.Is(err, ErrShape) {
			t.Errorf("%d: %v, want ErrShape", i, err)
		}
	}
}

// The same numbers as a session draws for a job with these parameters.
func TestInitial(t *testing.T) {
	m := Sequential(LinearLayer{In: 4, Out: 100}, ReLU{}, LinearLayer{In: 100, Out: 1})
	values, err := Initial(m, 7)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range m.Parameters() {
		lo, hi := slices.Min(values[i]), slices.Max(values[i])
		if len(values[i]) != p.Elements() || lo < -p.Scale || hi >= p.Scale || p.Elements() > 50 &&
			(lo > -0.8*p.Scale || hi < 0.8*p.Scale) {
			t.Errorf("%s: %d values from %v to %v, scale %v", p.Name, len(values[i]), lo, hi, p.Scale)
		}
	}
	if got := m.Parameters()[0].Scale; got != 0.5 {
		t.Errorf("bound of 4 inputs = %v, want 0.5", got)
	}
}
