package nn

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"gradbus/cuda"
)

func testBackend(t testing.TB) cuda.Backend {
	t.Helper()
	b, err := cuda.Open(cuda.Options{Name: "go"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantValues(t *testing.T, name string, got, want []float32) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s = %v, want %v", name, got, want)
	}
}

// The examples of the comments, which one checks by hand.
func TestLinearByHand(t *testing.T) {
	l := NewLinear(testBackend(t), 2, 2)
	weight := []float32{1, 2, 3, 4}
	y := []float32{9, 9}
	if err := l.Forward(weight, []float32{10, 20}, []float32{1, 1}, y); err != nil {
		t.Fatal(err)
	}
	wantValues(t, "y", y, []float32{13, 27})
	if err := l.Forward(weight, nil, []float32{1, 1}, y); err != nil {
		t.Fatal(err)
	}
	wantValues(t, "y without bias", y, []float32{3, 7})

	gradWeight, gradBias := []float32{9, 9, 9, 9}, []float32{9, 9}
	if err := l.BackwardParams([]float32{1, 2}, []float32{3, 4}, gradWeight, gradBias); err != nil {
		t.Fatal(err)
	}
	wantValues(t, "gradWeight", gradWeight, []float32{3, 6, 4, 8})
	wantValues(t, "gradBias", gradBias, []float32{3, 4})
	if err := l.BackwardParams([]float32{1, 2, 1, 0}, []float32{3, 4, 1, 1}, gradWeight, gradBias); err != nil {
		t.Fatal(err)
	}
	wantValues(t, "gradWeight of two", gradWeight, []float32{4, 6, 5, 8})
	wantValues(t, "gradBias of two", gradBias, []float32{4, 5})

	gradX := []float32{9, 9}
	if err := l.BackwardInput(weight, []float32{1, 10}, gradX); err != nil {
		t.Fatal(err)
	}
	wantValues(t, "gradX", gradX, []float32{31, 42})
}

func TestLinearWithoutSamples(t *testing.T) {
	l := NewLinear(testBackend(t), 2, 1)
	gradWeight, gradBias := []float32{9, 9}, []float32{9}
	err := errors.Join(l.Forward([]float32{1, 2}, nil, nil, nil), l.BackwardInput([]float32{1, 2}, nil, nil),
		l.BackwardParams(nil, nil, gradWeight, gradBias))
	if err != nil {
		t.Fatal(err)
	}
	wantValues(t, "gradWeight", gradWeight, []float32{0, 0})
	wantValues(t, "gradBias", gradBias, []float32{0})
}

func TestLinearShapes(t *testing.T) {
	l := NewLinear(testBackend(t), 2, 3)
	f := func(n int) []float32 { return make([]float32, n) }
	for name, err := range map[string]error{
		"weight":     l.Forward(f(5), f(3), f(4), f(6)),
		"bias":       l.Forward(f(6), f(2), f(4), f(6)),
		"x":          l.Forward(f(6), f(3), f(5), f(6)),
		"y":          l.Forward(f(6), f(3), f(4), f(5)),
		"gradY":      l.BackwardParams(f(4), f(5), f(6), f(3)),
		"gradWeight": l.BackwardParams(f(4), f(6), f(5), f(3)),
		"gradBias":   l.BackwardParams(f(4), f(6), f(6), f(2)),
		"gradX":      l.BackwardInput(f(6), f(6), f(5)),
	} {
		if !errors.Is(err, ErrShape) {
			t.Errorf("wrong %s: %v", name, err)
		}
	}
	if got, want := l.BackwardInput(f(6), f(6), f(5)).Error(),
		"linear backward: bad shape: gradX has 5 values, want 2 x 2"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestEmbeddingBagByHand(t *testing.T) {
	rows, ids, offsets := []float32{1, 2, 3, 4}, []int64{0, 1, 1}, []int64{0, 2, 3}
	out := make([]float32, 4)
	for _, c := range []struct {
		mode      cuda.Mode
		out, grad []float32
	}{
		{cuda.Mean, []float32{2, 3, 3, 4}, []float32{1, 2, 2, 3}},
		{cuda.Sum, []float32{4, 6, 3, 4}, []float32{2, 4, 3, 5}},
	} {
		e := NewEmbeddingBag(testBackend(t), 2, c.mode)
		if err := e.Forward(rows, ids, offsets, out); err != nil {
			t.Fatal(err)
		}
		wantValues(t, "out", out, c.out)
		keys, grad, err := e.backward(2, ids, offsets, []float32{2, 4, 1, 1})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(keys, []int64{0, 1}) {
			t.Errorf("keys = %v", keys)
		}
		wantValues(t, "grad", grad, c.grad)
	}
}

// A bag without ids is a zero row and has no gradient; so has a call without any.
func TestEmbeddingBagEmpty(t *testing.T) {
	e := NewEmbeddingBag(testBackend(t), 2, cuda.Mean)
	out := []float32{9, 9, 9, 9}
	if err := e.Forward([]float32{1, 2}, []int64{0}, []int64{0, 0, 1}, out); err != nil {
		t.Fatal(err)
	}
	wantValues(t, "out", out, []float32{0, 0, 1, 2})
	if err := e.Forward(nil, nil, []int64{0, 0}, out[:2]); err != nil {
		t.Fatal(err)
	}
	if keys, rows, err := e.backward(0, nil, []int64{0, 0}, []float32{1, 1}); err != nil || len(keys)+len(rows) != 0 {
		t.Errorf("keys %v rows %v err %v", keys, rows, err)
	}
	if err := e.Forward([]float32{1, 2}, []int64{1}, []int64{0, 1}, out[:2]); !errors.Is(err, cuda.ErrID) {
		t.Errorf("id out of range: %v", err)
	}
}

func TestCrossEntropyByHand(t *testing.T) {
	c := NewCrossEntropy(testBackend(t), 2)
	grad := make([]float32, 2)
	loss, err := c.Loss([]float32{0, 0}, []int32{1}, grad)
	if err != nil || math.Abs(loss-math.Ln2) > 1e-7 {
		t.Errorf("loss %v, err %v", loss, err)
	}
	wantValues(t, "grad", grad, []float32{0.5, -0.5})
	if err := c.Probabilities([]float32{3, 3}, grad); err != nil {
		t.Fatal(err)
	}
	wantValues(t, "probabilities", grad, []float32{0.5, 0.5})
	if loss, err := c.Loss(nil, nil, nil); loss != 0 || err != nil {
		t.Errorf("no samples: loss %v, err %v", loss, err)
	}
	_, short := c.Loss([]float32{0}, []int32{1}, grad)
	_, wide := c.Loss([]float32{0, 0}, []int32{1}, grad[:1])
	for _, err := range []error{short, wide, c.Probabilities([]float32{1}, grad),
		c.Probabilities([]float32{1, 2}, grad[:1])} {
		if !errors.Is(err, ErrShape) {
			t.Errorf("wrong shape: %v", err)
		}
	}
	if _, err := c.Loss([]float32{0, 0}, []int32{2}, grad); !errors.Is(err, cuda.ErrID) {
		t.Errorf("target out of range: %v", err)
	}
}

// net is the three layers on top of each other.
type net struct {
	bag    *EmbeddingBag
	linear *Linear
	loss   *CrossEntropy

	pooled, logits, gradLogits, gradWeight, gradBias, gradPooled, gradRows []float32
	sum                                                                    float64
}

func newNet(t testing.TB, dim, classes int, mode cuda.Mode) *net {
	b := testBackend(t)
	return &net{bag: NewEmbeddingBag(b, dim, mode), linear: NewLinear(b, dim, classes), loss: NewCrossEntropy(b, classes)}
}

// run computes everything; gradRows is spread over all rows.
func (n *net) run(t testing.TB, rows, weight, bias []float32, ids, offsets []int64, targets []int32) {
	t.Helper()
	bags, dim, classes := len(targets), n.bag.dim, n.loss.classes
	f := func(n int) []float32 { return make([]float32, n) }
	n.pooled, n.logits, n.gradLogits = f(bags*dim), f(bags*classes), f(bags*classes)
	n.gradWeight, n.gradBias, n.gradPooled, n.gradRows = f(classes*dim), f(classes), f(bags*dim), f(len(rows))
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	check(n.bag.Forward(rows, ids, offsets, n.pooled))
	check(n.linear.Forward(weight, bias, n.pooled, n.logits))
	var err error
	n.sum, err = n.loss.Loss(n.logits, targets, n.gradLogits)
	check(err)
	check(n.linear.BackwardParams(n.pooled, n.gradLogits, n.gradWeight, n.gradBias))
	check(n.linear.BackwardInput(weight, n.gradLogits, n.gradPooled))
	keys, grad, err := n.bag.backward(len(rows)/dim, ids, offsets, n.gradPooled)
	check(err)
	for i, k := range keys {
		copy(n.gradRows[int(k)*dim:][:dim], grad[i*dim:])
	}
}

// tolerance: no value here is reached by more than 64 roundings, each of at most half a unit in the last place of a
// number below 8, that is 64 * 8 * 2^-25. A wrong formula is off by far more.
const tolerance = 64 * 8 * 0x1p-25

func wantNear(t *testing.T, name string, got []float32, want []float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d values, want %d", name, len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(float64(got[i])-want[i]) <= tolerance) {
			t.Errorf("%s[%d] = %v, want %v", name, i, got[i], want[i])
		}
	}
}

// The values that PyTorch gives; see testdata/golden.py.
func TestGolden(t *testing.T) {
	var golden struct {
		Dim, Classes int
		IDs, Offsets []int64
		Targets      []int32
		Cases        []struct {
			Mode               string
			Loss               float64
			Rows, Weight, Bias []float32
			Pooled, Logits     []float64
			Probabilities      []float64
			GradLogits         []float64 `json:"grad_logits"`
			GradWeight         []float64 `json:"grad_weight"`
			GradBias           []float64 `json:"grad_bias"`
			GradPooled         []float64 `json:"grad_pooled"`
			GradRows           []float64 `json:"grad_rows"`
		}
	}
	text, err := os.ReadFile("testdata/golden.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) != 2 {
		t.Fatalf("%d cases, want 2", len(golden.Cases))
	}
	for _, c := range golden.Cases {
		t.Run(c.Mode, func(t *testing.T) {
			n := newNet(t, golden.Dim, golden.Classes, map[string]cuda.Mode{"sum": cuda.Sum, "mean": cuda.Mean}[c.Mode])
			n.run(t, c.Rows, c.Weight, c.Bias, golden.IDs, golden.Offsets, golden.Targets)
			if math.Abs(n.sum-c.Loss) > tolerance*float64(len(golden.Targets)) {
				t.Errorf("loss = %v, want %v", n.sum, c.Loss)
			}
			wantNear(t, "pooled", n.pooled, c.Pooled)
			wantNear(t, "logits", n.logits, c.Logits)
			wantNear(t, "gradLogits", n.gradLogits, c.GradLogits)
			wantNear(t, "gradWeight", n.gradWeight, c.GradWeight)
			wantNear(t, "gradBias", n.gradBias, c.GradBias)
			wantNear(t, "gradPooled", n.gradPooled, c.GradPooled)
			wantNear(t, "gradRows", n.gradRows, c.GradRows)
			probabilities := make([]float32, len(n.logits))
			if err := n.loss.Probabilities(n.logits, probabilities); err != nil {
				t.Fatal(err)
			}
			wantNear(t, "probabilities", probabilities, c.Probabilities)
		})
	}
}

// The bias gradient is the canonical sum of the columns, which a bag of all rows gives too; more than 64 samples make
// the blocks show.
func TestBiasGradientIsCanonical(t *testing.T) {
	const n, classes = 4200, 3
	b := testBackend(t)
	r := rand.New(rand.NewPCG(1, 2))
	gradY, x := make([]float32, n*classes), make([]float32, n)
	for i := range gradY {
		gradY[i] = float32(r.NormFloat64())
	}
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64(i)
	}
	got, want := make([]float32, classes), make([]float32, classes)
	if err := NewLinear(b, 1, classes).BackwardParams(x, gradY, make([]float32, classes), got); err != nil {
		t.Fatal(err)
	}
	if err := NewEmbeddingBag(b, classes, cuda.Sum).Forward(gradY, ids, []int64{0, n}, want); err != nil {
		t.Fatal(err)
	}
	wantValues(t, "gradBias", got, want)
}

func TestInitBound(t *testing.T) {
	if got := NewLinear(testBackend(t), 64, 2).InitBound(); got != 0.125 {
		t.Errorf("bound of 64 inputs = %v, want 0.125", got)
	}
}

// Once warm, a layer allocates nothing of its own. (The portable backend may.)
func TestScratchIsReused(t *testing.T) {
	e := NewEmbeddingBag(testBackend(t), 2, cuda.Sum)
	ids, offsets, grad := []int64{1, 0, 1}, []int64{0, 3}, []float32{1, 2}
	first, _, err := e.backward(2, ids, offsets, grad)
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := e.backward(2, ids[:2], []int64{0, 2}, grad)
	if err != nil || &first[0] != &second[0] {
		t.Errorf("scratch moved (err %v)", err)
	}
}
