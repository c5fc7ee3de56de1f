package average

import (
	"fmt"
	"math"
	"reflect"
	"testing"

	"gradbus/bench/referencetest"
	"gradbus/nn"
	"gradbus/philox"
	"gradbus/schema"
)

// What runs by default has the constants of the original's launcher and of its configurations.
func TestConstantsOfTheOriginal(t *testing.T) {
	c := DefaultConfig()
	s, err := c.system()
	if err != nil {
		t.Fatal(err)
	}
	job, err := s.job("constants", "")
	if err != nil {
		t.Fatal(err)
	}
	sparse, err := loadModel("DummyModelSparse")
	if err != nil {
		t.Fatal(err)
	}
	size := modelConfig{NumEmbeddings: 1024, EmbeddingDim: 1024, DenseInputSize: 1024, DenseOutputSize: 1024,
		DenseLayersCount: 8}
	rows := size
	rows.Sparse = true
	layers := `{"linear":{"in":1024,"out":1024}}`
	for range 7 {
		layers += `,{"linear":{"in":1024,"out":1024}}`
	}
	values := 0
	for _, p := range job.Parameters {
		n := 1
		for _, d := range p.Shape {
			n *= d
		}
		values += n
	}
	for _, x := range []struct {
		what       string
		have, want any
	}{
		{"trainers", c.Trainers, 2},
		{"servers", c.Servers, 1},
		{"kind of server", job.Sum, "fused"},
		{"optimizer", job.Optimizer, schema.Optimizer{Kind: "sgd", LR: 1e-4}},
		{"owner of the model", job.Apply, "mean"},
		{"samples of a batch", s.BatchSize, 32},
		{"samples, their ids, and of these unused", s.Data, dataConfig{1024, 1024, 1024, 20}},
		{"ids that are used", s.Data.ids(), 819},
		{"DummyModel", s.Model, size},
		{"DummyModelSparse", sparse, rows},
		{"values", values, 9_445_376},
		{"model", string(nn.Config(s.Model.module())),
			`[{"embedding_bag":{"rows":1024,"dim":1024,"mode":"mean"}},{"sequential":[` + layers + `]},{"softmax":{}}]`},
		{"criterion", s.Criterion, "cel"},
	} {
		if !reflect.DeepEqual(x.have, x.want) {
			t.Errorf("%s: %v, want %v", x.what, x.have, x.want)
		}
	}
}

// original is DummyModel with its optimizer, in one process.
type original struct {
	ids, width, layers int
	embedding          [][]float64
	dense              *referencetest.Model
}

// newOriginal draws the initial values of a sparse model. The criterion cel takes the softmax of a softmax.
func newOriginal(seed uint64, ids, width, layers int, criterion string) *original {
	o := &original{ids: ids, width: width, layers: layers}
	for key := range ids {
		row := make([]float32, width)
		if err := philox.FillRow(row, philox.Normal, 1, seed, "embedding.weight", uint64(key)); err != nil {
			panic(err) // the kind is a constant
		}
		o.embedding = append(o.embedding, referencetest.Wide(row))
	}
	var all []referencetest.Layer
	for range layers {
		all = append(all, &referencetest.Linear{In: width, Out: width})
	}
	all = append(all, &referencetest.Softmax{})
	if criterion == "cel" {
		all = append(all, &referencetest.Softmax{})
	}
	o.dense = referencetest.New(seed, func(place int, parameter string) string {
		return fmt.Sprintf("dense.%d.%s", place, parameter)
	}, all...)
	return o
}

// forward is the loss of a sample, and the gradient of what its criterion takes.
func (o *original) forward(ids []int32, target int32) (loss float64, grad []float64) {
	mean := make([]float64, o.width)
	for _, id := range ids {
		for j, v := range o.embedding[id] {
			mean[j] += v / float64(len(ids))
		}
	}
	return referencetest.NegativeLog(o.dense.Forward(mean), int(target))
}

// train goes through the samples as the trainers do, and returns the mean of their losses in the first step and in the
// last.
func (o *original) train(data *data, trainers, batch, epochs int, lr float64) (first, last float64) {
	samples := len(data.Targets)
	steps := (samples + trainers*batch - 1) / (trainers * batch)
	losses := make([][]float64, trainers) // of the batches that each has
	for range epochs {
		for step := range steps {
			from, to := step*trainers*batch, min((step+1)*trainers*batch, samples)
			gradient := map[int32][]float64{}
			sums, counts := make([]float64, trainers), make([]float64, trainers)
			for i := from; i < to; i++ {
				ids := data.IDs[i*data.Length : (i+1)*data.Length]
				loss, grad := o.forward(ids, data.Targets[i])
				sums[(i-from)/batch] += loss
				counts[(i-from)/batch]++
				grad = o.dense.Backward(grad)
				for _, id := range ids {
					if gradient[id] == nil {
						gradient[id] = make([]float64, o.width)
					}
					for j, g := range grad {
						gradient[id][j] += g / float64(len(ids))
					}
				}
			}
			o.dense.Step(float64(to-from), lr, 0)
			for id, of := range gradient {
				for j, g := range of {
					o.embedding[id][j] -= lr * g / float64(to-from)
				}
			}
			for l, n := range counts {
				if n > 0 {
					losses[l] = append(losses[l], sums[l]/n)
				}
			}
		}
	}
	for _, of := range losses {
		first, last = first+of[0]/float64(trainers), last+of[len(of)-1]/float64(trainers)
	}
	return first, last
}

// The first losses of the original's model at its own size, with its constants written out here, and with the second
// softmax left out: of the two, the first is 6.93147 whatever the weights are, so that only the second shows them.
func TestFirstLossOfTheOriginal(t *testing.T) {
	const trainers, batch = 2, 32
	for _, criterion := range []string{"cel", "nll"} {
		c := DefaultConfig()
		c.ModelFile, c.Criterion, c.InProcess = "DummyModelSparse", criterion, true
		c.DataFile = file(t, "data.json",
			`{"max_val": 1024, "sample_count": 64, "sample_length": 1024, "sparsity_percentage": 20}`)
		data := newData(dataConfig{1024, trainers * batch, 1024, 20}, c.Seed)
		o, want := newOriginal(c.Seed, 1024, 1024, 8, criterion), 0.0
		for i, target := range data.Targets {
			loss, _ := o.forward(data.IDs[i*1024:(i+1)*1024], target)
			want += loss / (trainers * batch)
		}
		found := measure(t, c)
		if math.Abs(found.LossFirst-want) > 2e-6 {
			t.Errorf("%s: loss %v, want %v", criterion, found.LossFirst, want)
		}
	}
}

// The losses of a smaller model of the original, at a rate at which they move by more than 1e-3, with an uneven last
// step.
func TestLossesOfTheOriginal(t *testing.T) {
	for _, criterion := range []string{"cel", "nll"} {
		c := small(t, 2, "rpc", true)
		c.Criterion, c.Epochs, c.LR = criterion, 3, 1
		o := newOriginal(c.Seed, 12, 8, 2, criterion)
		first, last := o.train(newData(dataConfig{8, 22, 5, 20}, c.Seed), 2, 4, 3, 1)
		found := measure(t, c)
		if math.Abs(found.LossFirst-first) > 1e-6 || math.Abs(found.LossLast-last) > 1e-6 {
			t.Errorf("%s: losses %v and %v, want %v and %v", criterion, found.LossFirst, found.LossLast, first, last)
		}
	}
}
